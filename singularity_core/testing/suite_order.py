"""Conformance of order: streams, events, and waiting for everything."""

from __future__ import annotations

import threading

import pytest

from ..hal import DEFAULT_STREAM, Capability, InvalidHandle, InvalidState, StreamHandle
from ..hal.types import EventHandle
from .harness import Harness, Workspace, pattern
from .requirements import requires

LARGE = 6 << 20  # enough work that a missing wait shows


class OrderTests(Harness):
    """What happens before what.  Nothing here depends on how fast the device is."""

    def test_work_on_one_stream_is_ordered(self, space: Workspace) -> None:
        """A chain of copies and fills on the default stream ends with the last one's content."""
        a, b = space.put(pattern(LARGE)), space.take(LARGE)
        for value in range(5):
            space.device.fill(b, value, LARGE)
            space.device.copy_on_device(a, b, LARGE)
        assert space.get(a, LARGE) == bytes([4]) * LARGE

    def test_quiesce_waits_for_everything(self, space: Workspace) -> None:
        """After quiesce, device memory holds the result of all work of all streams."""
        streams = [DEFAULT_STREAM]
        if Capability.STREAMS in space.device.capabilities:
            streams += [space.device.create_stream() for _ in range(3)]
        targets = [space.take(LARGE) for _ in streams]
        source = space.put(pattern(LARGE))
        for stream, target in zip(streams, targets, strict=True):
            space.device.copy_on_device(target, source, LARGE, stream)
        space.device.quiesce()
        for target in targets:
            assert self.raw_read(space.device, target, LARGE) == pattern(LARGE)

    def test_methods_may_be_called_from_any_thread(self, space: Workspace) -> None:
        """Threads that copy at the same time do not disturb each other."""
        addresses = [space.take(1 << 16) for _ in range(4)]
        failures: list[str] = []

        def work(index: int) -> None:
            for turn in range(20):
                content = pattern(1 << 16, seed=100 * index + turn)
                space.device.copy_to_device(addresses[index], content)
                if space.get(addresses[index], 1 << 16) != content:
                    failures.append(f"thread {index}, turn {turn}")

        threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures

    def test_close_waits_for_calls_under_way(self, space: Workspace) -> None:
        """A device that is closed while threads use it lets their calls end, and refuses the next ones."""
        address = space.put(pattern(1 << 16))
        said: list[str] = []
        started = threading.Barrier(4)

        def work() -> None:
            started.wait()
            try:
                while True:
                    if space.get(address, 1 << 16) != pattern(1 << 16):
                        said.append("content")
            except InvalidState:
                said.append("refused")

        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        started.wait()
        space.device.close()
        for thread in threads:
            thread.join()
        assert said == ["refused"] * 3

    # ---- streams ----------------------------------------------------------------------------------

    @requires(Capability.STREAMS)
    def test_stream_is_ordered(self, space: Workspace) -> None:
        """Work on a created stream happens in the order of the calls, and its synchronisation waits for
        it."""
        stream = space.device.create_stream()
        a, b = space.put(pattern(LARGE)), space.take(LARGE)
        for value in range(1, 4):
            space.device.fill(b, value, LARGE, stream=stream)
            space.device.copy_on_device(a, b, LARGE, stream)
        space.device.synchronize_stream(stream)
        assert space.device.query_stream(stream)
        assert space.get(a, LARGE) == bytes([3]) * LARGE

    @requires(Capability.STREAMS)
    def test_default_stream_orders_all_streams(self, space: Workspace) -> None:
        """Work on the default stream comes after earlier and before later work of other streams."""
        first, second = space.device.create_stream(), space.device.create_stream()
        a, b, c = space.take(LARGE), space.take(LARGE), space.take(LARGE)
        space.device.fill(a, 7, LARGE, stream=first)
        space.device.copy_on_device(b, a, LARGE)
        space.device.copy_on_device(c, b, LARGE, second)
        assert space.get(c, LARGE, second) == bytes([7]) * LARGE

    @requires(Capability.STREAMS)
    def test_destroyed_stream_finishes_its_work(self, space: Workspace) -> None:
        """Work that was queued on a stream happens although the stream is destroyed."""
        stream, target = space.device.create_stream(), space.take(LARGE)
        space.device.fill(target, 9, LARGE, stream=stream)
        space.device.destroy_stream(stream)
        space.device.quiesce()
        assert space.get(target, LARGE) == bytes([9]) * LARGE

    @requires(Capability.STREAMS)
    def test_unknown_stream_is_refused(self, space: Workspace) -> None:
        """An invented or destroyed stream is InvalidHandle; so is destroying the default stream."""
        device, address = space.device, space.take(512)
        gone = device.create_stream()
        device.destroy_stream(gone)
        for bad in (gone, StreamHandle(0x1234560)):
            for call in (
                lambda s=bad: device.destroy_stream(s),
                lambda s=bad: device.synchronize_stream(s),
                lambda s=bad: device.query_stream(s),
                lambda s=bad: device.fill(address, 0, 8, stream=s),
            ):
                with pytest.raises(InvalidHandle):
                    call()
        with pytest.raises(InvalidHandle):
            device.destroy_stream(DEFAULT_STREAM)

    # ---- events -----------------------------------------------------------------------------------

    @requires(Capability.EVENTS)
    def test_event_that_was_never_recorded_is_done(self, space: Workspace) -> None:
        """An event counts as done until it is recorded, so nothing waits for it."""
        event = space.device.create_event()
        assert space.device.query_event(event)
        space.device.synchronize_event(event)
        space.device.wait_event(DEFAULT_STREAM, event)
        space.device.quiesce()
        space.device.destroy_event(event)

    @requires(Capability.EVENTS)
    def test_host_waits_for_an_event(self, space: Workspace) -> None:
        """After synchronize_event, the work before the event is done."""
        event, target = space.device.create_event(), space.take(LARGE)
        space.device.fill(target, 3, LARGE)
        space.device.record_event(event)
        space.device.synchronize_event(event)
        assert space.device.query_event(event)
        assert self.raw_read(space.device, target, LARGE) == bytes([3]) * LARGE

    @requires(Capability.EVENTS, Capability.STREAMS)
    def test_stream_waits_for_an_event(self, space: Workspace) -> None:
        """Work after wait_event sees the work of the other stream before the event, and not what comes
        later."""
        device = space.device
        first, second = device.create_stream(), device.create_stream()
        a, b = space.take(LARGE), space.take(LARGE)
        done = device.create_event()
        for value in (1, 2, 3, 4):
            device.fill(a, value, LARGE, stream=first)
            device.record_event(done, first)
            device.wait_event(second, done)
            device.copy_on_device(b, a, LARGE, second)
            copied = device.create_event()
            device.record_event(copied, second)
            device.wait_event(first, copied)
            device.destroy_event(copied)
        assert space.get(b, LARGE, second) == bytes([4]) * LARGE

    @requires(Capability.EVENTS)
    def test_unknown_event_is_refused(self, space: Workspace) -> None:
        """An invented or destroyed event is InvalidHandle."""
        device = space.device
        gone = device.create_event()
        device.destroy_event(gone)
        for bad in (gone, EventHandle(0x1234560)):
            for call in (
                lambda e=bad: device.record_event(e),
                lambda e=bad: device.wait_event(DEFAULT_STREAM, e),
                lambda e=bad: device.query_event(e),
                lambda e=bad: device.synchronize_event(e),
                lambda e=bad: device.destroy_event(e),
            ):
                with pytest.raises(InvalidHandle):
                    call()

    @requires(Capability.EVENTS_TIMING)
    def test_elapsed_time(self, space: Workspace) -> None:
        """Time between events in order is not negative, and that of the whole covers its parts."""
        device, target = space.device, space.take(LARGE)
        marks = [device.create_event(timing=True) for _ in range(3)]
        for mark in marks:
            device.fill(target, 1, LARGE)
            device.record_event(mark)
        device.quiesce()
        first, second = device.elapsed(marks[0], marks[1]), device.elapsed(marks[1], marks[2])
        whole = device.elapsed(marks[0], marks[2])
        assert first >= 0
        assert second >= 0
        assert whole == pytest.approx(first + second, abs=1e-5)

    @requires(Capability.EVENTS_TIMING)
    def test_elapsed_time_needs_timing_and_records(self, space: Workspace) -> None:
        """Events without timing, or never recorded, are InvalidHandle."""
        device = space.device
        timed, plain, fresh = (device.create_event(timing=timing) for timing in (True, False, True))
        for event in (timed, plain):
            device.record_event(event)
        device.quiesce()
        with pytest.raises(InvalidHandle):
            device.elapsed(timed, plain)
        with pytest.raises((InvalidHandle, InvalidState)):
            device.elapsed(timed, fresh)
