"""Runs a job of several ranks with the real launcher."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import pytest

from ..launched import MARK, Launched

LAUNCHER = Path(sys.executable).parent / "singularity-run"
JOBS = Launched(f"jobs-{os.getpid()}")
"""Of the running test; a fixture of all tests ends those that it leaves."""


_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1


def _end_with_the_tests() -> None:
    """Between fork and exec: also when pytest is killed, no job runs on for ever."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def start_job(
    script: Path,
    *arguments: str,
    ranks: int,
    devices: int,
    options: Sequence[str] = (),
    env: dict[str, str] | None = None,
    launcher: Sequence[str] = (),
    said: tuple[Path, Path] | None = None,
    work_directory: Path | None = None,
) -> subprocess.Popen[str]:
    """Starts a Python program on `ranks` ranks and `devices` in-memory devices; they end with the test.
    `launcher`: the command of another than singularity-run; `said`: see `start_launcher`;
    `work_directory`: another than the script's."""
    command = [
        *(launcher or [str(LAUNCHER)]),
        "--backend",
        "fake",
        f"--nproc-per-node={ranks}",
        f"--devices={devices}",
        *options,
    ]
    environment = {
        "SINGULARITY_FAKE_MEMORY": "256M",
        "SINGULARITY_FAKE_DEVICES": str(max(ranks, devices)),
        **(env or {}),
    }
    whole = [*command, str(script), *arguments]
    return start_launcher(whole, work_directory or script.parent, environment, said)


def start_launcher(
    command: Sequence[str],
    work_directory: Path,
    env: dict[str, str],
    said: tuple[Path, Path] | None = None,
) -> subprocess.Popen[str]:
    """Starts what becomes a job's launcher; it ends with the test.  `said`: files to which its standard
    output and error are appended, instead of pipes."""
    with contextlib.ExitStack() as files:
        streams: list[int | IO[bytes]] = [subprocess.PIPE, subprocess.PIPE]
        if said is not None:
            streams = [files.enter_context(path.open("ab")) for path in said]
        process = subprocess.Popen(
            command,
            env={**os.environ, **env, MARK: JOBS.mark},
            text=True,
            stdout=streams[0],
            stderr=streams[1],
            start_new_session=True,
            cwd=work_directory,
            preexec_fn=_end_with_the_tests,
        )
    JOBS.started.append(process)
    return process


def finish(process: subprocess.Popen[str], timeout: float = 120.0) -> tuple[int, str, str]:
    """(exit code, stdout, stderr); fails the test when the job does not end by itself."""
    try:
        stdout, stderr = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGTERM)
        try:
            stdout, stderr = process.communicate(timeout=40)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            stdout, stderr = process.communicate()
        pytest.fail(f"the job hung for {timeout} s\n{stdout[-2000:]}\n{stderr[-4000:]}")
    return process.returncode, stdout, stderr


def run_job(
    script: Path,
    *arguments: str,
    ranks: int,
    devices: int,
    options: Sequence[str] = (),
    env: dict[str, str] | None = None,
    timeout: float = 120.0,
) -> tuple[str, str]:
    """(stdout, stderr) of a job that must succeed."""
    process = start_job(script, *arguments, ranks=ranks, devices=devices, options=options, env=env)
    code, stdout, stderr = finish(process, timeout)
    if code != 0:
        said = f"{stdout[-2000:]}\n{stderr[-4000:]}"
        pytest.fail(f"{script.name} on {ranks} ranks and {devices} devices exited with {code}\n{said}")
    return stdout, stderr
