"""The oracle for directed rounding: exact rationals, rounded once, to any IEEE-like format."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np


@dataclass(frozen=True)
class Format:
    precision: int  # significand bits, the hidden one included
    least: int  # exponent of the smallest subnormal
    top: int  # values reach up to just below 2**top


F16, BF16 = Format(11, -24, 16), Format(8, -133, 128)
F32, F64 = Format(24, -149, 128), Format(53, -1074, 1024)


def to_integer(value: Fraction, mode: str) -> int:
    low = math.floor(value)
    rest = value - low
    if mode == "rd" or rest == 0:
        return low
    if mode == "ru":
        return low + 1
    if mode == "rz":
        return low if value > 0 else low + 1
    return low + (rest > Fraction(1, 2) or (rest == Fraction(1, 2) and low % 2 == 1))


def to_float(value: Fraction, form: Format, mode: str = "rn") -> float:
    """Rounds a non-zero rational; the result is exact as a Python float.  Underflow keeps the sign."""
    size = abs(value)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    if size < Fraction(2) ** exponent:
        exponent -= 1
    unit = max(exponent - form.precision + 1, form.least)
    result = to_integer(value / Fraction(2) ** unit, mode) * Fraction(2) ** unit
    sign = -1.0 if value < 0 else 1.0
    if abs(result) >= Fraction(2) ** form.top:
        inwards = mode == "rz" or (mode == "rd" and value > 0) or (mode == "ru" and value < 0)
        return sign * (
            float((2 - Fraction(2) ** (1 - form.precision)) * Fraction(2) ** (form.top - 1))
            if inwards
            else math.inf
        )
    return math.copysign(float(result), sign)


def apply(operation: str, values: tuple[float, ...], form: Format, mode: str) -> float:
    """One IEEE operation, rounded once.  `values` are exact floats."""
    with np.errstate(all="ignore"):
        numbers = [np.float64(v) for v in values]
        plain: dict[str, Callable[[], float]] = {
            "add": lambda: numbers[0] + numbers[1],
            "sub": lambda: numbers[0] - numbers[1],
            "mul": lambda: numbers[0] * numbers[1],
            "div": lambda: numbers[0] / numbers[1],
            "fma": lambda: numbers[0] * numbers[1] + numbers[2],
            "sqrt": lambda: np.sqrt(numbers[0]),
            "rcp": lambda: np.float64(1) / numbers[0],
        }
        if not all(math.isfinite(v) for v in values):
            return float(plain[operation]())
        if operation in ("div", "rcp") and values[-1] == 0:
            return float(plain[operation]())
        if operation == "sqrt" and values[0] <= 0:
            return float(plain[operation]())
    exact = [Fraction(v) for v in values]
    if operation == "sqrt":
        return _square_root(exact[0], form, mode)
    if operation == "rcp":
        return to_float(1 / exact[0], form, mode)
    results = {
        "add": lambda: exact[0] + exact[1],
        "sub": lambda: exact[0] - exact[1],
        "mul": lambda: exact[0] * exact[1],
        "div": lambda: exact[0] / exact[1],
        "fma": lambda: exact[0] * exact[1] + exact[2],
    }
    result = results[operation]()
    return to_float(result, form, mode) if result else _zero(operation, values, mode)


def _zero(operation: str, values: tuple[float, ...], mode: str) -> float:
    sign = math.copysign(1, values[0]) * math.copysign(1, values[1])
    if operation in ("mul", "div"):
        return math.copysign(0.0, sign)
    second = values[1] if operation == "add" else -values[1] if operation == "sub" else values[2]
    first = math.copysign(1, values[0]) if operation != "fma" else sign
    if first == math.copysign(1, second):
        return math.copysign(0.0, first)
    return -0.0 if mode == "rd" else 0.0


def _square_root(value: Fraction, form: Format, mode: str) -> float:
    """sqrt to 80 bits more than needed, with a sticky bit that tells exact from inexact."""
    shift = 400 + 2 * 1200
    scaled = value * Fraction(2) ** (2 * shift)
    whole = scaled.numerator // scaled.denominator
    root = math.isqrt(whole)
    exact = root * root == whole and scaled.denominator == 1
    return to_float(
        (Fraction(root) if exact else Fraction(2 * root + 1, 2)) / Fraction(2) ** shift, form, mode
    )


def bf16_to_float(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def float_to_bf16(values: np.ndarray) -> np.ndarray:
    """The bits of float32 values that are exact in bfloat16."""
    return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


SPECIAL32 = np.array(
    [
        0.0,
        -0.0,
        1.0,
        -1.0,
        1.5,
        2.0,
        3.0,
        -3.0,
        0.1,
        1 / 3,
        7.25,
        1e-3,
        -1234.567,
        16777217.0,
        3.4028235e38,
        -3.4028235e38,
        1.1754944e-38,
        1.1754942e-38,
        -1e-45,
        1e-45,
        3e-42,
        5.877e-39,
        1.0000001,
        0.99999994,
        8388607.5,
        -2.5,
        1e20,
        1e-20,
        1.8446743e19,
        np.inf,
        -np.inf,
        np.nan,
    ],
    np.float32,
)
SPECIAL64 = np.array(
    [
        0.0,
        -0.0,
        1.0,
        -1.0,
        1.5,
        3.0,
        0.1,
        1 / 3,
        7.25,
        1e-3,
        -1234.567,
        9007199254740993.0,
        1.7976931348623157e308,
        -1.7976931348623157e308,
        2.2250738585072014e-308,
        5e-324,
        -5e-324,
        1e-310,
        1.0000000000000002,
        0.9999999999999999,
        -2.5,
        1e200,
        1e-200,
        np.inf,
        -np.inf,
        np.nan,
    ],
    np.float64,
)
