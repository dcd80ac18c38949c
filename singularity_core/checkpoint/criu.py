"""Finds the CRIU command and judges it: processes of a job are checkpointed with it.

That it is installed says little.  Releases before 4.2 do not start on new kernels or cannot dump a socket,
`criu check` passes where a dump fails, and containers take away what it needs.  So it is tried."""

from __future__ import annotations

import os
import re
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from .supervised import Supervised, Waited

COMMAND_VARIABLE = "SINGULARITY_CRIU"
"""Path of the command; when it is set, no other place is looked at."""
MINIMUM_VERSION = (4, 2)
DEADLINE_SECONDS = 20.0
"""For each run of CRIU; the trial takes one second."""

_HOW_TO_GET_IT = (
    f"Install CRIU {'.'.join(map(str, MINIMUM_VERSION))} or later, or name its command in "
    f"{COMMAND_VARIABLE}; docs/checkpoints.md says how to get it on Debian."
)
_HOW_TO_ALLOW_IT = (
    "Run as root on the machine itself, or in a container that may do this (docker run --privileged)."
)
_LOG_BYTES = 1 << 20
_QUOTED_LINES = 3
_QUOTED_CHARACTERS = 600
_KILL_SECONDS = 5.0
_BOX = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
"""Whatever is started in it ends with its first process."""
_STEPS = ("start", "dump", "restore")
"""What `criu_trial.py` prints as it goes; CRIU's logs are named after them."""
_TRIAL_BOX = (*_BOX, "--net", "--ipc", "--uts")  # not for `criu check`, which wants a network


@dataclass(frozen=True)
class CriuFound:
    """A CRIU that works here."""

    command: Path
    version: str


class CriuUnavailableError(Exception):
    """Processes cannot be checkpointed here: `cause` says why, `remedy` what would help."""

    def __init__(self, cause: str, *, remedy: str) -> None:
        super().__init__(f"{cause} {remedy}")
        self.cause = cause
        self.remedy = remedy


def find_criu(
    environment: Mapping[str, str] | None = None, *, deadline_seconds: float = DEADLINE_SECONDS
) -> CriuFound:
    """Takes a second: it dumps and restores a process.  Leaves no process and no file behind.

    :raises CriuUnavailableError: There is none, it is too old, or it does not work here."""
    command = choose_command(os.environ if environment is None else environment)
    version = _judge_version(command, deadline_seconds)
    if os.geteuid() != 0:
        raise CriuUnavailableError(
            f"{command} cannot checkpoint processes for user {os.geteuid()}: that takes root.",
            remedy="Run as root.",
        )
    _check(command, deadline_seconds)
    try:
        _try(command, deadline_seconds)
    except OSError as error:
        raise CriuUnavailableError(
            f"{command} cannot be tried: {error}.", remedy="Let TMPDIR name a place with some MiB of room."
        ) from error
    return CriuFound(command, version)


def is_command(path: Path) -> bool:
    """Whether this user may run it."""
    return path.is_file() and os.access(path, os.X_OK)


def choose_command(environment: Mapping[str, str], is_command: Callable[[Path], bool] = is_command) -> Path:
    """The command that `COMMAND_VARIABLE` names, else the one in the user's private prefix, else PATH's.

    :raises CriuUnavailableError: There is none; or none is where the variable says."""
    if named := environment.get(COMMAND_VARIABLE):
        if not is_command(Path(named)):
            raise CriuUnavailableError(
                f"{COMMAND_VARIABLE} names {named}, which is no command.",
                remedy=f"Let it name CRIU's command, or unset {COMMAND_VARIABLE}.",
            )
        return Path(named).absolute()
    for place in (*_private_prefix(environment), *environment.get("PATH", "").split(os.pathsep)):
        if place and is_command(Path(place) / "criu"):
            return Path(place).absolute() / "criu"
    raise CriuUnavailableError("There is no CRIU here.", remedy=_HOW_TO_GET_IT)


def _private_prefix(environment: Mapping[str, str]) -> list[str]:
    data, home = environment.get("XDG_DATA_HOME", ""), environment.get("HOME")
    if os.path.isabs(data):  # by that specification, a relative one does not count
        return [f"{data}/singularity/criu"]
    return [f"{home}/.local/share/singularity/criu"] if home else []


def parse_version(output: str) -> tuple[int, ...] | None:
    """What `criu --version` says: ``Version: 4.2.1`` in a line of its own."""
    found = re.search(r"^Version: v?(\d{1,6}(?:\.\d{1,6}){0,5})(?!\d)", output, re.ASCII | re.MULTILINE)
    return tuple(map(int, found[1].split("."))) if found else None


def quote_errors(log: str) -> str:
    """The last lines of CRIU's log that are about errors, without their times; empty when there is none."""
    errors = [re.sub(r"^\(\d+\.\d+\)\s*", "", line) for line in log.splitlines() if "Error" in line]
    return _shortened("; ".join(errors[-_QUOTED_LINES:]))


def _shortened(text: str) -> str:
    text = " ".join("".join(it if it.isprintable() else " " for it in text).split())
    return text if len(text) <= _QUOTED_CHARACTERS else f"... {text[-_QUOTED_CHARACTERS:]}"


def _judge_version(command: Path, deadline_seconds: float) -> str:
    ended = _run([str(command), "--version"], deadline_seconds)
    version = parse_version(ended.output)
    if ended.returncode != 0 or version is None:
        missing = ", and names no version of CRIU" if ended.returncode == 0 else ""
        raise CriuUnavailableError(f"{command} --version {ended}{missing}.", remedy=_HOW_TO_GET_IT)
    said = ".".join(map(str, version))
    if version < MINIMUM_VERSION:
        raise CriuUnavailableError(
            f"{command} is CRIU {said}, which is too old to dump sockets on new kernels.",
            remedy=_HOW_TO_GET_IT,
        )
    return said


def _check(command: Path, deadline_seconds: float) -> None:
    ended = _run([*_BOX, str(command), "check"], deadline_seconds)
    if ended.returncode != 0:
        raise CriuUnavailableError(f"{command} check {ended}.", remedy=_HOW_TO_ALLOW_IT)


def _try(command: Path, deadline_seconds: float) -> None:
    with tempfile.TemporaryDirectory(prefix="singularity-criu-") as images:
        trial = str(Path(__file__).with_name("criu_trial.py"))
        seconds = f"{deadline_seconds + _KILL_SECONDS}"
        ended = _run(
            [*_TRIAL_BOX, sys.executable, "-I", trial, str(command), images, seconds], deadline_seconds
        )
        if ended.returncode == 0:
            return
        lines = ended.output.splitlines()
        step = next((step for step in reversed(_STEPS) if step in lines), _STEPS[0])
        ended = replace(ended, output="\n".join(line for line in lines if line not in _STEPS))
        quoted = quote_errors(_tail(Path(images) / f"{step}.log"))
    raise CriuUnavailableError(
        f"{command}: a trial on a small process, at its step {step!r}, {ended}"
        + (f"; the log says: {quoted}." if quoted else "."),
        remedy=_HOW_TO_ALLOW_IT,
    )


def _tail(log: Path) -> str:
    try:
        with log.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _LOG_BYTES))
            return file.read(_LOG_BYTES).decode(errors="replace")
    except OSError:  # CRIU did not come that far
        return ""


@dataclass(frozen=True)
class _Ending:
    returncode: int | None
    """None: it was killed at its deadline."""
    deadline_seconds: float
    output: str

    def __str__(self) -> str:
        said = f" ({_shortened(self.output)})" if self.output.strip() else ""
        if self.returncode is None:
            return f"did not end within {self.deadline_seconds:g} s{said}"
        return f"ended with {self.returncode}{said}"


def _run(command: Sequence[str], deadline_seconds: float) -> _Ending:
    """Runs a command to its end or its deadline, and kills what is left of its process group.

    :raises CriuUnavailableError: It cannot be started."""
    try:
        running = Supervised(command)
    except OSError as error:
        raise CriuUnavailableError(
            f"{shlex.quote(command[0])} cannot be run: {error.strerror}.",
            remedy="Install util-linux." if command[0] == _BOX[0] else _HOW_TO_GET_IT,
        ) from error
    waited = None
    try:
        waited = running.wait(time.monotonic() + deadline_seconds)
    finally:
        returncode = running.finish()
    return _Ending(returncode if waited is Waited.ENDED else None, deadline_seconds, running.output)
