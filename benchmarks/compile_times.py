"""A rank of benchmarks/device.py: what each kernel of the digits example costs before it runs.

    DEV=CUDA python benchmarks/compile_times.py RESULT EXAMPLE

Writes a JSON list of milliseconds, one for each different PTX text: loading the module plus the first launch,
less a second launch of the same kernel.  The device's compiler is started beforehand.  The numbers that the
example then computes mean nothing, since each kernel runs once too often.
"""

from __future__ import annotations

import json
import runpy
import sys
import time
from pathlib import Path
from typing import Any

from tinygrad import Tensor
from tinygrad.runtime import ops_cuda

milliseconds: dict[bytes, float] = {}


class TimedProgram(ops_cuda.CUDAProgram):  # type: ignore[misc]  # tinygrad is not typed
    def __init__(self, dev: Any, obj: Any, *rest: Any, **named: Any) -> None:
        self.loading: float | None = None
        started = time.perf_counter()
        super().__init__(dev, obj, *rest, **named)
        if obj.lib not in milliseconds:
            self.loading = time.perf_counter() - started
            milliseconds[obj.lib] = 0.0

    def launched(self, *arguments: Any, **named: Any) -> tuple[Any, float]:
        self.dev.synchronize()
        started = time.perf_counter()
        result = super().__call__(*arguments, **named)
        self.dev.synchronize()
        return result, time.perf_counter() - started

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        if self.loading is None:
            return super().__call__(*arguments, **named)
        _, first = self.launched(*arguments, **named)
        result, later = self.launched(*arguments, **named)
        milliseconds[self.lib] = 1e3 * (self.loading + first - later)
        self.loading = None
        return result


def main() -> None:
    result, example = sys.argv[1:3]
    (Tensor([1.0, 2.0]) + 1).realize()  # starts the compiler
    ops_cuda.CUDADevice.devices[0].runtime_t = TimedProgram
    sys.argv = [example, "--steps", "3", "--quiet"]
    runpy.run_path(example, run_name="__main__")
    if not milliseconds:
        raise SystemExit("no kernel was seen: does tinygrad keep its program class elsewhere now?")
    Path(result).write_text(json.dumps(list(milliseconds.values())))


if __name__ == "__main__":
    main()
