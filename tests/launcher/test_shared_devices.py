"""Several ranks on fewer devices, end to end: each has the whole memory and its own contents; failures name
their cause."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from .conftest import Launcher, wait_for
from .test_cleanup import rank_pid
from .test_control import control
from .test_proxies import OPEN_DEVICE, proxy_pid

SMALLER = {"SINGULARITY_FAKE_MEMORY": "96M"}
FILL = (
    OPEN_DEVICE
    + """
# More than half of the device's memory: two ranks do not fit on it at the same time.
rank, size, chunk = int(os.environ["RANK"]), 45 << 20, 1 << 20
check(cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size)))
back = (ctypes.c_ubyte * chunk)()
for turn in range(4):
    check(cuda.cuMemsetD8_v2(address, ctypes.c_ubyte(16 * turn + rank), ctypes.c_size_t(size)))
    pathlib.Path(f"turn-{turn}-{rank}").touch()
    marks = [pathlib.Path(f"turn-{turn}-{other}") for other in range(int(os.environ["WORLD_SIZE"]))]
    while not all(mark.exists() for mark in marks):
        time.sleep(0.002)
    for offset in (0, size // 2, size - chunk):
        check(cuda.cuMemcpyDtoH_v2(back, ctypes.c_uint64(address.value + offset), ctypes.c_size_t(chunk)))
        assert bytes(back) == bytes([16 * turn + rank]) * chunk, (turn, rank)
os.write(1, b"fine\\n")  # at once: print would mix the lines of several ranks
if "stay" in sys.argv:
    pathlib.Path(f"up-{rank}").touch()
    time.sleep(1000)
"""
)


@pytest.mark.parametrize(
    "options",
    [["--devices", "1"], ["--rank-devices", "0,2/1,3"], ["--devices", "2"]],
    ids=["one", "dealt", "two"],
)
def test_each_rank_has_the_whole_memory(launcher: Launcher, options: list[str]) -> None:
    """Four ranks that each use most of a device run on one and two devices, and each finds what it wrote,
    though it meets the others between writing and reading."""
    done = launcher.run(
        "--nproc-per-node", "4", *options, launcher.script(FILL),
        backend="fake", SINGULARITY_FAKE_DEVICES="2", **SMALLER,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stdout.splitlines() if line == "fine"] == ["fine"] * 4


def start_staying(launcher: Launcher) -> None:
    """Three ranks on one device, which stay once they have used it."""
    launcher.start(
        "--nproc-per-node", "3", "--devices", "1", "--rdzv-id", "sharing", "--grace-seconds", "2",
        launcher.script(FILL), "stay", backend="fake", **SMALLER,
    )  # fmt: skip
    ups = [launcher.folder / f"up-{rank}" for rank in range(3)]
    wait_for(lambda: all(up.exists() for up in ups) or launcher.started[0].poll() is not None, "the ranks")
    assert launcher.started[0].poll() is None, launcher.started[0].communicate()[1]


def test_status_counts_switches(launcher: Launcher) -> None:
    """Ranks that share a device were brought onto it several times, and bytes were moved for that."""
    start_staying(launcher)
    done = control("status", "sharing", "--json")
    (job,) = json.loads(done.stdout)["jobs"]
    assert [(proxy["device"], proxy["sessions"]) for proxy in job["proxies"]] == [(0, 3)]
    counters = [rank["counters"] for rank in job["ranks"]]
    assert all(one["live_bytes"] >= 45 << 20 for one in counters)
    assert sum(one["switches"] for one in counters) >= 4 * 2
    assert sum(one["swapped_bytes"] for one in counters) >= 4 * 2 * (45 << 20)


@pytest.mark.parametrize("victim", ["rank", "proxy"])
def test_killed_member_of_a_shared_device(launcher: Launcher, victim: str) -> None:
    """SIGKILL of a rank or of the proxy ends the job with that as root cause, and leaves nothing."""
    start_staying(launcher)
    os.kill(rank_pid(launcher, 1) if victim == "rank" else proxy_pid(launcher, 0), signal.SIGKILL)
    _, err = launcher.started[0].communicate(timeout=60)
    assert launcher.started[0].returncode == 137
    report = err[err.index("root cause") :]
    assert report.startswith("root cause: " + ("rank 1" if victim == "rank" else "the proxy of device 0"))
    if victim == "proxy":
        assert "it served rank 0, rank 1, rank 2" in report
    assert launcher.leftovers() == []


def test_map_from_a_file(launcher: Launcher) -> None:
    """A custom map places stages on devices of their own."""
    Path(launcher.folder, "map").write_text("0=DP0,PP0\n1=DP0,PP1\n2=DP1,PP0\n3=DP1,PP1\n")
    done = launcher.run(
        "--nproc-per-node", "4", "--devices", "2", "--rank-map", "map", launcher.script(FILL),
        backend="fake", SINGULARITY_FAKE_DEVICES="2", **SMALLER,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "device 0: ranks 0, 2; device 1: ranks 1, 3" in done.stderr
