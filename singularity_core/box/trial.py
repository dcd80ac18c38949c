"""Whether a box can be made here: one is, with a program in it."""

from __future__ import annotations

import os
import select
import socket
import tempfile
import time

from .errors import BoxUnavailableError, needs_root
from .messages import Plan
from .remote import Box

ADDRESS = "198.18.0.1"
"""Of every job, on its own lo: from a range that is for tests between machines, and that no network uses."""
_SECONDS = 20.0


def try_box() -> str:
    """Makes a box, runs a program in it, and ends it; returns what it was.  Leaves nothing behind.

    :raises BoxUnavailableError: That does not work here."""
    if os.geteuid() != 0:
        raise needs_root()
    with tempfile.TemporaryDirectory(prefix="singularity-box-") as directory, open(os.devnull, "wb") as null:
        plan = Plan(
            directory=os.fsencode(directory),
            work_directory=b"/",
            hostname=socket.gethostname(),
            address=ADDRESS,
            shared=[],
            fixed_addresses=True,
        )
        before = os.getcwd()
        os.chdir("/")
        try:
            box = Box(plan, dict(os.environ), null.fileno())
        finally:
            os.chdir(before)
        try:
            return _run_something(box)
        finally:
            box.end()


def _run_something(box: Box) -> str:
    process = box.start(["true"], dict(os.environ), os.devnull, os.devnull)
    box.seal()
    deadline = time.monotonic() + _SECONDS
    while process.returncode() is None and (left := deadline - time.monotonic()) > 0:
        if select.select([box], [], [], left)[0] and not box.look():
            break
    process.close()
    if process.returncode() != 0:
        raise BoxUnavailableError(
            f"A program in a trial box ended with {process.returncode()} instead of 0.",
            remedy="Leave out --box.",
        )
    return "pid, mount, IPC, UTS, network and time namespaces"
