"""Finds jobs of this user, and talks to their agents."""

from __future__ import annotations

import os
import socket
import stat
import struct
import time
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
from .job_directory import jobs_root

ANSWER_SECONDS = 10.0
"""For what an agent answers at once."""
_LONGEST_REPLY = 1 << 24
_CREDENTIALS = struct.Struct("3i")
_R = TypeVar("_R", bound=Reply)


class JobGoneError(LaunchError):
    """Nobody answers for the job (any more)."""


@dataclass(frozen=True)
class FoundJob:
    """A job whose launcher answers."""

    path: Path
    status: JobStatus


def find_jobs() -> list[FoundJob]:
    """All jobs of this user that answer, oldest first."""
    found = []
    for path in _job_directories():
        try:
            found.append(FoundJob(path, ask(path, StatusRequest(), JobStatus)))
        except JobGoneError:  # it ended meanwhile, or its launcher was killed
            continue
    return found


def find_job(name: str | None) -> FoundJob:
    """The job called `name`: its id (--rdzv-id), its internal name, or a unique beginning of that.  Without
    a name, the only one.  `LaunchError` when there is none, or more than one."""
    jobs = find_jobs()
    if name is not None:
        exact = [job for job in jobs if name in (job.status.run_id, job.status.job)]
        jobs = exact or [job for job in jobs if job.status.job.startswith(name)]
    if len(jobs) == 1:
        return jobs[0]
    if not jobs:
        raise JobGoneError(
            f"No job {name!r} of yours runs here." if name is not None else "No job of yours runs here.",
            remedy="`singularity-ctl status` lists those that do." if name is not None else "",
        )
    listed = ", ".join(f"{job.status.job} ({job.status.run_id})" for job in jobs)
    raise LaunchError(f"Several jobs match: {listed}.", remedy="Name one of them.", exit_code=2)


def ask(job: Path, request: AnyRequest, expected: type[_R], *, seconds: float = ANSWER_SECONDS) -> _R:
    """Asks the agent of the job with directory `job`, and waits for its answer.  `JobGoneError` when nobody
    answers within `seconds`, `LaunchError` with the agent's reason when it refuses."""
    try:
        reply = decode_reply(_exchange(job, encode(request), time.monotonic() + seconds))
    except (OSError, ValueError) as error:
        why = f"no answer within {seconds:.0f} s" if isinstance(error, TimeoutError) else str(error)
        raise JobGoneError(
            f"Job {job.name} does not answer: {why}.", remedy="Is it of the same release of singularity-hal?"
        ) from error
    return _expect(job, reply, expected)


def _expect(job: Path, reply: AnyReply, expected: type[_R]) -> _R:
    if isinstance(reply, expected):
        return reply
    if isinstance(reply, Refusal):
        raise LaunchError(reply.cause, remedy=reply.remedy)
    raise JobGoneError(f"Job {job.name} answers with a {type(reply).__name__}.")


def _exchange(job: Path, line: bytes, deadline: float) -> bytes:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(_left(deadline))
        connection.connect(str(job / AGENT_SOCKET))
        _, user, _ = _CREDENTIALS.unpack(
            connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        )
        if user not in (0, os.getuid()):
            raise ValueError(f"the agent belongs to user {user}")
        connection.sendall(line)
        received = bytearray()
        while not received.endswith(b"\n") and len(received) <= _LONGEST_REPLY:
            connection.settimeout(_left(deadline))
            data = connection.recv(1 << 16)
            if not data:
                raise ValueError("its launcher ended")
            received += data
        return bytes(received)


def _left(deadline: float) -> float:
    return max(0.001, deadline - time.monotonic())


def _job_directories() -> list[Path]:
    root = jobs_root()
    try:
        about = root.lstat()
        if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid():
            return []
        return sorted(path for path in root.iterdir() if (path / AGENT_SOCKET).exists())
    except FileNotFoundError:
        return []
