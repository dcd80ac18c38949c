"""What reductions must give, by numpy: integers wrap; 16-bit floats are summed in float32 and rounded once.

Contributions are chosen so that every order of joining gives the same exact value before that rounding.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.generic]
DTYPES = {
    "int8": 0,
    "uint8": 1,
    "int32": 2,
    "uint32": 3,
    "int64": 4,
    "uint64": 5,
    "float16": 6,
    "float32": 7,
    "float64": 8,
    "bfloat16": 9,
}
OPERATORS = {"sum": 0, "prod": 1, "max": 2, "min": 3, "avg": 4, "premul": 5}
FACTOR = 3
_EXACT = {"float16": 1000, "bfloat16": 250, "float32": 2**20, "float64": 2**45}  # integers that a type holds


def is_float(dtype: str) -> bool:
    """Whether the type is one of floating point."""
    return "float" in dtype


def item_bytes(dtype: str) -> int:
    """Bytes of one element."""
    return 2 if dtype == "bfloat16" else np.dtype(dtype).itemsize


def encode(dtype: str, values: Array) -> bytes:
    """Values as a device holds them; what a 16-bit type cannot hold is rounded to nearest, ties to even."""
    if dtype != "bfloat16":
        return values.astype(dtype).tobytes()
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16).tobytes()


def contribution(dtype: str, operator: str, rank: int, count: int) -> Array:
    """What `rank` brings: values that `dtype` holds exactly."""
    random = np.random.default_rng([DTYPES[dtype], OPERATORS[operator], rank, count])
    if not is_float(dtype):
        info = np.iinfo(dtype)
        return random.integers(info.min, info.max, count, dtype=np.dtype(dtype), endpoint=True)
    wide = np.float64 if dtype == "float64" else np.float32
    if operator == "prod":
        return random.choice(np.array([-2, -1.5, -1, -0.5, 0.5, 1, 1.5, 2]), count).astype(wide)
    return random.integers(-_EXACT[dtype], _EXACT[dtype], count).astype(wide)


def reduced(dtype: str, operator: str, contributions: list[Array]) -> bytes:
    """The result of a reduction over the ranks, as a device holds it."""
    join = {"prod": np.multiply, "max": np.maximum, "min": np.minimum}.get(operator, np.add)
    factor = contributions[0].dtype.type(FACTOR if operator == "premul" else 1)
    with np.errstate(over="ignore"):
        total = contributions[0] * factor
        for more in contributions[1:]:
            total = join(total, more * factor)
    ranks = len(contributions)
    if operator == "avg" and is_float(dtype):
        total = total / total.dtype.type(ranks)
    elif operator == "avg":  # towards zero
        total = np.array([int(abs(int(v)) // ranks) * (-1 if v < 0 else 1) for v in total], dtype=total.dtype)
    return encode(dtype, total)
