"""The tutorial's array device with streams, events, gates and settle: every piece of work says when it may
begin, and a thread per stream carries it out.  Loaded as a plugin; array_backend.py must be importable."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from array_backend import ArrayBackend, ArrayDevice

from singularity_core.hal import (
    DEFAULT_STREAM,
    BackendRegistration,
    Capability,
    Device,
    DeviceProperties,
    InvalidArgument,
    InvalidHandle,
    hookimpl,
)
from singularity_core.hal.buffers import read_view, write_view
from singularity_core.hal.ranges import disjoint


@dataclass
class Work:
    """One thing to do, once `ready`; both are asked under the device's lock, `action` is not."""

    ready: Callable[[], bool]
    action: Callable[[], None] = lambda: None


@dataclass
class Stream:
    """A queue; `running` while its thread carries something out."""

    works: deque[Work] = field(default_factory=deque)
    submitted: int = 0
    completed: int = 0
    running: bool = False
    ended: bool = False


@dataclass
class Gate:
    """Open or not; a dropped one takes no more waits."""

    open: bool = False
    dropped: bool = False


class QueuedDevice(ArrayDevice):
    """Asynchronous, with one lock for everything."""

    capabilities = frozenset(
        {Capability.CHECKSUM, Capability.STREAMS, Capability.EVENTS, Capability.GATES, Capability.SETTLE}
    )
    backend_name = "queued"

    def __init__(self, properties: DeviceProperties) -> None:
        super().__init__(properties)
        self._moved = threading.Condition()
        self._streams = {DEFAULT_STREAM: Stream()}
        self._events: dict[int, tuple[Stream, int]] = {}
        self._gates: dict[int, Gate] = {}
        self._handles = itertools.count(4096)
        self._start(self._streams[DEFAULT_STREAM])

    def _start(self, stream: Stream) -> None:
        threading.Thread(target=self._work, args=(stream,), daemon=True).start()

    def _work(self, stream: Stream) -> None:
        while True:
            with self._moved:
                self._moved.wait_for(
                    lambda: (stream.works and stream.works[0].ready()) or (stream.ended and not stream.works)
                )
                if not stream.works:
                    return
                work, stream.running = stream.works[0], True
            work.action()
            with self._moved:
                stream.works.popleft()
                stream.completed, stream.running = stream.completed + 1, False
                self._moved.notify_all()

    def _stream(self, handle: int) -> Stream:
        if handle not in self._streams:
            raise InvalidHandle(f"There is no stream {handle}.")
        return self._streams[handle]

    def _submit(
        self, handle: int, action: Callable[[], None], ready: Callable[[], bool] = lambda: True
    ) -> None:
        with self._moved:
            self._require_open()
            stream = self._stream(handle)
            others = self._streams.values() if handle == DEFAULT_STREAM else [self._streams[DEFAULT_STREAM]]
            before = [(other, other.submitted) for other in others if other is not stream]
            stream.works.append(
                Work(lambda: ready() and all(other.completed >= count for other, count in before), action)
            )
            stream.submitted += 1
            self._moved.notify_all()

    def _wait(self, handle: int) -> None:
        with self._moved:
            self._require_open()
            stream = self._stream(handle)
            count = stream.submitted
            self._moved.wait_for(lambda: stream.completed >= count)

    # ---- content ----------------------------------------------------------------------------------

    def copy_to_device(self, dst, src, stream=DEFAULT_STREAM):
        content = bytes(read_view(src))
        self._stream(stream)
        self._at(dst, len(content))
        self._submit(stream, lambda: ArrayDevice.copy_to_device(self, dst, content))
        self._wait(stream)

    def copy_to_host(self, dst, src, stream=DEFAULT_STREAM):
        view = write_view(dst)
        self._stream(stream)
        self._at(src, len(view))
        self._submit(stream, lambda: ArrayDevice.copy_to_host(self, view, src))
        self._wait(stream)

    def copy_on_device(self, dst, src, size, stream=DEFAULT_STREAM):
        self._stream(stream)
        self._at(dst, size), self._at(src, size)
        if size and not disjoint(dst, src, size):
            raise InvalidArgument(f"Source {src:#x} and destination {dst:#x} of {size} bytes overlap.")
        self._submit(stream, lambda: ArrayDevice.copy_on_device(self, dst, src, size))

    def fill(self, dst, value, count, *, width=1, stream=DEFAULT_STREAM):
        self._stream(stream)
        ArrayDevice.fill(self, dst, 0, 0, width=width)
        self._at(dst, count * width)
        self._submit(stream, lambda: ArrayDevice.fill(self, dst, value, count, width=width))

    def digest(self, address: int, size: int) -> bytes:
        self.quiesce()
        return super().digest(address, size)

    # ---- order ------------------------------------------------------------------------------------

    def create_stream(self, priority: int = 0) -> int:
        with self._moved:
            self._require_open()
            handle = next(self._handles)
            self._streams[handle] = Stream()
            self._start(self._streams[handle])
            return handle

    def destroy_stream(self, stream: int) -> None:
        if stream == DEFAULT_STREAM:
            raise InvalidHandle("The default stream cannot be destroyed.")
        self._stream(stream)
        self._submit(DEFAULT_STREAM, lambda: None)  # keeps "all streams" true for who comes later
        with self._moved:
            self._streams.pop(stream).ended = True
            self._moved.notify_all()

    def synchronize_stream(self, stream: int = DEFAULT_STREAM) -> None:
        self._wait(stream)

    def query_stream(self, stream: int = DEFAULT_STREAM) -> bool:
        with self._moved:
            found = self._stream(stream)
            return found.completed == found.submitted

    def create_event(self, *, timing: bool = False) -> int:
        with self._moved:
            handle = next(self._handles)
            self._events[handle] = (Stream(), 0)
            return handle

    def _event(self, event: int) -> tuple[Stream, int]:
        if event not in self._events:
            raise InvalidHandle(f"There is no event {event}.")
        return self._events[event]

    def destroy_event(self, event: int) -> None:
        self._event(event)
        del self._events[event]

    def record_event(self, event: int, stream: int = DEFAULT_STREAM) -> None:
        with self._moved:
            self._event(event)
            self._events[event] = (self._stream(stream), self._stream(stream).submitted)

    def wait_event(self, stream: int, event: int) -> None:
        found, count = self._event(event)
        self._submit(stream, lambda: None, lambda: found.completed >= count)

    def query_event(self, event: int) -> bool:
        found, count = self._event(event)
        return found.completed >= count

    def synchronize_event(self, event: int) -> None:
        found, count = self._event(event)
        with self._moved:
            self._moved.wait_for(lambda: found.completed >= count)

    def quiesce(self) -> None:
        with self._moved:
            self._require_open()
            self._moved.wait_for(lambda: all(s.completed == s.submitted for s in self._streams.values()))

    # ---- gates ------------------------------------------------------------------------------------

    def _gate(self, gate: int, *, usable: bool = False) -> Gate:
        found = self._gates.get(gate)
        if found is None or (found.dropped and (found.open or usable)):
            raise InvalidHandle(f"There is no gate {gate}.")
        return found

    def make_gate(self) -> int:
        with self._moved:
            self._require_open()
            handle = next(self._handles)
            self._gates[handle] = Gate()
            return handle

    def wait_gate(self, stream: int, gate: int) -> None:
        found = self._gate(gate, usable=True)
        self._submit(stream, lambda: None, lambda: found.open)

    def open_gate(self, gate: int) -> None:
        with self._moved:
            self._gate(gate).open = True
            self._moved.notify_all()

    def drop_gate(self, gate: int) -> None:
        with self._moved:
            self._gate(gate, usable=True).dropped = True

    def settle(self, timeout: float) -> bool:
        with self._moved:
            self._require_open()
            return self._moved.wait_for(
                lambda: (
                    not any(s.running or (s.works and s.works[0].ready()) for s in self._streams.values())
                ),
                timeout,
            )

    def close(self) -> None:
        with self._moved:
            for gate in self._gates.values():
                gate.open = True
            self._moved.notify_all()
            self._moved.wait_for(lambda: all(s.completed == s.submitted for s in self._streams.values()))
            for stream in self._streams.values():
                stream.ended = True
            self._moved.notify_all()
            super().close()

    def close_arena(self) -> None:
        self.quiesce()
        super().close_arena()


class QueuedBackend(ArrayBackend):
    name = "queued"
    summary = "a numpy array that behaves like an asynchronous device"

    def open_device(self, ordinal: int) -> Device:
        return QueuedDevice(self.properties(ordinal))


@hookimpl
def singularity_register_backends() -> Sequence[BackendRegistration]:
    return [BackendRegistration("queued", QueuedBackend)]
