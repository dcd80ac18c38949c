"""What sharing a device costs beyond its fair share: step time / (ranks per device x dedicated step) - 1.

    python benchmarks/slicing.py [--json] [--steps N] [--step-ms MS]

Keys: simulated_overhead   {ranks per device: overhead} of a data-parallel job with simulated compute: 64 MiB
                           live per rank, a 2 s step, 16 MiB all-reduced
      simulated_limit      the same, if a switch cost exactly the copying of all live bytes out and in
                           at memcpy's speed
      ddp_overhead         {ranks per device: overhead} of examples/train_ddp.py, on one device
Simulated kernels take device time and no CPU, so that dedicated devices exist on a machine with few
processors.  In train_ddp.py kernels really execute: there, devices share the processors, and the dedicated
step is that of one rank alone, with its part of the batch, on one device of one thread.

Ranks take turns in going first, so single steps of a rank differ: as many steps as ranks make one sample.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
from pathlib import Path

from ranks import ROOT, compile_c, cuda_environment, launcher, read_values, report, run

LIVE_MIB, REDUCED_MIB = 64, 16
SHARES = (2, 4)
PART = 16
"""Images per rank and step of train_ddp.py."""


def simulated_step(
    program: Path, directory: Path, ranks: int, devices: int, steps: int, step_ms: int
) -> dict[str, float]:
    """Step in ms, and memcpy's speed, of one job."""
    directory.mkdir()
    command = [
        launcher(),
        "--backend",
        "fake",
        f"--nproc-per-node={ranks}",
        f"--devices={devices}",
        "--no-python",
    ]
    # One more than counts: at the end nobody else needs the device.
    arguments = [str(directory), str(steps + 1), str(step_ms), str(LIVE_MIB), str(REDUCED_MIB)]
    run([*command, str(program), *arguments], {"SINGULARITY_FAKE_DEVICES": str(ranks)})
    values = read_values(directory / "result")
    return {
        "memcpy_gbps": values["memcpy_gbps"],
        "step_ms": typical([values[str(step)] for step in range(steps)], ranks),
    }


def typical(steps: list[float], ranks: int) -> float:
    """Median over rounds of as many steps as there are ranks, for one step."""
    rounds = [sum(steps[at : at + ranks]) / ranks for at in range(0, len(steps) - ranks + 1, ranks)]
    return statistics.median(rounds)


def simulated(directory: Path, steps: int, step_ms: int) -> tuple[dict[str, float], dict[str, float]]:
    """Overheads and their limits, by ranks per device."""
    program = compile_c("sliced_step.c", directory / "sliced_step", "-O2")
    overhead, limit = {}, {}
    for share in SHARES:
        dedicated = simulated_step(program, directory / f"{share}-dedicated", share, share, steps, step_ms)
        shared = simulated_step(program, directory / f"{share}-shared", share, 1, steps, step_ms)
        overhead[str(share)] = round(shared["step_ms"] / (share * dedicated["step_ms"]) - 1, 4)
        copied = (share - 1) * 2 * LIVE_MIB * 2**20 / (dedicated["memcpy_gbps"] * 1e6)  # ms
        limit[str(share)] = round(copied / (share * dedicated["step_ms"]), 4)
    return overhead, limit


def ddp_step(directory: Path, devices: int, ranks: int, steps: int) -> float:
    """Seconds of a step of the example, after the first eight; each rank has the same part of a batch."""
    answer = directory / f"ddp-{devices}-{ranks}"
    command = [launcher(), "--backend", "fake", f"--nproc-per-node={ranks}", f"--devices={devices}"]
    run(
        [
            *command,
            str(ROOT / "examples" / "train_ddp.py"),
            "--steps",
            str(steps),
            "--batch",
            str(PART * ranks),
            "--json",
            str(answer),
            "--quiet",
        ],
        {
            **cuda_environment(),
            "DEV": "CUDA",
            "PARALLEL": "0",
            "XDG_CACHE_HOME": str(directory / "tinygrad"),
            "SINGULARITY_FAKE_CACHE": str(directory / "objects"),
            "SINGULARITY_FAKE_THREADS": "1",
            "SINGULARITY_FAKE_DEVICES": str(max(ranks, devices)),
        },
    )
    seconds: list[float] = json.loads((answer / "rank-0.json").read_text())["step_seconds"]
    return typical(seconds[8:], ranks)


def main() -> None:
    parser = argparse.ArgumentParser(description="What time-slicing costs.")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--steps", type=int, default=8, help="per simulated job")
    parser.add_argument("--step-ms", type=int, default=2000, help="simulated compute of a step")
    parser.add_argument("--ddp-steps", type=int, default=40)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        overhead, limit = simulated(directory, arguments.steps, arguments.step_ms)
        alone = ddp_step(directory, 1, 1, arguments.ddp_steps)
        ddp = {
            str(share): round(ddp_step(directory, 1, share, arguments.ddp_steps) / (share * alone) - 1, 4)
            for share in SHARES
        }
    results = {"simulated_overhead": overhead, "simulated_limit": limit, "ddp_overhead": ddp}
    stated = {
        "steps": arguments.steps,
        "step_ms": arguments.step_ms,
        "live_mib": LIVE_MIB,
        "reduced_mib": REDUCED_MIB,
        "ddp_steps": arguments.ddp_steps,
        "cpus": os.cpu_count(),
    }
    if arguments.json:
        print(json.dumps({**results, "inputs": stated}))
    else:
        flat = {f"{key} {share}": value for key, values in results.items() for share, value in values.items()}
        report("Overhead of time-slicing", flat, stated, as_json=False)


if __name__ == "__main__":
    main()
