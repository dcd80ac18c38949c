"""Takes the files of a dump apart into pages, each contents once, against those of an earlier checkpoint.

Sans I/O but for reading the files: what is to be stored comes out as pieces, in the order of the new packs.

*Order.*  New pages come first, in the order in which they are met; behind them the packs of the base that are
still needed.  So new packs can be stored while the dump is being read, though which of the old ones are
needed is known at its end only.

*Sparse packs.*  One page in use keeps 4 MiB of an old pack in the store, and in every restore.  Where less
than a quarter of a pack is in use, those pages are stored anew, and the pack is let go.  So the packs of a
checkpoint hold at most four times what it needs, however many checkpoints there were before; in exchange up
to a quarter of a pack is stored for each one that is let go, once.

*Memory*: 40 bytes per page for the index, 4 for where it is, one pack and one block of a file."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import BinaryIO

from ..manifest import Chunk
from .page_index import DIGEST_BYTES, PageIndex, digest_of_page
from .page_map import PAGE_BYTES, ZERO, ZERO_PAGE, MappedFile, encode_runs

PACK_PAGES = 1024
SPARSE = 0.25
_OLD = 1 << 31
"""Added to the number of a page of the base, until it is known where in the new packs that comes."""
_BLOCK_BYTES = 256 * PAGE_BYTES


class DumpTooLargeError(ValueError):
    """More than 8 TiB."""


@dataclass(frozen=True)
class Base:
    """The packs of an earlier checkpoint."""

    chunks: tuple[Chunk, ...]
    digests: bytes
    """Of their pages, in their order."""

    def __post_init__(self) -> None:
        if any(chunk.size % PAGE_BYTES for chunk in self.chunks):
            raise ValueError("A pack holds a part of a page.")
        if sum(chunk.size for chunk in self.chunks) // PAGE_BYTES != len(self.digests) // DIGEST_BYTES:
            raise ValueError("There is not one digest for each page.")

    @property
    def pages(self) -> int:
        """How many there are."""
        return len(self.digests) // DIGEST_BYTES


@dataclass
class PackedFile:
    """A file that was taken apart."""

    name: str
    size: int
    locations: array[int] = field(default_factory=lambda: array("I"))


@dataclass
class PackingReport:
    """What became of a dump, in pages."""

    pages: int = 0
    zero_pages: int = 0
    unique_pages: int = 0
    """Of the dump, without zero pages."""
    new_pages: int = 0
    """Contents that the base did not have."""
    repacked_pages: int = 0
    """Of sparse packs, stored anew."""


class Packer:
    """One dump.  `pieces` is to be run to its end; then `files` and `digests` are what they are to be."""

    def __init__(self, base: Base | None, *, expected_pages: int = 0) -> None:
        self._base = base
        self._index = PageIndex(expected_pages + (base.pages if base else 0))
        self._used = bytearray(base.pages if base else 0)
        self._new_digests = bytearray()
        self._kept_digests = bytearray()
        self._pack = bytearray()
        self._files: list[PackedFile] = []
        self._shifts: list[tuple[int, int]] = []
        self._moved: dict[int, int] = {}
        self.report = PackingReport()
        if base:
            for number in range(base.pages):
                digest = base.digests[number * DIGEST_BYTES : (number + 1) * DIGEST_BYTES]
                self._index.find_or_add(digest, _OLD + number)

    def pieces(self, files: Iterable[tuple[str, int, BinaryIO]]) -> Iterator[bytes | Chunk]:
        """The new packs and then the old ones, from files ``(name, size, opened)``.

        A file is read twice if pages of sparse packs are in it: it must stay open, and as it is."""
        opened = []
        for name, size, file in files:
            packed = PackedFile(name, size)
            self._files.append(packed)
            opened.append(file)
            for block in _blocks(file, size):
                yield from self._take(block, packed.locations)
        self.report.unique_pages = self.report.new_pages + self._used.count(1)
        kept, sparse = self._judge_old_packs()
        yield from self._repack(sparse, opened)
        if self._pack:
            yield bytes(self._pack)
            self._pack.clear()
        yield from self._keep(kept)

    @property
    def digests(self) -> bytes:
        """Of all pages of the packs."""
        return bytes(self._new_digests + self._kept_digests)

    @property
    def packed_pages(self) -> int:
        """How many pages the packs hold."""
        return (len(self._new_digests) + len(self._kept_digests)) // DIGEST_BYTES

    def files(self) -> Iterator[MappedFile]:
        """The files as runs of pages of the packs."""
        for packed in self._files:
            yield MappedFile(packed.name, packed.size, encode_runs(self._resolve(packed.locations)))

    def _take(self, block: bytes, locations: array[int]) -> Iterator[bytes]:
        report, find_or_add = self.report, self._index.find_or_add
        for start in range(0, len(block), PAGE_BYTES):
            page = block[start : start + PAGE_BYTES]
            report.pages += 1
            if page == ZERO_PAGE:
                report.zero_pages += 1
                locations.append(ZERO)
                continue
            digest = digest_of_page(page)
            next_new = len(self._new_digests) // DIGEST_BYTES
            location = find_or_add(digest, next_new)
            locations.append(location)
            if location >= _OLD:
                self._used[location - _OLD] = 1
            elif location == next_new:
                report.new_pages += 1
                yield from self._append(page, digest)

    def _append(self, page: bytes, digest: bytes) -> Iterator[bytes]:
        self._new_digests += digest
        if len(self._new_digests) // DIGEST_BYTES >= _OLD:
            raise DumpTooLargeError("The dump has more than 8 TiB of different pages.")
        self._pack += page
        if len(self._pack) == PACK_PAGES * PAGE_BYTES:
            yield bytes(self._pack)
            self._pack.clear()

    def _judge_old_packs(self) -> tuple[list[tuple[int, Chunk]], set[int]]:
        """The old packs that stay, each with the number of its first page; and the pages in use of those that
        do not."""
        kept: list[tuple[int, Chunk]] = []
        sparse: set[int] = set()
        first = 0
        for chunk in self._base.chunks if self._base else ():
            pages = chunk.size // PAGE_BYTES
            used = self._used[first : first + pages]
            if used.count(1) >= SPARSE * pages:
                kept.append((first, chunk))
            else:
                sparse.update(first + number for number, one in enumerate(used) if one)
            first += pages
        return kept, sparse

    def _repack(self, sparse: set[int], opened: list[BinaryIO]) -> Iterator[bytes]:
        for packed, file in zip(self._files, opened, strict=True):
            for number, location in enumerate(packed.locations):
                if not sparse:
                    return
                if location == ZERO or location < _OLD or location - _OLD not in sparse:
                    continue
                sparse.remove(location - _OLD)
                self._moved[location] = len(self._new_digests) // DIGEST_BYTES
                self.report.repacked_pages += 1
                file.seek(number * PAGE_BYTES)
                page = file.read(min(PAGE_BYTES, packed.size - number * PAGE_BYTES)).ljust(PAGE_BYTES, b"\0")
                yield from self._append(page, digest_of_page(page))

    def _keep(self, kept: list[tuple[int, Chunk]]) -> Iterator[Chunk]:
        assert self._base is not None or not kept
        place = len(self._new_digests) // DIGEST_BYTES
        for first, chunk in kept:
            assert self._base is not None
            pages = chunk.size // PAGE_BYTES
            self._shifts.append((_OLD + first, place))
            self._kept_digests += self._base.digests[first * DIGEST_BYTES : (first + pages) * DIGEST_BYTES]
            place += pages
            yield chunk

    def _resolve(self, locations: array[int]) -> Iterator[int]:
        """From numbers of the base's pages to those of the new packs."""
        starts = [start for start, _ in self._shifts]
        for location in locations:
            if location == ZERO or location < _OLD:
                yield location
            elif (moved := self._moved.get(location)) is not None:
                yield moved
            else:
                start, place = self._shifts[bisect_right(starts, location) - 1]
                yield place + location - start


def _blocks(file: BinaryIO, size: int) -> Iterator[bytes]:
    """The contents, padded to whole pages."""
    left = size
    while left:
        block = file.read(min(_BLOCK_BYTES, left))
        if not block:
            raise EOFError("A file of the dump became shorter while it was read.")
        left -= len(block)
        if len(block) % PAGE_BYTES and left:
            raise EOFError("A file of the dump was read in part.")
        yield block.ljust(-(-len(block) // PAGE_BYTES) * PAGE_BYTES, b"\0")
