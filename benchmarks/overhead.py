"""What the proxy adds to a step of a job: time per step through the proxy / natively, on the same device.

    python benchmarks/overhead.py [--json] [--pairs N] [--threads N]

Keys: tinygrad_ratio       a training step of examples/train_digits.py (TinyJit, graphs, loss read back)
      launch_bound_ratio   1,000 small launches and a synchronisation
      simulated_ratio      20 kernels of 0.5 ms that take device time and no CPU, and a synchronisation
Two ranks are alive at once, one behind a proxy and one native, with as many device threads each.  They take
turns, block by block; each ratio is the median over blocks of (median step proxied / median step native).
A ratio of 1.02 means 2 %.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import subprocess
import tempfile
from pathlib import Path

from ranks import HERE, ROOT, compile_c, cuda_environment, rank_command, report

STEPS_PER_BLOCK = {"tinygrad": 10, "launch_bound": 20, "simulated": 10}
WARM_UP_STEPS = 8


class Stepper:
    """A rank that does steps on demand."""

    def __init__(self, proxied: bool, workload: str, directory: Path, environment: dict[str, str]) -> None:
        path = directory / f"{workload}-{int(proxied)}.socket"
        if workload == "tinygrad":
            program = [str(HERE / "programs" / "tinygrad_steps.py"), str(path), str(ROOT / "examples")]
        else:
            program = [str(directory / "step_server"), str(path), workload]
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
            listener.listen(1)
            listener.settimeout(120)
            self.process = subprocess.Popen(
                rank_command(proxied, program, python=workload == "tinygrad"),
                env={**os.environ, **environment},
            )
            self.connection, _ = listener.accept()
        self.connection.settimeout(300)
        self.answers = self.connection.makefile("r")

    def block(self, steps: int) -> float:
        """Median nanoseconds of a step."""
        times = []
        for _ in range(steps):
            self.connection.sendall(b"s")
            line = self.answers.readline()
            if not line:
                raise SystemExit(f"a rank ended with {self.process.wait(60)} in the middle of a step")
            times.append(float(line))
        return statistics.median(times)

    def close(self) -> None:
        self.answers.close()
        self.connection.close()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.terminate()
            self.process.wait(60)


def compare(workload: str, pairs: int, directory: Path, environment: dict[str, str]) -> tuple[float, float]:
    """(ratio, native milliseconds per step)."""
    native = Stepper(False, workload, directory, environment)
    try:
        proxied = Stepper(True, workload, directory, environment)
        try:
            for stepper in (native, proxied):
                stepper.block(WARM_UP_STEPS)
            steps, ratios, direct = STEPS_PER_BLOCK[workload], [], []
            for pair in range(pairs):
                order = (native, proxied) if pair % 2 == 0 else (proxied, native)
                times = {stepper: stepper.block(steps) for stepper in order}
                ratios.append(times[proxied] / times[native])
                direct.append(times[native] / 1e6)
            return statistics.median(ratios), statistics.median(direct)
        finally:
            proxied.close()
    finally:
        native.close()


def main() -> None:
    parser = argparse.ArgumentParser(description="What the proxy adds to a step.")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--pairs", type=int, default=15, help="of blocks, per workload")
    parser.add_argument("--threads", type=int, default=1, help="worker threads of the device, on both sides")
    arguments = parser.parse_args()
    results: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        compile_c("step_server.c", directory / "step_server", "-O2")
        environment = {
            "SINGULARITY_FAKE_THREADS": str(arguments.threads),
            "SINGULARITY_FAKE_CACHE": str(directory / "objects"),
            "XDG_CACHE_HOME": str(directory),
            "DEV": "CUDA",
            **cuda_environment(),
        }
        for workload in STEPS_PER_BLOCK:
            results[f"{workload}_ratio"], results[f"{workload}_native_ms"] = compare(
                workload, arguments.pairs, directory, environment
            )
    report(
        "Step time through the proxy / natively",
        results,
        {
            "pairs": arguments.pairs,
            "steps_per_block": str(STEPS_PER_BLOCK),
            "threads": arguments.threads,
            "cpus": os.cpu_count(),
        },
        arguments.json,
    )


if __name__ == "__main__":
    main()
