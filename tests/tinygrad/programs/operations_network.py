"""Products, convolutions, pooling, losses, gradients, and random numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from operation_case import add, erf, integers, normal, softmax

# ---- products ---------------------------------------------------------------------------
for _m, _k, _n in ((8, 8, 8), (1, 65, 33), (64, 64, 64), (37, 129, 50), (128, 256, 128), (200, 1, 7)):
    add(
        f"matmul_{_m}x{_k}x{_n}",
        normal((_m, _k), (_k, _n)),
        lambda x, y: x @ y,
        lambda x, y: x @ y,
        relative=1e-4,
        absolute=1e-4,
    )
for _dtype, _bound in (("float16", 0.02), ("bfloat16", 0.15)):
    for _m, _k, _n in ((16, 16, 16), (64, 64, 64), (128, 128, 128), (33, 47, 20)):
        add(
            f"matmul_{_dtype}_{_m}x{_k}x{_n}",
            normal((_m, _k), (_k, _n)),
            lambda x, y: x.matmul(y),
            lambda x, y: x @ y,
            _dtype,
            relative=_bound / 4,
            absolute=_bound * 2,
        )
        # tinygrad uses tensor cores (mma.sync) where the sum is asked for in float32 and the sizes fit; else
        # each product is rounded to 16 bits first
        _fits = _m % 16 == _n % 8 == _k % 16 == 0
        add(
            f"matmul_{_dtype}_{_m}x{_k}x{_n}_summed_in_float32",
            normal((_m, _k), (_k, _n)),
            lambda x, y: x.matmul(y, dtype="float32"),
            lambda x, y: x @ y,
            _dtype,
            relative=1e-4 if _fits else _bound / 4,
            absolute=1e-3 if _fits else _bound * 2,
        )
add(
    "matmul_batched",
    normal((3, 2, 9, 17), (2, 17, 11)),
    lambda x, y: x @ y,
    lambda x, y: x @ y,
    relative=1e-4,
    absolute=1e-5,
)
add("matmul_int32", integers(-9, 9, (17, 20), (20, 9)), lambda x, y: x @ y, lambda x, y: x @ y)
add(
    "vector_dot",
    normal((513,), (513,)),
    lambda x, y: x.dot(y),
    lambda x, y: x @ y,
    relative=1e-4,
    absolute=1e-4,
)
add(
    "matrix_vector",
    normal((70, 130), (130,)),
    lambda x, y: x @ y,
    lambda x, y: x @ y,
    relative=1e-4,
    absolute=1e-4,
)
add(
    "einsum",
    normal((4, 6, 5), (5, 6, 3)),
    lambda x, y: x.einsum("bij,jik->bk", x, y),
    lambda x, y: np.einsum("bij,jik->bk", x, y),
    absolute=1e-4,
)
add(
    "linear",
    normal((7, 20), (20, 9), (9,)),
    lambda x, w, b: x.linear(w, b),
    lambda x, w, b: x @ w + b,
    absolute=1e-5,
)
add(
    "attention",
    normal((2, 3, 16, 8), (2, 3, 16, 8), (2, 3, 16, 8)),
    lambda q, k, v: q.scaled_dot_product_attention(k, v),
    lambda q, k, v: softmax(q @ k.swapaxes(-1, -2) / np.sqrt(8)) @ v,
    absolute=1e-5,
)


# ---- convolution and pooling ------------------------------------------------------------
def conv2d(
    x: np.ndarray, w: np.ndarray, stride: int = 1, padding: int = 0, dilation: int = 1, groups: int = 1
) -> np.ndarray:
    x = np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    n, _, height, width = x.shape
    outs, inner, kh, kw = w.shape
    oh, ow = (height - dilation * (kh - 1) - 1) // stride + 1, (width - dilation * (kw - 1) - 1) // stride + 1
    out = np.zeros((n, outs, oh, ow))
    for o in range(outs):
        first = o // (outs // groups) * inner
        for i in range(kh):
            for j in range(kw):
                patch = x[
                    :,
                    first : first + inner,
                    i * dilation : i * dilation + stride * (oh - 1) + 1 : stride,
                    j * dilation : j * dilation + stride * (ow - 1) + 1 : stride,
                ]
                out[:, o] += np.einsum("nchw,c->nhw", patch, w[o, :, i, j])
    return out


def pool2d(x: np.ndarray, size: int, stride: int, reduce: Callable[..., np.ndarray]) -> np.ndarray:
    windows = np.lib.stride_tricks.sliding_window_view(x, (size, size), (2, 3))[:, :, ::stride, ::stride]
    return reduce(windows, axis=(-1, -2))


CONVOLUTIONS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, int]]] = {
    "conv2d_3x3": ((2, 3, 9, 10), (4, 3, 3, 3), {}),
    "conv2d_padded": ((1, 4, 8, 8), (5, 4, 3, 3), {"padding": 1}),
    "conv2d_strided": ((2, 3, 11, 11), (4, 3, 3, 3), {"stride": 2}),
    "conv2d_dilated": ((1, 2, 12, 12), (3, 2, 3, 3), {"dilation": 2}),
    "conv2d_grouped": ((1, 6, 7, 7), (4, 3, 3, 3), {"groups": 2}),
    "conv2d_depthwise": ((2, 5, 8, 8), (5, 1, 3, 3), {"groups": 5}),
    "conv2d_1x1": ((2, 8, 6, 6), (7, 8, 1, 1), {}),
    "conv2d_5x5_padded": ((1, 2, 10, 10), (3, 2, 5, 5), {"padding": 2}),
}
for _name, (_image, _weight, _options) in CONVOLUTIONS.items():
    add(
        _name,
        normal(_image, _weight),
        lambda x, w, o=_options: x.conv2d(w, **o),
        lambda x, w, o=_options: conv2d(x, w, **o),
        relative=1e-4,
        absolute=1e-5,
    )
for _dtype in ("float16", "bfloat16"):
    add(
        f"conv2d_{_dtype}",
        normal((2, 16, 8, 8), (16, 16, 3, 3), scale=0.3),
        lambda x, w: x.conv2d(w, padding=1),
        lambda x, w: conv2d(x, w, padding=1),
        _dtype,
        absolute=0.08,
    )
add(
    "conv2d_with_bias",
    normal((2, 3, 8, 8), (4, 3, 3, 3), (4,)),
    lambda x, w, b: x.conv2d(w, b).relu(),
    lambda x, w, b: np.maximum(conv2d(x, w) + b[:, None, None], 0),
    absolute=1e-5,
)
add(
    "conv1d",
    normal((2, 3, 20), (4, 3, 5)),
    lambda x, w: x.conv2d(w),
    lambda x, w: conv2d(np.pad(x[:, :, None], ((0, 0), (0, 0), (0, 0), (0, 0))), w[:, :, None])[:, :, 0],
    absolute=1e-5,
)
add(
    "conv_transpose2d",
    normal((1, 3, 5, 5), (3, 4, 3, 3)),
    lambda x, w: x.conv_transpose2d(w),
    lambda x, w: conv2d(x, w.transpose(1, 0, 2, 3)[:, :, ::-1, ::-1], padding=2),
    absolute=1e-5,
)
add("max_pool2d", normal((2, 3, 8, 10)), lambda x: x.max_pool2d(), lambda x: pool2d(x, 2, 2, np.max))
add(
    "max_pool2d_3x3_stride_1",
    normal((2, 3, 8, 10)),
    lambda x: x.max_pool2d((3, 3), stride=1),
    lambda x: pool2d(x, 3, 1, np.max),
)
add("avg_pool2d", normal((2, 3, 8, 10)), lambda x: x.avg_pool2d(), lambda x: pool2d(x, 2, 2, np.mean))
add(
    "avg_pool2d_3x3", normal((2, 3, 9, 9)), lambda x: x.avg_pool2d((3, 3)), lambda x: pool2d(x, 3, 3, np.mean)
)
add(
    "batchnorm",
    lambda rng: [rng.standard_normal((4, 3, 5, 5)), *rng.standard_normal((3, 3)), rng.uniform(0.5, 2, 3)],
    lambda x, w, b, m, i: x.batchnorm(w, b, m, i),
    lambda x, w, b, m, i: (x - m[:, None, None]) * (i * w)[:, None, None] + b[:, None, None],
    absolute=1e-5,
)
add(
    "interpolate_nearest",
    normal((1, 2, 4, 5)),
    lambda x: x.interpolate((8, 10), mode="nearest"),
    lambda x: x.repeat(2, 2).repeat(2, 3),
)

# ---- losses and gradients ---------------------------------------------------------------
add(
    "cross_entropy",
    lambda rng: [rng.standard_normal((12, 5)), rng.integers(0, 5, 12).astype(np.int32)],
    lambda x, y: x.cross_entropy(y),
    lambda x, y: -np.log(softmax(x))[np.arange(12), y].mean(),
    absolute=1e-5,
)
add(
    "binary_crossentropy",
    lambda rng: [rng.uniform(0.05, 0.95, 40), rng.integers(0, 2, 40).astype(np.float64)],
    lambda p, y: p.binary_crossentropy(y),
    lambda p, y: -(y * np.log(p) + (1 - y) * np.log(1 - p)).mean(),
    absolute=1e-5,
)


def _gradient(function: Callable[..., Any]) -> Callable[..., Any]:
    def run(*tensors: Any) -> Any:
        return function(*tensors).sum().gradient(tensors[0])[0]

    return run


add(
    "gradient_of_tanh",
    normal((50,)),
    _gradient(lambda x: x.tanh()),
    lambda x: 1 - np.tanh(x) ** 2,
    absolute=1e-5,
)
add(
    "gradient_of_matmul",
    normal((9, 20), (20, 7)),
    _gradient(lambda x, y: x @ y),
    lambda x, y: np.broadcast_to(y.sum(1), (9, 20)),
    absolute=1e-5,
)
add(
    "gradient_of_max",
    normal((9, 20)),
    _gradient(lambda x: x.max(axis=1)),
    lambda x: (x == x.max(1, keepdims=True)).astype(float),
)
add(
    "gradient_of_conv2d_weight",
    normal((4, 3, 3, 3), (2, 3, 8, 8)),
    _gradient(lambda w, x: x.conv2d(w)),
    lambda w, x: np.broadcast_to(
        np.lib.stride_tricks.sliding_window_view(x, (6, 6), (2, 3)).sum((0, 4, 5)), (4, 3, 3, 3)
    ),
    relative=1e-4,
    absolute=1e-4,
)
add(
    "gradient_of_softmax_loss",
    normal((6, 9), (6, 9)),
    _gradient(lambda x, y: x.log_softmax() * y),
    lambda x, y: y - softmax(x) * y.sum(1, keepdims=True),
    absolute=1e-5,
)

# ---- creation and random numbers: threefry itself is checked, what is made of it by its statistics ----
add(
    "arange",
    lambda rng: [np.zeros(1)],
    lambda x: x.arange(3, 40, 4) + x.cast("int32"),
    lambda x: np.arange(3, 40, 4),
)
add(
    "linspace",
    lambda rng: [np.zeros(1)],
    lambda x: x.linspace(-1, 2, 25) + x,
    lambda x: np.linspace(-1, 2, 25),
)
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


add(
    "rand",
    lambda rng: [np.zeros(1)],
    _seeded(lambda x: _statistics(x.rand(20000))),
    threefry_uniform,
    absolute=0.015,
)
add(
    "randn",
    lambda rng: [np.zeros(1)],
    _seeded(lambda x: _statistics(x.randn(20000))),
    lambda x: np.array([0, 1, erf(np.array(0.5 / np.sqrt(2))) / 2 + 0.5]),
    absolute=0.04,
)
add(
    "randint",
    lambda rng: [np.zeros(1)],
    _seeded(lambda x: x.randint(5000, low=0, high=10).cast("float32").mean()),
    lambda x: 4.5,
    absolute=0.2,
)
add(
    "dropout_keeps_the_mean",
    lambda rng: [np.ones(20000)],
    _seeded(lambda x: _in_training(lambda: x.dropout(0.25).mean())),
    lambda x: 1.0,
    absolute=0.03,
)
add(
    "randperm",
    lambda rng: [np.zeros(1)],
    _seeded(lambda x: x.randperm(64).sort()[0]),
    lambda x: np.arange(64),
)


def _statistics(r: Any) -> Any:
    return r.mean().reshape(1).cat(r.var().reshape(1), (r < 0.5).float().mean().reshape(1))


def _in_training(function: Callable[[], Any]) -> Any:
    from tinygrad import Context

    with Context(TRAINING=1):
        return function().realize()


def _threefry(counter: np.ndarray, key: np.ndarray) -> np.ndarray:
    """Threefry-2x32, 20 rounds (Salmon et al., SC11), as tinygrad packs it: two words in 64 bits."""
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


add(
    "threefry",
    lambda rng: [rng.integers(0, 2**63, 40).astype(np.uint64), rng.integers(0, 2**63, 40).astype(np.uint64)],
    lambda c, k: c.threefry(k),
    _threefry,
    relative=0,
    absolute=0,
)
