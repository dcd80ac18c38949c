"""The one word of the door that the launcher writes: that the proxy behind it is dead."""

from __future__ import annotations

import enum
import os
from pathlib import Path

DOOR_FILE = "door"


class Dead(enum.IntEnum):
    """Why nothing behind a door will answer again (SG_DEAD_*)."""

    PROXY = 1
    JOB = 4


def mark_dead(directory: Path, why: Dead) -> bool:
    """Tells the ranks that came through the door in `directory`; they look at least every 50 ms.  False when
    there is none (the proxy died before it made it)."""
    from singularity_core._native import ffi

    try:
        descriptor = os.open(directory / DOOR_FILE, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        if os.fstat(descriptor).st_size < ffi.sizeof("struct sg_door"):
            return False
        # Written, not mapped: a rank that truncates the file must not end the launcher.  Only one byte of the
        # word is ever not zero, so that no reader can see half of it.
        os.pwrite(
            descriptor, ffi.buffer(ffi.new("uint32_t *", int(why)))[:], ffi.offsetof("struct sg_door", "dead")
        )
        return True
    finally:
        os.close(descriptor)
