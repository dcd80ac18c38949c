"""What the guard is told about processes.  Plain data; `scan` fills it in from /proc."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

Identity = tuple[int, int]
"""Device and inode: whether two names mean the same file."""


class FileType(enum.Enum):
    """What `stat` says that a descriptor refers to."""

    REGULAR = "file"
    DIRECTORY = "directory"
    CHARACTER = "character device"
    BLOCK = "block device"
    FIFO = "pipe"
    SOCKET = "socket"
    LINK = "symbolic link"
    ANONYMOUS = "kernel object"


@dataclass(frozen=True)
class Descriptor:
    """An open file of a process."""

    number: int
    target: str
    """Where the link in /proc leads."""
    type: FileType
    identity: Identity
    writable: bool = False
    unlinked: bool = False
    """No name leads to the file any more."""
    renamed: bool = False
    """The name that it was opened by is gone, and it has another."""
    in_memory: bool = False
    """It has a name in a file system in memory, of whose contents CRIU dumps nothing."""
    device: Identity = (0, 0)
    """Of a device file: major and minor number."""
    protocol: str = ""
    """Of a socket, as the kernel calls it."""
    detail: int | None = None
    """Of an eventfd its id; of a pidfd the process; of a terminal's master the terminal's number."""


@dataclass(frozen=True)
class Mapping:
    """A range of a process's memory that is no private anonymous memory."""

    start: int
    path: str
    identity: Identity
    shared: bool
    writable: bool
    unlinked: bool = False
    renamed: bool = False
    in_memory: bool = False
    """As for a descriptor."""


@dataclass(frozen=True)
class Connection:
    """A TCP socket."""

    inode: int
    local: tuple[str, int]
    remote: tuple[str, int]
    state: str
    """As in the standard: ESTABLISHED, LISTEN, ..."""
    unread: int = 0
    """Bytes that have arrived and not been read."""


@dataclass(frozen=True)
class Process:
    """A process of the tree."""

    pid: int
    name: str
    session: int
    group: int
    terminal: Identity | None = None
    """Its controlling terminal."""
    tracer: int = 0
    shares_ipc: bool = False
    """Whether its System V memory is that of who looks."""
    network: int = 0
    """Which network namespace."""
    descriptors: tuple[Descriptor, ...] = ()
    mappings: tuple[Mapping, ...] = ()


@dataclass(frozen=True)
class Outsider:
    """A process that is not of the tree, with what it has of what the tree has."""

    pid: int
    name: str
    writable: frozenset[Identity] = frozenset()
    """Shared memory, unlinked files and pipes that it can write to."""
    readable: frozenset[Identity] = frozenset()
    """The same, where it cannot."""
    eventfds: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Facts:
    """All that the guard decides upon."""

    processes: tuple[Process, ...]
    outsiders: tuple[Outsider, ...] = ()
    living: frozenset[int] = frozenset()
    """All processes that there are, the tree's included; by these `session` and the like are judged."""
    connections: dict[int, tuple[Connection, ...]] = field(default_factory=dict)
    """By network namespace: all TCP sockets, also those of nobody."""
    unix_peers: dict[int, int] = field(default_factory=dict)
    """By inode of a Unix socket: the inode of the one it is connected to."""

    @property
    def files_in_memory(self) -> tuple[str, ...]:
        """Named files in memory that the tree has open or mapped.  CRIU opens them again by name and dumps
        nothing of their contents: these are to be copied while the tree stands still, as others are."""
        found = {each.target for one in self.processes for each in one.descriptors if each.in_memory}
        found |= {each.path for one in self.processes for each in one.mappings if each.in_memory}
        return tuple(sorted(found))

    @property
    def unread(self) -> dict[tuple[int, int], int]:
        """By network and inode: how much has arrived on each TCP socket of the tree and was not read."""
        ours = {
            (process.network, each.identity[1])
            for process in self.processes
            for each in process.descriptors
            if each.type is FileType.SOCKET
        }
        return {
            (network, each.inode): each.unread
            for network, connections in self.connections.items()
            for each in connections
            if (network, each.inode) in ours
        }


@dataclass(frozen=True)
class Allowed:
    """What leads out of the tree and is known to: whoever restores sees to it."""

    paths: tuple[str, ...] = ()
    """Files, or directories with all in them, that somebody else keeps in step with the image."""
    pipes: frozenset[int] = frozenset()
    """Inodes of pipes (stdio) that are given anew at restore."""
