"""A rank that trains until told to stop: endless.py DIRECTORY [HOST_SECONDS].

A step: kernels on two streams, a host function, an all-reduce in two communicators, now and then a send
around the ring, a message out of the device's sight, and a wait.  DIRECTORY/steps.RANK counts steps; the step
at which DIRECTORY/stop says to stop is the last.  Writes DIRECTORY/result.RANK: a digest of everything after
each 16th step, and at the end.
"""

from __future__ import annotations

import json
import mmap
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import nccl
from interpreter import Interpreter, begin


def step(number: int, world: int) -> list[list[Any]]:
    reduced = {"send": "g", "receive": "g", "count": 3000}
    other = {"send": "h", "receive": "h", "count": 3000, "operation": "max"}
    rank = nccl.rank()
    steps: list[list[Any]] = [
        ["kernel", "g", "p", 1, 3 + rank],
        ["call_host", 1],
        ["kernel", "h", "p", 2, 5 + rank],
        ["collective", "world", "AllReduce", "int32", reduced, 1],
        ["collective", "other", "AllReduce", "int32", other, 2],
        ["order", 2, 1],
        ["kernel", "p", "g", 1, 7],
        ["kernel", "p", "h", 1, 7],
        ["order", 1, 2],
    ]
    if number % 3 == 0 and world > 1:
        sending = {"send": "p", "count": 3000, "root": (rank + 1) % world}
        receiving = {"receive": "g", "count": 3000, "root": (rank - 1) % world}
        pair = [
            ["collective", "world", "Send", "int32", sending, 1],
            ["collective", "world", "Recv", "int32", receiving, 1],
        ]
        steps.append(["group", pair])
    return [*steps, ["synchronize", 1]]


def main() -> None:
    directory, pause = Path(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else 0.0
    everyone = list(range(nccl.world()))
    program = {"communicators": {"world": everyone, "other": everyone[::-1]}}
    run = Interpreter(directory, 0, program, begin(nccl.rank()))
    with (directory / f"steps.{nccl.rank()}").open("w+b") as file:
        file.truncate(8)
        counter = memoryview(mmap.mmap(file.fileno(), 8)).cast("Q")
    for seed, name in enumerate("pgh"):
        run.run([["alloc", name, 3000], ["fill", name, seed, False]])
    run.synchronize(None)
    number = 0
    while True:
        number += 1
        counter[0] = number
        run.run(step(number, nccl.world()))
        if number % 16 == 0:
            run.run([["synchronize", None], ["read", "p"], ["read", "g"], ["read", "h"]])
            run.meet(f"m{number}")
            stop = directory / "stop"
            if stop.exists() and number >= int(stop.read_text() or 1 << 60):
                break
        if pause:
            time.sleep(pause)
    (directory / f"result.{nccl.rank()}").write_text(json.dumps([number, *run.end()]))


if __name__ == "__main__":
    main()
