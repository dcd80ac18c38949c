"""Processes dumped, stored and made again with a real CRIU, each scenario in namespaces of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from singularity_core.checkpoint.criu import CriuUnavailableError, find_criu

SCENARIOS = Path(__file__).with_name("programs") / "host_scenarios.py"
BOX = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--net", "--ipc", "--uts")


@pytest.fixture(scope="module")
def _criu() -> None:
    try:
        find_criu()
    except CriuUnavailableError as error:
        pytest.skip(f"needs CRIU: {error.cause}")


@pytest.mark.usefixtures("_criu")
@pytest.mark.parametrize(
    "scenario",
    [
        *("lives", "ended", "keeper", "both", "criu", "restore", "box", "pipe", "moved", "names", "room"),
        pytest.param("dumper", marks=pytest.mark.long),
    ],
)
def test_scenario(scenario: str, tmp_path: Path) -> None:
    """What the docstring of the scenario's function in `programs/host_scenarios.py` says, holds."""
    # Started like this, nothing can outlive it: the kernel ends all in the namespace with its first process.
    ended = subprocess.run(
        [*BOX, sys.executable, str(SCENARIOS), scenario, str(tmp_path)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "PYTHONFAULTHANDLER": "1"},
        text=True,
        check=False,
        timeout=200,
    )
    assert ended.returncode == 0, ended.stdout
    assert ended.stdout.splitlines()[-1] == "as it must be"
