"""Programs that open NCCL or the driver by a path of their own get ours."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest

from ..sanitizers import compile_c

RANK = Path(str(files("singularity_core"))) / "lib" / "rank"
PROGRAMS = Path(__file__).parent / "programs"
OURS, DECOY = "23203", "1"
NAMES = ("libnccl.so.2", "libnccl.so.2.27.5", "libnccl.so", "libcuda.so.1", "libcuda.so")

BY_CTYPES = """\
import ctypes, sys
version = ctypes.c_int()
ctypes.CDLL(sys.argv[1]).ncclGetVersion(ctypes.byref(version))
print(version.value)
"""
BY_PATHFINDER = """\
import ctypes, site, sys
site.getsitepackages = lambda *_: [sys.argv[1]]
from cuda.pathfinder import load_nvidia_dynamic_lib
found = load_nvidia_dynamic_lib("nccl")
version = ctypes.c_int()
ctypes.CDLL("libnccl.so.2", handle=found._handle_uint).ncclGetVersion(ctypes.byref(version))
print(version.value)
"""
BY_BINDINGS = """\
from nccl.bindings import nccl
print(nccl.get_version())
assert nccl.get_unique_id() != nccl.get_unique_id()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A decoy of each library in a folder like a wheel's, a caller with a RUNPATH, and a program."""
    out = tmp_path_factory.mktemp("preload")
    wheel = out / "nvidia" / "nccl" / "lib"
    wheel.mkdir(parents=True)
    for name in (*NAMES, "libncclx.so.2", "libnccl.so.20"):
        compile_c(wheel / name, [PROGRAMS / "decoy.c"], "-shared", "-Wl,-soname,libdecoy.so")
    (out / "caller").mkdir()
    compile_c(out / "caller" / "libneighbour.so", [PROGRAMS / "decoy.c"], "-shared")
    compile_c(
        out / "caller" / "libcaller.so",
        [PROGRAMS / "caller.c"],
        "-shared",
        "-Wl,--enable-new-dtags,-rpath,$ORIGIN",
    )
    compile_c(out / "opener", [PROGRAMS / "opener.c"])
    return out


def run(command: list[str], preload: bool = True) -> subprocess.CompletedProcess[str]:
    """A command as the launcher would start it: with our libraries in front."""
    settings = {**os.environ, "LD_LIBRARY_PATH": str(RANK)}
    if preload:
        settings["LD_PRELOAD"] = str(RANK / "libsingularity_preload.so")
    return subprocess.run(command, env=settings, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    ("library", "function", "how"),
    [
        ("libnccl.so.2", "ncclGetVersion", "dlopen"),
        ("libnccl.so.2.27.5", "ncclGetVersion", "dlopen"),
        ("libnccl.so", "ncclGetVersion", "dlopen"),
        ("libnccl.so.2", "ncclGetVersion", "dlmopen"),
        ("libcuda.so.1", "cuDriverGetVersion", "dlopen"),
        ("libcuda.so", "cuDriverGetVersion", "dlopen"),
    ],
)
def test_a_path_gives_ours(folder: Path, library: str, function: str, how: str) -> None:
    """A C program that opens a wheel's library by its path gets ours; without the preload the wheel's."""
    command = [str(folder / "opener"), how, str(folder / "nvidia/nccl/lib" / library), function]
    assert str(RANK) in run(command).stdout
    assert str(folder / "nvidia") in run(command, preload=False).stdout


@pytest.mark.parametrize(
    ("library", "how"),
    [
        ("libncclx.so.2", "dlopen"),
        ("libnccl.so.20", "dlopen"),
        ("libnccl.so.2", "dlmopen-new"),
        ("missing.so", "dlopen"),
    ],
)
def test_other_libraries_are_left_alone(folder: Path, library: str, how: str) -> None:
    """Another name, another namespace, and a file that is not there: as without the preload."""
    command = [str(folder / "opener"), how, str(folder / "nvidia/nccl/lib" / library), "ncclGetVersion"]
    with_preload, without = run(command), run(command, preload=False)
    assert with_preload.stdout == without.stdout
    assert str(RANK) not in with_preload.stdout


def test_the_callers_search_path_counts(folder: Path) -> None:
    """glibc still sees who called dlopen: a library finds its neighbour by its own RUNPATH."""
    result = run([str(folder / "opener"), "call", str(folder / "caller" / "libcaller.so"), "open_neighbour"])
    assert result.stdout == "found\n", result.stderr


def test_python_gets_ours(folder: Path) -> None:
    """The same from Python's ctypes."""
    path = str(folder / "nvidia" / "nccl" / "lib" / "libnccl.so.2")
    command = [sys.executable, "-P", "-c", BY_CTYPES, path]
    assert run(command).stdout.strip() == OURS
    assert run(command, preload=False).stdout.strip() == DECOY


def test_nvidias_path_finder_gets_ours(folder: Path) -> None:
    """NVIDIA's path finder opens what lies in the site-packages: with the preload that is ours, too."""
    if importlib.util.find_spec("cuda") is None or importlib.util.find_spec("cuda.pathfinder") is None:
        pytest.skip("cuda-pathfinder is not installed")
    command = [sys.executable, "-P", "-c", BY_PATHFINDER, str(folder)]
    result = run(command)
    assert result.stdout.strip() == OURS, result.stderr
    assert run(command, preload=False).stdout.strip() == DECOY


def test_nvidias_bindings_work() -> None:
    """nccl4py's bindings load our library, and answer with our version."""
    if importlib.util.find_spec("nccl") is None:
        pytest.skip("nccl4py is not installed")
    result = run([sys.executable, "-P", "-c", BY_BINDINGS])
    assert result.stdout.strip() == OURS, result.stderr
