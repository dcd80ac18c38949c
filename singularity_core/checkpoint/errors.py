"""Why a checkpoint cannot be stored, found or restored.

Each error says what happened (``cause``) and what to do about it (``remedy``)."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from dataclasses import dataclass


class StoreError(Exception):
    """The root of what the store raises."""

    def __init__(self, cause: str, *, remedy: str) -> None:
        super().__init__(f"{cause} {remedy}")
        self.cause = cause
        self.remedy = remedy


class StoreUnavailableError(StoreError):
    """The place where the store lives does not answer, or answers with an error."""


class StoreFullError(StoreUnavailableError):
    """No space, quota or inodes are left.  Nothing became visible; `Store.gc` collects what was written."""


class StoreReadOnlyError(StoreUnavailableError):
    """The store may not be written."""


class UnsupportedFormatError(StoreError):
    """A store, manifest or marker of a format version that this release does not read."""


class CheckpointNotFoundError(StoreError):
    """No committed checkpoint has that id: never written, not committed yet, or deleted."""

    def __init__(self, cause: str, *, remedy: str, abandoned: bool = False) -> None:
        super().__init__(cause, remedy=remedy)
        self.abandoned = abandoned
        """Its writer was declared dead."""


class WriterLostError(StoreError):
    """The writer did not come forward for so long that it was declared dead; its checkpoint cannot commit."""


class CancelledError(StoreError):
    """Somebody wants no checkpoint any more; nothing of it is left."""


@dataclass(frozen=True)
class Damage:
    """One thing in the store that cannot be used."""

    checkpoint: str
    object_name: str | None
    """None: the manifest itself."""
    chunk_index: int | None
    """Which chunk of the object, from 0; None: the manifest itself."""
    key: str
    """Where in the store."""
    problem: str
    """What was found, and what ought to be there."""

    def __str__(self) -> str:
        if self.object_name is None:
            return f"The manifest of checkpoint {self.checkpoint} ({self.key}) is damaged: {self.problem}."
        return (
            f"Checkpoint {self.checkpoint}, object {self.object_name!r}, chunk {self.chunk_index} "
            f"({self.key}): {self.problem}."
        )


class DamagedCheckpointError(StoreError):
    """A checkpoint cannot be restored: `damage` says what is missing or corrupt."""

    def __init__(self, damage: Damage) -> None:
        super().__init__(
            str(damage),
            remedy="Put this file back from a copy of the store, or restore another checkpoint and delete "
            "this one; verify names all that share the damage.",
        )
        self.damage = damage


@contextlib.contextmanager
def storage_errors(place: str, what: str) -> Iterator[None]:
    """Turn what the operating system or a network filesystem says into this module's errors."""
    try:
        yield
    except OSError as error:
        said = error.strerror or str(error) or type(error).__name__
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StoreFullError(
                f"The store {place} is full: {what} failed ({said}).",
                remedy="Free space, delete checkpoints and collect (gc), or use another store.",
            ) from error
        if isinstance(error, PermissionError) or error.errno == errno.EROFS:
            raise StoreReadOnlyError(
                f"The store {place} refuses access: {what} failed ({said}).",
                remedy="Give this user the right to it, or use another store.",
            ) from error
        raise StoreUnavailableError(
            f"The store {place} is not available: {what} failed ({said}).",
            remedy="See whether the address, the credentials and the network are right, and try again.",
        ) from error
