"""A job in a box, and what is done with it in all scenarios of `host_scenarios.py`."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from singularity_core.checkpoint import Store
from singularity_core.checkpoint.criu import choose_command
from singularity_core.checkpoint.criu_trial import _raise_loopback
from singularity_core.checkpoint.host.cgroup import FreezerUnavailableError, cgroup_of
from singularity_core.checkpoint.host.hold import Hold
from singularity_core.checkpoint.host.ingest import ingest
from singularity_core.checkpoint.host.process_tree import all_processes, tree_of
from singularity_core.checkpoint.host.restore import restore

HERE = Path(__file__).parent
MEMORY = Path("/dev/shm")
PATIENCE_SECONDS = 60.0
CRIU = choose_command(os.environ)


def until(condition: Callable[[], bool], what: str) -> None:
    """Waits for something that must come."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"in vain: {what}")
        time.sleep(0.01)


class Job:
    """One that runs."""

    def __init__(
        self, place: Path, extent: str = "all", output: int | None = None, enter: tuple[str, ...] = ()
    ) -> None:
        self.log = place / "log"
        # In a box it must not know files that were opened outside.
        within = (*enter, "setsid", "sh", "-c", 'exec < /dev/null >> "$0" 2>&1; exec "$@"', f"{place}/output")
        with (place / "output").open("a") as file:  # CRIU wants other files at their size
            started = subprocess.Popen(
                [
                    *(within if enter else ()),
                    sys.executable,
                    "-I",
                    str(HERE / "host_job.py"),
                    str(self.log),
                    str(place),
                    extent,
                ],
                stdin=subprocess.DEVNULL,
                stdout=file if output is None else output,
                stderr=file if output is None else output,
                cwd="/",
                start_new_session=True,
            )
        self.pid = started.pid
        self.cgroup: Path | None = None
        with contextlib.suppress(FreezerUnavailableError):
            self.cgroup = cgroup_of(self.pid)
            if not os.access(self.cgroup, os.W_OK):
                self.cgroup = None
        self.modes = (True, False) if self.cgroup else (False,)
        """With a cgroup to freeze it in, where there is one, and without."""
        self.must_go_on()
        if enter:  # what was started waits for what it put in there
            self.pid = next(it.pid for it in all_processes().values() if it.parent == started.pid)

    def rounds(self) -> list[str]:
        """Lines of the log; of these the last may be cut."""
        return self.log.read_text().splitlines() if self.log.exists() else []

    def must_go_on(self) -> None:
        """It comes some rounds further, nothing was ever wrong, none was left out or played twice."""
        before = len(self.rounds())
        until(
            lambda: len(self.rounds()) >= before + 3 or "Traceback (most recent call last):" in self.rounds(),
            f"more rounds than {before}: {(self.log.parent / 'output').read_text()}",
        )
        rounds = self.rounds()[:-1]
        assert rounds == [str(number + 1) for number in range(len(rounds))], rounds[-20:]

    def must_be_free(self) -> None:
        """It goes on, and nothing is left of any hold."""
        self.must_go_on()
        assert leftovers() == [], leftovers()
        if self.cgroup is not None:
            assert cgroup_of(self.pid) == self.cgroup
            assert [it.name for it in self.cgroup.iterdir() if "hold" in it.name and mine(it)] == []

    def must_be_gone(self) -> None:
        """None of its processes is left."""
        with contextlib.suppress(ChildProcessError):  # also those that lost their parents
            while os.waitpid(-1, 0):
                pass
        others = [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if pid != os.getpid()]
        assert not others, others


def mine(hold: Path) -> bool:
    """Whether a hold was made in this box: others are the affair of other tests."""
    return hold.name.split("-")[2] == str(os.stat("/proc/self/ns/pid").st_ino)


def leftovers() -> list[str]:
    """Directories of images."""
    return [name for name in os.listdir(MEMORY) if name.startswith("singularity-hold")]


def save(store: Store, held: Hold) -> tuple[str, int]:
    """Puts a dump into the store; the checkpoint, and how many pages were new."""
    with store.write("job") as writer:
        report = ingest(writer, held.images)
        return writer.commit().checkpoint, report.packing.new_pages


def bring_back(store: Store, checkpoint: str, job: Job) -> None:
    """Restores a job that is gone."""
    with store.read(checkpoint) as reader:
        assert restore(reader, place=MEMORY, criu=CRIU).pid == job.pid


def script(place: Path, lines: str) -> Path:
    """A command in CRIU's place."""
    path = place / "criu"
    path.write_text(f"#!/bin/sh\nCRIU={CRIU}\n{lines}\n")
    path.chmod(0o700)
    return path


class Box:
    """Namespaces with a first process, which keeps them; all in there ends with it."""

    def __init__(self, *, last_pid: int = 1) -> None:
        """`last_pid`: CRIU has a pid in there, too, so the job wants others than a new box begins with."""
        self._first = subprocess.Popen(
            ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--net", "--ipc", "--uts",
             "sh", "-c", f"echo {last_pid} > /proc/sys/kernel/ns_last_pid; echo; exec sleep 1000000"],
            stdout=subprocess.PIPE,
            start_new_session=True,
        )  # fmt: skip
        assert self._first.stdout is not None
        with self._first.stdout as stream:
            stream.read(1)  # until it is there
        found = [it.pid for it in all_processes().values() if it.parent == self._first.pid]
        self.enter = ("nsenter", "--all", "--target", str(found[0]))
        raise_loopback = f"import sys; sys.path = {sys.path}; import {_raise_loopback.__module__} as it"
        command = [*self.enter, sys.executable, "-c", f"{raise_loopback}; it._raise_loopback()"]
        subprocess.run(command, check=True)

    def pid_outside(self, pid: int) -> int:
        """What its process `pid` is called out here."""
        first = int(self.enter[-1])
        for status in tree_of(first):
            words = (Path("/proc") / str(status.pid) / "status").read_text().partition("NSpid:")[2].split()
            if words[1] == str(pid):
                return status.pid
        raise AssertionError(f"no process {pid} in there")

    def end(self) -> None:
        """With all that is in it."""
        self._first.kill()
        self._first.wait()
