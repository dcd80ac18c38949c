"""A compile service for tests of the in-memory device: kernels in C, compiled by gcc.

It speaks the protocol of backends/fake/device/kernel_abi.h, but an "image" is text that begins with a PTX
version directive, goes on with lines `//!WORDS` (what LOAD answers, and `//!mode block|fiber`, `//!spill N`),
and ends with `//!c` and C source for the kernels.  So the device is tested without the PTX compiler, whose
faults it could share.
"""

from __future__ import annotations

import hashlib
import os
import struct
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

ABI = Path(__file__).resolve().parents[2] / "backends" / "fake" / "device"


@dataclass(frozen=True)
class Image:
    """One loaded image."""

    lines: tuple[str, ...]
    mode: str
    spill: int
    source: str


def load(text: str) -> Image:
    """Splits an image; ValueError when it is none."""
    head, found, source = text.partition("//!c\n")
    if not found:
        raise ValueError("line 1: no kernels in this text")
    words = [line[3:].strip() for line in head.splitlines() if line.startswith("//!")]
    mode = next((w.split()[1] for w in words if w.startswith("mode ")), "block")
    spill = next((int(w.split()[1]) for w in words if w.startswith("spill ")), 0)
    return Image(tuple(w for w in words if not w.startswith(("mode ", "spill "))), mode, spill, source)


def compile_object(image: Image, key: str, cache: Path) -> Path:
    """Compiles once per image; the object is position independent, as the loader wants it."""
    target = cache / f"{key}.o"
    if not target.exists():
        with tempfile.NamedTemporaryFile("w", suffix=".c", dir=cache, delete=False) as source:
            source.write('#include "kernel_abi.h"\n' + image.source)
        made = source.name[:-2] + ".o"
        flags = ["-O2", "-fPIC", "-fno-asynchronous-unwind-tables", "-fno-stack-protector", "-w", f"-I{ABI}"]
        subprocess.run(["gcc", *flags, "-c", source.name, "-o", made], check=True, stdout=sys.stderr)
        os.replace(made, target)
        os.unlink(source.name)
    return target


def answer(verb: int, payload: bytes, images: dict[str, Image], cache: Path) -> tuple[int, str]:
    """One request's status and text."""
    if verb == 1:
        try:
            image = load(payload.decode())
        except ValueError as error:
            return 218, str(error)
        key = hashlib.sha256(payload).hexdigest()
        images[key] = image
        return 0, "\n".join([f"module {key}", "target 120 8.7", *image.lines]) + "\n"
    if verb == 2:
        key, kernel, *_shape = payload.decode().split()
        if key not in images:
            return 500, f"no module {key}"
        if kernel == "refused":
            return 801, "line 7: opcode `refused` is not supported by the in-memory device"
        if kernel == "killer":
            os._exit(3)
        image = images[key]
        path = compile_object(image, key, cache)
        return 0, f"object {path}\nsymbol {kernel}\nmode {image.mode}\nspill {image.spill}\n"
    if verb == 3:
        import zlib  # stands in for zstd and LZ4: the device only carries the bytes

        return 0, zlib.decompress(payload[16:]).decode()
    return 801, f"verb {verb} is not known"


def read(stream: BinaryIO, size: int) -> bytes:
    """Exactly `size` bytes, or fewer at the end."""
    data = b""
    while len(data) < size and (part := stream.read(size - len(data))):
        data += part
    return data


def main() -> None:
    """Serves until its input ends."""
    images: dict[str, Image] = {}
    cache = Path(os.environ.get("SINGULARITY_FAKE_CACHE") or tempfile.mkdtemp())
    while len(head := read(sys.stdin.buffer, 8)) == 8:
        length, verb = struct.unpack("<II", head)
        status, text = answer(verb, read(sys.stdin.buffer, length - 4), images, cache)
        data = text.encode()
        sys.stdout.buffer.write(struct.pack("<II", len(data) + 4, status) + data)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
