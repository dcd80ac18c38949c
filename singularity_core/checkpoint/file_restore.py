"""Puts the files of a checkpoint back, all of them or none.

First everything is looked at and written beside its place, which is what takes time and may fail; nothing is
changed by that.  Then paths are switched by renames, and what was there is moved aside, step by step with a
journal (`file_journal`).  A failure takes the steps back; a killed restore is taken back by the next call
with the same workspace.  What was moved aside is removed in the end.

Paths of the job may lie elsewhere here: `PathMapping`.  What symbolic links contain is not changed."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from .errors import StoreError
from .file_attributes import attributes_of, dress
from .file_digests import FileDigests
from .file_journal import (
    Cut,
    Dressed,
    Entered,
    FileJournal,
    Made,
    Moved,
    Staged,
    is_directory,
)
from .file_list import (
    AnyEntry,
    Attributes,
    DirectoryEntry,
    FileList,
    FileListError,
    HardLinkEntry,
    RegularEntry,
    Run,
    SpecialEntry,
    SymlinkEntry,
)
from .file_log import path_order
from .file_needs import FileRestoreError, HostFilesDifferError, PathMapping, differences, read_file_list
from .reader import CheckpointReader

STAGE_PREFIX = b".singularity-restore-"


class FilesInBetweenError(StoreError):
    """A restore could not be taken back, or not be finished: some files are as before, others are not."""

    def __init__(self, journal: FileJournal, error: OSError) -> None:
        stages = ", ".join(map(os.fsdecode, journal.stages)) or "no directory"
        super().__init__(
            f"What a restore did to files cannot be taken back in full: {journal.at}: "
            f"{error.strerror or error}. The journal {journal.path} says what is left to do; what was moved "
            f"aside is in {stages}.",
            remedy="Leave these alone, and see that the place is writable for this user, has room, and that "
            "nothing is in the way; then resume again, which takes the rest back first.",
        )


@contextlib.contextmanager
def restored_files(
    reader: CheckpointReader,
    *,
    workspace: Path,
    mapping: PathMapping | None = None,
    remove_paths: Iterable[str] = (),
    digests: FileDigests | None = None,
    end_users: Callable[[], None] = lambda: None,
) -> Iterator[FileList]:
    """Put the files back for what happens inside: if that raises, they are taken away again.

    `FileRestoreError`, or an error of the store, before anything happens inside: nothing has changed, unless
    it is a `FilesInBetweenError`.  `workspace` is a directory for the journal; an interrupted restore in it
    is taken back first.  `remove_paths` go as well: what the job made after the checkpoint, if it ran on from
    there.  `end_users` ends those who may have begun to use the files, before these are taken away, also when
    it is the end of the restore that fails."""
    files, mapping = read_file_list(reader), mapping or PathMapping()
    recover_files(workspace)
    found = differences(files, mapping, digests)
    if found:
        raise HostFilesDifferError(found)
    journal = FileJournal(workspace)
    try:
        journal.begin()
    except OSError as error:
        raise _failed(error, str(journal.path)) from error
    restore = _Restore(reader, files, mapping, journal)
    try:
        with _named(restore):
            restore.run(remove_paths)
        try:
            yield files
            with _named(restore):
                journal.commit()
        except BaseException:
            end_users()
            raise
    except BaseException:
        _take_back(journal)
        raise
    with contextlib.suppress(OSError):  # waste is left to `recover_files`
        journal.close()


def restore_files(
    reader: CheckpointReader,
    *,
    workspace: Path,
    mapping: PathMapping | None = None,
    remove_paths: Iterable[str] = (),
    digests: FileDigests | None = None,
) -> FileList:
    """As `restored_files`, for good."""
    with restored_files(
        reader, workspace=workspace, mapping=mapping, remove_paths=remove_paths, digests=digests
    ) as files:
        return files


@contextlib.contextmanager
def _named(restore: _Restore) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _failed(error, restore.at) from error


def recover_files(workspace: Path) -> bool:
    """Finish or take back a restore that was interrupted; whether there was one.  `FilesInBetweenError`: it
    is still to be done."""
    journal = FileJournal(workspace)
    try:
        if not journal.load():
            return False
    except OSError as error:
        journal.leave()
        raise _failed(error, str(journal.path)) from error
    _take_back(journal)
    return True


def _take_back(journal: FileJournal) -> None:
    try:
        journal.undo()
        journal.close()
    except OSError as error:
        raise FilesInBetweenError(journal, error) from error
    finally:
        journal.leave()


def _failed(error: OSError, at: str) -> FileRestoreError:
    return FileRestoreError(
        f"{at} cannot be restored: {error.strerror or error}.",
        remedy="See that the place is writable for this user and has room, or restore elsewhere.",
    )


class _Restore:
    """One run.  All paths here are where things go, as bytes; `at` is what an error is about."""

    def __init__(
        self, reader: CheckpointReader, files: FileList, mapping: PathMapping, journal: FileJournal
    ) -> None:
        self.at = ""
        self._files = files
        self._mapping = mapping
        self._journal = journal
        self._contents = _Contents(reader)
        self._targets: dict[bytes, AnyEntry] = {}
        self._left_alone = [self._target(path) for path in files.left_alone]
        self._moving: set[bytes] = set()
        """What is certainly moved aside, with all below it."""
        self._stages: dict[int, bytes] = {}
        self._staged: dict[bytes, bytes] = {}
        """Where the files lie that are not in place yet, by target."""
        self._cut_in_place: set[bytes] = set()
        self._made_directories: set[bytes] = set()
        self._entered: set[bytes] = set()
        self._count = 0

    def run(self, remove_paths: Iterable[str]) -> None:
        """Stage, then switch."""
        self._targets = self._find_targets()
        gone = {self._target(path) for path in self._files.deleted}
        gone |= {self._target(os.fsencode(path)) for path in remove_paths}
        gone = {path for path in gone - set(self._targets) if not self._is_left_alone(path)}
        others = (path for path, entry in self._targets.items() if not isinstance(entry, DirectoryEntry))
        self._moving = gone.union(others)
        cut = {self._target(each.path) for each in self._files.truncated}
        self._check_parents({*self._targets, *gone, *cut})
        for path, entry in self._targets.items():
            if isinstance(entry, RegularEntry):
                self._stage(path, entry)
        self._switch(gone)

    # ---- before anything changes ----

    def _target(self, path: bytes) -> bytes:
        return os.fsencode(self._mapping(os.fsdecode(path)))

    def _is_left_alone(self, path: bytes) -> bool:
        return any(_below(path, each) for each in self._left_alone)

    def _find_targets(self) -> dict[bytes, AnyEntry]:
        """By target, directories before what is in them; without directories that would lead to nothing
        here."""
        targets: dict[bytes, AnyEntry] = {}
        for entry in self._files.entries:
            path = self._target(entry.path)
            implied = isinstance(entry, DirectoryEntry) and entry.implied
            if path in targets and not implied:
                raise FileRestoreError(
                    f"{os.fsdecode(path)} is the place of several of the job's files here.",
                    remedy="Map directories of the job to different places.",
                )
            targets.setdefault(path, entry)
        leading = {
            above
            for path, entry in targets.items()
            if not (isinstance(entry, DirectoryEntry) and entry.implied)
            for above in (path, *_parents(path))
        }
        return {path: targets[path] for path in sorted(targets, key=_order) if path in leading}

    def _check_parents(self, paths: set[bytes]) -> None:
        """Refuse where a directory of the job's path is something else here: a link would lead elsewhere."""
        seen: set[bytes] = set()
        for path in paths:
            for above in _parents(path):
                if above in seen:
                    break
                seen.add(above)
                entry = self._targets.get(above)
                replaced = isinstance(entry, DirectoryEntry) and not entry.implied
                if not replaced and os.path.lexists(above) and not is_directory(above):
                    self.at = os.fsdecode(above)
                    raise FileRestoreError(
                        f"{self.at} is no directory here, but {os.fsdecode(path)} has to go into it.",
                        remedy="Remove it, or restore into another root directory.",
                    )

    def _stage_for(self, path: bytes) -> bytes:
        """A directory on the file system of `path`, outside of all that is moved."""
        above = next(each for each in _parents(path) if is_directory(each))
        device = os.lstat(above).st_dev
        if device not in self._stages:
            while any(_below(above, moving) for moving in self._moving):
                above = os.path.dirname(above)
            stage = os.path.join(above, STAGE_PREFIX + secrets.token_hex(8).encode())
            self._enter(above)
            self._journal.note(Staged(stage))
            os.mkdir(stage, 0o700)
            self._stages[device] = stage
        return self._stages[device]

    def _new_name(self, path: bytes) -> bytes:
        self._count += 1
        return os.path.join(self._stage_for(path), b"%d" % self._count)

    def _stage(self, path: bytes, entry: RegularEntry) -> None:
        self.at = os.fsdecode(path)
        staged = self._new_name(path)
        descriptor = os.open(staged, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(descriptor, entry.size)
            for run in entry.runs:
                at = run.offset
                for piece in self._contents.of(run):
                    while piece:
                        count = os.pwrite(descriptor, piece, at)
                        piece, at = piece[count:], at + count
        finally:
            os.close(descriptor)
        if entry.appended and _begins_with(path, staged, entry.size):
            self._cut_in_place.add(path)
        dress(staged, entry.attributes)
        self._staged[path] = staged

    # ---- what changes ----

    def _switch(self, gone: set[bytes]) -> None:
        for path in sorted(gone, key=_order):
            self.at = os.fsdecode(path)
            self._move_aside(path)
        for links in (False, True):  # links last: their files may have gone to other places
            for path, entry in self._targets.items():
                if isinstance(entry, HardLinkEntry) == links:
                    self.at = os.fsdecode(path)
                    self._put(path, entry)
        for each in self._files.truncated:
            path = self._target(each.path)
            self.at = os.fsdecode(path)
            self._cut(path, each.size)
        for path, entry in reversed(
            self._targets.items()
        ):  # last: entries that come change a directory's time
            made = path in self._made_directories
            if isinstance(entry, DirectoryEntry) and (made or not entry.implied):
                self.at = os.fsdecode(path)
                self._dress(path, entry.attributes)

    def _put(self, path: bytes, entry: AnyEntry) -> None:
        if isinstance(entry, DirectoryEntry):
            self._make_directory(path, entry)
        elif isinstance(entry, RegularEntry) and path in self._cut_in_place:
            self._cut(path, entry.size)
            self._dress(path, entry.attributes)
        else:
            self._place(path, entry)

    def _enter(self, directory: bytes) -> None:
        """To be called before entries of a directory change."""
        if directory not in self._entered:
            self._entered.add(directory)
            self._journal.note(Entered(directory, os.lstat(directory).st_mtime_ns))

    def _move_aside(self, path: bytes) -> None:
        if not os.path.lexists(path):
            return
        if any(_below(each, path) for each in self._left_alone) and is_directory(path):
            for name in os.listdir(path):
                if not self._is_left_alone(path + b"/" + name):
                    self._move_aside(path + b"/" + name)
            return
        aside = self._new_name(path)
        self._enter(os.path.dirname(path))
        self._journal.note(Moved(path, aside))
        os.rename(path, aside)

    def _make_directory(self, path: bytes, entry: DirectoryEntry) -> None:
        if not is_directory(path):
            self._move_aside(path)
            made = self._new_name(path)
            os.mkdir(made, 0o700)
            self._move_in(made, path)
            self._made_directories.add(path)
        elif entry.whole:
            for name in os.listdir(path):
                below = path + b"/" + name
                keep = below in self._targets or below in self._stages.values() or self._is_left_alone(below)
                if not keep:
                    self._move_aside(below)

    def _place(self, path: bytes, entry: AnyEntry) -> None:
        self._move_aside(path)
        staged = self._staged.get(path) or self._new_name(path)
        if isinstance(entry, HardLinkEntry):
            os.link(self._target(entry.to), staged, follow_symlinks=False)
        elif isinstance(entry, SymlinkEntry):
            os.symlink(entry.target, staged)
            dress(staged, entry.attributes)
        elif isinstance(entry, SpecialEntry):
            os.mknod(staged, entry.file_type | 0o600, entry.device)
            dress(staged, entry.attributes)
        self._move_in(staged, path)

    def _move_in(self, staged: bytes, path: bytes) -> None:
        self._enter(os.path.dirname(path))
        self._journal.note(Made(path, staged))
        os.rename(staged, path)

    def _cut(self, path: bytes, size: int) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise OSError(errno.EINVAL, "it is no regular file", os.fsdecode(path))
            if found.st_size <= size:
                return
            tail = self._new_name(path)
            with open(tail, "xb") as rest:
                file.seek(size)
                shutil.copyfileobj(file, rest)
            self._journal.note(Cut(path, size, tail, attributes_of(path, found)))
            os.ftruncate(descriptor, size)

    def _dress(self, path: bytes, attributes: Attributes) -> None:
        if not self._stages:  # by which it is known whether it was taken back
            self._stage_for(path + b"/.")
        self._journal.note(Dressed(path, attributes_of(path), is_directory(path)))
        dress(path, attributes)


class _Contents:
    """Bytes of stored objects; keeps the last object that was used in parts."""

    def __init__(self, reader: CheckpointReader) -> None:
        self._reader = reader
        self._sizes = {each.name: each.size for each in reader.manifest.objects}
        self._name = ""
        self._data = memoryview(b"")

    def of(self, run: Run) -> Iterator[memoryview]:
        """The bytes of a run, in pieces."""
        size = self._sizes.get(run.object_name, -1)
        if run.object_offset + run.bytes > size:
            raise FileListError(
                f"Checkpoint {self._reader.manifest.checkpoint} does not hold what its list of files "
                f"names in {run.object_name!r}.",
                remedy="Restore another checkpoint.",
            )
        if run.bytes == size:
            yield from self._reader.chunks(run.object_name)
            return
        if run.object_name != self._name:
            self._data = memoryview(self._reader.read(run.object_name))
            self._name = run.object_name
        yield self._data[run.object_offset : run.object_offset + run.bytes]


def _order(path: bytes) -> list[str]:
    return path_order(os.fsdecode(path))


def _parents(path: bytes) -> Iterator[bytes]:
    """Innermost first, the root last."""
    while path != b"/":
        path = os.path.dirname(path)
        yield path


def _below(path: bytes, directory: bytes) -> bool:
    return path == directory or path.startswith(directory.rstrip(b"/") + b"/")


def _begins_with(path: bytes, other: bytes, size: int) -> bool:
    """Whether a regular file is there that holds the `size` bytes of `other`, and perhaps more."""
    try:
        found = os.lstat(path)
        if not stat.S_ISREG(found.st_mode) or found.st_size < size:
            return False
        with open(path, "rb") as one, open(other, "rb") as two:
            while piece := two.read(1 << 20):
                if one.read(len(piece)) != piece:
                    return False
        return True
    except OSError:
        return False
