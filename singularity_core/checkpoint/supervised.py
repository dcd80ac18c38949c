"""Runs a command that may hang, or never stop talking: to its end, or to a deadline, and then kills it."""

from __future__ import annotations

import contextlib
import enum
import errno
import os
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence

OUTPUT_BYTES = 1 << 16
_KILL_SECONDS = 5.0
_GATE = ("/bin/sh", "-c", 'read -r go && exec "$@" < /dev/null', "sh")


class Waited(enum.Enum):
    """Why `Supervised.wait` returned."""

    ENDED = enum.auto()
    READY = enum.auto()
    LATE = enum.auto()


class Supervised:
    """A running command.  `finish` must be called, whatever happens."""

    def __init__(self, command: Sequence[str], *, pass_fds: Sequence[int] = (), gated: bool = False) -> None:
        """`gated`: the process waits for `open_gate` before it becomes the command; if this process ends
        before, that one does.

        `OSError`: it cannot be started."""
        if gated and shutil.which(command[0]) is None:
            raise FileNotFoundError(errno.ENOENT, "no such command", command[0])
        self._process = subprocess.Popen(
            [*_GATE, *command] if gated else command,
            stdin=subprocess.PIPE if gated else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=pass_fds,
        )
        self.pid = self._process.pid
        self._output = bytearray()

    def open_gate(self) -> None:
        """Let it become the command."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError), self._process.stdin as gate:
            gate.write(b"go\n")

    @property
    def output(self) -> str:
        """What it said: of endless output only the beginning."""
        return self._output.decode(errors="replace")

    def wait(self, until: float, descriptor: int | None = None) -> Waited:
        """Until it ends, `descriptor` can be read, or it is `until` by the monotonic clock."""
        assert self._process.stdout is not None
        pipe = self._process.stdout.fileno()
        process = os.pidfd_open(self.pid)
        watched = [process, pipe] if descriptor is None else [process, pipe, descriptor]
        try:
            while (left := until - time.monotonic()) > 0:
                ready = select.select(watched, [], [], left)[0]
                if descriptor is not None and descriptor in ready:
                    return Waited.READY
                if process in ready:
                    return Waited.ENDED
                if pipe in ready and not self._read(pipe):
                    watched.remove(pipe)
            return Waited.LATE
        finally:
            os.close(process)

    def finish(self) -> int:
        """Kill what is left of its process group; the exit status, negative for a signal."""
        assert self._process.stdout is not None
        with self._process.stdout as pipe:
            if self._process.stdin is not None:
                self._process.stdin.close()
            # Not waited for yet, so the number cannot mean another's group.
            os.killpg(self.pid, signal.SIGKILL)
            # What was killed, be it in another group, may write files until it has closed its end.
            until = time.monotonic() + _KILL_SECONDS
            while (left := until - time.monotonic()) > 0 and select.select([pipe], [], [], left)[0]:
                if not self._read(pipe.fileno()):
                    break
        return self._process.wait()

    def _read(self, pipe: int) -> bool:
        """Whether there may be more."""
        data = os.read(pipe, OUTPUT_BYTES)
        self._output += data[: OUTPUT_BYTES - len(self._output)]
        return bool(data)
