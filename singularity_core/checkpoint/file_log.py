"""What a job changed among files, as the library in front of libc noted it.  Pure: bytes in, paths out.

The log (``interposers/files/log.c`` says why it is as it is) is a run of pieces, each between two NUL bytes:

    CHECKSUM KIND STATE FORM PATH        8 hexadecimal digits, 3 letters, and what no path lacks: a slash

KIND    ``E``: the file, directory or link of this name.  ``T``: a directory came or went under this
        name, and all that was in it along with it (a rename).
STATE   ``0``, ``1``: whether there was something of this name before the call.  ``-``: the call failed,
        and takes back one note of the same kind and path.
FORM    ``c``: a path without symbolic links.  ``w``: as the program wrote it, made absolute.

Notes are written before the call.  So what is noted may not have happened, but nothing happened that is not
noted, and the first note of a path says what was there when the job began."""

from __future__ import annotations

import enum
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

LOG_VARIABLE: Final = "SINGULARITY_FILE_LOG"
"""Tells ranks where the log is."""

_PIECE = re.compile(rb"([0-9a-f]{8}) (([ET])([01-])([cw]) (/.*))", re.DOTALL)


class Gap(enum.Flag):
    """Why a log does not say everything: bits in its file mode, which can be set when nothing can be
    written."""

    FULL = 0o100
    DESCRIPTORS = 0o010
    OTHER = 0o001


GAP_REASONS = {
    Gap.FULL: "it could not be appended to (a full /dev/shm, or a limit on file sizes)",
    Gap.DESCRIPTORS: "a process had no descriptor left",
    Gap.OTHER: "a process changed its root directory, or used paths that could not be found out",
}


def gaps_of(mode: int) -> list[str]:
    """In words, why a log whose file has this mode is incomplete; empty for a complete one."""
    return [reason for gap, reason in GAP_REASONS.items() if mode & gap.value]


@dataclass(frozen=True)
class FileNote:
    """One piece of the log."""

    path: str
    existed: bool | None
    """None: takes a note back."""
    tree: bool = False
    canonical: bool = True


@dataclass(frozen=True)
class Change:
    """A path that the job may have changed."""

    existed: bool
    """Before the job first had to do with it."""
    tree: bool = False
    """All below it may have changed as well, without a note of each."""


def decode_notes(log: bytes) -> Iterator[FileNote]:
    """The notes in `log`, in order.  What is not whole is left out: its process was killed before its
    call."""
    for piece in log.split(b"\0"):
        found = _PIECE.fullmatch(piece)
        if found and int(found[1], 16) == zlib.crc32(found[2]):
            existed = None if found[4] == b"-" else found[4] == b"1"
            yield FileNote(os.fsdecode(found[6]), existed, found[3] == b"T", found[5] == b"c")


def encode_note(note: FileNote) -> bytes:
    """The piece for a note: what the C code writes."""
    state = "-" if note.existed is None else str(int(note.existed))
    head = f"{'T' if note.tree else 'E'}{state}{'c' if note.canonical else 'w'} "
    text = head.encode() + os.fsencode(note.path)
    return b"\0%08x " % zlib.crc32(text) + text + b"\0"


def encode_changes(changes: Mapping[str, Change]) -> bytes:
    """A log that says no more and no less than `changes`."""
    return b"".join(
        encode_note(FileNote(path, change.existed, change.tree)) for path, change in sorted(changes.items())
    )


@dataclass
class _Tally:
    existed: bool
    entries: int = 0
    trees: int = 0


class ChangeTracker:
    """Adds notes up.  The order of notes of one path counts, that of different paths does not."""

    def __init__(self, notes: Iterable[FileNote] = ()) -> None:
        self._paths: dict[str, _Tally] = {}
        for note in notes:
            self.add(note)

    def add(self, note: FileNote) -> None:
        """Take one more note into account."""
        tally = self._paths.get(note.path)
        if tally is None:
            if note.existed is None:  # of a note that was lost
                return
            tally = self._paths[note.path] = _Tally(note.existed)
        step = -1 if note.existed is None else 1
        if note.tree:
            tally.trees += step
        else:
            tally.entries += step

    def changes(self) -> dict[str, Change]:
        """What may have changed."""
        return {
            path: Change(tally.existed, tally.trees > 0)
            for path, tally in self._paths.items()
            if tally.trees > 0 or tally.entries > 0
        }


class FileKind(enum.Enum):
    """What is to be found under a path."""

    DIRECTORY = "directory"
    OTHER = "other"
    NOTHING = "nothing"


@dataclass(frozen=True)
class Settled:
    """What becomes of changes when one looks at what is there now.  All paths are disjoint from `deleted`."""

    present: tuple[str, ...]
    """Files, links, and directories (these alone, not what is in them)."""
    whole: tuple[str, ...]
    """Directories that are exactly what is in them now."""
    deleted: tuple[str, ...]
    """What was there before the job and is not any more, with all below it."""


def path_order(path: str) -> list[str]:
    """Sorts a directory directly before all that is in it."""
    return path.split("/")


class Excludes:
    """Paths that a checkpoint leaves alone: they and all below them are neither carried nor deleted."""

    ALWAYS = ("/dev", "/proc", "/sys")

    def __init__(self, paths: Iterable[str] = ()) -> None:
        self.shared = tuple(path.rstrip("/") or "/" for path in paths)

    def __contains__(self, path: str) -> bool:
        return self.is_shared(path) or any(is_within(path, excluded) for excluded in self.ALWAYS)

    def is_shared(self, path: str) -> bool:
        """Whether it is left alone because the user, or the launcher, said so."""
        return any(is_within(path, excluded) for excluded in self.shared)


def is_within(path: str, directory: str) -> bool:
    """Whether `path` is `directory` or below it; both without symbolic links."""
    return path == directory or path.startswith("/" if directory == "/" else directory + "/")


Look = Callable[[str], FileKind]
"""Says what a path is now, without following links."""


def settle(changes: dict[str, Change], excludes: Excludes, look: Look) -> Settled:
    """Decide what travels.  What lies below a path that is gone, or is no directory now, is gone with it."""
    present: list[str] = []
    whole: list[str] = []
    deleted: list[str] = []
    covering: str | None = None
    for path in sorted(changes, key=path_order):
        if path in excludes or (covering is not None and is_within(path, covering)):
            continue
        change, kind = changes[path], look(path)
        if kind is FileKind.NOTHING:
            covering = path
            if change.existed:
                deleted.append(path)
        elif kind is FileKind.DIRECTORY and change.tree:
            covering = path
            whole.append(path)
        else:
            covering = path if kind is FileKind.OTHER else covering
            present.append(path)
    return Settled(tuple(present), tuple(whole), tuple(deleted))
