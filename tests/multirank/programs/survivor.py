"""A rank that waits for others in a collective and tells how that ended: survivor.py DIRECTORY VICTIM.

It heeds no SIGTERM, as one that is writing a checkpoint.  The victim never comes to the second all-reduce.
Writes DIRECTORY/waits.RANK (its pid) when it waits, and DIRECTORY/failed.RANK (JSON: the time, the error)
when it is told that it waits in vain.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import nccl
from interpreter import Interpreter, begin

WHAT = {"send": "p", "receive": "p", "count": 1000}
REDUCE: list[Any] = ["collective", "world", "AllReduce", "int32", WHAT, 1]


def main() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    directory, victim, rank = Path(sys.argv[1]), int(sys.argv[2]), nccl.rank()
    world = list(range(nccl.world()))
    run = Interpreter(directory, 0, {"communicators": {"world": world}}, begin(rank))
    run.run([["alloc", "p", 1000], ["fill", "p", 1, True], REDUCE, ["synchronize", None]])
    run.meet("begun")
    if rank != victim:
        run.run([REDUCE])
    making = directory / f"waits.{rank}.making"
    making.write_text(str(os.getpid()))
    making.rename(directory / f"waits.{rank}")
    if rank == victim:
        while True:
            time.sleep(1000)
    try:
        run.synchronize(1)
        said = "no error"
    except Exception as error:
        said = str(error)
    (directory / f"failed.{rank}").write_text(json.dumps([time.monotonic(), said]))
    os._exit(3)


if __name__ == "__main__":
    main()
