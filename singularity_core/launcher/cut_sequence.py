"""What is done to a job while its ranks stand at a cut, as a sequence of parts.  Pure: times are arguments,
and what really happens is behind `Step.begin`.

::

    steps before   -->  ToCut  -->  steps at the cut  -->  LetGo  -->  steps after
    (the job runs)                  (it stands still)                  (it runs again)

Until `LetGo` nobody else pauses the job or lets it go on.  When anything fails, or is late, what was done is
undone and the job goes on as before.  A sequence without `LetGo` leaves the job where it stands; so does any
sequence of a job that was paused before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from ..barrier.interface import Cut, CutError
from ..checkpoint.errors import StoreError
from .errors import LaunchError
from .pausing import Outcome, PauseState, Pausing, Told
from .report import say_fault

POLL_SECONDS = 0.005
S = TypeVar("S")


@dataclass(frozen=True)
class Step(Generic[S]):
    """Something that takes a while.  Neither call blocks; `LaunchError`, `CutError` or `StoreError` says why
    it cannot be done."""

    state: S
    """What the sequence is called meanwhile."""
    begin: Callable[[], None]
    done: Callable[[], bool]
    seconds: float
    """After which it is late; `inf`: never, somebody else watches it."""
    late: str = ""
    """What is said then."""
    final: bool = False
    """When this begins, what was asked for is done, and nothing is undone any more."""


@dataclass(frozen=True)
class ToCut(Generic[S]):
    """Brings all ranks to one point."""

    state: S
    reached: S
    timeout: float
    """Seconds until they must stand there."""


@dataclass(frozen=True)
class LetGo(Generic[S]):
    """Lets the job go on."""

    state: S
    commit: Callable[[], Cut | None]
    """From now on nothing is undone.  The cut at which the ranks stand from now on; None: the same."""
    went: Callable[[], None] = lambda: None
    """They have been let go."""


Part = Step[S] | ToCut[S] | LetGo[S]


class CutSequence(Generic[S]):
    """One kind of sequence of one job.  After each call, `tick` is due in `next_tick` seconds."""

    def __init__(
        self, pausing: Pausing, idle: S, *, holder: str, what: str, undo: Callable[[], None]
    ) -> None:
        """`holder`: why nobody else pauses the job meanwhile; `what`: its name in "the ... failed"; `undo`:
        takes back what steps have begun, harmless when repeated."""
        self.state = idle
        self._pausing = pausing
        self._idle = idle
        self._holder, self._what, self._undo = holder, what, undo
        self._parts: list[Part[S]] = []
        self._message: Callable[[], str] = lambda: ""
        self._told: Told | None = None
        self._deadline = 0.0
        self._begun = False
        """Whether the first of the parts is under way; else it is to be begun at the next tick."""
        self._standing = False  # at the cut, or on the way there
        self._gone = False  # the job was let go
        self._stays = False  # it was paused before, and will be
        self._final = False  # a final step has begun

    @property
    def busy(self) -> bool:
        """Whether one is under way."""
        return self._told is not None

    def start(
        self,
        parts: Sequence[Part[S]],
        message: Callable[[], str],
        now: float,
        told: Told,
        *,
        also_paused: bool = False,
    ) -> None:
        """Begins; `message` is what is told at the end.  Refused while one is under way, or the job does not
        run; `also_paused`: nor is it paused."""
        if why := self._holder if self.busy else self._pausing.refusal:
            told(self._outcome(False, why))
            return
        stays = also_paused and self._pausing.state is PauseState.PAUSED
        if self._pausing.state is not PauseState.RUNNING and not stays:
            why = f"it is {self._pausing.state.value}: let it go on first (`singularity-ctl continue`)"
            told(self._outcome(False, why))
            return
        self._parts, self._message, self._told = list(parts), message, told
        self._begun = self._standing = self._gone = self._final = False
        self._stays = stays
        self._pausing.hold(self._holder)
        self._try(self._begin, now)

    def abandon(self, why: str) -> None:
        """The job ends: whoever waits is told `why`, and what was begun is undone."""
        if not self.busy:
            return
        if not self._gone:
            self._pausing.hold("")
        self._undo()
        self._end(False, why)

    def cancel(self, why: str, now: float) -> bool:
        """Gives up, as if it had failed because of `why`; False when it is too late for that."""
        if not self.busy or self._gone or self._final:
            return False
        self._give_up(why, now)
        return True

    def next_tick(self) -> float | None:
        """Seconds until `tick` is due; None: not before something else happens."""
        if not self.busy or (self._begun and not isinstance(self._parts[0], Step)):
            return None
        return POLL_SECONDS

    def tick(self, now: float) -> None:
        """Looks, and goes on where that is possible."""
        if not self.busy:
            return
        if not self._begun:
            self._try(self._begin, now)
        elif isinstance(self._parts[0], Step):
            self._try(self._look, now)

    # ---- steps ---------------------------------------------------------------------------------------

    def _begin(self, now: float) -> None:
        self._begun = True
        match self._parts[0]:
            case Step() as step:
                self.state, self._deadline = step.state, now + step.seconds
                self._final = step.final
                step.begin()
            case ToCut() as to_cut:
                self.state, self._standing = to_cut.state, True
                self._pausing.hold("")
                self._pausing.pause(to_cut.timeout, now, self._stopped)
                if self.busy:
                    self._pausing.hold(self._holder)
            case LetGo() as let_go:
                cut = let_go.commit()
                self.state = let_go.state
                self._pausing.hold("")
                if cut is not None:
                    self._pausing.exchange(cut)
                if self._stays:
                    self._released(self._outcome(True, ""))
                else:
                    self._pausing.resume(now, self._released)

    def _look(self, now: float) -> None:
        step = self._parts[0]
        assert isinstance(step, Step)
        if step.done():
            self._next()
            if self.busy:
                self._begin(now)
        elif now >= self._deadline:
            raise LaunchError(step.late)

    def _next(self) -> None:
        self._parts.pop(0)
        self._begun = False
        if not self._parts:
            if not self._standing and not self._gone:
                self._pausing.hold("")
            self._end(True, self._message())

    def _stopped(self, outcome: Outcome) -> None:
        if not self.busy:
            return
        to_cut = self._parts[0]
        assert isinstance(to_cut, ToCut)
        if outcome.ok:
            self.state = to_cut.reached
            self._next()
            return
        self._undo()
        self._pausing.hold("")
        told, self._told, self.state = self._told, None, self._idle
        if told is not None:
            told(outcome)

    def _released(self, outcome: Outcome) -> None:
        if not self.busy:
            return
        let_go = self._parts[0]
        assert isinstance(let_go, LetGo)
        let_go.went()
        self._standing, self._gone = False, True
        if outcome.ok or len(self._parts) > 1:  # what remains does not need the ranks
            self._next()
        else:
            self._end(False, outcome.message)

    def _try(self, step: Callable[[float], None], now: float) -> None:
        try:
            step(now)
        except (LaunchError, StoreError) as error:
            self._give_up(f"{error.cause} {error.remedy}".strip(), now)
        except CutError as error:
            self._give_up(str(error), now)
        except Exception as error:  # whatever it is: the job must go on
            say_fault(f"the {self._what} failed:", error)
            self._give_up(f"{type(error).__name__}: {error}", now)

    def _give_up(self, why: str, now: float) -> None:
        self._undo()
        if self._final:
            self._end(True, f"{self._message()}; {why}")
            return
        gone, standing = self._gone, self._standing and not self._stays
        if not gone:
            self._pausing.hold("")
        as_before = "is paused" if self._stays else "goes on"
        self._end(False, f"{why.rstrip('.')}; the job {as_before} as before")
        if standing:
            self._pausing.resume(now, lambda _: None)

    def _end(self, ok: bool, message: str) -> None:
        told, self._told, self.state = self._told, None, self._idle
        if told is not None:
            told(self._outcome(ok, message))

    def _outcome(self, ok: bool, message: str) -> Outcome:
        return Outcome(ok, PauseState.RUNNING if ok and not self._stays else self._pausing.state, message)
