"""The private directory of a job in /dev/shm, and the removal of those that nobody owns any more.

``/dev/shm/singularity-<uid>/<job>/owner`` is locked (flock) for as long as the job's launcher or guardian
lives.  Both share one open file, and neither hands it to a child.  A directory whose lock can be taken is
stale.  The lock on the parent directory itself makes creation and sweep exclude each other.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from .errors import LaunchError
from .later_changes import FILE_LOG, keep_changes
from .processes import end_members

OWNER_FILE = "owner"
_JOB_NAME = re.compile(r"\d{8}-\d{6}-[0-9a-f]{8}")


def jobs_root() -> Path:
    """The directory that holds this user's jobs."""
    return Path(f"/dev/shm/singularity-{os.getuid()}")


@contextlib.contextmanager
def _locked_root(root: Path, *, create: bool) -> Iterator[bool]:
    """Holds the lock on `root`; yields False when it does not exist and should not be made."""
    while True:
        if create:
            with contextlib.suppress(FileExistsError):
                root.mkdir(mode=0o700)
        try:
            descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            if create:
                continue
            yield False
            return
        except OSError as error:
            raise LaunchError(
                f"{root} cannot be used for jobs: {error.strerror}.", remedy=f"Remove {root}."
            ) from error
        try:
            found = os.fstat(descriptor)
            if found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
                raise LaunchError(
                    f"{root} belongs to user {found.st_uid} with mode {stat.S_IMODE(found.st_mode):04o}; it "
                    f"must be yours alone (0700).",
                    remedy=f"Remove {root}, or have its owner remove it.",
                )
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if os.fstat(descriptor).st_nlink == 0:  # the last job before us removed it
                continue
            yield True
            return
        finally:
            os.close(descriptor)


def ordinal_path(job: Path, ordinal: int) -> Path:
    """Where in the directory of `job` the door is through which ranks come to the device that they see as
    `ordinal`, and the files of their sessions.  Whichever proxy serves that device puts them there."""
    return job / f"ordinal-{ordinal}"


class JobDirectory:
    """A job's directory, owned by this process and those that it forks without exec."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._lock = lock

    @property
    def job(self) -> str:
        """The job's internal name."""
        return self.path.name

    @property
    def lock_descriptor(self) -> int:
        """The open, locked owner file; who holds it owns the directory."""
        return self._lock

    def ordinal_path(self, ordinal: int) -> Path:
        """`ordinal_path` of this job."""
        return ordinal_path(self.path, ordinal)

    def ordinal_directory(self, ordinal: int) -> Path:
        """`ordinal_path`, made if need be."""
        path = self.ordinal_path(ordinal)
        path.mkdir(mode=0o700, exist_ok=True)
        return path

    def exchange_directory(self) -> Path:
        """What the job's proxies share; made if need be."""
        path = self.path / "exchange"
        path.mkdir(mode=0o700, exist_ok=True)
        return path

    def new_exchange_directory(self) -> Path:
        """Another one, for proxies that take the place of those from before."""
        for number in itertools.count(1):
            path = self.path / f"exchange-{number}"
            with contextlib.suppress(FileExistsError):
                path.mkdir(mode=0o700)
                return path
        raise AssertionError("unreachable")

    @property
    def file_log(self) -> Path:
        """What the job's processes note about files."""
        return self.path / FILE_LOG

    def make_file_log(self) -> Path:
        """The log of files, empty.  Processes append to it, and do not make it."""
        path = self.file_log
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        return path

    def remove(self) -> None:
        """Removes the directory, and its parent when it was the last one.  Harmless when repeated."""
        with _locked_root(self.path.parent, create=False) as exists:
            if exists:
                keep_changes(self.path, ended=time.time())
                shutil.rmtree(self.path, ignore_errors=True)
                with contextlib.suppress(OSError):  # other jobs
                    self.path.parent.rmdir()


def new_job_name() -> str:
    """A name that sorts by time and is not in use."""
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(4)}"


def is_job_name(name: str) -> bool:
    """Whether `new_job_name` may have made it; so it is no path, either."""
    return _JOB_NAME.fullmatch(name) is not None


def create_job_directory(root: Path | None = None) -> JobDirectory:
    """Makes and locks a new job directory.  `LaunchError` when /dev/shm does not allow it."""
    root = root or jobs_root()
    job = new_job_name()
    try:
        with _locked_root(root, create=True):
            path = root / job
            path.mkdir(mode=0o700)
            lock = os.open(path / OWNER_FILE, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.write(lock, f"{os.getpid()}\n".encode())
    except OSError as error:
        raise LaunchError(
            f"No job directory can be made in {root}: {error.strerror or error}.",
            remedy="/dev/shm must be a writable tmpfs with space left; see `singularity-ctl doctor`.",
        ) from error
    return JobDirectory(path, lock)


def stale_jobs(root: Path | None = None) -> list[Path]:
    """Directories of jobs whose launcher and guardian are both gone."""
    root = root or jobs_root()
    with _locked_root(root, create=False) as exists:
        return [path for path in sorted(root.iterdir()) if _unowned(path)] if exists else []


def sweep_stale_jobs(root: Path | None = None) -> list[str]:
    """Ends what is left of stale jobs and removes their directories; returns their names."""
    root = root or jobs_root()
    swept = []
    with _locked_root(root, create=False) as exists:
        for path in sorted(root.iterdir()) if exists else ():
            if _unowned(path):
                end_members(path.name)
                keep_changes(path, ended=None)
                shutil.rmtree(path, ignore_errors=True)
                swept.append(path.name)
        if exists:
            with contextlib.suppress(OSError):  # other jobs
                root.rmdir()
    return swept


def _unowned(path: Path) -> bool:
    try:
        lock = os.open(path / OWNER_FILE, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return path.is_dir()  # its creator died between mkdir and open: we hold the lock on the parent
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(lock)
    return True
