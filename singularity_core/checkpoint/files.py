"""The files of a job in a checkpoint, as others use it.

What the job changed says the log of the library in front of libc (`log_changes`), which misses programs that
do without libc.  A box has no overlay (decision 0009); where there is one, its upper directory says it, and
misses nothing (`overlay_changes`).  What the job has open (`open_files`) is added to either.

A checkpoint takes files while the job stands still at the cut; what it only uses may be hashed later::

    changes = log_changes(directory.file_log)              # or overlay_changes(upper, "/")
    excludes = Excludes([*shared_mounts, str(directory.path), store_directory])
    with store.write(job) as writer:
        files = capture_files(writer, changes, open_files(pids), excludes=excludes)
        ...                                                # store the ranks; then the job may run on
        files.finish(writer, digests)                      # one FileDigests for all checkpoints of a job
        writer.commit()

A resume verifies first (`HostFilesDifferError` names what is not as it was, and nothing has changed), then
switches all files, and takes them back if what happens inside fails::

    with store.read(checkpoint) as reader, restored_files(reader, workspace=state_directory):
        resume_log(reader, directory.make_file_log())      # processes remember what they noted
        ...                                                # bring the ranks back

``workspace`` outlives the process: after a kill the next call, or `recover_files`, takes back what was left.
A job that is set back while its own later changes are there wants `since_checkpoint` first."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from .errors import StoreError
from .file_capture import CapturedFiles, FileCaptureError, JobRoot, capture_files
from .file_digests import FileDigests
from .file_list import NOTES_OBJECT, FileList, FileListError
from .file_log import (
    LOG_VARIABLE,
    Change,
    ChangeTracker,
    Excludes,
    FileNote,
    decode_notes,
    encode_changes,
    gaps_of,
    is_within,
)
from .file_needs import FileRestoreError, HostFilesDifferError, PathMapping, differences, read_file_list
from .file_restore import FilesInBetweenError, recover_files, restore_files, restored_files
from .open_files import OpenFile, ProcessUnreadableError, open_files
from .overlay import overlay_changes
from .reader import CheckpointReader

__all__ = [
    "LOG_VARIABLE",
    "CapturedFiles",
    "Change",
    "Excludes",
    "FileCaptureError",
    "FileDigests",
    "FileList",
    "FileListError",
    "FileRestoreError",
    "FilesInBetweenError",
    "HostFilesDifferError",
    "IncompleteFileLogError",
    "JobRoot",
    "OpenFile",
    "PathMapping",
    "ProcessUnreadableError",
    "Since",
    "capture_files",
    "differences",
    "log_changes",
    "open_files",
    "overlay_changes",
    "read_file_list",
    "recover_files",
    "restore_files",
    "restored_files",
    "resume_log",
    "since_checkpoint",
]

MOST_LINKS = 40
"""As many as the kernel follows."""


class IncompleteFileLogError(StoreError):
    """The log does not say everything that the job changed."""


def log_changes(path: Path, root: Callable[[str], str] | None = None) -> dict[str, Change]:
    """What the job changed, by its log.  `root`: where we find what the job calls a path.
    `IncompleteFileLogError` if something is missing there."""
    root = root or JobRoot()
    data = path.read_bytes()
    gaps = gaps_of(stat.S_IMODE(path.stat().st_mode))  # after the data: a gap may come meanwhile
    if gaps:
        raise IncompleteFileLogError(
            f"What the job changed among files is not known in full: {'; '.join(gaps)}.",
            remedy="Remove the reason, and start the job again, or resume it from an earlier checkpoint.",
        )
    tracker = ChangeTracker()
    for note in decode_notes(data):
        for each in [note] if note.canonical else _canonical(note, root):
            tracker.add(each)
    return tracker.changes()


def resume_log(reader: CheckpointReader, path: Path, mapping: PathMapping | None = None) -> None:
    """Begin the log at `path`, an empty file, with what the checkpoint knew to have changed.

    To be called before the job's processes come back: they do not note again what they noted before.
    `mapping` is for a job that itself finds its files elsewhere from now on, not one in another root."""
    mapping = mapping or PathMapping()
    known = ChangeTracker(decode_notes(reader.read(NOTES_OBJECT))).changes()
    with open(path, "r+b") as log:
        log.write(encode_changes({mapping(name): change for name, change in known.items()}))


@dataclass(frozen=True)
class Since:
    """What a job changed after a checkpoint and not before."""

    made: tuple[str, ...]
    """Was not there at the checkpoint: `remove_paths` for `restored_files`."""
    altered: tuple[str, ...]
    """Was there already before the job.  No checkpoint holds what it was; a restore leaves it as it is."""


def since_checkpoint(files: FileList, changes: Mapping[str, Change], excludes: Excludes) -> Since:
    """Compare what the job has changed by now with the checkpoint that it is to be set back to."""
    known = {*files.paths, *map(os.fsdecode, files.deleted)}
    whole = [os.fsdecode(path) for path in files.whole]
    later = {
        path: change
        for path, change in sorted(changes.items())
        if path not in known and path not in excludes and not any(is_within(path, each) for each in whole)
    }
    return Since(
        made=tuple(path for path, change in later.items() if not change.existed),
        altered=tuple(path for path, change in later.items() if change.existed),
    )


def _canonical(note: FileNote, root: Callable[[str], str]) -> Iterator[FileNote]:
    """A path as it was written, without its links: the name itself, and what it leads to."""
    directory, name = os.path.split(note.path.rstrip("/"))
    itself = os.path.join(_resolve(directory, root), name)
    for path in dict.fromkeys((itself, _resolve(itself, root))):
        yield FileNote(os.path.normpath(path), note.existed, note.tree)


def _resolve(path: str, root: Callable[[str], str]) -> str:
    """As os.path.realpath, where `/` is the job's."""
    done, rest, links = "/", path.split("/"), 0
    while rest:
        part = rest.pop(0)
        if part in ("", "."):
            continue
        step = os.path.dirname(done) if part == ".." else os.path.join(done, part)
        try:
            target = os.readlink(root(step)) if part != ".." and links < MOST_LINKS else ""
        except OSError:  # no link, or nothing
            target = ""
        if target:
            links += 1
            rest = target.split("/") + rest
            done = "/" if target.startswith("/") else done
        else:
            done = step
    return done
