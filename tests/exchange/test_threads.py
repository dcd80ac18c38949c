"""Engines with their threads, and ranks in threads, plain or under sanitizers (run_sanitized.sh)."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from ..sanitizers import PREFIX, ROOT, SLOW, compile_c, sanitizer_options

CORE = ROOT / "singularity_core"


SOURCES = [
    *sorted((CORE / "exchange").glob("*.c")),
    *(CORE / "barrier" / f"{name}.c" for name in ("cut", "tempo")),
]
"""What the proxy is built of."""


@pytest.fixture(scope="module")
def stress(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program that computes in threads."""
    out = tmp_path_factory.mktemp("stress") / "stress"
    compile_c(out, [Path(__file__).parent / "programs" / "stress.c", *SOURCES])
    return out


@pytest.mark.parametrize(("engines", "ranks"), [(1, 3), (2, 2), (2, 5), (3, 4)])
def test_ranks_in_threads(stress: Path, exchange: Path, engines: int, ranks: int) -> None:
    """Collectives, splits and a rank that goes away in the middle: right results, an error for who waits, all
    memory freed, and no file but the rosters left."""
    command = [*PREFIX, str(stress), str(exchange), str(engines), str(ranks), "60", "3"]
    environment = os.environ | sanitizer_options()
    done = subprocess.run(command, capture_output=True, text=True, timeout=90 * SLOW, env=environment)
    assert (done.returncode, done.stdout) == (0, "good\n"), done.stderr
    assert {path.name[:2] for path in exchange.iterdir()} <= {"bo", "c-"}


def test_no_wake_up_is_lost(tmp_path: Path) -> None:
    """Who waits to join, to split, or for the cut, and is late for what he waits for, does not sleep."""
    program = tmp_path / "wakes"
    compile_c(program, [Path(__file__).parent / "programs" / "wakes.c", *SOURCES], "-DSG_WAIT_MS=3600000u")
    command, environment = [*PREFIX, str(program)], os.environ | sanitizer_options()
    done = subprocess.run(command, capture_output=True, text=True, timeout=30 * SLOW, env=environment)
    assert (done.returncode, done.stdout) == (0, "good\n"), done.stderr
