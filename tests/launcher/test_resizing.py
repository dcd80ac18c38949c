"""The states of a resize: whatever happens in whatever order, one fleet of proxies has the job's ranks."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from singularity_core.barrier.interface import CutError, CutState, Progress
from singularity_core.launcher.errors import LaunchError
from singularity_core.launcher.pausing import Outcome, PauseState, Pausing
from singularity_core.launcher.resizing import ResizeState, Resizing

from .test_pausing import FakeCut


class Steps:
    """Does what the test says, and checks that it is used as `ResizeSteps` says."""

    def __init__(self, old: FakeCut) -> None:
        self.old, self.new = old, FakeCut()
        self.fleet, self.waiting, self.retiring = "old", False, False
        self.told: list[str] = []
        """What the waiting proxies and the old ones were told in this resize."""
        self.good = True
        """Whether all who are asked are done."""
        self.fails: type[Exception] | None = None

    def _may_fail(self) -> None:
        if self.fails is not None:
            fails, self.fails = self.fails, None
            raise fails("it went wrong")

    def plan(self, devices: int) -> str:
        self._may_fail()
        return "" if devices == 4 else f"on {devices} devices"

    def prepare(self) -> None:
        assert not self.waiting, "two new fleets"
        self.waiting, self.told, self.new = True, [], FakeCut()
        self.new.held = True
        self._may_fail()

    def prepared(self) -> bool:
        self._may_fail()
        return self.good

    def write(self) -> None:
        assert self.old.held, "sessions are written while ranks run"
        self.told.append("write")
        self._may_fail()

    def written(self) -> bool:
        self._may_fail()
        return self.good

    def take_over(self) -> None:
        assert self.told == ["write"]
        assert self.old.held
        self.told.append("take over")
        self._may_fail()

    def taken_over(self) -> bool:
        self._may_fail()
        return self.good

    def commit(self) -> FakeCut:
        assert self.told == ["write", "take over"]
        assert self.old.held
        assert self.waiting
        self.fleet, self.waiting, self.retiring = "new", False, True
        return self.new

    def retire(self) -> None:
        assert not self.new.held, "nobody is left that serves the ranks"
        self.retiring = False

    def abandon(self) -> None:
        assert self.fleet == "old"
        self.waiting = False


class Job:
    """A resizable job, what was asked, and what was answered."""

    def __init__(self) -> None:
        self.cut = FakeCut()
        self.pausing = Pausing("starting")
        self.pausing.enable(lambda: self.cut)
        self.steps = Steps(self.cut)
        self.resizing = Resizing(self.pausing, self.steps)
        self.now = 0.0
        self.answers: list[list[Outcome]] = []

    def asker(self) -> Callable[[Outcome], None]:
        """A callback whose answers are kept."""
        self.answers.append([])
        return self.answers[-1].append

    def resize(self, devices: int = 2) -> None:
        """Somebody asks for another number of devices."""
        self.resizing.resize(devices, 10.0, self.now, self.asker())

    def pause(self) -> None:
        """Somebody asks for a pause."""
        self.pausing.pause(10.0, self.now, self.asker())

    def go_on(self) -> None:
        """Somebody asks to go on."""
        self.pausing.resume(self.now, self.asker())

    def tick(self) -> None:
        """Time for everybody to look."""
        self.pausing.tick(self.now)
        self.resizing.tick(self.now)

    def go(self) -> None:
        """Everybody is where they are to be."""
        self.steps.good = True
        for cut in (self.cut, self.steps.new):
            cut.next = Progress(CutState.ACQUIRED if cut.held else CutState.OPEN)
        self.tick()

    def look(self) -> None:
        """Nobody is yet."""
        self.steps.good = False
        for cut in (self.cut, self.steps.new):
            cut.next = Progress(CutState.ACQUIRING if cut.held else CutState.RELEASING)
        self.tick()

    def late(self) -> None:
        """Time passes any deadline."""
        self.now += 10_000.0
        self.look()

    def fail(self, error: type[Exception] = LaunchError) -> None:
        """The next step goes wrong."""
        self.steps.fails = error
        self.go()

    def deadlock(self) -> None:
        """No cut can be had."""
        self.cut.next = Progress(CutState.FAILED, waiting=["rank 0 waits for rank 1"])
        self.tick()

    def end(self) -> None:
        """The job ends."""
        self.resizing.abandon("it ends")
        self.pausing.abandon("it ends", self.now)

    def check(self) -> None:
        """What always holds."""
        assert all(len(told) <= 1 for told in self.answers)
        if self.steps.fleet == "new":
            assert self.cut.held, "the ranks belong to two fleets"
        else:
            assert self.steps.new.held or not self.steps.waiting, "the ranks belong to two fleets"
        if self.resizing.state is ResizeState.IDLE:
            assert not self.steps.waiting, "new proxies were left behind"


def test_a_resize_in_its_steps(capfd: pytest.CaptureFixture[str]) -> None:
    """New proxies start while the job runs; the ranks stop, are written down, taken over and let go; only
    then whoever asked is told, and the old proxies end."""
    job = Job()
    job.resize()
    seen = [(job.resizing.state, job.pausing.state)]
    for _ in range(5):
        assert job.answers == [[]]
        job.go()
        seen.append((job.resizing.state, job.pausing.state))
    assert seen == [
        (ResizeState.PREPARING, PauseState.RUNNING),
        (ResizeState.CUTTING, PauseState.PAUSING),
        (ResizeState.WRITING, PauseState.PAUSED),
        (ResizeState.TAKING_OVER, PauseState.PAUSED),
        (ResizeState.RELEASING, PauseState.CONTINUING),
        (ResizeState.IDLE, PauseState.RUNNING),
    ]
    ((outcome,),) = job.answers
    assert (outcome.ok, outcome.message) == (True, "on 2 devices")
    assert (job.steps.fleet, job.steps.retiring) == ("new", False)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("error", [LaunchError, CutError, RuntimeError])
@pytest.mark.parametrize("steps", range(5))
def test_whatever_goes_wrong_the_job_goes_on(
    steps: int, error: type[Exception], capfd: pytest.CaptureFixture[str]
) -> None:
    """An error in any step before the new proxies have the ranks is told, with its reason, and the old ones
    go on; a fault of the launcher's own is told in full as well."""
    job = Job()
    if steps:
        job.resize()
        for _ in range(steps - 1):
            job.go()
        job.fail(error)
    else:
        job.steps.fails = LaunchError
        job.resize()
    if steps == 2:  # while ranks come to the cut no step is taken that could go wrong; the next one is
        job.go()
    job.go()
    job.go()
    ((outcome,),) = job.answers
    assert not outcome.ok
    assert "it went wrong" in outcome.message
    assert (job.steps.fleet, job.pausing.state, job.cut.held) == ("old", PauseState.RUNNING, False)
    assert ("Traceback" in capfd.readouterr().err) == (error is RuntimeError and steps > 0)
    job.resize()
    for _ in range(5):
        job.go()
    assert job.answers[1][0].ok
    assert job.steps.fleet == "new"


@pytest.mark.parametrize("steps", range(4))
def test_whoever_is_late_ends_the_resize(steps: int) -> None:
    """Each wait has an end; then the job goes on as before, and the answer says what was waited for."""
    job = Job()
    job.resize()
    for _ in range(steps):
        job.go()
    job.late()
    for _ in range(2):
        job.go()
    ((outcome,),) = job.answers
    assert not outcome.ok
    assert "goes on" in outcome.message
    assert (job.steps.fleet, job.pausing.state) == ("old", PauseState.RUNNING)


def test_a_long_cut_takes_nothing_from_the_time_to_write() -> None:
    """Deadlines count from when their step begins."""
    job = Job()
    job.resizing.resize(2, 50_000.0, job.now, job.asker())
    job.go()
    job.late()
    for _ in range(4):
        job.go()
    assert job.answers[0][0].ok


def test_meanwhile_nobody_pauses_or_continues() -> None:
    """Until it is over, a pause, a continue and another resize are refused with the reason."""
    job = Job()
    job.resize()
    for step in range(4):
        job.pause()
        if step:
            job.go_on()
        job.resize()
        job.go()
    job.go()
    assert job.answers[0][0].ok
    refused = [outcome for (outcome,) in job.answers[1:]]
    assert all(not outcome.ok and "resized" in outcome.message for outcome in refused)


def test_a_paused_job_is_not_resized() -> None:
    """It says what to do first."""
    job = Job()
    job.pause()
    job.go()
    job.resize()
    assert "singularity-ctl continue" in job.answers[1][0].message
    assert job.pausing.state is PauseState.PAUSED


def test_what_is_so_already_is_done() -> None:
    """Nothing is touched."""
    job = Job()
    job.resize(4)
    assert (job.answers[0][0].ok, job.cut.begun) == (True, 0)


def test_a_cut_that_cannot_be_had_is_explained() -> None:
    """Who asked is told who waits for whom, as whoever asks for a pause is."""
    job = Job()
    job.resize()
    job.go()
    job.deadlock()
    job.go()
    ((outcome,),) = job.answers
    assert (outcome.ok, outcome.waiting) == (False, ["rank 0 waits for rank 1"])
    job.check()
    assert job.pausing.state is PauseState.RUNNING


EVENTS: dict[str, Callable[[Job], None]] = {
    "resize": Job.resize,
    "resize to 4": lambda job: job.resize(4),
    "pause": Job.pause,
    "continue": Job.go_on,
    "go": Job.go,
    "look": Job.look,
    "late": Job.late,
    "fail": Job.fail,
    "deadlock": Job.deadlock,
    "end": Job.end,
}


def play(events: tuple[str, ...] | list[str]) -> None:
    job = Job()
    for event in events:
        EVENTS[event](job)
        job.check()
        if event == "end":
            break
        if job.steps.fleet == "new" and job.resizing.state is ResizeState.IDLE:
            return  # the next one would be the same, of another fleet
    job.end()
    job.check()
    assert all(len(told) == 1 for told in job.answers)
    assert not (job.cut.held and job.steps.fleet == "old"), "the ranks cannot heed their signal"
    assert not (job.steps.new.held and job.steps.fleet == "new"), "the ranks cannot heed their signal"


def test_any_three_events_at_any_step() -> None:
    """However far a resize is, whatever three things happen: the ranks have one fleet, whoever asked is told
    once, and no proxies are left over."""
    for steps, events in itertools.product(range(6), itertools.product(EVENTS, repeat=3)):
        play(["resize", *["go"] * steps, *events, "go", "go"])


@given(events=st.lists(st.sampled_from(sorted(EVENTS)), max_size=20))
def test_any_events(events: list[str]) -> None:
    """The same for any sequence."""
    play(events)
