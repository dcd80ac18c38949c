"""A store in a directory.

A file gets its name only when its contents are on the disk, and in one step: `linkat` from an unnamed file
where the file system has those (nothing is left when the process dies), else `link` or `rename` from
``partial/``.  Names are made durable together, by `make_durable`: that is when order matters.

Files and folders are for this user alone, for they hold the memory of processes."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

PARTIAL = "partial"
_NO_UNNAMED_FILES = (errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT, errno.EINVAL)
"""What open says to O_TMPFILE where a file system or kernel lacks it; ENOENT also where the folder is new."""


class LocalBackend:
    """Files below one directory, which is made at the first write."""

    def __init__(self, root: Path) -> None:
        self._root = root.absolute()
        self._lock = threading.Lock()
        self._dirty: set[Path] = set()
        """Folders whose entries changed, and which `make_durable` has not made durable since."""
        self._durable = threading.Lock()

    @property
    def place(self) -> str:
        """The directory."""
        return str(self._root)

    def put(self, key: str, data: bytes) -> None:
        """See `Backend.put`."""
        try:
            self.create(key, data)
        except FileExistsError:
            target = self._root / key
            with self._partial(data) as partial:
                self._in_folder(target, lambda: os.replace(partial, target))

    def create(self, key: str, data: bytes) -> None:
        """See `Backend.create`."""
        target = self._root / key
        self._make_folder(target.parent)
        try:
            descriptor = os.open(target.parent, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        except OSError as error:
            if error.errno not in _NO_UNNAMED_FILES:
                raise
            with self._partial(data) as partial:
                self._in_folder(target, lambda: os.link(partial, target))
            return
        try:
            _write(descriptor, data)
            self._in_folder(target, lambda: _name(descriptor, target))
        finally:
            os.close(descriptor)

    def get(self, key: str) -> bytes:
        """See `Backend.get`."""
        return (self._root / key).read_bytes()

    def list(self, prefix: str) -> dict[str, int]:
        """See `Backend.list`."""
        found: dict[str, int] = {}
        pending = [prefix.rstrip("/")]
        while pending:
            folder = pending.pop()
            with contextlib.suppress(FileNotFoundError), os.scandir(self._root / folder) as entries:
                for entry in entries:
                    key = f"{folder}/{entry.name}"
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(key)
                    else:
                        with contextlib.suppress(FileNotFoundError):  # deleted since
                            found[key] = entry.stat(follow_symlinks=False).st_size
        return found

    def delete(self, keys: Iterable[str]) -> None:
        """See `Backend.delete`."""
        folders = set()
        for key in keys:
            target = self._root / key
            with contextlib.suppress(FileNotFoundError):
                os.unlink(target)
            folders.add(target.parent)
        with self._lock:
            self._dirty |= folders
        for folder in folders:
            if folder.parent != self._root:
                # One owner's chunks: not empty is the common case, and a writer makes its folder again.
                with contextlib.suppress(OSError):
                    os.rmdir(folder)
                    with self._lock:
                        self._dirty.add(folder.parent)

    def make_durable(self) -> None:
        """See `Backend.make_durable`."""
        with self._durable:  # who comes meanwhile waits: what it made may be in the hands of who is at work
            with self._lock:
                dirty, self._dirty = self._dirty, set()
            try:
                for folder in sorted(dirty):
                    with contextlib.suppress(FileNotFoundError):  # removed since
                        _sync_folder(folder)
                    dirty.remove(folder)
            finally:
                with self._lock:
                    self._dirty |= dirty

    def remove_leftovers(self, older_than_seconds: float) -> int:
        """See `Backend.remove_leftovers`."""
        removed = 0
        youngest = time.time() - older_than_seconds
        for key in self.list(f"{PARTIAL}/"):
            path = self._root / key
            with contextlib.suppress(FileNotFoundError):
                if path.stat().st_mtime <= youngest:
                    path.unlink()
                    removed += 1
        return removed

    @contextlib.contextmanager
    def _partial(self, data: bytes) -> Iterator[Path]:
        """A named file with these contents, on the disk; gone afterwards, unless renamed."""
        path = self._root / PARTIAL / secrets.token_hex(16)
        self._make_folder(path.parent)
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        try:
            try:
                _write(descriptor, data)
            finally:
                os.close(descriptor)
            yield path
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)

    def _in_folder(self, target: Path, give_name: Callable[[], None]) -> None:
        """Give a file its name, also when the folder was removed, being empty, just now."""
        self._make_folder(target.parent)
        try:
            give_name()
        except FileNotFoundError:
            self._make_folder(target.parent)
            give_name()
        above = [each for each in target.parents if each.is_relative_to(self._root)]
        with self._lock:  # the folders, too: who made them may have died before it made them durable
            self._dirty.update(above, [self._root.parent])

    def _make_folder(self, folder: Path) -> None:
        if folder.is_dir():
            return
        with self._lock:  # whoever finds it there, and marks what it puts there, marks that after us
            for each in reversed([each for each in (folder, *folder.parents) if not each.exists()]):
                each.mkdir(mode=0o700 if each.is_relative_to(self._root) else 0o777, exist_ok=True)
                self._dirty.add(each.parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
    os.fsync(descriptor)


def _name(descriptor: int, target: Path) -> None:
    folder = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # With a folder's descriptor Python calls linkat, which follows the link in /proc to the unnamed file.
        os.link(f"/proc/self/fd/{descriptor}", target.name, dst_dir_fd=folder, follow_symlinks=True)
    finally:
        os.close(folder)
