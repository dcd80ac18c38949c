"""SHA-256 of files, kept for as long as a file is the same by all that stat says."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator

_PIECE = 1 << 20
Signature = tuple[int, int, int, int, int]


def signature_of(found: os.stat_result) -> Signature:
    """Differs when a file was written to, or is another one."""
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


class FileDigests:
    """Hashes files, each once until it changes: a job maps the same libraries at every checkpoint."""

    def __init__(self) -> None:
        self._known: dict[tuple[Signature, int], str] = {}

    def digest(self, path: str, size: int | None = None) -> tuple[int, str]:
        """The size of a file, and the digest of its first `size` bytes (None: all).  `OSError` if it is
        shorter, or changes meanwhile."""
        with _opened(path) as descriptor:
            return self._digest(descriptor, path, size)

    def digest_as_of(self, path: str, was: Signature, *, grows: bool = False) -> tuple[int, str]:
        """As `digest` would have said when the file was `was`.  `OSError` if it is not the same any more, but
        for what was appended where it `grows`."""
        with _opened(path) as descriptor:
            now, counts = signature_of(os.fstat(descriptor)), 2 if grows else 4  # others may link to it
            if now[:counts] != was[:counts]:
                raise OSError(0, "it was altered or replaced after the job had stood still", path)
            return self._digest(descriptor, path, was[2] if grows else None)

    def _digest(self, descriptor: int, path: str, size: int | None) -> tuple[int, str]:
        before = os.fstat(descriptor)
        count = before.st_size if size is None else size
        key = (signature_of(before), count)
        if key not in self._known:
            digest = _hash(descriptor, count)
            if size is None and signature_of(os.fstat(descriptor)) != key[0]:
                raise OSError(0, "it changed while it was read", path)
            self._known[key] = digest
        return count, self._known[key]


@contextlib.contextmanager
def _opened(path: str) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _hash(descriptor: int, size: int) -> str:
    state = hashlib.sha256()
    while size:
        part = os.read(descriptor, min(size, _PIECE))
        if not part:
            raise OSError(0, "it is shorter than it was")
        state.update(part)
        size -= len(part)
    return state.hexdigest()
