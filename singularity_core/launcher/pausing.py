"""The states that ``pause`` and ``continue`` take a job through.  Pure: times are arguments, and what really
stops ranks is a `Cut`.

::

    running --pause--> pausing --acquired--> paused
       ^                  | continue, time-out,   | continue, end of the job
       |                  | failure               |
       +----released--- continuing <--------------+

Whoever asked is told by a callback when what was asked for is there, or will not be.  A pause while pausing
joins the one that is under way (whose time-out counts); a pause while continuing waits until everything is
released.  Whoever asked may be gone by then: the job does not depend on it."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field

from ..barrier.interface import Cut, CutError, CutRefusedError, CutState, Progress
from .report import say_fault, say_trouble

LONG_WAIT_SECONDS = 2.0
"""A rank that waits for others for longer is worth a line in ``status``."""

POLL_SECONDS = 0.005
"""Between two looks at a cut that is being acquired or released."""

RELEASE_SECONDS = 20.0
"""After which whoever waits for the release is told that it is not complete."""


class PauseState(enum.Enum):
    """Where a job is between running and paused."""

    RUNNING = "running"
    PAUSING = "pausing"
    PAUSED = "paused"
    CONTINUING = "continuing"


@dataclass(frozen=True)
class Outcome:
    """How a request ended."""

    ok: bool
    state: PauseState
    message: str
    waiting: list[str] = field(default_factory=list)
    """After a failure: who had not reached the cut, and what each waits for."""


Told = Callable[[Outcome], None]


class Pausing:
    """One job's pauses: none until `enable`.  After each call, `tick` is due in `next_tick` seconds."""

    def __init__(self, why_not: str) -> None:
        """`why_not`: why the job cannot be paused (yet)."""
        self.state = PauseState.RUNNING
        self.progress = Progress(CutState.OPEN)
        """As last seen."""
        self._make_cut: Callable[[], Cut] | None = None
        self._cut: Cut | None = None
        self._why_not = why_not
        self._deadline = 0.0  # of the pause, or of the release
        self._pausers: list[Told] = []
        self._continuers: list[Told] = []
        self._later: list[tuple[float, Told]] = []  # pauses that wait for the release
        self._holder = ""

    def enable(self, make_cut: Callable[[], Cut]) -> None:
        """From now on what `make_cut` makes, at the first pause, stops the ranks."""
        self._make_cut, self._why_not = make_cut, ""

    def begin_at(self, cut: Cut) -> None:
        """The job comes from a checkpoint: its ranks stand at `cut`, which is acquired, until `resume`."""
        self._cut = cut
        self.state, self.progress = PauseState.PAUSED, Progress(CutState.ACQUIRED)

    def check(self) -> None:
        """`CutError`, or `CutRefusedError`: its ranks cannot be stopped."""
        if self._make_cut is not None:
            self._cut = self._cut or self._make_cut()
            self._cut.check()

    def hold(self, why: str) -> None:
        """Until this is called with "", nobody pauses the job or lets it go on: what it says is why."""
        self._holder = why

    @property
    def refusal(self) -> str:
        """Why nobody can pause the job now; "": somebody can."""
        return self._why_not or self._holder

    def cut(self) -> Cut:
        """The one at which the ranks stand."""
        assert self._cut is not None
        return self._cut

    def exchange(self, cut: Cut) -> None:
        """The job is paused, by another cut from now on: the ranks stand at that one."""
        if self._cut is not None:
            self._cut.close()
        self._cut = cut

    def waiting(self) -> list[str]:
        """While a cut is made: who has not reached it; else who has waited for other ranks for long."""
        if self.state is not PauseState.RUNNING or self._make_cut is None or self._why_not:
            return self.progress.waiting
        try:
            self._cut = self._cut or self._make_cut()
            return self._cut.waits(LONG_WAIT_SECONDS)
        except Exception as error:
            return [_complain("waits", error)]

    def pause(self, timeout: float, now: float, told: Told) -> None:
        """Asks for a pause within `timeout` seconds."""
        if self._make_cut is None or self.refusal:
            told(Outcome(False, self.state, self.refusal))
        elif self.state is PauseState.PAUSED:
            told(Outcome(True, self.state, "paused already"))
        elif self.state is PauseState.PAUSING:
            self._pausers.append(told)
        elif self.state is PauseState.CONTINUING:
            self._later.append((timeout, told))
        else:
            try:
                self._cut = self._cut or self._make_cut()
            except Exception as error:
                told(Outcome(False, self.state, _complain("start", error)))
                return
            self._pausers.append(told)
            self._begin(self._cut, timeout, now)

    def resume(self, now: float, told: Told) -> None:
        """Asks to go on; ends a pause that is under way."""
        if self._holder:
            told(Outcome(False, self.state, self._holder))
            return
        if self.state is PauseState.RUNNING:
            told(Outcome(True, self.state, "runs already"))
            return
        self._continuers.append(told)
        later, self._later = self._later, []
        self._tell([waiting for _, waiting in later], False, "cancelled: the job was asked to continue")
        if self.state is not PauseState.CONTINUING:
            self._let_go("cancelled: the job was asked to continue", now)

    def abandon(self, why: str, now: float) -> None:
        """The job ends: lets everybody go, so that ranks can act on the signal that they get, and pauses no
        more."""
        self._why_not = why
        later, self._later = self._later, []
        self._tell([waiting for _, waiting in later], False, why)
        if self.state in (PauseState.PAUSING, PauseState.PAUSED):
            self._let_go(why, now)
        continuers, self._continuers = self._continuers, []
        self._tell(continuers, False, why)

    def next_tick(self) -> float | None:
        """Seconds until `tick` is due; None: not before the next request."""
        return POLL_SECONDS if self.state in (PauseState.PAUSING, PauseState.CONTINUING) else None

    def tick(self, now: float) -> None:
        """Looks at the cut, and takes the job on."""
        if self.state not in (PauseState.PAUSING, PauseState.CONTINUING):
            return
        self.progress = self._poll()
        if self.state is PauseState.CONTINUING:
            if self.progress.state is CutState.OPEN:
                self._released(now, True, "continued")
            elif self.progress.state is CutState.FAILED:
                self._released(now, False, "; ".join(self.progress.waiting) or "the cut was not released")
            elif now >= self._deadline:
                continuers, self._continuers = self._continuers, []
                self._tell(continuers, False, "not all proxies have let their ranks go on yet")
        elif self.progress.state is CutState.ACQUIRED:
            self.state = PauseState.PAUSED
            pausers, self._pausers = self._pausers, []
            self._tell(pausers, True, "paused")
        elif self.progress.state is CutState.FAILED:
            self._let_go("the job cannot be paused", now)
        elif now >= self._deadline:
            self._let_go("timed out before all ranks had reached one point; the job goes on", now)

    # ---- steps ---------------------------------------------------------------------------------------

    def _begin(self, cut: Cut, timeout: float, now: float) -> None:
        self.state = PauseState.PAUSING
        self.progress = Progress(CutState.ACQUIRING)
        self._deadline = now + timeout
        try:
            cut.begin(timeout)
        except CutRefusedError as refused:
            self._released(now, False, "")  # there is nothing to release
            pausers, self._pausers = self._pausers, []
            self._tell(pausers, False, str(refused))
        except Exception as error:  # the coordinator's fault must not end the job
            self._let_go(_complain("begin", error), now)

    def _poll(self) -> Progress:
        assert self._cut is not None
        try:
            return self._cut.poll()
        except Exception as error:
            return Progress(CutState.FAILED, waiting=[_complain("poll", error)])

    def _let_go(self, why: str, now: float) -> None:
        """Releases the cut; whoever waits for the pause is told `why` there is none."""
        assert self._cut is not None
        waiting = self.progress.waiting if self.state is PauseState.PAUSING else []
        self.state = PauseState.CONTINUING
        self._deadline = now + RELEASE_SECONDS
        pausers, self._pausers = self._pausers, []
        try:
            self._cut.release()
        except Exception as error:
            waiting = [*waiting, _complain("release", error)]
        self._tell(pausers, False, why, waiting)

    def _released(self, now: float, ok: bool, message: str) -> None:
        self.state = PauseState.RUNNING
        self.progress = Progress(CutState.OPEN)
        continuers, self._continuers = self._continuers, []
        self._tell(continuers, ok, message)
        later, self._later = self._later, []
        for timeout, told in later:
            self.pause(timeout, now, told)

    def _tell(self, waiting: list[Told], ok: bool, message: str, diagnosis: list[str] | None = None) -> None:
        for told in waiting:
            told(Outcome(ok, self.state, message, diagnosis or []))


def _complain(call: str, error: Exception) -> str:
    if isinstance(error, CutError):
        say_trouble(f"the job cannot be looked at: {error}")
        return str(error)
    say_fault(f"the coordinator failed in {call}:", error)
    return f"the coordinator failed in {call}: {type(error).__name__}: {error}"
