"""Collectives among real ranks: libnccl.so.2, the device proxies, the in-memory device; against numpy."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from ..multirank.jobs import run_job

PROGRAM = Path(__file__).parent / "ranks" / "program.py"


def passed(folder: Path, *cases: str, ranks: int, devices: int) -> None:
    """Runs the cases, one after the other, in one job; each rank must say that each has passed."""
    stdout, _ = run_job(PROGRAM, str(folder), *cases, ranks=ranks, devices=devices)
    for case in cases:
        assert stdout.count(f"{case} passed") == ranks


@pytest.mark.parametrize(("ranks", "devices"), [(4, 2), (3, 1), (2, 2)])
def test_reductions_and_movements(tmp_path: Path, ranks: int, devices: int) -> None:
    """Every collective of every type and operator equals numpy's result, whatever shares a device."""
    passed(tmp_path, "every_reduction", "every_movement", "large_operations", ranks=ranks, devices=devices)


@pytest.mark.parametrize(("ranks", "devices"), [(4, 2), (4, 4), (2, 1)])
def test_groups_creations_streams_threads(tmp_path: Path, ranks: int, devices: int) -> None:
    """Groups, splits, creations, streams and threads behave as NCCL documents."""
    cases = ("groups", "creations", "streams", "threads", "small_things")
    passed(tmp_path, *cases, ranks=ranks, devices=devices)


FAILURES = ["disagreement", "abort", "abort_while_waiting", "ends_after_a_fault", "too_many_in_a_group"]


@pytest.mark.parametrize("case", FAILURES)
@pytest.mark.parametrize(("ranks", "devices"), [(3, 3), (2, 1)])
def test_failures_of_others_are_told(tmp_path: Path, case: str, ranks: int, devices: int) -> None:
    """Ranks that disagree or abort, faults and too large groups are told to who must know; none hangs."""
    passed(tmp_path, case, ranks=ranks, devices=devices)


def test_nvidias_bindings_reduce(tmp_path: Path) -> None:
    """nccl4py, unmodified, makes a communicator and reduces over ranks that share a device."""
    if importlib.util.find_spec("nccl") is None:
        pytest.skip("nccl4py is not installed")
    stdout, _ = run_job(PROGRAM.with_name("bindings.py"), str(tmp_path), ranks=2, devices=1)
    assert stdout.count("bindings passed") == 2
