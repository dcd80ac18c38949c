"""What drives a cut, as the launcher's agent sees it; `coordinator` is the one that looks at the proxies'
clocks."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Protocol


class CutState(enum.Enum):
    """How far a cut is."""

    OPEN = "open"
    """Nobody is held, and nobody is asked to be: before `begin`, and once everything is released."""
    ACQUIRING = "acquiring"
    """Asked for; ranks still move towards it."""
    ACQUIRED = "acquired"
    """All ranks stand at one consistent point, and their devices are idle."""
    RELEASING = "releasing"
    """Let go; some proxies have not taken note yet."""
    FAILED = "failed"
    """It cannot be acquired or released; `waiting` says why.  Still has to be released.  A job that is
    deadlocked does not fail: it stays `ACQUIRING`, and `waiting` says who waits for whom."""


class CutError(Exception):
    """The cut cannot do its work, because of something outside (a board that is gone, say); nothing is held
    because of it."""


@dataclass(frozen=True)
class Progress:
    """One look at a cut."""

    state: CutState
    reached: int = 0
    """Ranks that stand at the cut."""
    waiting: list[str] = field(default_factory=list)
    """The diagnosis, for people: one line for each rank that has not reached it: its last call, and who or
    what it waits for."""


class CutRefusedError(Exception):
    """This job's ranks cannot be stopped, and trying again would not help; says why, and what would."""


class Cut(Protocol):
    """Stops all ranks of a job at one consistent point.  One thread calls it; no call blocks."""

    def check(self) -> None:
        """`CutRefusedError`: this job's ranks cannot be stopped."""

    def begin(self, timeout: float) -> None:
        """Asks all ranks to stop.  `timeout`: seconds that the caller will wait; the caller watches the
        time itself, and calls `release` when it is over.  `CutRefusedError`: nothing was begun."""

    def poll(self) -> Progress:
        """Looks, and does the coordinator's part of the work; called every few milliseconds while the cut is
        acquired or released."""

    def waits(self, seconds: float) -> list[str]:
        """Which ranks have waited for others for so long, and for whom: one line each, also while nobody
        asks for a cut.  A job that is deadlocked shows itself here."""

    def release(self) -> None:
        """Lets everybody go on, however far the cut was.  Over when `poll` says `CutState.OPEN`."""

    def hand_over(self) -> None:
        """The cut is acquired: tells the proxies to write down their sessions, for others to go on with."""

    def handed_over(self) -> bool:
        """Whether all have.  `CutError` says why one cannot; it can go on itself."""

    def freeze_ahead(self) -> None:
        """Nobody is here yet: whoever comes stands at this cut, which is acquired, until it is released."""

    def close(self) -> None:
        """Forgets what it looks at.  What is held stays held."""
