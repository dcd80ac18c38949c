"""Small trees of files that belong to a job: copied while it stands still, stored and made again later.

Directories, files with their holes, symbolic and hard links, named pipes, with modes, owners and times.
Anything else, as a socket's name, is left out: who listened there is in the checkpoint of the processes."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from ..chunking import CHUNK_BYTES
from ..reader import CheckpointReader
from ..writer import CheckpointWriter
from .tree_list import (
    DATA_KIND,
    LIST_KIND,
    AnyEntry,
    DirectoryEntry,
    FifoEntry,
    HardLinkEntry,
    Look,
    RegularEntry,
    Span,
    SymlinkEntry,
    TreeError,
    TreeList,
    decode_tree_list,
    encode_tree_list,
)

_COPY_BYTES = 1 << 20
"""So that a copy's second half finds its first in the processor's cache."""
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.ENOMEM)
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_MAKE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

Wanted = Callable[[str], bool]


def stage_tree(
    source: Path, target: Path, *, leave_out: Collection[str] = (), only: Wanted | None = None
) -> None:
    """Copy what is in `source` to `target`, a directory that is made if there is none.

    `leave_out` names what is not taken, and nothing below it; `only` is asked about all but directories,
    which are then made only for what is in them.  Names are relative to `source`.  Nothing in `source` may
    change; what is in the way in `target` is an error.

    :raises TreeError: it cannot be read or written, or a file became shorter meanwhile."""
    target.mkdir(exist_ok=True)
    entries = _look_at(source, frozenset(os.fsencode(name) for name in leave_out), only)
    _make(target, entries, lambda entry, made: _copy_file(source, entry, made))


def put_tree(writer: CheckpointWriter, name: str, directory: Path) -> None:
    """Store what is in `directory`, which must not change, as the objects ``name/list`` and ``name/data``.

    :raises TreeError: it cannot be read, or a file became shorter meanwhile."""
    tree = TreeList(entries=tuple(_look_at(directory, frozenset(), None)))
    writer.add_pieces(data_name(name), DATA_KIND, _pieces(directory, tree))
    writer.add(list_name(name), LIST_KIND, encode_tree_list(tree))


def take_tree(reader: CheckpointReader, name: str, target: Path) -> None:
    """Make the tree `name` of a checkpoint again, in a directory that is there.

    Directories may be there already, other names not.  After an error a part is there.

    :raises TreeError: there is none, its list cannot be followed, or it cannot be made."""
    sizes = {stored.name: stored.size for stored in reader.manifest.objects}
    if list_name(name) not in sizes or data_name(name) not in sizes:
        raise TreeError(
            f"Checkpoint {reader.manifest.checkpoint} has no tree {name!r}.",
            remedy="Restore from a checkpoint of a whole job.",
        )
    where = f"checkpoint {reader.manifest.checkpoint}, object {list_name(name)!r}"
    tree = decode_tree_list(reader.read(list_name(name)), sizes[data_name(name)], where)
    data = _Stream(reader.chunks(data_name(name)))
    _make(target, tree.entries, data.fill)


def list_name(name: str) -> str:
    """The object that lists a tree."""
    return f"{name}/list"


def data_name(name: str) -> str:
    """The object with the contents of a tree's files."""
    return f"{name}/data"


# ---- what is there --------------------------------------------------------------------------------------
def _look_at(directory: Path, leave_out: frozenset[bytes], only: Wanted | None) -> list[AnyEntry]:
    entries: list[AnyEntry] = []
    first_names: dict[tuple[int, int], bytes] = {}

    def visit(folder: bytes) -> None:
        for name in sorted(os.listdir(os.path.join(root, folder))):
            inside = os.path.join(folder, name)
            if inside in leave_out:
                continue
            with _failing("read", inside):
                found = os.lstat(os.path.join(root, inside))
                if stat.S_ISDIR(found.st_mode):
                    before = len(entries)
                    entries.append(DirectoryEntry(name=inside, look=_look_of(found)))
                    visit(inside)
                    if only is not None and len(entries) == before + 1:
                        entries.pop()
                elif only is None or only(os.fsdecode(inside)):
                    entries.extend(_entry_of(root, inside, found, first_names))

    root = os.fsencode(directory)
    with _failing("read", root):
        visit(b"")
    return entries


def _entry_of(
    root: bytes, name: bytes, found: os.stat_result, first_names: dict[tuple[int, int], bytes]
) -> Iterator[AnyEntry]:
    kind = stat.S_IFMT(found.st_mode)
    if kind not in (stat.S_IFREG, stat.S_IFLNK, stat.S_IFIFO):
        return
    first = first_names.setdefault((found.st_dev, found.st_ino), name)
    path = os.path.join(root, name)
    if first != name:
        yield HardLinkEntry(name=name, to=first)
    elif kind == stat.S_IFREG:
        size, spans = _spans_of(path)
        yield RegularEntry(name=name, look=_look_of(found), size=size, spans=tuple(spans))
    elif kind == stat.S_IFLNK:
        yield SymlinkEntry(name=name, look=_look_of(found), target=os.readlink(path))
    else:
        yield FifoEntry(name=name, look=_look_of(found))


def _look_of(found: os.stat_result) -> Look:
    return Look(stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid, found.st_mtime_ns)


def _spans_of(path: bytes) -> tuple[int, list[Span]]:
    spans: list[Span] = []
    descriptor = os.open(path, _READ)
    try:
        size, at = os.fstat(descriptor).st_size, 0
        while at < size:
            try:
                start = os.lseek(descriptor, at, os.SEEK_DATA)
            except OSError as error:
                if error.errno == errno.ENXIO:  # a hole up to the end
                    break
                raise
            at = min(os.lseek(descriptor, start, os.SEEK_HOLE), size)
            if start < at:
                spans.append((start, at - start))
        return size, spans
    finally:
        os.close(descriptor)


# ---- contents -------------------------------------------------------------------------------------------
def _copy_file(source: Path, entry: RegularEntry, made: int) -> None:
    descriptor = os.open(os.path.join(os.fsencode(source), entry.name), _READ)
    try:
        for at, block in _blocks(descriptor, entry, _COPY_BYTES):
            _write(made, block, at)
    finally:
        os.close(descriptor)


def _blocks(descriptor: int, entry: RegularEntry, most: int) -> Iterator[tuple[int, memoryview]]:
    """The file's spans in blocks, each valid until the next is asked for."""
    room = memoryview(bytearray(min(most, max((count for _, count in entry.spans), default=0))))
    for start, count in entry.spans:
        at, end = start, start + count
        while at < end:
            some = os.preadv(descriptor, [room[: end - at]], at)
            if some == 0:
                raise TreeError(
                    f"{os.fsdecode(entry.name)} became shorter while it was read: {at} bytes are left of "
                    f"{entry.size}.",
                    remedy="See what else writes to it: whoever does must stand still during a checkpoint.",
                )
            yield at, room[:some]
            at += some


def _pieces(directory: Path, tree: TreeList) -> Iterator[bytes]:
    """A tree's data.  A file begins a piece, so that what comes before it does not shift it."""
    for entry in tree.entries:
        if not isinstance(entry, RegularEntry) or not entry.spans:
            continue
        piece = bytearray()
        with _failing("read", entry.name):
            descriptor = os.open(os.path.join(os.fsencode(directory), entry.name), _READ)
            try:
                for _, block in _blocks(descriptor, entry, _COPY_BYTES):
                    while block:
                        some = min(len(block), CHUNK_BYTES - len(piece))
                        piece += block[:some]
                        block = block[some:]
                        if len(piece) == CHUNK_BYTES:
                            yield bytes(piece)
                            piece.clear()
            finally:
                os.close(descriptor)
        if piece:
            yield bytes(piece)


class _Stream:
    """A tree's data as it comes out of a checkpoint."""

    def __init__(self, chunks: Iterator[memoryview]) -> None:
        self._chunks = chunks
        self._left = memoryview(b"")

    def fill(self, entry: RegularEntry, made: int) -> None:
        """Write the next file, of which `made` is open."""
        for start, count in entry.spans:
            at, end = start, start + count
            while at < end:
                self._left = self._left or next(self._chunks)
                block = self._left[: end - at]
                _write(made, block, at)
                self._left = self._left[len(block) :]
                at += len(block)


def _write(descriptor: int, block: memoryview, at: int) -> None:
    while block:
        some = os.pwrite(descriptor, block, at)
        block, at = block[some:], at + some


# ---- making it ------------------------------------------------------------------------------------------
def _make(target: Path, entries: Collection[AnyEntry], fill: Callable[[RegularEntry, int], None]) -> None:
    root = os.fsencode(target)
    for entry in entries:
        with _failing("make", entry.name):
            _make_one(root, entry, fill)
    for entry in reversed(list(entries)):  # now that nothing is made in them any more
        if isinstance(entry, DirectoryEntry):
            with _failing("make", entry.name):
                _dress(os.path.join(root, entry.name), entry.look)


def _make_one(root: bytes, entry: AnyEntry, fill: Callable[[RegularEntry, int], None]) -> None:
    path = os.path.join(root, entry.name)
    match entry:
        case DirectoryEntry():
            try:
                os.mkdir(path, 0o700)
            except FileExistsError:
                if not stat.S_ISDIR(os.lstat(path).st_mode):
                    raise
            return
        case HardLinkEntry():
            os.link(os.path.join(root, entry.to), path, follow_symlinks=False)
            return
        case RegularEntry():
            made = os.open(path, _MAKE, 0o600)
            try:
                os.ftruncate(made, entry.size)
                fill(entry, made)
            finally:
                os.close(made)
        case SymlinkEntry():
            os.symlink(entry.target, path)
        case FifoEntry():
            os.mkfifo(path, 0o600)
    _dress(path, entry.look)


def _dress(path: bytes, look: Look) -> None:
    found = os.lstat(path)
    if (found.st_uid, found.st_gid) != (look.uid, look.gid):
        os.chown(path, look.uid, look.gid, follow_symlinks=False)
    if not stat.S_ISLNK(found.st_mode):
        os.chmod(path, look.mode)  # after the owner: chown clears set-user-id
    os.utime(path, ns=(look.mtime_ns, look.mtime_ns), follow_symlinks=False)


@contextmanager
def _failing(what: str, name: bytes) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise TreeError(
            f"Cannot {what} {os.fsdecode(name)} of a job's files: {error.strerror}.",
            remedy="Free memory or make that file system larger (mount -o remount,size=...)."
            if error.errno in _NO_ROOM
            else "See that this user may, and that nothing else is at work there.",
        ) from error
