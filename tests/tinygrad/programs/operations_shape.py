"""Reductions, cumulative operations, sorting, movement and indexing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from operation_case import Arrays, add, integers, normal, softmax, uniform

# ---- reductions -------------------------------------------------------------------------
REDUCE: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "sum": (lambda x, a: x.sum(axis=a), lambda x, a: x.sum(axis=a)),
    "mean": (lambda x, a: x.mean(axis=a), lambda x, a: x.mean(axis=a)),
    "max": (lambda x, a: x.max(axis=a), lambda x, a: x.max(axis=a)),
    "min": (lambda x, a: x.min(axis=a), lambda x, a: x.min(axis=a)),
    "prod": (lambda x, a: x.prod(axis=a), lambda x, a: x.prod(axis=a)),
    "std": (lambda x, a: x.std(axis=a), lambda x, a: x.std(axis=a, ddof=1)),
    "var": (lambda x, a: x.var(axis=a), lambda x, a: x.var(axis=a, ddof=1)),
    "logsumexp": (lambda x, a: x.logsumexp(axis=a), lambda x, a: np.log(np.exp(x).sum(axis=a))),
}
for _name, (_tensor, _oracle) in REDUCE.items():
    for _label, _axis in (("all", None), ("rows", 0), ("columns", -1), ("two", (0, 2))):
        if _label in ("all", "columns") or _name in ("sum", "max"):
            add(
                f"{_name}_over_{_label}",
                uniform(0.8, 1.2, (6, 5, 19)),
                lambda x, f=_tensor, a=_axis: f(x, a),
                lambda x, f=_oracle, a=_axis: f(x, a),
                relative=1e-4,
            )
for _dtype in ("float16", "bfloat16"):
    for _name in ("sum", "mean", "max"):
        _tensor, _oracle = REDUCE[_name]
        add(
            f"{_name}_{_dtype}",
            normal((13, 40)),
            lambda x, f=_tensor: f(x, -1),
            lambda x, f=_oracle: f(x, -1),
            _dtype,
            absolute=0.08,
        )
add("sum_of_many", normal((300, 500)), lambda x: x.sum(), lambda x: x.sum(), relative=1e-4, absolute=1e-2)
add("sum_int32", integers(-99, 99, (40, 50)), lambda x: x.sum(axis=1), lambda x: x.sum(1))
add("max_int32", integers(-99, 99, (40, 50)), lambda x: x.max(axis=1), lambda x: x.max(1))
add("any", integers(0, 2, (20, 4), dtype=bool), lambda x: x.any(axis=1), lambda x: x.any(1))
add("all", integers(0, 2, (20, 3), dtype=bool), lambda x: x.all(axis=1), lambda x: x.all(1))
add("argmax", normal((9, 33)), lambda x: x.argmax(axis=1), lambda x: x.argmax(1))
add("argmin", normal((9, 33)), lambda x: x.argmin(axis=0), lambda x: x.argmin(0))
add("softmax", normal((9, 33), scale=3), lambda x: x.softmax(), softmax)
add(
    "log_softmax",
    normal((9, 33), scale=3),
    lambda x: x.log_softmax(),
    lambda x: np.log(softmax(x)),
    absolute=1e-5,
)
add("softmax_float16", normal((9, 33)), lambda x: x.softmax(), softmax, "float16")
add(
    "normalize", normal((9, 33)), lambda x: x.normalize(), lambda x: x / np.sqrt((x**2).sum(1, keepdims=True))
)
add(
    "layernorm",
    normal((9, 33)),
    lambda x: x.layernorm(),
    lambda x: (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5),
    absolute=1e-5,
)

# ---- cumulative, sorting ----------------------------------------------------------------
add("cumsum", normal((4, 100)), lambda x: x.cumsum(axis=1), lambda x: x.cumsum(1), absolute=1e-4)
add("cumsum_long", normal((700,)), lambda x: x.cumsum(), lambda x: x.cumsum(), absolute=1e-3)
add("cumprod", uniform(0.9, 1.1, (3, 40)), lambda x: x.cumprod(axis=1), lambda x: x.cumprod(1), relative=1e-4)
add("cummax", normal((3, 40)), lambda x: x.cummax(axis=1)[0], lambda x: np.maximum.accumulate(x, 1))
add("cummin", normal((3, 40)), lambda x: x.cummin(axis=1)[0], lambda x: np.minimum.accumulate(x, 1))
add(
    "logcumsumexp",
    normal((3, 30)),
    lambda x: x.logcumsumexp(axis=1),
    lambda x: np.log(np.exp(x).cumsum(1)),
    absolute=1e-5,
)
add("sort", normal((3, 37)), lambda x: x.sort()[0], lambda x: np.sort(x))
add("sort_descending", normal((64,)), lambda x: x.sort(descending=True)[0], lambda x: -np.sort(-x))
add("argsort", normal((50,)), lambda x: x.argsort(), lambda x: np.argsort(x))
add("sort_int32", integers(-99, 99, (3, 37)), lambda x: x.sort()[0], lambda x: np.sort(x))
add("topk", normal((3, 37)), lambda x: x.topk(5)[0], lambda x: -np.sort(-x)[:, :5])

# ---- movement ---------------------------------------------------------------------------
MOVES: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "reshape": (lambda x: x.reshape(8, 15) * 2, lambda x: x.reshape(8, 15) * 2),
    "permute": (lambda x: x.permute(2, 0, 1).contiguous(), lambda x: x.transpose(2, 0, 1)),
    "flip": (lambda x: x.flip((0, 2)) + 1, lambda x: x[::-1, :, ::-1] + 1),
    "pad": (
        lambda x: x.pad(((1, 2), None, (0, 3)), value=-7.0),
        lambda x: np.pad(x, ((1, 2), (0, 0), (0, 3)), constant_values=-7),
    ),
    "pad_reflect": (
        lambda x: x.pad((2, 1), mode="reflect"),
        lambda x: np.pad(x, ((0, 0), (0, 0), (2, 1)), mode="reflect"),
    ),
    "pad_replicate": (
        lambda x: x.pad((2, 1), mode="replicate"),
        lambda x: np.pad(x, ((0, 0), (0, 0), (2, 1)), mode="edge"),
    ),
    "pad_circular": (
        lambda x: x.pad((2, 1), mode="circular"),
        lambda x: np.pad(x, ((0, 0), (0, 0), (2, 1)), mode="wrap"),
    ),
    "shrink": (lambda x: x.shrink(((1, 3), (0, 4), (2, 5))).contiguous(), lambda x: x[1:3, 0:4, 2:5]),
    "expand": (
        lambda x: x[:, :, :1].expand(4, 5, 7).contiguous(),
        lambda x: np.broadcast_to(x[:, :, :1], (4, 5, 7)),
    ),
    "roll": (lambda x: x.roll(2, 1), lambda x: np.roll(x, 2, 1)),
    "repeat": (lambda x: x.repeat((2, 1, 3)), lambda x: np.tile(x, (2, 1, 3))),
    "repeat_interleave": (lambda x: x.repeat_interleave(3, dim=1), lambda x: np.repeat(x, 3, 1)),
    "transpose": (lambda x: x.transpose(0, 2).contiguous(), lambda x: x.swapaxes(0, 2)),
    "flatten": (lambda x: x.flatten(1) - 1, lambda x: x.reshape(4, -1) - 1),
    "unfold": (
        lambda x: x.unfold(2, 3, 1).contiguous(),
        lambda x: np.lib.stride_tricks.sliding_window_view(x, 3, 2),
    ),
    "diagonal": (lambda x: x[0, :4, :4].diagonal().contiguous(), lambda x: x[0, :4, :4].diagonal()),
    "diag": (lambda x: x[0, 0].diag(), lambda x: np.diag(x[0, 0])),
    "tril": (lambda x: x.tril(1), lambda x: np.tril(x, 1)),
    "triu": (lambda x: x.triu(-1), lambda x: np.triu(x, -1)),
    "chunk": (lambda x: x.chunk(3, dim=2)[1].contiguous(), lambda x: x[:, :, 2:4]),
    "split": (lambda x: x.split([1, 3], dim=0)[1].contiguous(), lambda x: x[1:]),
    "rearrange": (lambda x: x.rearrange("a b c -> c (a b)").contiguous(), lambda x: x.reshape(20, 6).T),
    "unsqueeze": (lambda x: x.unsqueeze(1) * 1.5, lambda x: x[:, None] * 1.5),
    "strided": (lambda x: x[::2, 1::2, ::-2].contiguous(), lambda x: x[::2, 1::2, ::-2]),
}
for _name, (_tensor, _oracle) in MOVES.items():
    add(_name, normal((4, 5, 6)), _tensor, _oracle)
add("cat", normal((3, 4), (5, 4), (1, 4)), lambda x, y, z: x.cat(y, z), lambda *a: np.concatenate(a))
add("stack", normal((3, 4), (3, 4)), lambda x, y: x.stack(y, dim=1), lambda x, y: np.stack([x, y], 1))
add(
    "meshgrid",
    normal((4,), (6,)),
    lambda x, y: x.meshgrid(y)[0] * x.meshgrid(y)[1],
    lambda x, y: x[:, None] * y[None],
)

# ---- indexing ---------------------------------------------------------------------------
add("index_row", normal((9, 5)), lambda x: x[-2] * 2, lambda x: x[-2] * 2)
add(
    "index_by_tensor",
    lambda rng: [rng.standard_normal((9, 5)), rng.integers(0, 9, (4, 3)).astype(np.int32)],
    lambda x, i: x[i],
    lambda x, i: x[i],
)
add(
    "index_by_two_tensors",
    lambda rng: [
        rng.standard_normal((9, 5)),
        rng.integers(0, 9, 7).astype(np.int32),
        rng.integers(0, 5, 7).astype(np.int32),
    ],
    lambda x, i, j: x[i, j],
    lambda x, i, j: x[i, j],
)
add(
    "gather",
    lambda rng: [rng.standard_normal((6, 8)), rng.integers(0, 6, (4, 8)).astype(np.int32)],
    lambda x, i: x.gather(0, i),
    lambda x, i: np.take_along_axis(x, i, 0),
)
add("one_hot", integers(0, 6, (11,)), lambda i: i.one_hot(6), lambda i: np.eye(6)[i])
add(
    "masked_select",
    lambda rng: [rng.standard_normal((6, 7)), np.arange(42).reshape(6, 7) % 3 == 0],
    lambda x, m: x.masked_select(m),
    lambda x, m: x[m],
)
add(
    "nonzero",
    lambda rng: [(np.arange(30) % 4 == 1).astype(np.int32).reshape(5, 6)],
    lambda x: x.nonzero(),
    lambda x: np.stack(np.nonzero(x), 1),
)


def _scattered(x: np.ndarray, i: np.ndarray, s: np.ndarray, accumulate: bool) -> np.ndarray:
    out = x.copy()
    for r in range(i.shape[0]):
        for c in range(i.shape[1]):
            out[i[r, c], c] = out[i[r, c], c] + s[r, c] if accumulate else s[r, c]
    return out


def _scatter_inputs(rng: np.random.Generator) -> Arrays:
    return [
        rng.standard_normal((6, 4)),
        np.stack([rng.permutation(6)[:3] for _ in range(4)], 1).astype(np.int32),
        rng.standard_normal((3, 4)),
    ]


add(
    "scatter", _scatter_inputs, lambda x, i, s: x.scatter(0, i, s), lambda x, i, s: _scattered(x, i, s, False)
)
add(
    "scatter_add",
    _scatter_inputs,
    lambda x, i, s: x.scatter_reduce(0, i, s, reduce="sum"),
    lambda x, i, s: _scattered(x, i, s, True),
)
add(
    "setitem",
    normal((6, 7), (2, 7)),
    lambda x, y: _set_rows(x, y),
    lambda x, y: np.concatenate([x[:2], y, x[4:]]),
)


def _set_rows(x: Any, y: Any) -> Any:
    x = x.contiguous().realize()
    x[2:4] = y
    return x
