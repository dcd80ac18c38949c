"""Which files processes have open or mapped, from /proc.  The processes must stand still meanwhile."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from .errors import StoreError

_MAPPING = re.compile(rb"[0-9a-f]+-[0-9a-f]+ (....) [0-9a-f]+ ([0-9a-f]+):([0-9a-f]+) (\d+) +(/.*)")
_DELETED = " (deleted)"


class ProcessUnreadableError(StoreError):
    """A process cannot be looked into."""


@dataclass(frozen=True)
class OpenFile:
    """A path that processes have open or mapped, all uses together."""

    path: str
    written: bool = False
    """Open for writing, or mapped shared and writable."""
    appended: bool = False
    """Open for appending by all who write it."""
    why: str = ""
    """The first use, in words."""


def open_files(processes: Iterable[int]) -> dict[str, OpenFile]:
    """All regular files by path.  Those that have no name any more are not among them: CRIU carries them."""
    found: dict[str, OpenFile] = {}
    for pid in processes:
        try:
            for each in (*_descriptors(pid), *_mappings(pid), *_executable(pid)):
                _merge(found, each)
        except OSError as error:
            raise ProcessUnreadableError(
                f"The files of process {pid} cannot be seen: {error.strerror}.",
                remedy="Run as the job's user, or as root.",
            ) from error
    return found


def _merge(found: dict[str, OpenFile], new: OpenFile) -> None:
    old = found.get(new.path)
    if old is not None:
        appended = new.appended or old.appended
        if (new.written and not new.appended) or (old.written and not old.appended):
            appended = False
        new = OpenFile(new.path, new.written or old.written, appended, old.why)
    found[new.path] = new


def _descriptors(pid: int) -> Iterable[OpenFile]:
    folder = Path(f"/proc/{pid}/fd")
    for number in sorted(os.listdir(folder), key=int):
        try:
            opened, path = os.stat(folder / number), os.readlink(folder / number)
        except FileNotFoundError:  # closed since
            continue
        if not stat.S_ISREG(opened.st_mode) or not _named(path, opened):
            continue
        flags = _flags(pid, number)
        written = flags & os.O_ACCMODE != os.O_RDONLY and not flags & os.O_PATH
        appended = written and bool(flags & os.O_APPEND)
        yield OpenFile(path, written, appended, f"process {pid} has it open as descriptor {number}")


def _named(path: str, opened: os.stat_result) -> bool:
    return path.startswith("/") and opened.st_nlink > 0


def _flags(pid: int, number: str) -> int:
    for line in Path(f"/proc/{pid}/fdinfo/{number}").read_text().splitlines():
        if line.startswith("flags:"):
            return int(line.split()[1], 8)
    return 0


def _mappings(pid: int) -> Iterable[OpenFile]:
    for line in Path(f"/proc/{pid}/maps").read_bytes().splitlines():
        found = _MAPPING.fullmatch(line)
        if found is None:
            continue
        path = _unescape(os.fsdecode(found[5]))
        if path.endswith(_DELETED) or path.startswith(("/memfd:", "/dev/zero", "/SYSV", "/anon_hugepage")):
            continue
        written = found[1][1:2] == b"w" and found[1][3:4] == b"s"
        yield OpenFile(path, written, False, f"process {pid} has it mapped")


def _unescape(path: str) -> str:
    return path.replace("\\012", "\n")


def _executable(pid: int) -> Iterable[OpenFile]:
    try:
        path = os.readlink(f"/proc/{pid}/exe")
    except FileNotFoundError:  # a zombie, or a kernel thread
        return
    if path.startswith("/") and not path.endswith(_DELETED):
        yield OpenFile(path, why=f"process {pid} runs it")
