"""Checks of addresses: what is reported, and that lanes without a thread never touch memory."""

from __future__ import annotations

import ctypes
import mmap
import os

import numpy as np
import pytest
from runner import Fault, Kernel, nvrtc

SOURCE = r"""
extern "C" __global__ void copy(float *out, const float *in, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = in[i];
}
extern "C" __global__ void gather(float *out, const float *in, const int *index) {
  out[threadIdx.x] = in[index[threadIdx.x]];
}
extern "C" __global__ void odd(int *out) { *(int *)((char *)out + 2 * threadIdx.x) = 1; }
extern "C" __global__ void shared_index(int *out, int at) {
  __shared__ int cell[64];
  cell[threadIdx.x + at] = threadIdx.x; __syncthreads();
  out[threadIdx.x] = cell[63 - threadIdx.x];
}
extern "C" __global__ void halo(float *out, const float *in, unsigned n) {
  unsigned i = threadIdx.x;
  if (i - 5u < n) out[i - 5u] = in[i - 5u];
}
"""


@pytest.fixture(scope="module")
def ptx() -> str:
    return nvrtc(SOURCE)


@pytest.mark.parametrize("n", [1, 31, 33, 100, 127])
def test_lanes_past_the_end_touch_nothing(ptx: str, n: int) -> None:
    """Arrays end at a page that must not be touched; the window includes it, so no check would help."""
    kernel = Kernel(ptx, "copy", (128, 1, 1))
    page = mmap.PAGESIZE
    area = mmap.mmap(-1, 4 * page)
    base = ctypes.addressof(ctypes.c_char.from_buffer(area))
    libc = ctypes.CDLL(None, use_errno=True)
    for guard in (base + page, base + 3 * page):
        assert libc.mprotect(ctypes.c_void_p(guard), page, 0) == 0
    source, target = base + page - 4 * n, base + 3 * page - 4 * n
    values = np.arange(n, dtype=np.float32)
    ctypes.memmove(source, values.ctypes.data, values.nbytes)
    child = os.fork()
    if child == 0:  # a fault ends only the child
        packed = kernel.pack([target, source, n])
        code, _ = kernel.launch((1, 1, 1), packed, base, base + 4 * page, 0, np.zeros(1, np.uint64))
        same = (ctypes.c_float * n).from_address(target)[:] == values.tolist()
        os._exit(0 if same and not code else 3)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize(("lane", "address"), [(0, -(1 << 20)), (17, 1 << 28), (31, -1 << 30)])
def test_gathered_address_outside_is_reported(ptx: str, lane: int, address: int) -> None:
    """The first bad lane's address is named, before anything is read."""
    index = np.zeros(32, np.int32)
    index[lane] = address
    with pytest.raises(Fault) as caught:
        Kernel(ptx, "gather", (32, 1, 1))(
            (1, 1, 1), np.zeros(32, np.float32), np.zeros(32, np.float32), index
        )
    assert caught.value.code == 700


def test_misaligned_address_is_reported(ptx: str) -> None:
    """716 with the first misaligned address."""
    out = np.zeros(64, np.int32)
    with pytest.raises(Fault) as caught:
        Kernel(ptx, "odd", (32, 1, 1))((1, 1, 1), out)
    assert caught.value.code == 716
    assert caught.value.address % 4 == 2


@pytest.mark.parametrize("at", [1, -1, 1 << 20])
def test_shared_memory_has_an_end(ptx: str, at: int) -> None:
    """An index beyond the block's shared memory is an illegal address."""
    with pytest.raises(Fault) as caught:
        Kernel(ptx, "shared_index", (64, 1, 1))((1, 1, 1), np.zeros(64, np.int32), at)
    assert caught.value.code == 700


def test_indices_that_wrap_below_zero_in_idle_lanes(ptx: str) -> None:
    """Unsigned indices of a halo: lanes that wrapped are masked off, and the others go where they should."""
    n = 20
    source, out = np.arange(n, dtype=np.float32), np.zeros(n, np.float32)
    Kernel(ptx, "halo", (32, 1, 1))((1, 1, 1), out, source, n)
    np.testing.assert_array_equal(out, source)
