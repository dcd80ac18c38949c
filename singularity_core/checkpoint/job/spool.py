"""Contents that wait in memory for a store, so that a job need not stand still until that has taken them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

SPOOL_BYTES = 256 << 20
"""More than that is stored at once: it may be more than there is memory."""


class TakesObjects(Protocol):
    """A `CheckpointWriter`, as far as it is needed here."""

    def add_all(self, objects: Iterable[tuple[str, str, ReadableBuffer]]) -> object:
        """See there."""


class Spool:
    """Stands in for a writer.  What is given to it must not change."""

    def __init__(self, writer: TakesObjects, limit: int | None = None) -> None:
        """`limit`: so many bytes wait at most."""
        self._writer = writer
        self._limit = SPOOL_BYTES if limit is None else limit
        self._waiting: list[tuple[str, str, ReadableBuffer]] = []
        self.bytes = 0
        """That wait."""

    def add_all(self, objects: Iterable[tuple[str, str, ReadableBuffer]]) -> None:
        """Takes objects ``(name, kind, data)``; the first that is too much, and all after it, go on to the
        writer."""
        rest = iter(objects)
        for each in rest:
            size = memoryview(each[2]).nbytes
            if self.bytes + size > self._limit:
                self._writer.add_all([each])
                self._writer.add_all(rest)
                return
            self._waiting.append(each)
            self.bytes += size

    def flush(self) -> None:
        """Gives the writer what waits."""
        waiting, self._waiting, self.bytes = self._waiting, [], 0
        self._writer.add_all(waiting)
