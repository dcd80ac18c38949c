"""Carries what ranks and proxies print to the terminal and into log files, and remembers the last lines."""

from __future__ import annotations

import abc
import contextlib
import os
import selectors
from collections import deque
from pathlib import Path
from typing import BinaryIO

from .report import say
from .terminal import Terminal

TAIL_LINES = 20
_LONGEST_LINE = 4096


class Output(abc.ABC):
    """One output stream of one process, wherever it comes from."""

    def __init__(self, terminal: Terminal, *, prefix: str, log: Path | None) -> None:
        """`terminal`: where to copy it.  `prefix` goes before each line there, not in the log."""
        self.log_path = log
        self._terminal = terminal
        self._prefix = prefix.encode()
        self._partial = b""
        self._tail: deque[bytes] = deque(maxlen=TAIL_LINES)
        self.muted = False
        """What comes from now on is what had to come, and is not shown."""

    @property
    def tail(self) -> list[str]:
        """The last lines, without line ends."""
        lines = [*self._tail, self._partial] if self._partial else list(self._tail)
        return [line[:_LONGEST_LINE].decode(errors="replace") for line in lines[-TAIL_LINES:]]

    @abc.abstractmethod
    def watch(self, selector: selectors.BaseSelector) -> None:
        """From now on `selector` calls it whenever something has come."""

    @abc.abstractmethod
    def close(self) -> None:
        """The process has ended: takes what is still there, without waiting for more."""

    def _show(self, data: bytes) -> None:
        lines = (self._partial + data).split(b"\n")
        self._partial = lines.pop()[-(1 << 20) :]
        self._tail.extend(lines)
        if self.muted:
            return
        if not self._prefix:
            self._terminal.write(data)
        elif lines:
            self._terminal.write(b"".join(self._prefix + line + b"\n" for line in lines))

    def _show_end(self) -> None:
        """A last line may lack its end."""
        if self._prefix and self._partial and not self.muted:
            self._terminal.write(self._prefix + self._partial + b"\n")


class Relay(Output):
    """Comes through a pipe, is read without blocking, and kept in a log if that is wanted."""

    def __init__(self, terminal: Terminal, *, prefix: str = "", log: Path | None = None) -> None:
        super().__init__(terminal, prefix=prefix, log=log)
        self.reading, self.writing = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self.reading, False)
        self._selector: selectors.BaseSelector | None = None
        self._closed = False
        self._log: BinaryIO | None = None
        if log is not None:
            log.parent.mkdir(parents=True, exist_ok=True)
            self._log = log.open("ab", buffering=0)  # another proxy may have begun it

    def close_writing(self) -> None:
        """Once the process has its copy."""
        os.close(self.writing)

    def watch(self, selector: selectors.BaseSelector) -> None:
        """From now on `selector` calls it whenever something has come.  While its terminal is full it reads
        nothing, so that the process waits as it would for a reader of its own."""
        selector.register(self.reading, selectors.EVENT_READ, self._ready)
        self._selector = selector

    def _unwatch(self) -> None:
        if self._selector is not None:
            self._selector.unregister(self.reading)
            self._selector = None

    def _ready(self) -> None:
        assert self._selector is not None
        selector = self._selector
        if not self._pump():
            self._unwatch()
        elif self._terminal.full:
            self._unwatch()
            self._terminal.when_room(lambda: None if self._closed else self.watch(selector))

    def _pump(self, *, last: bool = False) -> bool:
        """Carries on what has come; False at the end of file.  `last`: whatever the terminal says."""
        for _ in range(16):  # then let others have their turn
            if self._terminal.full and not last:
                return True
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

    def close(self) -> None:
        """Takes what is still in the pipe, without waiting for descendants that hold it open."""
        self._closed = True
        self._unwatch()
        with contextlib.suppress(OSError):
            self._pump(last=True)
        self._show_end()
        if self._log is not None:
            self._log.close()
        os.close(self.reading)
