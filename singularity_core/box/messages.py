"""What the launcher and the processes in the box say to each other, over a pair of sockets that only they
have.  A message is its length and msgpack; descriptors travel beside it."""

from __future__ import annotations

import array
import contextlib
import errno
import os
import socket
import struct
from collections import deque
from collections.abc import Sequence
from typing import TypeVar

import msgspec

_LENGTH = struct.Struct("=I")
_LONGEST = 64 << 20
_MOST_DESCRIPTORS = 8
_READ_BYTES = 1 << 16


class Message(msgspec.Struct, frozen=True, tag=True):
    """Paths and names are bytes, for they need not be text."""


class Share(msgspec.Struct, frozen=True):
    """A directory that the box sees, such as one below /dev/shm, which it has otherwise for itself."""

    outside: bytes
    inside: bytes
    """Where the box sees it: after a restore, where the job that was dumped had its own."""


class Plan(Message, frozen=True):
    """What the box is to be like; the first message."""

    directory: bytes
    """For the box's own files, as the box sees it."""
    work_directory: bytes
    hostname: str
    address: str | None
    """Of the job, in a network of its own; None: the machine's network."""
    shared: list[Share]
    fixed_addresses: bool
    """Without address space randomization."""
    binds: list[Share] = []
    """Directories that are seen in the place of others, which must be there."""
    restored: bool = False
    """Its ranks will come from a checkpoint (`RunTool`, `Adopt`): nobody starts any."""


class StartRank(Message, frozen=True):
    """Start a rank; answered by `Started` with a pidfd, or `NotStarted`."""

    command: list[bytes]
    environment: list[tuple[bytes, bytes]]
    stdout: bytes
    """Files to append to."""
    stderr: bytes


class Seal(Message, frozen=True):
    """All ranks have been started: their parent becomes the keeper.  Not answered."""


class RunTool(Message, frozen=True):
    """Run a program beside the ranks, as a child of the box's first process, with none of their limits: CRIU.
    Answered by `Started` with a pidfd, or `NotStarted`; later `Ended`."""

    command: list[bytes]
    environment: list[tuple[bytes, bytes]]
    output: bytes
    """File to append to."""


class Adopt(Message, frozen=True):
    """A tool has restored this process.  Answered by `Started` with a pidfd, or `NotStarted`."""

    pid: int
    """In the box."""
    is_keeper: bool
    """It is the root of what was restored, and a child of the box's first process; else a rank."""


class Opened(Message, frozen=True):
    """The box is there.  Comes with the pidfds of its first process and, where there is one, of the ranks'
    parent."""

    keeper: int
    """The latter's number in the box; 0: there is none."""


class Failed(Message, frozen=True):
    """There is no box."""

    cause: str
    remedy: str


class Started(Message, frozen=True):
    """A rank or a tool runs; comes with its pidfd."""

    pid: int
    """In the box."""


class NotStarted(Message, frozen=True):
    """The system refused to start, or to find, a process."""

    number: int
    """errno."""
    place: bytes
    """The file that it is about; may be empty."""


class Ended(Message, frozen=True):
    """A tool, or a child of the ranks' parent, has ended."""

    pid: int
    status: int
    """As waitpid(2) has it."""


AnyMessage = Plan | StartRank | Seal | RunTool | Adopt | Opened | Failed | Started | NotStarted | Ended
_decoder = msgspec.msgpack.Decoder(AnyMessage)
_M = TypeVar("_M", bound=Message)


class ChannelClosedError(Exception):
    """The other side is gone."""


class Channel:
    """One end of a pair of sockets."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._received = bytearray()
        self._descriptors: deque[int] = deque()

    def fileno(self) -> int:
        """For a selector."""
        return self._socket.fileno()

    def send(self, message: Message, descriptors: Sequence[int] = ()) -> None:
        """Waits until it is on its way.

        :raises ChannelClosedError: Nobody will read it."""
        body = msgspec.msgpack.encode(message)
        frame = _LENGTH.pack(len(body)) + body
        attached = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
        try:
            sent = self._socket.sendmsg([frame], attached if descriptors else [], socket.MSG_NOSIGNAL)
            if sent < len(frame):  # with nothing left, it would fail when the other side has gone content
                self._socket.sendall(frame[sent:], socket.MSG_NOSIGNAL)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise ChannelClosedError from error

    def receive(self, *kinds: type[_M]) -> _M:
        """Waits for the next message, which must be of one of these kinds.

        :raises ChannelClosedError: There will be none.
        :raises OSError: There is no room for a descriptor that came with it."""
        while (message := self._take()) is None:
            self._read(0)
        if not isinstance(message, kinds):
            raise TypeError(f"a {type(message).__name__} where {kinds} are due")
        return message

    def ready(self) -> list[AnyMessage]:
        """The messages that have come.

        :raises ChannelClosedError: There are none, and there will be none."""
        with contextlib.suppress(BlockingIOError):
            self._read(socket.MSG_DONTWAIT)
        found: list[AnyMessage] = []
        while (message := self._take()) is not None:
            found.append(message)
        return found

    @property
    def pending(self) -> bool:
        """Whether a whole message has come that nobody has taken."""
        return self._whole() is not None

    def take_descriptor(self) -> int:
        """The next of those that came with messages."""
        return self._descriptors.popleft()

    def close(self) -> None:
        """Harmless when repeated."""
        self._socket.close()
        while self._descriptors:
            os.close(self._descriptors.popleft())

    def _read(self, flags: int) -> None:
        room = socket.CMSG_SPACE(_MOST_DESCRIPTORS * array.array("i").itemsize)
        try:  # not socket.recv_fds: some releases ignore its flags
            data, attached, found, _ = self._socket.recvmsg(
                _READ_BYTES, room, flags | socket.MSG_CMSG_CLOEXEC
            )
        except ConnectionResetError:
            data, attached, found = b"", [], 0
        for _, _, packed in attached:
            self._descriptors.extend(array.array("i", packed))
        if found & socket.MSG_CTRUNC:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        self._received += data
        if not data:
            raise ChannelClosedError

    def _whole(self) -> int | None:
        """Where the next message ends, if it has come."""
        if len(self._received) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._received)
        if length > _LONGEST:
            raise ValueError(f"a message of {length} bytes")
        end = _LENGTH.size + int(length)
        return end if len(self._received) >= end else None

    def _take(self) -> AnyMessage | None:
        end = self._whole()
        if end is None:
            return None
        message: AnyMessage = _decoder.decode(bytes(self._received[_LENGTH.size : end]))
        del self._received[:end]
        return message


def channel_pair() -> tuple[Channel, socket.socket]:
    """Our end, and the socket for the other side."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    return Channel(ours), theirs
