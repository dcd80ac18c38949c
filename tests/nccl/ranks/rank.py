"""A rank of a test: its place in the job, memory, communicators and NCCL's calls."""

from __future__ import annotations

import ctypes as c
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "interposers" / "programs"))
import driver
from driver import check, make

nccl = c.CDLL("libnccl.so.2")
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
PLACE = Path(sys.argv[1])
SUCCESS, INVALID_ARGUMENT, INVALID_USAGE, REMOTE_ERROR, IN_PROGRESS = 0, 4, 5, 6, 7
PER_THREAD = 2


class UniqueId(c.Structure):
    """ncclUniqueId"""

    _fields_ = (("internal", c.c_char * 128),)


class Config(c.Structure):
    """ncclConfig_t as far as `blocking`: a program that was built with an older header passes such a one."""

    _fields_ = (
        ("size", c.c_size_t),
        ("magic", c.c_uint),
        ("version", c.c_uint),
        ("blocking", c.c_int),
        ("cluster", c.c_int),
    )


_KINDS = {"p": c.c_void_p, "z": c.c_size_t, "i": c.c_int}
for _name, _kinds in {
    "AllReduce": "ppziipp",
    "Reduce": "ppziiipp",
    "Broadcast": "ppziipp",
    "Bcast": "pziipp",
    "AllGather": "ppzipp",
    "ReduceScatter": "ppziipp",
    "AlltoAll": "ppzipp",
    "Gather": "ppziipp",
    "Scatter": "ppziipp",
    "Send": "pziipp",
    "Recv": "pziipp",
    "CommDestroy": "p",
    "CommFinalize": "p",
    "CommAbort": "p",
    "CommCount": "pp",
    "CommUserRank": "pp",
    "CommSplit": "piipp",
    "CommGetAsyncError": "pp",
    "RedOpCreatePreMulSum": "ppiip",
    "RedOpDestroy": "ip",
    "CommRegister": "ppzp",
    "CommDeregister": "pp",
    "MemFree": "p",
}.items():
    getattr(nccl, f"nccl{_name}").argtypes = [_KINDS[kind] for kind in _kinds]
nccl.ncclCommInitRank.argtypes = (c.c_void_p, c.c_int, UniqueId, c.c_int)
nccl.ncclCommInitRankConfig.argtypes = (c.c_void_p, c.c_int, UniqueId, c.c_int, c.c_void_p)
nccl.ncclGetLastError.restype = c.c_char_p
nccl.ncclGetLastError.argtypes = (c.c_void_p,)


def ask(name: str, *arguments: Any) -> int:
    """The result code of nccl`name`."""
    return int(getattr(nccl, f"nccl{name}")(*arguments))


def do(name: str, *arguments: Any) -> None:
    """nccl`name`, which must succeed."""
    code = ask(name, *arguments)
    assert code == SUCCESS, f"nccl{name} returned {code}: {nccl.ncclGetLastError(None).decode()}"


def start() -> None:
    """A context for this thread."""
    driver.start()


def allocate(content: bytes | int) -> int:
    """Device memory that holds `content`, or so many bytes of 0xee; zero bytes give no memory."""
    data = b"\xee" * content if isinstance(content, int) else content
    if not data:
        return 0
    address = make(driver.Address, "cuMemAlloc_v2", c.c_size_t(len(data)))
    check("cuMemcpyHtoD_v2", address, data, c.c_size_t(len(data)))
    check("cuStreamSynchronize", None)  # else streams that do not wait for it may overtake the copy
    return int(address.value)


def read(address: int, count: int) -> bytes:
    """What device memory holds, once all work of the context is done."""
    check("cuCtxSynchronize")
    data = c.create_string_buffer(count)
    check("cuMemcpyDtoH_v2", data, driver.Address(address), c.c_size_t(count))
    return data.raw


def stream() -> Any:
    """A stream that does not wait for the default stream."""
    return make(driver.Handle, "cuStreamCreate", 1)


def unique_id(name: str, first: int) -> UniqueId:
    """An id that rank `first` makes, by way of a file."""
    place, unique = PLACE / name, UniqueId()
    if first == RANK:
        do("GetUniqueId", c.byref(unique))
        (PLACE / f"{name}.making").write_bytes(bytes(unique))
        (PLACE / f"{name}.making").rename(place)
    while not place.exists():
        time.sleep(0.001)
    return UniqueId.from_buffer_copy(place.read_bytes())


def meet(name: str) -> None:
    """Returns when all ranks have come here, by way of files."""
    (PLACE / f"{name}.{RANK}").touch()
    while not all((PLACE / f"{name}.{rank}").exists() for rank in range(WORLD)):
        time.sleep(0.001)


def communicator(name: str, ranks: list[int] | None = None) -> Any:
    """A communicator of some ranks (the caller among them), or of all."""
    ranks = list(range(WORLD)) if ranks is None else ranks
    handle = c.c_void_p()
    do("CommInitRank", c.byref(handle), len(ranks), unique_id(name, ranks[0]), ranks.index(RANK))
    return handle


def settle(comm: Any) -> int:
    """The state of a communicator that does not block, once it is not in progress any more."""
    state = c.c_int(IN_PROGRESS)
    while state.value == IN_PROGRESS:
        do("CommGetAsyncError", comm, c.byref(state))
        time.sleep(0.0005)
    return state.value


def settle_failed(comm: Any) -> int:
    """The asynchronous error of a communicator, once it has one."""
    state = c.c_int(SUCCESS)
    while state.value in (SUCCESS, IN_PROGRESS):
        do("CommGetAsyncError", comm, c.byref(state))
        time.sleep(0.0005)
    return state.value


def group(calls: Callable[[], None]) -> None:
    """The calls as one group."""
    do("GroupStart")
    calls()
    do("GroupEnd")


def equal(found: bytes, expected: bytes, what: str) -> None:
    """Fails with the first difference."""
    if found == expected:
        return
    at = next(i for i, (a, b) in enumerate(zip(found, expected, strict=True)) if a != b)
    raise AssertionError(
        f"rank {RANK}: {what}: byte {at} is {found[at]:#x}, not {expected[at]:#x} ({len(found)} bytes)"
    )
