"""What a hold calls what it makes, in a cgroup hierarchy and in memory: after the process that keeps it.

So whoever comes across it can see whether that process lives; if not, nobody will take it away any more."""

from __future__ import annotations

import os
import re
import secrets
from pathlib import Path

from .process_tree import PROC, read_status

_PREFIX = "singularity-hold-"
_NAME = re.compile(_PREFIX + r"(\d+)-(\d+)-(\d+)-[0-9a-f]{8}", re.ASCII)


def new_hold_name(pid: int, proc: Path = PROC) -> str:
    """A name for what process `pid` keeps."""
    status = read_status(pid, proc)
    started = status.started if status else 0
    return f"{_PREFIX}{_pid_namespace(proc)}-{pid}-{started}-{secrets.token_hex(4)}"


def is_hold_name(name: str) -> bool:
    """Whether `new_hold_name` made it."""
    return _NAME.fullmatch(name) is not None


def is_abandoned(name: str, proc: Path = PROC) -> bool:
    """Whether who keeps this hold is certainly dead; pids of another namespace tell nothing here."""
    found = _NAME.fullmatch(name)
    if found is None or int(found[1]) != _pid_namespace(proc):
        return False
    status = read_status(int(found[2]), proc)
    return status is None or status.has_ended or status.started != int(found[3])


def _pid_namespace(proc: Path) -> int:
    return os.stat(proc / "self/ns/pid").st_ino
