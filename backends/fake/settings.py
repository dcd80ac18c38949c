"""What the environment says about the in-memory device.  The device itself reads the same variables; here
they are checked early, so that a typing error is an error message and not a device of another size."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from singularity_core.hal import InvalidArgument

PREFIX = "SINGULARITY_FAKE_"
MAX_DEVICES = 8
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


@dataclass(frozen=True)
class FakeSettings:
    """Settings of the in-memory device; None leaves the choice to the device."""

    library: Path
    """SINGULARITY_FAKE_LIBRARY: the device's library, for development; the installed one by default."""
    compiler: str
    """SINGULARITY_FAKE_PTX_COMPILE: the command that compiles PTX; this Python by default."""
    devices: int | None = None
    """SINGULARITY_FAKE_DEVICES: how many devices there are."""
    memory: int | None = None
    """SINGULARITY_FAKE_MEMORY: bytes per device; K, M, G and T are understood."""
    threads: int | None = None
    """SINGULARITY_FAKE_THREADS: worker threads that run blocks."""

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> FakeSettings:
        """Raises `InvalidArgument` that names the variable when a value makes no sense."""
        default = Path(__file__).parent / "lib" / "libcuda.so.1"
        return cls(
            library=Path(environ.get(f"{PREFIX}LIBRARY") or default),
            compiler=environ.get(f"{PREFIX}PTX_COMPILE")
            or f"{sys.executable} -P -m singularity_backend_fake.ptx",
            devices=_number(environ, "DEVICES", 0, MAX_DEVICES),
            memory=_number(environ, "MEMORY", 1, None),
            threads=_number(environ, "THREADS", 1, None),
        )


def _number(environ: Mapping[str, str], name: str, least: int, most: int | None) -> int | None:
    text = environ.get(PREFIX + name, "")
    if not text:
        return None
    match = re.fullmatch(r"(\d+)([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if match and (name == "MEMORY" or not match[2]):
        value = int(match[1]) * _UNITS[match[2].upper()]
        if value >= least and (most is None or value <= most):
            return value
    limit = f"from {least} to {most}" if most is not None else f"of at least {least}"
    kind = "size like 512M or 2G" if name == "MEMORY" else f"number {limit}"
    raise InvalidArgument(
        f"{PREFIX}{name} is {text!r}, which is no {kind}.", remedy=f"Correct {PREFIX}{name}, or unset it."
    )
