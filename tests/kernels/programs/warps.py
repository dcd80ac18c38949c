"""Warp primitives: shuffles, votes, matches, reductions, masks; warps that are not full."""
# ruff: noqa: E501  (kernels' source text)

from __future__ import annotations

import numpy as np
from driver import Device, case, same


def _lanes(values: np.ndarray, block: int) -> list[np.ndarray]:
    """The warps of each block of a flat array."""
    return [row[w : w + 32] for row in values.reshape(-1, block) for w in range(0, block, 32)]


@case
def shuffles(device: Device) -> None:
    module = device.build(r"""
    extern "C" __global__ void f(const int *in, int *out, int n) {
      int i = blockIdx.x * blockDim.x + threadIdx.x; unsigned m = 0xffffffffu; int x = in[i];
      out[i] = __shfl_sync(m, x, 5); out[n + i] = __shfl_up_sync(m, x, 3); out[2 * n + i] = __shfl_down_sync(m, x, 7);
      out[3 * n + i] = __shfl_xor_sync(m, x, 9); out[4 * n + i] = __shfl_sync(m, x, x & 31);
      out[5 * n + i] = __shfl_sync(m, x, 3, 8); out[6 * n + i] = __shfl_up_sync(m, x, 2, 16);
      out[7 * n + i] = __shfl_down_sync(m, x, 1, 4); out[8 * n + i] = __shfl_xor_sync(m, x, 5, 8);
      out[9 * n + i] = __shfl_sync(m, x, 37); }""")
    given = np.random.default_rng(1).integers(0, 1000, 256).astype(np.int32)
    out = device.zeros((10, 256), np.int32)
    module.run("f", 2, 128, device.put(given), out, 256)
    lane, w = np.arange(32), given.reshape(-1, 32)

    def up(width: int, delta: int) -> np.ndarray:
        return np.where(lane % width >= delta, lane - delta, lane)

    def down(width: int, delta: int) -> np.ndarray:
        return np.where(lane % width + delta < width, lane + delta, lane)

    sources = [
        np.full(32, 5),
        up(32, 3),
        down(32, 7),
        lane ^ 9,
        None,
        lane // 8 * 8 + 3,
        up(16, 2),
        down(4, 1),
        lane ^ 5,
        np.full(32, 5),
    ]
    rows = [np.take_along_axis(w, w & 31, 1) if s is None else w[:, s] for s in sources]
    same(out.numpy(), np.stack(rows).reshape(10, 256).astype(np.int32))


@case
def shuffles_of_wide_values(device: Device) -> None:
    module = device.build(r"""
    extern "C" __global__ void f(const double *in, double *out, const long long *l, long long *m, float *h) {
      int i = threadIdx.x;
      out[i] = __shfl_xor_sync(~0u, in[i], 17); m[i] = __shfl_down_sync(~0u, l[i], 4); h[i] = __shfl_sync(~0u, (float)in[i], 31 - i); }""")
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal(32), rng.integers(-(2**60), 2**60, 32)
    out, wide, single = device.zeros(32, np.float64), device.zeros(32, np.int64), device.zeros(32, np.float32)
    module.run("f", 1, 32, device.put(a), out, device.put(b), wide, single)
    lane = np.arange(32)
    same(out.numpy(), a[lane ^ 17])
    same(wide.numpy(), b[np.where(lane < 28, lane + 4, lane)])
    same(single.numpy(), a[::-1].astype(np.float32))


def weigh(flags: np.ndarray) -> int:
    """A ballot: bit j is lane j's flag."""
    return sum(1 << j for j in range(32) if flags[j])


@case
def votes(device: Device) -> None:
    module = device.build(r"""
    extern "C" __global__ void f(const int *in, unsigned *out, int n) {
      int i = blockIdx.x * blockDim.x + threadIdx.x; int x = in[i];
      out[i] = __ballot_sync(~0u, x > 3); out[n + i] = __any_sync(~0u, x == 9) | __all_sync(~0u, x > 0) << 1;
      out[2 * n + i] = __match_any_sync(~0u, x); int same; out[3 * n + i] = __match_all_sync(~0u, x, &same); out[4 * n + i] = same;
      out[5 * n + i] = __popc(__ballot_sync(~0u, x & 1) & ((1u << (threadIdx.x & 31)) - 1)); }""")
    rng = np.random.default_rng(1)
    given = np.concatenate([rng.integers(0, 10, 64), rng.integers(1, 4, 32), np.full(32, 4)]).astype(np.int32)
    out = device.zeros((6, 128), np.uint32)
    module.run("f", 1, 128, device.put(given), out, 128)
    expected = np.zeros((6, 128), np.uint32)
    for k, w in enumerate(given.reshape(-1, 32)):
        at = slice(32 * k, 32 * k + 32)
        expected[0, at] = weigh(w > 3)
        expected[1, at] = int((w == 9).any()) | int((w > 0).all()) << 1
        expected[2, at] = [weigh(w == v) for v in w]
        expected[3, at] = 0xFFFFFFFF if (w == w[0]).all() else 0
        expected[4, at] = int((w == w[0]).all())
        expected[5, at] = [(w[:j] & 1).sum() for j in range(32)]
    same(out.numpy(), expected)


@case
def votes_in_divergent_code(device: Device) -> None:
    module = device.build(r"""
    extern "C" __global__ void f(unsigned *out) {
      int t = threadIdx.x; unsigned r = 0;
      if (t % 3 == 0) { unsigned m = __activemask(); r = __ballot_sync(m, t & 1); }
      else if (t < 20) { r = __ballot_sync(__activemask(), t > 10) | 0x80000000u; }
      __syncwarp();
      r ^= __shfl_xor_sync(~0u, r, 1);
      out[t] = r; }""")
    out = device.zeros(32, np.uint32)
    module.run("f", 1, 32, out)
    t = np.arange(32)
    first = sum(1 << int(j) for j in t if j % 3 == 0 and j & 1)
    second = sum(1 << int(j) for j in t if j % 3 and 10 < j < 20) | 0x80000000
    r = np.where(t % 3 == 0, first, np.where(t < 20, second, 0)).astype(np.uint32)
    same(out.numpy(), r ^ r[t ^ 1])


@case
def warp_reductions(device: Device) -> None:
    module = device.build(r"""
    extern "C" __global__ void f(const unsigned *in, unsigned *out, int n) {
      int i = blockIdx.x * blockDim.x + threadIdx.x; unsigned x = in[i];
      out[i] = __reduce_add_sync(~0u, x); out[n + i] = __reduce_min_sync(~0u, x); out[2 * n + i] = __reduce_max_sync(~0u, x);
      out[3 * n + i] = __reduce_and_sync(~0u, x | 0xff); out[4 * n + i] = __reduce_or_sync(~0u, x & 0xff);
      out[5 * n + i] = __reduce_xor_sync(~0u, x); out[6 * n + i] = __reduce_min_sync(~0u, (int)x); out[7 * n + i] = __reduce_max_sync(~0u, (int)x); }""")
    given = np.random.default_rng(1).integers(0, 2**32, 96, dtype=np.uint32)
    out = device.zeros((8, 96), np.uint32)
    module.run("f", 1, 96, device.put(given), out, 96)
    w = given.reshape(-1, 32)
    s = w.view(np.int32)
    rows = [
        w.sum(1, dtype=np.uint32),
        w.min(1),
        w.max(1),
        np.bitwise_and.reduce(w | np.uint32(255), 1),
        np.bitwise_or.reduce(w & np.uint32(255), 1),
        np.bitwise_xor.reduce(w, 1),
        s.min(1).view(np.uint32),
        s.max(1).view(np.uint32),
    ]
    same(out.numpy(), np.repeat(np.stack(rows), 32, 1))


@case
def partial_warps(device: Device) -> None:
    module = device.build(r"""
    extern "C" __global__ void f(const int *in, int *out, int n) {
      int i = blockIdx.x * blockDim.x + threadIdx.x; int first = threadIdx.x & ~31;
      int live = min(32, (int)blockDim.x - first); unsigned m = live == 32 ? ~0u : (1u << live) - 1;
      int x = in[i];
      out[i] = __popc(__ballot_sync(m, x > 0)); out[n + i] = __reduce_add_sync(m, x);
      out[2 * n + i] = __shfl_sync(m, x, live - 1); out[3 * n + i] = __popc(__activemask()); }""")
    for block in (1, 31, 33, 100):
        given = np.random.default_rng(block).integers(-50, 50, 2 * block).astype(np.int32)
        out = device.zeros((4, 2 * block), np.int32)
        module.run("f", 2, block, device.put(given), out, 2 * block)
        columns = [
            np.stack([np.full(len(w), v) for v in ((w > 0).sum(), w.sum(), w[-1], len(w))])
            for w in _lanes(given, block)
        ]
        same(out.numpy(), np.concatenate(columns, 1).astype(np.int32))


@case
def special_registers(device: Device) -> None:
    module = device.build(r"""
    extern "C" __global__ void f(unsigned *out, int n) {
      int i = blockIdx.x * blockDim.x + threadIdx.x; unsigned v;
      asm volatile("mov.u32 %0, %%laneid;" : "=r"(v)); out[i] = v;
      asm volatile("mov.u32 %0, %%lanemask_lt;" : "=r"(v)); out[n + i] = v;
      asm volatile("mov.u32 %0, %%lanemask_ge;" : "=r"(v)); out[2 * n + i] = v;
      asm volatile("mov.u32 %0, %%lanemask_eq;" : "=r"(v)); out[3 * n + i] = v;
      out[4 * n + i] = warpSize; out[5 * n + i] = blockDim.x * 1000 + gridDim.x; }""")
    out = device.zeros((6, 140), np.uint32)
    module.run("f", 2, 70, out, 140)
    lane = np.tile(np.arange(70) % 32, 2).astype(np.uint64)
    one = np.uint64(1)
    rows = [
        lane,
        (one << lane) - one,
        (np.uint64(0xFFFFFFFF) << lane) & np.uint64(0xFFFFFFFF),
        one << lane,
        np.full(140, 32),
        np.full(140, 70002),
    ]
    same(out.numpy(), np.stack([r.astype(np.uint32) for r in rows]))


@case
def warp_scan_by_shuffle(device: Device) -> None:
    module = device.build(r"""
    extern "C" __global__ void scan(const float *in, float *out, int n) {
      int i = blockIdx.x * blockDim.x + threadIdx.x, lane = threadIdx.x & 31; float x = i < n ? in[i] : 0;
      for (int d = 1; d < 32; d *= 2) { float y = __shfl_up_sync(~0u, x, d); if (lane >= d) x += y; }
      if (i < n) out[i] = x; }""")
    given = np.random.default_rng(1).integers(-99, 99, 500).astype(np.float32)
    out = device.zeros(500, np.float32)
    module.run("scan", 4, 128, device.put(given), out, 500)
    same(out.numpy(), np.cumsum(np.pad(given, (0, 12)).reshape(-1, 32), 1).astype(np.float32).ravel()[:500])
