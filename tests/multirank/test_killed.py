"""When a rank or a proxy is killed the others are told at once, and the launcher names the cause."""

from __future__ import annotations

import json
import os
import select
import signal
import time
from pathlib import Path

import pytest

from ..launched import MARK, processes_with
from .jobs import JOBS, finish, start_job

PROGRAM = Path(__file__).parent / "programs" / "survivor.py"
VICTIM = 3
DEALS = {"one": (1, "0,0,0,0"), "two": (2, "0,0,1,1"), "four": (4, "0,1,2,3")}


def proxy_of(device: int) -> int:
    """The pid of a device's proxy."""
    (pid,) = (
        pid
        for pid, command in processes_with(MARK, JOBS.mark).items()
        if "singularity_core.proxy" in command and f"--proxy-index {device} " in command
    )
    return pid


@pytest.mark.parametrize(
    ("what", "deal"),
    [("rank", "one"), ("rank", "two"), ("rank", "four"), ("proxy", "two"), ("proxy", "four")],
)
def test_who_waits_for_the_killed_is_told_within_seconds(what: str, deal: str, tmp_path: Path) -> None:
    """Ranks that wait in a collective for one that is killed, or whose proxy is, get an error within 5 s,
    also on other devices, and though they ignore the launcher's SIGTERM; the report names the killed."""
    devices, where = DEALS[deal]
    process = start_job(
        PROGRAM, str(tmp_path), str(VICTIM),
        ranks=4, devices=devices, options=[f"--rank-devices={where}", "--grace-seconds=30"],
    )  # fmt: skip
    waiting = [tmp_path / f"waits.{rank}" for rank in range(4)]
    deadline = time.monotonic() + 60
    while not all(path.exists() for path in waiting):
        assert process.poll() is None, finish(process)
        assert time.monotonic() < deadline, "the ranks do not come to wait"
        time.sleep(0.01)
    device = int(where.split(",")[VICTIM])
    victim = int(waiting[VICTIM].read_text()) if what == "rank" else proxy_of(device)
    gone = os.pidfd_open(victim)
    killed_at = time.monotonic()
    os.kill(victim, signal.SIGKILL)
    select.select([gone], [], [])  # a proxy has much memory to give back: it ends later than it is killed
    os.close(gone)
    if what == "proxy":  # its own rank sleeps, and heeds no SIGTERM either
        os.kill(int(waiting[VICTIM].read_text()), signal.SIGKILL)
    code, _, stderr = finish(process, 25)
    assert code == 137
    cause = f"rank {VICTIM}" if what == "rank" else f"the proxy of device {device}"
    assert stderr[stderr.index("root cause: ") :].startswith(f"root cause: {cause}")
    for rank in set(range(4)) - {VICTIM}:
        at, said = json.loads((tmp_path / f"failed.{rank}").read_text())
        assert said != "no error"
        assert at - killed_at < 5.0, f"rank {rank}: {said}"
    assert JOBS.leftovers() == []
