"""Carries what ranks and proxies print to the terminal and into log files, and remembers the last lines."""

from __future__ import annotations

import contextlib
import os
from collections import deque
from pathlib import Path
from typing import BinaryIO

from .report import say

TAIL_LINES = 20
_LONGEST_LINE = 4096


class Relay:
    """One output stream of one process, read without blocking."""

    def __init__(self, terminal: int | None, *, prefix: str = "", log: Path | None = None) -> None:
        """`terminal`: file descriptor to copy to.  `prefix` goes before each line there, not in the log."""
        self.reading, self.writing = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self.reading, False)
        self.log_path = log
        self._terminal = terminal
        self._prefix = prefix.encode()
        self._partial = b""
        self._tail: deque[bytes] = deque(maxlen=TAIL_LINES)
        self._log: BinaryIO | None = None
        if log is not None:
            log.parent.mkdir(parents=True, exist_ok=True)
            self._log = log.open("wb", buffering=0)

    @property
    def tail(self) -> list[str]:
        """The last lines, without line ends."""
        lines = [*self._tail, self._partial] if self._partial else list(self._tail)
        return [line[:_LONGEST_LINE].decode(errors="replace") for line in lines[-TAIL_LINES:]]

    def close_writing(self) -> None:
        """Once the process has its copy."""
        os.close(self.writing)

    def pump(self) -> bool:
        """Carries on what has come; False at the end of file."""
        for _ in range(16):  # then let others have their turn
            try:
                data = os.read(self.reading, 65536)
            except BlockingIOError:
                return True
            if not data:
                return False
            self._keep(data)
            self._show(data)
        return True

    def _keep(self, data: bytes) -> None:
        if self._log is not None:
            try:
                self._log.write(data)
            except OSError as error:  # a full disk ends the log, not the job
                say(f"{self.log_path} is not written any further: {error.strerror}")
                self._log.close()
                self._log = None

    def _show(self, data: bytes) -> None:
        lines = (self._partial + data).split(b"\n")
        self._partial = lines.pop()[-(1 << 20) :]
        self._tail.extend(lines)
        if not self._prefix:
            self._write(data)
        elif lines:
            self._write(b"".join(self._prefix + line + b"\n" for line in lines))

    def _write(self, data: bytes) -> None:
        while data and self._terminal is not None:
            try:
                data = data[os.write(self._terminal, data) :]
            except BlockingIOError:
                continue
            except OSError:  # nobody reads it any more; the log still gets it
                self._terminal = None

    def close(self) -> None:
        """Takes what is still in the pipe, without waiting for descendants that hold it open."""
        with contextlib.suppress(OSError):
            self.pump()
        if self._prefix and self._partial:
            self._write(self._prefix + self._partial + b"\n")
        if self._log is not None:
            self._log.close()
        os.close(self.reading)
