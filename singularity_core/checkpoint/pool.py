"""Threads for what a store does with chunks, or none: then it is done at once, by who asks."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")


class Pool:
    """`threads` of a writer's or reader's own."""

    def __init__(self, threads: int, name: str) -> None:
        self.window = 2 * threads
        """How many calls may be under way: enough that no thread waits for the next."""
        self._threads = ThreadPoolExecutor(threads, name) if threads else None

    def submit(self, call: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        """Calls it in a thread.  Without threads: now, and what it raises is raised here."""
        if self._threads is not None:
            return self._threads.submit(call, *args, **kwargs)
        done: Future[_T] = Future()
        done.set_result(call(*args, **kwargs))
        return done

    def close(self) -> None:
        """Waits for calls that run; those that have not begun are cancelled."""
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)
