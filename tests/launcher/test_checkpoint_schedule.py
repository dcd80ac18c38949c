"""When checkpoints are taken by themselves."""

from __future__ import annotations

import click
import pytest

from singularity_core.launcher.checkpoint_options import checkpoint_settings, store_place
from singularity_core.launcher.checkpoint_schedule import Schedule
from singularity_core.launcher.checkpointing import CheckpointState
from singularity_core.launcher.pausing import PauseState
from singularity_core.launcher.seconds import Duration
from singularity_core.launcher.settings import CheckpointSettings

from .test_checkpointing import Job


class Clock:
    """A job with a schedule, and time that passes when it is told to."""

    def __init__(self, settings: CheckpointSettings | None) -> None:
        self.job = Job()
        self.failed = 0
        self.schedule = Schedule(self.job.pausing, self.job.checkpointing, settings, self._fail)
        self.schedule.begin(0.0)

    def _fail(self) -> None:
        self.failed += 1

    def turn(self, seconds: float = 0.0) -> None:
        """A turn of the launcher's loop, so much later, in which everybody is where they are to be."""
        self.job.now += seconds
        self.job.go()
        self.schedule.tick(self.job.now)

    def wait(self) -> None:
        """Turns until there is nothing more to do."""
        for _ in range(10):
            self.turn()


EVERY = CheckpointSettings("/store", every=60.0, keep=2)


def test_one_is_taken_each_time_that_has_passed(capfd: pytest.CaptureFixture[str]) -> None:
    """Not before, once each, and with what is said of each."""
    clock = Clock(EVERY)
    assert clock.schedule.next_tick(20.0) == 40.0
    clock.turn(59.0)
    assert not clock.job.checkpointing.busy
    for _ in range(3):
        clock.turn(60.0)
        assert clock.job.checkpointing.state is CheckpointState.PREPARING
        clock.wait()
        assert not clock.job.checkpointing.busy
    assert capfd.readouterr().err == "singularity-run: in the store\n" * 3


def test_one_that_fails_is_told_and_the_next_one_is_taken(capfd: pytest.CaptureFixture[str]) -> None:
    """The job does not end of it."""
    clock = Clock(EVERY)
    clock.turn(60.0)
    clock.job.fail()
    clock.wait()
    assert "no checkpoint: it went wrong" in capfd.readouterr().err
    clock.turn(60.0)
    clock.wait()
    assert (capfd.readouterr().err, clock.failed) == ("singularity-run: in the store\n", 0)


def test_a_slow_one_is_not_joined_by_the_next() -> None:
    """While one is stored, no other begins, and the schedule does not spin."""
    clock = Clock(EVERY)
    clock.turn(60.0)
    for _ in range(5):
        clock.job.go()
    clock.job.steps.good = False
    clock.job.now += 120.0
    clock.job.tick()
    clock.schedule.tick(clock.job.now)
    assert clock.job.checkpointing.state is CheckpointState.STORING
    wait = clock.schedule.next_tick(clock.job.now)
    assert wait is not None
    assert wait > 0.0


def test_of_a_paused_job_none_is_taken() -> None:
    """The one that is due is taken when it goes on, and the schedule does not spin until then."""
    clock = Clock(EVERY)
    clock.job.pause()
    clock.turn()
    clock.turn(60.0)
    assert not clock.job.checkpointing.busy
    wait = clock.schedule.next_tick(clock.job.now)
    assert wait is not None
    assert wait > 0.0
    clock.job.go_on()
    clock.wait()
    assert clock.job.steps.committed


def _pause_in_vain(job: Job) -> None:
    """Not all of its ranks come to one point."""
    job.pause()
    job.look()
    assert job.pausing.state is PauseState.PAUSING


def test_a_notice_preempts_the_job() -> None:
    """Also one that is paused, or about to be, or is just being checkpointed; a second notice is for others
    to obey."""
    for before in (lambda job: None, Job.pause, Job.checkpoint, _pause_in_vain):
        clock = Clock(CheckpointSettings("/store"))
        before(clock.job)
        if before is not _pause_in_vain:
            clock.job.go()
        assert clock.schedule.notice()
        assert not clock.schedule.notice()
        for _ in range(30):
            clock.turn()
        assert (clock.job.steps.gone, clock.failed) == (True, 0)


def test_a_notice_that_cannot_be_obeyed_ends_the_job(capfd: pytest.CaptureFixture[str]) -> None:
    """Whoever gave it wants the devices: that no checkpoint could be taken is told."""
    clock = Clock(CheckpointSettings("/store"))
    assert clock.schedule.notice()
    clock.turn()
    clock.job.fail()
    clock.wait()
    assert (clock.failed, clock.job.pausing.state) == (1, PauseState.RUNNING)
    assert "no checkpoint: it went wrong" in capfd.readouterr().err


def test_without_a_store_nothing_happens_by_itself() -> None:
    """A signal is a signal then."""
    clock = Clock(None)
    assert not clock.schedule.notice()
    assert clock.schedule.next_tick(0.0) is None


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90.0), ("0.5", 0.5), ("45s", 45.0), ("30m", 1800.0), ("1h30m", 5400.0), ("2d", 172800.0)],
)
def test_durations(text: str, seconds: float) -> None:
    """They are written as people write them."""
    assert Duration().convert(text, None, None) == seconds


@pytest.mark.parametrize("text", ["", "0", "m", "-1", "1x", "30m1h", "nan", "inf", "1e3", "٣"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    """By name, with how it is to be written."""
    with pytest.raises(click.BadParameter, match="write 90"):
        Duration().convert(text, None, None)


def test_options_that_need_a_store() -> None:
    """Each of them is named with what is missing."""
    nothing = {"checkpoint_to": None, "checkpoint_every": None, "keep": None, "auto_resume": False}
    assert checkpoint_settings(nothing) is None
    for name, value in (("checkpoint_every", 60.0), ("keep", 3), ("auto_resume", True)):
        with pytest.raises(click.UsageError, match=f"--{name.replace('_', '-')}.*--checkpoint-to"):
            checkpoint_settings({**nothing, name: value})
    assert store_place("s3://bucket/jobs") == "s3://bucket/jobs"
    assert store_place("jobs").startswith("/")
