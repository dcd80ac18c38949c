"""The launcher, its agent, and the device proxies stay outside of the box, and know who is in it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from ..launcher.conftest import Launcher
from ..launcher.test_proxies import OPEN_DEVICE, SMALL, start_ranks
from ..multirank.endless_job import CONTROL, Job, agree
from .test_kills import rank_pid

CHILDREN = (
    OPEN_DEVICE
    + """
import subprocess
if len(sys.argv) == 1:
    os.execv(sys.executable, [sys.executable, __file__, "executed"])
if "child" not in sys.argv:
    for _ in range(2):
        subprocess.run([sys.executable, __file__, "child"], check=True)
"""
)
FORGE = """
import mmap, os, pathlib, struct, sys, time
from singularity_core._native import ffi
SLOTS, CLAIM = 64, struct.Struct("=IIQIIiI96s")  # struct sg_claim
CLAIMED, REFUSED = 2, 5
def start_of(pid):
    return int(pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
door = pathlib.Path(os.environ["SINGULARITY_DEVICES"].split(":")[0]) / "door"
with door.open("r+b") as file:
    view = mmap.mmap(file.fileno(), 0)
first = ffi.sizeof("struct sg_door") - SLOTS * CLAIM.size
me, mine = os.getpid(), start_of(os.getpid())
outside = int(sys.argv[1]), int(sys.argv[2])
claims = [(me, mine + 5), (me, 0), outside, (outside[0], mine), (1 << 22, mine), (me, mine)]
for slot, (pid, start) in enumerate(claims):
    at = first + slot * CLAIM.size
    view[at:at + CLAIM.size] = CLAIM.pack(CLAIMED, pid, start, 0, 0, 0, 0, b"")
    while (claim := CLAIM.unpack_from(view, at))[0] == CLAIMED: time.sleep(0.01)
    print(claim[0] == REFUSED, claim[-1].rstrip(b"\\0").decode(), flush=True)
"""


def test_children_of_ranks_have_sessions(launcher: Launcher) -> None:
    """A rank that has executed another program, and its children, one after the other, open the device."""
    done = launcher.run("--nproc-per-node", "2", "--devices", "1", "--box",
                        launcher.script(CHILDREN), backend="fake", **SMALL)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 2 * 4


def test_claims_name_processes_of_the_box(launcher: Launcher) -> None:
    """A process in the box that claims to be another one is refused: another start, a process outside by
    the number that it has there, nobody; and under its own name it gets a session."""
    pid, start = os.getpid(), Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
    done = launcher.run("--box", launcher.script(FORGE), str(pid), start, backend="fake", **SMALL)
    assert done.returncode == 0, done.stderr
    *refused, admitted = done.stdout.splitlines()
    assert len(refused) == 5
    for line in refused:
        assert line.startswith("True the device proxy sees no process "), done.stdout
    assert admitted == "False "


def test_status_knows_ranks_by_their_numbers_outside(launcher: Launcher) -> None:
    """`singularity-ctl status` names the pids that the machine knows, and the ranks' sessions."""
    process = start_ranks(launcher, 2, "idle", "--box", "--devices", "1", "--rdzv-id", "boxed-status")
    command = [CONTROL, "status", "boxed-status", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    (found,) = json.loads(done.stdout)["jobs"]
    assert [rank["pid"] for rank in found["ranks"]] == [rank_pid(launcher, rank) for rank in range(2)]
    assert found["proxies"][0]["sessions"] == 2
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 128 + signal.SIGTERM


@pytest.mark.usefixtures("box")
def test_a_resized_job_ends_as_one_outside(tmp_path: Path) -> None:
    """A job in a box is paused, continued and resized while it trains; its ranks, whom proxies see but by
    translation, read the bytes of the same job without a box."""
    outside = Job(tmp_path / "outside", 2, 2, name=f"outside-{tmp_path.name}")
    outside.until(33)
    wanted = outside.stop()
    inside = Job(tmp_path / "inside", 2, 2, "--box", name=f"inside-{tmp_path.name}")
    inside.until(1)
    inside.pause()
    inside.go_on()
    for devices in (1, 2):
        done = inside.resize(devices)
        assert done.returncode == 0, done.stderr
        inside.until(max(inside.steps()) + 2)
    agree(inside.stop(), wanted)
