"""Divergence: loops, breaks, switches, early exits around barriers, odd shapes of grids and blocks."""
# ruff: noqa: E501  (kernels' source text)

from __future__ import annotations

import numpy as np
from driver import Device, case, same

U32 = np.uint32


def _collatz_lengths(count: int) -> np.ndarray:
    lengths = np.zeros(count, np.int32)
    for start in range(count):
        value, steps = start + 1, 0
        while value != 1:
            value = value // 2 if value % 2 == 0 else 3 * value + 1
            steps += 1
        lengths[start] = steps
    return lengths


@case
def divergent_loop(device: Device) -> None:
    module = device.build(r"""
    extern "C" __global__ void collatz(int *out, int n) {
      int i = blockIdx.x * blockDim.x + threadIdx.x;
      if (i >= n) return;
      unsigned long long v = i + 1; int steps = 0;
      while (v != 1) { v = (v & 1) ? 3 * v + 1 : v >> 1; ++steps; }
      out[i] = steps;
    }""")
    out = device.zeros(1000, np.int32)
    module.run("collatz", 8, 128, out, 1000)
    same(out.numpy(), _collatz_lengths(1000))


@case
def nested_break_continue(device: Device) -> None:
    module = device.build(r"""
    extern "C" __global__ void nest(const int *in, int *out, int n) {
      int i = blockIdx.x * blockDim.x + threadIdx.x;
      if (i >= n) return;
      int x = in[i], sum = 0;
      for (int a = 0; a < 20; ++a) {
        if ((a ^ x) % 3 == 0) continue;
        for (int b = a; ; ++b) {
          if (b > (x & 31)) break;
          if ((b + x) % 5 == 0) { sum += 1000; continue; }
          if ((a * b + x) % 17 == 13) goto done;
          for (int c = 0; c < (b & 3); ++c) { if (((c ^ x) & 7) == 5) break; sum += c + 1; }
          sum += b;
        }
        if (sum > 20000) break;
        sum ^= a;
      }
    done:
      out[i] = sum;
    }""")
    given = np.random.default_rng(3).integers(0, 1000, 700).astype(np.int32)
    out = device.zeros(700, np.int32)
    module.run("nest", 7, 100, device.put(given), out, 700)

    def one(x: int) -> int:
        total = 0
        for a in range(20):
            if (a ^ x) % 3 == 0:
                continue
            b = a - 1
            while True:
                b += 1
                if b > (x & 31):
                    break
                if (b + x) % 5 == 0:
                    total += 1000
                    continue
                if (a * b + x) % 17 == 13:
                    return total
                for c in range(b & 3):
                    if ((c ^ x) & 7) == 5:
                        break
                    total += c + 1
                total += b
            if total > 20000:
                break
            total ^= a
        return total

    same(out.numpy(), np.array([one(int(x)) for x in given], np.int32))


@case
def early_exit_before_barrier(device: Device) -> None:
    module = device.build(r"""
    extern "C" __global__ void leave(int *out, int keep) {
      __shared__ int cell[256];
      int t = threadIdx.x;
      cell[t] = 0;
      __syncthreads();
      if (t >= keep) return;
      cell[t] = t * 3;
      __syncthreads();
      int next = (t + 1) % keep;
      out[blockIdx.x * blockDim.x + t] = cell[next];
    }""")
    for block, keep in ((256, 200), (256, 1), (100, 33), (64, 32)):
        out = device.put(np.full(2 * block, -1, np.int32))
        module.run("leave", 2, block, out, keep)
        t = np.arange(block)
        one = np.where(t < keep, (t + 1) % keep * 3, -1).astype(np.int32)
        same(out.numpy(), np.tile(one, 2))


@case
def barrier_in_loop(device: Device) -> None:
    module = device.build(r"""
    extern "C" __global__ void rotate(const int *in, int *out, const int *turns) {
      extern __shared__ int cell[];
      int t = threadIdx.x, n = blockDim.x;
      cell[t] = in[blockIdx.x * n + t];
      for (int k = 0; k < turns[blockIdx.x]; ++k) {
        __syncthreads();
        int taken = cell[(t + 1) % n];
        __syncthreads();
        cell[t] = taken + k;
      }
      __syncthreads();
      out[blockIdx.x * n + t] = cell[n - 1 - t];
    }""")
    turns = np.array([0, 1, 5, 9], np.int32)
    for block in (1, 31, 33, 96, 1000):
        given = np.random.default_rng(block).integers(-1000, 1000, (4, block)).astype(np.int32)
        out = device.zeros((4, block), np.int32)
        module.run("rotate", 4, block, device.put(given), out, device.put(turns), shared=4 * block)
        expected = given.copy()
        for row, count in enumerate(turns):
            for k in range(count):
                expected[row] = np.roll(expected[row], -1) + k
        same(out.numpy(), expected[:, ::-1].copy())


@case
def barrier_in_uniform_branch(device: Device) -> None:
    module = device.build(r"""
    extern "C" __global__ void branch(int *out, int which) {
      __shared__ int cell[128];
      int t = threadIdx.x;
      cell[t] = t + blockIdx.x;
      if ((blockIdx.x + which) & 1) {
        __syncthreads();
        out[blockIdx.x * 128 + t] = cell[127 - t];
      } else {
        cell[t] *= 2;
        __syncthreads();
        out[blockIdx.x * 128 + t] = cell[t ^ 1] + 7;
      }
    }""")
    t = np.arange(128)
    for which in (0, 1):
        out = device.zeros((5, 128), np.int32)
        module.run("branch", 5, 128, out, which)
        rows = [(127 - t) + b if (b + which) & 1 else 2 * ((t ^ 1) + b) + 7 for b in range(5)]
        same(out.numpy(), np.array(rows, np.int32))


@case
def barrier_with_predicate(device: Device) -> None:
    module = device.build(r"""
    extern "C" __global__ void vote(int *out, int limit) {
      int t = threadIdx.x + blockIdx.x * blockDim.x;
      int count = __syncthreads_count(t % 3 == 0);
      int all = __syncthreads_and(t < limit);
      int any = __syncthreads_or(t == limit);
      out[t] = count + 10000 * all + 20000 * any;
    }""")
    for block in (32, 100, 257):
        out = device.zeros((3, block), np.int32)
        module.run("vote", 3, block, out, 2 * block - 1)
        t = np.arange(3 * block).reshape(3, block)
        limit = 2 * block - 1
        row = (t % 3 == 0).sum(1) + 10000 * (t < limit).all(1) + 20000 * (t == limit).any(1)
        same(out.numpy(), np.repeat(row[:, None], block, 1).astype(np.int32))


@case
def named_barrier_of_half_a_block(device: Device) -> None:
    module = device.build(r"""
    extern "C" __global__ void halves(int *out) {
      __shared__ int cell[128];
      int t = threadIdx.x, half = t / 64;
      for (int k = 0; k < 3 + half; ++k) {
        cell[t] = t * (k + 1);
        asm volatile("bar.sync %0, 64;" :: "r"(1 + half) : "memory");
        int other = cell[t ^ 63];
        asm volatile("bar.sync %0, 64;" :: "r"(1 + half) : "memory");
        out[k * 128 + t] = other;
      }
    }""")
    out = device.zeros((4, 128), np.int32)
    module.run("halves", 1, 128, out)
    t = np.arange(128)
    rows = np.array([np.where((k < 3) | (t >= 64), (t ^ 63) * (k + 1), 0) for k in range(4)], np.int32)
    same(out.numpy(), rows)


@case
def grids_and_blocks_of_three_dimensions(device: Device) -> None:
    module = device.build(r"""
    extern "C" __global__ void where(unsigned *out) {
      unsigned bx = gridDim.x, by = gridDim.y;
      unsigned block = blockIdx.x + bx * (blockIdx.y + by * blockIdx.z);
      unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
      unsigned size = blockDim.x * blockDim.y * blockDim.z;
      unsigned value = threadIdx.x + 16 * threadIdx.y + 512 * threadIdx.z + 4096 * blockIdx.x
                     + 65536 * blockIdx.y + 1048576 * blockIdx.z + 16777216u * gridDim.z;
      out[block * size + thread] = value;
    }""")
    shapes = (
        ((3, 2, 4), (5, 3, 2)),
        ((1, 1, 7), (1, 1, 33)),
        ((2, 5), (16, 16)),
        ((9,), (2, 31, 1)),
        ((1, 3), (7, 9, 5)),
    )
    for grid, block in shapes:
        g, b = (*grid, 1, 1)[:3], (*block, 1, 1)[:3]
        out = device.zeros(int(np.prod(g) * np.prod(b)), U32)
        module.run("where", grid, block, out)
        bz, by, bx, tz, ty, tx = np.meshgrid(
            *(np.arange(n, dtype=U32) for n in (g[2], g[1], g[0], b[2], b[1], b[0])), indexing="ij"
        )
        value = tx + 16 * ty + 512 * tz + 4096 * bx + 65536 * by + 1048576 * bz + U32(16777216 * g[2])
        same(out.numpy(), value.astype(U32).ravel())


@case
def odd_block_sizes(device: Device) -> None:
    module = device.build(r"""
    extern "C" __global__ void scale(const float *x, float *y, float a, int n) {
      for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) y[i] = a * x[i];
    }""")
    given = np.random.default_rng(5).standard_normal(10007).astype(np.float32)
    source = device.put(given)
    for block in (1, 31, 33, 100, 1000, 1024):
        out = device.zeros(10007, np.float32)
        module.run("scale", 3, block, source, out, 1.25, 10007)
        same(out.numpy(), np.float32(1.25) * given)


@case
def switch_statement(device: Device) -> None:
    arms = "\n".join(
        f"        case {k}: r = {code}; break;"
        for k, code in enumerate(
            (
                "x + 1",
                "x * 3",
                "x ^ 0x55",
                "x >> 2",
                "-x",
                "x & 15",
                "x | 256",
                "x - 100",
                "x * x",
                "~x",
                "x / 7",
                "x % 7",
            )
        )
    )
    module = device.build(f"""
    extern "C" __global__ void arms(const int *in, int *out, int n) {{
      int i = blockIdx.x * blockDim.x + threadIdx.x;
      if (i >= n) return;
      int x = in[i], r;
      switch (i % 16) {{
{arms}
        default: r = -7;
      }}
      out[i] = r;
    }}""")
    x = np.random.default_rng(1).integers(-10000, 10000, 500).astype(np.int32)
    out = device.zeros(500, np.int32)
    module.run("arms", 4, 128, device.put(x), out, 500)
    quotient = np.trunc(x / 7).astype(np.int32)
    choices = [
        x + 1,
        x * 3,
        x ^ 0x55,
        x >> 2,
        -x,
        x & 15,
        x | 256,
        x - 100,
        x * x,
        ~x,
        quotient,
        x - 7 * quotient,
    ]
    which = np.arange(500) % 16
    expected = np.full(500, -7, np.int32)
    for k, values in enumerate(choices):
        expected = np.where(which == k, values, expected).astype(np.int32)
    same(out.numpy(), expected)


BRANCH_TABLE = """
.version 8.0
.target sm_80
.address_size 64
.visible .entry pick(.param .u64 out, .param .u32 n)
{
  .reg .pred %p<2>; .reg .b32 %r<8>; .reg .b64 %rd<5>;
  ld.param.u64 %rd1, [out];
  ld.param.u32 %r1, [n];
  mov.u32 %r2, %tid.x;
  setp.ge.u32 %p1, %r2, %r1;
  @%p1 bra DONE;
  and.b32 %r3, %r2, 3;
ts: .branchtargets L0, L1, L2, L3;
  brx.idx %r3, ts;
L0: mov.u32 %r4, 100; bra.uni STORE;
L1: mov.u32 %r4, 211; bra.uni STORE;
L2: mov.u32 %r4, 322;
L3: add.u32 %r4, %r2, 1000;
STORE:
  cvta.to.global.u64 %rd2, %rd1;
  mul.wide.u32 %rd3, %r2, 4;
  add.s64 %rd4, %rd2, %rd3;
  st.global.u32 [%rd4], %r4;
DONE:
  ret;
}
"""


@case
def indexed_branch(device: Device) -> None:
    module = device.load(BRANCH_TABLE.encode())
    out = device.zeros(70, U32)
    module.run("pick", 1, 96, out, 70)
    t = np.arange(70)
    same(out.numpy(), np.choose(t & 3, [np.full(70, 100), np.full(70, 211), t + 1000, t + 1000]).astype(U32))


@case
def grid_stride_loop(device: Device) -> None:
    module = device.build(
        r"""
    extern "C" __global__ void axpy(float a, const float *x, const float *y, float *z, long long n) {
      for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < n; i += (long long)gridDim.x * blockDim.x)
        z[i] = a * x[i] + y[i];
    }""",
        "--fmad=false",
    )
    rng = np.random.default_rng(7)
    x, y = (rng.standard_normal(100_003).astype(np.float32) for _ in range(2))
    out = device.zeros(100_003, np.float32)
    module.run("axpy", 17, 96, 0.3, device.put(x), device.put(y), out, np.int64(100_003))
    same(out.numpy(), np.float32(0.3) * x + y)


@case
def noinline_functions(device: Device) -> None:
    module = device.build(
        r"""
    __device__ __noinline__ int mix(int a, int b) { return (a ^ (b << 3)) + b * 5; }
    __device__ __noinline__ void both(int a, int *low, int *high) { *low = mix(a, 7); *high = mix(7, a); }
    __device__ __noinline__ float power(float x, int n) { float r = 1; for (int i = 0; i < n; ++i) r *= x; return r; }
    extern "C" __global__ void calls(const int *in, int *out, float *f, int n) {
      int i = blockIdx.x * blockDim.x + threadIdx.x;
      if (i >= n) return;
      int low, high;
      if (in[i] & 1) both(in[i], &low, &high); else { low = mix(1, in[i]); high = 3; }
      out[i] = low * 2 - high;
      f[i] = power(1.0f + in[i] * 0.001f, i % 9);
    }""",
        "--fmad=false",
    )
    given = np.random.default_rng(8).integers(-500, 500, 300).astype(np.int32)
    out, powers = device.zeros(300, np.int32), device.zeros(300, np.float32)
    module.run("calls", 3, 128, device.put(given), out, powers, 300)

    def mix(a: np.ndarray | int, b: np.ndarray | int) -> np.ndarray:
        return (np.asarray(a, np.int32) ^ (np.asarray(b, np.int32) << 3)) + np.asarray(b, np.int32) * 5

    odd = given & 1 == 1
    low, high = np.where(odd, mix(given, 7), mix(1, given)), np.where(odd, mix(7, given), 3)
    same(out.numpy(), (low * 2 - high).astype(np.int32))
    base = np.float32(1) + given.astype(np.float32) * np.float32(0.001)
    expected = np.ones(300, np.float32)
    for step in range(9):
        expected = np.where(np.arange(300) % 9 > step, expected * base, expected)
    same(powers.numpy(), expected)


@case
def select_chain_and_short_circuit(device: Device) -> None:
    module = device.build(r"""
    extern "C" __global__ void chain(const int *p, int *out, int n) {
      int i = blockIdx.x * blockDim.x + threadIdx.x;
      if (i >= n) return;
      int v = 0;
      if (i > 0 && p[i - 1] > 10 || (i + 1 < n && p[i + 1] < -10)) v |= 1;
      if (!(p[i] >= 0 && p[i] < 8) && i % 2) v |= 2;
      v |= p[i] > 50 ? 4 : p[i] > 20 ? 8 : p[i] > 0 ? 16 : 32;
      do { v += 64; } while (v < p[i] * 8 && v < 500);
      out[i] = v;
    }""")
    p = np.random.default_rng(2).integers(-60, 100, 400).astype(np.int32)
    out = device.zeros(400, np.int32)
    module.run("chain", 4, 100, device.put(p), out, 400)
    expected = np.zeros(400, np.int32)
    for i, x in enumerate(p):
        v = 1 if (i > 0 and p[i - 1] > 10) or (i + 1 < 400 and p[i + 1] < -10) else 0
        v |= 2 if not 0 <= x < 8 and i % 2 else 0
        v |= 4 if x > 50 else 8 if x > 20 else 16 if x > 0 else 32
        while True:
            v += 64
            if not (v < x * 8 and v < 500):
                break
        expected[i] = v
    same(out.numpy(), expected)
