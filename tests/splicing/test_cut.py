"""The cut among ranks that share a device."""

from __future__ import annotations

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


def test_a_held_rank_leaves_the_device(directory: Path, rank_environment: dict[str, str]) -> None:
    """A rank that the cut holds, and whose program has posted more work behind what is held, gives the device
    to the rank that the cut waits for, though a rank with work keeps it for ever here."""
    exchange = directory / "exchange"
    exchange.mkdir(mode=0o700)
    shared = SharedDevice(directory, rank_environment, f"--exchange={exchange}", f"--quantum={NEVER}")
    ahead = [
        *START, REDUCE, ["meet", "issued"], ["meet", "begun"], *COMPUTE,
        REDUCE, ["kernel", "q", "q", 2, 3], ["meet", "held"], ["synchronize", None],
    ]  # fmt: skip
    behind = [*START, ["meet", "issued"], ["meet", "begun"], ["meet", "held"], *COMPUTE, REDUCE, REDUCE]
    program = {"communicators": {"world": [0, 1]}, "ranks": [ahead, behind]}
    why = ffi.new("char[256]")
    try:
        running = shared.start_programs([program], 2, world=3)
        for name in ("issued", "held"):
            (directory / f"0-{name}.2").touch()
        wait_for(lambda: all((directory / f"0-issued.{rank}").exists() for rank in (0, 1)), "both ranks")
        cut = BoardCut(exchange, 1, patience=NEVER)
        wait_for(lambda: cut.look() and cut.clocks() == {0: {1}, 1: {0}}, "the first all-reduce")
        cut.begin(NEVER)
        board = lib.sg_board_open(str(exchange).encode(), 1, why)
        wait_for(lambda: cut.poll() and board.cut, "the first targets")
        lib.sg_board_close(board)
        (directory / "0-begun.2").touch()
        wait_for(lambda: cut.poll().state is CutState.ACQUIRED, "the cut")
        assert cut.clocks() == {0: {1}, 1: {1}}
        cut.release()
        wait_for(lambda: cut.poll().state is CutState.OPEN, "the ranks to go on")
        cut.close()
        for process in running:
            shared.finish(process)
        shared.stop()
    finally:
        shared.close()
