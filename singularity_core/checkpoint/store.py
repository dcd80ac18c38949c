"""A store of checkpoints, in a local directory or at any URL that fsspec knows."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from .backend import Backend
from .catalogue import Catalogue
from .chunking import CHUNK_BYTES
from .collector import Collector, GcReport
from .errors import Damage, DamagedCheckpointError, storage_errors
from .fsspec_backend import FsspecBackend
from .local_backend import LocalBackend
from .manifest import Chunk, Manifest, checkpoint_key
from .reader import CheckpointReader, load_chunk
from .retention import newest_first
from .writer import CheckpointWriter

THREADS = 4
"""Per writer or reader: a local disk is busy with two, a remote store answers slowly."""


class Store:
    """Checkpoints of any number of jobs.  Any number of processes, on any hosts, may use it at once."""

    def __init__(self, backend: Backend, *, threads: int = THREADS, chunk_bytes: int = CHUNK_BYTES) -> None:
        """`threads` is the size of a writer's or reader's pool; 0: all is done in the caller's thread.

        `chunk_bytes` is how new checkpoints are cut; those that share chunks must have it in common."""
        self._catalogue = Catalogue(backend)
        self._threads = threads
        self._chunk_bytes = chunk_bytes
        self._catalogue.check_version()

    @classmethod
    def open(
        cls, location: str | Path, *, threads: int = THREADS, options: dict[str, Any] | None = None
    ) -> Store:
        """The store in a directory, or at a URL; `options` go to the URL's file system.

        Nothing is made before the first checkpoint is written."""
        text = str(location)
        if "://" in text and not text.startswith("file://"):
            with storage_errors(text, "opening it"):
                return cls(FsspecBackend(text, options), threads=threads)
        return cls(LocalBackend(Path(text.removeprefix("file://"))), threads=threads)

    @property
    def place(self) -> str:
        """The directory or URL."""
        return self._catalogue.backend.place

    def write(self, job: str, *, bases: Iterable[str] | None = None) -> CheckpointWriter:
        """Begin a checkpoint of `job`.

        What the checkpoints in `bases` hold is not stored again; by default that of the job's newest."""
        self._catalogue.prepare()
        newest = self.checkpoints(job)[:1]
        if bases is None:
            bases = [manifest.checkpoint for manifest in newest]
        return CheckpointWriter(
            self._catalogue,
            job,
            bases=bases,
            threads=self._threads,
            chunk_bytes=self._chunk_bytes,
            after_ns=newest[0].created_ns if newest else 0,
        )

    def checkpoints(self, job: str | None = None) -> list[Manifest]:
        """Committed checkpoints, newest first; without those that cannot be read, which `verify` names."""
        manifests = self._catalogue.committed().manifests.values()
        return newest_first(each for each in manifests if job is None or each.job == job)

    def read(self, checkpoint: str) -> CheckpointReader:
        """Open a checkpoint to restore from it."""
        return CheckpointReader(self._catalogue, checkpoint, threads=self._threads)

    def missing(self, checkpoint: str) -> list[Damage]:
        """Chunks of a checkpoint that are not there, or not of their size, by listing: cheap, as no contents
        are read.  For who is about to rely on the checkpoint: a resume, before it touches any file."""
        manifest = self._catalogue.manifest(checkpoint)
        sizes = self._catalogue.chunk_sizes(
            chunk.owner for stored in manifest.objects for chunk in stored.chunks
        )
        return [
            Damage(checkpoint, stored.name, index, chunk.key, problem)
            for stored in manifest.objects
            for index, chunk in enumerate(stored.chunks)
            if (problem := _problem_of_size(sizes.get(chunk.key), chunk.stored))
        ]

    def verify(self, checkpoints: Iterable[str] | None = None) -> list[Damage]:
        """Read all that these checkpoints (None: all) need, each chunk once; what is wrong with them."""
        if checkpoints is None:
            listing = self._catalogue.committed()
            manifests = newest_first(listing.manifests.values())
            damage = [_damage_of(checkpoint, error) for checkpoint, error in listing.unreadable.items()]
        else:
            manifests, damage = [], []
            for checkpoint in checkpoints:
                try:
                    manifests.append(self._catalogue.manifest(checkpoint))
                except DamagedCheckpointError as error:
                    damage.append(error.damage)
        problems: dict[Chunk, str | None] = {}
        for manifest in manifests:
            for stored in manifest.objects:
                for index, chunk in enumerate(stored.chunks):
                    if chunk not in problems:
                        loaded = load_chunk(self._catalogue, chunk)
                        problems[chunk] = loaded if isinstance(loaded, str) else None
                    problem = problems[chunk]
                    if problem is not None:
                        damage.append(Damage(manifest.checkpoint, stored.name, index, chunk.key, problem))
        return damage

    def delete(self, checkpoints: Iterable[str]) -> None:
        """Delete checkpoints, damaged ones too; `gc` then frees the space."""
        for checkpoint in checkpoints:
            self._catalogue.retire(checkpoint)

    def gc(self, *, keep: int | None = None, pins: Collection[str] = (), dry_run: bool = False) -> GcReport:
        """Delete all but the newest `keep` checkpoints of each job and those in `pins`, and free what nobody
        needs, what dead writers left included.  Safe beside writers, readers and other collectors.

        Refuses to delete anything where a manifest cannot be read: what that one needs is unknown."""
        return Collector(self._catalogue).collect(keep=keep, pins=pins, dry_run=dry_run)


def _problem_of_size(found: int | None, expected: int) -> str:
    if found is None:
        return "it is missing"
    return "" if found == expected else f"it has {found} bytes in the store instead of {expected}"


def _damage_of(checkpoint: str, error: Exception) -> Damage:
    if isinstance(error, DamagedCheckpointError):
        return error.damage
    return Damage(checkpoint, None, None, checkpoint_key(checkpoint), str(error))
