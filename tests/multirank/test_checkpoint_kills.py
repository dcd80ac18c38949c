"""Whatever goes wrong in a checkpoint, the job goes on, or can be resumed from the one before."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from singularity_core.checkpoint.store import Store

from .endless_job import CONTROL, Job, agree
from .jobs import JOBS, finish
from .test_restored import start_resume

pytestmark = pytest.mark.usefixtures("movable")

KILLING = [sys.executable, "-P", str(Path(__file__).parent / "killing_checkpoint.py")]
FULL = "No space left on device"
LOST = "was killed"


def control(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(CONTROL), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def start(folder: Path, plans: list[str]) -> Job:
    """A job of two ranks in a box, whose checkpoints end as `plans` say."""
    job = Job(
        folder, 2, 2, "--box", name=f"{folder.parent.name}-{os.getpid()}",
        launcher=KILLING, env={"KILL": ",".join(plans)},
    )  # fmt: skip
    job.until(3)
    return job


def undisturbed(folder: Path) -> list[object]:
    quiet = Job(folder, 2, 2, name=f"quiet-{folder.parent.name}")
    quiet.until(16)
    return quiet.stop()


def images() -> set[str]:
    """Of processes, that wait in memory to be stored."""
    return {name for name in os.listdir("/dev/shm") if name.startswith("singularity-hold")}


def gone(images_before: set[str]) -> bool:
    """Whether nothing is left of its checkpoints but what is in the store."""
    stages = Path(f"/dev/shm/singularity-{os.getuid()}").glob("*/checkpoint")
    mine = {path.parent for path in stages} & JOBS.jobs()
    return not mine and images() <= images_before


GOES_ON = [
    ("prepared:disk", FULL),
    ("dumped:keeper", LOST),
    ("dumped:disk", FULL),
    ("copied:keeper", LOST),
    ("memory:disk", FULL),
    ("files:disk", FULL),
    ("stored:disk", FULL),
    ("processes:disk", FULL),
    ("commit:disk", FULL),
]


@pytest.mark.timeout(300)
def test_the_job_goes_on_whatever_ends_its_checkpoint(tmp_path: Path) -> None:
    """A full disk at every step, and the end of those who hold the job still: the checkpoint fails with that
    reason, nothing of it is left, the store is whole, and the job goes on, also when it was to be preempted.
    The next checkpoint works."""
    before, store = images(), tmp_path / "store"
    ways = [("checkpoint", *way) for way in GOES_ON] + [("preempt", *way) for way in GOES_ON[-4:]]
    job = start(tmp_path / "job", [plan for _, plan, _ in ways])
    for verb, plan, why in ways:
        done = control(verb, "--to", str(store), job.name)
        assert done.returncode == 1, f"{plan}: {done.stdout}{done.stderr}"
        assert why in done.stderr, f"{plan}: {done.stderr}"
        assert "goes on as before" in done.stderr, plan
        job.until(max(job.steps()) + 2)
        deadline = time.monotonic() + 30
        while not gone(before):
            assert time.monotonic() < deadline, plan
            time.sleep(0.02)
    assert Store.open(store).checkpoints() == []
    assert control("checkpoint", "--to", str(store), job.name).returncode == 0
    assert Store.open(store).verify() == []
    agree(job.stop(), undisturbed(tmp_path / "quiet"))


ENDS = [
    ("dumped:rank", 137),
    ("memory:proxy", 137),
    ("stored:rank", 137),
    ("commit:launcher", -9),
    ("copied:launcher", -9),
]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("plan", "wanted"), ENDS, ids=[plan for plan, _ in ENDS])
def test_a_job_that_ends_in_a_checkpoint_goes_on_from_the_one_before(
    plan: str, wanted: int, tmp_path: Path
) -> None:
    """The end of a rank, a proxy or the launcher at any step ends the job with that cause; nothing is left
    running, the store is whole, and the checkpoint before is as good as ever."""
    job, store = start(tmp_path / "job", ["-", plan]), tmp_path / "store"
    first = control("checkpoint", "--to", str(store), job.name)
    assert first.returncode == 0, first.stderr
    job.until(max(job.steps()) + 2)
    done = control("checkpoint", "--to", str(store), job.name)
    assert done.returncode == 1, done.stdout
    code, _, stderr = finish(job.process)
    assert code == wanted, stderr
    assert JOBS.end() == []
    opened = Store.open(store)
    assert opened.verify() == []
    assert len(opened.checkpoints()) == 1
    job.process = start_resume(store)
    job.until(max(job.steps()) + 2)
    agree(job.stop(), undisturbed(tmp_path / "quiet"))


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of one MiB."""
    place = tmp_path / "small"
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)], check=False).returncode:
        pytest.skip("needs the right to mount")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_stores_without_room_or_right(small: Path, tmp_path: Path) -> None:
    """A store on a full or read-only file system is named, nothing of the checkpoint stays there, and the job
    goes on."""
    job = Job(tmp_path / "job", 2, 2, "--box", name=f"{tmp_path.name}-{os.getpid()}")
    job.until(3)
    for verb in ("checkpoint", "preempt"):
        done = control(verb, "--to", str(small / "store"), job.name)
        assert done.returncode == 1, done.stdout
        assert str(small) in done.stderr
        assert "goes on as before" in done.stderr
        job.until(max(job.steps()) + 2)
    assert Store.open(small / "store").checkpoints() == []
    subprocess.run(["mount", "-o", "remount,ro", str(small)], check=True)
    done = control("checkpoint", "--to", str(small / "other"), job.name)
    assert done.returncode == 1, done.stdout
    assert "ead-only" in done.stderr
    job.until(max(job.steps()) + 2)
    assert control("checkpoint", "--to", str(tmp_path / "store"), job.name).returncode == 0
    job.stop()
