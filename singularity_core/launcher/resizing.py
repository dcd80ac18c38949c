"""The states that ``resize`` takes a job through: it gets other device proxies while its ranks stand at a
cut.  Pure: times are arguments, and what really happens to processes is `ResizeSteps`.

::

    idle --resize--> preparing --all prepared--> cutting --paused--> writing --all written--> taking over
                         |                          |                   |                       |      |
                         +--------------------------+-------------------+-----------------------+  all ready
                         | no: the new proxies end, those from before go on                            |
                         v                                                                             v
                        idle <------------------------------------------------------------------- releasing

New proxies open their devices while the job still runs, for that takes the longest.  Until the last of them
is ready nothing has been taken from the old ones: whatever goes wrong, they go on.  Then one word on the new
board lets the new ones go; only then the old ones are killed."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Protocol

from ..barrier.interface import Cut, CutError
from .errors import LaunchError
from .pausing import RELEASE_SECONDS, Outcome, PauseState, Pausing, Told
from .report import say_fault

WRITING_SECONDS = 120.0
PREPARING_SECONDS = 120.0
TAKING_OVER_SECONDS = 120.0
MOST_SECONDS = PREPARING_SECONDS + WRITING_SECONDS + TAKING_OVER_SECONDS + RELEASE_SECONDS
"""All in all, but for the cut."""
POLL_SECONDS = 0.005
_HOLDER = "the job is being resized"


class ResizeState(enum.Enum):
    """How far a resize is."""

    IDLE = "idle"
    PREPARING = "preparing"
    """New proxies start; the job runs."""
    CUTTING = "cutting"
    """All ranks are brought to one point."""
    CUT = "cut"
    """They stand there."""
    WRITING = "writing"
    """The proxies write down their sessions."""
    TAKING_OVER = "taking over"
    """The new ones read what was written."""
    RELEASING = "releasing"
    """Done: the job goes on with the new ones."""


class ResizeSteps(Protocol):
    """What a resize does to the job's processes.  No call blocks.  `LaunchError`: it cannot be done; the job
    is as it was."""

    def plan(self, devices: int) -> str:
        """Decides who will be where on `devices` devices; says it in one line.  "": they are there."""

    def prepare(self) -> None:
        """Starts the new proxies, which wait."""

    def prepared(self) -> bool:
        """Whether all wait.  `LaunchError` when one has ended."""

    def write(self) -> None:
        """All ranks stand at the cut: tells the proxies to write down their sessions.  `LaunchError` when one
        of the new ones has ended."""

    def written(self) -> bool:
        """Whether all have.  `CutError` with the reason when one cannot."""

    def take_over(self) -> None:
        """Tells the new proxies to take over what was written."""

    def taken_over(self) -> bool:
        """Whether all have.  `LaunchError` when one has ended."""

    def commit(self) -> Cut:
        """From now on the new proxies are the job's; returns the cut at which they wait."""

    def retire(self) -> None:
        """They have been let go: ends the old ones, which ranks do not look for any more."""

    def abandon(self) -> None:
        """Ends the new proxies, as far as there are any; the old ones go on.  Harmless when repeated."""


class Resizing:
    """One job's resizes.  After each call, `tick` is due in `next_tick` seconds."""

    def __init__(self, pausing: Pausing, steps: ResizeSteps) -> None:
        self.state = ResizeState.IDLE
        self._pausing = pausing
        self._steps = steps
        self._told: Told | None = None
        self._looks = {
            ResizeState.PREPARING: self._prepared,
            ResizeState.CUT: self._write,
            ResizeState.WRITING: self._written,
            ResizeState.TAKING_OVER: self._taken_over,
        }
        self._plan = ""
        self._deadline = 0.0
        self._timeout = 0.0

    def resize(self, devices: int, timeout: float, now: float, told: Told) -> None:
        """Asks for `devices` devices; `timeout`: seconds until all ranks must stand at one point."""
        if self.state is not ResizeState.IDLE:
            told(self._outcome(False, "it is being resized already"))
            return
        if self._pausing.state is not PauseState.RUNNING:
            why = f"it is {self._pausing.state.value}: let it go on first (`singularity-ctl continue`)"
            told(self._outcome(False, why))
            return
        try:
            self._plan = self._steps.plan(devices)
        except LaunchError as error:
            told(self._outcome(False, f"{error.cause} {error.remedy}".rstrip()))
            return
        if not self._plan:
            told(self._outcome(True, f"runs on {devices} device{'s' * (devices != 1)} already"))
            return
        self._told, self.state = told, ResizeState.PREPARING
        self._timeout, self._deadline = timeout, now + PREPARING_SECONDS
        self._pausing.hold(_HOLDER)
        self._try(lambda _: self._steps.prepare(), now)

    def abandon(self, why: str) -> None:
        """The job ends: whoever waits is told `why`, and no new proxy is left behind."""
        if self.state is not ResizeState.IDLE:
            self._pausing.hold("")
            if self.state is not ResizeState.RELEASING:
                self._steps.abandon()
            self._end(False, why)

    def next_tick(self) -> float | None:
        """Seconds until `tick` is due; None: not before something else happens."""
        return POLL_SECONDS if self.state in self._looks else None

    def tick(self, now: float) -> None:
        """Looks, and goes on where that is possible."""
        if self.state in self._looks:
            self._try(self._looks[self.state], now)

    # ---- steps ---------------------------------------------------------------------------------------

    def _prepared(self, now: float) -> None:
        if self._steps.prepared():
            self.state = ResizeState.CUTTING
            self._pausing.hold("")
            self._pausing.pause(self._timeout, now, self._cut)
            if self.state is not ResizeState.IDLE:
                self._pausing.hold(_HOLDER)
        elif now >= self._deadline:
            raise LaunchError(f"The new proxies have not started within {PREPARING_SECONDS:.0f} s.")

    def _cut(self, outcome: Outcome) -> None:
        if self.state is ResizeState.CUTTING and outcome.ok:
            self.state = ResizeState.CUT
        elif self.state is ResizeState.CUTTING:
            self._steps.abandon()
            self._pausing.hold("")
            told, self._told, self.state = self._told, None, ResizeState.IDLE
            if told is not None:
                told(outcome)

    def _write(self, now: float) -> None:
        self.state, self._deadline = ResizeState.WRITING, now + WRITING_SECONDS
        self._steps.write()

    def _written(self, now: float) -> None:
        if self._steps.written():
            self.state, self._deadline = ResizeState.TAKING_OVER, now + TAKING_OVER_SECONDS
            self._steps.take_over()
        elif now >= self._deadline:
            raise LaunchError(f"The proxies have not written their sessions within {WRITING_SECONDS:.0f} s.")

    def _taken_over(self, now: float) -> None:
        if self._steps.taken_over():
            cut = self._steps.commit()
            self.state = ResizeState.RELEASING
            self._pausing.hold("")
            self._pausing.exchange(cut)
            self._pausing.resume(now, self._released)
        elif now >= self._deadline:
            raise LaunchError(f"The new proxies were not ready within {TAKING_OVER_SECONDS:.0f} s.")

    def _released(self, outcome: Outcome) -> None:
        if self.state is ResizeState.RELEASING:
            self._steps.retire()
            self._end(outcome.ok, self._plan if outcome.ok else outcome.message)

    def _try(self, step: Callable[[float], None], now: float) -> None:
        try:
            step(now)
        except (LaunchError, CutError) as error:
            self._give_up(error.cause if isinstance(error, LaunchError) else str(error), now)
        except Exception as error:  # whatever it is: the job must go on
            say_fault("the resize failed:", error)
            self._give_up(f"{type(error).__name__}: {error}", now)

    def _give_up(self, why: str, now: float) -> None:
        self._steps.abandon()
        self._pausing.hold("")
        self._end(False, f"{why.rstrip('.')}; the job goes on as before")
        self._pausing.resume(now, lambda _: None)

    def _end(self, ok: bool, message: str) -> None:
        told, self._told, self.state = self._told, None, ResizeState.IDLE
        if told is not None:
            told(self._outcome(ok, message))

    def _outcome(self, ok: bool, message: str) -> Outcome:
        return Outcome(ok, PauseState.RUNNING if ok else self._pausing.state, message)
