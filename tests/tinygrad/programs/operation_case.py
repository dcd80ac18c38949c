"""tinygrad operations and what numpy says about them.

Each case holds inputs (drawn from the case's own seed), the operation on tensors and its meaning on
numpy arrays (float64 for floating-point inputs).  The rank runs the first, the test the second, so
neither process needs the other's library.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Arrays = list[np.ndarray]


@dataclass(frozen=True)
class Case:
    name: str
    inputs: Callable[[np.random.Generator], Arrays]
    tensor: Callable[..., Any]
    oracle: Callable[..., Any]
    dtype: str = "float32"  # of floating-point inputs on the device
    relative: float = 2e-5
    absolute: float = 2e-6

    def arrays(self) -> Arrays:
        return self.inputs(np.random.default_rng(zlib.crc32(self.name.encode())))

    def expected(self) -> np.ndarray:
        exact = [
            as_stored(a, self.dtype).astype(np.float64) if a.dtype.kind == "f" else a for a in self.arrays()
        ]
        with np.errstate(all="ignore"):
            return np.asarray(self.oracle(*exact))


def as_stored(array: np.ndarray, dtype: str) -> np.ndarray:
    """The values that the device really gets: float16 and bfloat16 lose bits on the way in."""
    single = array.astype(np.float32)
    if dtype == "float16":
        return single.astype(np.float16)
    if dtype == "bfloat16":
        bits = single.view(np.uint32)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)).view(np.float32)
    return single


TOLERANCES = {"float32": (2e-5, 2e-6), "float16": (4e-3, 4e-3), "bfloat16": (3e-2, 3e-2)}
CASES: dict[str, Case] = {}


def add(
    name: str,
    inputs: Callable[[np.random.Generator], Arrays],
    tensor: Callable[..., Any],
    oracle: Callable[..., Any],
    dtype: str = "float32",
    relative: float | None = None,
    absolute: float | None = None,
) -> None:
    if name in CASES:
        raise ValueError(f"two cases named {name}")
    r, a = TOLERANCES[dtype]
    CASES[name] = Case(
        name,
        inputs,
        tensor,
        oracle,
        dtype,
        r if relative is None else relative,
        a if absolute is None else absolute,
    )


def normal(*shapes: tuple[int, ...], scale: float = 1.0) -> Callable[[np.random.Generator], Arrays]:
    return lambda rng: [rng.standard_normal(shape) * scale for shape in shapes]


def uniform(low: float, high: float, *shapes: tuple[int, ...]) -> Callable[[np.random.Generator], Arrays]:
    return lambda rng: [rng.uniform(low, high, shape) for shape in shapes]


def integers(
    low: int, high: int, *shapes: tuple[int, ...], dtype: Any = np.int32
) -> Callable[[np.random.Generator], Arrays]:
    return lambda rng: [rng.integers(low, high, shape).astype(dtype) for shape in shapes]


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def softmax(x: np.ndarray, axis: int = -1) -> np.ndarray:
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def erf(x: np.ndarray) -> np.ndarray:
    import math

    return np.vectorize(math.erf)(x)


def gelu(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
