"""Where it is noted what a resume does to the files of a job, so that somebody can take it back.

One resume, and then the job that comes from it, has the place at a time: two would write to the same files.
It is locked (flock) by its launcher and the guardian, who share one open file, as they do the job's
directory."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from pathlib import Path

from ..checkpoint.files import recover_files
from .errors import LaunchError
from .job_directory import OWNER_FILE, jobs_root
from .known_stores import state_directory
from .processes import job_members, process_table

_LOCK = "lock"
_END_SECONDS = 45.0
"""So long the guardian of a launcher that was killed may take to end its job."""


class RestorePlace:
    """The place for one job, taken until `close`."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        """A directory that outlives this process."""
        self.lock_descriptor = lock

    def recover(self) -> None:
        """Takes back what was done to files, if that was not completed; the job's processes have ended."""
        recover_files(self.path)

    def close(self) -> None:
        """Gives it up; nothing is left, unless files still have to be taken back."""
        with contextlib.suppress(OSError):  # the journal is there
            if os.listdir(self.path) == [_LOCK] and _is_file(self.lock_descriptor, self.path / _LOCK):
                os.unlink(self.path / _LOCK)
                self.path.rmdir()
        os.close(self.lock_descriptor)


def take_restore_place(job: str) -> RestorePlace:
    """The place for a job, by the name that it had when it began.  Waits for those who are cleaning up after
    a launcher that was killed.

    `LaunchError` when the job runs here, or when there can be no place."""
    path = state_directory() / "restores" / job
    deadline = time.monotonic() + _END_SECONDS
    try:
        while (lock := _try_lock(path)) is None:
            _refuse(_launcher_in(path / _LOCK), "it runs, or is just being resumed", deadline)
    except OSError as error:
        raise LaunchError(
            f"No place for notes about restored files: {path}: {error.strerror}.",
            remedy="Let XDG_STATE_HOME name a directory that can be written to.",
        ) from error
    place = RestorePlace(path, lock)
    try:
        while members := job_members(job):
            launcher = _launcher_in(jobs_root() / job / OWNER_FILE)
            _refuse(launcher, f"process {min(members)} is one of it", deadline)
    except BaseException:
        place.close()
        raise
    return place


def _refuse(launcher: int | None, why: str, deadline: float) -> None:
    """If somebody still runs the job, or does not come to an end with it; else waits a little."""
    if launcher is not None or time.monotonic() > deadline:
        of = "" if launcher is None else f" (its launcher is process {launcher})"
        raise LaunchError(
            f"The job is here already: {why}{of}.",
            remedy="`singularity-ctl status` lists the jobs that run; end it, or let it run on.",
        )
    time.sleep(0.1)


def _launcher_in(path: Path) -> int | None:
    """The launcher that wrote its number there; None if it does not run any more."""
    try:
        pid = int(path.read_text())
        entry = process_table().get(pid)
    except (OSError, ValueError):
        return None
    return None if entry is None or entry.zombie else pid


def _try_lock(path: Path) -> int | None:
    """The locked file in the directory `path`, which is made if need be; None: somebody else has it."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        lock = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except FileNotFoundError:  # it was just removed
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _is_file(lock, path / _LOCK):  # not removed by who had it
            os.ftruncate(lock, 0)
            os.write(lock, f"{os.getpid()}\n".encode())
            return lock
    except BlockingIOError:
        pass
    os.close(lock)
    return None


def _is_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path, follow_symlinks=False))
    except FileNotFoundError:
        return False
