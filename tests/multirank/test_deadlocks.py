"""A job that waits for itself, or for a rank that never comes: people are told who waits for whom."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .jobs import JOBS, finish, start_job

INTERPRETER = Path(__file__).parent / "programs" / "interpreter.py"
CONTROL = Path(sys.executable).parent / "singularity-ctl"
Steps = list[list[Any]]
START: Steps = [["alloc", "p", 100], ["fill", "p", 1, True], ["synchronize", None]]


def reduce(communicator: str) -> list[Any]:
    buffers = {"send": "p", "receive": "p", "count": 100}
    return ["collective", communicator, "AllReduce", "int32", buffers, 1]


def receive(source: int) -> list[Any]:
    return ["collective", "world", "Recv", "int32", {"receive": "p", "count": 100, "root": source}, 1]


def start(folder: Path, name: str, devices: int, programs: list[Steps], **communicators: list[int]) -> Any:
    (folder / "programs.json").write_text(json.dumps([{"communicators": communicators, "ranks": programs}]))
    arguments = str(folder / "programs.json"), str(folder)
    options = [f"--rdzv-id={name}"]
    return start_job(INTERPRETER, *arguments, ranks=len(programs), devices=devices, options=options)


def control(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(CONTROL), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def waits(name: str, process: subprocess.Popen[str], enough: Callable[[list[str]], bool]) -> list[str]:
    """The lines of `status` about who waits, once they are `enough`."""
    deadline = time.monotonic() + 60
    while True:
        done = control("status", "--json", name)
        lines: list[str] = json.loads(done.stdout)["jobs"][0]["waiting"] if done.returncode == 0 else []
        if enough(lines):
            return sorted(lines)
        assert process.poll() is None, finish(process)
        assert time.monotonic() < deadline, lines


def end(process: subprocess.Popen[str]) -> None:
    """SIGTERM ends a job that is stuck, and nothing of it stays."""
    process.send_signal(signal.SIGTERM)
    code, _, stderr = finish(process)
    assert code == 143, stderr
    assert JOBS.leftovers() == []


@pytest.mark.parametrize("devices", [1, 2])
def test_ranks_that_wait_for_each_other(devices: int, tmp_path: Path) -> None:
    """Two ranks synchronise two communicators in opposite orders: status says what each waits for and for
    whom, the pause that cannot come says it too, and the job can be ended."""
    name = f"crossed-{tmp_path.name}"
    both = {"world": [0, 1], "other": [1, 0]}
    process = start(
        tmp_path, name, devices,
        [[*START, reduce("world"), ["synchronize", 1], reduce("other"), ["synchronize", 1]],
         [*START, reduce("other"), ["synchronize", 1], reduce("world"), ["synchronize", 1]]],
        **both,
    )  # fmt: skip
    lines = waits(name, process, lambda lines: len(lines) == 2)
    for rank, line in enumerate(lines):
        assert line.startswith(f"rank {rank}: ")
        assert re.search(r"its all-reduce number \d+ on communicator \w+ waits", line)
        assert f"waits for rank {1 - rank};" in line
    done = control("pause", "--timeout=0.5", name)
    assert done.returncode == 1
    for rank in (0, 1):
        assert f"rank {rank}: " in done.stderr
        assert f"waits for rank {1 - rank};" in done.stderr
    end(process)


def test_ranks_that_receive_from_each_other_in_a_circle(tmp_path: Path) -> None:
    """Three ranks that all receive first: status names each one's receive, and from whom it is due."""
    name = f"circle-{tmp_path.name}"
    programs = [[*START, receive((rank + 1) % 3), ["synchronize", 1]] for rank in range(3)]
    process = start(tmp_path, name, 1, programs, world=[0, 1, 2])
    for rank, line in enumerate(waits(name, process, lambda lines: len(lines) == 3)):
        assert line.startswith(f"rank {rank}: ")
        assert "its receive number " in line
        assert f"waits for rank {(rank + 1) % 3};" in line
    end(process)


def test_a_rank_that_never_joins(tmp_path: Path) -> None:
    """While one rank does not come to a communicator, status names it and who waits for it; once it fails,
    the job ends with that as root cause."""
    name = f"joining-{tmp_path.name}"
    joins = [*START, ["create", "world", [0, 1, 2]]]
    never = [*START, ["wait_for", "go"], ["exit", 7]]
    process = start(tmp_path, name, 2, [joins, joins, never])
    for rank, line in enumerate(waits(name, process, lambda lines: len(lines) == 2)):
        assert line.startswith(f"rank {rank}: ")
        assert "joins communicator " in line
        assert "waits for rank 2;" in line
    (tmp_path / "go").touch()
    code, _, stderr = finish(process)
    assert code == 7
    assert "root cause: rank 2" in stderr
    assert JOBS.leftovers() == []
