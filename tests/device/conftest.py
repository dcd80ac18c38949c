"""Builds the in-memory device and its test programs, plain or under sanitizers (tests/sanitizers.py)."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from singularity_core.hal.cuda_wheels import header_directory

from ..sanitizers import COMPILE, PREFIX, ROOT, SANITIZER, sanitizer_options

DEVICE = ROOT / "backends" / "fake" / "device"
PROGRAMS = Path(__file__).parent / "programs"
SERVICE = Path(__file__).parent / "gcc_compile_service.py"


@dataclass(frozen=True)
class Built:
    """Where the built things lie, and how to run them."""

    folder: Path

    def environment(self, image: str, **settings: str) -> dict[str, str]:
        """The environment of a test process."""
        return {
            **os.environ,
            "SINGULARITY_FAKE_PTX_COMPILE": f"{sys.executable} {SERVICE}",
            "SINGULARITY_FAKE_CACHE": str(self.folder),
            "SINGULARITY_FAKE_MEMORY": "256M",
            "SINGULARITY_FAKE_THREADS": "3",
            "KERNEL_IMAGE": str(PROGRAMS / image),
            **sanitizer_options(asan="detect_leaks=0:use_sigaltstack=0:allow_user_segv_handler=1"),
            **settings,
        }

    def run(
        self, program: str, case: str, *, timeout: float = 120, **settings: str
    ) -> subprocess.CompletedProcess[str]:
        """Runs one case; the caller looks at the outcome."""
        image = "fibers.image" if program == "fibers" else "kernels.image"
        command = [*PREFIX, str(self.folder / program), case]
        environment = self.environment(image, **settings)
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout)


def compile_all(out: Path) -> None:
    """The device as objects, and each program linked with them (so that sanitizers see everything)."""
    common = [*COMPILE, "-isystem", str(header_directory())]
    if SANITIZER == "address":
        common.append("-fno-sanitize=alignment")
    objects = []
    for source in sorted(DEVICE.glob("*.c")):
        target = out / f"{source.stem}.o"
        subprocess.run([*common, "-c", str(source), "-o", str(target)], check=True)
        objects.append(str(target))
    libraries = ["-lpthread", "-ldl", "-lm"]
    if not SANITIZER:
        library = ["-shared", "-Wl,-soname,libcuda.so.1", "-Wl,-z,defs", "-Wl,-Bsymbolic"]
        subprocess.run(["gcc", *library, "-o", str(out / "libcuda.so.1"), *objects, *libraries], check=True)
    for source in sorted(PROGRAMS.glob("*.c")):
        if source.stem != "main":
            sources = [str(source), str(PROGRAMS / "main.c")]
            subprocess.run(
                [*common, *sources, *objects, "-o", str(out / source.stem), *libraries], check=True
            )


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The device and the programs, built once per test run."""
    out = tmp_path_factory.mktemp("device")
    compile_all(out)
    return Built(out)
