"""What takes long and blocks, beside the supervisor's loop: calls in threads of their own."""

from __future__ import annotations

import os
import queue
import selectors
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

_T = TypeVar("_T")


class Worker:
    """A thread that does one thing after the other.  Who ends need not wait for it: a store may not
    answer."""

    def __init__(self, name: str) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._begun = False

    def submit(self, call: Callable[..., _T], *arguments: Any) -> Future[_T]:
        """Calls it, after all that was submitted before."""
        future: Future[_T] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(call(*arguments))
            except BaseException as error:  # raised again where the result is wanted
                future.set_exception(error)

        if not self._begun:
            self._begun = True
            self._thread.start()
        self._calls.put(run)
        return future

    def close(self, seconds: float) -> bool:
        """Submits nothing more; waits for what was submitted, but not for longer than that.  Whether all of
        it was done."""
        self._calls.put(None)
        if self._begun:
            self._thread.join(seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (run := self._calls.get()) is not None:
            run()


class Background(Generic[_T]):
    """One call.  While one runs, the supervisor must not collect children that it does not know: the call may
    have started and wait for some."""

    running = 0
    """How many there are in this process."""

    def __init__(self, call: Callable[[], _T], selector: selectors.BaseSelector) -> None:
        """Begins it; `selector` wakes up when it has ended, and must then be given its turn."""
        self._call = call
        self._selector = selector
        self._result: _T | None = None
        self._error: BaseException | None = None
        self._told = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        selector.register(self._told, selectors.EVENT_READ, self._finish)
        self.done = False
        Background.running += 1
        self._thread = threading.Thread(target=self._run, name="background", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._result = self._call()
        except BaseException as error:  # raised again where the result is wanted
            self._error = error
        finally:
            os.eventfd_write(self._told, 1)

    def _finish(self) -> None:
        """In the loop."""
        self._selector.unregister(self._told)
        self._thread.join()
        os.close(self._told)
        Background.running -= 1
        self.done = True

    def result(self) -> _T:
        """What the call returned, or raises what it raised.  Only when it is `done`."""
        assert self.done
        if self._error is not None:
            raise self._error
        result: _T = self._result  # type: ignore[assignment]
        return result
