"""What a restore of files has done so far, so that it can be undone, also by another process.

Each step is written down before it is taken, and each step that was undone after that.  So whoever reads the
journal of a killed process knows what *may* have been done; undoing is written so that it does no harm where
it was not.  This holds for killed processes; against a power failure a journal would have to be on the disk
at each step."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import stat
from pathlib import Path

import msgspec

from .file_attributes import dress
from .file_list import Attributes


class Step(msgspec.Struct, frozen=True, tag_field="did", forbid_unknown_fields=True):
    """Something that is about to be done; paths are bytes (base64 in JSON)."""

    path: bytes


class Staged(Step, frozen=True, tag="staged"):
    """A directory for what is not in place yet, and for what was moved aside."""


class Made(Step, frozen=True, tag="made"):
    """What was not there before."""


class Moved(Step, frozen=True, tag="moved"):
    """Moved aside, to `to`."""

    to: bytes


class Entered(Step, frozen=True, tag="entered"):
    """A directory whose entries change, and with them its time."""

    mtime_ns: int


class Dressed(Step, frozen=True, tag="dressed"):
    """Given other attributes than `before`."""

    before: Attributes


class Cut(Step, frozen=True, tag="cut"):
    """Cut to `size`; the rest is in `tail`."""

    size: int
    tail: bytes
    before: Attributes


class Undone(msgspec.Struct, frozen=True, tag_field="did", tag="undone"):
    """The last step that is not undone yet is undone."""


class Committed(msgspec.Struct, frozen=True, tag_field="did", tag="committed"):
    """The restore is complete: what was moved aside is waste."""


AnyStep = Staged | Made | Moved | Entered | Dressed | Cut
_Line = AnyStep | Undone | Committed
JOURNAL = "files.journal"


class FileJournal:
    """One restore's journal, in the directory `workspace`; used by one process at a time."""

    def __init__(self, workspace: Path) -> None:
        self.path = workspace / JOURNAL
        self.steps: list[AnyStep] = []
        self.committed = False
        self._descriptor = -1

    def begin(self) -> None:
        """Start a journal.  `BlockingIOError`: another restore is at work with it."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            self._descriptor = os.open(self.path, flags, 0o600)
        except FileExistsError as error:
            raise BlockingIOError(errno.EAGAIN, "another restore is at work here", str(self.path)) from error
        fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def load(self) -> bool:
        """Take up what another process left; False: there is nothing.  `BlockingIOError`: it is still at
        work."""
        try:
            self._descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self.leave()
            raise BlockingIOError(error.errno, "another restore is at work here", str(self.path)) from error
        end = 0
        for line in self.path.read_bytes().splitlines(keepends=True):
            try:
                step = msgspec.json.decode(line, type=_Line)
            except msgspec.DecodeError:  # the last one, not finished: its step was not begun
                break
            end += len(line)
            if isinstance(step, Undone):
                self.steps.pop()
            elif isinstance(step, Committed):
                self.committed = True
            else:
                self.steps.append(step)
        os.ftruncate(self._descriptor, end)
        return True

    def note(self, step: AnyStep) -> None:
        """To be called before the step is taken."""
        self._write(step)
        self.steps.append(step)

    def commit(self) -> None:
        """From here on the restore is not undone any more."""
        self._write(Committed())
        self.committed = True

    def undo(self) -> None:
        """Take all steps back, last first."""
        while self.steps:
            _undo(self.steps[-1])
            with contextlib.suppress(OSError):  # no room: then only who is killed right now leaves it unsaid
                self._write(Undone())
            self.steps.pop()

    def close(self) -> None:
        """Remove what was staged, and the journal.  `OSError`: both are there, for the next who comes."""
        try:
            for step in self.steps:
                if isinstance(step, Staged):
                    _clear(step.path)
            os.unlink(self.path)
        finally:
            self.leave()

    def leave(self) -> None:
        """Close the file, and leave the journal to whoever comes."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _write(self, line: _Line) -> None:
        data = msgspec.json.encode(line) + b"\n"
        if os.write(self._descriptor, data) != len(data):
            raise OSError(errno.ENOSPC, "No space left for the journal", str(self.path))


def _clear(stage: bytes) -> None:
    if os.path.lexists(stage):
        above = os.path.dirname(stage)
        time = os.lstat(above).st_mtime_ns
        shutil.rmtree(stage)
        _set_time(above, time)


def _set_time(directory: bytes, time: int) -> None:
    with contextlib.suppress(OSError):  # a directory of others, as /tmp
        os.utime(directory, ns=(time, time), follow_symlinks=False)


def _undo(step: AnyStep) -> None:
    if isinstance(step, Staged):
        _clear(step.path)
    elif isinstance(step, Made):
        remove(step.path)
    elif isinstance(step, Moved):
        if os.path.lexists(step.to):
            os.rename(step.to, step.path)
    elif isinstance(step, Entered):
        _set_time(step.path, step.mtime_ns)
    elif isinstance(step, Dressed):
        if os.path.lexists(step.path):
            dress(step.path, step.before)
    elif os.path.lexists(step.tail):
        with open(step.path, "r+b") as file, open(step.tail, "rb") as tail:
            file.truncate(step.size)
            file.seek(step.size)
            shutil.copyfileobj(tail, file)
        dress(step.path, step.before)


def remove(path: bytes) -> None:
    """Remove a file, or a directory that holds nothing of others."""
    with contextlib.suppress(FileNotFoundError):
        if stat.S_ISDIR(os.lstat(path).st_mode):
            with contextlib.suppress(OSError):  # not empty: somebody else's by now
                os.rmdir(path)
        else:
            os.unlink(path)
