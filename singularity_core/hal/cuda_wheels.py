"""Where NVIDIA's wheels put the CUDA headers and compiler: one search for the build, the code generators, the
launcher, tests and benchmarks.

Needs nothing but the standard library, because CMake runs this very file (``python -P cuda_wheels.py`` prints
the directory of ``cuda.h``) before anything is installed.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

HEADER_VARIABLE = "SG_CUDA_INCLUDE"
"""Environment: another directory that holds ``cuda.h``."""


class HeaderNotFoundError(Exception):
    """There is no ``cuda.h`` here; the message says what to install or set."""


def wheel_files(pattern: str) -> list[Path]:
    """The files below the installed wheels' directories that match, those of CUDA 13 first: `pattern` is
    relative to a directory such as ``nvidia/cu13``.  Nothing is imported."""
    spec = importlib.util.find_spec("nvidia")
    found: list[Path] = []
    for root in spec.submodule_search_locations or () if spec else ():
        found += Path(root).glob(f"*/{pattern}")
    return sorted(found, key=lambda path: ("cu13" not in path.parts, path))


def header_directory() -> Path:
    """The directory of ``cuda.h``: `HEADER_VARIABLE`, else the wheel ``nvidia-cuda-runtime``'s.
    `HeaderNotFoundError` when there is none."""
    named = os.environ.get(HEADER_VARIABLE)
    candidates = [Path(named) / "cuda.h"] if named else wheel_files("include/cuda.h")
    for header in candidates:
        if header.is_file():
            return header.parent
    raise HeaderNotFoundError(
        f"cuda.h was not found{f' in {named}' if named else ''}: install the wheel nvidia-cuda-runtime 13 "
        f"(pip install nvidia-cuda-runtime==13.*), or let {HEADER_VARIABLE} name the directory that holds it"
    )


def nvrtc_library() -> Path | None:
    """The wheel ``nvidia-cuda-nvrtc``'s library, if it is installed."""
    return next(iter(wheel_files("lib/libnvrtc.so.*")), None)


if __name__ == "__main__":
    try:
        print(header_directory())
    except HeaderNotFoundError as error:
        sys.exit(str(error))
