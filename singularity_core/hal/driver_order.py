"""Streams and events of a `DriverDevice`: which exist, so that bad handles never reach the driver."""

from __future__ import annotations

import threading
from typing import Any

from .driver_calls import NOT_READY, DriverLibrary
from .errors import InvalidHandle, InvalidState
from .types import DEFAULT_STREAM, EventHandle, StreamHandle

_TIMING_OFF = 2


class DriverOrder:
    """The device's context is current around every call."""

    def __init__(self, library: DriverLibrary) -> None:
        self._library, self._ffi = library, library.ffi
        self._lock = threading.Lock()  # of two threads that destroy the same handle one is refused
        self._streams: set[int] = set()
        self._events: dict[int, bool] = {}  # handle: has timing

    def stream(self, stream: StreamHandle) -> Any:
        """The driver's handle.  `InvalidHandle` for an unknown one."""
        if stream != DEFAULT_STREAM and stream not in self._streams:
            raise InvalidHandle(f"There is no stream {stream:#x} on this device.")
        return self._ffi.cast("void *", int(stream))

    def event(self, event: EventHandle) -> Any:
        """The driver's handle.  `InvalidHandle` for an unknown one."""
        if event not in self._events:
            raise InvalidHandle(f"There is no event {event:#x} on this device.")
        return self._ffi.cast("void *", int(event))

    def create_stream(self, priority: int) -> StreamHandle:
        """As `Device.create_stream`."""
        out = self._ffi.new("void **")
        self._library.call("cuStreamCreateWithPriority", out, 0, priority)
        handle = int(self._ffi.cast("uintptr_t", out[0]))
        self._streams.add(handle)
        return StreamHandle(handle)

    def destroy_stream(self, stream: StreamHandle) -> None:
        """As `Device.destroy_stream`."""
        if stream == DEFAULT_STREAM:
            raise InvalidHandle("The default stream cannot be destroyed.")
        with self._lock:
            queue = self.stream(stream)
            self._streams.discard(stream)
            self._library.call("cuStreamDestroy_v2", queue)

    def create_event(self, *, timing: bool) -> EventHandle:
        """As `Device.create_event`."""
        out = self._ffi.new("void **")
        self._library.call("cuEventCreate", out, 0 if timing else _TIMING_OFF)
        handle = int(self._ffi.cast("uintptr_t", out[0]))
        self._events[handle] = timing
        return EventHandle(handle)

    def destroy_event(self, event: EventHandle) -> None:
        """As `Device.destroy_event`."""
        with self._lock:
            mark = self.event(event)
            del self._events[event]
            self._library.call("cuEventDestroy_v2", mark)

    def done(self, query: str, handle: Any) -> bool:
        """Asks the driver by the call `query`."""
        code = self._library.ask(query, handle)
        if code not in (0, NOT_READY):
            raise self._library.error(code, query)
        return code == 0

    def elapsed(self, start: EventHandle, end: EventHandle) -> float:
        """As `Device.elapsed`."""
        milliseconds = self._ffi.new("float *")
        first, last = self.event(start), self.event(end)
        if not (self._events[start] and self._events[end]):
            raise InvalidHandle(
                "An event without timing cannot measure.", remedy="Create it with timing=True."
            )
        code = self._library.ask("cuEventElapsedTime", milliseconds, first, last)
        if code == NOT_READY:
            raise InvalidState("An event is not done yet.", remedy="Call synchronize_event first.")
        if code:
            raise self._library.error(code, "cuEventElapsedTime")
        return float(milliseconds[0]) / 1000.0
