"""Atomics on global and shared memory; floating point only where every order gives the same sum."""
# ruff: noqa: E501  (kernels' source text)

from __future__ import annotations

import numpy as np
from driver import Device, case, same


@case
def integer_atomics(device: Device) -> None:
    module = device.build(r"""
    extern "C" __global__ void f(const int *in, int *cell, unsigned *ucell, unsigned long long *wide, int n) {
      int i = blockIdx.x * blockDim.x + threadIdx.x; if (i >= n) return; int x = in[i];
      atomicAdd(cell, x); atomicSub(cell + 1, x); atomicMin(cell + 2, x); atomicMax(cell + 3, x);
      atomicMin(ucell, (unsigned)x); atomicMax(ucell + 1, (unsigned)x); atomicAnd(ucell + 2, (unsigned)x | 0xff00u);
      atomicOr(ucell + 3, (unsigned)x & 0xffu); atomicXor(ucell + 4, (unsigned)x); atomicInc(ucell + 5, 9); atomicDec(ucell + 6, 6);
      atomicAdd(wide, (unsigned long long)(long long)x * 1000000007ull); atomicMax(wide + 1, (unsigned long long)(unsigned)x << 20); }""")
    given = np.random.default_rng(1).integers(-(2**30), 2**30, 3001).astype(np.int32)
    cell = device.put(np.array([5, 5, 2**31 - 1, -(2**31)], np.int32))
    ucell, wide = (
        device.put(np.array([2**32 - 1, 0, 2**32 - 1, 0, 0, 0, 0], np.uint32)),
        device.zeros(2, np.uint64),
    )
    module.run("f", 25, 128, device.put(given), cell, ucell, wide, 3001)
    u, total = given.view(np.uint32), int(given.astype(np.int64).sum())
    decremented = 0
    for _ in range(3001):
        decremented = 6 if decremented == 0 or decremented > 6 else decremented - 1
    same(cell.numpy(), np.array([total + 5, 5 - total, given.min(), given.max()]).astype(np.int32))
    same(
        ucell.numpy(),
        np.array(
            [
                u.min(),
                u.max(),
                np.bitwise_and.reduce(u | np.uint32(0xFF00)),
                np.bitwise_or.reduce(u & np.uint32(255)),
                np.bitwise_xor.reduce(u),
                3001 % 10,
                decremented,
            ],
            np.uint32,
        ),
    )
    same(wide.numpy(), np.array([total * 1000000007 % 2**64, int(u.max()) << 20], np.uint64))


@case
def values_returned_by_atomics(device: Device) -> None:
    module = device.build(r"""
    extern "C" __global__ void f(int *counter, int *ticket, int *last, int n) {
      int i = blockIdx.x * blockDim.x + threadIdx.x; if (i >= n) return;
      ticket[i] = atomicAdd(counter, 1); last[i] = atomicExch(counter + 1, i + 1); }""")
    counter, ticket, last = (
        device.zeros(2, np.int32),
        device.zeros(1000, np.int32),
        device.zeros(1000, np.int32),
    )
    module.run("f", 10, 128, counter, ticket, last, 1000)
    same(np.sort(ticket.numpy()), np.arange(1000, dtype=np.int32))
    chain = np.sort(np.append(last.numpy(), counter.numpy()[1]))
    same(chain, np.arange(1001, dtype=np.int32))


@case
def compare_and_swap_loops(device: Device) -> None:
    module = device.build(r"""
    __device__ void multiply(unsigned *p, unsigned f) { unsigned old = *p, seen; do { seen = old; old = atomicCAS(p, seen, seen * f); } while (old != seen); }
    __device__ void add(double *p, double v) { unsigned long long *q = (unsigned long long *)p, old = *q, seen;
      do { seen = old; old = atomicCAS(q, seen, __double_as_longlong(v + __longlong_as_double(seen))); } while (old != seen); }
    extern "C" __global__ void f(unsigned *product, double *sum, int n) {
      int i = blockIdx.x * blockDim.x + threadIdx.x; if (i >= n) return;
      multiply(product, 2 * i + 1); add(sum, i * 0.5); }""")
    product, total = device.put(np.ones(1, np.uint32)), device.zeros(1, np.float64)
    module.run("f", 4, 96, product, total, 300)
    expected = 1
    for i in range(300):
        expected = expected * (2 * i + 1) % 2**32
    same(product.numpy(), np.array([expected], np.uint32))
    same(total.numpy(), np.array([np.arange(300).sum() * 0.5]))


@case
def float_atomics(device: Device) -> None:
    module = device.build(r"""
    #include <cuda_fp16.h>
    extern "C" __global__ void f(const float *in, float *sum, double *wide, __half *half, int n) {
      int i = blockIdx.x * blockDim.x + threadIdx.x; if (i >= n) return;
      atomicAdd(sum + i % 7, in[i]); atomicAdd(wide, (double)in[i] * 0.25); if (i < 500) atomicAdd(half, __float2half(1.0f)); }""")
    given = (
        np.random.default_rng(1).integers(-1000, 1000, 4000).astype(np.float32)
    )  # sums are exact in any order
    total, wide, half = device.zeros(7, np.float32), device.zeros(1, np.float64), device.zeros(2, np.float16)
    module.run("f", 32, 128, device.put(given), total, wide, half, 4000)
    same(total.numpy(), np.array([given[k::7].sum(dtype=np.float64) for k in range(7)], np.float32))
    same(wide.numpy(), np.array([given.sum(dtype=np.float64) * 0.25]))
    same(half.numpy(), np.array([500, 0], np.float16))


@case
def float_atomics_are_reproducible(device: Device) -> None:
    module = device.build(r"""
    extern "C" __global__ void f(const float *in, float *sum, int n) {
      for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) atomicAdd(sum, in[i]); }""")
    given = np.random.default_rng(1).standard_normal(20000).astype(np.float32)
    source, seen = device.put(given), []
    for _ in range(4):
        total = device.zeros(1, np.float32)
        module.run("f", 16, 128, source, total, 20000)
        seen.append(total.numpy())
    for again in seen[1:]:
        same(again, seen[0])
    assert abs(float(seen[0][0]) - given.sum(dtype=np.float64)) < 0.05


@case
def shared_memory_histogram(device: Device) -> None:
    module = device.build(r"""
    extern "C" __global__ void histogram(const unsigned char *in, unsigned *out, int n) {
      __shared__ unsigned bins[256];
      for (int b = threadIdx.x; b < 256; b += blockDim.x) bins[b] = 0;
      __syncthreads();
      for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) atomicAdd(&bins[in[i]], 1u);
      __syncthreads();
      for (int b = threadIdx.x; b < 256; b += blockDim.x) if (bins[b]) atomicAdd(&out[b], bins[b]); }""")
    given = (np.random.default_rng(1).standard_normal(30000) * 30 + 128).clip(0, 255).astype(np.uint8)
    for block in (100, 256):
        out = device.zeros(256, np.uint32)
        module.run("histogram", 6, block, device.put(given), out, 30000)
        same(out.numpy(), np.bincount(given, minlength=256).astype(np.uint32))


@case
def global_memory_histogram(device: Device) -> None:
    module = device.build(r"""
    extern "C" __global__ void histogram(const int *in, int *out, int n) {
      int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) atomicAdd(&out[in[i]], in[i] & 3); }""")
    given = np.random.default_rng(1).integers(0, 37, 9999).astype(np.int32)
    out = device.zeros(37, np.int32)
    module.run("histogram", 100, 100, device.put(given), out, 9999)
    same(out.numpy(), (np.bincount(given, minlength=37) * (np.arange(37) & 3)).astype(np.int32))


@case
def last_block_reduces(device: Device) -> None:
    module = device.build(r"""
    __device__ unsigned arrived = 0;
    extern "C" __global__ void total(const int *in, volatile int *partial, int *out, int n) {
      __shared__ int sum; __shared__ bool last;
      if (threadIdx.x == 0) sum = 0;
      __syncthreads();
      int mine = 0; for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) mine += in[i];
      atomicAdd(&sum, mine);
      __syncthreads();
      if (threadIdx.x == 0) { partial[blockIdx.x] = sum; __threadfence(); last = atomicInc(&arrived, gridDim.x - 1) == gridDim.x - 1; }
      __syncthreads();
      if (last && threadIdx.x == 0) { int all = 0; for (unsigned b = 0; b < gridDim.x; ++b) all += partial[b]; *out = all; } }""")
    given = np.random.default_rng(1).integers(-1000, 1000, 7777).astype(np.int32)
    partial, out = device.zeros(13, np.int32), device.zeros(1, np.int32)
    for _ in range(2):
        module.run("total", 13, 96, device.put(given), partial, out, 7777)
        same(out.numpy(), np.array([given.sum()], np.int32))


@case
def lock_per_block(device: Device) -> None:
    module = device.build(r"""
    extern "C" __global__ void count(int *lock, volatile int *value) {
      if (threadIdx.x == 0) {
        while (atomicCAS(lock, 0, 1) != 0) __nanosleep(100);
        __threadfence(); *value = *value + blockIdx.x + 1; __threadfence(); atomicExch(lock, 0);
      } }""")
    lock, value = device.zeros(1, np.int32), device.zeros(1, np.int32)
    module.run("count", 50, 32, lock, value)
    same(value.numpy(), np.array([1275], np.int32))


@case
def blocks_that_wait_for_earlier_blocks(device: Device) -> None:
    """A chained scan: a block spins until the one before it, by ticket, has published."""
    module = device.build(r"""
    __device__ unsigned tickets = 0;
    extern "C" __global__ void scan(const int *in, int *out, volatile int *ready, volatile int *sums) {
      __shared__ unsigned ticket; __shared__ int before; __shared__ int cell[64];
      if (threadIdx.x == 0) ticket = atomicAdd(&tickets, 1);
      __syncthreads();
      int i = ticket * 64 + threadIdx.x; cell[threadIdx.x] = in[i];
      for (int d = 1; d < 64; d *= 2) { __syncthreads(); int v = threadIdx.x >= d ? cell[threadIdx.x - d] : 0; __syncthreads(); cell[threadIdx.x] += v; }
      __syncthreads();
      if (threadIdx.x == 0) {
        before = 0;
        if (ticket > 0) { while (!ready[ticket - 1]) __nanosleep(20); __threadfence(); before = sums[ticket - 1]; }
        sums[ticket] = before + cell[63]; __threadfence(); ready[ticket] = 1;
      }
      __syncthreads();
      out[i] = cell[threadIdx.x] + before; }""")
    given = np.random.default_rng(1).integers(-99, 99, 64 * 40).astype(np.int32)
    out, ready, sums = device.zeros(64 * 40, np.int32), device.zeros(40, np.int32), device.zeros(40, np.int32)
    module.run("scan", 40, 64, device.put(given), out, ready, sums)
    same(out.numpy(), np.cumsum(given).astype(np.int32))


@case
def cooperative_grid_barrier(device: Device) -> None:
    """Where the device offers cooperative launch, all blocks of the grid meet."""
    if not device.attribute(95):  # CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH
        return
    module = device.build(r"""
    extern "C" __global__ void meet(volatile int *cell, int *out, unsigned *count) {
      int b = blockIdx.x;
      if (threadIdx.x == 0) { cell[b] = b * b + 1; __threadfence(); atomicAdd(count, 1u); while (*(volatile unsigned *)count < gridDim.x) __nanosleep(50); __threadfence(); }
      __syncthreads();
      out[b * blockDim.x + threadIdx.x] = cell[(b + 1 + threadIdx.x) % gridDim.x]; }""")
    cell, out, count = device.zeros(6, np.int32), device.zeros((6, 32), np.int32), device.zeros(1, np.uint32)
    module.launch("meet", 6, 32, cell, out, count, cooperative=True)
    device.call("cuCtxSynchronize")
    b, t = np.arange(6)[:, None], np.arange(32)[None]
    same(out.numpy(), (((b + 1 + t) % 6) ** 2 + 1).astype(np.int32))


@case
def clocks_advance_and_sleep_returns(device: Device) -> None:
    module = device.build(r"""
    extern "C" __global__ void f(long long *out) {
      long long a = clock64(); unsigned long long g, h; asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(g));
      __nanosleep(20000);
      asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(h)); long long b = clock64();
      out[threadIdx.x] = (b > a) + 2 * (h >= g) + 4 * (clock() != 0 || true); }""")
    out = device.zeros(32, np.int64)
    module.run("f", 1, 32, out)
    same(out.numpy(), np.full(32, 7, np.int64))
