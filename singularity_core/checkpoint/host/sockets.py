"""What the kernel tells about sockets of a network namespace."""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import threading
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path

from .facts import Connection

_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_REQUEST_DUMP = 0x301
_DONE, _ERROR = 3, 2
_SHOW_PEER, _PEER = 4, 2
_ALL_STATES = 0xFFFFFFFF
_CLONE_NEWNET = 0x40000000
_HEADER = struct.Struct("=IHHII")
_REQUEST = struct.Struct("=BBHIIIII")
_ANSWER = struct.Struct("=BBBBIII")
_ATTRIBUTE = struct.Struct("=HH")
_ANSWER_BYTES = 1 << 18
_STATES = (
    "", "ESTABLISHED", "SYN_SENT", "SYN_RECV", "FIN_WAIT1", "FIN_WAIT2", "TIME_WAIT", "CLOSE", "CLOSE_WAIT",
    "LAST_ACK", "LISTEN", "CLOSING", "NEW_SYN_RECV",
)  # fmt: skip


def read_connections(proc: Path) -> Iterator[Connection]:
    """TCP sockets in the network namespace of a process, given its directory in /proc."""
    for name in ("tcp", "tcp6"):
        try:
            table = (proc / "net" / name).read_text()
        except FileNotFoundError:  # a kernel without IPv6
            continue
        yield from parse_connections(table)


def parse_connections(table: str) -> Iterator[Connection]:
    """The rows of /proc/net/tcp or tcp6."""
    for line in table.splitlines()[1:]:
        fields = line.split()
        state = int(fields[3], 16)
        said = _STATES[state] if state < len(_STATES) else f"state {state}"
        # Of a listener the second number counts connections that wait to be accepted.
        unread = int(fields[4].partition(":")[2], 16)
        yield Connection(int(fields[9]), _parse_end(fields[1]), _parse_end(fields[2]), said, unread)


def _parse_end(text: str) -> tuple[str, int]:
    words, port = text.split(":")
    # Each group of 32 bits is printed as a number of this machine's byte order.
    raw = b"".join(struct.pack("=I", int(words[at : at + 8], 16)) for at in range(0, len(words), 8))
    address = IPv4Address(raw) if len(raw) == 4 else IPv6Address(raw)
    return str(address), int(port, 16)


def read_unix_peers(proc: Path) -> dict[int, int]:
    """Of each connected Unix socket in the network namespace of a process, the inode of its peer."""
    with _diagnosis_socket(proc) as channel:
        request = _REQUEST.pack(socket.AF_UNIX, 0, 0, _ALL_STATES, 0, _SHOW_PEER, 0, 0)
        channel.send(
            _HEADER.pack(_HEADER.size + len(request), _SOCK_DIAG_BY_FAMILY, _REQUEST_DUMP, 1, 0) + request
        )
        peers: dict[int, int] = {}
        while True:
            answer = channel.recv(_ANSWER_BYTES)
            for kind, body in _messages(answer):
                if kind == _DONE:
                    return peers
                if kind == _ERROR:
                    number = -struct.unpack_from("=i", body)[0]
                    raise OSError(number, f"the kernel does not list Unix sockets: {os.strerror(number)}")
                inode, peer = parse_unix_socket(body)
                if peer:
                    peers[inode] = peer


def parse_unix_socket(body: bytes) -> tuple[int, int]:
    """The inode of a socket and of its peer (0: none) in one answer of the kernel."""
    inode = _ANSWER.unpack_from(body)[4]
    at = _ANSWER.size
    while at + _ATTRIBUTE.size <= len(body):
        size, kind = _ATTRIBUTE.unpack_from(body, at)
        if size < _ATTRIBUTE.size:
            break
        if kind == _PEER:
            return inode, struct.unpack_from("=I", body, at + _ATTRIBUTE.size)[0]
        at += -(-size // 4) * 4
    return inode, 0


def _messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + _HEADER.size <= len(data):
        size, kind, *_ = _HEADER.unpack_from(data, at)
        yield kind, data[at + _HEADER.size : at + size]
        at += max(-(-size // 4) * 4, _HEADER.size)


def _diagnosis_socket(proc: Path) -> socket.socket:
    """A socket asks about the namespace that it was made in, whoever uses it then."""
    if os.stat(proc / "ns/net").st_ino == os.stat("/proc/self/ns/net").st_ino:
        return socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG)
    made: list[socket.socket | OSError] = []

    def make() -> None:
        try:
            _enter_network(proc / "ns/net")
            made.append(socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG))
        except OSError as error:
            made.append(error)

    # A thread's namespace is its own, and this one ends right here.
    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    if isinstance(made[0], OSError):
        raise made[0]
    return made[0]


def _enter_network(namespace: Path) -> None:
    descriptor = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(descriptor, _CLONE_NEWNET) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(namespace))
    finally:
        os.close(descriptor)
