"""singularity-ctl with real jobs: status, pause, continue, logs."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from singularity_core.launcher import agent_messages
from singularity_core.launcher.agent_client import JobSilentError, ask
from singularity_core.launcher.agent_messages import JobStatus, StatusRequest

from .conftest import Launcher, on_a_terminal, wait_for
from .test_cleanup import rank_pid
from .test_control import CONTROL, control
from .test_proxies import SMALL, proxy_pid, start_ranks

HERE = Path(__file__).parent
WAIT = """
import os, pathlib, sys, time
pathlib.Path("up-" + os.environ["RANK"]).touch()
print("out of", os.environ["RANK"], flush=True)
print("err of", os.environ["RANK"], file=sys.stderr, flush=True)
while not pathlib.Path("end").exists(): time.sleep(0.01)
print("last words of", os.environ["RANK"], end="", flush=True)
"""


def job_of(launcher: Launcher) -> str:
    """The internal name of the one job that this test started."""
    (path,) = launcher.jobs()
    return path.name


def start_waiting(launcher: Launcher, *options: str, count: int = 2) -> subprocess.Popen[str]:
    """Ranks without devices, which run until the file `end` is there."""
    process = launcher.start("--nproc-per-node", str(count), *options, launcher.script(WAIT))
    wait_for(lambda: all((launcher.folder / f"up-{rank}").exists() for rank in range(count)), "the ranks")
    return process


def status_of(job: str) -> Any:
    """What `status --json` says of one job."""
    done = control("status", "--json", job)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["schema_version"] == 1
    (one,) = found["jobs"]
    return one


def test_status_of_a_job_with_proxies(launcher: Launcher) -> None:
    """Each rank is shown with its device, pid and live memory, each proxy with its pid and arena."""
    start_ranks(launcher, 3, "idle", "--devices", "2", SINGULARITY_FAKE_DEVICES="2")
    found = status_of(job_of(launcher))
    assert (found["state"], found["backend"]) == ("running", "fake")
    assert [rank["device"] for rank in found["ranks"]] == [0, 0, 1]
    assert [rank["pid"] for rank in found["ranks"]] == [rank_pid(launcher, rank) for rank in range(3)]
    assert [rank["counters"]["live_bytes"] for rank in found["ranks"]] == [1 << 20] * 3
    assert all(rank["counters"]["messages"] > 0 for rank in found["ranks"])
    assert [(p["device"], p["sessions"]) for p in found["proxies"]] == [(0, 2), (1, 1)]
    assert [p["pid"] for p in found["proxies"]] == [proxy_pid(launcher, 0), proxy_pid(launcher, 1)]
    assert all(0 < p["arena_bytes"] <= 256 << 20 for p in found["proxies"])


NO_BOARD = """
import functools
from singularity_core.barrier.interface import CutError
from singularity_core.launcher import attempt, run
def fail(*_): raise CutError("the board is gone")
attempt.Supervisor = functools.partial(attempt.Supervisor, make_cut=fail)
run.main()
"""


@pytest.mark.parametrize("listening", [True, False])
def test_status_without_a_board(launcher: Launcher, listening: bool) -> None:
    """A board that is gone is what `status` says, and what the launcher says once; the job runs on, also when
    nobody can read the launcher's stderr any more."""
    launcher.program = [sys.executable, "-P", "-c", NO_BOARD]
    process = start_ranks(launcher, 1, "idle")
    assert process.stderr is not None
    if not listening:
        process.stderr.close()
    shown = [status_of(job_of(launcher)) for _ in range(2)]
    assert [one["waiting"] for one in shown] == [["the board is gone"]] * 2
    assert process.poll() is None
    process.terminate()
    err = process.communicate(timeout=60)[1] if listening else ""
    assert err.count("cannot be looked at") == listening
    assert "Traceback" not in err
    assert process.wait(timeout=60) == 143


def test_status_without_proxies(launcher: Launcher) -> None:
    """A job without proxies has a status too; it has no devices and no counters, and cannot be paused."""
    start_waiting(launcher, "--rdzv-id", "plainjob")
    found = status_of("plainjob")
    assert [(r["state"], r["device"], r["counters"]) for r in found["ranks"]] == [("running", None, None)] * 2
    assert found["proxies"] == []
    done = control("pause", "plainjob")
    assert done.returncode == 1
    assert "--no-proxy" in done.stderr


def test_status_lines_and_table(launcher: Launcher) -> None:
    """Elsewhere than on a terminal, lines are led by what they are about; on one, there are headed tables."""
    start_waiting(launcher, "--rdzv-id", "tables")
    lines = [line.split("\t") for line in control("status", "tables").stdout.splitlines()]
    assert [line[0] for line in lines] == ["job", "rank", "rank"]
    assert lines[0][2:6] == ["tables", "running", "plain", "2"]
    shown = on_a_terminal(*CONTROL, "status", "tables", COLUMNS="80")
    shown = re.sub(rb"\x1b\[[0-9;]*m", b"", shown)  # NO_COLOR does not mean no bold
    assert re.search(rb"rank +dev +pid +state +busy", shown)
    assert re.search(rb"\n1 +- +\d+ +running ", shown)


def test_watch_ends_with_the_job(launcher: Launcher) -> None:
    """--watch prints one JSON document per line until the job has ended, and exits with 0."""
    process = start_waiting(launcher, "--rdzv-id", "watched")
    command = [*CONTROL, "status", "watched", "--json", "--watch", "0.1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None
        first, second = watching.stdout.readline(), watching.stdout.readline()
        assert [json.loads(line)["jobs"][0]["state"] for line in (first, second)] == ["running"] * 2
        (launcher.folder / "end").touch()
        watching.stdout.read()
        assert watching.wait(timeout=60) == 0
    assert process.wait(timeout=60) == 0


def test_jobs_are_found_by_either_name(launcher: Launcher) -> None:
    """A job answers to its id, its internal name and a beginning of that; without a name only when it is
    alone."""
    start_waiting(launcher, "--rdzv-id", "one", count=1)
    name = job_of(launcher)
    assert {status_of(word)["job"] for word in ("one", name, name[:-3])} == {name}
    second = launcher.start("--rdzv-id", "one", launcher.script(WAIT))

    def ones() -> int:  # other jobs of this user may run meanwhile
        jobs = json.loads(control("status", "--json").stdout)["jobs"]
        return sum(job["run_id"] == "one" for job in jobs)

    wait_for(lambda: ones() == 2, "the second job")
    both = control("continue", "one")
    assert both.returncode == 2
    assert name in both.stderr
    assert control("continue", "no-such-job").returncode == 1
    (launcher.folder / "end").touch()
    assert second.wait(timeout=60) == 0


def test_killed_launcher_is_no_job(launcher: Launcher) -> None:
    """What a killed launcher leaves for a moment is not taken for a job."""
    process = start_waiting(launcher, "--rdzv-id", "killed", count=1)
    process.kill()
    process.wait()
    done = control("status", "killed")
    assert done.returncode == 1
    assert "No job 'killed'" in done.stderr


@pytest.fixture
def stopped(launcher: Launcher) -> Iterator[subprocess.Popen[str]]:
    """A launcher that is stopped (^Z, a debugger); its id is `stopped`."""
    process = start_waiting(launcher, "--rdzv-id", "stopped", count=1)
    process.send_signal(signal.SIGSTOP)
    yield process
    process.send_signal(signal.SIGCONT)


def test_launcher_that_does_not_answer(launcher: Launcher, stopped: subprocess.Popen[str]) -> None:
    """A job whose launcher does not answer is named with its pid and what to do, by `status` without a name,
    by its internal name, and by an id that may be its own; others are shown meanwhile."""
    name = job_of(launcher)
    other = launcher.start("--rdzv-id", "other", launcher.script(WAIT))
    wait_for(lambda: len(launcher.jobs()) == 2, "the other job's directory")
    wait_for(lambda: control("status", "other").returncode == 0, "the other job")
    done = control("status", "--json")
    assert done.returncode == 1
    assert "other" in [job["run_id"] for job in json.loads(done.stdout)["jobs"]]
    for said in (done.stderr, control("continue", name).stderr, control("continue", "stopped").stderr):
        assert f"{name} (launcher pid {stopped.pid}) does not answer" in said
    assert f"kill -KILL {stopped.pid}" in done.stderr
    (launcher.folder / "end").touch()
    assert other.wait(timeout=60) == 0


def test_launcher_of_another_release(launcher: Launcher, monkeypatch: pytest.MonkeyPatch) -> None:
    """A launcher that speaks another version of the protocol is named, with what to do."""
    start_waiting(launcher, "--rdzv-id", "newer", count=1)
    monkeypatch.setattr(agent_messages, "SCHEMA_VERSION", 2)
    with pytest.raises(JobSilentError, match="version 1 of the protocol") as raised:
        ask(next(iter(launcher.jobs())), StatusRequest(), JobStatus)
    assert "installation that started it" in raised.value.remedy


def test_logs(launcher: Launcher) -> None:
    """The last lines of each rank's files, of one rank, or where the files are."""
    start_waiting(launcher, "--rdzv-id", "logged", "--log-dir", "logs")
    wait_for(lambda: len(control("logs", "logged").stdout.splitlines()) == 4, "what the ranks said")
    assert control("logs", "logged").stdout.splitlines() == [
        "[rank0 stdout] out of 0", "[rank0 stderr] err of 0",
        "[rank1 stdout] out of 1", "[rank1 stderr] err of 1",
    ]  # fmt: skip
    assert "of 0" not in control("logs", "logged", "--rank", "1").stdout
    (paths,) = json.loads(control("logs", "logged", "--rank", "1", "--json").stdout)["ranks"]
    assert Path(paths["stdout"]) == launcher.folder / "logs/logged/attempt_0/1/stdout.log"
    assert control("logs", "logged", "--rank", "2").returncode == 2


def test_follow_ends_with_the_job(launcher: Launcher) -> None:
    """--follow prints what comes, down to a last line without an end, and exits when the job has ended."""
    process = start_waiting(launcher, "--rdzv-id", "followed", "--log-dir", "logs")
    command = [*CONTROL, "logs", "followed", "--follow"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as following:
        assert following.stdout is not None
        assert sorted(following.stdout.readline() for _ in range(4)) == [
            "[rank0 stderr] err of 0\n", "[rank0 stdout] out of 0\n",
            "[rank1 stderr] err of 1\n", "[rank1 stdout] out of 1\n",
        ]  # fmt: skip
        (launcher.folder / "end").touch()
        assert process.wait(timeout=60) == 0
        assert sorted(following.stdout.read().splitlines()) == [
            "[rank0 stdout] last words of 0", "[rank1 stdout] last words of 1",
        ]  # fmt: skip
        assert following.wait(timeout=60) == 0


def test_no_logs(launcher: Launcher) -> None:
    """A job that keeps no logs says so, and how it would."""
    start_waiting(launcher, "--rdzv-id", "unlogged")
    done = control("logs", "unlogged")
    assert done.returncode == 1
    assert "--log-dir" in done.stderr


@pytest.fixture
def pausable(launcher: Launcher) -> Callable[[str], None]:
    """A job on one device whose cut is where the test says; its id is `cut`."""
    (launcher.folder / "cut").write_text("acquiring\nrank 1: in cuCtxSynchronize, waits for rank 0\n")

    def move(state: str) -> None:
        (launcher.folder / "next").write_text(state)
        (launcher.folder / "next").rename(launcher.folder / "cut")

    launcher.program = [sys.executable, "-P", str(HERE / "pausable_run.py")]
    launcher.start(
        "--nproc-per-node", "2", "--devices", "1", "--rdzv-id", "cut", "--grace-seconds", "5",
        launcher.script(WAIT), backend="fake", CUT_FOLDER=str(launcher.folder), **SMALL,
    )  # fmt: skip
    wait_for(lambda: all((launcher.folder / f"up-{rank}").exists() for rank in range(2)), "the ranks")
    return move


def calls(launcher: Launcher) -> list[str]:
    """What the launcher asked of the cut."""
    path = launcher.folder / "calls"
    return path.read_text().split() if path.exists() else []


def start_pause(launcher: Launcher, *options: str) -> subprocess.Popen[str]:
    """A singularity-ctl that waits for a pause."""
    process = subprocess.Popen(
        [*CONTROL, "pause", "cut", *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    wait_for(lambda: calls(launcher), "the request")
    return process


Move = Callable[[str], None]


def test_pause_and_continue(launcher: Launcher, pausable: Move) -> None:
    """`pause` returns when the cut is there, `continue` when it is released; `status` shows each state."""
    process = start_pause(launcher)
    shown = status_of("cut")
    assert (shown["state"], shown["reached"]) == ("pausing", 1)
    assert shown["waiting"] == ["rank 1: in cuCtxSynchronize, waits for rank 0"]
    pausable("acquired")
    out, _ = process.communicate(timeout=60)
    assert (process.returncode, out.split(": ")[1]) == (0, "paused\n")
    assert status_of("cut")["state"] == "paused"
    done = control("continue", "cut", "--json")
    assert (done.returncode, json.loads(done.stdout)["message"]) == (0, "continued")
    assert status_of("cut")["state"] == "running"
    assert calls(launcher) == ["begin", "release"]
    (launcher.folder / "end").touch()
    assert launcher.started[0].wait(timeout=60) == 0


def test_pause_that_times_out(launcher: Launcher, pausable: Move) -> None:
    """Exit code 1 and the diagnosis; everything is released, and the job runs on to its end."""
    done = control("pause", "cut", "--timeout", "0.2")
    assert done.returncode == 1
    assert "timed out" in done.stderr
    assert "rank 1: in cuCtxSynchronize, waits for rank 0" in done.stderr
    assert calls(launcher) == ["begin", "release"]
    (launcher.folder / "end").touch()
    assert launcher.started[0].wait(timeout=60) == 0


def test_killed_ctl_leaves_the_pause(launcher: Launcher, pausable: Move) -> None:
    """The pause that a killed singularity-ctl asked for goes on; another can join and undo it."""
    process = start_pause(launcher)
    process.kill()
    process.communicate()
    joined = start_pause(launcher)
    pausable("acquired")
    assert joined.wait(timeout=60) == 0
    joined.communicate()
    assert calls(launcher) == ["begin"]
    assert control("continue", "cut").returncode == 0


def test_rank_that_dies_while_paused(launcher: Launcher, pausable: Move) -> None:
    """The job ends with that rank as root cause, the other is let go and ended, nothing is left."""
    pausable("acquired")
    assert control("pause", "cut").returncode == 0
    os.kill(rank_pid(launcher, 1), signal.SIGKILL)
    _, err = launcher.started[0].communicate(timeout=60)
    assert launcher.started[0].returncode == 137
    assert "root cause: rank 1" in err
    assert calls(launcher) == ["begin", "release"]
    assert launcher.leftovers() == []


def test_proxy_that_dies_while_pausing(launcher: Launcher, pausable: Move) -> None:
    """Whoever waits for the pause is told what ended the job."""
    process = start_pause(launcher)
    os.kill(proxy_pid(launcher, 0), signal.SIGKILL)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "the proxy of device 0" in err
    assert launcher.started[0].wait(timeout=60) == 137


def test_signal_while_paused(launcher: Launcher, pausable: Move) -> None:
    """SIGTERM to the launcher of a paused job lets the ranks go, so that they can heed it."""
    pausable("acquired")
    assert control("pause", "cut").returncode == 0
    launcher.started[0].terminate()
    assert launcher.started[0].wait(timeout=60) == 143
    assert calls(launcher) == ["begin", "release"]
