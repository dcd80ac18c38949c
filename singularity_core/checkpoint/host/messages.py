"""What the owner of a hold and its keeper say to each other; each is one packet of JSON."""

from __future__ import annotations

import msgspec


class Freeze(msgspec.Struct, frozen=True, tag=True):
    """Make a tree stand still."""

    root: int
    seconds: float
    cgroup: str
    """Where to make the cgroup that stands still; empty: leave it to CRIU."""


class Dump(msgspec.Struct, frozen=True, tag=True):
    """Run CRIU on the tree."""

    command: tuple[str, ...]
    seconds: float


class Restore(msgspec.Struct, frozen=True, tag=True):
    """Run CRIU to make a tree."""

    command: tuple[str, ...]
    seconds: float


class Begin(msgspec.Struct, frozen=True, tag=True):
    """The number of the process that is to become CRIU has arrived; so it may."""


class Finish(msgspec.Struct, frozen=True, tag=True):
    """Let the tree go on, or end it; keep what was restored."""

    end: bool = False


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The keeper is there, and has made a directory for images."""

    images: str


class Held(msgspec.Struct, frozen=True, tag=True):
    """The tree stands still; or it runs until CRIU stops it, and this is why."""

    why_not: str = ""


class Started(msgspec.Struct, frozen=True, tag=True):
    """A process waits for `Begin`, to become CRIU."""

    pid: int


class Ended(msgspec.Struct, frozen=True, tag=True):
    """CRIU has ended (or waits, with all done and the tree stopped: 0)."""

    returncode: int | None
    """None: it was killed at its deadline."""
    output: str


class Done(msgspec.Struct, frozen=True, tag=True):
    """The tree goes on or is gone."""

    held_seconds: float = 0.0


class Failed(msgspec.Struct, frozen=True, tag=True):
    """It could not be done."""

    cause: str
    remedy: str


Request = Freeze | Dump | Restore | Begin | Finish
Answer = Ready | Held | Started | Ended | Done | Failed
LARGEST_MESSAGE = 1 << 20
