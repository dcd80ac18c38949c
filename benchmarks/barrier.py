"""What the consistent cut costs while nobody asks for it, and how far ranks go on until it is there.

    python benchmarks/barrier.py [--json] [--pauses N] [--ranks N] [--devices N]

Keys: steady_ratio          a step with what proxies do for a cut that nobody asks for / without it: each
                            collective is noted (tempo.c), which is timed by itself, and set against the step
      looking_ratio         a step while the coordinator looks at all clocks every 5 ms / while it does not
      acquire_minibatches   steps that a rank still begins between request and pause: most of all pauses
      acquire_ms            from the request to the pause, median
      simulated             the same decision code for 8 to 16,384 simulated ranks (cut_simulation.py)
The job is data-parallel, with 10 ms of simulated compute and an all-reduce of 1 MiB per step; the first two
are taken with no compute at all, in turns within one job: the worst case.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from cut_simulation import simulate
from ranks import compile_c, report
from singularity_core._native import ffi, lib
from stepping_job import Job

from singularity_core.barrier.coordinator import BoardCut

SIZES = (8, 64, 512, 4096, 16384)


def noting_seconds(period: int = 50, rounds: int = 20_000) -> float:
    """What noting one collective takes, when mini-batches have `period` of them: median of seven."""
    tempo = ffi.new("struct sg_tempo *")

    def timed(call: Callable[[int], object]) -> float:
        start = time.perf_counter()
        for number in range(rounds):
            call(number)
        return (time.perf_counter() - start) / rounds

    def note(number: int) -> None:
        lib.sg_tempo_note(tempo, number % period, 3, number)
        lib.sg_tempo_beat(tempo)

    def nothing(number: int) -> None:  # as many calls through cffi
        lib.sg_tempo_next(number % period, 3, number % 3)
        lib.sg_tempo_next(number, 3, 1)

    return max(0.0, statistics.median(timed(note) - timed(nothing) for _ in range(7)))


def looking(program: Path, directory: Path, ranks: int, turns: int) -> tuple[float, float]:
    """(step time with looks / without, seconds of a step without)."""
    job = Job(program, directory, ranks, ranks, 0)
    try:
        cut = BoardCut(job.path / "exchange", ranks)
        ratios, steps = [], []
        for turn in range(turns):
            modes: list[Callable[[], object]] = [cut.look, lambda: None]
            rates = {at: job.rate(modes[at]) for at in ((0, 1) if turn % 2 else (1, 0))}
            ratios.append(rates[1] / rates[0])
            steps.append(ranks / rates[1])
        cut.close()
        return statistics.median(ratios), statistics.median(steps)
    finally:
        job.close()


def main() -> None:
    parser = argparse.ArgumentParser(description="Costs of the consistent cut.")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--pauses", type=int, default=20)
    parser.add_argument("--turns", type=int, default=8, help="of each kind, for the looking ratio")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--devices", type=int, default=2)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        program = compile_c("sliced_step.c", directory / "sliced_step", "-O2")
        ratio, step = looking(program, directory / "steady", 2, arguments.turns)
        job = Job(program, directory / "paused", arguments.ranks, arguments.devices, 10)
        try:
            pauses = []
            for _ in range(arguments.pauses):
                pauses.append(job.pause())
                time.sleep(0.1)
        finally:
            job.close()
    simulated = [simulate(size, arguments.pauses if size <= 512 else 3) for size in SIZES]
    results = {
        "steady_ratio": round(1 + noting_seconds() / step, 4),
        "looking_ratio": round(ratio, 4),
        "acquire_minibatches": max(steps for steps, _ in pauses),
        "acquire_ms": round(statistics.median(took for _, took in pauses), 2),
    }
    stated = {
        "pauses": arguments.pauses,
        "turns": arguments.turns,
        "ranks": arguments.ranks,
        "devices": arguments.devices,
        "cpus": os.cpu_count(),
    }
    if arguments.json:
        print(json.dumps({**results, "simulated": simulated, "inputs": stated}))
        return
    report(
        "The consistent cut", results, {**stated, **{f"simulated {s['ranks']}": s for s in simulated}}, False
    )


if __name__ == "__main__":
    main()
