"""What the proxy adds to a step of a job: time per step through the proxy / natively, on the same device.

    python benchmarks/overhead.py [--json] [--pairs N] [--threads N]

Keys: tinygrad_ratio       a training step of examples/train_digits.py (TinyJit, graphs, loss read back)
      launch_bound_ratio   1,000 small launches and a synchronisation
      simulated_ratio      20 kernels of 0.5 ms that take device time but no CPU
Two ranks are alive at once, one behind a proxy and one native, with as many device threads each.  They
take turns, a few steps each; a ratio is the median over pairs of turns of (a step proxied / a step native),
where a turn's step is the median of its steps but the first, which finds the other's data in the caches.
A ratio of 1.02 means 2 %; the quartiles of the pairs' ratios say how far to trust it.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from pathlib import Path

from ranks import HERE, ROOT, Slices, compile_c, cuda_environment, rank_command, report

STEPS_PER_TURN = {"tinygrad": 6, "launch_bound": 10, "simulated": 4}
WARM_UP_STEPS = 12


def start(proxied: bool, workload: str, directory: Path, environment: dict[str, str]) -> Slices:
    """A rank that does one step per slice."""
    if workload == "tinygrad":
        program = [str(HERE / "programs" / "tinygrad_steps.py"), "SOCKET", str(ROOT / "examples")]
    else:
        program = [str(directory / "step_server"), "SOCKET", workload]
    return Slices(rank_command(proxied, program, python=workload == "tinygrad"), directory, environment)


def turn(rank: Slices, steps: int) -> float:
    """Nanoseconds of a step, in its own caches."""
    return statistics.median([rank.measure("s") for _ in range(steps)][1:])


def compare(workload: str, pairs: int, directory: Path, environment: dict[str, str]) -> dict[str, float]:
    with (
        start(False, workload, directory, environment) as native,
        start(True, workload, directory, environment) as proxied,
    ):
        for rank in (native, proxied):
            turn(rank, WARM_UP_STEPS)
        ratios, direct = [], []
        for pair in range(pairs):
            order = (native, proxied) if pair % 2 == 0 else (proxied, native)
            times = {rank: turn(rank, STEPS_PER_TURN[workload]) for rank in order}
            ratios.append(times[proxied] / times[native])
            direct.append(times[native] / 1e6)
    low, middle, high = statistics.quantiles(ratios, n=4)
    return {
        f"{workload}_ratio": middle,
        f"{workload}_ratio_low": low,
        f"{workload}_ratio_high": high,
        f"{workload}_native_ms": statistics.median(direct),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="What the proxy adds to a step.")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--pairs", type=int, default=60, help="of turns, per workload")
    parser.add_argument("--workloads", nargs="+", choices=list(STEPS_PER_TURN), default=list(STEPS_PER_TURN))
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
        for workload in arguments.workloads:
            results |= compare(workload, arguments.pairs, directory, environment)
    report(
        "Step time through the proxy / natively",
        results,
        {
            "pairs": arguments.pairs,
            "steps_per_turn": str(STEPS_PER_TURN),
            "threads": arguments.threads,
            "cpus": os.cpu_count(),
        },
        arguments.json,
    )


if __name__ == "__main__":
    main()
