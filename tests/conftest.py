"""How tests run a program as a rank: natively on the in-memory device, or through a device proxy."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

MODES = ("native", "proxied")
RunRank = Callable[..., "subprocess.CompletedProcess[str]"]


def _cuda_wheel() -> Path:
    """The directory of NVIDIA's wheels (include/, lib/): NVRTC is a compiler and needs no device."""
    spec = importlib.util.find_spec("nvidia.cu13")
    if spec is None or not spec.submodule_search_locations:
        pytest.fail("nvidia-cuda-nvrtc and nvidia-cuda-runtime are not installed: pip install '.[test,examples]'")
    return Path(next(iter(spec.submodule_search_locations)))


def _launcher() -> str:
    beside = Path(sys.executable).parent / "singularity-run"
    found = str(beside) if beside.exists() else shutil.which("singularity-run")
    if found is None:
        pytest.fail("singularity-run is not installed: pip install -e . (see README)")
    return found


@pytest.fixture(scope="session")
def rank_environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Environment for ranks: NVRTC found, and caches that start empty and are shared by both modes."""
    wheel = _cuda_wheel()
    nvrtc = next((wheel / "lib").glob("libnvrtc.so.*"))
    cache = tmp_path_factory.mktemp("cache")
    return {
        **os.environ,
        "CUDA_PATH": str(wheel),
        "NVRTC_PATH": str(nvrtc),
        "SINGULARITY_FAKE_CACHE": str(cache / "objects"),
        "XDG_CACHE_HOME": str(cache),
        "DEV": "CUDA",
        "PYTHONFAULTHANDLER": "1",
    }


@pytest.fixture(scope="session")
def run_rank(rank_environment: dict[str, str]) -> RunRank:
    """`run_rank(mode, script, *arguments, timeout=300, env={}, check=True)` runs a Python program."""

    def run(mode: str, script: Path, *arguments: str, timeout: float = 300.0, check: bool = True,
            env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        command = [_launcher(), "--backend", "fake", *(["--no-proxy"] if mode == "native" else []),
                   str(script), *arguments]
        process = subprocess.Popen(command, env={**rank_environment, **(env or {})}, text=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
        try:
            stdout, stderr = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGTERM)  # the launcher ends its children
            try:
                stdout, stderr = process.communicate(timeout=40)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                stdout, stderr = process.communicate()
            pytest.fail(f"{script.name} ({mode}) took more than {timeout} s\n{stdout[-2000:]}\n{stderr[-4000:]}")
        if check and process.returncode != 0:
            pytest.fail(f"{script.name} ({mode}) exited with {process.returncode}\n"
                        f"{stdout[-2000:]}\n{stderr[-4000:]}")
        return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)

    return run
