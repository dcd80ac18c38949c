"""What the store needs of the place where it lives: a few operations on whole files.

Keys are relative paths with ``/`` and without ``..``; the store makes them itself, from checked parts.
Methods may be called from several threads.  They raise `OSError` and nothing else."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol


class Backend(Protocol):
    """Files by key."""

    @property
    def place(self) -> str:
        """For messages: the directory or URL."""

    def put(self, key: str, data: bytes) -> None:
        """Write a file; whoever looks sees the old contents or the new, never a part."""

    def create(self, key: str, data: bytes) -> None:
        """As `put`, but `FileExistsError` if there is a file: of several who create it, one succeeds."""

    def get(self, key: str) -> bytes:
        """A file's contents, or `FileNotFoundError`."""

    def list(self, prefix: str) -> dict[str, int]:
        """All files whose key begins with `prefix` (which ends with ``/``), with their sizes.

        What was put or deleted before the call is put or gone in the answer."""

    def delete(self, keys: Iterable[str]) -> None:
        """Remove files; those that are not there are no error."""

    def make_durable(self) -> None:
        """Return when all that this object has put or created survives a power failure."""

    def remove_leftovers(self, older_than_seconds: float) -> int:
        """Remove what interrupted `put`s left outside of all keys; how many files that was."""
