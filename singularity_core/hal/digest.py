"""The content digest of the HAL in plain Python: the definition (digest.h) once more, for small host
content."""

from __future__ import annotations

_MASK = (1 << 64) - 1
_K1 = 0x9E3779B97F4A7C15
_K2 = 0xD1B54A32D192ED03


def _mix(x: int) -> int:
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def word_sums(content: bytes, first: int = 0) -> tuple[int, int]:
    """The two sums over all words of `content`, the last word padded with zeros; `first` words come
    before."""
    a = b = 0
    for position, at in enumerate(range(0, len(content), 8), start=first + 1):
        word = int.from_bytes(content[at : at + 8], "little")
        turned = (word << 32 | word >> 32) & _MASK
        a += _mix((word + position * _K1) & _MASK)
        b += _mix(turned ^ (position * _K2 & _MASK))
    return a & _MASK, b & _MASK


def finish(sums: tuple[int, int], size: int) -> bytes:
    """The digest of `size` bytes whose words have these sums (of any number of parts, added modulo 2**64)."""
    a = _mix((sums[0] ^ size) & _MASK)
    b = _mix((sums[1] + a) & _MASK)
    return a.to_bytes(8, "little") + b.to_bytes(8, "little")


def digest(content: bytes) -> bytes:
    """The 128-bit digest of `content`; about a microsecond per byte, so for small content only."""
    return finish(word_sums(content), len(content))
