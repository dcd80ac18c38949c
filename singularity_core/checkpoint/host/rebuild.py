"""Puts the files of a dump back as they were, from a checkpoint.  Every byte was verified by the reader."""

from __future__ import annotations

import contextlib
import errno
import os
from array import array
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from ..errors import Damage, DamagedCheckpointError
from ..reader import CheckpointReader
from .errors import ImageMissingError, NoRoomError
from .ingest import HOST_IMAGE, find_object, map_name, packs_name
from .page_map import PAGE_BYTES, ZERO, MalformedMapError, PageMap, decode_map, decode_runs

_LARGEST_WRITE = 0x7FFFF000


@dataclass
class _Pieces:
    """What goes where out of one pack: four numbers each, in one array to keep a million of them small."""

    numbers: array[int]

    def add(self, page: int, count: int, file: int, target_page: int) -> None:
        self.numbers.extend((page, count, file, target_page))

    def __iter__(self) -> zip[tuple[int, int, int, int]]:
        numbers = iter(self.numbers)
        return zip(numbers, numbers, numbers, numbers, strict=True)


def image_bytes(reader: CheckpointReader, *, image: str = HOST_IMAGE) -> int:
    """Room that `rebuild` takes, which is less by what consists of zero pages."""
    return sum(_bytes_without_zeros(file.runs) for file in read_map(reader, image).files)


def rebuild(reader: CheckpointReader, directory: Path, *, image: str = HOST_IMAGE) -> None:
    """Make the files of the image in `directory`, which is there and empty.

    `DamagedCheckpointError` names what is missing or corrupt in the store.  After an error the directory
    holds a part of the files, which is good for nothing."""
    page_map = read_map(reader, image)
    packs = find_object(reader.manifest, packs_name(image))
    assert packs is not None  # `read_map` looked
    plan = _plan(page_map, [chunk.size // PAGE_BYTES for chunk in packs.chunks])
    with contextlib.ExitStack() as stack:
        descriptors = []
        for file in page_map.files:
            flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW
            descriptor = os.open(directory / file.name, flags, 0o600)
            stack.callback(os.close, descriptor)
            os.truncate(descriptor, file.size)
            descriptors.append(descriptor)
        sizes = [file.size for file in page_map.files]
        for number, contents in enumerate(reader.chunks(packs.name)):
            for page, count, target, target_page in plan.get(number, ()):
                start = target_page * PAGE_BYTES
                size = min(count * PAGE_BYTES, sizes[target] - start)
                _write(descriptors[target], contents[page * PAGE_BYTES :][:size], start, directory)


def read_map(reader: CheckpointReader, image: str) -> PageMap:
    """The map of an image, which fits its packs."""
    packs = find_object(reader.manifest, packs_name(image))
    stored = find_object(reader.manifest, map_name(image))
    if packs is None or stored is None:
        raise ImageMissingError(
            f"Checkpoint {reader.manifest.checkpoint} holds no image {image!r} of processes.",
            remedy="Restore from a checkpoint of a whole job.",
        )
    data = reader.read(stored.name)
    try:
        if any(chunk.size % PAGE_BYTES for chunk in packs.chunks):
            raise MalformedMapError("the packs do not consist of whole pages")
        return decode_map(data, packs.size // PAGE_BYTES)
    except MalformedMapError as error:
        key = stored.chunks[0].key if stored.chunks else "an empty object"
        raise DamagedCheckpointError(
            Damage(reader.manifest.checkpoint, stored.name, 0, key, f"it is no map of this image: {error}")
        ) from error


def _plan(page_map: PageMap, pack_pages: list[int]) -> dict[int, _Pieces]:
    """By pack: each is read once, whatever the order of its pages in the files."""
    starts = array("Q", [0])
    for pages in pack_pages:
        starts.append(starts[-1] + pages)
    pack_of = array("I")
    for number, pages in enumerate(pack_pages):
        pack_of.extend([number] * pages)
    plan: dict[int, _Pieces] = defaultdict(lambda: _Pieces(array("Q")))
    for file_number, file in enumerate(page_map.files):
        target = 0
        for first, count in decode_runs(file.runs):
            if first == ZERO:
                target += count
                continue
            end = first + count
            while first < end:
                pack = pack_of[first]
                here = min(end, starts[pack + 1]) - first
                plan[pack].add(first - starts[pack], here, file_number, target)
                first, target = first + here, target + here
    return plan


def _bytes_without_zeros(runs: bytes) -> int:
    return sum(count for first, count in decode_runs(runs) if first != ZERO) * PAGE_BYTES


def _write(descriptor: int, contents: memoryview, offset: int, directory: Path) -> None:
    try:
        while contents:
            written = os.pwrite(descriptor, contents[:_LARGEST_WRITE], offset)
            contents, offset = contents[written:], offset + written
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.ENOMEM):
            raise NoRoomError(
                f"{directory} has no room left for the image of the processes.",
                remedy="Make that file system larger, or free memory.",
            ) from error
        raise
