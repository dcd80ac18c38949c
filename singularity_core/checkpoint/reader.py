"""Reads a checkpoint, chunk by chunk, and hands out nothing that is not what was written."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from types import TracebackType
from typing import TYPE_CHECKING

from . import leases
from .catalogue import Catalogue
from .chunking import DamagedChunkError, decode_chunk
from .errors import Damage, DamagedCheckpointError, storage_errors
from .manifest import Chunk, StoredObject
from .pool import Pool

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


class CheckpointReader:
    """A committed checkpoint, kept from collection while it is open; a context manager.  One thread's."""

    def __init__(self, catalogue: Catalogue, checkpoint: str, *, threads: int) -> None:
        self._catalogue = catalogue
        self._lease: leases.Lease | None = None
        self._pool = Pool(threads, "checkpoint-reader")
        self.before_each: Callable[[], None] = lambda: None
        """Called before each piece is handed out; what it raises ends the reading."""
        self.manifest = catalogue.manifest(checkpoint)
        # A store that we may not write is read without: a chunk that is collected is then reported missing.
        with contextlib.suppress(OSError):
            self._lease = leases.Lease(catalogue, leases.new_id(leases.now_ns()), [checkpoint], writes=False)
        try:
            if catalogue.usable(checkpoint) is None:
                self.manifest = catalogue.manifest(checkpoint)  # says what happened to it meanwhile
        except BaseException:
            self.close()
            raise
        self._objects = {stored.name: stored for stored in self.manifest.objects}

    def __enter__(self) -> CheckpointReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let the checkpoint be collected again."""
        self._pool.close()
        lease, self._lease = self._lease, None
        if lease is not None:
            with contextlib.suppress(OSError):
                lease.release()

    def chunks(self, name: str) -> Iterator[memoryview]:
        """An object's contents in order, each piece checked before it is handed out.

        `DamagedCheckpointError` names the first piece that is missing or corrupt."""
        stored = self._find(name)
        yield from self._loaded((stored, index, chunk) for index, chunk in enumerate(stored.chunks))

    def distinct(self, names: Iterable[str]) -> Iterator[tuple[memoryview, list[tuple[str, int]]]]:
        """The different chunks of these objects, each read once, with all places of its contents: an object,
        and the number of the chunk there.

        Raises as `chunks` does."""
        places: dict[tuple[str, int], list[tuple[str, int]]] = {}
        wanted: list[tuple[StoredObject, int, Chunk]] = []
        for stored in map(self._find, names):
            for index, chunk in enumerate(stored.chunks):
                found = places.setdefault((chunk.digest, chunk.size), [])
                if not found:
                    wanted.append((stored, index, chunk))
                found.append((stored.name, index))
        yield from zip(self._loaded(wanted), places.values(), strict=True)

    def _loaded(self, wanted: Iterable[tuple[StoredObject, int, Chunk]]) -> Iterator[memoryview]:
        """The contents of chunks, of which some are read ahead."""
        places = iter(wanted)
        running: deque[Future[memoryview]] = deque()
        try:
            while True:
                for stored, index, chunk in places:
                    running.append(self._pool.submit(self._load, stored, index, chunk))
                    if len(running) >= self._pool.window:
                        break
                if not running:
                    return
                self.before_each()
                yield running.popleft().result()
                if self._lease is not None:
                    with contextlib.suppress(OSError):
                        self._lease.renew_if_due()
        finally:
            for future in running:
                future.cancel()

    def read(self, name: str) -> bytes:
        """An object's contents."""
        return b"".join(self.chunks(name))

    def read_into(self, name: str, target: WriteableBuffer) -> None:
        """An object's contents into `target`, of its size.  After an error `target` holds a part of them."""
        view = memoryview(target).cast("B")
        size = self._find(name).size
        if len(view) != size:
            raise ValueError(f"Object {name!r} has {size} bytes; the target has {len(view)}.")
        start = 0
        for piece in self.chunks(name):
            view[start : start + len(piece)] = piece
            start += len(piece)

    def _find(self, name: str) -> StoredObject:
        try:
            return self._objects[name]
        except KeyError:
            raise KeyError(f"Checkpoint {self.manifest.checkpoint} has no object {name!r}.") from None

    def _load(self, stored: StoredObject, index: int, chunk: Chunk) -> memoryview:
        loaded = load_chunk(self._catalogue, chunk)
        if isinstance(loaded, str):
            raise DamagedCheckpointError(
                Damage(self.manifest.checkpoint, stored.name, index, chunk.key, loaded)
            )
        return loaded


def load_chunk(catalogue: Catalogue, chunk: Chunk) -> memoryview | str:
    """A chunk's contents, or in words what is wrong with it."""
    with storage_errors(catalogue.backend.place, f"reading {chunk.key}"):
        try:
            encoded = catalogue.backend.get(chunk.key)
        except FileNotFoundError:
            return "it is missing"
    try:
        return decode_chunk(encoded, chunk.digest, chunk.size)
    except DamagedChunkError as error:
        return f"it is corrupt: {error}"
