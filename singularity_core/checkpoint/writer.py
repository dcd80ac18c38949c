"""Writes one checkpoint, which nobody sees until all of it is stored.

The order is what makes it safe (`collector` says why): marker, then what is inherited is looked up, then
chunks, all of them durable, then the manifest by an exclusive `create`, which is the commit, then the
marker goes."""

from __future__ import annotations

import contextlib
import errno
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from types import TracebackType
from typing import TYPE_CHECKING

from . import leases
from .catalogue import Catalogue
from .chunking import digest_of, encode_chunk, split
from .errors import CancelledError, WriterLostError, storage_errors
from .manifest import (
    Abandoned,
    Chunk,
    Manifest,
    StoredObject,
    checkpoint_key,
    chunk_key,
)
from .pool import Pool
from .reader import load_chunk

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

LONGEST_WRITE_SECONDS = 7 * 86400.0
"""No writer commits later than this, so that what forbids an abandoned one to commit may go in the end."""

_DEFINITE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM)
"""After these the commit has certainly not happened; after a lost connection it may have."""


class CheckpointWriter:
    """One checkpoint in the making; a context manager.  Left without `commit`, it takes back what it stored.

    Used by one thread.  Memory: two chunks and their compressed forms per thread of the pool."""

    def __init__(
        self,
        catalogue: Catalogue,
        job: str,
        *,
        bases: Iterable[str],
        threads: int,
        chunk_bytes: int,
        after_ns: int = 0,
    ) -> None:
        """`after_ns`: when the job's newest checkpoint was made.  This one is newer, whatever the clock says:
        it may be another machine's, or have been set back."""
        self._catalogue = catalogue
        self._backend = catalogue.backend
        self._job = job
        self._chunk_bytes = chunk_bytes
        self._created_ns = max(leases.now_ns(), after_ns + 1)
        self.checkpoint = leases.new_id(self._created_ns)
        self._pins = tuple(bases)
        self.bases: tuple[Manifest, ...] = ()
        """Those of the bases that were still committed when this checkpoint was begun."""
        self._objects: dict[str, StoredObject] = {}
        self._lock = threading.Lock()
        self._known: dict[str, Future[Chunk]] = {}
        """By digest: what need not be stored again."""
        self._stored_keys: list[str] = []
        self._begun = leases.boot_seconds()
        self._ended = False
        self._cancelled = False
        self.taken_bytes = 0
        """Of contents that were given to it so far: for who shows how far it is."""
        self._pool = Pool(threads, "checkpoint-writer")
        with self._errors("putting up the marker"):
            self._lease = leases.Lease(catalogue, self.checkpoint, self._pins, writes=True)
        try:
            self._inherit()
        except BaseException:
            self.abort()
            raise

    def __enter__(self) -> CheckpointWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abort()

    def add(self, name: str, kind: str, data: ReadableBuffer) -> StoredObject:
        """Store an object.  `data` may be used again when this returns, and must not change before."""
        return self.add_all([(name, kind, data)])[0]

    def add_all(self, objects: Iterable[tuple[str, str, ReadableBuffer]]) -> list[StoredObject]:
        """Store objects ``(name, kind, data)``, taken from `objects` as room for them becomes free.

        No `data` may change before this returns."""
        return self._add((name, kind, self._cut(data)) for name, kind, data in objects)

    def add_pieces(self, name: str, kind: str, pieces: Iterable[ReadableBuffer | Chunk]) -> StoredObject:
        """Store an object that its caller has cut: each buffer becomes one chunk, in order.

        A `Chunk` stands for contents that a base holds (see `inherits`): neither read nor stored."""
        return self._add([(name, kind, pieces)])[0]

    def inherits(self, chunk: Chunk) -> bool:
        """Whether a chunk of a base may be given to `add_pieces`: its file is there, and of its size."""
        return chunk.digest in self._known

    def load(self, chunk: Chunk) -> memoryview | None:
        """The contents of a base's chunk; None where they are damaged, which `Store.verify` explains."""
        loaded = load_chunk(self._catalogue, chunk)
        return None if isinstance(loaded, str) else loaded

    def _cut(self, data: ReadableBuffer) -> Iterator[memoryview]:
        view = memoryview(data).cast("B")
        return (view[piece] for piece in split(len(view), self._chunk_bytes))

    def _add(
        self, objects: Iterable[tuple[str, str, Iterable[ReadableBuffer | Chunk]]]
    ) -> list[StoredObject]:
        if self._ended:
            raise ValueError(f"Checkpoint {self.checkpoint} is committed or given up; begin another one.")
        running: deque[tuple[Future[Chunk], list[Chunk]]] = deque()
        names: list[tuple[str, str, list[Chunk]]] = []
        seen = set(self._objects)
        try:
            for name, kind, pieces in objects:
                if name in seen or not name:
                    raise ValueError(
                        f"Checkpoint {self.checkpoint}: object name {name!r} is empty or used twice."
                    )
                seen.add(name)
                chunks: list[Chunk] = []
                names.append((name, kind, chunks))
                for piece in pieces:
                    running.append((self._begin(piece), chunks))
                    if len(running) > self._pool.window:
                        self._take(running)
            while running:
                self._take(running)
        finally:
            for future, _ in running:
                future.cancel()
            for future, _ in running:
                with contextlib.suppress(BaseException):
                    future.result()
        added = [
            StoredObject(name, kind, sum(chunk.size for chunk in chunks), tuple(chunks))
            for name, kind, chunks in names
        ]
        self._objects |= {stored.name: stored for stored in added}
        return added

    def _begin(self, piece: ReadableBuffer | Chunk) -> Future[Chunk]:
        self._refuse_if_cancelled()
        self.taken_bytes += piece.size if isinstance(piece, Chunk) else memoryview(piece).nbytes
        if isinstance(piece, Chunk):
            if not self.inherits(piece):
                raise ValueError(f"Checkpoint {self.checkpoint} does not inherit chunk {piece.key}.")
            return self._known[piece.digest]
        with self._errors("storing a chunk"):  # in this thread, where there is no pool
            return self._pool.submit(self._store, memoryview(piece).cast("B"))

    def commit(self, labels: Mapping[str, str] | None = None) -> Manifest:
        """Make the checkpoint visible; when this returns it survives a power failure.

        `WriterLostError`: a `gc` gave it up meanwhile.  After any error it is not to be counted on."""
        if self._ended:
            raise ValueError(f"Checkpoint {self.checkpoint} is committed or given up already.")
        self._refuse_if_cancelled()
        manifest = Manifest(
            checkpoint=self.checkpoint,
            job=self._job,
            created_ns=self._created_ns,
            objects=tuple(self._objects.values()),
            labels=dict(labels or {}),
        )
        with self._errors("making chunks durable"):
            self._backend.make_durable()
        self._refuse_if_late()
        self._publish(self._catalogue.encode(manifest))
        self._end()
        with self._errors("making the commit durable"):
            self._backend.make_durable()
        with contextlib.suppress(OSError):  # one that stays up costs nothing but a look by gc
            self._lease.release()
        return manifest

    def cancel(self) -> None:
        """From any thread: what is added from now on, or committed, raises `CancelledError`."""
        self._cancelled = True

    def abort(self) -> None:
        """Give up, unless committed: take back all that was stored.  What fails here is left to `gc`."""
        if self._ended:
            return
        self._end()
        with contextlib.suppress(OSError):
            self._backend.delete(self._stored_keys)
            self._lease.release()

    def _publish(self, record: bytes) -> None:
        """The commit: of this and a `gc` that gives the checkpoint up, one creates the file."""
        key = checkpoint_key(self.checkpoint)
        with self._errors("writing the manifest"):
            try:
                self._backend.create(key, record)
                return
            except FileExistsError:
                pass
            except OSError as error:
                if error.errno in _DEFINITE:
                    raise
                self._settle(key, error)
            # There is one.  It is ours where a network library repeated a request whose answer was lost.
            try:
                found = self._backend.get(key)
            except OSError:
                self._end()
                raise
        if found != record:
            self._raise_lost("a collection of garbage took it for dead")

    def _settle(self, key: str, error: OSError) -> None:
        """After an answer that leaves open whether the commit happened: see to it that it cannot any more.

        Returns if the file is there.  If not even this can be found out, the marker stays up, so that nobody
        collects the chunks before a `gc` has settled it."""
        try:
            self._backend.create(key, self._catalogue.encode(Abandoned(leases.now_ns())))
        except FileExistsError:
            return
        except OSError:
            self._end()
        raise error

    def _refuse_if_cancelled(self) -> None:
        if self._cancelled:
            raise CancelledError(f"Checkpoint {self.checkpoint} was given up.", remedy="")

    def _refuse_if_late(self) -> None:
        if self._lease.expired or leases.boot_seconds() - self._begun > LONGEST_WRITE_SECONDS:
            self._raise_lost("it took longer than others wait for a sign of life")

    def _raise_lost(self, why: str) -> None:
        raise WriterLostError(
            f"Checkpoint {self.checkpoint} of job {self._job} cannot be committed: {why}.",
            remedy="Take another checkpoint; the earlier ones are intact.",
        )

    def _inherit(self) -> None:
        """Learn which chunks need not be stored again: those of the bases that are still committed now.

        A look at the folders spares a later restore the surprise of a chunk that was lost long ago."""
        with self._errors("looking for earlier checkpoints"):
            manifests = [self._catalogue.usable(checkpoint) for checkpoint in self._pins]
            self.bases = tuple(each for each in manifests if each)
            chunks = [chunk for each in self.bases for stored in each.objects for chunk in stored.chunks]
            sizes = self._catalogue.chunk_sizes(chunk.owner for chunk in chunks)
        for chunk in chunks:
            if sizes.get(chunk.key) == chunk.stored:
                known: Future[Chunk] = Future()
                known.set_result(chunk)
                self._known[chunk.digest] = known

    def _take(self, running: deque[tuple[Future[Chunk], list[Chunk]]]) -> None:
        future, chunks = running[0]
        with self._errors("storing a chunk"):
            chunks.append(future.result())
        running.popleft()
        with self._errors("renewing the marker"):
            self._lease.renew_if_due()

    def _store(self, piece: memoryview) -> Chunk:
        digest = digest_of(piece)
        mine: Future[Chunk] = Future()
        with self._lock:
            known = self._known.setdefault(digest, mine)
        if known is not mine:
            # Being stored by another thread at this moment, at worst: that one waits for nobody.
            return known.result()
        try:
            encoded = encode_chunk(piece)
            key = chunk_key(self.checkpoint, digest)
            with self._lock:
                self._stored_keys.append(key)
            self._backend.put(key, encoded)
        except BaseException as error:
            with self._lock:
                del self._known[digest]  # who tries again must not get this answer again
            mine.set_exception(error)
            raise
        chunk = Chunk(self.checkpoint, digest, len(piece), len(encoded))
        mine.set_result(chunk)
        return chunk

    def _end(self) -> None:
        self._ended = True
        self._pool.close()

    @contextlib.contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        with storage_errors(self._backend.place, f"{what} of checkpoint {self.checkpoint}"):
            yield
