"""Operations element by element: one, two and three arguments; integers; casts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from operation_case import Arrays, add, as_stored, erf, gelu, integers, normal, sigmoid, uniform

# ---- one argument -----------------------------------------------------------------------
UNARY: dict[str, tuple[Callable[[np.ndarray], np.ndarray], tuple[float, float]]] = {
    "neg": (np.negative, (-3, 3)),
    "abs": (np.abs, (-3, 3)),
    "sign": (np.sign, (-3, 3)),
    "square": (np.square, (-3, 3)),
    "sqrt": (np.sqrt, (0, 9)),
    "rsqrt": (lambda x: 1 / np.sqrt(x), (0.1, 9)),
    "reciprocal": (lambda x: 1 / x, (0.2, 4)),
    "exp": (np.exp, (-4, 4)),
    "exp2": (np.exp2, (-6, 6)),
    "log": (np.log, (0.05, 9)),
    "log2": (np.log2, (0.05, 9)),
    "log10": (np.log10, (0.05, 9)),
    "sin": (np.sin, (-9, 9)),
    "cos": (np.cos, (-9, 9)),
    "tan": (np.tan, (-1.3, 1.3)),
    "asin": (np.arcsin, (-0.99, 0.99)),
    "acos": (np.arccos, (-0.99, 0.99)),
    "atan": (np.arctan, (-5, 5)),
    "sinh": (np.sinh, (-3, 3)),
    "cosh": (np.cosh, (-3, 3)),
    "tanh": (np.tanh, (-4, 4)),
    "asinh": (np.arcsinh, (-3, 3)),
    "acosh": (np.arccosh, (1.05, 9)),
    "atanh": (np.arctanh, (-0.95, 0.95)),
    "erf": (erf, (-3, 3)),
    "floor": (np.floor, (-5, 5)),
    "ceil": (np.ceil, (-5, 5)),
    "trunc": (np.trunc, (-5, 5)),
    "round": (np.round, (-5, 5)),
    "relu": (lambda x: np.maximum(x, 0), (-3, 3)),
    "relu6": (lambda x: np.clip(x, 0, 6), (-3, 9)),
    "sigmoid": (sigmoid, (-6, 6)),
    "silu": (lambda x: x * sigmoid(x), (-6, 6)),
    "gelu": (gelu, (-4, 4)),
    "quick_gelu": (lambda x: x * sigmoid(1.702 * x), (-4, 4)),
    "leaky_relu": (lambda x: np.where(x > 0, x, 0.01 * x), (-3, 3)),
    "elu": (lambda x: np.where(x > 0, x, np.exp(x) - 1), (-3, 3)),
    "celu": (lambda x: np.maximum(x, 0) + np.minimum(0, np.exp(x) - 1), (-3, 3)),
    "selu": (lambda x: 1.0507 * np.where(x > 0, x, 1.67326 * (np.exp(x) - 1)), (-3, 3)),
    "softplus": (lambda x: np.log1p(np.exp(x)), (-5, 5)),
    "mish": (lambda x: x * np.tanh(np.log1p(np.exp(x))), (-5, 5)),
    "logsigmoid": (lambda x: -np.log1p(np.exp(-x)), (-5, 5)),
    "softsign": (lambda x: x / (1 + np.abs(x)), (-5, 5)),
    "hardswish": (lambda x: x * np.clip(x + 3, 0, 6) / 6, (-5, 5)),
    "hardsigmoid": (lambda x: np.clip(x / 6 + 0.5, 0, 1), (-5, 5)),
    "hardtanh": (lambda x: np.clip(x, -1, 1), (-3, 3)),
    "isnan": (np.isnan, (-1, 1)),
    "logical_not": (lambda x: x == 0, (-1, 1)),
}
LOOSE = {
    "exp2": 1e-4,
    "sinh": 1e-4,
    "cosh": 1e-4,
    "tan": 1e-4,
    "asinh": 1e-4,
    "acosh": 1e-4,
    "atanh": 1e-4,
    "erf": 1e-5,
    "asin": 1e-3,
    "acos": 1e-3,
}
for _name, (_oracle, (_low, _high)) in UNARY.items():
    add(
        _name,
        uniform(_low, _high, (3, 47)),
        lambda x, n=_name: getattr(x, n)(),
        _oracle,
        absolute=LOOSE.get(_name, 4e-6),
    )
for _dtype in ("float16", "bfloat16"):
    for _name in (
        "neg",
        "abs",
        "sqrt",
        "exp",
        "log",
        "sin",
        "tanh",
        "sigmoid",
        "gelu",
        "relu",
        "floor",
        "reciprocal",
    ):
        _oracle, (_low, _high) = UNARY[_name]
        add(
            f"{_name}_{_dtype}",
            uniform(_low, _high, (5, 33)),
            lambda x, n=_name: getattr(x, n)(),
            _oracle,
            _dtype,
        )


def _specials(rng: np.random.Generator) -> Arrays:
    return [np.array([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 1e-40, -1e-40, 3e38, -3e38, 1e-20])]


for _name, _oracle in (
    ("isnan", np.isnan),
    ("isinf", np.isinf),
    ("isfinite", np.isfinite),
    ("sqrt", np.sqrt),
    ("exp", np.exp),
    # tinygrad defines these two by comparisons, which are false for NaN
    ("relu", lambda x: np.where(x > 0, x, 0)),
    ("sign", lambda x: np.where(x == 0, 0, np.where(x < 0, -1, 1))),
):
    add(f"{_name}_of_specials", _specials, lambda x, n=_name: getattr(x, n)(), _oracle, absolute=1e-30)

# ---- two and three arguments ------------------------------------------------------------
BINARY: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "add": (lambda x, y: x + y, np.add),
    "sub": (lambda x, y: x - y, np.subtract),
    "mul": (lambda x, y: x * y, np.multiply),
    "div": (lambda x, y: x / y, np.divide),
    "maximum": (lambda x, y: x.maximum(y), np.maximum),
    "minimum": (lambda x, y: x.minimum(y), np.minimum),
    "less": (lambda x, y: x < y, np.less),
    "greater_equal": (lambda x, y: x >= y, np.greater_equal),
    "equal": (lambda x, y: x.eq(y), np.equal),
    "not_equal": (lambda x, y: x.ne(y), np.not_equal),
    "copysign": (lambda x, y: x.copysign(y), np.copysign),
    "logaddexp": (lambda x, y: x.logaddexp(y), np.logaddexp),
    "fmod": (lambda x, y: x.fmod(y), np.fmod),
    "isclose": (lambda x, y: x.isclose(y, atol=0.5), lambda x, y: np.isclose(x, y, atol=0.5)),
    "lerp": (lambda x, y: x.lerp(y, 0.3), lambda x, y: x + (y - x) * 0.3),
}
for _name, (_tensor, _oracle) in BINARY.items():
    add(_name, normal((4, 1, 37), (5, 37)), _tensor, _oracle)
    if _name in ("add", "sub", "mul", "div", "maximum", "less"):
        for _dtype in ("float16", "bfloat16"):
            add(f"{_name}_{_dtype}", uniform(0.5, 4, (4, 37), (4, 37)), _tensor, _oracle, _dtype)
add("floor_mod", normal((40,), (40,), scale=5), lambda x, y: x % y, np.mod, absolute=1e-5)
add(
    "pow",
    lambda rng: [rng.uniform(0.1, 3, 60), rng.uniform(-3, 3, 60)],
    lambda x, y: x.pow(y),
    np.power,
    relative=1e-4,
)
add("pow_of_integer_exponent", normal((60,)), lambda x: x**3, lambda x: x**3)
add(
    "where",
    lambda rng: [
        rng.integers(0, 2, (5, 9)).astype(bool),
        rng.standard_normal((5, 9)),
        rng.standard_normal((9,)),
    ],
    lambda c, x, y: c.where(x, y),
    np.where,
)
add("clip", normal((70,), scale=3), lambda x: x.clip(-1.5, 2), lambda x: np.clip(x, -1.5, 2))
add(
    "masked_fill",
    lambda rng: [rng.standard_normal((6, 7)), rng.integers(0, 2, (6, 7)).astype(bool)],
    lambda x, m: x.masked_fill(m, -9.0),
    lambda x, m: np.where(m, -9.0, x),
)

# ---- integers and booleans --------------------------------------------------------------
INTEGER: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "add": (lambda x, y: x + y, np.add),
    "mul": (lambda x, y: x * y, np.multiply),
    "sub": (lambda x, y: x - y, np.subtract),
    "floor_div": (lambda x, y: x // y, np.floor_divide),
    "mod": (lambda x, y: x % y, np.mod),
    "and": (lambda x, y: x & y, np.bitwise_and),
    "or": (lambda x, y: x | y, np.bitwise_or),
    "xor": (lambda x, y: x ^ y, np.bitwise_xor),
    "minimum": (lambda x, y: x.minimum(y), np.minimum),
    "maximum": (lambda x, y: x.maximum(y), np.maximum),
    "less": (lambda x, y: x < y, np.less),
    "not": (lambda x, y: ~x, lambda x, y: ~x),
    "equal": (lambda x, y: x.eq(y), np.equal),
}


def _integer_inputs(dtype: Any) -> Callable[[np.random.Generator], Arrays]:
    def draw(rng: np.random.Generator) -> Arrays:
        info = np.iinfo(dtype)
        top = int(min(info.max, 2**31 - 1)) // 2
        low = 0 if info.min == 0 else -top
        divisor = rng.integers(1, min(top, 60), 90) * (rng.choice([1, -1], 90) if info.min else 1)
        return [rng.integers(low, top, 90).astype(dtype), divisor.astype(dtype)]

    return draw


for _dtype in ("int8", "uint8", "int16", "int32", "uint32", "int64"):
    for _name, (_tensor, _oracle) in INTEGER.items():
        if _dtype in ("int32", "int64") or _name in ("add", "mul", "floor_div", "less", "xor"):
            add(
                f"{_name}_{_dtype}",
                _integer_inputs(np.dtype(_dtype)),
                _tensor,
                _oracle,
                relative=0,
                absolute=0,
            )
add("shift_left", integers(0, 1000, (50,), dtype=np.uint32), lambda x: x << 7, lambda x: x << 7)
add("shift_right", integers(0, 10**6, (50,), dtype=np.uint32), lambda x: x >> 3, lambda x: x >> 3)
add("bool_and", integers(0, 2, (30,), (30,), dtype=bool), lambda x, y: x & y, np.logical_and)
add("bool_or", integers(0, 2, (30,), (30,), dtype=bool), lambda x, y: x | y, np.logical_or)
add("bool_xor", integers(0, 2, (30,), (30,), dtype=bool), lambda x, y: x ^ y, np.logical_xor)
add("bool_sum", integers(0, 2, (30, 9), dtype=bool), lambda x: x.sum(axis=0), lambda x: x.sum(0))
for _target in ("float16", "float32", "float64", "int8", "int32", "int64", "uint8", "bool"):
    add(
        f"cast_float32_to_{_target}",
        uniform(0, 100, (77,)),
        lambda x, t=_target: x.cast(t),
        lambda x, t=_target: x.astype(t).astype("float64"),
        relative=1e-3 if _target == "float16" else 2e-5,
    )
    add(
        f"cast_int32_to_{_target}",
        integers(-100, 100, (77,)),
        lambda x, t=_target: x.cast(t),
        lambda x, t=_target: x.astype(t),
    )
add(
    "cast_to_bfloat16_and_back",
    normal((99,)),
    lambda x: x.cast("bfloat16").cast("float32"),
    lambda x: as_stored(x, "bfloat16"),
)
add(
    "cast_to_float8_and_back",
    normal((99,)),
    lambda x: x.cast("fp8e4m3").cast("float32"),
    lambda x: x,
    relative=0.0626,
    absolute=2e-3,
)
add(
    "bitcast_to_integer",
    normal((64,)),
    lambda x: x.bitcast("int32"),
    lambda x: x.astype(np.float32).view(np.int32),
)
