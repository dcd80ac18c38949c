"""How tests run a program as a rank: natively on the in-memory device, or through a device proxy."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from singularity_core.hal.cuda_wheels import nvrtc_library

from .multirank.jobs import JOBS

MODES = ("native", "proxied")
RunRank = Callable[..., "subprocess.CompletedProcess[str]"]
StartRank = Callable[..., "subprocess.Popen[str]"]


def _launcher() -> str:
    beside = Path(sys.executable).parent / "singularity-run"
    found = str(beside) if beside.exists() else shutil.which("singularity-run")
    if found is None:
        pytest.fail("singularity-run is not installed: pip install -e . (see README)")
    return found


@pytest.fixture(autouse=True)
def no_job_outlives_its_test() -> Iterator[None]:
    """Jobs of several ranks end with their test, whatever becomes of it, and leave nothing behind."""
    yield
    if JOBS.started:
        assert JOBS.end() == []


@pytest.fixture(scope="session", autouse=True)
def own_state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Launchers write down nothing about jobs of tests in the user's home."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(scope="session")
def rank_environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Environment for ranks: NVRTC found, and caches that start empty and are shared by both modes."""
    nvrtc = nvrtc_library()  # a compiler: it needs no device
    if nvrtc is None:
        pytest.fail("nvidia-cuda-nvrtc is not installed: pip install '.[fake,examples,test]'")
    cache = tmp_path_factory.mktemp("cache")
    return {
        **os.environ,
        "CUDA_PATH": str(nvrtc.parents[1]),
        "NVRTC_PATH": str(nvrtc),
        "SINGULARITY_FAKE_CACHE": str(cache / "objects"),
        "XDG_CACHE_HOME": str(cache),
        "DEV": "CUDA",
        "PYTHONFAULTHANDLER": "1",
    }


@pytest.fixture(scope="session")
def start_rank(rank_environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> StartRank:
    """`start_rank(mode, script, *arguments, env={})` starts a Python program; the caller ends it."""

    elsewhere = tmp_path_factory.mktemp("cwd")  # so that no rank imports from the checkout

    def start(
        mode: str, script: Path, *arguments: str, env: dict[str, str] | None = None
    ) -> subprocess.Popen[str]:
        command = [
            _launcher(),
            "--backend",
            "fake",
            *(["--no-proxy"] if mode == "native" else []),
            str(script),
            *arguments,
        ]
        return subprocess.Popen(
            command,
            env={**rank_environment, **(env or {})},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            cwd=elsewhere,
        )

    return start


def _finish(process: subprocess.Popen[str], timeout: float) -> tuple[str, str, bool]:
    """(stdout, stderr, whether it ended in time); the launcher ends its own children."""
    try:
        return *process.communicate(timeout=timeout), True
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGTERM)
    try:
        return *process.communicate(timeout=40), False
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return *process.communicate(), False


@pytest.fixture(scope="session")
def run_rank(start_rank: StartRank) -> RunRank:
    """`run_rank(mode, script, *arguments, timeout=300, env={}, check=True)` runs a program to its end."""

    def run(
        mode: str,
        script: Path,
        *arguments: str,
        timeout: float = 300.0,
        check: bool = True,
        env: dict[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        process = start_rank(mode, script, *arguments, env=env)
        stdout, stderr, in_time = _finish(process, timeout)
        said = f"{stdout[-2000:]}\n{stderr[-4000:]}"
        if not in_time:
            pytest.fail(f"{script.name} ({mode}) took more than {timeout} s\n{said}")
        if check and process.returncode != 0:
            pytest.fail(f"{script.name} ({mode}) exited with {process.returncode}\n{said}")
        return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)

    return run
