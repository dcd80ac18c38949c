"""What a restore of files has done so far, so that it can be undone, also by another process.

Each step is written down before it is taken.  So whoever reads the journal of a killed process knows what
*may* have been done.  Whether it was, the stage says, the directory of files that are not in place: what was
put in place is missing there, what was moved aside is there.  Undoing reverses both.  So it needs no room in
the journal, and can begin again wherever it ended before; when the stage is gone, which takes one step,
nothing is undone any more.

This holds for killed processes; against a power failure a journal would have to be on the disk at each
step."""

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
    """A directory for what is not in place yet, and for what was moved aside.  Comes before all that changes
    anything."""


class Made(Step, frozen=True, tag="made"):
    """What was not there before; moved in from `staged`."""

    staged: bytes


class Moved(Step, frozen=True, tag="moved"):
    """Moved aside, to `to`."""

    to: bytes


class Entered(Step, frozen=True, tag="entered"):
    """A directory whose entries change, and with them its time."""

    mtime_ns: int


class Dressed(Step, frozen=True, tag="dressed"):
    """Given other attributes than `before`."""

    before: Attributes
    directory: bool


class Cut(Step, frozen=True, tag="cut"):
    """Cut to `size`; the rest is in `tail`."""

    size: int
    tail: bytes
    before: Attributes


AnyStep = Staged | Made | Moved | Entered | Dressed | Cut
JOURNAL = "files.journal"
_OPEN, _COMMITTED, _UNDONE = b"1 open\n", b"1 good\n", b"1 back\n"
"""The first line: the version, and how far it is; with the last two only the stages have to go.  Changed in
place, which takes no room."""
_PIECE = 1 << 20


class FileJournal:
    """One restore's journal, in the directory `workspace`; used by one process at a time."""

    def __init__(self, workspace: Path) -> None:
        self.path = workspace / JOURNAL
        self.steps: list[AnyStep] = []
        self.at = str(self.path)
        """What is being undone, or removed."""
        self._state = _OPEN
        self._descriptor = -1
        self._end = 0

    @property
    def committed(self) -> bool:
        """Whether the restore is complete: what was moved aside is waste."""
        return self._state == _COMMITTED

    @property
    def stages(self) -> list[bytes]:
        """Where files lie that are not in place."""
        return [step.path for step in self.steps if isinstance(step, Staged)]

    def begin(self) -> None:
        """Start a journal.  `BlockingIOError`: another restore is at work with it."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            self._descriptor = os.open(self.path, flags, 0o600)
        except FileExistsError as error:
            raise BlockingIOError(errno.EAGAIN, "another restore is at work here", str(self.path)) from error
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._append(_OPEN)
        except OSError:
            self._remove()
            raise

    def load(self) -> bool:
        """Take up what another process left; False: there is nothing.  `BlockingIOError`: it is still at
        work."""
        try:
            self._descriptor = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self.leave()
            raise BlockingIOError(error.errno, "another restore is at work here", str(self.path)) from error
        data = self.path.read_bytes()
        first, *lines = data.splitlines(keepends=True) or [b""]
        if first not in (_COMMITTED, _UNDONE) and not _OPEN.startswith(first):
            raise OSError(errno.EINVAL, "this is no journal that this release reads", str(self.path))
        self._state = first
        if lines and not lines[-1].endswith(b"\n"):  # not finished: its step was not begun
            del lines[-1]
        try:
            self.steps = [msgspec.json.decode(line, type=AnyStep) for line in lines]
        except msgspec.DecodeError as error:
            raise OSError(errno.EINVAL, f"it is damaged ({error})", str(self.path)) from error
        return True

    def note(self, step: AnyStep) -> None:
        """To be called before the step is taken."""
        self._append(msgspec.json.encode(step) + b"\n")
        self.steps.append(step)

    def commit(self) -> None:
        """From here on the restore is not undone any more."""
        self._mark(_COMMITTED)

    def undo(self) -> None:
        """Take all steps back, last first, unless they were committed, or taken back already."""
        if self._state in (_COMMITTED, _UNDONE) or not any(map(os.path.lexists, self.stages)):
            return
        for step in reversed(self.steps):
            self.at = os.fsdecode(step.path)
            _undo(step)
        with contextlib.suppress(OSError):  # then it is known by the stages, which are gone
            self._mark(_UNDONE)

    def close(self) -> None:
        """Remove what was staged, and the journal.  `OSError`: both are there, for the next who comes."""
        try:
            for stage in self.stages:
                self.at = os.fsdecode(stage)
                _clear(stage)
            for step in reversed(self.steps) if not self.committed else ():
                if isinstance(step, Entered):
                    _undo(step)  # also where somebody was killed who had just cleared a stage
            self.at = str(self.path)
            self._remove()
        finally:
            self.leave()

    def leave(self) -> None:
        """Close the file, and leave the journal to whoever comes."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _mark(self, state: bytes) -> None:
        os.pwrite(self._descriptor, state, 0)
        self._state = state

    def _remove(self) -> None:
        """Should it not go, it has no step left."""
        try:
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, 0)
            os.unlink(self.path)
        finally:
            self.leave()

    def _append(self, line: bytes) -> None:
        at, rest = self._end, line
        try:
            while rest:
                count = os.pwrite(self._descriptor, rest, at)
                at, rest = at + count, rest[count:]
        except OSError:
            with contextlib.suppress(OSError):  # a line without an end is not read
                os.ftruncate(self._descriptor, self._end)
            raise
        self._end = at


def _clear(stage: bytes) -> None:
    """The stage goes in one step, for a part of it would say that other things are in effect."""
    waste = stage + b"-waste"
    if not (os.path.lexists(stage) or os.path.lexists(waste)):
        return
    above = os.path.dirname(stage)
    time = os.lstat(above).st_mtime_ns
    with contextlib.suppress(FileNotFoundError):
        os.rename(stage, waste)
    shutil.rmtree(waste)
    _set_time(above, time)


def _set_time(directory: bytes, time: int) -> None:
    with contextlib.suppress(OSError):  # a directory of others, as /tmp
        os.utime(directory, ns=(time, time), follow_symlinks=False)


def _undo(step: AnyStep) -> None:
    if isinstance(step, Made):
        _take_out(step)
    elif isinstance(step, Moved):
        if os.path.lexists(step.to):
            if is_directory(step.path) or is_directory(step.to):
                remove(step.path)
            os.rename(step.to, step.path)
    elif isinstance(step, Entered):
        if is_directory(step.path):
            _set_time(step.path, step.mtime_ns)
    elif isinstance(step, Dressed):
        if os.path.lexists(step.path) and is_directory(step.path) == step.directory:
            dress(step.path, step.before)
    elif isinstance(step, Cut):
        _lengthen(step)


def _take_out(made: Made) -> None:
    """Back into the stage, and a directory that holds something of others not at all."""
    if os.path.lexists(made.staged) or not os.path.lexists(os.path.dirname(made.staged)):
        return
    if os.path.lexists(made.path) and not (is_directory(made.path) and os.listdir(made.path)):
        os.rename(made.path, made.staged)


def _lengthen(cut: Cut) -> None:
    """What was cut off follows again; what others have appended since is replaced, but not what they append
    behind it."""
    try:
        tail = open(cut.tail, "rb")  # noqa: SIM115
    except FileNotFoundError:
        return
    descriptor = os.open(cut.path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    with tail, open(descriptor, "r+b") as file:
        if file.seek(0, os.SEEK_END) < cut.size:
            raise OSError(errno.EINVAL, "it is shorter than it was when it was cut", os.fsdecode(cut.path))
        file.seek(cut.size)
        while (piece := tail.read(_PIECE)) and piece == file.read(len(piece)):
            pass
        if piece:
            file.truncate(cut.size)
            file.seek(cut.size)
            tail.seek(0)
            shutil.copyfileobj(tail, file)
    dress(cut.path, cut.before)


def is_directory(path: bytes) -> bool:
    """Itself, and not what it links to."""
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


def remove(path: bytes) -> None:
    """Remove a file, or a directory that holds nothing of others."""
    with contextlib.suppress(FileNotFoundError):
        if is_directory(path):
            with contextlib.suppress(OSError):  # not empty: somebody else's by now
                os.rmdir(path)
        else:
            os.unlink(path)
