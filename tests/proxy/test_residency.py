"""What the splicing parts of the proxy do when a device, or a rank, does something at an unlucky moment."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from ..sanitizers import PREFIX, ROOT, SLOW, compile_c, sanitizer_options

CORE = ROOT / "singularity_core"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The proxy's parts, with a device that the case makes up."""
    out = tmp_path_factory.mktemp("residency") / "residency"
    parts = ("proxy", "interceptors", "exchange", "splicing", "barrier")
    sources = [path for part in parts for path in sorted((CORE / part).glob("*.c"))]
    programs = Path(__file__).parent / "programs"
    compile_c(out, [programs / "residency.c", programs / "stub_ops.c", *sources])
    return out


@pytest.mark.parametrize(
    "case",
    [
        pytest.param("rest", id="no gate opens once a device is said to rest"),
        pytest.param("unsettled", id="a device that runs does not rest, and its gates open"),
        pytest.param("unknown", id="a device that cannot say does not rest"),
        pytest.param("busy", id="nothing is moved before the device says that it has settled"),
        pytest.param("trim", id="a session without an image has no pages to give back"),
        pytest.param("full", id="a session has a place of its own, or is refused when all are taken"),
        pytest.param("errors", id="a sticky error overwrites one that the rank has not asked for"),
    ],
)
def test_case(program: Path, case: str) -> None:
    """What the case's name says."""
    command, environment = [*PREFIX, str(program), case], os.environ | sanitizer_options()
    done = subprocess.run(command, capture_output=True, text=True, timeout=60 * SLOW, env=environment)
    assert (done.returncode, done.stdout) == (0, "good\n"), done.stderr
