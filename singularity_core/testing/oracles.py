"""What the results must be, computed with numpy and nothing of the code under test."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..hal.types import DType, ReduceOp

Bits = npt.NDArray[Any]
"""Elements as the device stores them: numpy has no bfloat16, so BF16 elements are uint16."""

STORAGE: dict[DType, type[np.generic]] = {
    DType.F16: np.float16, DType.BF16: np.uint16, DType.F32: np.float32, DType.F64: np.float64,
    DType.I8: np.int8, DType.U8: np.uint8, DType.I32: np.int32, DType.U32: np.uint32,
    DType.I64: np.int64, DType.U64: np.uint64,
}  # fmt: skip


def widen(dtype: DType, stored: Bits) -> Bits:
    """Stored elements in the accumulation type."""
    if dtype is DType.BF16:
        return (stored.astype(np.uint32) << 16).view(np.float32)
    return stored.astype(np.float32) if dtype is DType.F16 else stored


def narrow(dtype: DType, wide: Bits) -> Bits:
    """Elements of the accumulation type as stored, rounded to nearest even."""
    if dtype is DType.BF16:
        bits = wide.astype(np.float32).view(np.uint32)
        rounded = ((bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
        return np.where(np.isnan(wide), (bits >> 16 | 0x40).astype(np.uint16), rounded)
    return wide.astype(STORAGE[dtype])


def make_elements(dtype: DType, count: int, seed: int) -> Bits:
    """Reproducible elements: normal deviates of several magnitudes, or integers of the whole range."""
    random = np.random.default_rng(seed)
    if not dtype.floating:
        raw = random.bytes(count * dtype.size)
        return np.frombuffer(raw, dtype=STORAGE[dtype])
    scale = np.exp2(random.integers(-6, 6, count))
    values = random.standard_normal(count) * scale
    return narrow(dtype, values.astype(np.float64 if dtype is DType.F64 else np.float32))


def _join(op: ReduceOp, a: Bits, b: Bits) -> Bits:
    with np.errstate(all="ignore"):
        if op in (ReduceOp.SUM, ReduceOp.AVERAGE):
            return a + b
        if op is ReduceOp.PRODUCT:
            return a * b
        return np.minimum(a, b) if op is ReduceOp.MIN else np.maximum(a, b)


def _tree(op: ReduceOp, leaves: Sequence[Bits]) -> Bits:
    if len(leaves) == 1:
        return leaves[0]
    middle = 1 << (len(leaves) - 1).bit_length() - 1
    return _join(op, _tree(op, leaves[:middle]), _tree(op, leaves[middle:]))


def reduce(
    dtype: DType, op: ReduceOp, leaves: Sequence[Bits], premultiply: float = 1.0, divisor: int | None = None
) -> Bits:
    """The reduction that `Device.reduce_tree` defines."""
    wide = [widen(dtype, leaf) for leaf in leaves]
    with np.errstate(all="ignore"):
        if premultiply != 1.0:
            wide = [leaf * leaf.dtype.type(premultiply) for leaf in wide]
        root = _tree(op, wide)
        if op is ReduceOp.AVERAGE:
            root = root / root.dtype.type(len(leaves) if divisor is None else divisor)
        return narrow(dtype, root)


def same_bits(a: Bits, b: Bits) -> bool:
    """Whether two results are equal bit for bit; NaN counts as equal to NaN."""
    if a.dtype.kind == "f":
        return bool(
            np.all((a.view(f"u{a.itemsize}") == b.view(f"u{b.itemsize}")) | (np.isnan(a) & np.isnan(b)))
        )
    return bool(np.array_equal(a, b))


def digest(content: bytes) -> bytes:
    """The content digest that digest.h defines."""
    words = np.frombuffer(content + bytes(-len(content) % 8), dtype="<u8")
    position = np.arange(1, len(words) + 1, dtype=np.uint64)
    with np.errstate(over="ignore"):
        first = _mix(words + position * np.uint64(0x9E3779B97F4A7C15)).sum(dtype=np.uint64)
        turned = (words << np.uint64(32)) | (words >> np.uint64(32))
        second = _mix(turned ^ (position * np.uint64(0xD1B54A32D192ED03))).sum(dtype=np.uint64)
        a = _mix(np.array([first ^ np.uint64(len(content))]))
        b = _mix(np.array([second]) + a)
    return bytes(a.astype("<u8").tobytes() + b.astype("<u8").tobytes())


def _mix(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
