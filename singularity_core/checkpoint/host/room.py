"""Whether there is room in memory for the images of a tree."""

from __future__ import annotations

import os
from pathlib import Path

from .errors import NoRoomError
from .process_tree import PROC, tree_of

_SMALL_IMAGES_BYTES = 16 << 20
"""For what is not pages, with some to spare."""
_MEMORY_FILE_SYSTEMS = ("tmpfs", "ramfs")
_COUNTED = ("Anonymous:", "Swap:", "Shared_Hugetlb:", "Private_Hugetlb:")
_GONE = (FileNotFoundError, ProcessLookupError)


def estimate_image(root: int, proc: Path = PROC) -> int:
    """Bytes that a dump of the tree will take, more or less: its own pages, and shared memory without a name.

    The kernel counts pages that were copied by fork and not written in each process; so does CRIU."""
    total = _SMALL_IMAGES_BYTES
    seen: set[tuple[str, str]] = set()
    for status in tree_of(root, proc):
        folder = proc / str(status.pid)
        try:
            for line in (folder / "smaps_rollup").read_text().splitlines():
                name, *rest = line.split()
                if name in _COUNTED:
                    total += int(rest[0]) << 10
            for line in (folder / "maps").read_text(errors="replace").splitlines():
                span, permissions, _, device, inode, *path = line.split(maxsplit=5)
                unnamed = path and path[0].endswith("(deleted)")
                if permissions[3] == "s" and unnamed and (device, inode) not in seen:
                    seen.add((device, inode))
                    start, end = (int(word, 16) for word in span.split("-"))
                    total += end - start
        except _GONE:
            continue
    return total


def unlinked_bytes(root: int, proc: Path = PROC) -> int:
    """The size of the largest file without a name that the tree has open: CRIU wants a limit for these."""
    largest = 0
    for status in tree_of(root, proc):
        try:
            for name in os.listdir(proc / str(status.pid) / "fd"):
                try:
                    link = proc / str(status.pid) / "fd" / name
                    if os.readlink(link).endswith(" (deleted)"):
                        largest = max(largest, os.stat(link).st_size)
                except _GONE:
                    continue
        except _GONE:
            continue
    return largest


def check_room(place: Path, needed: int, *, times_in_memory: int = 1) -> None:
    """:raises NoRoomError: `place` is not in memory, or has not `needed` bytes; or the machine has not so
    many times as much memory."""
    if (kind := file_system_of(place)) not in _MEMORY_FILE_SYSTEMS:
        raise NoRoomError(
            f"{place} is on {kind or 'an unknown file system'}: the job would stand still for long.",
            remedy="Name a directory on a tmpfs, such as /dev/shm.",
        )
    found = os.statvfs(place)
    room = found.f_bavail * found.f_frsize
    if kind == "tmpfs" and found.f_blocks and room < needed:
        raise NoRoomError(
            f"{place} has {_mib(room)} of room; the images take about {_mib(needed)}.",
            remedy=f"Free some, or make it larger (mount -o remount,size=... {place}).",
        )
    available = available_memory()
    if available < times_in_memory * needed:
        raise NoRoomError(
            f"{_mib(available)} of memory are free; it takes about {_mib(times_in_memory * needed)}.",
            remedy="Free memory, or give the machine more.",
        )


def available_memory(proc: Path = PROC) -> int:
    """Bytes that programs can still get."""
    for line in (proc / "meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return 0


def file_system_of(place: Path, proc: Path = PROC) -> str:
    """The type of the file system that a directory is in."""
    device = os.stat(place).st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for line in (proc / "self/mountinfo").read_text(errors="replace").splitlines():
        before, _, after = line.partition(" - ")
        if before.split()[2] == wanted:
            return after.split()[0]
    return ""


def _mib(size: int) -> str:
    return f"{size >> 20} MiB"
