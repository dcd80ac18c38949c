"""The records of a store: which checkpoints are committed or retired, and who is at work."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from .. import __version__
from .backend import Backend
from .errors import (
    CheckpointNotFoundError,
    Damage,
    DamagedCheckpointError,
    StoreError,
    UnsupportedFormatError,
    storage_errors,
)
from .manifest import (
    DamagedRecordError,
    Manifest,
    Marker,
    RecordKind,
    StoreFormat,
    checkpoint_key,
    decode_record,
    encode_record,
    record_kind,
    retired_key,
)

STORE_KEY = "store"


@dataclass
class Listing:
    """Which checkpoints a store holds."""

    manifests: dict[str, Manifest] = field(default_factory=dict)
    unreadable: dict[str, StoreError] = field(default_factory=dict)
    """Damaged, or of a version that is not read here."""
    abandoned: set[str] = field(default_factory=set)


class Catalogue:
    """Reads and writes records."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self._manifests: dict[str, Manifest] = {}
        """A manifest never changes."""

    @staticmethod
    def encode(body: msgspec.Struct) -> bytes:
        """The bytes of a record that we write."""
        return encode_record(body, writer=f"singularity-hal {__version__}")

    def check_version(self) -> None:
        """Refuse a store of another version; none at all is as good as an empty one."""
        with storage_errors(self.backend.place, "reading the store's format"):
            try:
                data = self.backend.get(STORE_KEY)
            except FileNotFoundError:
                return
        self._decode_store(data)

    def prepare(self) -> None:
        """Make the store, unless it is there."""
        with storage_errors(self.backend.place, "making the store"):
            try:
                self.backend.create(STORE_KEY, self.encode(StoreFormat()))
            except FileExistsError:
                self._decode_store(self.backend.get(STORE_KEY))

    def manifest(self, checkpoint: str) -> Manifest:
        """A committed checkpoint's manifest."""
        if checkpoint not in self._manifests:
            self._manifests[checkpoint] = self._read(checkpoint_key(checkpoint), checkpoint)
        return self._manifests[checkpoint]

    def usable(self, checkpoint: str) -> Manifest | None:
        """The manifest of a checkpoint that is committed at this moment and can be read; else None."""
        self._manifests.pop(checkpoint, None)
        try:
            return self.manifest(checkpoint)
        except (CheckpointNotFoundError, DamagedCheckpointError, UnsupportedFormatError):
            return None

    def committed(self) -> Listing:
        """All committed checkpoints; one that vanishes meanwhile counts as deleted before."""
        return self._list("checkpoints/")

    def retired(self) -> Listing:
        """All deleted checkpoints whose manifest is still kept."""
        return self._list("retired/")

    def markers(self) -> dict[str, Marker]:
        """Who is at work."""
        found = {}
        with storage_errors(self.backend.place, "listing who is at work"):
            for key in self.backend.list("markers/"):
                try:
                    found[key.split("/")[1]] = decode_record(self.backend.get(key), Marker, key)
                except FileNotFoundError:
                    continue
                except DamagedRecordError as error:
                    raise StoreError(
                        f"{self.backend.place}: {key} is damaged ({error}), so what it protects is unknown.",
                        remedy="Delete that file when nobody writes to the store or restores from it.",
                    ) from error
        return found

    def chunk_sizes(self, owners: Iterable[str]) -> dict[str, int]:
        """The chunks of these owners that are there, by key: one listing for each."""
        sizes: dict[str, int] = {}
        for owner in set(owners):
            with storage_errors(self.backend.place, f"listing the chunks of {owner}"):
                sizes |= self.backend.list(f"chunks/{owner}/")
        return sizes

    def retire(self, checkpoint: str) -> None:
        """Delete a checkpoint; its manifest is kept aside for as long as someone may rely on its chunks."""
        with storage_errors(self.backend.place, f"deleting checkpoint {checkpoint}"):
            try:
                data = self.backend.get(checkpoint_key(checkpoint))
            except FileNotFoundError:
                return
            self.backend.put(retired_key(checkpoint), data)
            self.backend.make_durable()
            self.backend.delete([checkpoint_key(checkpoint)])
            self._manifests.pop(checkpoint, None)

    def _list(self, prefix: str) -> Listing:
        listing = Listing()
        with storage_errors(self.backend.place, f"listing {prefix}"):
            keys = self.backend.list(prefix)
        for key in keys:
            checkpoint = key.split("/")[1]
            known = self._manifests.get(checkpoint)
            try:
                listing.manifests[checkpoint] = known or self._read(key, checkpoint)
            except CheckpointNotFoundError as error:
                if error.abandoned:
                    listing.abandoned.add(checkpoint)
            except StoreError as error:
                if isinstance(error, DamagedCheckpointError | UnsupportedFormatError):
                    listing.unreadable[checkpoint] = error
                else:
                    raise
        self._manifests |= listing.manifests
        return listing

    def _read(self, key: str, checkpoint: str) -> Manifest:
        where = f"{self.backend.place}: {key}"
        with storage_errors(self.backend.place, f"reading {key}"):
            try:
                data = self.backend.get(key)
            except FileNotFoundError:
                raise CheckpointNotFoundError(
                    f"There is no committed checkpoint {checkpoint} in {self.backend.place}.",
                    remedy="List the store for those that there are.",
                ) from None
        try:
            if record_kind(data, where) is RecordKind.ABANDONED:
                raise CheckpointNotFoundError(
                    f"Checkpoint {checkpoint} in {self.backend.place} was never finished.",
                    remedy="List the store for those that there are.",
                    abandoned=True,
                )
            manifest = decode_record(data, Manifest, where)
            if manifest.checkpoint != checkpoint:
                raise DamagedRecordError(f"it belongs to checkpoint {manifest.checkpoint}")
        except DamagedRecordError as error:
            raise DamagedCheckpointError(Damage(checkpoint, None, None, key, str(error))) from error
        return manifest

    def _decode_store(self, data: bytes) -> None:
        try:
            decode_record(data, StoreFormat, f"The store {self.backend.place}")
        except DamagedRecordError as error:
            raise StoreError(
                f"{self.backend.place}: the file {STORE_KEY!r} is not that of a store ({error}).",
                remedy="Name the directory or URL of a store, or an empty one.",
            ) from error
