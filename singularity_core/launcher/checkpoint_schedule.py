"""When checkpoints are taken by themselves: every so often, and at a notice that the job is to be preempted.
Pure: times are arguments."""

from __future__ import annotations

import math
from collections.abc import Callable

from .checkpointing import Checkpointing, CheckpointOrder
from .pausing import Outcome, PauseState, Pausing
from .report import say
from .settings import CheckpointSettings

CUT_SECONDS = 120.0
"""Until all ranks must stand at one point."""
POLL_SECONDS = 0.05
"""Between two looks whether the job can be taken into a checkpoint now."""


class Schedule:
    """Of one job.  After each call, `tick` is due in `next_tick` seconds."""

    def __init__(
        self,
        pausing: Pausing,
        checkpointing: Checkpointing,
        settings: CheckpointSettings | None,
        failed: Callable[[], None],
    ) -> None:
        """`failed`: after a notice no checkpoint could be taken."""
        self._pausing = pausing
        self._checkpointing = checkpointing
        self._settings = settings
        self._failed = failed
        self._due = math.inf
        self._running = False
        self._notice = False
        """A notice was given, and nothing has been asked for yet."""

    def begin(self, now: float) -> None:
        """The job runs."""
        self._running = True
        if self._settings is not None and self._settings.every is not None:
            self._due = now + self._settings.every

    def notice(self) -> bool:
        """The job is to be preempted; False when that is not for us to do: it is to end."""
        if self._settings is None or not self._running or self._notice:
            return False
        self._notice, self._due = True, math.inf
        return True

    @property
    def noticed(self) -> bool:
        """Whether it was given, and taken to heart."""
        return self._notice

    def next_tick(self, now: float) -> float | None:
        """Seconds until `tick` is due; None: never."""
        if self._notice and self._running:
            return POLL_SECONDS
        if self._due == math.inf:
            return None
        return max(0.0 if self._can_begin() else POLL_SECONDS, self._due - now)

    def tick(self, now: float) -> None:
        """Asks for what is due."""
        if self._notice and self._running:
            self._preempt(now)
        elif now >= self._due and self._can_begin():
            settings = self._settings
            assert settings is not None
            assert settings.every is not None
            self._due = now + settings.every
            order = CheckpointOrder(settings.place, CUT_SECONDS, keep=settings.keep)
            self._checkpointing.checkpoint(order, now, self._told)

    def _can_begin(self) -> bool:
        """Whether the next one can be taken, and is worth while: of a paused job nothing changes."""
        free = not self._checkpointing.busy and not self._pausing.refusal
        return free and self._pausing.state is PauseState.RUNNING

    def _preempt(self, now: float) -> None:
        """Whatever else is under way ends first, but for a pause that is not there yet."""
        if self._checkpointing.busy or self._pausing.refusal:
            return
        if self._pausing.state is PauseState.PAUSING:
            self._pausing.resume(now, lambda _: None)
        if self._pausing.state in (PauseState.RUNNING, PauseState.PAUSED):
            assert self._settings is not None
            self._running = False
            order = CheckpointOrder(self._settings.place, CUT_SECONDS, preempt=True, keep=self._settings.keep)
            self._checkpointing.checkpoint(order, now, self._told_preempted)

    def _told(self, outcome: Outcome) -> None:
        say(outcome.message if outcome.ok else f"no checkpoint: {_reason(outcome)}")

    def _told_preempted(self, outcome: Outcome) -> None:
        if outcome.ok:
            say(f"preempted: {outcome.message}; `singularity-ctl resume` goes on from it")
        else:
            say(f"no checkpoint: {_reason(outcome)}")
            self._failed()


def _reason(outcome: Outcome) -> str:
    return "; ".join([outcome.message, *outcome.waiting])
