"""Whatever is killed or stopped, nothing of a job in a box stays behind.  (The fixture looks.)"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from ..launched import MARK, processes_with
from ..launcher.conftest import Launcher, wait_for
from ..launcher.test_cleanup import start_family
from ..launcher.test_proxies import proxy_pid, start_ranks

NAMES = {"outer": "", "shim": "sg-box", "keeper": "sg-keeper"}
MODULE = b"singularity_core.box.shim"


def process_of(launcher: Launcher, what: str) -> int:
    """One of the box's own processes."""
    for pid in processes_with(MARK, launcher.mark):
        name = Path(f"/proc/{pid}/comm").read_text().strip()
        command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if name == NAMES[what] or (what == "outer" and name != "sg-box" and MODULE in command):
            return pid
    raise AssertionError(f"there is no {what}")


def rank_pid(launcher: Launcher, rank: int) -> int:
    """The process of a rank, out here."""
    for pid in processes_with(MARK, launcher.mark):
        status = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        leads = status["NSpid"].split()[-1] == status["NSsid"].split()[-1]
        if leads and f"RANK={rank}".encode() in variables and len(status["NSpid"].split()) == 2:
            return pid
    raise AssertionError(f"rank {rank} is not running")


@pytest.mark.parametrize("what", ["outer", "shim", "keeper"])
def test_a_killed_box_is_the_root_cause(launcher: Launcher, what: str) -> None:
    """When one of the box's own processes is killed all in it ends, and the launcher says so."""
    process = start_family(launcher, "--box")
    os.kill(process_of(launcher, what), signal.SIGKILL)
    _, err = process.communicate(timeout=60)
    assert "singularity-run: root cause: the job's box" in err
    assert "rank 0, rank 1" in err
    assert process.returncode == (137 if what != "keeper" else 70)


def test_a_killed_rank_is_the_root_cause(launcher: Launcher) -> None:
    """A rank that is killed from outside is named with its signal, and all others end."""
    process = start_family(launcher, "--box")
    os.kill(rank_pid(launcher, 1), signal.SIGKILL)
    _, err = process.communicate(timeout=60)
    assert "root cause: rank 1" in err
    assert process.returncode == 137


def test_a_killed_proxy_is_the_root_cause(launcher: Launcher) -> None:
    """A proxy that is killed is named, though its ranks, which cannot see it, may notice first."""
    process = start_ranks(launcher, 2, "use", "--box", "--devices", "1")
    os.kill(proxy_pid(launcher, 0), signal.SIGKILL)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 137, err
    assert "root cause: the proxy of device 0" in err


def test_a_killed_launcher_takes_the_box_along(launcher: Launcher) -> None:
    """kill -9 of the launcher leaves no process, no mount and no file."""
    process = start_family(launcher, "--box")
    process.kill()
    assert process.wait(timeout=60) == -signal.SIGKILL


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_reach_ranks(launcher: Launcher, number: signal.Signals) -> None:
    """A signal to the launcher reaches ranks in the box, which have time to end by themselves."""
    script = launcher.script("""
import os, pathlib, signal, time
def stop(number, frame):
    os.write(1, f"rank {os.environ['RANK']} got {number}\\n".encode())
    raise SystemExit(0)
signal.signal(signal.SIGTERM, stop), signal.signal(signal.SIGINT, stop)
pathlib.Path("up-" + os.environ["RANK"]).touch()
while True: time.sleep(1)
""")
    process = launcher.start("--nproc-per-node", "2", "--box", script)
    wait_for(lambda: all((launcher.folder / f"up-{rank}").exists() for rank in "01"), "the ranks")
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number, err
    assert sorted(out.splitlines()) == [f"rank {rank} got {int(number)}" for rank in range(2)]
