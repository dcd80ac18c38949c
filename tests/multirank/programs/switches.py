"""A rank whose switches are counted: switches.py DIRECTORY STEPS together|apart.

together: all ranks synchronise STEPS times.  apart: ranks 0 and 2, and ranks 1 and 3, form a communicator
each; 0 and 2 synchronise STEPS times while 1 and 3 have work for the device.  Writes DIRECTORY/done.RANK, and
ends when DIRECTORY/go is there.  No rank needs the device before its first step.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import nccl
from interpreter import Interpreter, begin

WHAT = {"send": "p", "receive": "p", "count": 1000}
KERNEL: list[Any] = ["kernel", "p", "p", 1, 3]


def main() -> None:
    directory, steps, together = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "together"
    rank, ranks = nccl.rank(), list(range(nccl.world()))
    groups = {"all": ranks} if together else {"even": ranks[::2], "odd": ranks[1::2]}
    (mine,) = (name for name, members in groups.items() if rank in members)
    if mine == "odd":  # who comes to a device first has it: the even ranks shall
        nccl.meet(directory / "begun", ranks)
    run = Interpreter(directory, 0, {"communicators": groups}, begin(rank))
    step: list[list[Any]] = [KERNEL, ["collective", mine, "AllReduce", "int32", WHAT, 1], ["synchronize", 1]]
    run.run([["alloc", "p", 1000]])
    if mine == "odd":
        run.run([["set", "p", 1, 3]])  # the first launch of a kernel would wait
        run.meet("posted")
        run.run([["synchronize", 1]])
    else:
        run.run(step)
        if not together:
            nccl.meet(directory / "begun", ranks)
            run.meet("posted")
        run.run(step * (steps - 1))
    (directory / f"done.{rank}").touch()
    while not (directory / "go").exists():
        time.sleep(0.01)
    run.end()


if __name__ == "__main__":
    main()
