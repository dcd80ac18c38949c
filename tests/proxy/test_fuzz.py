"""Hostile ranks: valid, mutated and random messages, and scribbling over everything a rank can write."""

from __future__ import annotations

import os

import pytest

from ..sanitizers import SLOW
from .conftest import StubProxy

LIMIT_S = 240
"""So that a proxy that stands still is told as such; a million messages take some 10 s of two processors."""
MESSAGES = int(os.environ.get("SINGULARITY_TEST_FUZZ_MESSAGES", "1000000"))
SEEDS = (1, 2)


@pytest.mark.parametrize("seed", SEEDS)
def test_proxy_survives_hostile_messages(proxy: StubProxy, seed: int) -> None:
    """After half a million hostile messages of each seed the proxy lives, a rank beside it was served
    correctly all the time, and nothing is left in the driver."""
    hostile = proxy.start(1, str(seed), str(MESSAGES // len(SEEDS)), str(LIMIT_S), program="fuzz")
    rounds = 0
    while hostile.poll() is None or rounds == 0:
        proxy.run(2, "echo", "posts", "bulk")
        rounds += 1
    out, err = hostile.communicate(timeout=60 * SLOW)
    assert hostile.returncode == 0, f"seed {seed}: {out}{err}"
    assert proxy.process.poll() is None
    proxy.run(3, "echo", "threads")
    proxy.await_empty()
