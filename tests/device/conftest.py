"""Builds the in-memory device and its test programs.

SINGULARITY_TEST_SANITIZER=address|thread builds both with ASan and UBSan, or with TSan (run_sanitized.sh
does both).
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DEVICE = ROOT / "backends" / "fake" / "device"
PROGRAMS = Path(__file__).parent / "programs"
SERVICE = Path(__file__).parent / "gcc_compile_service.py"
FLAGS = [
    "-std=c11",
    "-D_GNU_SOURCE",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-O2",
    "-g",
    "-fvisibility=hidden",
    "-fPIC",
]
SANITIZERS = {
    "": [],
    "address": ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-fno-sanitize=alignment"],
    # the windows move to where ThreadSanitizer allows mappings
    "thread": [
        "-fsanitize=thread",
        "-DSG_DEVICE_BASE=0x1000000000ull",
        "-DSG_DEVICE_WINDOW=(1ull<<34)",
        "-DSG_PINNED_BASE=0x6000000000ull",
        "-DSGF_PINNED_ZONE=(1ull<<32)",
    ],
}
SANITIZER = os.environ.get("SINGULARITY_TEST_SANITIZER", "")
# ThreadSanitizer needs addresses as they are without randomisation; see setarch(8)
PREFIX = ["setarch", "-R"] if SANITIZER == "thread" else []


def cuda_include() -> Path:
    """The directory of cuda.h: SG_CUDA_INCLUDE, or the nvidia-cuda-runtime wheel's."""
    named = os.environ.get("SG_CUDA_INCLUDE")
    if named:
        return Path(named)
    spec = importlib.util.find_spec("nvidia.cu13")
    if spec is None or not spec.submodule_search_locations:
        pytest.fail("cuda.h not found: pip install nvidia-cuda-runtime, or set SG_CUDA_INCLUDE")
    return Path(next(iter(spec.submodule_search_locations))) / "include"


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
            "ASAN_OPTIONS": "detect_leaks=0:use_sigaltstack=0:allow_user_segv_handler=1",
            "TSAN_OPTIONS": "halt_on_error=1",
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
    common = ["gcc", *FLAGS, *SANITIZERS[SANITIZER], f"-I{ROOT}", "-isystem", str(cuda_include())]
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
