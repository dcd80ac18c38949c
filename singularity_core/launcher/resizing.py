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
from typing import Protocol

from ..barrier.interface import Cut
from .cut_sequence import CutSequence, LetGo, Part, Step, ToCut
from .errors import LaunchError
from .pausing import RELEASE_SECONDS, Outcome, Pausing, Told

WRITING_SECONDS = 120.0
PREPARING_SECONDS = 120.0
TAKING_OVER_SECONDS = 120.0
MOST_SECONDS = PREPARING_SECONDS + WRITING_SECONDS + TAKING_OVER_SECONDS + RELEASE_SECONDS
"""All in all, but for the cut."""
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
        self._pausing = pausing
        self._steps = steps
        self._sequence = CutSequence(
            pausing, ResizeState.IDLE, holder=_HOLDER, what="resize", undo=self._undo
        )
        self.abandon = self._sequence.abandon
        self.next_tick = self._sequence.next_tick
        self.tick = self._sequence.tick

    @property
    def state(self) -> ResizeState:
        """How far the one is that is under way."""
        return self._sequence.state

    def resize(self, devices: int, timeout: float, now: float, told: Told) -> None:
        """Asks for `devices` devices; `timeout`: seconds until all ranks must stand at one point."""
        plan = ""
        if not self._sequence.busy:
            try:
                plan = self._steps.plan(devices)
            except LaunchError as error:
                told(Outcome(False, self._pausing.state, f"{error.cause} {error.remedy}".rstrip()))
                return
            if not plan:
                said = f"runs on {devices} device{'s' * (devices != 1)} already"
                told(Outcome(True, self._pausing.state, said))
                return
        self._sequence.start(self._parts(timeout), lambda: plan, now, told)

    def _parts(self, timeout: float) -> list[Part[ResizeState]]:
        steps = self._steps
        return [
            Step(
                ResizeState.PREPARING, steps.prepare, steps.prepared, PREPARING_SECONDS,
                f"The new proxies have not started within {PREPARING_SECONDS:.0f} s.",
            ),
            ToCut(ResizeState.CUTTING, ResizeState.CUT, timeout),
            Step(
                ResizeState.WRITING, steps.write, steps.written, WRITING_SECONDS,
                f"The proxies have not written their sessions within {WRITING_SECONDS:.0f} s.",
            ),
            Step(
                ResizeState.TAKING_OVER, steps.take_over, steps.taken_over, TAKING_OVER_SECONDS,
                f"The new proxies were not ready within {TAKING_OVER_SECONDS:.0f} s.",
            ),
            LetGo(ResizeState.RELEASING, steps.commit, steps.retire),
        ]  # fmt: skip

    def _undo(self) -> None:
        if self.state is not ResizeState.RELEASING:  # then the new proxies are the job's
            self._steps.abandon()
