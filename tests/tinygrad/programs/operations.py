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
    dtype: str = "float32"      # of floating-point inputs on the device
    relative: float = 2e-5
    absolute: float = 2e-6

    def arrays(self) -> Arrays:
        return self.inputs(np.random.default_rng(zlib.crc32(self.name.encode())))

    def expected(self) -> np.ndarray:
        exact = [_as_stored(a, self.dtype).astype(np.float64) if a.dtype.kind == "f" else a for a in self.arrays()]
        with np.errstate(all="ignore"):
            return np.asarray(self.oracle(*exact))


def _as_stored(array: np.ndarray, dtype: str) -> np.ndarray:
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


def add(name: str, inputs: Callable[[np.random.Generator], Arrays], tensor: Callable[..., Any], oracle: Callable[..., Any],
        dtype: str = "float32", relative: float | None = None, absolute: float | None = None) -> None:
    if name in CASES:
        raise ValueError(f"two cases named {name}")
    r, a = TOLERANCES[dtype]
    CASES[name] = Case(name, inputs, tensor, oracle, dtype, r if relative is None else relative, a if absolute is None else absolute)


def normal(*shapes: tuple[int, ...], scale: float = 1.0) -> Callable[[np.random.Generator], Arrays]:
    return lambda rng: [rng.standard_normal(shape) * scale for shape in shapes]


def uniform(low: float, high: float, *shapes: tuple[int, ...]) -> Callable[[np.random.Generator], Arrays]:
    return lambda rng: [rng.uniform(low, high, shape) for shape in shapes]


def integers(low: int, high: int, *shapes: tuple[int, ...], dtype: Any = np.int32) -> Callable[[np.random.Generator], Arrays]:
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


# ---- one argument ------------------------------------------------------------------------------------
UNARY: dict[str, tuple[Callable[[np.ndarray], np.ndarray], tuple[float, float]]] = {
    "neg": (np.negative, (-3, 3)), "abs": (np.abs, (-3, 3)), "sign": (np.sign, (-3, 3)), "square": (np.square, (-3, 3)),
    "sqrt": (np.sqrt, (0, 9)), "rsqrt": (lambda x: 1 / np.sqrt(x), (0.1, 9)), "reciprocal": (lambda x: 1 / x, (0.2, 4)),
    "exp": (np.exp, (-4, 4)), "exp2": (np.exp2, (-6, 6)), "log": (np.log, (0.05, 9)), "log2": (np.log2, (0.05, 9)),
    "log10": (np.log10, (0.05, 9)), "sin": (np.sin, (-9, 9)), "cos": (np.cos, (-9, 9)), "tan": (np.tan, (-1.3, 1.3)),
    "asin": (np.arcsin, (-0.99, 0.99)), "acos": (np.arccos, (-0.99, 0.99)), "atan": (np.arctan, (-5, 5)),
    "sinh": (np.sinh, (-3, 3)), "cosh": (np.cosh, (-3, 3)), "tanh": (np.tanh, (-4, 4)), "asinh": (np.arcsinh, (-3, 3)),
    "acosh": (np.arccosh, (1.05, 9)), "atanh": (np.arctanh, (-0.95, 0.95)), "erf": (erf, (-3, 3)),
    "floor": (np.floor, (-5, 5)), "ceil": (np.ceil, (-5, 5)), "trunc": (np.trunc, (-5, 5)), "round": (np.round, (-5, 5)),
    "relu": (lambda x: np.maximum(x, 0), (-3, 3)), "relu6": (lambda x: np.clip(x, 0, 6), (-3, 9)), "sigmoid": (sigmoid, (-6, 6)),
    "silu": (lambda x: x * sigmoid(x), (-6, 6)), "gelu": (gelu, (-4, 4)), "quick_gelu": (lambda x: x * sigmoid(1.702 * x), (-4, 4)),
    "leaky_relu": (lambda x: np.where(x > 0, x, 0.01 * x), (-3, 3)), "elu": (lambda x: np.where(x > 0, x, np.exp(x) - 1), (-3, 3)),
    "celu": (lambda x: np.maximum(x, 0) + np.minimum(0, np.exp(x) - 1), (-3, 3)),
    "selu": (lambda x: 1.0507 * np.where(x > 0, x, 1.67326 * (np.exp(x) - 1)), (-3, 3)),
    "softplus": (lambda x: np.log1p(np.exp(x)), (-5, 5)), "mish": (lambda x: x * np.tanh(np.log1p(np.exp(x))), (-5, 5)),
    "logsigmoid": (lambda x: -np.log1p(np.exp(-x)), (-5, 5)), "softsign": (lambda x: x / (1 + np.abs(x)), (-5, 5)),
    "hardswish": (lambda x: x * np.clip(x + 3, 0, 6) / 6, (-5, 5)), "hardsigmoid": (lambda x: np.clip(x / 6 + 0.5, 0, 1), (-5, 5)),
    "hardtanh": (lambda x: np.clip(x, -1, 1), (-3, 3)), "isnan": (np.isnan, (-1, 1)), "logical_not": (lambda x: x == 0, (-1, 1)),
}
LOOSE = {"exp2": 1e-4, "sinh": 1e-4, "cosh": 1e-4, "tan": 1e-4, "asinh": 1e-4, "acosh": 1e-4, "atanh": 1e-4, "erf": 1e-5,
         "asin": 1e-3, "acos": 1e-3}
for _name, (_oracle, (_low, _high)) in UNARY.items():
    add(_name, uniform(_low, _high, (3, 47)), lambda x, n=_name: getattr(x, n)(), _oracle, absolute=LOOSE.get(_name, 4e-6))
for _dtype in ("float16", "bfloat16"):
    for _name in ("neg", "abs", "sqrt", "exp", "log", "sin", "tanh", "sigmoid", "gelu", "relu", "floor", "reciprocal"):
        _oracle, (_low, _high) = UNARY[_name]
        add(f"{_name}_{_dtype}", uniform(_low, _high, (5, 33)), lambda x, n=_name: getattr(x, n)(), _oracle, _dtype)


def _specials(rng: np.random.Generator) -> Arrays:
    return [np.array([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 1e-40, -1e-40, 3e38, -3e38, 1e-20])]


for _name, _oracle in (("isnan", np.isnan), ("isinf", np.isinf), ("isfinite", np.isfinite), ("sqrt", np.sqrt), ("exp", np.exp),
                       # tinygrad defines these two by comparisons, which are false for NaN
                       ("relu", lambda x: np.where(x > 0, x, 0)), ("sign", lambda x: np.where(x == 0, 0, np.where(x < 0, -1, 1)))):
    add(f"{_name}_of_specials", _specials, lambda x, n=_name: getattr(x, n)(), _oracle, absolute=1e-30)

# ---- two and three arguments ---------------------------------------------------------------------------
BINARY: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "add": (lambda x, y: x + y, np.add), "sub": (lambda x, y: x - y, np.subtract), "mul": (lambda x, y: x * y, np.multiply),
    "div": (lambda x, y: x / y, np.divide), "maximum": (lambda x, y: x.maximum(y), np.maximum),
    "minimum": (lambda x, y: x.minimum(y), np.minimum), "less": (lambda x, y: x < y, np.less),
    "greater_equal": (lambda x, y: x >= y, np.greater_equal), "equal": (lambda x, y: x.eq(y), np.equal),
    "not_equal": (lambda x, y: x.ne(y), np.not_equal), "copysign": (lambda x, y: x.copysign(y), np.copysign),
    "logaddexp": (lambda x, y: x.logaddexp(y), np.logaddexp), "fmod": (lambda x, y: x.fmod(y), np.fmod),
    "isclose": (lambda x, y: x.isclose(y, atol=0.5), lambda x, y: np.isclose(x, y, atol=0.5)),
    "lerp": (lambda x, y: x.lerp(y, 0.3), lambda x, y: x + (y - x) * 0.3),
}
for _name, (_tensor, _oracle) in BINARY.items():
    add(_name, normal((4, 1, 37), (5, 37)), _tensor, _oracle)
    if _name in ("add", "sub", "mul", "div", "maximum", "less"):
        for _dtype in ("float16", "bfloat16"):
            add(f"{_name}_{_dtype}", uniform(0.5, 4, (4, 37), (4, 37)), _tensor, _oracle, _dtype)
add("floor_mod", normal((40,), (40,), scale=5), lambda x, y: x % y, np.mod, absolute=1e-5)
add("pow", lambda rng: [rng.uniform(0.1, 3, 60), rng.uniform(-3, 3, 60)], lambda x, y: x.pow(y), np.power, relative=1e-4)
add("pow_of_integer_exponent", normal((60,)), lambda x: x**3, lambda x: x**3)
add("where", lambda rng: [rng.integers(0, 2, (5, 9)).astype(bool), rng.standard_normal((5, 9)), rng.standard_normal((9,))],
    lambda c, x, y: c.where(x, y), np.where)
add("clip", normal((70,), scale=3), lambda x: x.clip(-1.5, 2), lambda x: np.clip(x, -1.5, 2))
add("masked_fill", lambda rng: [rng.standard_normal((6, 7)), rng.integers(0, 2, (6, 7)).astype(bool)],
    lambda x, m: x.masked_fill(m, -9.0), lambda x, m: np.where(m, -9.0, x))

# ---- integers and booleans -----------------------------------------------------------------------------
INTEGER: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "add": (lambda x, y: x + y, np.add), "mul": (lambda x, y: x * y, np.multiply), "sub": (lambda x, y: x - y, np.subtract),
    "floor_div": (lambda x, y: x // y, np.floor_divide), "mod": (lambda x, y: x % y, np.mod),
    "and": (lambda x, y: x & y, np.bitwise_and), "or": (lambda x, y: x | y, np.bitwise_or), "xor": (lambda x, y: x ^ y, np.bitwise_xor),
    "minimum": (lambda x, y: x.minimum(y), np.minimum), "maximum": (lambda x, y: x.maximum(y), np.maximum),
    "less": (lambda x, y: x < y, np.less), "not": (lambda x, y: ~x, lambda x, y: ~x), "equal": (lambda x, y: x.eq(y), np.equal),
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
            add(f"{_name}_{_dtype}", _integer_inputs(np.dtype(_dtype)), _tensor, _oracle, relative=0, absolute=0)
add("shift_left", integers(0, 1000, (50,), dtype=np.uint32), lambda x: x << 7, lambda x: x << 7)
add("shift_right", integers(0, 10**6, (50,), dtype=np.uint32), lambda x: x >> 3, lambda x: x >> 3)
add("bool_and", integers(0, 2, (30,), (30,), dtype=bool), lambda x, y: x & y, np.logical_and)
add("bool_or", integers(0, 2, (30,), (30,), dtype=bool), lambda x, y: x | y, np.logical_or)
add("bool_xor", integers(0, 2, (30,), (30,), dtype=bool), lambda x, y: x ^ y, np.logical_xor)
add("bool_sum", integers(0, 2, (30, 9), dtype=bool), lambda x: x.sum(axis=0), lambda x: x.sum(0))
for _target in ("float16", "float32", "float64", "int8", "int32", "int64", "uint8", "bool"):
    add(f"cast_float32_to_{_target}", uniform(0, 100, (77,)), lambda x, t=_target: x.cast(t), lambda x, t=_target: x.astype(t).astype("float64"), relative=1e-3 if _target == "float16" else 2e-5)
    add(f"cast_int32_to_{_target}", integers(-100, 100, (77,)), lambda x, t=_target: x.cast(t), lambda x, t=_target: x.astype(t))
add("cast_to_bfloat16_and_back", normal((99,)), lambda x: x.cast("bfloat16").cast("float32"), lambda x: _as_stored(x, "bfloat16"))
add("cast_to_float8_and_back", normal((99,)), lambda x: x.cast("fp8e4m3").cast("float32"), lambda x: x, relative=0.0626, absolute=2e-3)
add("bitcast_to_integer", normal((64,)), lambda x: x.bitcast("int32"), lambda x: x.astype(np.float32).view(np.int32))

# ---- reductions ------------------------------------------------------------------------------------------
REDUCE: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "sum": (lambda x, a: x.sum(axis=a), lambda x, a: x.sum(axis=a)), "mean": (lambda x, a: x.mean(axis=a), lambda x, a: x.mean(axis=a)),
    "max": (lambda x, a: x.max(axis=a), lambda x, a: x.max(axis=a)), "min": (lambda x, a: x.min(axis=a), lambda x, a: x.min(axis=a)),
    "prod": (lambda x, a: x.prod(axis=a), lambda x, a: x.prod(axis=a)),
    "std": (lambda x, a: x.std(axis=a), lambda x, a: x.std(axis=a, ddof=1)), "var": (lambda x, a: x.var(axis=a), lambda x, a: x.var(axis=a, ddof=1)),
    "logsumexp": (lambda x, a: x.logsumexp(axis=a), lambda x, a: np.log(np.exp(x).sum(axis=a))),
}
for _name, (_tensor, _oracle) in REDUCE.items():
    for _label, _axis in (("all", None), ("rows", 0), ("columns", -1), ("two", (0, 2))):
        if _label in ("all", "columns") or _name in ("sum", "max"):
            add(f"{_name}_over_{_label}", uniform(0.8, 1.2, (6, 5, 19)), lambda x, f=_tensor, a=_axis: f(x, a), lambda x, f=_oracle, a=_axis: f(x, a), relative=1e-4)
for _dtype in ("float16", "bfloat16"):
    for _name in ("sum", "mean", "max"):
        _tensor, _oracle = REDUCE[_name]
        add(f"{_name}_{_dtype}", normal((13, 40)), lambda x, f=_tensor: f(x, -1), lambda x, f=_oracle: f(x, -1), _dtype, absolute=0.08)
add("sum_of_many", normal((300, 500)), lambda x: x.sum(), lambda x: x.sum(), relative=1e-4, absolute=1e-2)
add("sum_int32", integers(-99, 99, (40, 50)), lambda x: x.sum(axis=1), lambda x: x.sum(1))
add("max_int32", integers(-99, 99, (40, 50)), lambda x: x.max(axis=1), lambda x: x.max(1))
add("any", integers(0, 2, (20, 4), dtype=bool), lambda x: x.any(axis=1), lambda x: x.any(1))
add("all", integers(0, 2, (20, 3), dtype=bool), lambda x: x.all(axis=1), lambda x: x.all(1))
add("argmax", normal((9, 33)), lambda x: x.argmax(axis=1), lambda x: x.argmax(1))
add("argmin", normal((9, 33)), lambda x: x.argmin(axis=0), lambda x: x.argmin(0))
add("softmax", normal((9, 33), scale=3), lambda x: x.softmax(), softmax)
add("log_softmax", normal((9, 33), scale=3), lambda x: x.log_softmax(), lambda x: np.log(softmax(x)), absolute=1e-5)
add("softmax_float16", normal((9, 33)), lambda x: x.softmax(), softmax, "float16")
add("normalize", normal((9, 33)), lambda x: x.normalize(), lambda x: x / np.sqrt((x**2).sum(1, keepdims=True)))
add("layernorm", normal((9, 33)), lambda x: x.layernorm(), lambda x: (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5), absolute=1e-5)

# ---- cumulative, sorting ---------------------------------------------------------------------------------
add("cumsum", normal((4, 100)), lambda x: x.cumsum(axis=1), lambda x: x.cumsum(1), absolute=1e-4)
add("cumsum_long", normal((700,)), lambda x: x.cumsum(), lambda x: x.cumsum(), absolute=1e-3)
add("cumprod", uniform(0.9, 1.1, (3, 40)), lambda x: x.cumprod(axis=1), lambda x: x.cumprod(1), relative=1e-4)
add("cummax", normal((3, 40)), lambda x: x.cummax(axis=1)[0], lambda x: np.maximum.accumulate(x, 1))
add("cummin", normal((3, 40)), lambda x: x.cummin(axis=1)[0], lambda x: np.minimum.accumulate(x, 1))
add("logcumsumexp", normal((3, 30)), lambda x: x.logcumsumexp(axis=1), lambda x: np.log(np.exp(x).cumsum(1)), absolute=1e-5)
add("sort", normal((3, 37)), lambda x: x.sort()[0], lambda x: np.sort(x))
add("sort_descending", normal((64,)), lambda x: x.sort(descending=True)[0], lambda x: -np.sort(-x))
add("argsort", normal((50,)), lambda x: x.argsort(), lambda x: np.argsort(x))
add("sort_int32", integers(-99, 99, (3, 37)), lambda x: x.sort()[0], lambda x: np.sort(x))
add("topk", normal((3, 37)), lambda x: x.topk(5)[0], lambda x: -np.sort(-x)[:, :5])

# ---- movement ----------------------------------------------------------------------------------------------
MOVES: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "reshape": (lambda x: (x.reshape(8, 15) * 2), lambda x: x.reshape(8, 15) * 2),
    "permute": (lambda x: x.permute(2, 0, 1).contiguous(), lambda x: x.transpose(2, 0, 1)),
    "flip": (lambda x: x.flip((0, 2)) + 1, lambda x: x[::-1, :, ::-1] + 1), "pad": (lambda x: x.pad(((1, 2), None, (0, 3)), value=-7.0), lambda x: np.pad(x, ((1, 2), (0, 0), (0, 3)), constant_values=-7)),
    "pad_reflect": (lambda x: x.pad((2, 1), mode="reflect"), lambda x: np.pad(x, ((0, 0), (0, 0), (2, 1)), mode="reflect")),
    "pad_replicate": (lambda x: x.pad((2, 1), mode="replicate"), lambda x: np.pad(x, ((0, 0), (0, 0), (2, 1)), mode="edge")),
    "pad_circular": (lambda x: x.pad((2, 1), mode="circular"), lambda x: np.pad(x, ((0, 0), (0, 0), (2, 1)), mode="wrap")),
    "shrink": (lambda x: x.shrink(((1, 3), (0, 4), (2, 5))).contiguous(), lambda x: x[1:3, 0:4, 2:5]), "expand": (lambda x: x[:, :, :1].expand(4, 5, 7).contiguous(), lambda x: np.broadcast_to(x[:, :, :1], (4, 5, 7))),
    "roll": (lambda x: x.roll(2, 1), lambda x: np.roll(x, 2, 1)), "repeat": (lambda x: x.repeat((2, 1, 3)), lambda x: np.tile(x, (2, 1, 3))),
    "repeat_interleave": (lambda x: x.repeat_interleave(3, dim=1), lambda x: np.repeat(x, 3, 1)), "transpose": (lambda x: x.transpose(0, 2).contiguous(), lambda x: x.swapaxes(0, 2)),
    "flatten": (lambda x: x.flatten(1) - 1, lambda x: x.reshape(4, -1) - 1), "unfold": (lambda x: x.unfold(2, 3, 1).contiguous(), lambda x: np.lib.stride_tricks.sliding_window_view(x, 3, 2)),
    "diagonal": (lambda x: x[0, :4, :4].diagonal().contiguous(), lambda x: x[0, :4, :4].diagonal()), "diag": (lambda x: x[0, 0].diag(), lambda x: np.diag(x[0, 0])),
    "tril": (lambda x: x.tril(1), lambda x: np.tril(x, 1)), "triu": (lambda x: x.triu(-1), lambda x: np.triu(x, -1)), "chunk": (lambda x: x.chunk(3, dim=2)[1].contiguous(), lambda x: x[:, :, 2:4]),
    "split": (lambda x: x.split([1, 3], dim=0)[1].contiguous(), lambda x: x[1:]), "rearrange": (lambda x: x.rearrange("a b c -> c (a b)").contiguous(), lambda x: x.reshape(20, 6).T),
    "unsqueeze": (lambda x: x.unsqueeze(1) * 1.5, lambda x: x[:, None] * 1.5), "strided": (lambda x: x[::2, 1::2, ::-2].contiguous(), lambda x: x[::2, 1::2, ::-2]),
}
for _name, (_tensor, _oracle) in MOVES.items():
    add(_name, normal((4, 5, 6)), _tensor, _oracle)
add("cat", normal((3, 4), (5, 4), (1, 4)), lambda x, y, z: x.cat(y, z), lambda *a: np.concatenate(a))
add("stack", normal((3, 4), (3, 4)), lambda x, y: x.stack(y, dim=1), lambda x, y: np.stack([x, y], 1))
add("meshgrid", normal((4,), (6,)), lambda x, y: x.meshgrid(y)[0] * x.meshgrid(y)[1], lambda x, y: x[:, None] * y[None])

# ---- indexing -------------------------------------------------------------------------------------------------
add("index_row", normal((9, 5)), lambda x: x[-2] * 2, lambda x: x[-2] * 2)
add("index_by_tensor", lambda rng: [rng.standard_normal((9, 5)), rng.integers(0, 9, (4, 3)).astype(np.int32)], lambda x, i: x[i], lambda x, i: x[i])
add("index_by_two_tensors", lambda rng: [rng.standard_normal((9, 5)), rng.integers(0, 9, 7).astype(np.int32), rng.integers(0, 5, 7).astype(np.int32)], lambda x, i, j: x[i, j], lambda x, i, j: x[i, j])
add("gather", lambda rng: [rng.standard_normal((6, 8)), rng.integers(0, 6, (4, 8)).astype(np.int32)], lambda x, i: x.gather(0, i), lambda x, i: np.take_along_axis(x, i, 0))
add("one_hot", integers(0, 6, (11,)), lambda i: i.one_hot(6), lambda i: np.eye(6)[i])
add("masked_select", lambda rng: [rng.standard_normal((6, 7)), np.arange(42).reshape(6, 7) % 3 == 0], lambda x, m: x.masked_select(m), lambda x, m: x[m])
add("nonzero", lambda rng: [(np.arange(30) % 4 == 1).astype(np.int32).reshape(5, 6)], lambda x: x.nonzero(), lambda x: np.stack(np.nonzero(x), 1))


def _scattered(x: np.ndarray, i: np.ndarray, s: np.ndarray, accumulate: bool) -> np.ndarray:
    out = x.copy()
    for r in range(i.shape[0]):
        for c in range(i.shape[1]):
            out[i[r, c], c] = out[i[r, c], c] + s[r, c] if accumulate else s[r, c]
    return out


def _scatter_inputs(rng: np.random.Generator) -> Arrays:
    return [rng.standard_normal((6, 4)), np.stack([rng.permutation(6)[:3] for _ in range(4)], 1).astype(np.int32), rng.standard_normal((3, 4))]


add("scatter", _scatter_inputs, lambda x, i, s: x.scatter(0, i, s), lambda x, i, s: _scattered(x, i, s, False))
add("scatter_add", _scatter_inputs, lambda x, i, s: x.scatter_reduce(0, i, s, reduce="sum"), lambda x, i, s: _scattered(x, i, s, True))
add("setitem", normal((6, 7), (2, 7)), lambda x, y: _set_rows(x, y), lambda x, y: np.concatenate([x[:2], y, x[4:]]))


def _set_rows(x: Any, y: Any) -> Any:
    x = x.contiguous().realize()
    x[2:4] = y
    return x


# ---- products ---------------------------------------------------------------------------------------------------
for _m, _k, _n in ((8, 8, 8), (1, 65, 33), (64, 64, 64), (37, 129, 50), (128, 256, 128), (200, 1, 7)):
    add(f"matmul_{_m}x{_k}x{_n}", normal((_m, _k), (_k, _n)), lambda x, y: x @ y, lambda x, y: x @ y, relative=1e-4, absolute=1e-4)
for _dtype, _bound in (("float16", 0.02), ("bfloat16", 0.15)):
    for _m, _k, _n in ((16, 16, 16), (64, 64, 64), (128, 128, 128), (33, 47, 20)):
        add(f"matmul_{_dtype}_{_m}x{_k}x{_n}", normal((_m, _k), (_k, _n)), lambda x, y: x.matmul(y), lambda x, y: x @ y, _dtype, relative=_bound / 4, absolute=_bound * 2)
        # tinygrad uses tensor cores (mma.sync) where the sum is asked for in float32
        add(f"matmul_{_dtype}_{_m}x{_k}x{_n}_summed_in_float32", normal((_m, _k), (_k, _n)), lambda x, y: x.matmul(y, dtype="float32"), lambda x, y: x @ y, _dtype, relative=1e-4, absolute=1e-3)
add("matmul_batched", normal((3, 2, 9, 17), (2, 17, 11)), lambda x, y: x @ y, lambda x, y: x @ y, relative=1e-4, absolute=1e-5)
add("matmul_int32", integers(-9, 9, (17, 20), (20, 9)), lambda x, y: x @ y, lambda x, y: x @ y)
add("vector_dot", normal((513,), (513,)), lambda x, y: x.dot(y), lambda x, y: x @ y, relative=1e-4, absolute=1e-4)
add("matrix_vector", normal((70, 130), (130,)), lambda x, y: x @ y, lambda x, y: x @ y, relative=1e-4, absolute=1e-4)
add("einsum", normal((4, 6, 5), (5, 6, 3)), lambda x, y: x.einsum("bij,jik->bk", x, y), lambda x, y: np.einsum("bij,jik->bk", x, y), absolute=1e-4)
add("linear", normal((7, 20), (20, 9), (9,)), lambda x, w, b: x.linear(w, b), lambda x, w, b: x @ w + b, absolute=1e-5)
add("attention", normal((2, 3, 16, 8), (2, 3, 16, 8), (2, 3, 16, 8)), lambda q, k, v: q.scaled_dot_product_attention(k, v),
    lambda q, k, v: softmax(q @ k.swapaxes(-1, -2) / np.sqrt(8)) @ v, absolute=1e-5)


# ---- convolution and pooling ---------------------------------------------------------------------------------------
def conv2d(x: np.ndarray, w: np.ndarray, stride: int = 1, padding: int = 0, dilation: int = 1, groups: int = 1) -> np.ndarray:
    x = np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    n, channels, height, width = x.shape
    outs, inner, kh, kw = w.shape
    oh, ow = (height - dilation * (kh - 1) - 1) // stride + 1, (width - dilation * (kw - 1) - 1) // stride + 1
    out = np.zeros((n, outs, oh, ow))
    for o in range(outs):
        first = o // (outs // groups) * inner
        for i in range(kh):
            for j in range(kw):
                patch = x[:, first:first + inner, i * dilation:i * dilation + stride * (oh - 1) + 1:stride, j * dilation:j * dilation + stride * (ow - 1) + 1:stride]
                out[:, o] += np.einsum("nchw,c->nhw", patch, w[o, :, i, j])
    return out


def pool2d(x: np.ndarray, size: int, stride: int, reduce: Callable[..., np.ndarray]) -> np.ndarray:
    windows = np.lib.stride_tricks.sliding_window_view(x, (size, size), (2, 3))[:, :, ::stride, ::stride]
    return reduce(windows, axis=(-1, -2))


CONVOLUTIONS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, int]]] = {
    "conv2d_3x3": ((2, 3, 9, 10), (4, 3, 3, 3), {}), "conv2d_padded": ((1, 4, 8, 8), (5, 4, 3, 3), {"padding": 1}),
    "conv2d_strided": ((2, 3, 11, 11), (4, 3, 3, 3), {"stride": 2}), "conv2d_dilated": ((1, 2, 12, 12), (3, 2, 3, 3), {"dilation": 2}),
    "conv2d_grouped": ((1, 6, 7, 7), (4, 3, 3, 3), {"groups": 2}), "conv2d_depthwise": ((2, 5, 8, 8), (5, 1, 3, 3), {"groups": 5}),
    "conv2d_1x1": ((2, 8, 6, 6), (7, 8, 1, 1), {}), "conv2d_5x5_padded": ((1, 2, 10, 10), (3, 2, 5, 5), {"padding": 2}),
}
for _name, (_image, _weight, _options) in CONVOLUTIONS.items():
    add(_name, normal(_image, _weight), lambda x, w, o=_options: x.conv2d(w, **o), lambda x, w, o=_options: conv2d(x, w, **o), relative=1e-4, absolute=1e-5)
for _dtype in ("float16", "bfloat16"):
    add(f"conv2d_{_dtype}", normal((2, 16, 8, 8), (16, 16, 3, 3), scale=0.3), lambda x, w: x.conv2d(w, padding=1), lambda x, w: conv2d(x, w, padding=1), _dtype, absolute=0.08)
add("conv2d_with_bias", normal((2, 3, 8, 8), (4, 3, 3, 3), (4,)), lambda x, w, b: x.conv2d(w, b).relu(), lambda x, w, b: np.maximum(conv2d(x, w) + b[:, None, None], 0), absolute=1e-5)
add("conv1d", normal((2, 3, 20), (4, 3, 5)), lambda x, w: x.conv2d(w), lambda x, w: conv2d(np.pad(x[:, :, None], ((0, 0), (0, 0), (0, 0), (0, 0))), w[:, :, None])[:, :, 0], absolute=1e-5)
add("conv_transpose2d", normal((1, 3, 5, 5), (3, 4, 3, 3)), lambda x, w: x.conv_transpose2d(w), lambda x, w: conv2d(x, w.transpose(1, 0, 2, 3)[:, :, ::-1, ::-1], padding=2), absolute=1e-5)
add("max_pool2d", normal((2, 3, 8, 10)), lambda x: x.max_pool2d(), lambda x: pool2d(x, 2, 2, np.max))
add("max_pool2d_3x3_stride_1", normal((2, 3, 8, 10)), lambda x: x.max_pool2d((3, 3), stride=1), lambda x: pool2d(x, 3, 1, np.max))
add("avg_pool2d", normal((2, 3, 8, 10)), lambda x: x.avg_pool2d(), lambda x: pool2d(x, 2, 2, np.mean))
add("avg_pool2d_3x3", normal((2, 3, 9, 9)), lambda x: x.avg_pool2d((3, 3)), lambda x: pool2d(x, 3, 3, np.mean))
add("batchnorm", lambda rng: [rng.standard_normal((4, 3, 5, 5)), *rng.standard_normal((3, 3)), rng.uniform(0.5, 2, 3)],
    lambda x, w, b, m, i: x.batchnorm(w, b, m, i), lambda x, w, b, m, i: (x - m[:, None, None]) * (i * w)[:, None, None] + b[:, None, None], absolute=1e-5)
add("interpolate_nearest", normal((1, 2, 4, 5)), lambda x: x.interpolate((8, 10), mode="nearest"), lambda x: x.repeat(2, 2).repeat(2, 3))

# ---- losses and gradients -------------------------------------------------------------------------------------------
add("cross_entropy", lambda rng: [rng.standard_normal((12, 5)), rng.integers(0, 5, 12).astype(np.int32)], lambda x, y: x.cross_entropy(y), lambda x, y: -np.log(softmax(x))[np.arange(12), y].mean(), absolute=1e-5)
add("binary_crossentropy", lambda rng: [rng.uniform(0.05, 0.95, 40), rng.integers(0, 2, 40).astype(np.float64)], lambda p, y: p.binary_crossentropy(y), lambda p, y: -(y * np.log(p) + (1 - y) * np.log(1 - p)).mean(), absolute=1e-5)


def _gradient(function: Callable[..., Any]) -> Callable[..., Any]:
    def run(*tensors: Any) -> Any:
        return function(*tensors).sum().gradient(tensors[0])[0]
    return run


add("gradient_of_tanh", normal((50,)), _gradient(lambda x: x.tanh()), lambda x: 1 - np.tanh(x) ** 2, absolute=1e-5)
add("gradient_of_matmul", normal((9, 20), (20, 7)), _gradient(lambda x, y: x @ y), lambda x, y: np.broadcast_to(y.sum(1), (9, 20)), absolute=1e-5)
add("gradient_of_max", normal((9, 20)), _gradient(lambda x: x.max(axis=1)), lambda x: (x == x.max(1, keepdims=True)).astype(float))
add("gradient_of_conv2d_weight", normal((4, 3, 3, 3), (2, 3, 8, 8)), _gradient(lambda w, x: x.conv2d(w)),
    lambda w, x: np.broadcast_to(np.lib.stride_tricks.sliding_window_view(x, (6, 6), (2, 3)).sum((0, 4, 5)), (4, 3, 3, 3)), relative=1e-4, absolute=1e-4)
add("gradient_of_softmax_loss", normal((6, 9), (6, 9)), _gradient(lambda x, y: (x.log_softmax() * y)), lambda x, y: y - softmax(x) * y.sum(1, keepdims=True), absolute=1e-5)

# ---- creation and random numbers: the stream of tinygrad's generator is checked by its statistics and its repeatability --------
add("arange", lambda rng: [np.zeros(1)], lambda x: (x.arange(3, 40, 4) + x.cast("int32")), lambda x: np.arange(3, 40, 4))
add("linspace", lambda rng: [np.zeros(1)], lambda x: x.linspace(-1, 2, 25) + x, lambda x: np.linspace(-1, 2, 25))
add("eye", lambda rng: [np.zeros(1)], lambda x: x.eye(5, 7) + x, lambda x: np.eye(5, 7))
add("full", lambda rng: [np.zeros(1)], lambda x: x.full((3, 4), 2.5) + x, lambda x: np.full((3, 4), 2.5))


def _seeded(function: Callable[[Any], Any]) -> Callable[..., Any]:
    def run(x: Any) -> Any:
        type(x).manual_seed(7)
        return function(x)
    return run


def threefry_uniform(x: np.ndarray) -> np.ndarray:
    """Half of the uniform numbers lie below one half, and their mean and variance are known."""
    return np.array([0.5, 1 / 12, 0.5])


add("rand", lambda rng: [np.zeros(1)], _seeded(lambda x: _statistics(x.rand(20000))), threefry_uniform, absolute=0.015)
add("randn", lambda rng: [np.zeros(1)], _seeded(lambda x: _statistics(x.randn(20000))), lambda x: np.array([0, 1, erf(np.array(0.5 / np.sqrt(2))) / 2 + 0.5]), absolute=0.04)
add("randint", lambda rng: [np.zeros(1)], _seeded(lambda x: x.randint(5000, low=0, high=10).cast("float32").mean()), lambda x: 4.5, absolute=0.2)
add("dropout_keeps_the_mean", lambda rng: [np.ones(20000)], _seeded(lambda x: _in_training(lambda: x.dropout(0.25).mean())), lambda x: 1.0, absolute=0.03)
add("randperm", lambda rng: [np.zeros(1)], _seeded(lambda x: x.randperm(64).sort()[0]), lambda x: np.arange(64))


def _statistics(r: Any) -> Any:
    return r.mean().reshape(1).cat(r.var().reshape(1), (r < 0.5).float().mean().reshape(1))


def _in_training(function: Callable[[], Any]) -> Any:
    from tinygrad import Context
    with Context(TRAINING=1):
        return function().realize()


def _threefry(counter: np.ndarray, key: np.ndarray) -> np.ndarray:
    """Threefry-2x32, 20 rounds (Salmon et al., SC11), as tinygrad packs it: words in the halves of 64 bits."""
    mask = np.uint64(0xFFFFFFFF)
    x = [counter & mask, counter >> np.uint64(32)]
    k = [key & mask, key >> np.uint64(32)]
    k.append(k[0] ^ k[1] ^ np.uint64(0x1BD11BDA))
    x = [(x[0] + k[0]) & mask, (x[1] + k[1]) & mask]
    rotations = (13, 15, 26, 6, 17, 29, 16, 24)
    for step in range(20):
        r = np.uint64(rotations[step % 8])
        x[0] = (x[0] + x[1]) & mask
        x[1] = (((x[1] << r) | (x[1] >> (np.uint64(32) - r))) & mask) ^ x[0]
        if step % 4 == 3:
            s = step // 4 + 1
            x = [(x[0] + k[s % 3]) & mask, (x[1] + k[(s + 1) % 3] + np.uint64(s)) & mask]
    return x[0] | x[1] << np.uint64(32)


add("threefry", lambda rng: [rng.integers(0, 2**63, 40).astype(np.uint64), rng.integers(0, 2**63, 40).astype(np.uint64)],
    lambda c, k: c.threefry(k), _threefry, relative=0, absolute=0)
