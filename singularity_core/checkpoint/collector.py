"""Deletes what nobody needs, beside running writers, readers and other collectors.

There is no lock: most places where a store may live have none, and one that a dead process holds would stop
everybody.  What it rests on instead: a place shows what was put before, and of several who create a file one
succeeds (`Backend`).

*A chunk belongs to the checkpoint that stored it* (``chunks/<owner>/``), and nobody else ever writes there.
So no deletion can hit a file of the same name that was just written.

*A writer puts up its marker before its first chunk.*  The collector lists chunks, then markers, then
committed manifests.  The owner of a listed chunk had its marker up by then; if the marker is gone when the
collector looks, the writer has ended before, and its manifest, if it committed, is in what is read
afterwards.

*A writer inherits chunks of a checkpoint only if it finds it committed after its own marker, which names it,
was up.*  Deleting a checkpoint keeps its manifest in ``retired/``.  The collector reads committed manifests,
then markers: a checkpoint that is gone at the first was removed before, so all who may inherit from it have
their markers up at the second, or have ended.  The retired manifest says which chunks that protects; it goes
when the checkpoint was gone at the first and nobody pins it at the second.

*Whether a writer is dead may be guessed wrongly*: a clock is off, a machine slept.  So before its chunks are
touched, the collector creates a record in the place of its manifest.  Of the two exactly one comes to be: the
writer has committed, or it never will.  Where a file system cannot create exclusively, a writer would have to
come back after the lease's hour, unaware of it, in the moment between fsspec's look and its write.

Removals of names are made durable before chunks go, so that no power failure brings back a checkpoint without
its chunks."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from . import leases
from .catalogue import Catalogue, Listing
from .errors import storage_errors
from .manifest import Abandoned, Manifest, Marker, checkpoint_key, decode_record, marker_key, retired_key
from .retention import plan_gc, plan_sweep

ABANDONED_SECONDS = 30 * 86400.0
"""Longer than any writer runs (`writer.LONGEST_WRITE_SECONDS`), with weeks to spare for wrong clocks."""


@dataclass(frozen=True)
class GcReport:
    """What was deleted, or with ``dry_run`` would be."""

    checkpoints: tuple[str, ...]
    abandoned: tuple[str, ...]
    """Checkpoints of writers that were found dead."""
    chunks: int
    bytes: int
    leftovers: int
    """Partial files of interrupted writes."""


class Collector:
    """One collection."""

    def __init__(self, catalogue: Catalogue, *, lease_seconds: float = leases.LEASE_SECONDS) -> None:
        self._catalogue = catalogue
        self._backend = catalogue.backend
        self._lease_seconds = lease_seconds

    def collect(self, *, keep: int | None, pins: Collection[str], dry_run: bool) -> GcReport:
        """Retire what `plan_gc` says, and sweep."""
        listing = _readable(self._catalogue.committed())
        delete = plan_gc(listing.manifests.values(), keep, pins).delete
        dead = self._dead_markers()
        if not dry_run:
            self._abandon(dead)
            for checkpoint in delete:
                self._catalogue.retire(checkpoint)
        chunks, size = self._sweep(dead if dry_run else {}, delete if dry_run else (), dry_run)
        leftovers = 0
        if not dry_run:
            with storage_errors(self._backend.place, "removing partial files"):
                leftovers = self._backend.remove_leftovers(self._lease_seconds)
            self._forget_abandoned(listing.abandoned)
        writers = tuple(
            name for name, marker in dead.items() if marker.writes and name not in listing.manifests
        )
        return GcReport(delete, writers, chunks, size, leftovers)

    def _sweep(self, without: Collection[str], deleted: Collection[str], dry_run: bool) -> tuple[int, int]:
        """Delete chunks that nobody needs; `without` and `deleted` are counted as gone already."""
        with storage_errors(self._backend.place, "making deletions durable"):
            self._backend.make_durable()
        before = _readable(self._catalogue.committed()).manifests
        with storage_errors(self._backend.place, "listing chunks"):
            chunks = self._backend.list("chunks/")
        markers = self._catalogue.markers()
        after = _readable(self._catalogue.committed()).manifests
        retired = self._catalogue.retired()
        live_markers: list[Marker] = [marker for name, marker in markers.items() if name not in without]
        pinned = {pin for marker in live_markers for pin in marker.pins}
        for checkpoint, error in retired.unreadable.items():
            if checkpoint in pinned:
                raise error
        committed: dict[str, Manifest] = {**before, **after}
        gone = {checkpoint: committed[checkpoint] for checkpoint in deleted if checkpoint in committed}
        sweep = plan_sweep(
            chunks=chunks,
            committed=[manifest for manifest in committed.values() if manifest.checkpoint not in gone],
            retired={**retired.manifests, **gone},
            markers=live_markers,
        )
        if not dry_run:
            forget = (sweep.retired | set(retired.unreadable)) - pinned - set(before)
            with storage_errors(self._backend.place, "deleting chunks"):
                self._backend.delete(sweep.chunks)
                self._backend.make_durable()
                self._backend.delete(map(retired_key, forget))
        return len(sweep.chunks), sum(chunks[key] for key in sweep.chunks)

    def _dead_markers(self) -> dict[str, Marker]:
        now = leases.now_ns()
        return {
            name: marker
            for name, marker in self._catalogue.markers().items()
            if leases.is_dead(marker, now_ns=now, lease_seconds=self._lease_seconds)
        }

    def _abandon(self, dead: Mapping[str, Marker]) -> None:
        """See to it that these never commit, if they have not yet; then take their markers down."""
        record = self._catalogue.encode(Abandoned(leases.now_ns()))
        for name, marker in dead.items():
            with storage_errors(self._backend.place, f"giving up checkpoint {name}"):
                if marker.writes:
                    with contextlib.suppress(FileExistsError):
                        self._backend.create(checkpoint_key(name), record)
                    self._backend.make_durable()
                self._backend.delete([marker_key(name)])

    def _forget_abandoned(self, abandoned: Collection[str]) -> None:
        """Remove the records of checkpoints that were given up so long ago that nobody can come back."""
        for name in abandoned:
            key = checkpoint_key(name)
            with storage_errors(self._backend.place, f"removing {key}"):
                try:
                    since = decode_record(self._backend.get(key), Abandoned, key).since_ns
                except FileNotFoundError:
                    continue
                if leases.now_ns() - since > ABANDONED_SECONDS * 1e9:
                    self._backend.delete([key])


def _readable(listing: Listing) -> Listing:
    """Refuse to go on where it is unknown what a checkpoint needs."""
    for error in listing.unreadable.values():
        raise error
    return listing
