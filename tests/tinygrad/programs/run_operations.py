"""Runs tinygrad operations in one process; one file per result.

    run_operations.py DIRECTORY [CASE ...]

Writes DIRECTORY/<case>.npy, or DIRECTORY/<case>.error with the traceback; `started`
names the last case begun.
"""

from __future__ import annotations

import sys
import traceback
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from operations import CASES, Case
from tinygrad import Tensor, dtypes

FLOATS = {"float32": dtypes.float32, "float16": dtypes.float16, "bfloat16": dtypes.bfloat16}


def on_device(array: np.ndarray, case: Case) -> Tensor:
    if array.dtype.kind != "f":
        return Tensor(array).realize()
    return Tensor(array.astype(np.float32)).realize().cast(FLOATS[case.dtype]).realize()


def run(case: Case) -> np.ndarray:
    result = case.tensor(*(on_device(array, case) for array in case.arrays()))
    if result.dtype == dtypes.bfloat16:
        result = result.realize().cast(dtypes.float32)
    return np.asarray(result.numpy())


def main() -> None:
    directory, wanted = Path(sys.argv[1]), sys.argv[2:] or list(CASES)
    for name in wanted:
        (directory / "started").write_text(name)
        try:
            np.save(directory / f"{name}.npy", run(CASES[name]))
        except Exception as problem:  # reported to the reader, which fails the test
            (directory / f"{name}.error").write_text("".join(traceback.format_exception(problem)[-15:]))
            if "CUDA Error" in str(problem):
                return  # it may be sticky; the reader starts another rank for the rest
    (directory / "started").write_text("")


if __name__ == "__main__":
    main()
