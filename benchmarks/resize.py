"""What it costs to give a running job other devices.

    python benchmarks/resize.py [--json] [--ranks N] [--mib N] [--turns N]

For each change of devices (from 4 ranks on 4: to 2, to 1, back to 4), medians over all turns:
      resize_s             from the request until the job goes on; it runs meanwhile, until:
      stopped_s            the longest time in which no rank began a step, the first step's switches included
      limit_s              the live bytes of all ranks / what memcpy does in this run
      stopped_over_limit   the ratio of the last two
Each rank has --mib MiB on its device.  New proxies start while the job runs.  What a session has on its
device is handed over as a file.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
from ranks import compile_c, report
from stepping_job import Job


def memcpy_seconds(mib: int) -> float:
    """For that many MiB, by one thread: median of seven."""
    source = np.ones(mib << 20, np.uint8)
    target = source.copy()
    times = []
    for _ in range(7):
        start = time.perf_counter()
        np.copyto(target, source)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description="Costs of a resize.")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--turns", type=int, default=3)
    arguments = parser.parse_args()
    ranks = arguments.ranks
    sizes = [max(1, ranks // 2), 1, ranks]
    took: dict[int, list[tuple[float, float]]] = {devices: [] for devices in sizes}
    limit = ranks * memcpy_seconds(arguments.mib)
    with tempfile.TemporaryDirectory() as name:
        program = compile_c("sliced_step.c", Path(name) / "sliced_step", "-O2")
        job = Job(program, Path(name) / "job", ranks, ranks, 10, arguments.mib)
        try:
            for _ in range(arguments.turns):
                for devices in sizes:
                    start, ends = time.monotonic(), [0.0]

                    def resize(devices: int = devices, ends: list[float] = ends) -> None:
                        job.resize(devices)
                        ends[0] = time.monotonic()

                    stopped = job.longest_stop(resize)
                    took[devices].append((ends[0] - start, stopped))
        finally:
            job.close()
    results = {"limit_s": limit}
    for devices, found in took.items():
        resize_s, stopped_s = (statistics.median(column) for column in zip(*found, strict=True))
        results[f"resize_s_to_{devices}"] = resize_s
        results[f"stopped_s_to_{devices}"] = stopped_s
        results[f"stopped_over_limit_to_{devices}"] = stopped_s / limit
    stated = {**vars(arguments), "cpus": os.cpu_count()}
    stated.pop("json")
    if arguments.json:
        print(json.dumps({**{key: round(value, 4) for key, value in results.items()}, "inputs": stated}))
        return
    report("A resize", results, stated, False)


if __name__ == "__main__":
    main()
