"""What reductions mean, in numpy: the oracle.  bfloat16 travels as its 16 bits."""

from __future__ import annotations

from typing import Any

import numpy as np

from .conftest import AVG, BF16, MAX, MIN, PREMUL, PROD, TYPES

Array = np.ndarray[Any, Any]


def storage(dtype: int) -> np.dtype[Any]:
    """The type of the array that holds elements of `dtype`."""
    return np.dtype(np.uint16 if dtype == BF16 else TYPES[dtype])


def widen(dtype: int, array: Array) -> Array:
    """In the type to accumulate in."""
    if dtype == BF16:
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float32) if array.dtype == np.float16 else array


def narrow(dtype: int, array: Array) -> Array:
    """Rounded once, to nearest even."""
    if dtype != BF16:
        return array.astype(TYPES[dtype])
    bits = array.view(np.uint32).astype(np.uint64)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(array), np.uint16(0x7FC0), rounded)


def join(reduction: int, left: Array, right: Array) -> Array:
    """One join of the tree."""
    operation = {PROD: np.multiply, MAX: np.maximum, MIN: np.minimum}.get(reduction, np.add)
    return operation(left, right)


def tree(reduction: int, leaves: list[Array]) -> Array:
    """The fixed tree: the first largest power of two below n leaves, with the rest."""
    if len(leaves) == 1:
        return leaves[0]
    left = 1 << (len(leaves) - 1).bit_length() - 1
    return join(reduction, tree(reduction, leaves[:left]), tree(reduction, leaves[left:]))


def reduce(dtype: int, reduction: int, inputs: list[Array], factors: list[int] | None = None) -> Array:
    """The reduction of all ranks' inputs; `factors`: bits of each rank's, in `dtype`."""
    with np.errstate(all="ignore"):
        leaves = [widen(dtype, array) for array in inputs]
        if reduction == PREMUL:
            assert factors is not None
            bits = [np.array([factor], np.uint64).view(storage(dtype))[:1] for factor in factors]
            leaves = [leaf * widen(dtype, factor) for leaf, factor in zip(leaves, bits, strict=True)]
        total = tree(reduction, leaves)
        if reduction == AVG:
            count = len(inputs)
            if total.dtype.kind == "f":
                total = total / total.dtype.type(count)
            else:
                total = np.array(
                    [int(abs(int(v)) // count) * (1 if v >= 0 else -1) for v in total], total.dtype
                )
        return narrow(dtype, total)


def same(dtype: int, got: Array, expected: Array) -> bool:
    """Bit for bit, but for which NaN it is."""
    if dtype == BF16 or got.dtype.kind == "f":
        a, b = widen(dtype, got), widen(dtype, expected)
        nan = np.isnan(a) & np.isnan(b)
        return bool(np.all(nan | (got.view(f"u{got.itemsize}") == expected.view(f"u{got.itemsize}"))))
    return bool(np.array_equal(got, expected))


def random_array(dtype: int, count: int, seed: int, special: bool = False) -> Array:
    """Any bits for integers; for floats moderate numbers, and some special ones if asked for."""
    generator = np.random.default_rng(seed)
    kind = storage(dtype)
    if dtype != BF16 and kind.kind != "f":
        return generator.integers(0, 256, count * kind.itemsize, np.uint8).view(kind)
    values = generator.standard_normal(count) * 8
    if special and count:
        chosen = generator.integers(0, 12, count)
        for which, value in enumerate((np.nan, np.inf, -np.inf, 0.0, -0.0, 65504.0, 1e-7)):
            values[chosen == which] = value
    return narrow(dtype, values.astype(np.float32)) if dtype == BF16 else values.astype(kind)
