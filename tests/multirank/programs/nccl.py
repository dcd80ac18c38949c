"""A thin ctypes view of libnccl.so.2 for the programs in this folder, beside the driver's (driver.py)."""

from __future__ import annotations

import ctypes as c
import os
import time
from pathlib import Path
from typing import Any

lib = c.CDLL("libnccl.so.2")
DTYPES = {
    "int8": 0,
    "uint8": 1,
    "int32": 2,
    "uint32": 3,
    "int64": 4,
    "uint64": 5,
    "float16": 6,
    "float32": 7,
    "float64": 8,
    "bfloat16": 9,
}
OPERATIONS = {"sum": 0, "prod": 1, "max": 2, "min": 3, "avg": 4}


class UniqueId(c.Structure):
    """ncclUniqueId"""

    _fields_ = (("internal", c.c_char * 128),)


lib.ncclCommInitRank.argtypes = (c.c_void_p, c.c_int, UniqueId, c.c_int)
for _name in ("ncclGetErrorString", "ncclGetLastError"):
    getattr(lib, _name).restype = c.c_char_p
for _name, _kinds in {
    "ncclAllReduce": "ppziipp",
    "ncclReduce": "ppziiipp",
    "ncclBroadcast": "ppziipp",
    "ncclAllGather": "ppzipp",
    "ncclReduceScatter": "ppziipp",
    "ncclAlltoAll": "ppzipp",
    "ncclGather": "ppziipp",
    "ncclScatter": "ppziipp",
    "ncclSend": "pziipp",
    "ncclRecv": "pziipp",
}.items():
    getattr(lib, _name).argtypes = [{"p": c.c_void_p, "z": c.c_size_t, "i": c.c_int}[kind] for kind in _kinds]


def check(name: str, *arguments: Any) -> None:
    code = getattr(lib, name)(*arguments)
    if code != 0:
        said = lib.ncclGetErrorString(code), lib.ncclGetLastError(None)
        raise RuntimeError(f"{name} returned {code}: {said}")


def rank() -> int:
    return int(os.environ["RANK"])


def world() -> int:
    return int(os.environ["WORLD_SIZE"])


def meet(place: Path, ranks: list[int]) -> None:
    """Waits for all of `ranks` at a name in the file system, out of the device's sight."""
    (place.parent / f"{place.name}.{rank()}").touch()
    while not all((place.parent / f"{place.name}.{other}").exists() for other in ranks):
        time.sleep(0.002)


def communicator(place: Path, ranks: list[int]) -> Any:
    """A communicator of `ranks` (one of them is the caller), whose id travels in the file `place`."""
    unique = UniqueId()
    if rank() == ranks[0]:
        check("ncclGetUniqueId", c.byref(unique))
        made = place.with_suffix(".making")
        made.write_bytes(bytes(unique))
        made.rename(place)
    while not place.exists():
        time.sleep(0.002)
    unique = UniqueId.from_buffer_copy(place.read_bytes())
    handle = c.c_void_p()
    check("ncclCommInitRank", c.byref(handle), len(ranks), unique, ranks.index(rank()))
    return handle
