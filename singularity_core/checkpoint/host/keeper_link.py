"""The owner's end of a keeper."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn, TypeVar

import msgspec

from .cgroup import release_abandoned
from .errors import HoldError, HostImageError
from .messages import LARGEST_MESSAGE, Answer, Begin, Ended, Failed, Ready, Request, Started
from .process_tree import all_processes, descendants

_SLACK_SECONDS = 30.0
_Answer = TypeVar("_Answer", bound=msgspec.Struct)


class KeeperLostError(HostImageError):
    """The keeper was killed.  What it kept was let go."""


class KeeperLink:
    """A keeper, and what must be undone in its place if it dies.  Used by one thread."""

    def __init__(self, place: Path, *, cgroup: Path | None = None, passed: Sequence[int] = ()) -> None:
        """`cgroup` is where the keeper makes its own; `passed` are descriptors that CRIU inherits."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._criu: int | None = None
        self._cgroup = cgroup
        self.criu_pid: int | None = None
        names = map(str, passed)
        with theirs:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-P",
                    "-m",
                    f"{__package__}.keeper",
                    str(theirs.fileno()),
                    str(place),
                    *names,
                ],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno(), *passed],
                start_new_session=True,  # no key at a terminal reaches it
            )
        self._socket = ours
        try:
            self.images = Path(self._receive(Ready).images)
            """Made by the keeper; what it left if it dies is removed here."""
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let the keeper undo what it keeps, and see to it that nothing is left."""
        self._socket.close()
        try:
            self._process.wait()
            self._undo()
        finally:
            with contextlib.suppress(AttributeError):  # it died before it had made them
                shutil.rmtree(self.images, ignore_errors=True)
            if self._criu is not None:
                os.close(self._criu)
                self._criu = None

    def ask(self, request: Request, answer: type[_Answer]) -> _Answer:
        """:raises KeeperLostError: It is dead, and what it had done is undone."""
        try:
            self._socket.send(msgspec.json.encode(request))
        except OSError:
            self._lose()
        return self._receive(answer)

    def run_criu(self, request: Request, seconds: float) -> Ended:
        """As `ask`; should the keeper die meanwhile, CRIU is let end within `seconds`."""
        started = self.ask(request, Started)
        try:
            self._criu = os.pidfd_open(started.pid)
        except ProcessLookupError:  # only if the keeper died, too
            self._lose()
        self.criu_pid = started.pid
        self._until = time.monotonic() + seconds + _SLACK_SECONDS
        return self.ask(Begin(), Ended)

    def _receive(self, kind: type[_Answer]) -> _Answer:
        try:
            packet = self._socket.recv(LARGEST_MESSAGE)
        except ConnectionResetError:
            packet = b""
        if not packet:
            self._lose()
        answer = msgspec.json.decode(packet, type=Answer)
        if isinstance(answer, Failed):
            raise HoldError(answer.cause, remedy=answer.remedy)
        assert isinstance(answer, kind)
        return answer

    def _lose(self) -> NoReturn:
        self._process.wait()
        self._undo()
        raise KeeperLostError(
            f"The process that kept the job still was killed (status {self._process.returncode}); "
            "the job goes on.",
            remedy="Take another checkpoint; if it happens again, see whether memory runs out.",
        )

    def _undo(self) -> None:
        """Nothing is left to do where the keeper did it.  How it ended does not tell: whoever owns this
        process may collect its children."""
        if self._criu is not None:
            left = max(self._until - time.monotonic(), 0)
            if not select.select([self._criu], [], [], left)[0]:
                assert self.criu_pid is not None
                for status in descendants(all_processes().values(), self.criu_pid):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(status.pid, signal.SIGKILL)
                select.select([self._criu], [], [])
        if self._cgroup is not None:
            release_abandoned(self._cgroup)
