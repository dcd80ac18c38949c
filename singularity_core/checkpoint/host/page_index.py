"""Which page lies where, by the digest of its contents.  Pure.

A checkpoint of some GiB has a million pages.  A dict of them takes 180 bytes for each, 4 % of what it
describes; this table of open addressing takes 40, and is as fast."""

from __future__ import annotations

import hashlib
from array import array

DIGEST_BYTES = 16
"""Of SHA-256.  Two pages that meet by accident are out of the question; who makes them meet on purpose harms
his own job."""
_EMPTY = 0xFFFFFFFF
_FULLEST = 0.6


def digest_of_page(page: bytes) -> bytes:
    """What a page is known by."""
    return hashlib.sha256(page).digest()[:DIGEST_BYTES]


class PageIndex:
    """Grows as needed; nothing is taken out of it."""

    def __init__(self, expected: int = 0) -> None:
        """`expected` entries are taken without growing."""
        self._count = 0
        self._make(max(1024, int(expected / _FULLEST) + 1))

    def __len__(self) -> int:
        return self._count

    def find_or_add(self, digest: bytes, location: int) -> int:
        """Where the page of `digest` is: `location` if it was not known.  Locations are below 2^32 - 1."""
        slot = int.from_bytes(digest[:8], "little") & self._mask
        while (found := self._locations[slot]) != _EMPTY:
            if self._digests[slot * DIGEST_BYTES : (slot + 1) * DIGEST_BYTES] == digest:
                return found
            slot = (slot + 1) & self._mask
        self._locations[slot] = location
        self._digests[slot * DIGEST_BYTES : (slot + 1) * DIGEST_BYTES] = digest
        self._count += 1
        if self._count > self._limit:
            self._grow()
        return location

    def _make(self, at_least: int) -> None:
        slots = 1 << (at_least - 1).bit_length()
        self._mask = slots - 1
        self._limit = int(slots * _FULLEST)
        self._locations = array("I", [_EMPTY]) * slots
        self._digests = bytearray(slots * DIGEST_BYTES)

    def _grow(self) -> None:
        locations, digests = self._locations, self._digests
        self._count = 0
        self._make(2 * len(locations))
        for slot, location in enumerate(locations):
            if location != _EMPTY:
                self.find_or_add(bytes(digests[slot * DIGEST_BYTES : (slot + 1) * DIGEST_BYTES]), location)
