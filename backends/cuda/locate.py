"""Finds the vendor's libcuda.so.1.

Not simply by asking the loader: LD_LIBRARY_PATH may begin with a directory of ours, whose libcuda.so.1 is the
client that ranks load, or the in-memory device.  Both export a symbol that the vendor's library has not, and
are passed over.
"""

from __future__ import annotations

import functools
import mmap
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

LIBRARY_VARIABLE = "SINGULARITY_CUDA_LIBRARY"
NAME = "libcuda.so.1"
PLACES = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/nvidia/lib64",
    "/usr/lib/wsl/lib",
    "/run/opengl-driver/lib",
)
# Any of these names in the file's symbol table marks a library of ours.
OURS = (b"sg_hal_open_table", b"SINGULARITY_DEVICES", b"SINGULARITY_FAKE_")


def candidates(environ: Mapping[str, str]) -> Iterator[Path]:
    """Where the library may be, in the order of preference."""
    chosen = environ.get(LIBRARY_VARIABLE)
    if chosen:
        yield Path(chosen)
        return
    for folder in filter(None, environ.get("LD_LIBRARY_PATH", "").split(":")):
        yield Path(folder) / NAME
    yield from _loader_cache()
    for folder in PLACES:
        yield Path(folder) / NAME


def _loader_cache() -> Iterator[Path]:
    for ldconfig in ("/sbin/ldconfig", "/usr/sbin/ldconfig"):
        if Path(ldconfig).exists():
            try:
                known = subprocess.run(
                    [ldconfig, "-p"], capture_output=True, text=True, timeout=10, check=False
                )
            except (OSError, subprocess.TimeoutExpired):
                return
            for match in re.finditer(rf"^\s*{re.escape(NAME)} .*=> (.+)$", known.stdout, re.MULTILINE):
                yield Path(match[1])
            return


@functools.lru_cache(maxsize=64)
def is_ours(path: Path) -> bool:
    """Whether the file is a library of this project that bears the vendor's name."""
    if path.stat().st_size == 0:
        return False
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return any(content.find(mark) >= 0 for mark in OURS)


def find(environ: Mapping[str, str]) -> Path | None:
    """The vendor's library, or None."""
    chosen = bool(environ.get(LIBRARY_VARIABLE))
    for path in candidates(environ):
        if path.is_file() and (chosen or not is_ours(path)):
            return path
    return None
