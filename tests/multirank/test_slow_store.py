"""A store that takes its time, or for ever, holds up nobody for longer than they want."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from singularity_core.checkpoint.store import Store

from ..launched import MARK, processes_with
from .endless_job import CONTROL, Job, agree
from .jobs import JOBS, finish
from .test_checkpoint_kills import control, undisturbed

pytestmark = [pytest.mark.usefixtures("movable"), pytest.mark.timeout(300)]

STALLING = [sys.executable, "-P", str(Path(__file__).parent / "stalling_store.py")]


class Stalled:
    """A job of two ranks, and its store, which takes nothing from `stall` on."""

    def __init__(self, folder: Path, *options: str, **environment: str) -> None:
        self.store, self._stall = folder / "store", folder / "stall"
        self.job = Job(
            folder / "job", 2, 2, "--box", *options, name=f"{folder.name}-{os.getpid()}",
            launcher=STALLING, env={"STALL": str(self._stall), **environment},
        )  # fmt: skip
        self.job.until(3)

    def stall(self) -> None:
        self._stall.touch()

    def fail(self) -> None:
        """Whoever waits gets an error."""
        self._stall.write_text("fail")

    def answer(self) -> None:
        self._stall.unlink()

    def begin(self, verb: str, doing: str = "storing") -> subprocess.Popen[str]:
        """The verb, once it waits for the store."""
        command = [str(CONTROL), verb, "--to", str(self.store), self.job.name]
        asked = subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.wait(lambda: self.doing() == doing, "it does not begin")
        return asked

    def doing(self) -> str | None:
        (status,) = json.loads(control("status", "--json", self.job.name).stdout)["jobs"]
        checkpoint = status["checkpoint"]
        return None if checkpoint is None else str(checkpoint["doing"])

    def moves(self) -> None:
        """It is on its way."""
        self.job.until(max(self.job.steps()) + 2)

    @staticmethod
    def wait(what: Callable[[], bool], why: str) -> None:
        deadline = time.monotonic() + 60
        while not what():
            assert time.monotonic() < deadline, why
            time.sleep(0.02)


@pytest.fixture
def wanted(tmp_path_factory: pytest.TempPathFactory) -> list[object]:
    """What the ranks of an undisturbed job read."""
    return undisturbed(tmp_path_factory.mktemp("quiet") / "job")


def test_a_checkpoint_is_stored_while_the_job_goes_on(tmp_path: Path, wanted: list[object]) -> None:
    """It stands still only while it is copied; that it is being stored is shown."""
    stalled = Stalled(tmp_path)
    stalled.stall()
    asked = stalled.begin("checkpoint")
    stalled.moves()
    assert stalled.doing() == "storing"
    stalled.answer()
    assert asked.communicate()[1] == ""
    assert asked.returncode == 0
    assert Store.open(stalled.store).verify() == []
    agree(stalled.job.stop(), wanted)


def test_a_preemption_that_waits_for_its_store_can_be_called_off(
    tmp_path: Path, wanted: list[object]
) -> None:
    """`continue` gives the job back at once, and nothing is in the store; the next checkpoint is refused
    until the store answers, and works then."""
    stalled = Stalled(tmp_path)
    stalled.stall()
    asked = stalled.begin("preempt")
    assert control("continue", stalled.job.name).returncode == 0
    assert "the job was asked to continue; the job goes on as before" in asked.communicate()[1]
    assert asked.returncode == 1
    stalled.moves()
    again = "checkpoint", "--to", str(stalled.store), stalled.job.name
    assert "still waits for its store" in control(*again).stderr
    stalled.answer()
    stalled.wait(lambda: control(*again).returncode == 0, "no checkpoint any more")
    assert len(Store.open(stalled.store).checkpoints()) == 1
    agree(stalled.job.stop(), wanted)


@pytest.mark.parametrize("verb", ["checkpoint", "preempt"])
@pytest.mark.parametrize(("doing", "spool"), [("storing", "1000000"), ("capturing", "0")])
def test_a_store_that_takes_nothing_is_given_up(
    verb: str, doing: str, spool: str, tmp_path: Path, wanted: list[object]
) -> None:
    """The job, which may stand still for it, goes on then: while files are copied that are too large to wait
    in memory, and afterwards."""
    stalled = Stalled(tmp_path, PATIENCE="1", SPOOL=spool)
    stalled.stall()
    asked = stalled.begin(verb, doing)
    assert "The store has taken nothing for 1 s" in asked.communicate()[1]
    stalled.moves()
    stalled.answer()
    agree(stalled.job.stop(), wanted)


def test_a_keeper_that_dies_while_a_store_does_not_answer(tmp_path: Path, wanted: list[object]) -> None:
    """Nobody stands still for ever because the one that held them, and would have let them go, is dead."""
    stalled = Stalled(tmp_path)
    stalled.stall()
    asked = stalled.begin("preempt")
    (keeper,) = [pid for pid, name in processes_with(MARK, JOBS.mark).items() if "host.keeper" in name]
    os.kill(keeper, signal.SIGKILL)
    stalled.fail()
    assert "goes on as before" in asked.communicate()[1]
    stalled.moves()
    stalled.answer()
    agree(stalled.job.stop(), wanted)


@pytest.mark.parametrize("verb", ["checkpoint", "preempt"])
def test_the_end_of_a_job_waits_for_no_store(verb: str, tmp_path: Path) -> None:
    """Two signals end it, whatever its store does; nothing is left, and the store is as it was."""
    stalled = Stalled(tmp_path)
    assert control("checkpoint", "--to", str(stalled.store), stalled.job.name).returncode == 0
    stalled.stall()
    asked = stalled.begin(verb)
    stalled.job.process.send_signal(signal.SIGTERM)
    stalled.job.process.send_signal(signal.SIGTERM)
    code, _, stderr = finish(stalled.job.process)
    assert code == 128 + signal.SIGTERM, stderr
    assert asked.wait(60) == 1
    assert JOBS.end() == []
    stalled.answer()
    opened = Store.open(stalled.store)
    assert len(opened.checkpoints()) == 1
    assert opened.verify() == []


def test_a_rank_that_fails_after_the_notice_is_not_resumed_here(tmp_path: Path) -> None:
    """Who gave the notice wants the devices: the job ends, as one that can be resumed."""
    stalled = Stalled(tmp_path, "--auto-resume", "--checkpoint-to", str(tmp_path / "store"))
    assert control("checkpoint", "--to", str(stalled.store), stalled.job.name).returncode == 0
    stalled.stall()
    asked = stalled.begin("checkpoint")
    stalled.job.process.send_signal(signal.SIGTERM)
    (status,) = json.loads(control("status", "--json", stalled.job.name).stdout)["jobs"]
    os.kill(status["ranks"][0]["pid"], signal.SIGKILL)
    code, _, stderr = finish(stalled.job.process)
    assert code == 85, stderr
    assert "not resumed, for it was to end" in stderr
    assert asked.wait(60) == 1
