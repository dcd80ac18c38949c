"""Loops that a block's warps share take turns, and compute what they would one after the other."""

from __future__ import annotations

import numpy as np
import pytest
from runner import Fault, Kernel, nvrtc
from singularity_backend_fake.ptx.interleave import interleave
from singularity_backend_fake.ptx.lower import lower
from singularity_backend_fake.ptx.parser import parse
from singularity_backend_fake.ptx.shapes import Layout

PRODUCT = """extern "C" __global__ void product(const float *a, const float *b, float *c, int n, int steps) {
  int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
  %s
  float s = 0;
  for (int k = 0; k < steps; ++k) s = fmaf(a[y * n + k], b[k * n + x], s);
  c[y * n + x] = s; }"""


def chosen(source: str, block: tuple[int, int, int], width: int) -> bool:
    return interleave(lower(parse(nvrtc(source)), "product"), Layout(width, block))


def expected(a: np.ndarray, b: np.ndarray, steps: int) -> np.ndarray:
    """The sum over k; exact in any order, as the values are small integers."""
    return (a[:, :steps].astype(np.float64) @ b[:steps].astype(np.float64)).astype(np.float32)


@pytest.mark.parametrize("block", [(32, 8, 1), (16, 16, 1), (32, 3, 1)])
@pytest.mark.parametrize("steps", [0, 1, 7, 8, 41, 96])
def test_interleaved_product_is_exact(block: tuple[int, int, int], steps: int) -> None:
    """A naive product gives what numpy gives, for trip counts below, at and beyond those between yields."""
    n = 96
    source = PRODUCT % ""
    assert chosen(source, block, min(block[0], 32))
    draw = np.random.default_rng(steps)
    a, b = (draw.integers(-8, 9, (n, n)).astype(np.float32) for _ in range(2))
    c = np.full((n, n), -1, np.float32)
    Kernel(nvrtc(source), "product", block)((n // block[0], n // block[1], 1), a, b, c, n, steps)
    np.testing.assert_array_equal(c, expected(a, b, steps))


@pytest.mark.parametrize(
    "early",
    [
        "if (x >= n - 5 || y >= n - 3) return;",
        "if (y % 3 == 1) return;",
        "steps -= y % 7; if (y % 5 == 0) steps = 0;",
    ],
)
def test_threads_that_leave_and_warps_that_turn_differently(early: str) -> None:
    """Threads that return before the loop, and warps with trip counts of their own, hold up nobody."""
    n, steps, block = 96, 50, (32, 8, 1)
    draw = np.random.default_rng(1)
    a, b = (draw.integers(-8, 9, (n, n)).astype(np.float32) for _ in range(2))
    c = np.full((n, n), -1, np.float32)
    Kernel(nvrtc(PRODUCT % early), "product", block)((n // 32, n // 8, 1), a, b, c, n, steps)
    want = np.full((n, n), -1, np.float32)
    for y in range(n):
        for_y = steps - y % 7 if "steps" in early else steps
        if "steps" in early and y % 5 == 0:
            for_y = 0
        if "y % 3" in early and y % 3 == 1:
            continue
        if "n - 5" in early and y >= n - 3:
            continue
        width = n - 5 if "n - 5" in early else n
        want[y, :width] = expected(a, b, for_y)[y, :width]
    np.testing.assert_array_equal(c, want)


def test_a_fault_after_a_yield_is_reported() -> None:
    """An access out of range in a later turn is a fault at its address, as without turns."""
    n, block = 64, (32, 8, 1)
    a, b, c = (np.zeros((n, n), np.float32) for _ in range(3))
    with pytest.raises(Fault) as caught:
        Kernel(nvrtc(PRODUCT % ""), "product", block)((2, 8, 1), a, b, c, n, 1 << 20)
    assert caught.value.code == 700


@pytest.mark.parametrize(
    "statement",
    ["__syncthreads();", "atomicAdd(c, 1.0f);", "__threadfence();", "((volatile float *)c)[x] = 1;"],
)
def test_kernels_whose_warps_see_each_other_are_left_alone(statement: str) -> None:
    """Barriers, atomics, fences and volatile accesses forbid turns."""
    assert not chosen(PRODUCT % statement, (32, 8, 1), 32)


def test_loops_that_share_nothing_are_left_alone() -> None:
    """Where every thread of the block has columns of its own, turns would gain nothing."""
    assert not chosen(PRODUCT % "", (256, 1, 1), 32)
