"""The launcher's own output, which nobody may be reading: a stopped terminal, a pager at its first page.

That must not stop the loop that watches the job.  While a `Terminal` is attached to it, what cannot be
written at once waits in a backlog, and the loop writes it when there is room; who writes much looks at
`full` first.  The descriptor itself is shared with other processes and stays as it is: a pipe or terminal is
opened once more, without blocking, by way of /proc.  Where that is not allowed (or for a socket) as much is
written as always fits once poll says that there is room.
"""

from __future__ import annotations

import os
import select
import selectors
import stat
from collections.abc import Callable

MOST_BACKLOG = 1 << 20
"""Bytes from which a terminal is full."""


class Terminal:
    """One descriptor.  Before `attach` and after `detach`, writing waits for the reader as usual."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._own = -1  # the same pipe or terminal, opened without blocking
        self._piece = select.PIPE_BUF  # what `_descriptor` takes without blocking when poll says so
        self._backlog = bytearray()
        self._gone = False
        self._selector: selectors.BaseSelector | None = None
        self._watched = False
        self._waiters: list[Callable[[], None]] = []

    def attach(self, selector: selectors.BaseSelector) -> None:
        """From now on nothing waits; the selector's keys carry callbacks."""
        self._selector = selector
        self._gone = False
        try:
            mode = os.fstat(self._descriptor).st_mode
            if stat.S_ISREG(mode):
                self._piece = MOST_BACKLOG
            elif stat.S_ISFIFO(mode) or stat.S_ISCHR(mode):
                flags = os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
                self._own = os.open(f"/proc/self/fd/{self._descriptor}", flags)
        except OSError:  # another user's terminal, or nobody reads: writing will show
            return

    def detach(self) -> None:
        """The loop ends; the backlog stays, for `drain`."""
        self._watch(False)
        self._selector = None
        self._waiters.clear()

    @property
    def full(self) -> bool:
        """So much waits that no more should come."""
        return len(self._backlog) >= MOST_BACKLOG

    def when_room(self, call: Callable[[], None]) -> None:
        """Calls `call` once it is not full any more."""
        self._waiters.append(call)

    def write(self, data: bytes) -> None:
        """Writes `data` now or later; drops it when nobody can read it any more."""
        if self._gone:
            return
        self._backlog += data
        if self._selector is None:
            self.drain(None)
        else:
            self._flush()

    def drain(self, patience: float | None) -> None:
        """Waits until all is written; forgets the rest when for `patience` seconds (None: ever) nothing is
        taken."""
        poll = select.poll()
        poll.register(self._target, select.POLLOUT)
        while self._backlog:
            if not poll.poll(None if patience is None else patience * 1000):
                self._backlog.clear()
            else:
                self._write_some()
        if self._own >= 0 and self._selector is None:
            os.close(self._own)
            self._own = -1

    # ---- inside ----------------------------------------------------------------------------------------

    @property
    def _target(self) -> int:
        return self._own if self._own >= 0 else self._descriptor

    def _flush(self) -> None:
        while self._backlog and self._write_some():
            continue
        self._watch(bool(self._backlog))
        if self._waiters and not self.full:
            waiters, self._waiters = self._waiters, []
            for call in waiters:
                call()

    def _write_some(self) -> bool:
        """False when there is no room now."""
        try:
            if self._own >= 0:
                written = os.write(self._own, bytes(self._backlog[:MOST_BACKLOG]))
            elif _has_room(self._descriptor):
                written = os.write(self._descriptor, bytes(self._backlog[: self._piece]))
            else:
                return False
        except BlockingIOError:
            return False
        except OSError:  # nobody will read it any more
            self._gone = True
            written = len(self._backlog)
        del self._backlog[:written]
        return True

    def _watch(self, on: bool) -> None:
        if self._selector is None or on == self._watched:
            return
        if on:
            self._selector.register(self._target, selectors.EVENT_WRITE, self._flush)
        else:
            self._selector.unregister(self._target)
        self._watched = on


def _has_room(descriptor: int) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    return bool(poll.poll(0))


STANDARD_OUTPUT = Terminal(1)
STANDARD_ERROR = Terminal(2)
TERMINALS = (STANDARD_OUTPUT, STANDARD_ERROR)
"""Those of this process."""
