"""What the launcher tells on stderr."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

from .processes import Ending
from .terminal import STANDARD_ERROR


@dataclass(frozen=True)
class Failure:
    """The root cause: the first process that failed."""

    label: str
    pid: int
    ending: Ending
    when: float
    """Seconds since the epoch."""
    tail: list[str]
    log: Path | None
    proxy: bool = False
    affected: list[str] = field(default_factory=list)

    @property
    def exit_code(self) -> int:
        """The launcher's; never 0, though a proxy may have exited with 0 too early."""
        return self.ending.exit_code or 1


def say(line: str) -> None:
    """Prints a line of the launcher's own, if anyone still listens.  Never raises, and does not wait while
    the job's loop runs."""
    STANDARD_ERROR.write(f"singularity-run: {line}\n".encode(errors="replace"))


def describe_failure(failure: Failure) -> list[str]:
    """The lines that tell what happened to whom."""
    when = time.strftime("%H:%M:%S", time.localtime(failure.when))
    lines = [f"root cause: {failure.label} (pid {failure.pid}) {failure.ending} at {when}"]
    if failure.affected:
        lines.append(f"  it served {', '.join(failure.affected)}")
    if failure.tail:
        lines.append("  its last lines on stderr:")
        lines += [f"    {line}" for line in failure.tail]
    if failure.log is not None:
        lines.append(f"  its log: {failure.log}")
    return lines


def fail(cause: str, remedy: str) -> None:
    """Tells why the job could not start."""
    say(f"error: {cause}")
    if remedy:
        say(f"  what to do: {remedy}")
