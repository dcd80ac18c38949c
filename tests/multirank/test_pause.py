"""`singularity-ctl pause` stops all ranks at one point; after `continue` the job ends as if never paused."""

from __future__ import annotations

import json
import random
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from singularity_core.barrier.coordinator import BoardCut
from singularity_core.barrier.interface import CutState
from singularity_core.launcher.agent_client import find_job

from .endless_job import CONTROL, Job, agree
from .jobs import finish, start_job

RHYTHM = Path(__file__).parent / "programs" / "rhythm.py"
INTERPRETER = Path(__file__).parent / "programs" / "interpreter.py"


@pytest.mark.parametrize(("ranks", "devices"), [(4, 2), pytest.param(3, 1, marks=pytest.mark.long), (2, 2)])
def test_pauses_at_random_moments_change_nothing(ranks: int, devices: int, tmp_path: Path) -> None:
    """While paused no rank takes a step, but for the one that its program was about to count when its device
    was stopped; after many pauses the bytes are those of a job never paused."""
    quiet = Job(tmp_path / "quiet", ranks, devices, name=f"quiet-{tmp_path.name}")
    quiet.until(16)
    job = Job(tmp_path / "paused", ranks, devices, name=f"paused-{tmp_path.name}")
    job.until(1)
    chance = random.Random(ranks)
    for _ in range(34):
        job.pause()
        before = job.steps()
        time.sleep(0.05)
        assert all(now - then <= 1 for now, then in zip(job.steps(), before, strict=True))
        job.go_on()
        job.until(min(before) + chance.randint(1, 4))
    agree(job.stop(), quiet.stop())


def start(folder: Path, programs: list[list[list[Any]]], name: str, devices: int) -> subprocess.Popen[str]:
    """A job whose ranks execute one program of the interpreter each."""
    everyone = list(range(len(programs)))
    program = {"communicators": {"world": everyone} if len(everyone) > 1 else {}, "ranks": programs}
    (folder / "programs.json").write_text(json.dumps([program]))
    arguments = str(folder / "programs.json"), str(folder)
    options = [f"--rdzv-id={name}"]
    return start_job(INTERPRETER, *arguments, ranks=len(programs), devices=devices, options=options)


def status(name: str) -> Any:
    command = [str(CONTROL), "status", "--json", name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return json.loads(done.stdout)["jobs"][0] if done.returncode == 0 else {"ranks": [], "waiting": []}


def wait_for(what: Callable[[], object], why: str) -> None:
    deadline = time.monotonic() + 60
    while not what():
        assert time.monotonic() < deadline, f"waited in vain for {why}"
        time.sleep(0.05)


REDUCE: list[Any] = [
    "collective",
    "world",
    "AllReduce",
    "int32",
    {"send": "p", "receive": "p", "count": 100},
    1,
]
START: list[list[Any]] = [["alloc", "p", 100], ["fill", "p", 1, True], ["synchronize", None]]


@pytest.mark.parametrize("devices", [1, 2])
def test_a_pause_that_cannot_come_says_who_is_missing(devices: int, tmp_path: Path) -> None:
    """One rank has issued a collective, another computes on the host: status names who waits for whom, the
    pause times out and names the latter, and the job goes on to its right end."""
    name = f"late-{tmp_path.name}"
    late = [*START, ["meet", "a"], ["wait_for", "go"], REDUCE, ["synchronize", None]]
    process = start(tmp_path, [[*START, ["meet", "a"], REDUCE, ["synchronize", None]], late], name, devices)
    wait_for(lambda: (tmp_path / "0-a.1").exists() and (tmp_path / "0-a.0").exists(), "both ranks")
    wait_for(
        lambda: any("rank 0" in line for line in status(name)["waiting"]), "the status to name who waits"
    )
    (line,) = status(name)["waiting"]
    assert "all-reduce" in line
    assert "for rank 1" in line
    done = subprocess.run(
        [str(CONTROL), "pause", "--timeout=0.5", name],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "rank 1: " in done.stdout + done.stderr
    (tmp_path / "go").touch()
    code, _, stderr = finish(process)
    assert code == 0, stderr


@pytest.mark.parametrize("devices", [1, 2])
def test_ranks_stop_where_mini_batches_end(devices: int, tmp_path: Path) -> None:
    """Once the rhythm of a job is known, ranks stop after the last all-reduce of a mini-batch."""
    name = f"rhythm-{tmp_path.name}"
    process = start_job(RHYTHM, str(tmp_path), ranks=2, devices=devices, options=[f"--rdzv-id={name}"])
    wait_for(lambda: status(name)["ranks"], "the job")
    cut = BoardCut(find_job(name).path / "exchange", devices, patience=100.0)
    clocks: dict[int, set[int]] = {}
    try:
        wait_for(lambda: cut.look() and min(map(min, cut.clocks().values()), default=0) >= 12, "some steps")
        for _ in range(6):
            cut.begin(timeout=200.0)
            wait_for(lambda: cut.poll().state is CutState.ACQUIRED, "the cut")
            assert cut.look()
            clocks = cut.clocks()
            assert {clock % 3 for seen in clocks.values() for clock in seen} == {0}
            cut.release()
            wait_for(lambda: cut.poll().state is CutState.OPEN, "the job to go on")
        cut.begin(timeout=200.0)  # so that the stop lies ahead of all ranks
        wait_for(lambda: cut.poll().state is CutState.ACQUIRED, "the cut")
        (tmp_path / "stop.making").write_text(str(max(map(max, cut.clocks().values())) // 3 + 9))
        (tmp_path / "stop.making").rename(tmp_path / "stop")
        cut.release()
        wait_for(lambda: cut.poll().state is CutState.OPEN, "the job to go on")
    finally:
        cut.release()  # also after a failure: nobody else would
        cut.close()
        code, _, stderr = finish(process)
    assert code == 0, stderr


def test_ranks_without_collectives_pause_too(tmp_path: Path) -> None:
    """A rank that only launches is paused: no launch comes through meanwhile, and the job ends well."""
    name = f"plain-{tmp_path.name}"
    work: list[list[Any]] = [["kernel", "p", "p", 1, 3], ["synchronize", 1]]
    process = start(tmp_path, [[*START, ["repeat", work, "stop"]]], name, 1)

    def launches() -> int:
        ranks = status(name)["ranks"]
        return int(ranks[0]["counters"]["launches"]) if ranks and ranks[0]["counters"] else 0

    wait_for(lambda: launches() > 5, "launches")
    paused = subprocess.run(
        [str(CONTROL), "pause", "--timeout=20", name], capture_output=True, text=True, timeout=60, check=False
    )
    assert paused.returncode == 0, paused.stderr
    before = launches()
    time.sleep(0.2)
    assert launches() == before
    subprocess.run([str(CONTROL), "continue", name], check=True, capture_output=True, timeout=60)
    wait_for(lambda: launches() > before, "the job to go on")
    (tmp_path / "stop").touch()
    code, _, stderr = finish(process)
    assert code == 0, stderr
