"""`--serve`: requests on standard input, replies on standard output (kernel_abi.h), until end of file.

Whatever a request holds, it gets a reply: only the end of the input, or a parent that is gone, ends the
process. Interrupts are ignored, since a Ctrl-C in the terminal is meant for the job, and the device still
needs its compiler.
"""

from __future__ import annotations

import gc
import os
import signal
import struct
import sys

from .errors import PtxError
from .service import Service

LOAD, COMPILE = 1, 2
INVALID_VALUE, UNKNOWN = 1, 999
MAX_REQUEST = 256 << 20
GARBAGE = 100_000  # objects, about 10 MB


def read_exactly(descriptor: int, count: int) -> bytes | None:
    """`count` bytes, or None at the end of the input."""
    parts = []
    while count:
        part = os.read(descriptor, min(count, 1 << 20))
        if not part:
            return None
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def answer(service: Service, verb: int, payload: bytes) -> tuple[int, str]:
    """Status and text for a request; never raises on account of what it holds."""
    try:
        if verb == LOAD:
            return 0, service.load(payload)
        if verb == COMPILE:
            return 0, service.compile(payload)
        return INVALID_VALUE, f"unknown verb {verb}"
    except PtxError as error:
        return error.status, one_line(error)
    except RecursionError:
        return 801, "the kernel is nested too deeply for ptx-compile"
    except MemoryError:
        return 2, "ptx-compile is out of memory"
    except (
        Exception
    ) as error:  # a fault of the compiler: the job must hear of it, and the next request must work
        return UNKNOWN, f"internal error in ptx-compile: {type(error).__name__}: {one_line(error)}"


def one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:2000]


def serve() -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    source = os.dup(0)
    target = os.dup(1)
    os.dup2(2, 1)  # what libraries print must not get into the replies
    service = Service()
    gc.disable()  # a quarter of the time that making LLVM's text takes; garbage is collected between requests
    while True:
        head = read_exactly(source, 4)
        if head is None:
            return 0
        (length,) = struct.unpack("<I", head)
        if length > MAX_REQUEST:
            print(f"ptx-compile: a request of {length} bytes is no request; giving up", file=sys.stderr)
            return 1
        body = read_exactly(source, length)
        if body is None:
            return 0
        if length < 4:
            status, text = INVALID_VALUE, "a request without a verb"
        else:
            status, text = answer(service, struct.unpack_from("<I", body)[0], body[4:])
        data = text.encode("utf-8", "replace")
        reply = struct.pack("<II", len(data) + 4, status) + data
        try:
            while reply:
                reply = reply[os.write(target, reply) :]
        except BrokenPipeError:
            return 0
        if gc.get_count()[0] > GARBAGE:
            gc.collect()
