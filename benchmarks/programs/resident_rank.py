"""A rank with memory on its device, most of it left alone: resident_rank.py DIRECTORY MIB.

Half of the memory is the same on all ranks, half its own.  A step writes one MiB of it anew, and computes a
little with numpy.  The 8 bytes of DIRECTORY/steps.RANK say how many steps it has begun.  Frameworks are
imported for the pages that they take."""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
import sys
import time
from pathlib import Path

import numpy as np
import tinygrad  # noqa: F401

BUFFER = 16 << 20


def main() -> None:
    directory, mib, rank = Path(sys.argv[1]), int(sys.argv[2]), int(os.environ["RANK"])
    cuda = ctypes.CDLL("libcuda.so.1")

    def call(name: str, *arguments: object) -> None:
        if error := getattr(cuda, name)(*arguments):
            raise SystemExit(f"{name}: {error}")

    context = ctypes.c_void_p()
    call("cuInit", 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), int(os.environ["LOCAL_RANK"]))
    call("cuCtxSetCurrent", context)
    buffers = []
    for number in range((mib << 20) // BUFFER):
        at = ctypes.c_uint64()
        call("cuMemAlloc_v2", ctypes.byref(at), ctypes.c_size_t(BUFFER))
        seed = number if number % 2 else 1000 * (rank + 1) + number
        contents = np.random.default_rng(seed).bytes(BUFFER)
        call("cuMemcpyHtoD_v2", at, contents, ctypes.c_size_t(BUFFER))
        buffers.append(at)
    with (directory / f"steps.{rank}").open("w+b") as file:
        file.truncate(8)
        counter = mmap.mmap(file.fileno(), 8)
    weights, step = np.random.default_rng(1).standard_normal((256, 256), np.float32), 0
    while True:
        step += 1
        counter[:8] = struct.pack("Q", step)
        weights = np.tanh(weights @ weights.T / 256)
        values = struct.pack("Q", step) + weights[:128].tobytes() * 8
        call("cuMemcpyHtoD_v2", buffers[0], values, ctypes.c_size_t(len(values)))
        call("cuCtxSynchronize")
        time.sleep(0.01)


if __name__ == "__main__":
    main()
