"""A job that is checkpointed, ends, and goes on from the checkpoint in another launcher, on other devices,
ends as if it had never been interrupted."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from singularity_core.checkpoint.files import read_file_list
from singularity_core.checkpoint.store import Store

from ..launched import MARK
from .endless_job import CONTROL, Job, agree
from .jobs import JOBS, finish, start_job

PREEMPTED = 85
KILLING = [sys.executable, "-P", str(Path(__file__).parent / "killing_resume.py")]


pytestmark = pytest.mark.usefixtures("movable")


def control(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(CONTROL), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)


class RestoredJob(Job):
    """The endless job in a box, through several launchers."""

    def __init__(self, folder: Path, ranks: int, devices: int, *options: str, store: Path, name: str) -> None:
        super().__init__(folder, ranks, devices, "--box", *options, name=name)
        self.store = store

    def checkpoint(self) -> None:
        done = control("checkpoint", "--to", str(self.store), self.name)
        assert done.returncode == 0, done.stderr + done.stdout

    def preempt(self) -> None:
        """To the end of its launcher."""
        done = control("preempt", "--to", str(self.store), self.name)
        assert done.returncode == 0, done.stderr + done.stdout
        code, stdout, stderr = finish(self.process)
        assert code == PREEMPTED, f"{stdout[-1000:]}{stderr[-3000:]}"
        assert JOBS.leftovers() == []

    def kill(self) -> None:
        """As a machine that is lost would do it."""
        self.process.kill()
        assert JOBS.end() == []

    def start_again(self, *options: str, env: dict[str, str] | None = None) -> None:
        self.process = start_resume(self.store, *options, env=env)

    def resume(self, *options: str) -> None:
        """Waits until it runs."""
        before = self.steps()
        self.start_again(*options)
        self.until(min(before) + 2)


def start_resume(
    store: Path | str,
    *options: str,
    env: dict[str, str] | None = None,
    launcher: Sequence[str] = (str(CONTROL),),
) -> subprocess.Popen[str]:
    environment = {"SINGULARITY_FAKE_MEMORY": "256M", "SINGULARITY_FAKE_DEVICES": "2", **(env or {})}
    process = subprocess.Popen(
        [*launcher, "resume", str(store), *options],
        env={**os.environ, **environment, MARK: JOBS.mark},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    JOBS.started.append(process)
    return process


def test_three_generations_on_other_devices_change_nothing(tmp_path: Path) -> None:
    """Two ranks on two devices are preempted, go on on one, are preempted there, and go on on two: they
    compute the bytes of a job that nobody disturbed."""
    quiet = Job(tmp_path / "quiet", 2, 2, name=f"quiet-{tmp_path.name}")
    quiet.until(16)
    quiet_results = quiet.stop()
    job = RestoredJob(tmp_path / "job", 2, 2, store=tmp_path / "store", name=tmp_path.name)
    job.until(5)
    for devices in (1, 2):
        job.preempt()
        job.resume("--devices", str(devices))
        job.until(max(job.steps()) + 3)
    agree(job.stop(), quiet_results)


# ---- ends badly --------------------------------------------------------------------------------------------
@pytest.fixture
def preempted(tmp_path: Path) -> RestoredJob:
    """One of two ranks on two devices, of which only a checkpoint is left, and files that changed since."""
    job = RestoredJob(tmp_path / "job", 2, 2, store=tmp_path / "store", name=tmp_path.name)
    job.until(5)
    job.preempt()
    (job.folder / "steps.0").write_bytes(b"later...")
    return job


def files_in(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def goes_on(job: RestoredJob) -> None:
    """The checkpoint is as good as before."""
    quiet = Job(job.folder.parent / "quiet", 2, 2, name=f"quiet-{job.name}")
    quiet.until(16)
    quiet_results = quiet.stop()
    job.start_again()
    deadline = time.monotonic() + 60
    while job.steps()[0] > 1 << 32:  # the later one is still there
        assert job.process.poll() is None, finish(job.process)
        assert time.monotonic() < deadline
        time.sleep(0.01)
    job.until(max(job.steps()) + 3)
    agree(job.stop(), quiet_results)


def fails(job: RestoredJob, plan: str, state: Path) -> tuple[int, str]:
    """A resume that ends badly leaves nothing, and the files as they were; its exit code, what it said."""
    before = files_in(job.folder)
    environment = {"KILL": plan, "XDG_STATE_HOME": str(state)}
    process = start_resume(job.store, env=environment, launcher=KILLING)
    code, _, stderr = finish(process)
    assert JOBS.end() == [], plan
    assert files_in(job.folder) == before, plan
    assert list((state / "singularity" / "restores").iterdir()) == [], plan
    return code, stderr


FULL = "No space left on device"
REFUSED = "was killed by signal 9 (SIGKILL)"
BADLY = [
    ("sessions:disk", 1, FULL),
    ("sessions:signal", 143, "got SIGTERM"),
    ("memory:launcher", -9, ""),
    ("box:box", 137, "root cause: the job's box"),
    ("proxies:proxy", 1, REFUSED),
    ("files:disk", 1, FULL),
    ("files:launcher", -9, ""),
    ("criu:launcher", -9, ""),
    ("criu:signal", 143, "got SIGTERM"),
    ("criu:proxy", 1, REFUSED),
    ("processes:launcher", -9, ""),
    ("adopted:disk", 1, FULL),
    ("told:signal", 143, "got SIGTERM"),
    ("carried:proxy", 1, REFUSED),
    ("commit:disk", 1, FULL),
]


@pytest.mark.timeout(600)
def test_a_resume_that_ends_badly_at_any_step_leaves_nothing(preempted: RestoredJob, tmp_path: Path) -> None:
    """A full disk, a signal, or the end of the launcher, of a proxy or of the box: the resume ends with that
    cause; no process and no file is left of it, and the files of the job are as they were before it.  The
    next resume works."""
    for plan, wanted, why in BADLY:
        code, said = fails(preempted, plan, tmp_path / "state")
        assert code == wanted, f"{plan}: {said}"
        assert why in said, plan
    goes_on(preempted)


# ---- what cannot be ----------------------------------------------------------------------------------------
def refused(job: RestoredJob, *options: str, env: dict[str, str] | None = None) -> str:
    """What a resume says that is refused before it has touched anything; --dry-run says the same."""
    before = files_in(job.folder)
    said = []
    for more in ([], ["--dry-run"]):
        code, stdout, stderr = finish(start_resume(job.store, *options, *more, env=env))
        assert code == 1, stderr + stdout
        assert JOBS.end() == []
        assert files_in(job.folder) == before
        said.append(stderr)
    return "\n".join(said)


def test_what_does_not_fit_is_refused_by_name(preempted: RestoredJob, tmp_path: Path) -> None:
    """More devices than the job can have, devices with less memory, a backend or a file that is not there,
    another checkpoint or job than there are: each is refused with its name, and nothing is touched.  Then the
    job goes on."""
    missing = tmp_path / "not-there"
    assert "this job can have 1 to 2" in refused(preempted, "--devices", "3")
    small = refused(preempted, env={"SINGULARITY_FAKE_MEMORY": "128M"})
    assert small.count("Device 0 has 134217728 bytes of memory; each rank of the job sees") == 2
    assert f"names {missing}, which is no command" in refused(
        preempted, env={"SINGULARITY_CRIU": str(missing)}
    )
    assert "there is no checkpoint of job other" in refused(preempted, "--job", "other")
    assert "20200101T000000-0123456789abcdef" in refused(preempted, "20200101T000000-0123456789abcdef")
    (tmp_path / "empty").mkdir()
    assert (
        f"{tmp_path / 'empty'}: there is no checkpoint" in control("resume", str(tmp_path / "empty")).stderr
    )
    assert f"{missing}: there is no store, and no job" in control("resume", str(missing)).stderr
    goes_on(preempted)


def test_a_file_in_use_that_is_not_there_is_refused_by_name(tmp_path: Path) -> None:
    """A program that the job has open, and that does not travel with it, must be as it was."""
    job = RestoredJob(tmp_path / "job", 2, 2, store=tmp_path / "store", name=tmp_path.name)
    job.until(3)
    job.preempt()
    with Store.open(job.store).read(Store.open(job.store).checkpoints()[0].checkpoint) as reader:
        used = [os.fsdecode(each.path) for each in read_file_list(reader).needed]
    (nccl,) = [path for path in used if path.endswith("libnccl.so.2")]
    hidden = Path(nccl).with_suffix(".hidden")
    os.rename(nccl, hidden)
    try:
        said = refused(job)
    finally:
        os.rename(hidden, nccl)
    assert said.count(nccl) == 2
    goes_on(job)


def test_a_damaged_checkpoint_is_refused_by_name(preempted: RestoredJob) -> None:
    """Whichever chunk of the store is gone: the resume names it, and leaves nothing.  The one before it is
    still good."""
    (checkpoint,) = Store.open(preempted.store).checkpoints()
    objects = {each.name: each for each in checkpoint.objects if each.chunks}
    names = ["job", "sessions/data", "host/packs", "files/list"]
    names += [next(name for name in objects if name.startswith("device/"))]
    for name in names:
        chunk = preempted.store / objects[name].chunks[0].key
        hidden = chunk.with_suffix(".hidden")
        before = files_in(preempted.folder)
        chunk.rename(hidden)
        code, _, stderr = finish(start_resume(preempted.store))
        hidden.rename(chunk)
        assert code == 1, name
        assert f"object '{name}', chunk 0" in stderr, name
        assert "it is missing" in stderr, name
        assert JOBS.end() == [], name
        assert files_in(preempted.folder) == before, name
    goes_on(preempted)


def test_a_job_that_runs_is_not_resumed_beside_itself(tmp_path: Path) -> None:
    """While it runs, first as itself and then from its checkpoint, a second one is refused by name.  After a
    kill -9 of the launcher the resume waits until all of it has ended."""
    job = RestoredJob(tmp_path / "job", 2, 2, store=tmp_path / "store", name=tmp_path.name)
    job.until(3)
    job.checkpoint()
    for process in ("fresh", "resumed"):
        code, _, stderr = finish(start_resume(job.store))
        assert code == 1, process
        assert "The job is here already" in stderr, process
        assert f"its launcher is process {job.process.pid}" in stderr, process
        job.until(max(job.steps()) + 2)
        job.process.kill()
        job.process.wait()
        job.start_again()
        job.until(max(job.steps()) + 2)
    job.stop()


WALKER = """
import os, time
from pathlib import Path
log, number = open(Path.cwd() / "log", "a", buffering=1), 0
while not Path("stop").exists():
    number += 1
    log.write(f"{number}\\n")
    Path("own").write_text(os.getcwd())
    time.sleep(0.01)
print("ends in", os.getcwd(), flush=True)
"""


def lines_of(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def until_longer(path: Path, lines: int) -> None:
    deadline = time.monotonic() + 60
    while len(lines_of(path)) <= lines:
        assert time.monotonic() < deadline, path
        time.sleep(0.01)


def test_a_job_goes_on_in_another_work_directory(tmp_path: Path) -> None:
    """It finds that under the old name, and writes nothing to the old one any more; a second time, by its id
    instead of its store, too."""
    places = [tmp_path / name for name in ("first", "second", "third")]
    for place in places:
        place.mkdir()
    script, store = places[0] / "walker.py", tmp_path / "store"
    script.write_text(WALKER)
    name = tmp_path.name
    process = start_job(script, ranks=1, devices=1, options=["--box", f"--rdzv-id={name}"])
    for old, new in itertools.pairwise(places):
        until_longer(old / "log", len(lines_of(old / "log")) + 5)
        done = control("preempt", "--to", str(store), name)
        assert done.returncode == 0, done.stderr
        assert finish(process)[0] == PREEMPTED
        before = lines_of(old / "log")
        process = start_resume(name if new is places[2] else store, "--work-directory", str(new))
        until_longer(new / "log", len(before) + 5)
        assert lines_of(old / "log") == before
        assert lines_of(new / "log")[: len(before)] == before
    (places[2] / "stop").touch()
    code, stdout, stderr = finish(process)
    assert (code, stdout) == (0, f"ends in {places[0]}\n"), stderr
    lines = lines_of(places[2] / "log")
    assert lines == [str(number + 1) for number in range(len(lines))]
