"""What a distributed training script needs besides its framework: its place in the job, and NCCL.

The place comes from torchrun's environment, the communicator's unique id travels over
MASTER_ADDR:MASTER_PORT, and NCCL is called by ctypes, on memory and streams of whoever holds the device (here
tinygrad).  Nothing here knows of Singularity HAL.
"""

from __future__ import annotations

import ctypes
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

UINT8, INT32, FLOAT32 = 1, 2, 7
"""Types, as nccl.h numbers them."""
SUM, AVERAGE = 0, 4
"""Reductions, as nccl.h numbers them."""
NO_COLOR = -1
"""For `Communicator.split`: this rank joins no part."""

_PATIENCE = 120.0  # seconds for all ranks to come up


@dataclass(frozen=True)
class Place:
    """Which rank this process is."""

    rank: int
    world: int
    local_rank: int
    master: tuple[str, int]

    @classmethod
    def from_environment(cls) -> Place:
        """As torchrun sets it; a process without it is alone."""
        environment = os.environ
        return cls(
            int(environment.get("RANK", "0")),
            int(environment.get("WORLD_SIZE", "1")),
            int(environment.get("LOCAL_RANK", "0")),
            (environment.get("MASTER_ADDR", "127.0.0.1"), int(environment.get("MASTER_PORT", "29500"))),
        )


class _UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_char * 128)]


def _library() -> ctypes.CDLL:
    nccl = ctypes.CDLL("libnccl.so.2")
    pointer, number, size = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t
    nccl.ncclGetErrorString.restype = ctypes.c_char_p
    nccl.ncclGetLastError.restype = ctypes.c_char_p
    nccl.ncclGetLastError.argtypes = [pointer]
    nccl.ncclCommInitRank.argtypes = [ctypes.POINTER(pointer), number, _UniqueId, number]
    nccl.ncclCommSplit.argtypes = [pointer, number, number, ctypes.POINTER(pointer), pointer]
    nccl.ncclAllReduce.argtypes = [pointer, pointer, size, number, number, pointer, pointer]
    nccl.ncclAllGather.argtypes = [pointer, pointer, size, number, pointer, pointer]
    nccl.ncclSend.argtypes = [pointer, size, number, number, pointer, pointer]
    nccl.ncclRecv.argtypes = [pointer, size, number, number, pointer, pointer]
    nccl.ncclCommFinalize.argtypes = nccl.ncclCommDestroy.argtypes = [pointer]
    return nccl


class Communicator:
    """A group of ranks.  Every operation is queued on the default stream of the context that was current when
    the communicator was made: after what is there, before what comes."""

    def __init__(self, handle: ctypes.c_void_p, rank: int, size: int, nccl: ctypes.CDLL) -> None:
        self._handle, self.rank, self.size, self._nccl = handle, rank, size, nccl

    @classmethod
    def of_all_ranks(cls, place: Place) -> Communicator:
        """One of all ranks of the job; a device's context must be current.  Waits for the others."""
        nccl = _library()
        unique = _UniqueId()
        if place.rank == 0:
            _check(nccl, nccl.ncclGetUniqueId(ctypes.byref(unique)))
        share(place, unique)
        handle = ctypes.c_void_p()
        _check(nccl, nccl.ncclCommInitRank(ctypes.byref(handle), place.world, unique, place.rank))
        return cls(handle, place.rank, place.world, nccl)

    def split(self, color: int) -> Communicator | None:
        """The part of the ranks that gave the same color, in the same order; None for `NO_COLOR`."""
        handle, nccl = ctypes.c_void_p(), self._nccl
        self._call("ncclCommSplit", self._handle, color, self.rank, ctypes.byref(handle), None)
        if color == NO_COLOR:
            return None
        rank, size = ctypes.c_int(), ctypes.c_int()
        _check(nccl, nccl.ncclCommUserRank(handle, ctypes.byref(rank)))
        _check(nccl, nccl.ncclCommCount(handle, ctypes.byref(size)))
        return Communicator(handle, rank.value, size.value, nccl)

    def all_reduce(self, address: int, count: int, operation: int) -> None:
        """Reduces `count` floats in place."""
        self._call("ncclAllReduce", address, address, count, FLOAT32, operation, self._handle, None)

    def all_gather(self, source: int, result: int, count: int) -> None:
        """`result` gets `count` bytes of every rank."""
        self._call("ncclAllGather", source, result, count, UINT8, self._handle, None)

    def send(self, address: int, count: int, peer: int) -> None:
        """Sends `count` floats to rank `peer` of this communicator."""
        self._call("ncclSend", address, count, FLOAT32, peer, self._handle, None)

    def receive(self, address: int, count: int, peer: int) -> None:
        """Receives `count` floats from rank `peer` of this communicator."""
        self._call("ncclRecv", address, count, FLOAT32, peer, self._handle, None)

    @contextmanager
    def group(self) -> Iterator[None]:
        """Operations inside begin together."""
        self._call("ncclGroupStart")
        yield
        self._call("ncclGroupEnd")

    def close(self) -> None:
        """Ends the communicator; all its ranks do."""
        self._call("ncclCommFinalize", self._handle)
        self._call("ncclCommDestroy", self._handle)

    def _call(self, name: str, *arguments: object) -> None:
        _check(self._nccl, getattr(self._nccl, name)(*arguments), self._handle)


def _check(nccl: ctypes.CDLL, result: int, handle: ctypes.c_void_p | None = None) -> None:
    if result != 0:
        words = nccl.ncclGetErrorString(result), nccl.ncclGetLastError(handle)
        raise RuntimeError(f"NCCL error {result}: " + "; ".join(w.decode() for w in words if w))


def share(place: Place, unique: _UniqueId) -> None:
    """Gives rank 0's unique id to all ranks, over TCP."""
    if place.rank == 0:
        with socket.create_server(place.master, backlog=place.world) as server:
            server.settimeout(_PATIENCE)
            for _ in range(place.world - 1):
                connection, _ = server.accept()
                with connection:
                    connection.sendall(bytes(unique))
        return
    content = b""
    with connect(place.master) as connection:
        while part := connection.recv(ctypes.sizeof(unique) - len(content)):
            content += part
    if len(content) != ctypes.sizeof(unique):
        raise RuntimeError(f"Rank 0 sent {len(content)} bytes of its NCCL id and hung up.")
    ctypes.memmove(ctypes.byref(unique), content, len(content))


def connect(master: tuple[str, int]) -> socket.socket:
    """A connection to rank 0, which may still have to come up; no operation on it takes for ever."""
    until = time.monotonic() + _PATIENCE
    while True:
        try:
            return socket.create_connection(master, timeout=_PATIENCE)
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)
