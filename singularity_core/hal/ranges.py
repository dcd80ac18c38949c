"""Argument checks that every implementation needs, and that read the same in every one."""

from __future__ import annotations

from collections.abc import Iterable

from .errors import InvalidArgument
from .types import RANGE_ALIGNMENT, Arena, DType, ReduceOp


def disjoint(a: int, b: int, size: int) -> bool:
    """Whether [a, a + size) and [b, b + size) have no byte in common."""
    return a + size <= b or b + size <= a


def check_inside(arena: Arena, address: int, size: int) -> None:
    """Raises `InvalidArgument` unless [address, address + size) is inside the arena."""
    if size < 0 or address < arena.base or address + size > arena.end:
        raise InvalidArgument(
            f"{size} bytes at {address:#x} are not inside the arena [{arena.base:#x}, {arena.end:#x})."
        )


def check_aligned_range(arena: Arena, address: int, size: int) -> None:
    """As `check_inside`, and both are multiples of `RANGE_ALIGNMENT`."""
    check_inside(arena, address, size)
    if address % RANGE_ALIGNMENT or size % RANGE_ALIGNMENT:
        raise InvalidArgument(f"{address:#x} or {size} is no multiple of {RANGE_ALIGNMENT}.")


def check_accumulate(
    dtype: DType, op: ReduceOp, addresses: Iterable[int], count: int, premultiply: float = 1.0
) -> None:
    """Raises `InvalidArgument` for what no reduction allows, whatever the device."""
    if count < 0:
        raise InvalidArgument(f"{count} elements cannot be reduced.")
    for address in addresses:
        if address % dtype.size:
            raise InvalidArgument(f"{address:#x} is not aligned to the {dtype.size} bytes of {dtype.value}.")
    if not dtype.floating and (op is ReduceOp.AVERAGE or premultiply != 1.0):
        raise InvalidArgument(
            f"{dtype.value} is an integer type: it can be neither averaged nor premultiplied."
        )
