"""What the library that notes changed files adds to calls that open, make, rename and remove files.

    python benchmarks/files.py [--json] [--rounds N] [--calls N] [--directory DIR]

Keys: read_ns write_ns     open and close of one file, again and again
      create_ns            open and close of a new file, each time another one
      rename_ns            of one file between two names
      unlink_ns            each time another file
each as plain_..., with the library and a log as noted_..., and the difference as added_...
log_bytes_per_file         how much the log grows by a file that is made and removed
Programs take turns; a value is the median over the rounds.  DIR is where the files lie (default: the place
for temporary files; not below /dev, where nothing is noted); the log is in /dev/shm, as a job's.  Needs gcc
and the source tree.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import tempfile
from pathlib import Path

from ranks import compile_c, report

from singularity_core.launcher.settings import FILE_LOG_VARIABLE, files_library


def sample(program: Path, directory: str, calls: int, environment: dict[str, str]) -> dict[str, float]:
    """One run: nanoseconds by kind of call."""
    with tempfile.TemporaryDirectory(dir=directory) as place:
        done = subprocess.run(
            [program, place, str(calls)],
            env={**os.environ, **environment},
            check=True,
            capture_output=True,
            text=True,
            timeout=600,
        )
    return {key: float(value) for key, value in (line.split() for line in done.stdout.splitlines())}


def main() -> None:
    parser = argparse.ArgumentParser(description="Cost of noting which files change.")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--calls", type=int, default=10000, help="of each kind, per round")
    parser.add_argument("--directory", default=tempfile.gettempdir())
    arguments = parser.parse_args()
    library = files_library()
    if library is None:
        raise SystemExit("libsingularity_files.so is not installed: pip install . (see README)")
    samples: dict[str, list[dict[str, float]]] = {"plain": [], "noted": []}
    with (
        tempfile.TemporaryDirectory() as built,
        tempfile.NamedTemporaryFile(dir="/dev/shm", prefix="singularity-benchmark-") as log,
    ):
        program = compile_c("file_calls.c", Path(built) / "file_calls", "-O2")
        noted = {"LD_PRELOAD": str(library), FILE_LOG_VARIABLE: log.name}
        for turn in range(arguments.rounds):
            order = list(samples) if turn % 2 == 0 else list(reversed(samples))
            for key in order:
                environment = noted if key == "noted" else {}
                samples[key].append(sample(program, arguments.directory, arguments.calls, environment))
        log_bytes = os.stat(log.name).st_size / arguments.rounds / arguments.calls
    results: dict[str, float] = {}
    for kind in samples["plain"][0]:
        plain, with_notes = (statistics.median(each[kind] for each in samples[key]) for key in samples)
        results |= {f"plain_{kind}_ns": plain, f"noted_{kind}_ns": with_notes}
        results[f"added_{kind}_ns"] = with_notes - plain
    results["log_bytes_per_file"] = log_bytes
    stated = {"rounds": arguments.rounds, "calls": arguments.calls, "directory": arguments.directory}
    report("Cost of noting which files change, ns per call", results, stated, arguments.json)


if __name__ == "__main__":
    main()
