"""What the launcher tells on stderr."""

from __future__ import annotations

import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path

from .processes import Ending
from .terminal import STANDARD_ERROR

_MOST_SAID = 100  # what is different each time must not fill the terminal
_said: set[str] = set()


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
    affected: list[str] = field(default_factory=list)

    @property
    def exit_code(self) -> int:
        """The launcher's; never 0, though a proxy may have exited with 0 too early."""
        return self.ending.exit_code or 1


def say(line: str) -> None:
    """Prints a line of the launcher's own, if anyone still listens.  Never raises, and does not wait while
    the job's loop runs."""
    STANDARD_ERROR.write(f"singularity-run: {line}\n".encode(errors="replace"))


def say_fault(what: str, error: Exception) -> None:
    """Tells of a fault of the launcher's own that the job survives, with its traceback; once for each that is
    different, because it may happen at each request."""
    told = "".join(traceback.format_exception(error)).rstrip()
    _say_once(f"{what}\n{told}")


def say_trouble(what: str) -> None:
    """Tells of something outside that does not work, once."""
    _say_once(what)


def _say_once(line: str) -> None:
    if line not in _said and len(_said) < _MOST_SAID:
        _said.add(line)
        say(line)


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
