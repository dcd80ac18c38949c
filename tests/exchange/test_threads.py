"""Engines with their threads, and ranks in threads, plain or under sanitizers (run_sanitized.sh)."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from ..sanitizers import PREFIX, ROOT, SLOW, compile_c, sanitizer_options

CORE = ROOT / "singularity_core"


@pytest.fixture(scope="module")
def stress(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program, built of the sources that the proxy is built of."""
    out = tmp_path_factory.mktemp("stress") / "stress"
    sources = [
        *sorted((CORE / "exchange").glob("*.c")),
        *(CORE / "barrier" / f"{name}.c" for name in ("cut", "tempo")),
    ]
    compile_c(out, [Path(__file__).parent / "programs" / "stress.c", *sources])
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
