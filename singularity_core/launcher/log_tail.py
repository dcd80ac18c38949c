"""Output that ranks append to log files themselves, carried to the terminal from there.

A checkpoint knows a file by its path and size, while a pipe would lead to a launcher that is not there any
more after a restore.  inotify says when something has come.  A file has no reader to wait for: a rank is
not held up by a terminal that nobody reads.  Files that only the launcher reads (without --log-dir) lie in
memory, and give back what has been read."""

from __future__ import annotations

import contextlib
import os
import selectors
import struct
from collections.abc import Callable
from pathlib import Path

from ..box.system_calls import free_pages, inotify_modified, inotify_open
from .output import Output
from .terminal import Terminal

_EVENT = struct.Struct("=iIII")
_PAGE = 1 << 16
"""No file system's is larger."""
_READ_BYTES = 1 << 16
_READS_IN_A_ROW = 16


class LogWatch:
    """One inotify instance for all files: a user may have few."""

    def __init__(self) -> None:
        self._events = inotify_open()
        self._again = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._calls: dict[int, Callable[[], None]] = {}
        self._waiting: list[Callable[[], None]] = []
        self._selector: selectors.BaseSelector | None = None

    def watch(self, selector: selectors.BaseSelector, path: Path, call: Callable[[], None]) -> None:
        """From now on `selector` calls `call` whenever somebody has written to the file."""
        if self._selector is None:
            selector.register(self._events, selectors.EVENT_READ, self._take_events)
            selector.register(self._again, selectors.EVENT_READ, self._go_on)
            self._selector = selector
        self._calls[inotify_modified(self._events, path)] = call

    def call_again(self, call: Callable[[], None]) -> None:
        """In the next turn of the loop."""
        self._waiting.append(call)
        os.eventfd_write(self._again, 1)

    def _take_events(self) -> None:
        data = os.read(self._events, 1 << 16)
        written, offset = set(), 0
        while offset < len(data):
            number, _, _, length = _EVENT.unpack_from(data, offset)
            offset += _EVENT.size + length
            written |= {number} if number >= 0 else set(self._calls)  # -1: too many events, some are lost
        for number in sorted(written):
            if number in self._calls:
                self._calls[number]()

    def _go_on(self) -> None:
        os.eventfd_read(self._again)
        calls, self._waiting = self._waiting, []
        for call in calls:
            call()

    def close(self) -> None:
        """Harmless when repeated."""
        if self._events >= 0:
            if self._selector is not None:
                self._selector.unregister(self._events)
                self._selector.unregister(self._again)
            os.close(self._events)
            os.close(self._again)
            self._events = self._again = -1


class LogTail(Output):
    """One log file."""

    def __init__(
        self,
        watch: LogWatch,
        terminal: Terminal,
        path: Path,
        *,
        prefix: str = "",
        log: Path | None,
        goes_on: bool = False,
    ) -> None:
        """`path` is absolute.  `log`: how it is named to the user; None: nobody is told of it, and what has
        been read is not kept.  `goes_on`: the file is there, and what is in it was shown; else it is
        begun."""
        super().__init__(terminal, prefix=prefix, log=log)
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._log_watch = watch
        self._forget = log is None
        self._forgotten = 0
        self._closed = False
        begins = 0 if goes_on else os.O_CREAT | os.O_TRUNC
        self._file = os.open(path, os.O_RDWR | os.O_CLOEXEC | begins, 0o666)
        self._offset = os.fstat(self._file).st_size

    def watch(self, selector: selectors.BaseSelector) -> None:
        """See `Output`."""
        self._log_watch.watch(selector, self.path, self._ready)
        self._ready()

    def _ready(self) -> None:
        if self._closed:
            return
        for _ in range(_READS_IN_A_ROW):
            if self._terminal.full:
                self._terminal.when_room(self._ready)
                return
            if not self._read():
                return
        self._log_watch.call_again(self._ready)

    def _read(self) -> bool:
        """False when all is read."""
        data = os.pread(self._file, _READ_BYTES, self._offset)
        self._offset += len(data)
        self._show(data)
        done = self._offset // _PAGE * _PAGE
        if self._forget and done > self._forgotten:
            with contextlib.suppress(OSError):  # then it stays
                free_pages(self._file, self._forgotten, done)
            self._forgotten = done
        return len(data) > 0

    def close(self) -> None:
        """See `Output`."""
        end = os.fstat(self._file).st_size  # children may still write
        while self._offset < end and self._read():
            continue
        self._show_end()
        self._closed = True
        os.close(self._file)
