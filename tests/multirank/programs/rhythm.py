"""A rank that trains until told to stop: rhythm.py DIRECTORY.

A mini-batch has three all-reduces, with four launches before the first, one before the second, and two before
the third.  Every eighth one it looks at DIRECTORY/stop: the number of the last one.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import nccl
from interpreter import Interpreter, begin

KERNEL: list[Any] = ["kernel", "p", "p", 1, 3]
REDUCE: list[Any] = [
    "collective",
    "world",
    "AllReduce",
    "int32",
    {"send": "p", "receive": "p", "count": 100},
    1,
]
MINI_BATCH = [*[KERNEL] * 4, REDUCE, KERNEL, REDUCE, KERNEL, KERNEL, REDUCE, ["synchronize", 1]]


def main() -> None:
    directory = Path(sys.argv[1])
    run = Interpreter(directory, 0, {"communicators": {"world": [*range(nccl.world())]}}, begin(nccl.rank()))
    run.run([["alloc", "p", 100], ["fill", "p", 1, True], ["synchronize", None]])
    number, last = 0, directory / "stop"
    while number % 8 or not last.exists() or number < int(last.read_text()):
        number += 1
        run.run(MINI_BATCH)
        if number % 8 == 0:
            run.meet(f"m{number}")
    run.end()


if __name__ == "__main__":
    main()
