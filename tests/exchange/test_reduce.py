"""Arithmetic over host memory, against numpy."""

from __future__ import annotations

import numpy as np
import pytest
from singularity_core._native import ffi, lib

from .arithmetic import Array, join, narrow, random_array, reduce, same, storage, widen
from .conftest import AVG, BF16, MAX, MIN, PREMUL, PROD, SUM, TYPES

ALL_TYPES = [*TYPES, BF16]
COUNTS = (0, 1, 7, 1023, 1024, 1025, 5000)


def pointer(array: Array) -> object:
    """For C."""
    return ffi.cast("void *", array.ctypes.data)


def computed(dtype: int, reduction: int, inputs: list[Array], factors: list[int]) -> Array:
    """By loading, joining from left to right, and finishing."""
    accumulator = lib.sg_dtype_accumulator(dtype)
    count = len(inputs[0])
    loaded = [np.zeros(count, storage(accumulator)) for _ in inputs]
    for array, out, factor in zip(inputs, loaded, factors, strict=True):
        lib.sg_reduce_load(dtype, reduction, factor, pointer(out), pointer(array), count)
    for other in loaded[1:]:
        lib.sg_reduce_join(accumulator, reduction, pointer(loaded[0]), pointer(other), count)
    result = np.zeros(count, storage(dtype))
    lib.sg_reduce_finish(dtype, reduction, len(inputs), pointer(result), pointer(loaded[0]), count)
    return result


@pytest.mark.parametrize("reduction", [SUM, PROD, MAX, MIN, AVG, PREMUL])
@pytest.mark.parametrize("dtype", ALL_TYPES)
def test_two_contributions(dtype: int, reduction: int) -> None:
    """Every type with every operator equals numpy bit for bit, with NaN, infinities, both zeros, overflow."""
    for count in COUNTS:
        inputs = [random_array(dtype, count, seed, special=True) for seed in (1, 2)]
        factors = [
            int(random_array(dtype, 1, seed).view(f"u{storage(dtype).itemsize}")[0]) for seed in (3, 4)
        ]
        got = computed(dtype, reduction, inputs, factors)
        expected = reduce(dtype, reduction, inputs, factors)
        if reduction in (MAX, MIN):
            zeros = (widen(dtype, got) == 0) & (widen(dtype, expected) == 0)  # numpy does not say which zero
            got, expected = np.where(zeros, expected, got), expected
        assert same(dtype, got, expected)


@pytest.mark.parametrize("dtype", [6, BF16])
def test_every_16_bit_number(dtype: int) -> None:
    """All 65536 patterns are widened exactly, and what is widened is rounded back to itself."""
    numbers = np.arange(65536, dtype=np.uint16).view(storage(dtype))
    wide, back = np.zeros(65536, np.float32), np.zeros(65536, storage(dtype))
    lib.sg_reduce_load(dtype, SUM, 0, pointer(wide), pointer(numbers), 65536)
    lib.sg_reduce_finish(dtype, SUM, 1, pointer(back), pointer(wide), 65536)
    assert same(7, wide, widen(dtype, numbers))
    assert same(dtype, back, numbers)


@pytest.mark.parametrize("dtype", [6, BF16])
def test_rounding(dtype: int) -> None:
    """float32 numbers of all sizes are rounded to nearest even, as by numpy, ties and overflow included."""
    generator = np.random.default_rng(5)
    bits = generator.integers(0, 1 << 32, 400_000, np.uint64).astype(np.uint32)
    halfway = (bits & np.uint32(0xFFFFE000)) | np.uint32(0x1000)
    top = (bits & np.uint32(0xFFFF0000)) | np.uint32(0x8000)
    edges = np.array(
        [65519.99, 65520, 65504, 6.1e-5, 5.96e-8, 2.98e-8, 2.9802322e-8, 1e-45], np.float32
    ).view(np.uint32)
    wide = np.concatenate([bits, halfway, top, edges, edges | np.uint32(1 << 31)]).view(np.float32)
    out = np.zeros(len(wide), storage(dtype))
    lib.sg_reduce_finish(dtype, SUM, 1, pointer(out), pointer(wide), len(wide))
    with np.errstate(over="ignore"):
        assert same(dtype, out, narrow(dtype, wide))


def test_the_left_zero_stays() -> None:
    """Of two equal zeros max and min answer the left one, whatever its sign."""
    for reduction in (MAX, MIN):
        for left, right in ((0.0, -0.0), (-0.0, 0.0)):
            a, b = np.full(40, left, np.float32), np.full(40, right, np.float32)
            lib.sg_reduce_join(7, reduction, pointer(a), pointer(b), 40)
            assert np.array_equal(np.signbit(a), np.full(40, left == 0 and np.signbit(left)))


def test_nan_wins_from_either_side() -> None:
    """NaN on the left or on the right is the result of max and min."""
    for reduction in (MAX, MIN):
        a = np.array([np.nan, 1, np.nan] * 11, np.float64)
        b = np.array([1, np.nan, np.nan] * 11, np.float64)
        assert np.all(np.isnan(join(reduction, a, b)))
        lib.sg_reduce_join(8, reduction, pointer(a), pointer(b), len(a))
        assert np.all(np.isnan(a))


def test_average_over_more_ranks_than_a_byte_holds() -> None:
    """An 8-bit sum divided by 1000 ranks is 0, not the sum divided by 1000 modulo 256."""
    numbers = np.array([-128, 127, -1, 5], np.int8)
    out = np.zeros(4, np.int8)
    lib.sg_reduce_finish(0, AVG, 1000, pointer(out), pointer(numbers), 4)
    assert out.tolist() == [0, 0, 0, 0]
    lib.sg_reduce_finish(0, AVG, 128, pointer(out), pointer(numbers), 4)
    assert out.tolist() == [-1, 0, 0, 0]
    unsigned, wide = np.array([255, 4], np.uint8), np.zeros(2, np.uint8)
    lib.sg_reduce_finish(1, AVG, 256 + 1, pointer(wide), pointer(unsigned), 2)
    assert wide.tolist() == [0, 0]
