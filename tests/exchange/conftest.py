"""Engines with memory of their own: the object code that proxies run, driven without devices and threads."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from singularity_core._native import ffi, lib

ALL_REDUCE, REDUCE, BROADCAST, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL, GATHER, SCATTER, SEND, RECV = range(
    1, 11
)
SUM, PROD, MAX, MIN, AVG, PREMUL = range(6)
TYPES = {
    0: np.int8, 1: np.uint8, 2: np.int32, 3: np.uint32, 4: np.int64, 5: np.uint64, 6: np.float16,
    7: np.float32, 8: np.float64,
}  # fmt: skip
BF16 = 9
FAIL_USAGE, FAIL_REMOTE = 5, 6


@dataclass
class Rank:
    """One rank of a job, as its proxy serves it; its memory is whatever numpy arrays are named by address."""

    world: World
    rank: int
    engine: Any
    party: Any = None
    handle: Any = None
    opened: list[int] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    stranded: list[str] = field(default_factory=list)
    misses: bool = False
    groups: int = 0
    kept: list[Any] = field(default_factory=list)
    revoked: set[int] = field(default_factory=set)

    def join(self, key: bytes, ranks: int, rank: int) -> Any:
        """The member; raises RuntimeError with the code and what was said."""
        member, said = ffi.new("sg_member **"), ffi.new("char[160]")
        error = lib.sg_member_join(self.party, key, ranks, rank, member, said)
        if error:
            raise RuntimeError(error, ffi.string(said).decode())
        return member[0]

    def submit(self, *operations: tuple[Any, ...], arrive: bool = True) -> Any:
        """Issues a group of (member, kind, dtype, reduction, root, count, send, receive[, scalar]) and,
        unless told otherwise, lets it arrive.  Its gate's number; or raises RuntimeError."""
        issues = ffi.new("struct sg_issue[]", len(operations))
        for issue, (member, kind, dtype, reduction, root, count, send, receive, *scalar) in zip(
            issues, operations, strict=True
        ):
            issue.member = member
            issue.what = (kind, dtype, reduction, root, count)
            issue.send, issue.receive, issue.scalar = address(send), address(receive), (scalar or [0])[0]
            self.kept += [send, receive]
        self.groups += 1
        group, said = lib.sg_group_new(self.party, issues, len(operations), self.groups), ffi.new("char[160]")
        result = lib.sg_group_issue(group, said)
        if result < 0:
            lib.sg_group_free(group)
            raise RuntimeError(-result, ffi.string(said).decode())
        if result == 0:
            return group
        if not arrive:
            self.kept.append(group)
            return group
        lib.sg_group_arrived(group)
        return self.groups

    def error(self, member: Any) -> tuple[int, str]:
        """The communicator's asynchronous error."""
        said = ffi.new("char[160]")
        return lib.sg_member_error(member, said), ffi.string(said).decode()

    @property
    def status(self) -> Any:
        """The rank's block on the board."""
        return lib.sg_engine_board(self.engine).ranks[self.rank]


def address(array: np.ndarray[Any, Any] | None) -> int:
    """Where the array's bytes lie; 0 for None."""
    return 0 if array is None else array.ctypes.data


@ffi.callback("int32_t(void *, uint64_t, void *, uint64_t)")
def _read(owner: Any, at: int, out: Any, count: int) -> int:
    rank: Rank = ffi.from_handle(owner)
    if at in rank.revoked:
        return 700
    ffi.memmove(out, ffi.cast("void *", at), count)
    return 0


@ffi.callback("int32_t(void *, uint64_t, void *, uint64_t)")
def _write(owner: Any, at: int, source: Any, count: int) -> int:
    rank: Rank = ffi.from_handle(owner)
    if at in rank.revoked:
        return 700
    ffi.memmove(ffi.cast("void *", at), source, count)
    return 0


@ffi.callback("void(void *, uint64_t)")
def _open(owner: Any, gate: int) -> None:
    ffi.from_handle(owner).opened.append(gate)


@ffi.callback("void(void *, int)")
def _misses(owner: Any, misses: int) -> None:
    ffi.from_handle(owner).misses = bool(misses)


@ffi.callback("void(void *, char *)")
def _fail(owner: Any, said: Any) -> None:
    ffi.from_handle(owner).failures.append(ffi.string(said).decode())


@ffi.callback("void(void *, char *)")
def _strand(owner: Any, said: Any) -> None:
    ffi.from_handle(owner).stranded.append(ffi.string(said).decode())


CALLS = {"read": _read, "write": _write, "open": _open, "misses": _misses, "fail": _fail, "strand": _strand}


class World:
    """Ranks on proxies: `places` says by rank on which; `proxies` that there are more, elsewhere."""

    def __init__(self, places: list[int], directory: Path | None, seed: int = 0, proxies: int = 0) -> None:
        self.random = random.Random(seed)
        self.directory = directory
        self.engines: list[Any] = []
        for index in range(max(places) + 1):
            options, why = ffi.new("struct sg_engine_options *"), ffi.new("char[256]")
            name = ffi.NULL if directory is None else ffi.new("char[]", str(directory).encode())
            options.directory = name
            options.proxy_index, options.proxy_count = index, proxies or max(places) + 1
            options.calls = CALLS
            engine = lib.sg_engine_create(options, why)
            assert engine != ffi.NULL, ffi.string(why)
            self.engines.append(engine)
        self.ranks = [Rank(self, rank, self.engines[place]) for rank, place in enumerate(places)]
        for rank in self.ranks:
            rank.handle = ffi.new_handle(rank)
            rank.party = lib.sg_party_begin(rank.engine, rank.handle, rank.rank, 1)

    def turn(self) -> bool:
        """Each engine once, in random order; whether something moved."""
        moved = [lib.sg_engine_turn(engine) for engine in self.random.sample(self.engines, len(self.engines))]
        return any(moved)

    def settle(self) -> None:
        """Turns until nothing moves any more."""
        quiet = 0
        while quiet < 3:
            quiet = 0 if self.turn() else quiet + 1

    def communicator(self, ranks: list[int] | None = None, key: bytes = b"k" * 16) -> list[Any]:
        """All the given ranks (default: all) join one; their members, in that order."""
        chosen = list(range(len(self.ranks))) if ranks is None else ranks
        members = [self.ranks[rank].join(key, len(chosen), i) for i, rank in enumerate(chosen)]
        said = ffi.new("char[160]")
        assert all(lib.sg_member_ready(member, said) == 1 for member in members)
        return members

    def end(self) -> None:
        """All sessions end, then all engines."""
        for rank in self.ranks:
            if rank.party is not None:
                lib.sg_party_quit(rank.party)
        for rank in self.ranks:
            if rank.party is not None:
                lib.sg_party_end(rank.party)
        for engine in self.engines:
            lib.sg_engine_destroy(engine)
        self.engines = []
        if self.directory is not None:
            left = {path.name for path in self.directory.iterdir()}
            assert not any(name.startswith(("o-", "t-")) for name in left), left


@pytest.fixture
def exchange() -> Iterator[Path]:
    """A directory in /dev/shm that several proxies share."""
    with tempfile.TemporaryDirectory(prefix="singularity-test-", dir="/dev/shm") as name:
        yield Path(name)
