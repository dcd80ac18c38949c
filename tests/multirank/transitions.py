"""Takes a job through a chain of transitions: checkpoints, preemptions with resumes on other numbers of
devices, resizes, and kills of one process after which it resumes by itself.

What happens when is drawn beforehand, by the number of the step at which it begins; a job's steps begin when
they may (programs/gate.py), so neither a chain nor the number of steps depends on how fast anything is.  The
exact moment within a step does, and is meant to."""

from __future__ import annotations

import contextlib
import enum
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..launched import MARK, processes_with
from .jobs import JOBS, start_job, start_launcher

CONTROL = Path(sys.executable).parent / "singularity-ctl"
PREEMPTED = 85
PATIENCE = 120.0
OURS = ("gate", "stdout", "stderr", "state")
"""In a job's folder: what the test made."""
MOVING_SECONDS = 0.02
"""Between two steps of a job that is on its way."""
NOTICED = 10
"""So many steps after one of its processes was killed a job has noticed, or will not."""


class Kind(enum.Enum):
    """What is done to a job."""

    CHECKPOINT = "checkpoint"
    """It goes on."""
    PAUSED = "checkpoint while paused"
    """Twice in one pause; then it goes on."""
    PREEMPT = "preempt"
    """It ends, and is resumed in another box."""
    NOTICE = "notice"
    """The same, when its launcher gets a SIGTERM."""
    RESIZE = "resize"
    KILL = "kill"
    """One of its processes, some time after a checkpoint."""


@dataclass(frozen=True)
class Transition:
    """One in a chain."""

    kind: Kind
    step: int
    """It begins when all ranks have begun this step ..."""
    more: int
    """... and so many more may begin while it happens."""
    devices: int
    """That the job has afterwards."""


def plan(seed: int, kinds: Sequence[Kind], sizes: Sequence[int], moving: int = 2) -> list[Transition]:
    """When each of `kinds` happens; `sizes`: the numbers of devices that the job can have, the first of which
    it begins with; `moving`: so many steps at most may begin while it happens.  Pure."""
    draw = random.Random(seed)
    step, devices, chain = 2, sizes[0], []
    for kind in kinds:
        if kind in (Kind.PREEMPT, Kind.NOTICE, Kind.RESIZE) and len(sizes) > 1:
            devices = draw.choice([size for size in sizes if size != devices])
        step += draw.randint(1, 3)
        more = draw.randint(0, moving)
        chain.append(Transition(kind, step, more, devices))
        step += 2 + more + (NOTICED if kind is Kind.KILL else 0)
    return chain


@dataclass(frozen=True)
class Program:
    """What the ranks of a job run, in steps that begin when they may."""

    script: Path
    ranks: int
    sizes: tuple[int, ...]
    """Numbers of devices; it begins with the first."""
    arguments: Callable[[Path, int], list[str]]
    """By the folder for all that it writes, and the number of steps."""
    results: Callable[[Path], dict[str, bytes]]
    """What must not depend on transitions, by name."""
    options: tuple[str, ...] = ()
    """Of singularity-run; {folder} in them is that folder."""
    moving: int = 2
    """So many steps at most begin while something is done to it."""
    environment: dict[str, str] = field(default_factory=dict)


class Job:
    """One that runs."""

    def __init__(
        self, program: Program, folder: Path, steps: int, *options: str, work_directory: Path | None = None
    ) -> None:
        """Begins it; no step may begin yet."""
        folder.mkdir()
        self.program, self.folder, self.name = program, folder, f"{folder.name}-{os.getpid()}"
        self.history: list[str] = []
        self._out, self._err = folder / "stdout", folder / "stderr"
        (folder / "gate").touch()
        own = [option.format(folder=folder) for option in program.options]
        self._environment = {
            "PYTHONDONTWRITEBYTECODE": "1",
            "SINGULARITY_FAKE_DEVICES": str(max(program.sizes)),
            "SINGULARITY_FAKE_MEMORY": "256M",
            "XDG_STATE_HOME": str(folder / "state"),
            **program.environment,
        }
        self.process = start_job(
            program.script,
            *program.arguments(folder, steps),
            ranks=program.ranks,
            devices=program.sizes[0],
            options=["--box", f"--rdzv-id={self.name}", *own, *options],
            env=self._environment,
            said=(self._out, self._err),
            work_directory=work_directory,
        )

    def allow(self, step: int) -> None:
        """Steps up to this one may begin."""
        os.truncate(self.folder / "gate", max(step, (self.folder / "gate").stat().st_size))

    @contextlib.contextmanager
    def moving(self, last: int) -> Iterator[None]:
        """Steps up to `last` begin one after the other meanwhile, so that it is on its way."""
        done = threading.Event()

        def let() -> None:
            for step in range(self.step() + 1, last + 1):
                if done.wait(MOVING_SECONDS):
                    return
                self.allow(step)

        thread = threading.Thread(target=let)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def lose_files(self) -> None:
        """It has ended; all that it made is gone, as on another machine."""
        for path in self.folder.iterdir():
            if path.name in OURS:
                continue
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    def step(self) -> int:
        """Which all ranks have begun."""
        seen = [self.folder / f"seen.{rank}" for rank in range(self.program.ranks)]
        return min(path.stat().st_size if path.exists() else 0 for path in seen)

    def said(self) -> str:
        """What launchers and ranks wrote to standard error."""
        return self._err.read_text(errors="replace")

    def wait(self, what: Callable[[], bool], why: str) -> None:
        """Until it is so; the job must not end."""
        deadline = time.monotonic() + PATIENCE
        while not what():
            assert self.process.poll() is None, self.complaint(f"ended with {self.process.poll()}")
            assert time.monotonic() < deadline, self.complaint(f"waited in vain for {why}")
            time.sleep(0.005)

    def until(self, step: int) -> None:
        """Until all ranks have begun it."""
        self.wait(lambda: self.step() >= step, f"step {step}, it is at {self.step()}")

    def complaint(self, what: str) -> str:
        """All that is known about it."""
        out = self._out.read_text(errors="replace")[-1500:]
        past = "\n".join(self.history)
        return f"{self.name}: {what}\n{past}\n--- stdout\n{out}\n--- stderr\n{self.said()[-5000:]}"

    def control(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """singularity-ctl, whatever becomes of it."""
        command = [str(CONTROL), *arguments]
        environment = {**os.environ, **self._environment}
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False
        )

    def must(self, *arguments: str) -> None:
        """singularity-ctl, which must succeed."""
        done = self.control(*arguments)
        assert done.returncode == 0, self.complaint(f"{arguments}: {done.stdout}{done.stderr}")

    def resume(self, store: Path, *options: str) -> None:
        """Its launcher is gone; goes on from the newest checkpoint."""
        command = [str(CONTROL), "resume", str(store), *options]
        self.process = start_launcher(command, self.folder, self._environment, (self._out, self._err))

    def end(self) -> dict[str, bytes]:
        """All steps may begin: its results when it has succeeded."""
        self.succeed()
        return self.program.results(self.folder)

    def succeed(self) -> None:
        """All steps may begin: it must come to its end."""
        self.allow(1 << 20)
        try:
            code = self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            raise AssertionError(self.complaint(f"does not end, at step {self.step()}")) from None
        assert code == 0, self.complaint(f"ended with {code}")


class Chain:
    """Takes one job through its transitions."""

    def __init__(self, job: Job, store: Path, seed: int, resuming: Sequence[str]) -> None:
        """`resuming`: options for the launcher that goes on with it."""
        self._job, self._store, self._resuming = job, store, resuming
        self._draw = random.Random(~seed)

    def run(self, chain: Sequence[Transition]) -> None:
        """All of them."""
        do = {
            Kind.CHECKPOINT: self._checkpoint,
            Kind.PAUSED: self._paused,
            Kind.PREEMPT: self._preempt,
            Kind.NOTICE: self._notice,
            Kind.RESIZE: self._resize,
            Kind.KILL: self._kill,
        }
        job = self._job
        for number, transition in enumerate(chain, 1):
            job.allow(transition.step)
            job.until(transition.step)
            began = time.monotonic()
            what = f"{number}: {transition.kind.value} at step {job.step()}, {transition.devices} devices"
            job.history.append(what)
            with job.moving(transition.step + transition.more):
                do[transition.kind](transition)
            job.history[-1] += f", {time.monotonic() - began:.1f} s"

    def _checkpoint(self, _: Transition) -> None:
        self._job.must("checkpoint", self._job.name, "--to", str(self._store), "--keep", "3")

    def _paused(self, transition: Transition) -> None:
        job = self._job
        job.must("pause", job.name)
        self._checkpoint(transition)
        self._checkpoint(transition)
        status = job.control("status", job.name).stdout
        assert "paused" in status, job.complaint(status)
        job.must("continue", job.name)

    def _resize(self, transition: Transition) -> None:
        self._job.must("resize", self._job.name, str(transition.devices))

    def _preempt(self, transition: Transition) -> None:
        self._job.must("preempt", self._job.name, "--to", str(self._store))
        self._resume_preempted(transition)

    def _notice(self, transition: Transition) -> None:
        self._job.process.send_signal(signal.SIGTERM)
        self._resume_preempted(transition)

    def _resume_preempted(self, transition: Transition) -> None:
        job = self._job
        code = job.process.wait(PATIENCE)
        assert code == PREEMPTED, job.complaint(f"ended with {code}")
        assert JOBS.leftovers() == [], job.complaint("left something")
        self._go_on(transition)

    def _go_on(self, transition: Transition) -> None:
        if self._draw.random() < 0.5:
            self._job.lose_files()
            self._job.history[-1] += ", files lost"
        self._job.resume(self._store, "--devices", str(transition.devices), *self._resuming)
        self._running()

    def _running(self) -> None:
        """Until it can be asked for the next transition."""
        job = self._job
        job.wait(lambda: job.control("status", job.name).returncode == 0, "its agent")
        job.wait(lambda: "running" in job.control("status", job.name).stdout, "its ranks")

    def _kill(self, transition: Transition) -> None:
        job = self._job
        self._checkpoint(transition)
        step = job.step() + 1
        job.allow(step)
        job.until(step)
        resumes = job.said().count(RESUMING)
        victim, command = self._victim()
        job.history[-1] += f", of {victim} {command}"
        if victim == job.process.pid:
            job.process.kill()
            job.process.wait()
            self._go_on(transition)
            return
        os.kill(victim, signal.SIGKILL)
        job.allow(step + NOTICED)
        job.wait(
            lambda: job.said().count(RESUMING) > resumes or job.step() >= step + NOTICED,
            "a resume after the kill",
        )
        self._running()

    def _victim(self) -> tuple[int, str]:
        found = sorted(processes_with(MARK, JOBS.mark).items())
        return self._draw.choice(found)


RESUMING = "resuming the job from checkpoint"


def transitions_change_nothing(program: Program, folder: Path, kinds: Sequence[Kind], seed: int) -> list[str]:
    """The results of a job that goes through all of these are those of an undisturbed one.  Returns what
    happened."""
    chain = plan(seed, kinds, program.sizes, program.moving)
    last = chain[-1].step + chain[-1].more + 4 + NOTICED
    quiet = Job(program, folder / f"quiet-{folder.name}", last)
    wanted = quiet.end()
    assert wanted
    store = folder / "store"
    by_itself = ["--checkpoint-to", str(store), "--auto-resume"] if needs_store(kinds) else []
    job = Job(program, folder / f"moved-{folder.name}", last, *by_itself)
    Chain(job, store, seed, by_itself).run(chain)
    found = job.end()
    assert sorted(found) == sorted(wanted), job.complaint("other results")
    for name in wanted:
        assert found[name] == wanted[name], job.complaint(f"{name} is not as it was undisturbed")
    return job.history


def needs_store(kinds: Sequence[Kind]) -> bool:
    """Whether the job must know where its checkpoints are."""
    return Kind.KILL in kinds or Kind.NOTICE in kinds
