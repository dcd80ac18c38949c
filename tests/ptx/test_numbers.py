"""Accuracy of the approximate functions, and exactness of conversions, over their whole domains; oracle:
numpy.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from runner import Kernel

THREADS = 256
Array = np.ndarray[Any, Any]


def apply(operation: str, given: Array, result: Any, source_type: str, result_type: str) -> Array:
    """`operation` (with D and S for its operands) on each element of `given`."""
    size_in, size_out = given.itemsize, np.dtype(result).itemsize
    text = f""".version 8.0
.target sm_90
.address_size 64
.visible .entry k(.param .u64 o, .param .u64 a, .param .u32 n) {{
 .reg .pred %p; .reg .b32 %r<5>; .reg .b64 %x<6>; .reg .{source_type} %s; .reg .{result_type} %d;
 mov.u32 %r0, %tid.x; mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mad.lo.s32 %r3, %r1, %r2, %r0;
 ld.param.u32 %r4, [n]; setp.ge.u32 %p, %r3, %r4; @%p ret;
 ld.param.u64 %x0, [o]; ld.param.u64 %x1, [a];
 mul.wide.u32 %x2, %r3, {size_in}; add.u64 %x3, %x1, %x2; ld.global.b{8 * size_in} %s, [%x3];
 {operation.replace("D", "%d").replace("S", "%s")};
 mul.wide.u32 %x4, %r3, {size_out}; add.u64 %x5, %x0, %x4; st.global.b{8 * size_out} [%x5], %d;
 ret; }}"""
    out = np.zeros(given.size, result)
    Kernel(text, "k", (THREADS, 1, 1))((-(-given.size // THREADS), 1, 1), out, given, given.size)
    return out


def f32(operation: str, given: Array) -> Array:
    return apply(operation, given.astype(np.float32), np.float32, "f32", "f32").astype(np.float64)


def relative(got: Array, expected: Array) -> float:
    return float(np.max(np.abs(got - expected) / np.abs(expected)))


def test_ex2_is_as_exact_as_ptx_says() -> None:
    """ex2.approx.f32: relative error at most 2^-22, subnormals included; the ends of the range are exact."""
    x = np.linspace(-126, 127.9, 100_000).astype(np.float32)
    assert relative(f32("ex2.approx.f32 D, S", x), np.exp2(x.astype(np.float64))) < 2.0**-22
    tiny = np.linspace(-149, -126, 1000).astype(np.float32)
    assert np.max(np.abs(f32("ex2.approx.f32 D, S", tiny) - np.exp2(tiny.astype(np.float64)))) <= 2.0**-149
    ends = np.array([-np.inf, np.inf, np.nan, 0.0, -0.0, 128.0, -200.0], np.float32)
    np.testing.assert_array_equal(f32("ex2.approx.f32 D, S", ends), [0, np.inf, np.nan, 1, 1, np.inf, 0])


def test_lg2_is_as_exact_as_ptx_says() -> None:
    """lg2.approx.f32: absolute error 2^-22 near 1, relative error 2^-22 elsewhere."""
    near = np.linspace(0.5001, 2, 100_000).astype(np.float32)
    assert np.max(np.abs(f32("lg2.approx.f32 D, S", near) - np.log2(near.astype(np.float64)))) < 2.0**-22
    wide = np.concatenate([np.geomspace(1e-45, 0.5, 20_000), np.geomspace(2, 3e38, 20_000)]).astype(
        np.float32
    )
    wide = wide[(wide > 0) & (np.abs(np.log2(wide.astype(np.float64))) > 0.5)]
    assert relative(f32("lg2.approx.f32 D, S", wide), np.log2(wide.astype(np.float64))) < 2.0**-22
    ends = np.array([0.0, -0.0, np.inf, -1.0, np.nan, 1.0], np.float32)
    np.testing.assert_array_equal(
        f32("lg2.approx.f32 D, S", ends), [-np.inf, -np.inf, np.inf, np.nan, np.nan, 0]
    )


@pytest.mark.parametrize(("name", "exact"), [("sin", np.sin), ("cos", np.cos)])
def test_sine_and_cosine_are_as_exact_as_ptx_says(name: str, exact: Any) -> None:
    """Absolute error at most 2^-20.5 in [-pi, pi], and no worse up to 1000."""
    for reach in (np.pi, 1000.0):
        x = np.linspace(-reach, reach, 100_000).astype(np.float32)
        assert np.max(np.abs(f32(f"{name}.approx.f32 D, S", x) - exact(x.astype(np.float64)))) < 2.0**-20.5
    np.testing.assert_array_equal(
        f32(f"{name}.approx.f32 D, S", np.array([np.inf, np.nan])), [np.nan, np.nan]
    )


def test_tanh_is_as_exact_as_ptx_says() -> None:
    """tanh.approx.f32: relative error at most 2^-11."""
    x = np.concatenate([np.linspace(-20, 20, 100_001), np.geomspace(1e-30, 1, 1000)]).astype(np.float32)
    x = x[x != 0]
    assert relative(f32("tanh.approx.f32 D, S", x), np.tanh(x.astype(np.float64))) < 2.0**-11


@pytest.mark.parametrize(
    ("operation", "exact"),
    [
        ("rcp.approx.f32 D, S", lambda x: 1 / x),
        ("sqrt.rn.f32 D, S", np.sqrt),
        ("rsqrt.approx.f32 D, S", lambda x: 1 / np.sqrt(x)),
    ],
)
def test_roots_and_reciprocals(operation: str, exact: Any) -> None:
    """Within one unit in the last place of the exact value."""
    x = np.geomspace(1e-37, 1e37, 50_000).astype(np.float32)
    assert relative(f32(operation, x), exact(x.astype(np.float64))) < 2.0**-22.9


ALL_HALVES = np.arange(1 << 16, dtype=np.uint16)


def test_every_half_widens_exactly() -> None:
    """cvt.f32.f16 on all 65,536 values."""
    got = apply("cvt.f32.f16 D, S", ALL_HALVES, np.float32, "b16", "f32")
    np.testing.assert_array_equal(got, ALL_HALVES.view(np.float16).astype(np.float32))


def floats_between_halves() -> Array:
    exact = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    middle = (exact[:-1] + exact[1:]) / 2
    points = np.concatenate(
        [
            exact,
            middle,
            np.nextafter(middle, np.float32(0)),
            np.nextafter(middle, np.float32(1e9)),
            np.array([65519.9, 65520, 1e9, np.inf, 1e-30, 0], np.float32),
        ]
    )
    return np.concatenate([points, -points])


def test_halves_are_rounded_to_nearest_even() -> None:
    """cvt.rn.f16.f32 at, and on both sides of, every tie; NaN is canonical."""
    x = floats_between_halves()
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(
            apply("cvt.rn.f16.f32 D, S", x, np.uint16, "f32", "b16"), x.astype(np.float16).view(np.uint16)
        )
    nan = np.array([np.nan, -np.nan], np.float32)
    assert set(apply("cvt.rn.f16.f32 D, S", nan, np.uint16, "f32", "b16")) == {0x7FFF}


def test_doubles_are_rounded_to_half_once() -> None:
    """cvt.rn.f16.f64 where rounding to float first would give another result."""
    ties = floats_between_halves().astype(np.float64)
    x = np.concatenate([ties, ties * (1 + 2.0**-40), ties * (1 - 2.0**-40)])
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(
            apply("cvt.rn.f16.f64 D, S", x, np.uint16, "f64", "b16"), x.astype(np.float16).view(np.uint16)
        )


@pytest.mark.parametrize(
    ("kind", "low", "high"),
    [
        ("s32", -(2**31), 2**31 - 1),
        ("u32", 0, 2**32 - 1),
        ("s64", -(2**63), 2**63 - 1),
        ("u64", 0, 2**64 - 1),
    ],
)
def test_floats_saturate_when_they_become_integers(kind: str, low: int, high: int) -> None:
    """cvt.rzi clamps to the type's range; NaN is 0 for 32 bits and the highest bit for 64."""
    x = np.array([0.9, -0.9, 1e30, -1e30, np.inf, -np.inf, np.nan, 123456.7, -5.5], np.float32)
    result = {"s32": np.int32, "u32": np.uint32, "s64": np.int64, "u64": np.uint64}[kind]
    got = apply(f"cvt.rzi.{kind}.f32 D, S", x, result, "f32", f"b{kind[1:]}")
    nan = 0 if kind.endswith("32") else (low if low else 1 << 63)
    expected = [
        nan
        if np.isnan(v)
        else int(min(max(np.trunc(float(v)), low), high))
        if np.isfinite(v)
        else (high if v > 0 else low)
        for v in x
    ]
    assert [int(v) for v in got] == expected


def test_integer_arithmetic_without_traps() -> None:
    """Division by zero gives all ones, remainder by zero the dividend, and the least number over -1 wraps."""
    x = np.array([0, 1, 7, 0x80000000, 0xFFFFFFFF], np.uint32)
    for operation, expected in {
        "div.u32 D, S, 0": [0xFFFFFFFF] * 5,
        "rem.u32 D, S, 0": x,
        "div.s32 D, S, 0": [0xFFFFFFFF] * 5,
        "rem.s32 D, S, 0": x,
        "div.s32 D, S, -1": (0 - x.astype(np.int64)) & 0xFFFFFFFF,
        "rem.s32 D, S, -1": [0] * 5,
        "shl.b32 D, S, 32": [0] * 5,
        "shr.u32 D, S, 40": [0] * 5,
        "shr.s32 D, S, 99": [0, 0, 0, 0xFFFFFFFF, 0xFFFFFFFF],
        "shr.u32 D, 0x80000000, S": [0x80000000, 0x40000000, 0x1000000, 0, 0],
    }.items():
        got = apply(operation, x, np.uint32, "b32", "b32")
        np.testing.assert_array_equal(got, np.array(expected).astype(np.uint32), err_msg=operation)
