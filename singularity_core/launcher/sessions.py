"""Reads what proxies publish in the job's directory: doors and the first pages of sessions.

All of it is untrusted, because ranks may write to these files too: they are read with `pread` (a file that
shrinks meanwhile ends a read early; under a mapping it would be a SIGBUS for the launcher), and only
numbers are taken from them. The layout comes from the C headers by way of cffi."""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .agent_messages import Counters
from .door import DOOR_FILE

_SESSION_FILE = re.compile(r"\d{1,4}\.session")


@dataclass(frozen=True)
class SessionFacts:
    """A session of a rank, or of one of its children."""

    rank: int
    counters: Counters


def read_sessions(directory: Path) -> list[SessionFacts]:
    """The sessions that came through the door in `directory`, which may come and go meanwhile."""
    from singularity_core._native import ffi, lib

    found = []
    for name in sorted(filter(_SESSION_FILE.fullmatch, _names(directory))):
        page = _read(directory / name, ffi.sizeof("struct sg_session_page"))
        if page is None:
            continue
        it: Any = ffi.from_buffer("struct sg_session_page *", page)
        if it.magic == lib.SG_SESSION_MAGIC and it.protocol == lib.SG_PROTOCOL:
            found.append(SessionFacts(it.rank, _counters(it.counters, lib)))
    return found


def _counters(values: Any, lib: Any) -> Counters:
    return Counters(
        device_ns=values[lib.SG_COUNT_DEVICE_NS],
        queue_ns=values[lib.SG_COUNT_QUEUE_NS],
        switches=values[lib.SG_COUNT_SWITCHES],
        swapped_bytes=values[lib.SG_COUNT_SWAPPED],
        live_bytes=values[lib.SG_COUNT_LIVE_BYTES],
        launches=values[lib.SG_COUNT_LAUNCHES],
        messages=values[lib.SG_COUNT_MESSAGES],
    )


def sum_counters(counters: list[Counters]) -> Counters | None:
    """All of a rank's sessions together; None for none."""
    if not counters:
        return None
    names = Counters.__struct_fields__
    return Counters(**{name: sum(getattr(one, name) for one in counters) for name in names})


def read_arena_bytes(directory: Path) -> int | None:
    """What the proxy behind the door in `directory` offers each rank, in bytes; None while it is not open."""
    from singularity_core._native import ffi, lib

    content = _read(directory / DOOR_FILE, ffi.sizeof("struct sg_door"))
    if content is None:
        return None
    door: Any = ffi.from_buffer("struct sg_door *", content)
    if door.magic != lib.SG_DOOR_MAGIC or door.protocol != lib.SG_PROTOCOL or not door.ready:
        return None
    return int(door.device.total_bytes)


def _names(directory: Path) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []


def _read(path: Path, size: int) -> bytes | None:
    """The first `size` bytes of a regular file; None when it is not there, or shorter."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        content = os.pread(descriptor, size, 0) if stat.S_ISREG(os.fstat(descriptor).st_mode) else b""
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return content if len(content) == size else None
