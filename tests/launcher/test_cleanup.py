"""Whatever is killed, nothing stays behind.  (The fixture looks for processes and job directories.)"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from singularity_core.launcher.job_directory import (
    OWNER_FILE,
    create_job_directory,
    stale_jobs,
    sweep_stale_jobs,
)
from singularity_core.launcher.processes import kill_until_quiet, process_table, with_descendants

from .conftest import MARK, Launcher, processes_with, wait_for

FAMILY = """
import os, pathlib, subprocess, sys, time
# a child that ignores polite signals, and an orphan in a session of its own
subprocess.Popen(["sh", "-c", "trap '' TERM INT HUP; while :; do sleep 1; done"])
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        {orphan}
    os._exit(0)
os.wait()
pathlib.Path(sys.argv[1] + os.environ["RANK"]).touch()
time.sleep(1000)
"""
ORPHAN = 'os.execvp("sleep", ["sleep", "1000"])'


def start_family(launcher: Launcher, *options: str) -> subprocess.Popen[str]:
    """Starts two ranks, each with a stubborn child and an orphan, and waits until all are there."""
    script = launcher.script(FAMILY.replace("{orphan}", ORPHAN))
    process = launcher.start("--nproc-per-node", "2", "--grace-seconds", "0.5", *options, script, "up-")
    wait_for(lambda: all((launcher.folder / f"up-{rank}").exists() for rank in "01"), "the ranks")
    assert launcher.jobs()
    return process


SHARES = """
import os, pathlib, signal, sys
from multiprocessing.shared_memory import SharedMemory
pathlib.Path("shared").write_text(SharedMemory(create=True, size=4096).name)
os.kill(os.getpid(), signal.SIGKILL) if sys.argv[1] == "killed" else os._exit(0)
"""


@pytest.mark.parametrize("how", ["killed", "left"])
def test_shared_memory_of_a_rank_goes_with_it(launcher: Launcher, how: str) -> None:
    """What a rank leaves to Python's resource tracker is removed by it: the tracker is not killed first."""
    done = launcher.run(launcher.script(SHARES), how)
    assert done.returncode == (137 if how == "killed" else 0), done.stderr
    assert not (Path("/dev/shm") / (launcher.folder / "shared").read_text()).exists()


def rank_pid(launcher: Launcher, rank: int) -> int:
    """The process of a rank."""
    for pid in launcher.ranks():
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        if f"RANK={rank}".encode() in variables and b"script.py" in command and os.getsid(pid) == pid:
            return pid
    raise AssertionError(f"rank {rank} is not running")


def guardian_pid(launcher: Launcher) -> int:
    """The guardian of the launcher's job."""
    for pid in processes_with(MARK, launcher.mark):
        if Path(f"/proc/{pid}/comm").read_text() == "sg-guardian\n":
            return pid
    raise AssertionError("there is no guardian")


def gone(launcher: Launcher) -> bool:
    """Whether nothing of the test's jobs is left."""
    return not launcher.leftovers()


def test_killed_launcher(launcher: Launcher) -> None:
    """SIGKILL of the launcher ends the ranks and all their descendants, and removes the directory."""
    process = start_family(launcher)
    process.kill()
    wait_for(lambda: gone(launcher), "the guardian's work")


def test_killed_rank(launcher: Launcher) -> None:
    """SIGKILL of a rank ends the job with 137, and the report says which rank."""
    process = start_family(launcher)
    os.kill(rank_pid(launcher, 1), signal.SIGKILL)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 137
    assert "root cause: rank 1" in err
    assert "SIGKILL" in err
    assert gone(launcher)


def test_killed_guardian(launcher: Launcher) -> None:
    """Without its guardian the launcher still cleans up."""
    process = start_family(launcher)
    os.kill(guardian_pid(launcher), signal.SIGKILL)
    os.kill(rank_pid(launcher, 0), signal.SIGKILL)
    process.communicate(timeout=60)
    assert process.returncode == 137
    assert gone(launcher)


def test_killed_family(launcher: Launcher) -> None:
    """SIGKILL of the launcher and all its descendants at once leaves nothing: the guardian is not one."""
    process = start_family(launcher)
    for pid in with_descendants([process.pid], process_table()):
        os.kill(pid, signal.SIGKILL)
    wait_for(lambda: gone(launcher), "the guardian's work")


BROKEN = """
from singularity_core.launcher import run, supervisor
def fail(self): raise RuntimeError("the launcher has a fault")
supervisor.Supervisor._sweep = fail
run.main()
"""


def test_launcher_that_cannot_clean_up(launcher: Launcher) -> None:
    """A launcher that fails while it cleans up leaves that to the guardian, and waits for it."""
    launcher.program = [sys.executable, "-P", "-c", BROKEN]
    process = start_family(launcher)
    process.terminate()
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "the launcher has a fault" in err
    assert gone(launcher)


def test_killing_looks_twice() -> None:
    """What appears after a look that found nothing is killed, too; what does not go is told."""
    with subprocess.Popen(["sleep", "1000"]) as late:
        looks = iter([set[int](), {late.pid}, set[int](), set[int]()])
        assert kill_until_quiet(lambda: next(looks), 60.0) == set()
        assert late.wait(timeout=60) == -signal.SIGKILL
        assert next(looks, None) is None
    nobody = 0x7FFFFFFF  # no pid is as high
    assert kill_until_quiet(lambda: {nobody}, 0.0) == {nobody}


def test_killed_with_guardian_is_swept_by_the_next_job(launcher: Launcher) -> None:
    """When launcher and guardian are killed together, the ranks die with them and the next start removes the
    rest."""
    process = start_family(launcher)
    job = next(iter(launcher.jobs()))
    for pid in (guardian_pid(launcher), process.pid):
        os.kill(pid, signal.SIGKILL)
    process.wait(timeout=60)
    done = launcher.run("--no-python", "true")
    assert done.returncode == 0
    assert job.name in done.stderr
    assert gone(launcher)


def test_orphans_of_a_successful_job(launcher: Launcher) -> None:
    """A job that succeeds leaves no daemon behind either."""
    script = FAMILY.replace("{orphan}", ORPHAN).replace("time.sleep(1000)", "")
    done = launcher.run(launcher.script(script), "up-")
    assert done.returncode == 0, done.stderr
    assert gone(launcher)


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)],
)
def test_signals_to_the_launcher(launcher: Launcher, number: int, code: int) -> None:
    """A signal ends the job, and the exit code is 128 + n."""
    process = start_family(launcher)
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode == code
    assert gone(launcher)


POLITE = """
import os, pathlib, signal, sys, time
def stop(*_):
    pathlib.Path("polite").write_text(str(os.getpid()))
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
pathlib.Path("ready").touch()
time.sleep(1000)
"""


def test_first_sigterm_is_polite(launcher: Launcher) -> None:
    """SIGTERM reaches the ranks as SIGTERM, so that they can put things in order."""
    process = launcher.start(launcher.script(POLITE))
    wait_for(lambda: (launcher.folder / "ready").exists(), "the rank")
    process.terminate()
    process.communicate(timeout=60)
    assert process.returncode == 143
    assert (launcher.folder / "polite").exists()


STUBBORN = """
import os, pathlib, signal, time
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, lambda *_: pathlib.Path("asked").touch())
pathlib.Path("ready").touch()
while True:
    time.sleep(1000)
"""


def test_second_sigterm_aborts(launcher: Launcher) -> None:
    """A second SIGTERM kills ranks that are still putting things in order."""
    process = launcher.start("--grace-seconds", "1000", launcher.script(STUBBORN))
    wait_for(lambda: (launcher.folder / "ready").exists(), "the rank")
    process.terminate()
    wait_for(lambda: (launcher.folder / "asked").exists(), "the first signal")
    process.terminate()
    process.communicate(timeout=60)
    assert process.returncode == 143
    assert gone(launcher)


def test_two_jobs_only_one_killed(launcher: Launcher) -> None:
    """Killing one launcher does not touch another job."""
    script = launcher.script(
        "import pathlib, sys, time\npathlib.Path('up-' + sys.argv[1]).touch()\n"
        "while not pathlib.Path('go').exists(): time.sleep(0.01)\n"
    )
    first = launcher.start(script, "first")
    second = launcher.start(script, "second")
    for name in ("up-first", "up-second"):
        wait_for(lambda name=name: (launcher.folder / name).exists(), name)  # type: ignore[misc]
    assert len(launcher.jobs()) == 2
    first.kill()
    wait_for(lambda: len(launcher.jobs()) == 1, "the first job's end")
    (launcher.folder / "go").touch()
    second.communicate(timeout=60)
    assert second.returncode == 0
    assert gone(launcher)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root for job directories that no real job uses."""
    return tmp_path / "jobs"


def test_sweep_keeps_owned_directories(root: Path) -> None:
    """Only directories whose lock can be taken are stale."""
    owned = create_job_directory(root)
    stale = root / "stale"
    stale.mkdir()
    (stale / OWNER_FILE).touch()
    (stale / "ordinal-0").mkdir()
    assert stale_jobs(root) == [stale]
    assert sweep_stale_jobs(root) == ["stale"]
    assert owned.path.exists()
    assert not stale.exists()
    owned.remove()
    assert not root.exists()
    os.close(owned.lock_descriptor)


def test_job_directory_is_private(root: Path) -> None:
    """Directory and parent are accessible to their owner only, and the owner file is locked."""
    directory = create_job_directory(root)
    assert root.stat().st_mode & 0o777 == 0o700
    assert directory.path.stat().st_mode & 0o777 == 0o700
    with (directory.path / OWNER_FILE).open("r+") as again, pytest.raises(BlockingIOError):
        fcntl.flock(again, fcntl.LOCK_EX | fcntl.LOCK_NB)
    directory.remove()
    os.close(directory.lock_descriptor)


@pytest.mark.parametrize("spoil", [lambda p: p.mkdir(mode=0o755), lambda p: p.symlink_to("/tmp")])
def test_foreign_root_is_refused(root: Path, spoil: Callable[[Path], None]) -> None:
    """A root that others could enter, or that is a symbolic link, is refused by name."""
    spoil(root)
    with pytest.raises(Exception, match="jobs"):
        create_job_directory(root)
