"""What it costs to checkpoint, preempt, resume and resize a job.  Needs root and CRIU.

    python benchmarks/checkpoint.py [--json] [--ranks N] [--mib N] [--steps N]

The job: ranks in a box, on a device each, with --mib MiB there, half of it the same on all.  Two checkpoints
are taken, --steps steps apart; their seconds are medians of both.
      stored_over_unique         bytes to store, before compression, by those of different pages (host, 4 KiB,
                                 without zero pages) and different buffers (devices); first checkpoint
      second_over_first          bytes of host pages that are new in the second, by the first's
      second_over_first_device   the same for device memory
      host_unique_ratio          different host pages by all that are not zero; with random_ before it, of a
                                 job without fixed addresses
      checkpoint_s               until it was committed; the job ran for most of that
      stopped_s                  the longest time in which no rank began a step
      limit_s                    the live bytes of all devices / what memcpy does in this run
      stopped_over_limit         the ratio of the last two
      resize_s                   until the job goes on with half the devices
      resize_stopped_s           the longest time meanwhile in which no rank began a step
      resize_over_limit          that by limit_s
      preempt_s                  until the launcher had ended
      resume_s                   until all ranks had begun five more steps
`inputs` says which kind of resize that is: what a session has on its device is handed over as a file, not
copied, as the in-memory device can do it (benchmarks/resize.py measures more sizes).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from ranks import launcher, report
from resize import memcpy_seconds
from stepping_job import Job

from singularity_core.checkpoint.manifest import Manifest
from singularity_core.checkpoint.store import Store
from singularity_core.launcher.agent_client import ask
from singularity_core.launcher.agent_messages import CheckpointRequest, Done

PROGRAM = Path(__file__).parent / "programs" / "resident_rank.py"
RESIZE = "in a box, to half the devices; device memory handed over as files"


class BoxedJob(Job):
    """One whose ranks are in a box."""

    def __init__(self, directory: Path, store: Path, ranks: int, mib: int, *options: str) -> None:
        self.store = store
        self._begin(["--box", *options, str(PROGRAM), str(directory), str(mib)], directory, ranks, ranks, mib)

    def checkpoint(self, *, preempt: bool = False) -> None:
        """Returns when it is committed."""
        request = CheckpointRequest(store=str(self.store), timeout=60, preempt=preempt)
        done = ask(self.path, request, Done, seconds=600)
        if not done.ok:
            raise SystemExit(f"no checkpoint: {done.message} {done.waiting}")

    def resume(self) -> None:
        """Returns when it runs again."""
        self._follow([launcher().replace("singularity-run", "singularity-ctl"), "resume", str(self.store)])

    def timed(self) -> tuple[float, float]:
        """(seconds until a checkpoint is committed, longest stop)."""
        ends = [0.0]

        def take() -> None:
            self.checkpoint()
            ends[0] = time.monotonic()

        start = time.monotonic()
        stopped = self.longest_stop(take)
        return ends[0] - start, stopped


def device_bytes(manifest: Manifest, *, new: bool) -> int:
    """Of device memory in a checkpoint, each content once; `new`: that no earlier one had."""
    chunks = {chunk for each in manifest.objects if each.name.startswith("device/") for chunk in each.chunks}
    return sum(chunk.size for chunk in chunks if not new or chunk.owner == manifest.checkpoint)


def measure(folder: Path, ranks: int, mib: int, steps: int) -> dict[str, float]:
    """All but the ratio without fixed addresses."""
    job = BoxedJob(folder / "job", folder / "store", ranks, mib)
    try:
        took = [job.timed()]
        before = min(job.steps())
        while min(job.steps()) < before + steps:
            time.sleep(0.05)
        took.append(job.timed())
        second, first = Store.open(job.store).checkpoints()
        start, ends = time.monotonic(), [0.0]

        def resize() -> None:
            job.resize(max(1, ranks // 2))
            ends[0] = time.monotonic()

        resize_stopped = job.longest_stop(resize)
        preempts = time.monotonic()
        job.checkpoint(preempt=True)
        job.process.wait(60)
        resumes = time.monotonic()
        job.resume()
        resumed = time.monotonic()
    finally:
        job.close()
    host = {name: int(value) for name, value in first.labels.items()}
    unique = host["host_unique_pages"] * 4096 + device_bytes(first, new=False)
    limit = ranks * memcpy_seconds(mib)
    stopped = statistics.median(each[1] for each in took)
    return {
        "stored_over_unique": (host["host_new_bytes"] + device_bytes(first, new=True)) / unique,
        "second_over_first": int(second.labels["host_new_bytes"]) / host["host_new_bytes"],
        "second_over_first_device": device_bytes(second, new=True) / device_bytes(first, new=True),
        "host_unique_ratio": host["host_unique_pages"] / (host["host_pages"] - host["host_zero_pages"]),
        "checkpoint_s": statistics.median(each[0] for each in took),
        "stopped_s": stopped,
        "limit_s": limit,
        "stopped_over_limit": stopped / limit,
        "resize_s": ends[0] - start,
        "resize_stopped_s": resize_stopped,
        "resize_over_limit": resize_stopped / limit,
        "preempt_s": resumes - preempts,
        "resume_s": resumed - resumes,
    }


def random_ratio(folder: Path, ranks: int) -> float:
    """host_unique_ratio with addresses and hashes at random."""
    job = BoxedJob(folder / "random", folder / "random-store", ranks, 16, "--box-random-addresses")
    try:
        job.checkpoint()
    finally:
        job.close()
    labels = {name: int(value) for name, value in Store.open(job.store).checkpoints()[0].labels.items()}
    return labels["host_unique_pages"] / (labels["host_pages"] - labels["host_zero_pages"])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=20, help="between the two checkpoints")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        results = measure(Path(name), given.ranks, given.mib, given.steps)
        results["random_host_unique_ratio"] = random_ratio(Path(name), given.ranks)
    stated = {
        "ranks": given.ranks,
        "mib": given.mib,
        "steps": given.steps,
        "cpus": os.cpu_count(),
        "resize": RESIZE,
    }
    if given.json:
        print(json.dumps({**{key: round(value, 4) for key, value in results.items()}, "inputs": stated}))
        sys.exit()
    report("A checkpoint", results, stated, False)


if __name__ == "__main__":
    main()
