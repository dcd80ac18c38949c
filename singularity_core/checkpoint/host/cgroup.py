"""Makes processes stand still with the freezer of cgroup version 2.

A cgroup is made below the one that the processes are in, frozen while it is still empty, and then they are
moved into it.  Each stands still as soon as it is in; what it forked before is found by looking again, and
what it would fork, it forks there.  Unlike with SIGSTOP no parent is told, and nobody else can let them go
on.  As with SIGSTOP, the kernel ends a few calls early (signal(7) lists them): `epoll_wait` fails with EINTR,
`recv` with MSG_WAITALL returns what is there.  No way to stop a process is without that.

All that is needed to undo it can be read from the hierarchy: thaw, move up, remove.  So anybody can, when
those who made it were killed (`hold_names`)."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from pathlib import Path

from .errors import HoldError
from .hold_names import is_abandoned, is_hold_name, new_hold_name
from .process_tree import PROC, read_status, tree_of

_EMPTY_SECONDS = 30.0
_GONE = (FileNotFoundError, ProcessLookupError)


class FreezerUnavailableError(Exception):
    """This machine, or this tree, is such that the freezer cannot be used; says why."""


def cgroup_of(pid: int, proc: Path = PROC) -> Path:
    """The directory of the cgroup that a process is in.

    :raises FreezerUnavailableError: There is no hierarchy of version 2, or it is in a part not seen here."""
    where = _path_in_hierarchy(pid, proc)
    for line in (proc / "self/mountinfo").read_text(errors="replace").splitlines():
        before, _, after = line.partition(" - ")
        if after.split()[0] != "cgroup2":
            continue
        top, mount = before.split()[3:5]
        if where == top or where.startswith(f"{top.rstrip('/')}/"):
            found = Path(mount) / os.path.relpath(where, top)
            if found.is_dir():
                return found
    raise FreezerUnavailableError(f"cgroup {where} is not mounted here")


def _path_in_hierarchy(pid: int, proc: Path) -> str:
    for line in (proc / str(pid) / "cgroup").read_text(errors="replace").splitlines():
        if line.startswith("0::"):
            where = line.removeprefix("0::")
            if where.startswith("/.."):
                raise FreezerUnavailableError("the processes' cgroup is outside of what is seen here")
            return where
    raise FreezerUnavailableError("there is no cgroup hierarchy of version 2")


class Freezer:
    """One cgroup that stands still."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @classmethod
    def make(cls, root: int, parent: Path, *, seconds: float, proc: Path = PROC) -> Freezer:
        """Make the tree of `root`, which is in the cgroup `parent`, stand still.

        :raises FreezerUnavailableError: It cannot be done this way; nothing was changed.
        :raises HoldError: It did not come to a standstill in time."""
        try:
            freezer = cls(parent / new_hold_name(os.getpid(), proc))
            freezer.directory.mkdir()
        except OSError as error:
            raise FreezerUnavailableError(f"{error.filename}: {error.strerror}") from error
        try:
            (freezer.directory / "cgroup.freeze").write_text("1")
            freezer._take_in(root, proc)
            freezer._wait_for("frozen", "1", time.monotonic() + seconds)
        except TimeoutError:
            busy = [pid for pid in freezer.pids() if (it := read_status(pid, proc)) and it.state == "D"]
            freezer.release()
            waits = f"process {busy[0]} waits for a device or file system" if busy else "the machine is busy"
            raise HoldError(
                f"The job did not come to a standstill within {seconds:g} s: {waits}.",
                remedy="Try again; if it stays so, see whether a file system or disk does not answer.",
            ) from None
        except OSError as error:
            freezer.release()
            raise FreezerUnavailableError(f"{error.filename}: {error.strerror}") from error
        except BaseException:
            freezer.release()
            raise
        return freezer

    def pids(self) -> list[int]:
        """The processes in it."""
        return [int(pid) for pid in (self.directory / "cgroup.procs").read_text().split()]

    def release(self) -> None:
        """Let all go on, where they were before.  Does nothing if that was done already."""
        with contextlib.suppress(*_GONE):
            (self.directory / "cgroup.freeze").write_text("0")
            while pids := self.pids():  # while they move they may fork
                for pid in pids:
                    _move(pid, self.directory.parent)
            self._remove()

    def kill(self) -> None:
        """End all in it, and return when they have ended."""
        with contextlib.suppress(*_GONE):
            (self.directory / "cgroup.freeze").write_text("1")  # so that none forks meanwhile
            for pid in self.pids():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            (self.directory / "cgroup.freeze").write_text("0")
            self._wait_for("populated", "0", time.monotonic() + _EMPTY_SECONDS)
            self._remove()

    def _take_in(self, root: int, proc: Path) -> None:
        taken: set[int] = set()
        outer = _path_in_hierarchy(root, proc)
        inner = f"{outer.rstrip('/')}/{self.directory.name}"
        while True:
            new = [it for it in tree_of(root, proc) if not it.has_ended and it.pid not in taken]
            if not new:
                return
            for status in new:
                taken.add(status.pid)
                with contextlib.suppress(*_GONE):
                    where = _path_in_hierarchy(status.pid, proc)
                    if where not in (outer, inner):
                        raise FreezerUnavailableError(f"process {status.pid} is in another cgroup, {where}")
                    _move(status.pid, self.directory)

    def _wait_for(self, key: str, value: str, until: float) -> None:
        with (self.directory / "cgroup.events").open() as events:
            poll = select.poll()
            poll.register(events, select.POLLPRI)
            while f"{key} {value}" not in events.read().splitlines():
                left = until - time.monotonic()
                if left <= 0:
                    raise TimeoutError
                poll.poll(left * 1000)
                events.seek(0)

    def _remove(self) -> None:
        until = time.monotonic() + _EMPTY_SECONDS
        while True:
            try:
                self.directory.rmdir()
                return
            except FileNotFoundError:
                return
            except OSError:  # a process that has just ended is in it for a moment
                with contextlib.suppress(FileNotFoundError):
                    self._wait_for("populated", "0", until)
                if time.monotonic() > until:
                    raise


def free_cgroup_of(root: int, proc: Path = PROC) -> Path:
    """The cgroup that a tree is in, when what was left there by keepers that were killed is undone.

    :raises FreezerUnavailableError: See `cgroup_of`.
    :raises HoldError: The tree is being held."""
    where = cgroup_of(root, proc)
    if is_hold_name(where.name):
        if not is_abandoned(where.name, proc):
            raise HoldError(
                "The job is being held for another checkpoint.", remedy="Try again when that one is taken."
            )
        where = where.parent
    release_abandoned(where, proc)
    return where


def release_abandoned(parent: Path, proc: Path = PROC) -> None:
    """Let all go on that is held below this cgroup by keepers that were killed."""
    for hold in abandoned_holds(parent, proc):
        Freezer(hold).release()


def abandoned_holds(parent: Path, proc: Path = PROC) -> list[Path]:
    """What was left in a directory by keepers that were killed."""
    return [entry for entry in parent.iterdir() if is_abandoned(entry.name, proc)]


def _move(pid: int, cgroup: Path) -> None:
    with contextlib.suppress(ProcessLookupError):
        (cgroup / "cgroup.procs").write_text(str(pid))
