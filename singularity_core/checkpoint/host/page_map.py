"""Of which pages the files of a dump consist: what is written down about a host image.  Pure.

The store keeps three objects for one: *packs*, pages one after the other, each contents once, zero pages not
at all; *digests* of these pages in the same order, by which the next checkpoint knows what it need not store
again; and the *map*, which says for each file of the dump which runs of pages of the packs it is."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Iterator

import msgspec

PAGE_BYTES = 4096
ZERO_PAGE = bytes(PAGE_BYTES)
MAP_VERSION = 1
ZERO = 0xFFFFFFFF
"""In place of a run's first page: these are zeros, which the packs do not hold."""
LONGEST_RUN = 0xFFFFFFFF

PACKS_KIND = "host-page-packs"
DIGESTS_KIND = "host-page-digests"
MAP_KIND = "host-page-map"


class MalformedMapError(ValueError):
    """These bytes are no map of a host image, or one that does not fit the packs."""


class MappedFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file of the dump, as runs of pages; what of the last page is beyond its end is zero."""

    name: str
    size: int
    runs: bytes
    """Pairs of 32-bit little-endian words: the first page in the packs or `ZERO`, and how many pages."""


class PageMap(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All files of a dump."""

    version: int
    page_bytes: int
    packed_pages: int
    """How many the packs hold."""
    files: tuple[MappedFile, ...]


def encode_runs(locations: Iterable[int]) -> bytes:
    """Runs of the pages at these places of the packs (or `ZERO`)."""
    runs = array("I")
    first, count = ZERO, 0
    for location in locations:
        follows = location == first if first == ZERO else location == first + count
        if count and follows and count < LONGEST_RUN:
            count += 1
            continue
        if count:
            runs.extend((first, count))
        first, count = location, 1
    if count:
        runs.extend((first, count))
    return _little_endian(runs).tobytes()


def decode_runs(runs: bytes) -> Iterator[tuple[int, int]]:
    """``(first page or ZERO, pages)`` of each run; `MalformedMapError` for what is no list of runs."""
    if len(runs) % 8:
        raise MalformedMapError("a file's runs are cut off")
    words = array("I")
    words.frombytes(runs)
    words = _little_endian(words)
    return zip(words[::2], words[1::2], strict=True)


def encode_map(files: Iterable[MappedFile], packed_pages: int) -> bytes:
    """The map's bytes."""
    return msgspec.msgpack.encode(PageMap(MAP_VERSION, PAGE_BYTES, packed_pages, tuple(files)))


def decode_map(data: bytes, packed_pages: int) -> PageMap:
    """The map of packs with so many pages; raises `MalformedMapError` unless all in it fits."""
    try:
        version = msgspec.msgpack.decode(data, type=_AnyVersion).version
        if version != MAP_VERSION:
            raise MalformedMapError(f"it has version {version}; this release reads version {MAP_VERSION}")
        decoded = msgspec.msgpack.decode(data, type=PageMap)
    except msgspec.DecodeError as error:
        raise MalformedMapError(str(error)) from error
    if decoded.page_bytes != PAGE_BYTES or decoded.packed_pages != packed_pages:
        raise MalformedMapError(f"it is about {decoded.packed_pages} pages of {decoded.page_bytes} bytes")
    names = [file.name for file in decoded.files]
    if len(set(names)) != len(names):
        raise MalformedMapError("it has two files of one name")
    for file in decoded.files:
        _check(file, packed_pages)
    return decoded


class _AnyVersion(msgspec.Struct):
    version: int


def _check(file: MappedFile, packed_pages: int) -> None:
    # A name becomes a path: it must not lead out of the directory that it is put into.
    if not file.name or "/" in file.name or "\0" in file.name or file.name in (".", ".."):
        raise MalformedMapError(f"{file.name!r} is no file name")
    pages = 0
    for first, count in decode_runs(file.runs):
        pages += count
        if count == 0 or (first != ZERO and first + count > packed_pages):
            raise MalformedMapError(f"file {file.name!r} has a run beyond the packs")
    if file.size < 0 or pages != -(-file.size // PAGE_BYTES):
        raise MalformedMapError(f"file {file.name!r} has {pages} pages for {file.size} bytes")


def _little_endian(words: array[int]) -> array[int]:
    if sys.byteorder == "big":
        words.byteswap()
    return words
