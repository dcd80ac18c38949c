"""The shared library as a whole: its exports, its needs, its generated files."""

from __future__ import annotations

import subprocess
import sys

import pytest

from singularity_core.hal.cuda_wheels import header_directory

from ..sanitizers import SANITIZER
from .conftest import DEVICE, Built

pytestmark = pytest.mark.skipif(bool(SANITIZER), reason="the sanitized build has no shared library")


def symbols(built: Built, *flags: str) -> list[str]:
    """Names that nm lists, without versions."""
    command = ["nm", "-D", *flags, str(built.folder / "libcuda.so.1")]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return [line.split()[-1] for line in lines]


def test_every_declared_function_is_exported(built: Built) -> None:
    """All functions of the vendor header are there, old versions included, and little else."""
    sys.path.insert(0, str(DEVICE))
    try:
        import gen_unsupported
    finally:
        sys.path.remove(str(DEVICE))
    exported = set(symbols(built, "--defined-only"))
    assert set(gen_unsupported.declarations(header_directory())) <= exported
    assert {name for name in exported if not name.startswith("cu")} <= {
        "sg_hal_open_table",
        "sgf_hal_table",
        "sgf_inject_failures",
    }


def test_generated_files_are_up_to_date() -> None:
    """unsupported.c, per_thread.c, procs.c and names.c are what the generator writes."""
    command = [
        sys.executable,
        str(DEVICE / "gen_unsupported.py"),
        "--include",
        str(header_directory()),
        "--check",
    ]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def test_it_needs_only_libc(built: Built) -> None:
    """The library links against nothing but parts of libc."""
    command = ["readelf", "-d", str(built.folder / "libcuda.so.1")]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    needed = {line.split("[")[1].rstrip("]") for line in output.splitlines() if "(NEEDED)" in line}
    assert needed <= {"libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "ld-linux-x86-64.so.2"}
