"""What a job changed among files, kept when its processes have ended.

A resume sets a job back to a checkpoint.  What it made after that must not be there when it makes it again:
it would find its own results, or be refused because they exist.  So whoever removes a job's directory first
keeps its log of files, with the time at which nobody of the job could change anything any more: what was
touched later is not the job's work alone, and stays."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ..checkpoint.errors import StoreError
from ..checkpoint.file_list import FileList
from ..checkpoint.file_log import ChangeTracker, Excludes, decode_notes, encode_changes, is_within
from ..checkpoint.files import PathMapping, log_changes, since_checkpoint
from .known_stores import is_known, state_directory

FILE_LOG = "files.log"
"""In a job's directory: what its processes change among files."""
_ORIGIN = "origin"
_CLOCK_SECONDS = 0.1
"""The kernel's stamps on files are a little behind the clock, never before it."""


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """Of a job: in its directory, and at the beginning of what is kept."""

    job: str
    """Its name when it began."""
    work_directory: str
    """As it names it."""
    place: str
    """Where that is."""


@dataclass(frozen=True)
class LaterChanges:
    """What a job did to files after a checkpoint; names are the job's."""

    made: tuple[str, ...] = ()
    """Was not there at the checkpoint: to be removed.  Nothing in it is anybody else's."""
    touched: tuple[str, ...] = ()
    """The same, but somebody else has changed it since: stays."""
    altered: tuple[str, ...] = ()
    """Was there before the job, and no checkpoint holds what it was: stays as the job left it."""

    def warnings(self) -> Iterator[str]:
        """What is not as it was at the checkpoint, for people."""
        if self.altered:
            yield f"stays as the job left it after the checkpoint: {_named(self.altered)}"
        if self.touched:
            yield f"stays, for others changed it after the job had made it: {_named(self.touched)}"

    def plan(self) -> Iterator[str]:
        """The same, and what goes."""
        if self.made:
            yield f"goes, for the job made it after the checkpoint: {_named(self.made)}"
        yield from self.warnings()


def _named(paths: tuple[str, ...]) -> str:
    more = f" and {len(paths) - 3} more" if len(paths) > 3 else ""
    return ", ".join(paths[:3]) + more


def note_origin(directory: Path, origin: Origin) -> None:
    """At the beginning of a job."""
    (directory / _ORIGIN).write_bytes(msgspec.json.encode(origin))


def keep_changes(directory: Path, *, ended: float | None) -> None:
    """Before a job's directory is removed.  `ended`: when its processes had ended; None: nobody knows.
    Errors do not matter: then less is known."""
    with contextlib.suppress(OSError, StoreError, msgspec.DecodeError):
        origin = msgspec.json.decode((directory / _ORIGIN).read_bytes(), type=Origin)
        log = directory / FILE_LOG
        if directory.name == origin.job and not is_known(origin.job):
            return  # there is no checkpoint
        mapping = PathMapping([(origin.work_directory, origin.place)])
        changes = log_changes(log, mapping)
        folder = _folder(origin.job)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = folder / f".{directory.name}"
        draft.write_bytes(msgspec.json.encode(origin) + b"\n" + encode_changes(changes))
        when = log.stat().st_mtime if ended is None else ended
        os.utime(draft, (when, when))
        draft.rename(folder / directory.name)


def later_changes(files: FileList, origin: Origin, mapping: PathMapping) -> LaterChanges:
    """What a job did after the checkpoint with `files`, as far as it was here.  `origin`: what it is to go on
    as; what it did in another work directory is of no interest."""
    excludes = Excludes(["/dev/shm", *map(os.fsdecode, files.left_alone)])
    made: set[str] = set()
    touched: set[str] = set()
    altered: set[str] = set()
    for path in _kept(origin.job):
        with contextlib.suppress(OSError, msgspec.DecodeError):
            ended = path.stat().st_mtime + _CLOCK_SECONDS
            header, _, notes = path.read_bytes().partition(b"\n")
            before = msgspec.json.decode(header, type=Origin)
            since = since_checkpoint(files, ChangeTracker(decode_notes(notes)).changes(), excludes)
            elsewhere = before.place != origin.place
            for name in (*since.made, *since.altered):
                if not (elsewhere and is_within(name, before.work_directory)):
                    _sort(name, name in since.made, mapping(name), ended, (made, touched, altered))
    top = {path for path in made if not any(above in made for above in map(str, Path(path).parents))}
    return LaterChanges(tuple(sorted(top)), tuple(sorted(touched)), tuple(sorted(altered)))


def _sort(
    name: str, was_made: bool, here: str, ended: float, sets: tuple[set[str], set[str], set[str]]
) -> None:
    made, touched, altered = sets
    if not os.path.lexists(here):
        return
    if not was_made:
        altered.add(name)
    elif _untouched(here, ended):
        made.add(name)
    else:
        touched.add(name)


def _untouched(path: str, ended: float) -> bool:
    """Whether nobody has changed `path`, or anything below it, since."""
    found = os.lstat(path)
    if found.st_ctime > ended:
        return False
    if not stat.S_ISDIR(found.st_mode):
        return True
    return all(_untouched(os.path.join(path, each), ended) for each in os.listdir(path))


def forget_changes(job: str) -> None:
    """Its files are as they were at a checkpoint, or nobody will want that."""
    shutil.rmtree(_folder(job), ignore_errors=True)


def _kept(job: str) -> list[Path]:
    try:
        return sorted(path for path in _folder(job).iterdir() if not path.name.startswith("."))
    except OSError:
        return []


def _folder(job: str) -> Path:
    return state_directory() / "changed" / job
