"""The one word of the door that the launcher writes: that the proxy behind it is dead.

The offsets mirror ``struct sg_door`` in ``singularity_core/transport/layout.h``; a test compares them with
what the C compiler says.
"""

from __future__ import annotations

import ctypes
import enum
import mmap
from pathlib import Path

DOOR_FILE = "door"


class DoorHead(ctypes.Structure):
    """The beginning of ``struct sg_door``."""

    _fields_ = (
        ("magic", ctypes.c_uint64),
        ("protocol", ctypes.c_uint32),
        ("proxy_pid", ctypes.c_uint32),
        ("proxy_start", ctypes.c_uint64),
        ("ready", ctypes.c_uint32),
        ("dead", ctypes.c_uint32),
        ("bell", ctypes.c_uint32),
    )


class Dead(enum.IntEnum):
    """Why nothing behind a door will answer again (SG_DEAD_*)."""

    PROXY = 1
    JOB = 4


def mark_dead(directory: Path, why: Dead) -> bool:
    """Tells the ranks of the proxy in `directory`; they look at least every 50 ms.  False when there is no
    door (the proxy died before it made one)."""
    try:
        with (directory / DOOR_FILE).open("r+b") as file:
            if file.seek(0, 2) < ctypes.sizeof(DoorHead):
                return False
            with mmap.mmap(file.fileno(), mmap.PAGESIZE) as page:
                head = DoorHead.from_buffer(page)
                head.dead = int(why)  # an aligned 32-bit store
                del head  # lets go of the page, which could not be unmapped otherwise
    except (FileNotFoundError, ValueError):
        return False
    return True
