"""Puts the files of a dump into a checkpoint: in the background, when the job runs again."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from ..manifest import Chunk, Manifest, StoredObject
from ..writer import CheckpointWriter
from .packing import Base, Packer, PackingReport
from .page_index import DIGEST_BYTES
from .page_map import (
    DIGESTS_KIND,
    MAP_KIND,
    PACKS_KIND,
    PAGE_BYTES,
    encode_map,
)

HOST_IMAGE = "host"
"""What the image of a job's processes is called in a checkpoint that has one."""


@dataclass(frozen=True)
class IngestReport:
    """What a dump cost in the store."""

    packing: PackingReport
    contents_bytes: int
    """New in this checkpoint, tables included, before compression."""
    stored_bytes: int
    """The same as it lies in the store."""


def packs_name(image: str) -> str:
    """The object with an image's pages."""
    return f"{image}/packs"


def digests_name(image: str) -> str:
    """The object with the digests of an image's pages."""
    return f"{image}/digests"


def map_name(image: str) -> str:
    """The object with an image's map."""
    return f"{image}/map"


def ingest(writer: CheckpointWriter, dump: Path, *, image: str = HOST_IMAGE) -> IngestReport:
    """Store all files of the directory `dump`, less what a base of the checkpoint has in its image of this
    name.

    The files must not change meanwhile.  Takes one core seven seconds per GiB, and the writer's threads."""
    files = sorted(path for path in dump.iterdir() if path.is_file())
    sizes = {path: path.stat().st_size for path in files}
    packer = Packer(
        _base_of(writer, image), expected_pages=sum(-(-size // PAGE_BYTES) for size in sizes.values())
    )
    with contextlib.ExitStack() as stack:

        def opened() -> Iterator[tuple[str, int, BinaryIO]]:
            for path in files:
                yield path.name, sizes[path], stack.enter_context(path.open("rb"))

        packs = writer.add_pieces(packs_name(image), PACKS_KIND, packer.pieces(opened()))
    digests = writer.add(digests_name(image), DIGESTS_KIND, packer.digests)
    page_map = writer.add(map_name(image), MAP_KIND, encode_map(packer.files(), packer.packed_pages))
    stored = {chunk for each in (packs, digests, page_map) for chunk in each.chunks}
    new = [chunk for chunk in stored if chunk.owner == writer.checkpoint]
    return IngestReport(packer.report, sum(it.size for it in new), sum(it.stored for it in new))


def find_object(manifest: Manifest, name: str) -> StoredObject | None:
    """An object of a checkpoint."""
    return next((stored for stored in manifest.objects if stored.name == name), None)


def _base_of(writer: CheckpointWriter, image: str) -> Base | None:
    """The packs of the first base that has such an image and is usable.

    A base whose digests are damaged costs space, not the checkpoint."""
    for manifest in writer.bases:
        packs = find_object(manifest, packs_name(image))
        digests = find_object(manifest, digests_name(image))
        if packs and digests and (loaded := _load(writer, digests)) is not None:
            with contextlib.suppress(ValueError):
                return _without_lost_packs(writer, Base(packs.chunks, loaded))
    return None


def _load(writer: CheckpointWriter, stored: StoredObject) -> bytes | None:
    contents = bytearray()
    for chunk in stored.chunks:
        piece = writer.load(chunk)
        if piece is None:
            return None
        contents += piece
    return bytes(contents)


def _without_lost_packs(writer: CheckpointWriter, base: Base) -> Base:
    kept: list[Chunk] = []
    digests = bytearray()
    start = 0
    for chunk in base.chunks:
        end = start + chunk.size // PAGE_BYTES * DIGEST_BYTES
        if writer.inherits(chunk):
            kept.append(chunk)
            digests += base.digests[start:end]
        start = end
    return Base(tuple(kept), bytes(digests))
