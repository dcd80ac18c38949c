"""Takes the files of a job into a checkpoint.

Two parts: `capture_files` reads what the job changed, and is called while the job stands still;
`CapturedFiles.finish` hashes what the job only uses, which nobody writes to, and may come when it runs
again.

Small files share objects, because a store is slow with many small things.  Where a new object begins depends
on the names of files alone, so that what is new or changed does not move all that follows it to other
objects."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import msgspec

from .errors import StoreError
from .file_attributes import attributes_of
from .file_digests import FileDigests, Signature, signature_of
from .file_list import (
    CONTENT_KIND,
    LIST_KIND,
    LIST_OBJECT,
    NOTES_KIND,
    NOTES_OBJECT,
    AnyEntry,
    Attributes,
    DirectoryEntry,
    FileList,
    HardLinkEntry,
    NeededFile,
    RegularEntry,
    Run,
    SpecialEntry,
    SymlinkEntry,
    Truncation,
    encode_file_list,
)
from .file_log import Change, Excludes, FileKind, Settled, encode_changes, path_order, settle
from .job.spool import TakesObjects
from .open_files import OpenFile
from .writer import CheckpointWriter

SMALL_BYTES = 256 << 10
PACK_BYTES = 4 << 20
PART_BYTES = 32 << 20
_NAMES_PER_PACK = 16
_UNCARRIED_XATTRS = (
    b"trusted.overlay.",
    b"user.overlay.",
    b"security.selinux",
    b"security.ima",
    b"security.evm",
)
"""They are about the place where a file lies."""

Item = tuple[str, str, bytes]
"""An object for the store: name, kind, contents."""


class FileCaptureError(StoreError):
    """A file cannot be taken into a checkpoint."""


@dataclass(frozen=True)
class JobRoot:
    """Where the job's root directory is for us: ``/``, or ``/proc/PID/root`` for a job in a mount
    namespace."""

    path: str = "/"

    def __call__(self, path: str) -> str:
        """Where we find what the job calls `path`."""
        return path if self.path == "/" else self.path + path

    def look(self, path: str) -> FileKind:
        """What `path` is, without following links, those in its directories included."""
        try:
            found = os.lstat(self(path))
        except (FileNotFoundError, NotADirectoryError):
            return FileKind.NOTHING
        if not self._reached_plainly(os.path.dirname(path)):
            return FileKind.NOTHING
        return FileKind.DIRECTORY if stat.S_ISDIR(found.st_mode) else FileKind.OTHER

    def _reached_plainly(self, directory: str) -> bool:
        while directory != "/":
            if not stat.S_ISDIR(os.lstat(self(directory)).st_mode):
                return False
            directory = os.path.dirname(directory)
        return True


@dataclass
class CapturedFiles:
    """What was read while the job stood still."""

    root: JobRoot
    entries: list[AnyEntry]
    deleted: tuple[str, ...]
    needed: list[_AsOfCut]
    appended: list[_AsOfCut]
    """Left alone, but to be cut to the size that they had."""
    notes: bytes
    """What was known to have changed, as a log."""
    left_alone: tuple[str, ...] = ()
    warnings: list[str] = field(default_factory=list)

    def finish(self, writer: CheckpointWriter, digests: FileDigests) -> FileList:
        """Hash what is only used, and store the list.  `FileCaptureError`: such a file changed or went
        since."""
        truncated = [
            Truncation(os.fsencode(each.opened.path), *self._digest(digests, each, grows=True))
            for each in self.appended
        ]
        needed = [
            NeededFile(os.fsencode(each.opened.path), *self._digest(digests, each), each.opened.why)
            for each in self.needed
        ]
        files = FileList(
            entries=tuple(self.entries),
            deleted=tuple(os.fsencode(path) for path in self.deleted),
            truncated=tuple(truncated),
            needed=tuple(needed),
            left_alone=tuple(os.fsencode(path) for path in self.left_alone),
        )
        writer.add(NOTES_OBJECT, NOTES_KIND, self.notes)
        writer.add(LIST_OBJECT, LIST_KIND, encode_file_list(files))
        return files

    def _digest(self, digests: FileDigests, used: _AsOfCut, *, grows: bool = False) -> tuple[int, str]:
        with _hashing(used.opened):
            return digests.digest_as_of(self.root(used.opened.path), used.signature, grows=grows)


@dataclass(frozen=True)
class _AsOfCut:
    """A file that the job only uses, as it was when the job stood still."""

    opened: OpenFile
    signature: Signature

    @classmethod
    def look(cls, root: JobRoot, opened: OpenFile) -> _AsOfCut:
        with _hashing(opened):
            return cls(opened, signature_of(os.stat(root(opened.path))))


@contextlib.contextmanager
def _hashing(opened: OpenFile) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise FileCaptureError(
            f"{opened.path} is in use ({opened.why}), but what the job saw of it cannot be told: "
            f"{error.strerror}.",
            remedy="Take another checkpoint, and see that this file stays as it is meanwhile, readable by "
            "this user; or declare its directory a shared mount, which checkpoints leave alone.",
        ) from error


@dataclass(frozen=True)
class _Planned:
    """One path, as it was when it was found."""

    path: str
    found: os.stat_result
    whole: bool = False
    implied: bool = False
    appended: bool = False


def capture_files(
    writer: TakesObjects,
    changes: Mapping[str, Change],
    opened: Mapping[str, OpenFile],
    *,
    root: JobRoot | None = None,
    excludes: Excludes | None = None,
) -> CapturedFiles:
    """Give the contents of all that changed to `writer`.  `opened` is what the job's processes have open:
    what they may still write to travels too, known to the log or not."""
    root, excludes = root or JobRoot(), excludes or Excludes()
    written = {path: Change(existed=True) for path, each in opened.items() if each.written}
    settled = settle({**written, **changes}, excludes, root.look)
    planned = _plan(root, settled, opened, excludes)
    capture = _Capture(root)
    writer.add_all(capture.objects(planned))
    carried = {each.path for each in planned if not each.implied}
    return CapturedFiles(
        root=root,
        entries=capture.entries,
        deleted=settled.deleted,
        needed=[
            _AsOfCut.look(root, each)
            for path, each in sorted(opened.items())
            if not each.written and path not in carried and path not in excludes
        ],
        appended=[
            _AsOfCut.look(root, each)
            for path, each in sorted(opened.items())
            if each.appended and excludes.is_shared(path)
        ],
        notes=encode_changes(changes),
        left_alone=excludes.shared,
        warnings=capture.warnings(),
    )


def _plan(
    root: JobRoot, settled: Settled, opened: Mapping[str, OpenFile], excludes: Excludes
) -> list[_Planned]:
    """All that travels, directories before what is in them."""
    planned: dict[str, _Planned] = {}

    def add(path: str, **how: bool) -> None:
        with _reading(path):
            planned[path] = _Planned(path, os.lstat(root(path)), **how)

    for path in settled.whole:
        for below in _walk(root, path, excludes):
            use = opened.get(below)
            add(below, appended=use is not None and use.appended)
            if stat.S_ISDIR(planned[below].found.st_mode):
                add(below, whole=True)
    for path in settled.present:
        use = opened.get(path)
        add(path, appended=use is not None and use.appended)
    for path in list(planned):
        above = os.path.dirname(path)
        while above != "/" and above not in planned:
            add(above, implied=True)
            above = os.path.dirname(above)
    return [planned[path] for path in sorted(planned, key=path_order)]


def _walk(root: JobRoot, top: str, excludes: Excludes) -> Iterator[str]:
    pending = [top]
    while pending:
        path = pending.pop()
        yield path
        with _reading(path):
            if stat.S_ISDIR(os.lstat(root(path)).st_mode):
                below = [f"{path}/{name}" for name in os.listdir(root(path))]
                pending += [each for each in below if each not in excludes]


class _reading:  # noqa: N801 (a context manager, used like a function)
    """Names the path that cannot be read."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError):
            raise FileCaptureError(
                f"{self._path}, which the job changed, cannot be read: {error.strerror}.",
                remedy="Run as the job's user, or as root, and let nobody else remove the job's files.",
            ) from error


class _Capture:
    """Makes entries, and the objects that hold the contents of files."""

    def __init__(self, root: JobRoot) -> None:
        self.entries: list[AnyEntry] = []
        self._root = root
        self._names: dict[tuple[int, int], list[str]] = {}
        self._links: dict[tuple[int, int], int] = {}
        self._pack = bytearray()
        self._packs = self._files = 0

    def objects(self, planned: Iterable[_Planned]) -> Iterator[Item]:
        """The objects, in the order of the files; `entries` is complete when the last was taken."""
        for each in planned:
            with _reading(each.path):
                first = each.path if stat.S_ISDIR(each.found.st_mode) else self._first_name(each)
                if first != each.path:
                    self.entries.append(HardLinkEntry(path=os.fsencode(each.path), to=os.fsencode(first)))
                elif stat.S_ISREG(each.found.st_mode):
                    yield from self._regular(each)
                else:
                    self.entries.append(self._other(each))
        yield from self._end_pack()

    def warnings(self) -> list[str]:
        """Files with names that are not carried: after a restore those are files of their own."""
        return [
            f"{names[0]} has {self._links[who] - len(names)} more name(s) that the job did not touch; a "
            "restore makes it a file of its own."
            for who, names in self._names.items()
            if self._links[who] > len(names)
        ]

    def _other(self, each: _Planned) -> AnyEntry:
        path, mode = os.fsencode(each.path), each.found.st_mode
        attributes = self._attributes(each.path, each.found)
        if stat.S_ISDIR(mode):
            return DirectoryEntry(path=path, attributes=attributes, whole=each.whole, implied=each.implied)
        if stat.S_ISLNK(mode):
            target = os.fsencode(os.readlink(self._root(each.path)))
            return SymlinkEntry(path=path, attributes=attributes, target=target)
        return SpecialEntry(
            path=path, attributes=attributes, file_type=stat.S_IFMT(mode), device=each.found.st_rdev
        )

    def _first_name(self, each: _Planned) -> str:
        who = (each.found.st_dev, each.found.st_ino)
        names = self._names.setdefault(who, [])
        names.append(each.path)
        self._links[who] = each.found.st_nlink
        return names[0]

    def _regular(self, each: _Planned) -> Iterator[Item]:
        descriptor = os.open(
            self._root(each.path), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        )
        try:
            found = os.fstat(descriptor)
            attributes = self._attributes(each.path, found)
            pieces = list(_data_of(descriptor, found.st_size))
            if sum(length for _, length in pieces) <= SMALL_BYTES:
                runs, ended = self._packed(each.path, descriptor, pieces)
                yield from ended
            else:
                runs = []
                yield from self._parts(each.path, descriptor, pieces, runs)
            if signature_of(os.fstat(descriptor)) != signature_of(found):
                raise _changed(each.path)
        finally:
            os.close(descriptor)
        self.entries.append(
            RegularEntry(
                path=os.fsencode(each.path),
                attributes=attributes,
                size=found.st_size,
                runs=tuple(runs),
                appended=each.appended,
            )
        )

    def _packed(
        self, path: str, descriptor: int, pieces: list[tuple[int, int]]
    ) -> tuple[list[Run], list[Item]]:
        """Where a small file went, and the pack that was full before it."""
        begins = zlib.crc32(os.fsencode(path)) % _NAMES_PER_PACK == 0
        ended = list(self._end_pack()) if begins or len(self._pack) > PACK_BYTES - SMALL_BYTES else []
        runs = []
        for offset, length in pieces:
            runs.append(Run(offset, length, self._pack_name(), len(self._pack)))
            self._pack += _read(path, descriptor, offset, length)
        return runs, ended

    def _pack_name(self) -> str:
        return f"files/pack-{self._packs}"

    def _end_pack(self) -> Iterator[Item]:
        if self._pack:
            full = bytes(self._pack)
            name = self._pack_name()
            self._pack.clear()
            self._packs += 1
            yield name, CONTENT_KIND, full

    def _parts(
        self, path: str, descriptor: int, pieces: list[tuple[int, int]], runs: list[Run]
    ) -> Iterator[Item]:
        number, self._files = self._files, self._files + 1
        part = 0
        for offset, length in pieces:
            for start in range(offset, offset + length, PART_BYTES):
                count = min(PART_BYTES, offset + length - start)
                name = f"files/file-{number}/{part}"
                part += 1
                runs.append(Run(start, count, name, 0))
                yield name, CONTENT_KIND, _read(path, descriptor, start, count)

    def _attributes(self, path: str, found: os.stat_result) -> Attributes:
        attributes = attributes_of(os.fsencode(self._root(path)), found)
        carried = [each for each in attributes.xattrs if not each[0].startswith(_UNCARRIED_XATTRS)]
        return msgspec.structs.replace(attributes, xattrs=tuple(carried))


def _data_of(descriptor: int, size: int) -> Iterator[tuple[int, int]]:
    """Offset and length of what is no hole."""
    at = 0
    while at < size:
        try:
            start = os.lseek(descriptor, at, os.SEEK_DATA)
            at = min(os.lseek(descriptor, start, os.SEEK_HOLE), size)
        except OSError as error:
            if error.errno != errno.ENXIO:  # no data from here on; else it is not known where there is some
                raise
            return
        yield start, at - start


def _read(path: str, descriptor: int, offset: int, length: int) -> bytes:
    parts = []
    while length:
        part = os.pread(descriptor, length, offset)
        if not part:
            raise _changed(path)
        parts.append(part)
        offset, length = offset + len(part), length - len(part)
    return b"".join(parts)


def _changed(path: str) -> FileCaptureError:
    return FileCaptureError(
        f"{path} changed while it was copied: something outside of the job writes to it.",
        remedy="Stop that, or declare its directory a shared mount, which checkpoints leave alone.",
    )
