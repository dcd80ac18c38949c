"""`singularity-ctl resize` gives a running job other device proxies, and the job ends as if it never had."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ..launched import MARK, processes_with
from .endless_job import CONTROL, Job, agree
from .jobs import JOBS, finish, start_job

PROGRAMS = Path(__file__).parent / "programs"
KILLING = [sys.executable, "-P", str(Path(__file__).parent / "killing_run.py")]


def proxies() -> int:
    """How many of the running test's there are."""
    return sum("singularity_core.proxy" in command for command in processes_with(MARK, JOBS.mark).values())


def chain(tmp_path: Path, ranks: int, devices: int, resizes: int) -> None:
    """Resizes one job that often at random moments to random sizes; another one runs undisturbed."""
    quiet = Job(tmp_path / "quiet", ranks, devices, name=f"quiet-{tmp_path.name}")
    quiet.until(16)
    quiet_results = quiet.stop()
    job = Job(tmp_path / "resized", ranks, devices, name=f"resized-{tmp_path.name}")
    job.until(1)
    chance, now = random.Random(ranks * resizes), devices
    for _ in range(resizes):
        now = chance.choice([size for size in range(1, max(ranks, devices) + 1) if size != now])
        done = job.resize(now)
        assert done.returncode == 0, done.stderr + done.stdout
        assert proxies() == now
        job.until(max(job.steps()) + chance.randint(1, 6))
    agree(job.stop(), quiet_results)


@pytest.mark.parametrize(("ranks", "devices"), [(4, 4), (1, 2)])
def test_resizes_at_random_moments_change_nothing(ranks: int, devices: int, tmp_path: Path) -> None:
    """A job that gets other numbers of devices while it runs computes the bytes of one that keeps its own,
    and has just the proxies that it needs."""
    chain(tmp_path, ranks, devices, 6)


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("ranks", "devices"), [(4, 4), (3, 1), (2, 2)])
def test_fifty_resizes_change_nothing(ranks: int, devices: int, tmp_path: Path) -> None:
    """The same for fifty in a row."""
    chain(tmp_path, ranks, devices, 50)


def wait_for(paths: list[Path], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 60
    while not all(path.exists() for path in paths):
        assert process.poll() is None, finish(process)
        assert time.monotonic() < deadline, f"waited in vain for {paths}"
        time.sleep(0.01)


def control(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(CONTROL), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_everything_that_a_rank_has_is_carried(tmp_path: Path) -> None:
    """Streams, events, graphs, modules, contexts, page-locked memory, threads and the session of a child
    process are as they were after each of several resizes."""
    names = ["thread-0", "thread-1", "thread-2", "child"]
    process = start_job(
        PROGRAMS / "carried.py", str(tmp_path), ranks=1, devices=2, options=[f"--rdzv-id={tmp_path.name}"]
    )
    files = [tmp_path / f"rounds.{name}" for name in names]
    wait_for(files, process)
    for devices in (1, 2, 1):
        done = control("resize", tmp_path.name, str(devices))
        assert done.returncode == 0, done.stderr + done.stdout
        seen = [int(file.read_text()) for file in files]
        deadline = time.monotonic() + 60
        while any(int(file.read_text()) < before + 2 for file, before in zip(files, seen, strict=True)):
            assert process.poll() is None, finish(process)
            assert time.monotonic() < deadline, "some thread does not go on"
            time.sleep(0.01)
    (tmp_path / "stop").touch()
    code, _, stderr = finish(process)
    assert code == 0, stderr
    assert all((tmp_path / f"ended.{name}").exists() for name in names), stderr


def test_host_functions_come_to_their_end_first(tmp_path: Path) -> None:
    """A rank that waits for a stream in which host functions follow one another, each of them short, can get
    other proxies at any moment."""
    process = start_job(
        PROGRAMS / "host_functions.py",
        str(tmp_path),
        ranks=1,
        devices=2,
        options=[f"--rdzv-id={tmp_path.name}"],
    )
    wait_for([tmp_path / "there"], process)
    for devices in (1, 2, 1):
        done = control("resize", tmp_path.name, str(devices))
        assert done.returncode == 0, done.stderr + done.stdout
    (tmp_path / "stop").touch()
    code, _, stderr = finish(process)
    assert code == 0, stderr


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("variable", "rank 0: a module has a variable of its own (.global .align 4 .u32 counter[4])"),
        ("constant", "rank 0: a module has a variable of its own (.const .align 4 .u32 table[2])"),
        ("binary", "rank 0: a module is no plain PTX: whether it has variables of its own cannot be seen"),
        ("capture", "rank 0: a stream is being captured"),
        ("host_function", "rank 0: a host function of it still runs"),
    ],
)
def test_what_cannot_be_carried_is_refused_by_name(what: str, reason: str, tmp_path: Path) -> None:
    """The resize fails with the reason, the job goes on as before, and succeeds."""
    name = tmp_path.name
    process = start_job(
        PROGRAMS / "uncarried.py", str(tmp_path), what, ranks=1, devices=2, options=[f"--rdzv-id={name}"]
    )
    wait_for([tmp_path / "there"], process)
    done = control("resize", name, "1")
    assert done.returncode == 1, done.stdout
    assert reason in done.stderr + done.stdout
    assert "the job goes on as before" in done.stderr + done.stdout
    (tmp_path / "stop").touch()
    code, _, stderr = finish(process)
    assert code == 0, stderr


def test_impossible_sizes_are_refused(tmp_path: Path) -> None:
    """More devices than ranks see, or none at all; the answer says what is possible."""
    job = Job(tmp_path / "job", 2, 1, name=tmp_path.name)
    job.until(1)
    too_many = job.resize(3)
    assert too_many.returncode == 1
    assert "this job can have 1 to 2" in too_many.stderr + too_many.stdout
    assert job.resize(0).returncode == 2
    same = job.resize(1)
    assert (same.returncode, "already" in same.stdout) == (0, True)
    job.stop()


# ---- killed at any step ------------------------------------------------------------------------------------
def killing_job(tmp_path: Path, kill: str) -> Job:
    job = Job(tmp_path / "job", 3, 3, name=tmp_path.name, launcher=KILLING, env={"KILL": kill})
    job.until(1)
    return job


SURVIVED = [
    *("prepare:new", "prepared:new", "write:new", "written:new", "take_over:new"),
    "prepare:disk",
]


def test_a_resize_that_fails_at_any_step_leaves_the_job_as_it_was(tmp_path: Path) -> None:
    """A new proxy that is killed at any step before it has the ranks, or a full disk, ends the resize with
    the reason, and the old proxies go on; so the next resize works, and the results are as ever."""
    quiet = Job(tmp_path / "quiet", 3, 3, name=f"quiet-{tmp_path.name}")
    quiet.until(16)
    quiet_results = quiet.stop()
    job = killing_job(tmp_path, ",".join(SURVIVED))
    for plan in SURVIVED:
        done = job.resize(2)
        said = done.stdout + done.stderr
        assert done.returncode == 1, plan
        assert (
            "No space left" if plan.endswith("disk") else "was killed by signal 9 (SIGKILL); the job goes on"
        ) in said, plan
        job.until(max(job.steps()) + 2)
        assert proxies() == 3, plan
    assert job.resize(2).returncode == 0
    assert proxies() == 2
    job.until(max(job.steps()) + 2)
    agree(job.stop(), quiet_results)


OPEN = [("taken_over", "old"), ("commit", "old")]


@pytest.mark.parametrize(("step", "victim"), OPEN)
def test_an_old_proxy_that_dies_while_ranks_change_hands(step: str, victim: str, tmp_path: Path) -> None:
    """When it dies in the moment before the new ones let the ranks go, some rank may see that: then the job
    ends as ever, and nothing is left.  Else it goes on with the new ones."""
    job = killing_job(tmp_path, f"{step}:{victim}")
    job.resize(2)
    try:
        job.until(max(job.steps()) + 4)
    except AssertionError:
        assert job.process.wait(60) != 0
        assert JOBS.leftovers() == []
    else:
        job.stop()


FATAL = [("write", "old"), ("commit", "new"), ("take_over", "launcher"), ("written", "rank")]
MORE_FATAL = [
    (step, victim)
    for step in ("prepare", "prepared", "write", "written", "take_over", "taken_over", "commit", "retire")
    for victim in ("old", "new", "rank", "launcher")
    if f"{step}:{victim}" not in SURVIVED and (step, victim) not in [*FATAL, *OPEN, ("retire", "old")]
]


def dies(tmp_path: Path, step: str, victim: str) -> None:
    job = killing_job(tmp_path, f"{step}:{victim}")
    job.resize(2)
    if victim == "launcher":
        job.process.wait(60)
        assert JOBS.end() == []
        return
    code, _, stderr = finish(job.process)
    assert code == 137, stderr
    names = {"rank": "rank 2", "old": "the proxy of device 0", "new": "the proxy of device 0"}
    assert f"root cause: {names[victim]}" in stderr
    assert JOBS.leftovers() == []


@pytest.mark.parametrize(("step", "victim"), FATAL)
def test_a_job_that_loses_a_part_ends_as_ever(step: str, victim: str, tmp_path: Path) -> None:
    """When a rank, or a proxy that has ranks, or the launcher is killed during a resize, the job ends with
    that cause, and nothing is left."""
    dies(tmp_path, step, victim)


@pytest.mark.long
@pytest.mark.parametrize(("step", "victim"), MORE_FATAL)
def test_a_job_that_loses_a_part_at_any_step_ends_as_ever(step: str, victim: str, tmp_path: Path) -> None:
    """The same for all steps and victims."""
    dies(tmp_path, step, victim)
