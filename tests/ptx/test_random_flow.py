"""Arbitrary control flow under masks, against interpretation thread by thread."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_flow import REGISTERS, generate
from runner import Kernel

BLOCKS = (33, 40, 64, 7, 96)


@pytest.mark.timeout(300)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 1 << 30), barriers=st.booleans(), block=st.sampled_from(BLOCKS))
def test_threads_compute_what_they_would_compute_alone(seed: int, barriers: bool, block: int) -> None:
    """Whatever the branches, loops and barriers, each thread's registers end as if it had run by itself."""
    program = generate(seed, barriers)
    out = np.zeros((2 * block, REGISTERS), np.uint32)
    Kernel(program.ptx(), "flow", (block, 1, 1))((2, 1, 1), out, 3)
    expected = [program.run(t, c, block, 3) for c in range(2) for t in range(block)]
    np.testing.assert_array_equal(out, np.array(expected, np.uint32))
