"""What a process can have on a device and between both: each function makes one thing, and answers with what
checks it in each round."""

from __future__ import annotations

import ctypes as c
import struct
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2] / "interposers" / "programs"))
sys.path.insert(0, str(Path(__file__).parents[2] / "checkpoint" / "programs"))
sys.path.insert(0, str(Path(__file__).parent))
from carried import START, Everything
from driver import allocate, check, download, make
from host_job import Part, expect
from interpreter import HOST_FUNCTION, driver

_PAIR = struct.Struct("=QQ")


class Numbers:
    """Everything of one context: kernels, a graph, events, page-locked memory; `digest` depends on the rounds
    alone."""

    def __init__(self) -> None:
        self._everything = Everything()

    def play(self, _: int) -> None:
        """See `Part`."""
        self._everything.look()

    def digest(self) -> int:
        """Of what is in device memory."""
        data = np.frombuffer(download(self._everything.data, START.nbytes), dtype=np.uint32)
        return int(data.astype(np.uint64).sum())


def page_locked_writer() -> Part:
    """A thread that writes to page-locked memory all the time, and finds there what it wrote before; what the
    device gets of it was there at one moment or another."""
    locked = make(c.c_void_p, "cuMemHostAlloc", c.c_size_t(16), 0)
    memory = (c.c_ubyte * 16).from_address(locked.value or 0)
    memory[:] = _PAIR.pack(0, 0)
    lock = threading.Lock()
    wrong: list[object] = []
    written = 0

    def write() -> None:
        nonlocal written
        while not wrong:
            with lock:
                found = _PAIR.unpack(bytes(memory))
                if found != (written, 3 * written):
                    wrong.append((found, written))
                written += 1
                memory[:8] = written.to_bytes(8, "little")
                memory[8:] = (3 * written).to_bytes(8, "little")

    threading.Thread(target=write, daemon=True).start()
    there = allocate(16)

    def play(_: int) -> None:
        with lock:
            check("cuMemcpyHtoD_v2", there, locked, c.c_size_t(16))
            expect(_PAIR.unpack(download(there, 16)), (written, 3 * written))
        expect(wrong, [])

    return play


def host_functions() -> Part:
    """Called in order, between kernels of a stream."""
    called: list[int] = []
    stream = make(driver.Handle, "cuStreamCreate", 1)

    def note(argument: Any) -> None:
        called.append(int(argument or 0))

    function = HOST_FUNCTION(note)

    def play(number: int) -> None:
        for part in range(4):
            check("cuLaunchHostFunc", stream, function, c.c_void_p(4 * number + part))
        check("cuStreamSynchronize", stream)
        expect(called, [4 * number + part for part in range(4)])
        called.clear()

    return play
