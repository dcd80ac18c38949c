"""The states of pause and continue, explored over all short sequences of what can happen."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from singularity_core.barrier.interface import CutError, CutRefusedError, CutState, Progress
from singularity_core.launcher.pausing import RELEASE_SECONDS, Outcome, PauseState, Pausing


class FakeCut:
    """Does what the test says, and checks that it is used as its contract says."""

    def __init__(self) -> None:
        self.held = False
        """Between begin and release."""
        self.next = Progress(CutState.OPEN)
        self.begun = 0
        self.broken = ""

    def check(self) -> None:
        """It can stop them."""

    def begin(self, timeout: float) -> None:
        assert not self.held, "begun twice"
        assert timeout > 0
        if self.broken == "refuses":
            raise CutRefusedError("no device can rest")
        self.held = True
        self.begun += 1
        if self.broken == "begin":
            raise RuntimeError("no board")

    def poll(self) -> Progress:
        if self.broken == "poll":
            raise RuntimeError("torn board")
        return self.next

    def waits(self, seconds: float) -> list[str]:
        return [f"rank 1 waits for {seconds} s"]

    def release(self) -> None:
        assert self.held, "released what was not begun"
        self.held = False
        if self.broken == "release":
            raise RuntimeError("no board")

    def hand_over(self) -> None:
        raise AssertionError("nobody resizes")

    def handed_over(self) -> bool:
        raise AssertionError("nobody resizes")

    def freeze_ahead(self) -> None:
        raise AssertionError("nobody resizes")

    def close(self) -> None:
        """It has nothing."""


class Job:
    """A pausable job, what was asked, and what was answered."""

    def __init__(self) -> None:
        self.cut = FakeCut()
        self.pausing = Pausing("starting")
        self.pausing.enable(lambda: self.cut)
        self.now = 0.0
        self.answers: list[list[Outcome]] = []

    def asker(self) -> Callable[[Outcome], None]:
        """A callback whose answers are kept."""
        self.answers.append([])
        return self.answers[-1].append

    def pause(self, timeout: float = 10.0) -> None:
        """Somebody asks for a pause."""
        self.pausing.pause(timeout, self.now, self.asker())

    def resume(self) -> None:
        """Somebody asks to go on."""
        self.pausing.resume(self.now, self.asker())

    def look(self, state: CutState, *waiting: str) -> None:
        """A tick that sees the cut in `state`."""
        self.cut.next = Progress(state, reached=1, waiting=list(waiting))
        self.pausing.tick(self.now)

    def late(self) -> None:
        """Time passes any deadline, and nothing has happened."""
        self.now += 1000.0
        self.look(CutState.ACQUIRING, "rank 2: sleeps")

    @property
    def said(self) -> list[tuple[bool, str]]:
        """The only answer of each asker so far."""
        return [(outcome.ok, outcome.message) for (outcome,) in self.answers]


def test_pause_and_continue() -> None:
    """A pause is done when the cut is acquired, and a continue when it is released; not before."""
    job = Job()
    job.pause()
    job.look(CutState.ACQUIRING)
    assert (job.pausing.state, job.answers) == (PauseState.PAUSING, [[]])
    job.look(CutState.ACQUIRED)
    assert (job.pausing.state, job.said) == (PauseState.PAUSED, [(True, "paused")])
    assert job.pausing.next_tick() is None
    job.resume()
    assert not job.cut.held
    job.look(CutState.RELEASING)
    assert job.pausing.state is PauseState.CONTINUING
    job.look(CutState.OPEN)
    assert (job.pausing.state, job.said[1]) == (PauseState.RUNNING, (True, "continued"))


def test_a_refused_pause_leaves_the_job_running() -> None:
    """Where no cut is possible whoever asks is told why at once, each time, and nothing is released."""
    job = Job()
    job.cut.broken = "refuses"
    for asked in (1, 2):
        job.pause()
        assert job.said == [(False, "no device can rest")] * asked
        assert (job.pausing.state, job.pausing.next_tick()) == (PauseState.RUNNING, None)
    job.resume()
    assert job.said[2] == (True, "runs already")
    job.cut.broken = ""
    job.pause()
    job.look(CutState.ACQUIRED)
    assert job.said[3] == (True, "paused")


def test_time_out_releases_and_tells_who_waits() -> None:
    """A pause that takes too long is undone, and its diagnosis is handed to whoever asked."""
    job = Job()
    job.pause(5.0)
    job.now = 4.9
    job.look(CutState.ACQUIRING, "rank 3: sleeps")
    assert job.answers == [[]]
    job.now = 5.0
    job.look(CutState.ACQUIRING, "rank 3: cuStreamSynchronize, waits for rank 1")
    (outcome,) = job.answers[0]
    assert not outcome.ok
    assert "timed out" in outcome.message
    assert outcome.waiting == ["rank 3: cuStreamSynchronize, waits for rank 1"]
    assert not job.cut.held
    job.look(CutState.OPEN)
    assert job.pausing.state is PauseState.RUNNING


def test_a_cut_at_the_last_moment_counts() -> None:
    """What is acquired when the time is over is acquired."""
    job = Job()
    job.pause(5.0)
    job.now = 5.0
    job.look(CutState.ACQUIRED)
    assert job.said == [(True, "paused")]


def test_deadlock_ends_the_pause_at_once() -> None:
    """A cut that cannot be had is released without waiting for the time-out, with its diagnosis."""
    job = Job()
    job.pause()
    job.look(CutState.FAILED, "ranks 0 and 1 wait for each other")
    (outcome,) = job.answers[0]
    assert (outcome.ok, outcome.waiting) == (False, ["ranks 0 and 1 wait for each other"])
    assert not job.cut.held


def test_release_that_takes_too_long() -> None:
    """Whoever waits for it is told; the job is continuing until all are released."""
    job = Job()
    job.pause()
    job.resume()
    job.now += RELEASE_SECONDS
    job.look(CutState.RELEASING)
    assert job.answers[1][0].ok is False
    assert job.pausing.state is PauseState.CONTINUING
    job.resume()
    job.look(CutState.OPEN)
    assert job.said[2] == (True, "continued")


def test_second_pause_joins_the_first() -> None:
    """Two who ask get the same pause; a third, when it is there, is told at once."""
    job = Job()
    job.pause()
    job.pause()
    job.look(CutState.ACQUIRED)
    job.pause()
    assert job.said == [(True, "paused"), (True, "paused"), (True, "paused already")]
    assert job.cut.begun == 1


def test_continue_cancels_a_pause_under_way() -> None:
    """Whoever waited for the pause is told; whoever continued is told when all is released."""
    job = Job()
    job.pause()
    job.resume()
    assert job.answers[0][0].ok is False
    assert "asked to continue" in job.answers[0][0].message
    assert job.answers[1] == []
    job.look(CutState.OPEN)
    assert job.said[1] == (True, "continued")


def test_pause_while_continuing_comes_after_it() -> None:
    """A pause asked for during the release begins once that is over."""
    job = Job()
    job.pause()
    job.resume()
    job.pause()
    job.look(CutState.RELEASING)
    assert job.cut.begun == 1
    job.look(CutState.OPEN)
    assert (job.cut.begun, job.pausing.state) == (2, PauseState.PAUSING)
    job.look(CutState.ACQUIRED)
    assert job.said[2] == (True, "paused")


def test_continue_while_running_is_done_already() -> None:
    """It succeeds, and touches nothing."""
    job = Job()
    job.resume()
    assert job.said == [(True, "runs already")]
    assert job.cut.begun == 0


def test_end_of_the_job_releases() -> None:
    """When the job ends while paused, the ranks are let go, so that they can heed their signal, and later
    pauses are refused with the reason."""
    job = Job()
    job.pause()
    job.look(CutState.ACQUIRED)
    job.pausing.abandon("the job ends: rank 1 exited with code 3", job.now)
    assert not job.cut.held
    job.look(CutState.OPEN)
    job.pause()
    assert job.said[-1] == (False, "the job ends: rank 1 exited with code 3")


@pytest.mark.parametrize("call", ["begin", "poll", "release"])
def test_broken_coordinator_costs_the_pause_only(call: str, capfd: pytest.CaptureFixture[str]) -> None:
    """An exception of the coordinator fails the request that it concerns, and is told once."""
    job = Job()
    job.cut.broken = call
    job.pause()
    job.look(CutState.ACQUIRED)
    if job.pausing.state is PauseState.PAUSED:
        job.resume()
    for _ in range(5):
        job.look(CutState.OPEN)
    assert job.pausing.state is PauseState.RUNNING
    assert capfd.readouterr().err.count("Traceback") <= 2
    if call != "release":
        assert job.answers[0][0].ok is False


def test_cut_that_cannot_be_made(capfd: pytest.CaptureFixture[str]) -> None:
    """The pause fails with the reason, and a later one tries again."""
    pausing, said, cut = Pausing("starting"), list[Outcome](), FakeCut()
    made: list[FakeCut] = []
    pausing.enable(lambda: made[0])
    pausing.pause(1.0, 0.0, said.append)
    assert "IndexError" in said[0].message
    assert "Traceback" in capfd.readouterr().err
    made.append(cut)
    pausing.pause(1.0, 0.0, said.append)
    assert cut.held


def test_without_a_cut() -> None:
    """A job that nothing can stop says why."""
    pausing, said = Pausing("no proxies"), list[Outcome]()
    pausing.pause(1.0, 0.0, said.append)
    pausing.resume(0.0, said.append)
    assert [(outcome.ok, outcome.message) for outcome in said] == [
        (False, "no proxies"),
        (True, "runs already"),
    ]


EVENTS: dict[str, Callable[[Job], None]] = {
    "pause": Job.pause,
    "continue": Job.resume,
    "late": Job.late,
    **{state.name: lambda job, state=state: job.look(state) for state in CutState},  # type: ignore[misc]
}


def test_all_short_sequences() -> None:
    """Whatever happens in whatever order: the cut is used as its contract says (FakeCut asserts it), it is
    held exactly while the job is pausing or paused, nobody is told twice, and at the end everybody was
    told."""
    for events in itertools.product(EVENTS, repeat=5):
        job = Job()
        for event in events:
            EVENTS[event](job)
            stopping = job.pausing.state in (PauseState.PAUSING, PauseState.PAUSED)
            assert job.cut.held == stopping, events
            assert all(len(told) <= 1 for told in job.answers), events
            assert (job.pausing.next_tick() is None) == (
                job.pausing.state in (PauseState.RUNNING, PauseState.PAUSED)
            ), events
        job.pausing.abandon("over", job.now)
        assert all(len(told) == 1 for told in job.answers), events
        assert not job.cut.held, events


def test_what_cannot_be_looked_at_is_told_once(capfd: pytest.CaptureFixture[str]) -> None:
    """A cut that says why it cannot work is no fault of the launcher's: one line, not one for each status,
    and no traceback."""

    def make() -> FakeCut:
        raise CutError("the board is gone")

    pausing = Pausing("starting")
    pausing.enable(make)
    assert [pausing.waiting() for _ in range(3)] == [["the board is gone"]] * 3
    assert capfd.readouterr().err.splitlines() == [
        "singularity-run: the job cannot be looked at: the board is gone"
    ]
