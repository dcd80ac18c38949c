"""Refuses what CRIU would silently break, or cannot carry, before any harm is done.  Pure.

CRIU restores the processes of a tree and what is theirs alone.  What they share with a process outside of it
either makes the dump fail, or worse, comes back as a private copy: both sides go on, and no longer hear of
each other.  So anything that leads out of the tree is refused, unless it is one of the few things for which
somebody sees to it (`Allowed`).  Kernel objects are accepted by kind: one that nobody thought of is
refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import ip_address

from .facts import Allowed, Connection, Descriptor, Facts, FileType, Identity, Mapping, Outsider, Process

_CARRIED_KINDS = frozenset(
    {"[eventpoll]", "[eventfd]", "[signalfd]", "[timerfd]", "[pidfd]", "inotify", "[fanotify]"}
)
_REMEDIES_BY_KIND = {
    "[io_uring]": "Start the job in its box, where io_uring is refused in a way that programs survive, or "
    "let the program use epoll (uvloop: UV_USE_IO_URING=0).",
    "[userfaultfd]": "Take the checkpoint when the program has closed it.",
    "[perf_event]": "End the profiler, or start the job without it.",
}
_CARRIED_PROTOCOLS = frozenset(
    {"TCP", "TCPv6", "UDP", "UDPv6", "UDPLITE", "UDPLITEv6", "UNIX", "UNIX-STREAM", "UNIX-DGRAM"}
    | {"NETLINK", "PACKET", "RAW", "RAWv6", "PING", "PINGv6"}
)
_CARRIED_DEVICES = frozenset({(1, 3), (1, 5), (1, 7), (1, 8), (1, 9), (5, 2)})
"""/dev/null, zero, full, random, urandom; ptmx is judged with the terminals."""
_PTMX = (5, 2)
_OWN_TERMINAL = (5, 0)
"""/dev/tty: whichever the process has."""
_TERMINALS = frozenset({4, 5, 229, *range(136, 144), 204})
_PTS_MAJORS = range(136, 144)
_RENAMED = (
    "lost the name that it was opened by and has another, which CRIU restores only where the dump was made",
    "Close it before the checkpoint, or let the program open it by a name that stays.",
)
_SHARED_MEMORY_REMEDY = (
    "End that process, or start it as part of the job; files that are known to be shared can be allowed by "
    "path."
)


@dataclass(frozen=True)
class Verdict:
    """One thing that stands in the way."""

    pid: int
    process: str
    what: str
    """The descriptor or mapping, and what is wrong with it."""
    remedy: str

    def __str__(self) -> str:
        return f"Process {self.pid} ({self.process}): {self.what}. {self.remedy}"


def judge(facts: Facts, allowed: Allowed = Allowed()) -> list[Verdict]:  # noqa: B008  (immutable)
    """All that stands in the way of a dump, in the order of the processes; empty: nothing does."""
    judgement = _Judgement(facts, allowed)
    return [
        Verdict(process.pid, process.name, what, remedy)
        for process in facts.processes
        for what, remedy in judgement.of(process)
    ]


_Finding = tuple[str, str]


class _Judgement:
    def __init__(self, facts: Facts, allowed: Allowed) -> None:
        self._facts = facts
        self._allowed = allowed
        self._pids = {process.pid for process in facts.processes}
        descriptors = [each for process in facts.processes for each in process.descriptors]
        self._sockets = {each.identity[1] for each in descriptors if each.type is FileType.SOCKET}
        self._masters = {each.detail for each in descriptors if each.device == _PTMX}
        self._writable_here = {each.identity for each in descriptors if each.writable}
        self._writable_here |= {
            each.identity
            for process in facts.processes
            for each in process.mappings
            if each.shared and each.writable
        }
        self._by_inode = {
            (network, each.inode): each
            for network, connections in facts.connections.items()
            for each in connections
            if each.inode
        }
        self._by_ends = {
            (network, _normal(each.local), _normal(each.remote)): each
            for network, connections in facts.connections.items()
            for each in connections
        }

    def of(self, process: Process) -> Iterator[_Finding]:
        yield from self._relations(process)
        for descriptor in process.descriptors:
            for what, remedy in self._descriptor(process, descriptor):
                yield f"descriptor {descriptor.number} ({descriptor.target}) {what}", remedy
        seen: set[tuple[Identity, str]] = set()
        for mapping in process.mappings:
            if (mapping.identity, mapping.path) in seen:
                continue
            for what, remedy in self._mapping(process, mapping):
                seen.add((mapping.identity, mapping.path))
                yield f"the mapping at {mapping.start:#x} ({mapping.path}) {what}", remedy
                break

    def _relations(self, process: Process) -> Iterator[_Finding]:
        if process.tracer:
            yield f"process {process.tracer} traces it", "Detach the debugger or strace."
        for kind, leader in (("session", process.session), ("process group", process.group)):
            # A leader that ended is made up at restore; one that lives elsewhere cannot be.
            if leader not in self._pids and leader in self._facts.living:
                yield (
                    f"its {kind} is led by process {leader}, which is not part of the job",
                    "Start the job's first process in a session of its own (setsid).",
                )
        if process.terminal is not None and not self._terminal_is_ours(process.terminal):
            yield (
                f"its controlling terminal {process.terminal[0]}:{process.terminal[1]} is somebody else's",
                "Start the job in a session of its own, without a terminal (setsid).",
            )

    def _descriptor(self, process: Process, descriptor: Descriptor) -> Iterator[_Finding]:
        if descriptor.type is FileType.SOCKET:
            yield from self._socket(process, descriptor)
        elif descriptor.type is FileType.FIFO:
            yield from self._pipe(descriptor)
        elif descriptor.type is FileType.ANONYMOUS:
            yield from self._kernel_object(descriptor)
        elif descriptor.type in (FileType.CHARACTER, FileType.BLOCK):
            yield from self._device(process, descriptor)
        elif descriptor.type is FileType.REGULAR and not self._is_allowed(descriptor.target):
            if descriptor.target.startswith(("/dmabuf:", "/secretmem")):
                yield "is memory that only its driver can read", "Close it before the checkpoint."
            elif descriptor.renamed and not descriptor.in_memory:
                yield _RENAMED
            elif descriptor.unlinked or descriptor.target.startswith("/memfd:"):
                yield from self._shared_with(
                    descriptor.identity, "has no name and would come back as a private copy"
                )

    def _socket(self, process: Process, descriptor: Descriptor) -> Iterator[_Finding]:
        inode = descriptor.identity[1]
        if descriptor.protocol and descriptor.protocol not in _CARRIED_PROTOCOLS:
            yield (
                f"is a socket of the kind {descriptor.protocol}, which cannot be carried",
                "Close it before the checkpoint, or use TCP or Unix sockets.",
            )
            return
        peer = self._facts.unix_peers.get(inode, 0)
        if peer and peer not in self._sockets:
            yield (
                "is a Unix socket that is connected to a process outside of the job",
                "Close the connection before the checkpoint, or start that process as part of the job.",
            )
        connection = self._by_inode.get((process.network, inode))
        if connection is not None and self._leads_out(process.network, connection):
            yield (
                f"is a TCP connection ({connection.state}) from {_address(connection.local)} to "
                f"{_address(connection.remote)}, which is not part of the job",
                "Close the connection before the checkpoint.",
            )

    def _leads_out(self, network: int, connection: Connection) -> bool:
        if connection.state in ("LISTEN", "CLOSE"):
            return False
        peer = self._by_ends.get((network, _normal(connection.remote), _normal(connection.local)))
        if peer is not None and (peer.inode in self._sockets or peer.inode == 0):
            # Of nobody: a closed socket that only waits for the last packets.
            return False
        # The other side has closed, which is all that there is still to be read here.
        return not (peer is None and connection.state == "CLOSE_WAIT")

    def _pipe(self, descriptor: Descriptor) -> Iterator[_Finding]:
        if descriptor.identity[1] in self._allowed.pipes or self._is_allowed(descriptor.target):
            return
        for outsider in self._facts.outsiders:
            if descriptor.identity in outsider.writable | outsider.readable:
                yield (
                    f"is a pipe that {_named(outsider)}, which is not part of the job, holds too",
                    "Redirect it to a file, or let whoever restores give it anew.",
                )
                return

    def _kernel_object(self, descriptor: Descriptor) -> Iterator[_Finding]:
        kind = descriptor.target.removeprefix("anon_inode:")
        if kind.startswith("pidfd:"):
            kind = "[pidfd]"
        if kind not in _CARRIED_KINDS:
            yield (
                "is a kernel object of a kind that cannot be carried",
                _REMEDIES_BY_KIND.get(kind, "Close it before the checkpoint."),
            )
        elif kind == "[pidfd]":
            if descriptor.detail in self._facts.living and descriptor.detail not in self._pids:
                yield (
                    f"refers to process {descriptor.detail}, which is not part of the job",
                    "Close it before the checkpoint.",
                )
        elif kind == "[eventfd]" and descriptor.detail is not None:
            for outsider in self._facts.outsiders:
                if descriptor.detail in outsider.eventfds:
                    yield (
                        f"is shared with {_named(outsider)}, which is not part of the job",
                        ("Close it before the checkpoint, or start that process as part of the job."),
                    )
                    return

    def _device(self, process: Process, descriptor: Descriptor) -> Iterator[_Finding]:
        if descriptor.type is FileType.CHARACTER:
            if descriptor.device in _CARRIED_DEVICES:
                return
            if descriptor.device[0] in _TERMINALS:
                device = process.terminal if descriptor.device == _OWN_TERMINAL else descriptor.device
                if device is None or not self._terminal_is_ours(device):
                    yield (
                        "is a terminal of somebody else",
                        "Start the job with its input and output in files or pipes.",
                    )
                return
        if not self._is_allowed(descriptor.target):
            yield (
                "is a device whose state cannot be carried",
                "Close it before the checkpoint; devices of the job are used through the device proxy.",
            )

    def _terminal_is_ours(self, device: Identity) -> bool:
        major, minor = device
        if major not in _PTS_MAJORS:
            return False
        return (major - _PTS_MAJORS.start) * 256 + minor in self._masters

    def _mapping(self, process: Process, mapping: Mapping) -> Iterator[_Finding]:
        path = mapping.path
        if self._is_allowed(path):
            return
        if path.startswith("anon_inode:"):
            kind = path.removeprefix("anon_inode:")
            yield (
                "is memory of a kernel object that cannot be carried",
                _REMEDIES_BY_KIND.get(kind, "Take the checkpoint when the program has unmapped it."),
            )
        elif path.startswith(("/dmabuf:", "/secretmem")):
            yield "is memory that only its driver can read", "Unmap it before the checkpoint."
        elif path.startswith("/dev/") and not path.startswith(("/dev/shm/", "/dev/zero")):
            yield "is memory of a device", "Unmap it before the checkpoint."
        elif path.startswith("/SYSV") and process.shares_ipc:
            yield (
                "is System V shared memory, which any process of the machine may use",
                "Start the job in its box, or in an IPC namespace of its own (unshare --ipc).",
            )
        elif mapping.renamed:
            yield _RENAMED
        elif mapping.shared:
            yield from self._shared_with(mapping.identity, "is shared memory")

    def _shared_with(self, identity: Identity, what: str) -> Iterator[_Finding]:
        for outsider in self._facts.outsiders:
            written_there = identity in outsider.writable
            read_there = identity in outsider.readable
            if written_there or (read_there and identity in self._writable_here):
                yield (
                    f"{what}: {_named(outsider)}, which is not part of the job, has it too",
                    _SHARED_MEMORY_REMEDY,
                )
                return

    def _is_allowed(self, path: str) -> bool:
        path = path.removesuffix(" (deleted)")
        return any(path == one or path.startswith(f"{one.rstrip('/')}/") for one in self._allowed.paths)


def _named(outsider: Outsider) -> str:
    return f"process {outsider.pid} ({outsider.name})"


def _normal(end: tuple[str, int]) -> tuple[str, int]:
    """IPv4 in IPv6's clothes is the same address."""
    address = ip_address(end[0])
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address), end[1]


def _address(end: tuple[str, int]) -> str:
    host, port = _normal(end)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
