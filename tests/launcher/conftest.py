"""Starts the real launcher, and looks for what it leaves behind."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import pytest

from singularity_core.launcher import report
from singularity_core.launcher.processes import JOB_VARIABLE

from ..launched import MARK, SECONDS, Launched, processes_with

HERE = Path(__file__).parent


def wait_for(what: Callable[[], object], why: str) -> None:
    """Waits until `what` is true; fails the test after a minute."""
    deadline = time.monotonic() + SECONDS
    while not what():
        assert time.monotonic() < deadline, f"waited in vain for {why}"
        time.sleep(0.01)


def on_a_terminal(*command: str, **environment: str) -> bytes:
    """What a program writes to a terminal that is its standard output; it must exit with 0."""
    ours, theirs = pty.openpty()
    variables = {**os.environ, "NO_COLOR": "1", "TERM": "xterm", **environment}
    with subprocess.Popen(command, stdout=theirs, stderr=subprocess.DEVNULL, env=variables) as process:
        os.close(theirs)
        shown = b""
        try:
            while part := os.read(ours, 4096):
                shown += part
        except OSError:  # how a pty says that nobody writes any more
            pass
        os.close(ours)
        assert process.wait(timeout=SECONDS) == 0
    return shown


class Launcher(Launched):
    """Runs singularity-run for one test."""

    def __init__(self, folder: Path) -> None:
        super().__init__(str(folder))
        self.folder = folder
        self.program = [sys.executable, "-P", "-m", "singularity_core.launcher.run"]

    def start(
        self, *arguments: str, backend: str | None = "plain", standard_input: str = "", **environment: str
    ) -> subprocess.Popen[str]:
        """Starts it with `arguments`; the plain backend without a proxy unless told otherwise."""
        chosen = [] if backend is None else ["--backend", backend, *(["--no-proxy"] * (backend == "plain"))]
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("SINGULARITY_", "PET_"))}
        given = self.folder / "standard-input"
        given.write_text(standard_input)
        with given.open() as stdin:
            process = self._popen(chosen, arguments, {**clean, **environment}, stdin)
        self.started.append(process)
        return process

    def _popen(
        self, chosen: list[str], arguments: tuple[str, ...], environment: dict[str, str], stdin: IO[str]
    ) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*self.program, *chosen, *arguments],
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.folder,
            start_new_session=True,
            env={
                **environment,
                "SINGULARITY_PLUGINS": str(HERE / "plain_backend.py"),
                MARK: self.mark,
            },
        )

    def run(
        self, *arguments: str, backend: str | None = "plain", standard_input: str = "", **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Runs it to the end."""
        process = self.start(*arguments, backend=backend, standard_input=standard_input, **environment)
        out, err = process.communicate(timeout=SECONDS)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def script(self, text: str, name: str = "script.py") -> str:
        """Writes a rank's program; returns its path."""
        path = self.folder / name
        path.write_text(text)
        return str(path)

    def ranks(self) -> dict[int, str]:
        """This test's processes that belong to a job."""
        mine = processes_with(MARK, self.mark)
        return {
            pid: command
            for pid, command in mine.items()
            if any(part.startswith(f"{JOB_VARIABLE}=") for part in _environment(pid))
        }


def _environment(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """What another test made this process say once can be said again."""
    monkeypatch.setattr(report, "_said", set())


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[Launcher]:
    """A launcher whose leftovers fail the test, and are removed all the same."""
    launcher = Launcher(tmp_path)
    yield launcher
    assert launcher.end() == []
