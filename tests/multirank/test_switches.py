"""How often ranks that share a device are switched (paper, section 5; design.md, "Time-slicing").

The slice wait is longer than any test: only the rules about who waits for whom make a switch, not the clock.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from .jobs import finish, start_job

PROGRAM = Path(__file__).parent / "programs" / "switches.py"
CONTROL = Path(sys.executable).parent / "singularity-ctl"


def count_switches(folder: Path, ranks: int, devices: int, steps: int, kind: str) -> list[int]:
    """Per rank, once a rank of each device has done its steps (and keeps the device)."""
    folder.mkdir()
    name = f"{kind}-{steps}-{folder.parent.name}"
    process = start_job(
        PROGRAM, str(folder), str(steps), kind,
        ranks=ranks, devices=devices, options=[f"--rdzv-id={name}", "--slice-wait=600"],
    )  # fmt: skip
    try:
        deadline = time.monotonic() + 100
        while len(list(folder.glob("done.*"))) < devices:
            assert process.poll() is None, "the job ended early"
            assert time.monotonic() < deadline, "the ranks do not come to an end"
            time.sleep(0.02)
        command = [str(CONTROL), "status", "--json", name]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    finally:
        (folder / "go").touch()
        code, _, stderr = finish(process)
    assert code == 0, stderr
    (job,) = json.loads(done.stdout)["jobs"]
    return [rank["counters"]["switches"] for rank in job["ranks"]]


@pytest.mark.parametrize(("ranks", "devices"), [(2, 1), (4, 1), (4, 2)])
def test_a_synchronisation_costs_one_switch_less_than_ranks(ranks: int, devices: int, tmp_path: Path) -> None:
    """N ranks of a device that synchronise 50 times more are switched exactly 50 x (N - 1) times more."""
    few, many = (
        sum(count_switches(tmp_path / str(steps), ranks, devices, steps, "together")) for steps in (5, 55)
    )
    assert many - few == 50 * (ranks - devices)


def test_passing_through_costs_no_switch(tmp_path: Path) -> None:
    """Ranks on different devices that are resident all-reduce 50 times without a switch, though others of
    their devices have work to do."""
    switches = count_switches(tmp_path / "job", 4, 2, 50, "apart")
    assert switches == [0, 0, 0, 0]
