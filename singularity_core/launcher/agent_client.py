"""Finds jobs of this user, and talks to their agents."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import struct
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from .agent_messages import (
    AGENT_SOCKET,
    AnyReply,
    AnyRequest,
    JobStatus,
    Refusal,
    Reply,
    StatusRequest,
    decode_reply,
    encode,
)
from .errors import LaunchError
from .job_directory import OWNER_FILE, jobs_root

ANSWER_SECONDS = 10.0
"""For what an agent answers at once."""
LISTING_SECONDS = 5.0
"""For the same while looking for jobs."""
START_ONE = "`singularity-run` starts one."
STATUS_LISTS = "`singularity-ctl status` lists the jobs that run."
_OTHER_RELEASE = "Use the singularity-ctl of the installation that started it."
_LONGEST_REPLY = 1 << 24
_CREDENTIALS = struct.Struct("3i")
_R = TypeVar("_R", bound=Reply)


class JobGoneError(LaunchError):
    """There is no such job (any more)."""


class JobSilentError(LaunchError):
    """There is a job, but its launcher gives no answer that we understand."""


@dataclass(frozen=True)
class FoundJob:
    """A job whose launcher answers."""

    path: Path
    status: JobStatus


@dataclass(frozen=True)
class FoundJobs:
    """What runs here, oldest first."""

    jobs: list[FoundJob]
    silent: dict[str, LaunchError]
    """Internal names of the others, with what is wrong with each."""


def find_jobs() -> FoundJobs:
    """All jobs of this user; of all users, for root."""
    found = FoundJobs([], {})

    def look(path: Path) -> JobStatus | LaunchError:
        try:
            return ask(path, StatusRequest(), JobStatus, seconds=LISTING_SECONDS)
        except LaunchError as error:
            return error

    paths = _job_directories()
    with ThreadPoolExecutor(max_workers=16) as threads:  # one that hangs delays the others only once
        answers = list(threads.map(look, paths))
    for path, answer in zip(paths, answers, strict=True):
        if isinstance(answer, JobStatus):
            found.jobs.append(FoundJob(path, answer))
        elif not isinstance(answer, JobGoneError):
            found.silent[path.name] = answer
    return found


def find_job(name: str | None) -> FoundJob:
    """The job called `name`: its id (--rdzv-id), its internal name, or a unique beginning of that.  Without
    a name, the only one.  `LaunchError` when there is none, or more than one, or it does not answer."""
    found = find_jobs()
    jobs, silent = found.jobs, found.silent
    if name is not None:
        exact = [job for job in jobs if name in (job.status.run_id, job.status.job)]
        jobs = exact or [job for job in jobs if job.status.job.startswith(name)]
        silent = {} if exact else {job: why for job, why in silent.items() if job.startswith(name)}
    if len(jobs) == 1 and not silent:
        return jobs[0]
    if len(silent) == 1 and not jobs:
        raise next(iter(silent.values()))
    if not jobs and not silent:
        hidden = "".join(f"  {error.cause}" for error in found.silent.values())  # one of them may be it
        raise JobGoneError(
            (f"No job {name!r} of yours runs here." if name is not None else "No job of yours runs here.")
            + hidden,
            remedy=STATUS_LISTS if name is not None else START_ONE,
        )
    listed = [f"{job.status.job} ({job.status.run_id})" for job in jobs]
    listed += [f"{job} (does not answer)" for job in silent]
    raise LaunchError(f"Several jobs match: {', '.join(listed)}.", remedy="Name one of them.", exit_code=2)


def ask(job: Path, request: AnyRequest, expected: type[_R], *, seconds: float = ANSWER_SECONDS) -> _R:
    """Asks the agent of the job with directory `job`, and waits for its answer.  `JobGoneError` when nobody
    is there, `JobSilentError` when no answer comes within `seconds` or it is none, `LaunchError` with the
    agent's reason when it refuses."""
    try:
        reply = decode_reply(_exchange(job, encode(request), time.monotonic() + seconds))
    except TimeoutError as error:
        pid = _launcher_pid(job)
        raise JobSilentError(
            f"Job {job.name} (launcher pid {pid}) does not answer: no answer within {seconds:.0f} s.",
            remedy=f"`kill -CONT {pid}` if it is stopped; `kill -KILL {pid}` ends the job.",
        ) from error
    except OSError as error:
        gone = isinstance(error, FileNotFoundError | ConnectionError)
        raise (JobGoneError if gone else JobSilentError)(
            f"Job {job.name} does not answer: {error.strerror or error}.", remedy=STATUS_LISTS
        ) from error
    except ValueError as error:
        raise JobSilentError(
            f"Job {job.name} (launcher pid {_launcher_pid(job)}) answers what is not understood: {error}.",
            remedy=_OTHER_RELEASE,
        ) from error
    return _expect(job, reply, expected)


def _launcher_pid(job: Path) -> str:
    try:
        return str(int((job / OWNER_FILE).read_text()[:32]))
    except (OSError, ValueError):
        return "unknown"


def _expect(job: Path, reply: AnyReply, expected: type[_R]) -> _R:
    if isinstance(reply, expected):
        return reply
    if isinstance(reply, Refusal):
        raise LaunchError(reply.cause, remedy=reply.remedy)
    raise JobSilentError(
        f"Job {job.name} answers with a {type(reply).__name__}.",
        remedy=_OTHER_RELEASE,
    )


def _exchange(job: Path, line: bytes, deadline: float) -> bytes:
    owner = job.lstat().st_uid
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(_left(deadline))
        connection.connect(str(job / AGENT_SOCKET))
        _, user, _ = _CREDENTIALS.unpack(
            connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        )
        if user not in (0, owner):
            raise ValueError(f"the agent belongs to user {user}")
        connection.sendall(line)
        received = bytearray()
        while not received.endswith(b"\n") and len(received) <= _LONGEST_REPLY:
            connection.settimeout(_left(deadline))
            data = connection.recv(1 << 16)
            if not data:
                raise ConnectionAbortedError("its launcher ended")
            received += data
        return bytes(received)


def _left(deadline: float) -> float:
    return max(0.001, deadline - time.monotonic())


def _job_directories() -> list[Path]:
    return sorted(
        (job for root in _roots() for job in root.iterdir() if _is_socket(job / AGENT_SOCKET)),
        key=lambda job: job.name,
    )


def _roots() -> list[Path]:
    """Where jobs may be: this user's, or for root everybody's.  Only what belongs to whom its name says."""
    mine = jobs_root()
    roots = sorted(mine.parent.glob("singularity-*")) if os.getuid() == 0 else [mine]
    found = []
    for root in roots:
        user = root.name.removeprefix("singularity-")
        with contextlib.suppress(FileNotFoundError):
            about = root.lstat()
            if stat.S_ISDIR(about.st_mode) and str(about.st_uid) == user:
                found.append(root)
    return found


def _is_socket(path: Path) -> bool:
    try:
        return stat.S_ISSOCK(path.lstat().st_mode)
    except OSError:
        return False
