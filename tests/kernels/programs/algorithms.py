"""Whole small algorithms, as people write them."""
# ruff: noqa: E501  (kernels' source text)

from __future__ import annotations

import numpy as np
from driver import Device, case, close, same


@case
def block_reduction_in_shared_memory(device: Device) -> None:
    module = device.build(r"""
    extern "C" __global__ void total(const float *in, float *out, int n) {
      extern __shared__ float cell[];
      int t = threadIdx.x, i = blockIdx.x * blockDim.x + t;
      cell[t] = i < n ? in[i] : 0;
      __syncthreads();
      for (int s = blockDim.x / 2; s > 0; s >>= 1) { if (t < s) cell[t] += cell[t + s]; __syncthreads(); }
      if (t == 0) out[blockIdx.x] = cell[0]; }""")
    given = np.random.default_rng(1).standard_normal(3000).astype(np.float32)
    out = device.zeros(12, np.float32)
    module.run("total", 12, 256, device.put(given), out, 3000, shared=1024)
    cells = np.pad(given, (0, 72)).reshape(12, 256)
    while cells.shape[1] > 1:
        half = cells.shape[1] // 2
        cells = cells[:, :half] + cells[:, half:]
    same(out.numpy(), cells[:, 0].copy())


@case
def block_reduction_by_shuffles(device: Device) -> None:
    module = device.build(r"""
    extern "C" __global__ void total(const int *in, int *out, int n) {
      __shared__ int warps[32];
      int t = threadIdx.x, x = 0;
      for (int i = t; i < n; i += blockDim.x) x += in[blockIdx.x * n + i];
      for (int d = 16; d; d /= 2) x += __shfl_down_sync(~0u, x, d);
      if ((t & 31) == 0) warps[t >> 5] = x;
      __syncthreads();
      if (t < 32) { x = t < blockDim.x / 32 ? warps[t] : 0; for (int d = 16; d; d /= 2) x += __shfl_xor_sync(~0u, x, d); if (t == 0) out[blockIdx.x] = x; } }""")
    given = np.random.default_rng(1).integers(-999, 999, (5, 1500)).astype(np.int32)
    for block in (32, 256, 1024):
        out = device.zeros(5, np.int32)
        module.run("total", 5, block, device.put(given), out, 1500)
        same(out.numpy(), given.sum(1).astype(np.int32))


@case
def block_scan(device: Device) -> None:
    module = device.build(r"""
    extern "C" __global__ void scan(const int *in, int *out) {
      __shared__ int a[512], b[512];
      int t = threadIdx.x, *from = a, *to = b; from[t] = in[blockIdx.x * 512 + t];
      for (int d = 1; d < 512; d <<= 1) { __syncthreads(); to[t] = from[t] + (t >= d ? from[t - d] : 0); int *s = from; from = to; to = s; }
      out[blockIdx.x * 512 + t] = from[t]; }""")
    given = np.random.default_rng(1).integers(-50, 50, (4, 512)).astype(np.int32)
    out = device.zeros((4, 512), np.int32)
    module.run("scan", 4, 512, device.put(given), out)
    same(out.numpy(), np.cumsum(given, 1).astype(np.int32))


@case
def work_efficient_scan(device: Device) -> None:
    module = device.build(r"""
    extern "C" __global__ void scan(const int *in, int *out, int n) {
      extern __shared__ int cell[]; int t = threadIdx.x, step = 1;
      cell[2 * t] = in[2 * t]; cell[2 * t + 1] = in[2 * t + 1];
      for (int d = n >> 1; d > 0; d >>= 1) { __syncthreads(); if (t < d) cell[step * (2 * t + 2) - 1] += cell[step * (2 * t + 1) - 1]; step *= 2; }
      if (t == 0) cell[n - 1] = 0;
      for (int d = 1; d < n; d *= 2) { step >>= 1; __syncthreads(); if (t < d) { int i = step * (2 * t + 1) - 1, j = step * (2 * t + 2) - 1; int v = cell[i]; cell[i] = cell[j]; cell[j] += v; } }
      __syncthreads();
      out[2 * t] = cell[2 * t]; out[2 * t + 1] = cell[2 * t + 1]; }""")
    for n in (2, 64, 256):
        given = np.random.default_rng(n).integers(-50, 50, n).astype(np.int32)
        out = device.zeros(n, np.int32)
        module.run("scan", 1, n // 2, device.put(given), out, n, shared=4 * n)
        same(out.numpy(), (np.cumsum(given) - given).astype(np.int32))


@case
def naive_matmul(device: Device) -> None:
    module = device.build(
        r"""
    extern "C" __global__ void mm(const float *a, const float *b, float *c, int m, int n, int k) {
      int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
      if (x >= n || y >= m) return;
      float s = 0; for (int i = 0; i < k; ++i) s += a[y * k + i] * b[i * n + x];
      c[y * n + x] = s; }""",
        "--fmad=false",
    )
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((67, 45)).astype(np.float32), rng.standard_normal((45, 83)).astype(np.float32)
    expected = np.zeros((67, 83), np.float32)
    for i in range(45):
        expected += a[:, i : i + 1] * b[i]
    for block in ((16, 16), (32, 4), (7, 9)):
        out = device.zeros((67, 83), np.float32)
        module.run(
            "mm",
            (-(-83 // block[0]), -(-67 // block[1])),
            block,
            device.put(a),
            device.put(b),
            out,
            67,
            83,
            45,
        )
        same(out.numpy(), expected)


@case
def tiled_matmul(device: Device) -> None:
    module = device.build(r"""
    template <int T> __device__ void mm(const float *a, const float *b, float *c, int n) {
      __shared__ float ta[T][T], tb[T][T];
      int x = threadIdx.x, y = threadIdx.y, column = blockIdx.x * T + x, row = blockIdx.y * T + y; float s = 0;
      for (int t = 0; t < (n + T - 1) / T; ++t) {
        ta[y][x] = row < n && t * T + x < n ? a[row * n + t * T + x] : 0;
        tb[y][x] = column < n && t * T + y < n ? b[(t * T + y) * n + column] : 0;
        __syncthreads();
        for (int i = 0; i < T; ++i) s += ta[y][i] * tb[i][x];
        __syncthreads();
      }
      if (row < n && column < n) c[row * n + column] = s; }
    extern "C" __global__ void mm32(const float *a, const float *b, float *c, int n) { mm<32>(a, b, c, n); }
    extern "C" __global__ void mm16(const float *a, const float *b, float *c, int n) { mm<16>(a, b, c, n); }
    extern "C" __global__ void mm8(const float *a, const float *b, float *c, int n) { mm<8>(a, b, c, n); }""")
    rng = np.random.default_rng(1)
    for n in (32, 70):
        a, b = (rng.standard_normal((n, n)).astype(np.float32) for _ in range(2))
        exact = a.astype(np.float64) @ b.astype(np.float64)
        for tile in (8, 16, 32):
            out = device.zeros((n, n), np.float32)
            module.run(
                f"mm{tile}",
                (-(-n // tile), -(-n // tile)),
                (tile, tile),
                device.put(a),
                device.put(b),
                out,
                n,
            )
            close(out.numpy(), exact, 1e-5, 1e-4)


@case
def matrix_times_vector(device: Device) -> None:
    module = device.build(r"""
    extern "C" __global__ void mv(const double *a, const double *x, double *y, int rows, int columns) {
      int row = blockIdx.x * blockDim.y + threadIdx.y; if (row >= rows) return;
      double s = 0; for (int i = threadIdx.x; i < columns; i += 32) s += a[row * columns + i] * x[i];
      for (int d = 16; d; d >>= 1) s += __shfl_xor_sync(~0u, s, d);
      if (threadIdx.x == 0) y[row] = s; }""")
    rng = np.random.default_rng(1)
    a, x = rng.standard_normal((101, 333)), rng.standard_normal(333)
    out = device.zeros(101, np.float64)
    module.run("mv", 26, (32, 4), device.put(a), device.put(x), out, 101, 333)
    close(out.numpy(), a @ x, 1e-11, 1e-11)


@case
def bitonic_sort(device: Device) -> None:
    module = device.build(r"""
    extern "C" __global__ void sort(int *data, int n) {
      extern __shared__ int cell[]; int t = threadIdx.x; cell[t] = data[blockIdx.x * n + t];
      for (int k = 2; k <= n; k <<= 1)
        for (int j = k >> 1; j > 0; j >>= 1) {
          __syncthreads();
          int other = t ^ j;
          if (other > t) { bool up = (t & k) == 0; int a = cell[t], b = cell[other]; if ((a > b) == up) { cell[t] = b; cell[other] = a; } }
        }
      __syncthreads();
      data[blockIdx.x * n + t] = cell[t]; }""")
    for n in (32, 512, 1024):
        given = np.random.default_rng(n).integers(-(2**31), 2**31, (3, n)).astype(np.int32)
        data = device.put(given)
        module.run("sort", 3, n, data, n, shared=4 * n)
        same(data.numpy(), np.sort(given, 1))


@case
def mandelbrot(device: Device) -> None:
    module = device.build(
        r"""
    extern "C" __global__ void mandelbrot(int *out, int width, int height, int limit) {
      int px = blockIdx.x * blockDim.x + threadIdx.x, py = blockIdx.y * blockDim.y + threadIdx.y;
      if (px >= width || py >= height) return;
      float cx = -2.0f + 2.75f * px / width, cy = -1.25f + 2.5f * py / height, x = 0, y = 0; int k = 0;
      while (x * x + y * y <= 4.0f && k < limit) { float t = x * x - y * y + cx; y = 2 * x * y + cy; x = t; ++k; }
      out[py * width + px] = k; }""",
        "--fmad=false",
    )
    width, height, limit = 90, 61, 200
    out = device.zeros((height, width), np.int32)
    module.run("mandelbrot", (3, 8), (32, 8), out, width, height, limit)
    f = np.float32
    cx = f(-2) + f(2.75) * np.arange(width, dtype=f) / f(width)
    cy = f(-1.25) + f(2.5) * np.arange(height, dtype=f) / f(height)
    cx, cy = np.meshgrid(cx, cy)
    x, y, k = np.zeros_like(cx), np.zeros_like(cx), np.zeros(cx.shape, np.int32)
    for _ in range(limit):
        live = x * x + y * y <= f(4)
        with np.errstate(all="ignore"):
            x, y = np.where(live, x * x - y * y + cx, x), np.where(live, f(2) * x * y + cy, y)
        k += live
    same(out.numpy(), k)


@case
def game_of_life(device: Device) -> None:
    module = device.build(r"""
    extern "C" __global__ void step(const unsigned char *in, unsigned char *out, int w, int h) {
      int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y; if (x >= w || y >= h) return;
      int n = 0; for (int dy = -1; dy <= 1; ++dy) for (int dx = -1; dx <= 1; ++dx) if (dx || dy) n += in[(y + dy + h) % h * w + (x + dx + w) % w];
      out[y * w + x] = n == 3 || (n == 2 && in[y * w + x]); }""")
    board = (np.random.default_rng(1).random((50, 61)) < 0.3).astype(np.uint8)
    here, there = device.put(board), device.zeros(board.shape, np.uint8)
    for _ in range(10):
        module.launch("step", (4, 13), (16, 4), here, there, 61, 50)
        here, there = there, here
        n = sum(np.roll(board, (dy, dx), (0, 1)) for dy in (-1, 0, 1) for dx in (-1, 0, 1) if dy or dx)
        board = ((n == 3) | ((n == 2) & (board == 1))).astype(np.uint8)
    same(here.numpy(), board)


@case
def convolution_with_halo(device: Device) -> None:
    module = device.build(
        r"""
    __constant__ float tap[5] = {0.0625f, 0.25f, 0.375f, 0.25f, 0.0625f};
    extern "C" __global__ void blur(const float *in, float *out, int n) {
      __shared__ float cell[128 + 4]; int t = threadIdx.x, i = blockIdx.x * 128 + t;
      cell[t + 2] = i < n ? in[i] : 0;
      if (t < 2) { cell[t] = i >= 2 ? in[i - 2] : 0; int j = i + 128; cell[t + 130] = j < n ? in[j] : 0; }
      __syncthreads();
      if (i < n) { float s = 0; for (int k = 0; k < 5; ++k) s += tap[k] * cell[t + k]; out[i] = s; } }""",
        "--fmad=false",
    )
    given = np.random.default_rng(1).standard_normal(1000).astype(np.float32)
    out = device.zeros(1000, np.float32)
    module.run("blur", 8, 128, device.put(given), out, 1000)
    padded, expected = np.pad(given, 2), np.zeros(1000, np.float32)
    for k, tap in enumerate(np.array([0.0625, 0.25, 0.375, 0.25, 0.0625], np.float32)):
        expected += tap * padded[k : k + 1000]
    same(out.numpy(), expected)


@case
def random_numbers_by_xorshift(device: Device) -> None:
    module = device.build(r"""
    extern "C" __global__ void draw(unsigned long long *state, float *uniform, int rounds, int n) {
      int i = blockIdx.x * blockDim.x + threadIdx.x; if (i >= n) return; unsigned long long s = state[i];
      for (int k = 0; k < rounds; ++k) { s ^= s << 13; s ^= s >> 7; s ^= s << 17; }
      state[i] = s; uniform[i] = (unsigned)(s >> 40) * (1.0f / 16777216.0f); }""")
    seeds = np.random.default_rng(1).integers(1, 2**63, 200, dtype=np.uint64)
    state, uniform = device.put(seeds), device.zeros(200, np.float32)
    module.run("draw", 2, 100, state, uniform, 50, 200)
    s = seeds.copy()
    for _ in range(50):
        s ^= s << np.uint64(13)
        s ^= s >> np.uint64(7)
        s ^= s << np.uint64(17)
    same(state.numpy(), s)
    same(uniform.numpy(), (s >> np.uint64(40)).astype(np.float32) / np.float32(16777216))


@case
def softmax_of_rows(device: Device) -> None:
    module = device.build(
        r"""
    extern "C" __global__ void softmax(const float *in, float *out, int n) {
      __shared__ float shared[8]; int t = threadIdx.x; const float *row = in + blockIdx.x * n;
      float top = -INFINITY; for (int i = t; i < n; i += blockDim.x) top = fmaxf(top, row[i]);
      for (int d = 16; d; d >>= 1) top = fmaxf(top, __shfl_xor_sync(~0u, top, d));
      if ((t & 31) == 0) shared[t >> 5] = top;
      __syncthreads();
      for (int w = 0; w < blockDim.x / 32; ++w) top = fmaxf(top, shared[w]);
      float sum = 0; for (int i = t; i < n; i += blockDim.x) sum += expf(row[i] - top);
      for (int d = 16; d; d >>= 1) sum += __shfl_xor_sync(~0u, sum, d);
      __syncthreads();
      if ((t & 31) == 0) shared[t >> 5] = sum;
      __syncthreads();
      sum = 0; for (int w = 0; w < blockDim.x / 32; ++w) sum += shared[w];
      for (int i = t; i < n; i += blockDim.x) out[blockIdx.x * n + i] = expf(row[i] - top) / sum; }""".replace(
            "INFINITY", "__int_as_float(0x7f800000)"
        )
    )
    given = (np.random.default_rng(1).standard_normal((6, 777)) * 5).astype(np.float32)
    out = device.zeros((6, 777), np.float32)
    module.run("softmax", 6, 128, device.put(given), out, 777)
    e = np.exp(given.astype(np.float64) - given.max(1, keepdims=True))
    close(out.numpy(), e / e.sum(1, keepdims=True), 2e-6)


@case
def tensor_core_product(device: Device) -> None:
    """mma.sync.m16n8k16 on float16 and bfloat16, m16n8k8 on tf32, with the fragment layout of the PTX ISA."""

    def fragment(kind: str, load: str, k: int, kind_bits: int) -> str:
        return f"""extern "C" __global__ void {kind}(const {load} *a, const {load} *b, const float *c, float *d) {{
          int lane = threadIdx.x, g = lane >> 2, t = lane & 3; unsigned ra[4], rb[2]; float rd[4];
          const unsigned *pa = (const unsigned *)a, *pb = (const unsigned *)b;
          const int w = {k} * {kind_bits} / 32;
          ra[0] = pa[g * w + t]; ra[1] = pa[(g + 8) * w + t]; ra[2] = pa[g * w + t + 4]; ra[3] = pa[(g + 8) * w + t + 4];
          rb[0] = pb[g * w + t]; rb[1] = pb[g * w + t + 4];
          float c0 = c[g * 8 + 2 * t], c1 = c[g * 8 + 2 * t + 1], c2 = c[(g + 8) * 8 + 2 * t], c3 = c[(g + 8) * 8 + 2 * t + 1];
          asm volatile("mma.sync.aligned.m16n8k{k}.row.col.f32.{kind}.{kind}.f32 {{%0,%1,%2,%3}}, {{%4,%5,%6,%7}}, {{%8,%9}}, {{%10,%11,%12,%13}};"
            : "=f"(rd[0]), "=f"(rd[1]), "=f"(rd[2]), "=f"(rd[3]) : "r"(ra[0]), "r"(ra[1]), "r"(ra[2]), "r"(ra[3]), "r"(rb[0]), "r"(rb[1]),
              "f"(c0), "f"(c1), "f"(c2), "f"(c3));
          d[g * 8 + 2 * t] = rd[0]; d[g * 8 + 2 * t + 1] = rd[1]; d[(g + 8) * 8 + 2 * t] = rd[2]; d[(g + 8) * 8 + 2 * t + 1] = rd[3]; }}"""

    module = device.build(
        fragment("f16", "unsigned short", 16, 16)
        + fragment("bf16", "unsigned short", 16, 16)
        + fragment("tf32", "unsigned", 8, 32)
    )
    rng = np.random.default_rng(1)
    for kind, k in (("f16", 16), ("bf16", 16), ("tf32", 8)):
        # small integers: exact in every format, so the sum is exact whatever its order
        a, b, c = rng.integers(-9, 9, (16, k)), rng.integers(-9, 9, (8, k)), rng.integers(-99, 99, (16, 8))
        if kind == "f16":
            bits = [x.astype(np.float16).view(np.uint16) for x in (a, b)]
        elif kind == "bf16":
            bits = [(x.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16) for x in (a, b)]
        else:
            bits = [x.astype(np.float32).view(np.uint32) for x in (a, b)]
        out = device.zeros((16, 8), np.float32)
        module.run(
            kind, 1, 32, device.put(bits[0]), device.put(bits[1]), device.put(c.astype(np.float32)), out
        )
        same(out.numpy(), (a @ b.T + c).astype(np.float32))
