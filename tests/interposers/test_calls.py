"""The driver API as a program sees it: the same programs natively on the in-memory device, and proxied."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parent / "programs" / "calls.py"
GRAPHS = Path(__file__).parent / "programs" / "graphs.py"
RunRank = Callable[..., "subprocess.CompletedProcess[str]"]
BOTH = [
    "kernel_parameters",
    "launch_errors",
    "sticky_error",
    "wrong_handles",
    "memory_sizes",
    "fills",
    "pitched_copies",
    "page_locked",
    "streams_and_events",
    "per_thread_streams",
    "one_threads_wait_does_not_stop_another",
    "contexts",
    "entry_points",
    "modules",
    "large_module",
    "pools",
]


@pytest.mark.parametrize("mode", ["native", "proxied"])
@pytest.mark.parametrize("behaviour", BOTH)
def test_behaviour(run_rank: RunRank, mode: str, behaviour: str) -> None:
    """A behaviour of the driver API is the same on the device itself and through the proxy."""
    assert "passed" in run_rank(mode, PROGRAM, behaviour, timeout=120).stdout


@pytest.mark.parametrize("mode", ["native", "proxied"])
@pytest.mark.parametrize("behaviour", ["explicit_graph", "clone_and_update", "capture"])
def test_graphs(run_rank: RunRank, mode: str, behaviour: str) -> None:
    """Graphs built by hand or by capture run as the device itself runs them."""
    assert "passed" in run_rank(mode, GRAPHS, behaviour, timeout=120).stdout


@pytest.mark.parametrize("behaviour", ["devices", "forked_child", "child_before_init"])
def test_proxied_behaviour(run_rank: RunRank, behaviour: str) -> None:
    """What only the client decides: devices, and who may use them after a fork."""
    assert "passed" in run_rank("proxied", PROGRAM, behaviour, timeout=120).stdout


def test_unsupported_calls_are_named_once(run_rank: RunRank) -> None:
    """A declined and a not interposed call each return 801, and stderr names each once, with a remedy."""
    result = run_rank("proxied", PROGRAM, "not_interposed", timeout=120)
    assert result.stderr.count("cuMemAllocManaged: managed memory is not supported: use cuMemAlloc") == 1
    assert result.stderr.count("cuCoredumpGetAttribute: not interposed") == 1
