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
from .processes import job_members

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


def take_restore_place(job: str, root: Path | None = None) -> RestorePlace:
    """The place for a job, by the name that it had when it began.  Waits for those who are cleaning up after
    a launcher that was killed.

    `LaunchError` when the job runs here, or when there can be no place."""
    path = (root or _state_directory()) / "singularity" / "restores" / job
    deadline = time.monotonic() + _END_SECONDS
    try:
        while (lock := _try_lock(path)) is None:
            if time.monotonic() > deadline:
                raise LaunchError("The job runs here already, or is just being resumed.", remedy=_REMEDY)
            time.sleep(0.1)
    except OSError as error:
        raise LaunchError(
            f"No place for notes about restored files: {path}: {error.strerror}.",
            remedy="Let XDG_STATE_HOME name a directory that can be written to.",
        ) from error
    place = RestorePlace(path, lock)
    while members := job_members(job):
        if time.monotonic() > deadline:
            place.close()
            raise LaunchError(
                f"The job runs here already: process {min(members)} is one of it.", remedy=_REMEDY
            )
        time.sleep(0.1)
    return place


_REMEDY = "`singularity-ctl status` lists the jobs that run; end it, or let it run on."


def _state_directory() -> Path:
    state = os.environ.get("XDG_STATE_HOME", "")
    return Path(state) if os.path.isabs(state) else Path.home() / ".local" / "state"


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
