"""Launchers that tests start: each ends with its test at the latest, and must leave nothing behind."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

from singularity_core.launcher.job_directory import OWNER_FILE, jobs_root

MARK = "SINGULARITY_TEST_MARK"
"""Marks every process of a test: unlike the job's own variable, the launcher and guardian have it too."""
SECONDS = 60.0
"""What ends takes no longer to do so."""


def processes_with(variable: str, value: str) -> dict[int, str]:
    """Running processes (no zombies) whose initial environment has `variable`, by pid, with their command."""
    marker = f"{variable}={value}".encode()
    found = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            if marker in (folder / "environ").read_bytes().split(b"\0"):
                found[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
    return found


class Launched:
    """The launchers of one test.  Who starts one gives it `MARK` with `mark`, and adds it to `started`."""

    def __init__(self, mark: str) -> None:
        self.mark = mark
        self.started: list[subprocess.Popen[str]] = []

    def jobs(self) -> set[Path]:
        """Directories of the jobs that this test started; other jobs of this user are no business of its."""
        pids = {str(process.pid) for process in self.started}
        try:
            return {path for path in jobs_root().iterdir() if _owner(path) in pids}
        except FileNotFoundError:
            return set()

    def leftovers(self) -> list[str]:
        """Processes and job directories that should not be there any more."""
        mine = [f"{pid} {command}" for pid, command in processes_with(MARK, self.mark).items()]
        return mine + [str(path) for path in self.jobs()]

    def end(self) -> list[str]:
        """Ends what still runs, as `kill -9` of the launchers would; returns, and ends, what that leaves."""
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.wait()
            for stream in (process.stdout, process.stderr):
                if stream is not None:
                    stream.close()
        deadline = time.monotonic() + SECONDS
        while (left := self.leftovers()) and time.monotonic() < deadline:
            time.sleep(0.02)
        for pid in processes_with(MARK, self.mark):
            os.kill(pid, 9)
        self.started.clear()
        return left


def _owner(job: Path) -> str:
    try:
        return (job / OWNER_FILE).read_text().strip()
    except OSError:  # it comes or goes at this moment
        return ""
