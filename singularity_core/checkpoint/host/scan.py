"""Reads in /proc what the guard judges.  The processes may run meanwhile, and end."""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from .facts import Connection, Descriptor, Facts, FileType, Identity, Mapping, Outsider, Process
from .process_tree import PROC, ProcessStatus, all_processes, tree_of
from .sockets import read_connections, read_unix_peers

_GONE = (FileNotFoundError, ProcessLookupError)
_IN_MEMORY = frozenset({"tmpfs", "ramfs", "hugetlbfs", "devtmpfs"})
_DELETED = " (deleted)"
_TYPES = (
    (stat.S_ISREG, FileType.REGULAR),
    (stat.S_ISDIR, FileType.DIRECTORY),
    (stat.S_ISCHR, FileType.CHARACTER),
    (stat.S_ISBLK, FileType.BLOCK),
    (stat.S_ISFIFO, FileType.FIFO),
    (stat.S_ISSOCK, FileType.SOCKET),
    (stat.S_ISLNK, FileType.LINK),
)


def scan(root: int, proc: Path = PROC) -> Facts:
    """The facts about the tree of `root`, as seen by root on the machine itself.

    Takes a look at every process of the machine, because any of them may share something with the tree.

    :raises TreeGoneError: The tree's first process has ended."""
    tree = [status for status in tree_of(root, proc) if not status.has_ended]
    everything = all_processes(proc)
    processes = tuple(found for status in tree if (found := _read_process(status, proc)) is not None)
    ours = {status.pid for status in tree}
    wanted = _Wanted.of(processes)
    outsiders = (_read_outsider(other, wanted, proc) for pid, other in everything.items() if pid not in ours)
    by_network = {process.network: process.pid for process in processes}
    connections: dict[int, tuple[Connection, ...]] = {}
    peers: dict[int, int] = {}
    for network, pid in by_network.items():
        try:
            connections[network] = tuple(read_connections(proc / str(pid)))
            peers |= read_unix_peers(proc / str(pid))
        except _GONE:
            continue
    return Facts(
        processes=processes,
        outsiders=tuple(found for found in outsiders if found is not None),
        living=frozenset(pid for pid, status in everything.items() if not status.has_ended),
        connections=connections,
        unix_peers=peers,
    )


@dataclass(frozen=True)
class _Wanted:
    """What the tree has that another process might have, too."""

    identities: frozenset[Identity]
    paths: frozenset[str]
    """Where links in /proc/PID/fd may lead to it.  No other file is looked at: one on a dead server hangs."""
    has_mappings: bool
    eventfds: frozenset[int]

    @classmethod
    def of(cls, processes: Collection[Process]) -> _Wanted:
        files = [
            each
            for process in processes
            for each in process.descriptors
            if each.type is FileType.FIFO
            or (each.type is FileType.REGULAR and (each.unlinked or each.target.startswith("/memfd:")))
        ]
        shared = [each for process in processes for each in process.mappings if each.shared]
        return cls(
            frozenset(each.identity for each in files) | frozenset(each.identity for each in shared),
            frozenset(each.target for each in files)
            | frozenset(each.path for each in shared if each.in_memory),
            bool(shared or files),
            frozenset(
                each.detail
                for process in processes
                for each in process.descriptors
                if each.target == "anon_inode:[eventfd]" and each.detail is not None
            ),
        )


def _read_process(status: ProcessStatus, proc: Path) -> Process | None:
    folder = proc / str(status.pid)
    try:
        said = (folder / "status").read_text(errors="replace")
        tracer = next(
            (int(line.split()[1]) for line in said.splitlines() if line.startswith("TracerPid:")), 0
        )
        in_memory = _memory_devices(folder)
        return Process(
            pid=status.pid,
            name=status.name,
            session=status.session,
            group=status.group,
            terminal=(os.major(status.terminal), os.minor(status.terminal)) if status.terminal else None,
            tracer=tracer,
            shares_ipc=os.stat(folder / "ns/ipc").st_ino == os.stat(proc / "self/ns/ipc").st_ino,
            network=os.stat(folder / "ns/net").st_ino,
            descriptors=tuple(_read_descriptors(folder, in_memory)),
            mappings=tuple(_read_mappings(folder, in_memory)),
        )
    except _GONE:
        return None


def _read_descriptors(folder: Path, in_memory: Collection[Identity]) -> Iterator[Descriptor]:
    for name in os.listdir(folder / "fd"):
        try:
            target = os.readlink(folder / "fd" / name)
            found = os.stat(folder / "fd" / name)
            info = (folder / "fdinfo" / name).read_text()
        except _GONE:
            continue
        kind = next((kind for is_it, kind in _TYPES if is_it(found.st_mode)), FileType.ANONYMOUS)
        if target.startswith(("anon_inode:", "pidfd:")):
            kind = FileType.ANONYMOUS
        unlinked = kind is FileType.REGULAR and found.st_nlink == 0
        device = (os.major(found.st_rdev), os.minor(found.st_rdev))
        yield Descriptor(
            number=int(name),
            target=target,
            type=kind,
            identity=(found.st_dev, found.st_ino),
            writable=_is_writable(info),
            unlinked=unlinked,
            renamed=kind is FileType.REGULAR and not unlinked and target.endswith(_DELETED),
            in_memory=kind is FileType.REGULAR
            and not unlinked
            and (os.major(found.st_dev), os.minor(found.st_dev)) in in_memory,
            device=device if kind in (FileType.CHARACTER, FileType.BLOCK) else (0, 0),
            protocol=_protocol(folder / "fd" / name) if kind is FileType.SOCKET else "",
            detail=_detail(info),
        )


def _read_mappings(folder: Path, in_memory: Collection[Identity]) -> Iterator[Mapping]:
    for line in (folder / "maps").read_text(errors="replace").splitlines():
        span, permissions, _, device, inode, *rest = line.split(maxsplit=5)
        path = rest[0] if rest else ""
        if inode == "0" and not path.startswith("anon_inode:"):
            continue
        major, _, minor = device.partition(":")
        shared = permissions[3] == "s"
        identity: Identity = (os.makedev(int(major, 16), int(minor, 16)), int(inode))
        yield Mapping(
            start=int(span.partition("-")[0], 16),
            path=path,
            # Some file systems show another device here than `stat` does.
            identity=_identity_of_mapping(folder, span, identity) if shared else identity,
            shared=shared,
            writable=permissions[1] == "w",
            unlinked=path.endswith(_DELETED),
            renamed=path.endswith(_DELETED) and _has_a_name(folder, span, in_memory),
            in_memory=not path.endswith(_DELETED) and (int(major, 16), int(minor, 16)) in in_memory,
        )


def _has_a_name(folder: Path, span: str, in_memory: Collection[Identity]) -> bool:
    """Whether the file of a mapping has one, on a disk."""
    start, _, end = span.partition("-")
    try:
        found = os.stat(folder / "map_files" / f"{int(start, 16):x}-{int(end, 16):x}")
    except OSError:
        return False
    return found.st_nlink > 0 and (os.major(found.st_dev), os.minor(found.st_dev)) not in in_memory


def _identity_of_mapping(folder: Path, span: str, otherwise: Identity) -> Identity:
    start, _, end = span.partition("-")
    try:
        found = os.stat(folder / "map_files" / f"{int(start, 16):x}-{int(end, 16):x}")
    except OSError:
        return otherwise
    return found.st_dev, found.st_ino


def _read_outsider(status: ProcessStatus, wanted: _Wanted, proc: Path) -> Outsider | None:
    """What a process outside of the tree shares with it; None: nothing, or it has ended."""
    folder = proc / str(status.pid)
    writable: set[Identity] = set()
    readable: set[Identity] = set()
    eventfds: set[int] = set()
    try:
        for name in os.listdir(folder / "fd"):
            try:
                target = os.readlink(folder / "fd" / name)
                if target == "anon_inode:[eventfd]":
                    detail = _detail((folder / "fdinfo" / name).read_text())
                    eventfds |= {detail} & wanted.eventfds if detail is not None else set()
                    continue
                if target not in wanted.paths and not target.endswith(_DELETED):
                    continue
                found = os.stat(folder / "fd" / name)
                identity = (found.st_dev, found.st_ino)
                if identity in wanted.identities:
                    info = (folder / "fdinfo" / name).read_text()
                    (writable if _is_writable(info) else readable).add(identity)
            except (*_GONE, PermissionError):
                continue
        if wanted.has_mappings:
            for mapping in _read_mappings(folder, ()):
                if mapping.shared and mapping.identity in wanted.identities:
                    (writable if mapping.writable else readable).add(mapping.identity)
    except (*_GONE, PermissionError):  # some machines hide their first process even from root
        return None
    if not (writable or readable or eventfds):
        return None
    return Outsider(status.pid, status.name, frozenset(writable), frozenset(readable), frozenset(eventfds))


def _memory_devices(folder: Path) -> frozenset[Identity]:
    """Devices of file systems that are in memory."""
    found = set()
    for line in (folder / "mountinfo").read_text(errors="replace").splitlines():
        before, _, after = line.partition(" - ")
        if after.split()[0] in _IN_MEMORY:
            major, _, minor = before.split()[2].partition(":")
            found.add((int(major), int(minor)))
    return frozenset(found)


def _protocol(descriptor: Path) -> str:
    try:
        return os.getxattr(descriptor, "system.sockprotoname").rstrip(b"\0").decode(errors="replace")
    except OSError:  # an old kernel; what it is the dump will then tell
        return ""


def _is_writable(info: str) -> bool:
    for line in info.splitlines():
        if line.startswith("flags:"):
            return int(line.split()[1], 8) & os.O_ACCMODE != os.O_RDONLY
    return False


def _detail(info: str) -> int | None:
    for line in info.splitlines():
        if line.startswith(("eventfd-id:", "Pid:", "tty-index:")):
            return int(line.split()[1])
    return None
