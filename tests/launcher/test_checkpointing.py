"""The states of a checkpoint: whatever happens in whatever order, the job runs on, unless it was preempted
and its checkpoint is committed."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from singularity_core.barrier.interface import CutError, CutState, Progress
from singularity_core.checkpoint.errors import StoreUnavailableError
from singularity_core.launcher.checkpointing import Checkpointing, CheckpointOrder, CheckpointState
from singularity_core.launcher.errors import LaunchError
from singularity_core.launcher.pausing import Outcome, PauseState, Pausing

from .test_pausing import FakeCut

STATES = CheckpointState


class Steps:
    """Does what the test says, and checks that it is used as `CheckpointSteps` says."""

    def __init__(self, cut: FakeCut) -> None:
        self.cut = cut
        self.good = True
        """Whether what is under way is done."""
        self.fails: Exception | None = None
        self.still = self.committed = self.gone = self.begun = False
        """The tree stands still; the checkpoint is in the store; the processes are ended; there is something
        to undo."""
        self.preempt = False

    def _may_fail(self) -> bool:
        if self.fails is not None:
            fails, self.fails = self.fails, None
            raise fails
        return self.good

    def look(self, order: CheckpointOrder) -> None:
        self.committed = True  # `report` may be asked

    def prepare(self, order: CheckpointOrder) -> None:
        assert not self.begun, "two at once"
        self.begun, self.preempt, self.committed = True, order.preempt, False
        self._may_fail()

    def prepared(self) -> bool:
        return self._may_fail()

    def write(self) -> None:
        assert self.cut.held, "sessions are written while ranks run"
        self._may_fail()

    def written(self) -> bool:
        return self._may_fail()

    def capture(self) -> None:
        assert self.cut.held
        self.still = True
        self._may_fail()

    def captured(self) -> bool:
        done = self._may_fail()
        self.still = not done or self.preempt
        return done

    def store(self) -> None:
        assert self.still == self.preempt
        self._may_fail()

    def stored(self) -> bool:
        done = self._may_fail()
        self.committed |= done
        self.begun &= not done or self.preempt
        return done

    def end(self) -> None:
        assert self.committed, "its work is lost"
        assert self.still
        self.gone = True

    def ended(self) -> bool:
        done = self._may_fail()
        self.begun &= not done
        return done

    def report(self) -> str:
        assert self.committed
        return "in the store"

    def undo(self) -> None:
        self.still = self.begun = False


class Job:
    """A job, what was asked, and what was answered."""

    def __init__(self) -> None:
        self.cut = FakeCut()
        self.pausing = Pausing("starting")
        self.pausing.enable(lambda: self.cut)
        self.steps = Steps(self.cut)
        self.checkpointing = Checkpointing(self.pausing, self.steps)
        self.now = 0.0
        self.answers: list[list[Outcome]] = []

    def asker(self) -> Callable[[Outcome], None]:
        """A callback whose answers are kept."""
        self.answers.append([])
        return self.answers[-1].append

    def checkpoint(self) -> None:
        """Somebody asks for one."""
        self.checkpointing.checkpoint(CheckpointOrder("/store", 10.0), self.now, self.asker())

    def preempt(self) -> None:
        """Somebody wants the devices."""
        self.checkpointing.checkpoint(CheckpointOrder("/store", 10.0, preempt=True), self.now, self.asker())

    def pause(self) -> None:
        """Somebody asks for a pause."""
        self.pausing.pause(10.0, self.now, self.asker())

    def go_on(self) -> None:
        """Somebody asks to go on."""
        self.pausing.resume(self.now, self.asker())

    def tick(self) -> None:
        """Time for everybody to look."""
        self.pausing.tick(self.now)
        self.checkpointing.tick(self.now)

    def go(self) -> None:
        """Everybody is where they are to be."""
        self.steps.good = True
        self.cut.next = Progress(CutState.ACQUIRED if self.cut.held else CutState.OPEN)
        self.tick()

    def look(self) -> None:
        """Nobody is yet."""
        self.steps.good = False
        self.cut.next = Progress(CutState.ACQUIRING if self.cut.held else CutState.RELEASING)
        self.tick()

    def late(self) -> None:
        """Time passes any deadline."""
        self.now += 10_000.0
        self.look()

    def fail(self, error: Exception | None = None) -> None:
        """The next step goes wrong."""
        self.steps.fails = error or LaunchError("it went wrong")
        self.go()

    def deadlock(self) -> None:
        """No cut can be had."""
        self.cut.next = Progress(CutState.FAILED, waiting=["rank 0 waits for rank 1"])
        self.tick()

    def end(self) -> None:
        """The job ends."""
        self.checkpointing.abandon("it ends")
        self.pausing.abandon("it ends", self.now)

    def check(self) -> None:
        """What always holds."""
        assert all(len(told) <= 1 for told in self.answers)
        assert not self.steps.gone or self.steps.committed
        if not self.checkpointing.busy and not self.steps.gone:
            assert not self.steps.still, "the job's processes stand still for ever"
            assert not self.steps.begun, "something was left behind"


def states_of(job: Job, steps: int) -> list[tuple[CheckpointState, PauseState]]:
    seen = [(job.checkpointing.state, job.pausing.state)]
    for _ in range(steps):
        assert job.answers == [[]]
        job.go()
        seen.append((job.checkpointing.state, job.pausing.state))
    return seen


def test_a_checkpoint_in_its_steps() -> None:
    """It is prepared while the job runs, copied while it stands at the cut, and stored when it runs again."""
    job = Job()
    job.checkpoint()
    assert states_of(job, 6) == [
        (STATES.PREPARING, PauseState.RUNNING),
        (STATES.CUTTING, PauseState.PAUSING),
        (STATES.WRITING, PauseState.PAUSED),
        (STATES.CAPTURING, PauseState.PAUSED),
        (STATES.RELEASING, PauseState.CONTINUING),
        (STATES.STORING, PauseState.RUNNING),
        (STATES.IDLE, PauseState.RUNNING),
    ]
    ((outcome,),) = job.answers
    assert (outcome.ok, outcome.message) == (True, "in the store")
    assert (job.steps.committed, job.steps.gone) == (True, False)


def test_a_preemption_in_its_steps() -> None:
    """The job stands still until its checkpoint is committed, and is ended then."""
    job = Job()
    job.preempt()
    assert states_of(job, 6) == [
        (STATES.PREPARING, PauseState.RUNNING),
        (STATES.CUTTING, PauseState.PAUSING),
        (STATES.WRITING, PauseState.PAUSED),
        (STATES.CAPTURING, PauseState.PAUSED),
        (STATES.STORING, PauseState.PAUSED),
        (STATES.ENDING, PauseState.PAUSED),
        (STATES.IDLE, PauseState.PAUSED),
    ]
    assert job.answers[0][0].ok
    assert job.steps.gone


@pytest.mark.parametrize("kind", [Job.checkpoint, Job.preempt])
@pytest.mark.parametrize(
    "error", [LaunchError("it went wrong"), CutError("it went wrong"), RuntimeError("it went wrong"),
              StoreUnavailableError("it went wrong.", remedy="Mend it.")],
)  # fmt: skip
@pytest.mark.parametrize("steps", range(6))
def test_whatever_goes_wrong_the_job_goes_on(
    kind: Callable[[Job], None], error: Exception, steps: int, capfd: pytest.CaptureFixture[str]
) -> None:
    """An error in any step before the commit is told with its reason, the job goes on, and the next
    checkpoint works; a fault of the launcher's own is told in full."""
    job = Job()
    job.steps.fails = error if steps == 0 else None
    kind(job)
    for _ in range(steps - 1):
        job.go()
    if steps:
        job.fail(error)
    for _ in range(3):
        job.go()
    ((outcome,),) = job.answers
    assert not outcome.ok
    assert "it went wrong" in outcome.message
    assert (job.pausing.state, job.cut.held) == (PauseState.RUNNING, False)
    assert ("Traceback" in capfd.readouterr().err) == isinstance(error, RuntimeError)
    job.check()
    job.checkpoint()
    for _ in range(6):
        job.go()
    assert job.answers[1][0].ok


def test_a_stored_checkpoint_does_not_hold_up_the_job() -> None:
    """While a checkpoint is stored the job can be paused; another checkpoint is refused meanwhile."""
    job = Job()
    job.checkpoint()
    for _ in range(5):
        job.go()
    assert job.checkpointing.state is STATES.STORING
    job.pause()
    job.steps.good = False
    job.cut.next = Progress(CutState.ACQUIRED)
    job.tick()
    assert job.answers[1][0].ok
    job.checkpoint()
    assert "being checkpointed" in job.answers[2][0].message
    job.go()
    assert job.answers[0][0].ok


def test_a_paused_job_is_copied_where_it_stands() -> None:
    """It stays paused, also when something goes wrong, until somebody lets it go on."""
    job = Job()
    job.pause()
    job.go()
    job.checkpoint()
    job.go_on()
    assert "being checkpointed" in job.answers[2][0].message
    for _ in range(5):
        job.go()
    assert job.checkpointing.state is STATES.STORING
    job.go()
    assert (job.answers[1][0].ok, job.answers[1][0].state) == (True, PauseState.PAUSED)
    job.preempt()
    job.go()
    job.fail()
    assert job.answers[3][0].message == "it went wrong; the job is paused as before"
    assert (job.pausing.state, job.cut.held, job.cut.begun) == (PauseState.PAUSED, True, 1)
    job.go_on()
    job.go()
    assert (job.answers[4][0].ok, job.pausing.state) == (True, PauseState.RUNNING)


@pytest.mark.parametrize("steps", range(6))
def test_a_preemption_can_be_called_off(steps: int) -> None:
    """Until its processes are being ended whoever lets the job go on gets it back, also while a store does
    not answer; a checkpoint, which does not end it, is not called off."""
    job = Job()
    job.preempt()
    for _ in range(steps):
        job.go()
    too_late = job.checkpointing.state is STATES.ENDING
    assert job.checkpointing.cancel("somebody wants it", job.now) is not too_late
    job.go()
    if too_late:
        assert (job.steps.gone, job.answers[0][0].ok) == (True, True)
        return
    assert job.answers[0][0].message == "somebody wants it; the job goes on as before"
    assert (job.pausing.state, job.cut.held) == (PauseState.RUNNING, False)
    job.check()
    job.checkpoint()
    assert not job.checkpointing.cancel("somebody wants it", job.now)


def test_what_fails_after_the_commit_takes_nothing_back() -> None:
    """Who asked is told that the checkpoint is there, and what went wrong; the job does not go on."""
    job = Job()
    job.preempt()
    for _ in range(5):
        job.go()
    job.fail()
    assert (job.answers[0][0].ok, job.answers[0][0].message) == (True, "in the store; it went wrong")
    assert (job.steps.gone, job.cut.held) == (True, True)


def test_a_look_stops_nobody() -> None:
    """A dry run says what it found, and no rank stands still for it."""
    job = Job()
    order = CheckpointOrder("/store", 10.0, dry_run=True)
    job.checkpointing.checkpoint(order, job.now, job.asker())
    job.go()
    assert job.answers[0][0].ok
    assert (job.cut.begun, job.pausing.refusal) == (0, "")


EVENTS: dict[str, Callable[[Job], None]] = {
    "checkpoint": Job.checkpoint,
    "preempt": Job.preempt,
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
        if event == "end" or job.steps.gone:
            break
    job.end()
    job.check()
    assert all(len(told) == 1 for told in job.answers)
    assert job.steps.gone or not job.cut.held, "the ranks cannot heed their signal"


@pytest.mark.parametrize("kind", ["checkpoint", "preempt"])
def test_any_three_events_at_any_step(kind: str) -> None:
    """However far a checkpoint is, whatever three things happen: whoever asked is told once, nothing stands
    still for ever, and nothing is ended that is not committed."""
    for steps, events in itertools.product(range(7), itertools.product(EVENTS, repeat=3)):
        play([kind, *["go"] * steps, *events, "go", "go"])


@given(events=st.lists(st.sampled_from(sorted(EVENTS)), max_size=20))
def test_any_events(events: list[str]) -> None:
    """The same for any sequence."""
    play(events)
