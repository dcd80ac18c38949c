"""Builds the NCCL client with a stand-in for the driver client, plain or under sanitizers."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from singularity_core.hal.cuda_wheels import header_directory

from ..sanitizers import PREFIX, ROOT, SLOW, compile_c, sanitizer_options

PROGRAMS = Path(__file__).parent / "programs"
SOURCES = [
    *sorted((ROOT / "interposers" / "nccl").glob("*.c")),
    ROOT / "interposers/generated/nccl_exports.c",
]
CASE_FILES = [PROGRAMS / "communicators.c", PROGRAMS / "operations.c"]


@dataclass(frozen=True)
class Built:
    """Where the program lies, and how to run its cases."""

    folder: Path

    def run(self, case: str) -> subprocess.CompletedProcess[str]:
        """Runs one case in a process of its own; the caller looks at the outcome."""
        environment = {
            **os.environ,
            "LD_LIBRARY_PATH": str(self.folder),
            **sanitizer_options(asan="detect_leaks=0"),
        }
        command = [*PREFIX, str(self.folder / "cases"), case]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60 * SLOW)


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The stand-in as libcuda.so.1, and the cases linked with the client's sources."""
    out = tmp_path_factory.mktemp("nccl")
    include = ("-isystem", str(header_directory()))
    compile_c(out / "libcuda.so.1", [PROGRAMS / "fake.c"], "-shared", "-Wl,-soname,libcuda.so.1", *include)
    compile_c(
        out / "cases",
        [PROGRAMS / "main.c", *CASE_FILES, *SOURCES],
        *include,
        f"-L{out}",
        "-l:libcuda.so.1",
    )
    return Built(out)
