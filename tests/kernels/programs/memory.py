"""State spaces: parameters, shared, local, constant and global memory, vectors, volatile, bytes."""
# ruff: noqa: E501  (kernels' source text)

from __future__ import annotations

import ctypes

import numpy as np
from driver import Device, case, close, same


class Inner(ctypes.Structure):
    _fields_ = [("tag", ctypes.c_uint8), ("weight", ctypes.c_double)]


class Big(ctypes.Structure):
    _fields_ = [
        ("flag", ctypes.c_int8),
        ("count", ctypes.c_int32),
        ("letter", ctypes.c_uint8),
        ("wide", ctypes.c_int64),
        ("small", ctypes.c_int16),
        ("table", ctypes.c_int32 * 5),
        ("scale", ctypes.c_float),
        ("inner", Inner * 2),
        ("pointer", ctypes.c_uint64),
        ("last", ctypes.c_uint8 * 3),
    ]


@case
def structure_parameters(device: Device) -> None:
    module = device.build(
        r"""
    struct Inner { unsigned char tag; double weight; };
    struct Big { signed char flag; int count; unsigned char letter; long long wide; short small; int table[5];
                 float scale; Inner inner[2]; double *out; unsigned char last[3]; };
    extern "C" __global__ void f(unsigned char before, Big big, short after, double x) {
      int i = threadIdx.x;
      double v = big.flag + big.count * 2.0 + big.letter * 3.0 + (double)big.wide + big.small + big.table[i % 5] * big.scale
               + big.inner[i & 1].tag + big.inner[i & 1].weight + big.last[i % 3];
      big.out[i] = v + before + after + x + sizeof(Big); }""",
        "--fmad=false",
    )
    out = device.zeros(32, np.float64)
    table = [10, -20, 30, -40, 50]
    big = Big(
        -5,
        100000,
        200,
        -(2**40),
        -300,
        (ctypes.c_int32 * 5)(*table),
        0.5,
        (Inner * 2)(Inner(9, 1.25), Inner(250, -2.5)),
        out.pointer,
        (ctypes.c_uint8 * 3)(1, 2, 255),
    )
    module.run("f", 1, 32, np.uint8(250), big, np.int16(-7), np.float64(0.125))
    i = np.arange(32)
    expected = (
        -5
        + 200000.0
        + 600
        - float(2**40)
        - 300
        + np.array(table)[i % 5] * 0.5
        + np.array([9, 250])[i & 1]
        + np.array([1.25, -2.5])[i & 1]
        + np.array([1, 2, 255])[i % 3]
        + 250
        - 7
        + 0.125
        + ctypes.sizeof(Big)
    )
    same(out.numpy(), expected)


@case
def many_parameters_of_mixed_width(device: Device) -> None:
    module = device.build(r"""
    extern "C" __global__ void f(char a, double b, short c, float d, long long e, unsigned char g, int h, double *out, char z) {
      out[0] = a; out[1] = b; out[2] = c; out[3] = d; out[4] = (double)e; out[5] = g; out[6] = h; out[7] = z; }""")
    out = device.zeros(8, np.float64)
    module.run(
        "f",
        1,
        1,
        np.int8(-3),
        np.float64(2.5),
        np.int16(-1000),
        np.float32(0.75),
        np.int64(1 << 50),
        np.uint8(255),
        np.int32(-77),
        out,
        np.int8(9),
    )
    same(out.numpy(), np.array([-3, 2.5, -1000, 0.75, 1 << 50, 255, -77, 9], np.float64))


@case
def local_array_with_dynamic_index(device: Device) -> None:
    module = device.build(r"""
    extern "C" __global__ void f(const int *in, int *out, int n) {
      int i = blockIdx.x * blockDim.x + threadIdx.x; if (i >= n) return;
      int slot[24]; unsigned char bytes[40];
      for (int k = 0; k < 24; ++k) slot[k] = k * i;
      for (int k = 0; k < 40; ++k) bytes[k] = k + i;
      for (int k = 0; k < 16; ++k) { int p = (in[i] + k * 7) % 24, q = (in[i] * k) % 24;
        int t = slot[p]; slot[p] = slot[q] + bytes[(p + q) % 40]; slot[q] = t; bytes[q] ^= t; }
      int sum = 0; for (int k = 0; k < 24; ++k) sum += slot[k] * (k + 1);
      for (int k = 0; k < 40; ++k) sum += bytes[k];
      out[i] = sum; }""")
    given = np.random.default_rng(4).integers(0, 1000, 300).astype(np.int32)
    out = device.zeros(300, np.int32)
    module.run("f", 4, 96, device.put(given), out, 300)
    expected = []
    for i, x in enumerate(map(int, given)):
        slot, data = [k * i for k in range(24)], [(k + i) & 255 for k in range(40)]
        for k in range(16):
            p, q = (x + k * 7) % 24, (x * k) % 24
            t = slot[p]
            slot[p] = slot[q] + data[(p + q) % 40]
            slot[q] = t
            data[q] = (data[q] ^ t) & 255
        expected.append(sum(v * (k + 1) for k, v in enumerate(slot)) + sum(data))
    same(out.numpy(), np.array(expected, np.int32))


@case
def static_and_dynamic_shared_memory(device: Device) -> None:
    module = device.build(r"""
    extern __shared__ unsigned char pool[];
    extern "C" __global__ void f(const float *in, double *out, int n) {
      __shared__ float first[64]; __shared__ short second[64];
      float *a = (float *)pool; double *b = (double *)(pool + 4 * n + (n & 1 ? 4 : 0));
      int t = threadIdx.x;
      first[t] = in[t]; second[t] = (short)(t * 11); a[t] = in[t] * 2; b[t] = in[t] * 0.25;
      __syncthreads();
      int u = (t * 7 + 3) % n;
      out[t] = first[u] + second[n - 1 - t] + a[(u + 1) % n] + b[(u + 2) % n]; }""")
    for n in (64, 33, 1):
        given = np.random.default_rng(n).integers(-100, 100, n).astype(np.float32)
        out = device.zeros(n, np.float64)
        module.run("f", 1, n, device.put(given), out, n, shared=12 * n + 8)
        t = np.arange(n)
        u = (t * 7 + 3) % n
        same(out.numpy(), given[u] + (n - 1 - t) * 11.0 + given[(u + 1) % n] * 2 + given[(u + 2) % n] * 0.25)


@case
def large_dynamic_shared_memory(device: Device) -> None:
    module = device.build(r"""
    extern __shared__ int pool[];
    extern "C" __global__ void f(int *out, int n) {
      for (int i = threadIdx.x; i < n; i += blockDim.x) pool[i] = i * 3 + blockIdx.x;
      __syncthreads();
      for (int i = threadIdx.x; i < n; i += blockDim.x) out[blockIdx.x * n + i] = pool[n - 1 - i]; }""")
    n = 20000  # 80,000 bytes: more than the 48 KiB that need no attribute
    function = module.function("f")
    device.call("cuFuncSetAttribute", function, ctypes.c_int(8), ctypes.c_int(4 * n))
    out = device.zeros((3, n), np.int32)
    module.run("f", 3, 256, out, n, shared=4 * n)
    i = np.arange(n)
    same(out.numpy(), np.stack([(n - 1 - i) * 3 + b for b in range(3)]).astype(np.int32))


@case
def constant_memory(device: Device) -> None:
    module = device.build(
        r"""
    __constant__ float weights[16]; __constant__ int fixed[4] = {7, -8, 9, -10}; __constant__ unsigned char text[12] = "hello there";
    extern "C" __global__ void f(const float *in, float *out, int n) {
      int i = blockIdx.x * blockDim.x + threadIdx.x; if (i >= n) return;
      out[i] = in[i] * weights[i % 16] + fixed[i & 3] + text[i % 11]; }""",
        "--fmad=false",
    )
    weights = np.linspace(-1, 2, 16).astype(np.float32)
    target = module.variable("weights", np.float32, (16,))
    device.call(
        "cuMemcpyHtoD_v2",
        ctypes.c_uint64(target.pointer),
        ctypes.c_void_p(weights.ctypes.data),
        ctypes.c_size_t(64),
    )
    given = np.random.default_rng(1).standard_normal(200).astype(np.float32)
    out = device.zeros(200, np.float32)
    module.run("f", 2, 128, device.put(given), out, 200)
    i, text = np.arange(200), np.frombuffer(b"hello there", np.uint8).astype(np.float32)
    fixed = np.array([7, -8, 9, -10], np.float32)
    same(out.numpy(), given * weights[i % 16] + fixed[i & 3] + text[i % 11])


@case
def module_variables(device: Device) -> None:
    module = device.build(r"""
    __device__ int counter = 41; __device__ double table[4] = {0.5, 1.5, 2.5, 3.5}; __device__ int big[1000];
    __device__ int *alias = big + 10;
    extern "C" __global__ void f(double *out) {
      int t = threadIdx.x;
      if (t == 0) counter += 1;
      big[t] = t * t; out[t] = table[t & 3] * 2; }
    extern "C" __global__ void g(int *out) { out[threadIdx.x] = alias[threadIdx.x] + counter; alias[-1] = 5; }""")
    same(module.variable("counter", np.int32, (1,)).numpy(), np.array([41], np.int32))
    out, sums = device.zeros(64, np.float64), device.zeros(40, np.int32)
    module.run("f", 1, 64, out)
    module.run("g", 1, 40, sums)
    same(out.numpy(), np.array([1.0, 3.0, 5.0, 7.0])[np.arange(64) & 3])
    same(module.variable("counter", np.int32, (1,)).numpy(), np.array([42], np.int32))
    squares = np.zeros(1000, np.int32)
    squares[:64] = np.arange(64) ** 2
    same(sums.numpy(), squares[10:50] + 42)
    squares[9] = 5
    same(module.variable("big", np.int32, (1000,)).numpy(), squares)


@case
def vector_loads_and_stores(device: Device) -> None:
    module = device.build(r"""
    extern "C" __global__ void f(const float4 *a, const int2 *b, const uchar4 *c, float4 *out, int2 *out2, uchar4 *out4,
                                 const double2 *d, double2 *outd, const short4 *s, short4 *outs, int n) {
      int i = blockIdx.x * blockDim.x + threadIdx.x; if (i >= n) return;
      float4 v = a[i]; out[i] = make_float4(v.w, v.z + 1, v.y, v.x * 2);
      int2 w = b[n - 1 - i]; out2[i] = make_int2(w.y, w.x ^ 5);
      uchar4 u = c[i]; out4[i] = make_uchar4(u.y, u.x, u.w + 1, u.z);
      double2 e = d[i]; outd[i] = make_double2(e.y, -e.x);
      short4 h = s[i]; outs[i] = make_short4(h.w, h.z, h.y, h.x); }""")
    rng, n = np.random.default_rng(1), 77
    a, b = rng.standard_normal((n, 4)).astype(np.float32), rng.integers(-9, 9, (n, 2)).astype(np.int32)
    c, d = rng.integers(0, 256, (n, 4)).astype(np.uint8), rng.standard_normal((n, 2))
    s = rng.integers(-999, 999, (n, 4)).astype(np.int16)
    outs = [device.zeros(x.shape, x.dtype) for x in (a, b, c, d, s)]
    module.run(
        "f",
        2,
        64,
        device.put(a),
        device.put(b),
        device.put(c),
        outs[0],
        outs[1],
        outs[2],
        device.put(d),
        outs[3],
        device.put(s),
        outs[4],
        n,
    )
    same(outs[0].numpy(), np.stack([a[:, 3], a[:, 2] + 1, a[:, 1], a[:, 0] * 2], 1))
    same(outs[1].numpy(), np.stack([b[::-1, 1], b[::-1, 0] ^ 5], 1))
    same(outs[2].numpy(), np.stack([c[:, 1], c[:, 0], c[:, 3] + np.uint8(1), c[:, 2]], 1))
    same(outs[3].numpy(), np.stack([d[:, 1], -d[:, 0]], 1))
    same(outs[4].numpy(), s[:, ::-1].copy())


@case
def generic_addresses(device: Device) -> None:
    module = device.build(r"""
    __device__ __noinline__ int take(const int *p, int i) { return p[i]; }
    extern "C" __global__ void f(int *global, int *out) {
      __shared__ int shared[32]; int local[8];
      int t = threadIdx.x; shared[t] = 100 + t; for (int k = 0; k < 8; ++k) local[k] = 1000 + k + t;
      __syncthreads();
      const int *p = t % 3 == 0 ? global : t % 3 == 1 ? shared : local;
      out[t] = take(p, t & 7) + (__isShared(p) != 0) * 10000 + (__isGlobal(p) != 0) * 20000; }""")
    given = np.arange(500, 508, dtype=np.int32)
    out = device.zeros(32, np.int32)
    module.run("f", 1, 32, device.put(given), out)
    t = np.arange(32)
    same(
        out.numpy(),
        np.choose(t % 3, [500 + (t & 7) + 20000, 100 + (t & 7) + 10000, 1000 + (t & 7) + t]).astype(np.int32),
    )


@case
def volatile_and_fences(device: Device) -> None:
    module = device.build(r"""
    extern "C" __global__ void f(volatile int *cell, int *out) {
      int t = threadIdx.x + blockIdx.x * blockDim.x;
      cell[t] = t; __threadfence(); int seen = cell[t]; cell[t] = seen + 1; __threadfence_block(); __threadfence_system();
      out[t] = cell[t] * 2; }""")
    cell, out = device.zeros(128, np.int32), device.zeros(128, np.int32)
    module.run("f", 2, 64, cell, out)
    same(out.numpy(), ((np.arange(128) + 1) * 2).astype(np.int32))


@case
def upper_case_of_bytes(device: Device) -> None:
    module = device.build(r"""
    extern "C" __global__ void upper(const char *in, char *out, int *words, int n) {
      int i = blockIdx.x * blockDim.x + threadIdx.x; if (i >= n) return;
      char c = in[i]; out[i] = c >= 'a' && c <= 'z' ? c - 32 : c;
      if (c != ' ' && (i == 0 || in[i - 1] == ' ')) {
        int length = 0; while (i + length < n && in[i + length] != ' ') ++length;
        words[i] = length; } }""")
    text = (b"the quick brown fox jumps over  the lazy dog \xc3\xa9 " * 20)[:901]
    given = np.frombuffer(text, np.uint8)
    out, words = device.zeros(901, np.uint8), device.zeros(901, np.int32)
    module.run("upper", 9, 101, device.put(given), out, words, 901)
    same(out.numpy(), np.frombuffer(text.upper(), np.uint8))
    expected, at = np.zeros(901, np.int32), 0
    for word in text.split(b" "):
        if word:
            expected[at] = len(word)
        at += len(word) + 1
    same(words.numpy(), expected)


@case
def transposition_through_shared_memory(device: Device) -> None:
    module = device.build(r"""
    extern "C" __global__ void transpose(const float *in, float *out, int rows, int columns) {
      __shared__ float tile[32][33];
      int x = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * 32 + threadIdx.y;
      for (int j = 0; j < 32; j += 8) if (x < columns && y + j < rows) tile[threadIdx.y + j][threadIdx.x] = in[(y + j) * columns + x];
      __syncthreads();
      x = blockIdx.y * 32 + threadIdx.x; y = blockIdx.x * 32 + threadIdx.y;
      for (int j = 0; j < 32; j += 8) if (x < rows && y + j < columns) out[(y + j) * rows + x] = tile[threadIdx.x][threadIdx.y + j]; }""")
    given = np.random.default_rng(1).standard_normal((133, 70)).astype(np.float32)
    out = device.zeros((70, 133), np.float32)
    module.run("transpose", (3, 5), (32, 8), device.put(given), out, 133, 70)
    same(out.numpy(), given.T.copy())


@case
def strided_gather_and_scatter(device: Device) -> None:
    module = device.build(r"""
    extern "C" __global__ void f(const double *in, const int *index, double *out, int n) {
      int i = blockIdx.x * blockDim.x + threadIdx.x; if (i >= n) return;
      out[index[i]] = in[(i * 37LL) % n] + 0.5; }""")
    n = 5000
    given, order = (
        np.random.default_rng(1).standard_normal(n),
        np.random.default_rng(2).permutation(n).astype(np.int32),
    )
    out = device.zeros(n, np.float64)
    module.run("f", 50, 100, device.put(given), device.put(order), out, n)
    expected = np.empty(n)
    expected[order] = given[np.arange(n) * 37 % n] + 0.5
    close(out.numpy(), expected, 0)
