"""The cut among ranks that share a device."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from singularity_core._native import ffi, lib

from singularity_core.barrier.coordinator import BoardCut
from singularity_core.barrier.interface import CutState

from .conftest import SharedDevice

PATIENCE = 60.0
"""Seconds, of what never takes one unless it never comes."""
NEVER = 100_000.0


def wait_for(what: Callable[[], object], why: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not what():
        assert time.monotonic() < deadline, f"waited in vain for {why}"
        time.sleep(0.002)


ALL: dict[str, Any] = {"send": "p", "receive": "p", "count": 9}
REDUCE: list[Any] = ["collective", "world", "AllReduce", "int32", ALL, 1]
START: list[list[Any]] = [
    step for buffer in ("p", "q") for step in (["alloc", buffer, 9], ["fill", buffer, 1, True])
]
COMPUTE: list[list[Any]] = [["kernel", "q", "q", 2, 3], ["synchronize", 2]]


class Job:
    """Ranks of a device that they share, and a cut of theirs that this test makes."""

    def __init__(self, directory: Path, environment: dict[str, str], programs: list[list[list[Any]]]) -> None:
        self.directory, self.exchange = directory, directory / "exchange"
        self.exchange.mkdir(mode=0o700)
        options = f"--exchange={self.exchange}", f"--quantum={NEVER}"
        self.device = SharedDevice(directory, environment, *options)
        ranks = list(range(len(programs)))
        program = {"communicators": {"world": ranks}, "ranks": programs}
        self.running = self.device.start_programs([program], len(ranks), world=len(ranks) + 1)
        wait_for(lambda: (self.exchange / "board").exists(), "the board")
        why = ffi.new("char[256]")
        self.board = lib.sg_board_open(str(self.exchange).encode(), 1, why)
        self.cut = BoardCut(self.exchange, 1, patience=NEVER)

    def touch(self, name: str) -> None:
        """What the ranks wait for; `0-name.<number of ranks>`: that the test meets them."""
        (self.directory / name).touch()

    def until_issued(self, clocks: dict[int, set[int]]) -> None:
        """Waits until the ranks have issued so much, as the proxy sees it."""
        wait_for(lambda: self.cut.look() and self.cut.clocks() == clocks, f"{clocks}")

    def until(self, what: Callable[[], object], why: str) -> None:
        """Takes the cut on meanwhile."""
        wait_for(lambda: self.cut.poll() and what(), why)

    def finish(self) -> None:
        """Lets the ranks go on to their end."""
        self.cut.release()
        self.until(lambda: self.cut.poll().state is CutState.OPEN, "the ranks to go on")
        for process in self.running:
            self.device.finish(process)
        self.cut.close()
        lib.sg_board_close(self.board)
        self.device.stop()


def test_a_held_rank_leaves_the_device(directory: Path, rank_environment: dict[str, str]) -> None:
    """A rank that the cut holds, and whose program has posted more work behind what is held, gives the device
    to the rank that the cut waits for, though a rank with work keeps it for ever here."""
    ahead = [
        *START, REDUCE, ["meet", "begun"], *COMPUTE,
        REDUCE, ["kernel", "q", "q", 2, 3], ["meet", "held"], ["synchronize", None],
    ]  # fmt: skip
    behind = [*START, ["meet", "begun"], ["meet", "held"], *COMPUTE, REDUCE, REDUCE]
    job = Job(directory, rank_environment, [ahead, behind])
    try:
        job.touch("0-held.2")
        job.until_issued({0: {1}, 1: {0}})
        job.cut.begin(NEVER)
        job.until(lambda: job.board.cut, "the first targets")
        job.touch("0-begun.2")
        job.until(lambda: job.cut.poll().state is CutState.ACQUIRED, "the cut")
        assert job.cut.clocks() == {0: {1}, 1: {1}}
        job.finish()
    finally:
        job.device.close()


def test_host_functions_go_on_while_ranks_are_held(directory: Path, rank_environment: dict[str, str]) -> None:
    """A collective that was issued behind several host functions completes, though the first of them returns
    only when the proxies have stopped all sessions: the ranks call the others."""
    program = [
        *START, ["call_host_when", 1, "go"], *[["call_host", 1]] * 3, REDUCE, ["call_host", 1],
        ["synchronize", 1],
    ]  # fmt: skip
    job = Job(directory, rank_environment, [program] * 2)
    try:
        job.until_issued({0: {1}, 1: {1}})
        job.cut.begin(NEVER)
        job.until(lambda: job.board.freeze == 1, "the proxies to be told to stop")
        time.sleep(0.05)  # they stop; were they slower, this would test less
        job.touch("go")
        job.until(lambda: job.cut.poll().state is CutState.ACQUIRED, "the cut")
        job.finish()
        for rank in range(2):
            (result,) = json.loads((directory / f"result.{rank}").read_text())
            assert result[-1] == "host functions 5"
    finally:
        job.device.close()
