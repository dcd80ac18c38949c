"""A rank that has one of everything, and looks at all of it again and again: carried.py DIRECTORY.

Streams, events that were recorded and one that was not, a graph, modules, page-locked memory, two contexts,
threads, and a child process with a session of its own.  Each round checks all of them against
numbers that are known.  DIRECTORY/rounds.NAME counts rounds, DIRECTORY/stop ends it, DIRECTORY/ended.NAME is
written last.
"""

from __future__ import annotations

import ctypes as c
import multiprocessing
import sys
import threading
import traceback
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2] / "interposers" / "programs"))
sys.path.insert(0, str(Path(__file__).parent))
from driver import allocate, call, check, download, launch, make, upload
from interpreter import PTX, driver

WORDS = 5000
START = np.arange(WORDS, dtype=np.uint32)


MAKING = threading.Lock()
"""No thread may free memory of a context in which another captures: all is made before any looks."""


class Everything:
    """The objects of one thread, in its current context."""

    def __init__(self) -> None:
        self.mix = driver.function("mix", PTX)
        self.stream = make(driver.Handle, "cuStreamCreate", 1)
        self.data, self.other = allocate(4 * WORDS), allocate(4 * WORDS)
        upload(self.other, START.tobytes())
        self.wanted = START.copy()
        upload(self.data, self.wanted.tobytes())
        check(
            "cuCtxSynchronize"
        )  # copies of pageable memory may be under way, and our stream does not wait for them
        self.timed = make(driver.Handle, "cuEventCreate", 0)
        self.never = make(driver.Handle, "cuEventCreate", 0)
        check("cuEventRecord", self.timed, self.stream)
        self.locked = make(c.c_void_p, "cuMemHostAlloc", c.c_size_t(4 * WORDS), 0)
        c.memset(self.locked, 7, 4 * WORDS)
        check("cuStreamBeginCapture_v2", self.stream, 2)
        self.multiply(3)
        self.graph = driver.Handle()
        check("cuStreamEndCapture", self.stream, c.byref(self.graph))
        self.ready = make(driver.Handle, "cuGraphInstantiateWithFlags", self.graph, c.c_ulonglong(0))

    def multiply(self, factor: int) -> None:
        """data = data * factor + other"""
        values = self.data, self.other, c.c_uint32(WORDS), c.c_uint32(factor)
        assert launch(self.mix, *values, grid=-(-WORDS // 128), block=128, stream=self.stream) == 0

    def look(self) -> None:
        """One round."""
        self.multiply(5)
        check("cuGraphLaunch", self.ready, self.stream)
        self.wanted = (self.wanted * np.uint32(5) + START) * np.uint32(3) + START
        check("cuStreamSynchronize", self.stream)
        assert download(self.data, 4 * WORDS) == self.wanted.tobytes()
        assert call("cuEventQuery", self.timed) == 0
        took = c.c_float()
        assert (
            call("cuEventElapsedTime", c.byref(took), self.never, self.timed) == 400
        )  # it was never recorded
        scratch = allocate(4096)
        check("cuMemcpyHtoDAsync_v2", scratch, self.locked, c.c_size_t(4096), self.stream)
        check("cuStreamSynchronize", self.stream)
        assert download(scratch, 4096) == bytes([7]) * 4096
        check("cuMemFree_v2", scratch)


def rounds(folder: Path, name: str, made: threading.Barrier) -> None:
    """Looks until told to stop."""
    with MAKING:
        everything, number = Everything(), 0
    made.wait()
    file = folder / f"rounds.{name}"
    while not (folder / "stop").exists():
        everything.look()
        number += 1
        (folder / f"{name}.making").write_text(str(number))
        (folder / f"{name}.making").rename(file)
    (folder / f"ended.{name}").touch()


def run_thread(
    context: Any, failures: list[BaseException], folder: Path, name: str, made: threading.Barrier
) -> None:
    try:
        check("cuCtxSetCurrent", context)
        rounds(folder, name, made)
    except BaseException as error:
        traceback.print_exc()
        made.abort()
        failures.append(error)
        (folder / "stop").touch()


def run_child(folder: Path) -> None:
    driver.start()
    rounds(folder, "child", threading.Barrier(1))


def main() -> None:
    folder = Path(sys.argv[1])
    child = multiprocessing.get_context("spawn").Process(target=run_child, args=(folder,))
    child.start()
    contexts = [driver.start(), driver.start()]
    failures: list[BaseException] = []
    made = threading.Barrier(3)
    threads = [
        threading.Thread(target=run_thread, args=(contexts[i % 2], failures, folder, f"thread-{i}", made))
        for i in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    child.join()
    assert not failures, failures
    assert child.exitcode == 0


if __name__ == "__main__":
    main()
