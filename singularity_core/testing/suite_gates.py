"""Conformance of gates and settling: what a device must tell and keep still before another rank may have
it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial

import pytest

from ..hal import DEFAULT_STREAM, Capability, InvalidHandle, StreamHandle
from ..hal.types import GateHandle
from .harness import Harness, Workspace, pattern
from .requirements import requires

SIZE = 6 << 20
PATIENCE = 60.0
"""Seconds after which something that has to happen is taken not to happen."""


def comes_true(condition: Callable[[], bool]) -> bool:
    """Whether `condition` holds within `PATIENCE`: a gate that never opens must not hang the suite."""
    until = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.001)
    return True


class GateTests(Harness):
    """Gates hold what follows until they are opened; settle tells when a device stands still."""

    def _let_run(self, space: Workspace) -> None:
        """Gives work that could run the time to do so: it is settled, or much other work was done since."""
        device = space.device
        if Capability.SETTLE in device.capabilities:
            assert device.settle(PATIENCE), "nothing runs but work behind closed gates, and that is settled"
            return
        other = device.create_stream()
        a, b = space.put(pattern(SIZE)), space.take(SIZE)
        for _ in range(20):
            device.copy_on_device(b, a, SIZE, other)
        device.synchronize_stream(other)

    @requires(Capability.GATES, Capability.STREAMS)
    def test_gate_holds_what_follows(self, space: Workspace) -> None:
        """Work behind a closed gate does not happen, in any stream that waits; after the opening it does."""
        device = space.device
        streams = [device.create_stream() for _ in range(3)]
        targets = [space.put(bytes(4096)) for _ in streams]
        gate = device.make_gate()
        for stream, target in zip(streams, targets, strict=True):
            device.fill(target, 1, 2048, stream=stream)
            device.wait_gate(stream, gate)
            device.fill(target, 2, 4096, stream=stream)
        self._let_run(space)
        reader = device.create_stream()
        for stream, target in zip(streams, targets, strict=True):
            assert not device.query_stream(stream)
            assert space.get(target, 4096, reader)[2048:] == bytes(2048)
        device.open_gate(gate)
        for stream, target in zip(streams, targets, strict=True):
            assert comes_true(partial(device.query_stream, stream)), "the gate does not open"
            assert space.get(target, 4096, reader) == bytes([2]) * 4096
        device.drop_gate(gate)

    @requires(Capability.GATES, Capability.STREAMS)
    def test_gate_opens_for_those_who_wait_on_the_host(self, space: Workspace) -> None:
        """A thread that synchronises with a stream at a gate goes on when another thread opens it."""
        device, stream, gate = space.device, space.device.create_stream(), space.device.make_gate()
        device.wait_gate(stream, gate)
        done = threading.Event()

        def wait() -> None:
            device.synchronize_stream(stream)
            done.set()

        thread = threading.Thread(target=wait, daemon=True)
        thread.start()
        assert not done.is_set()
        device.open_gate(gate)
        assert done.wait(PATIENCE)
        thread.join()

    @requires(Capability.GATES, Capability.STREAMS)
    def test_open_gate_holds_nobody(self, space: Workspace) -> None:
        """Who waits at an open gate does not wait; opening it again does nothing; others stay closed."""
        device, stream, target = space.device, space.device.create_stream(), space.put(bytes(512))
        first, second = device.make_gate(), device.make_gate()
        device.open_gate(first)
        device.open_gate(first)
        device.wait_gate(stream, first)
        device.fill(target, 5, 512, stream=stream)
        assert comes_true(lambda: device.query_stream(stream))
        assert space.get(target, 512) == bytes([5]) * 512
        device.wait_gate(stream, second)
        self._let_run(space)
        assert not device.query_stream(stream)
        device.open_gate(second)
        assert comes_true(lambda: device.query_stream(stream))

    @requires(Capability.GATES, Capability.STREAMS)
    def test_dropped_gate_still_opens(self, space: Workspace) -> None:
        """A gate that is dropped while it is closed holds who waits, until it is opened."""
        device, stream = space.device, space.device.create_stream()
        for _ in range(10):
            gate = device.make_gate()
            device.wait_gate(stream, gate)
            device.drop_gate(gate)
            self._let_run(space)
            assert not device.query_stream(stream)
            device.open_gate(gate)
            assert comes_true(lambda: device.query_stream(stream))

    @requires(Capability.GATES, Capability.STREAMS)
    def test_unknown_gate_is_refused(self, space: Workspace) -> None:
        """An invented gate, and one that was opened and dropped, is InvalidHandle; so is a wait at a dropped
        one, and a wait of an unknown stream."""
        device, stream = space.device, space.device.create_stream()
        gone, dropped, known = device.make_gate(), device.make_gate(), device.make_gate()
        device.drop_gate(gone)
        device.open_gate(gone)
        device.drop_gate(dropped)
        invented = GateHandle(0x1234560)
        for call in (
            *(partial(device.open_gate, bad) for bad in (gone, invented)),
            *(partial(device.drop_gate, bad) for bad in (gone, dropped, invented)),
            *(partial(device.wait_gate, stream, bad) for bad in (gone, dropped, invented)),
            partial(device.wait_gate, StreamHandle(0x1234560), known),
        ):
            with pytest.raises(InvalidHandle):
                call()

    @requires(Capability.GATES, Capability.STREAMS)
    def test_closing_a_device_opens_its_gates(self, space: Workspace) -> None:
        """A device with streams at a closed gate closes."""
        device, stream = space.device, space.device.create_stream()
        device.wait_gate(stream, device.make_gate())
        closing = threading.Thread(target=device.close, daemon=True)
        closing.start()
        closing.join(PATIENCE)
        assert not closing.is_alive()

    # ---- settle -----------------------------------------------------------------------------------

    @requires(Capability.SETTLE)
    def test_settle_waits_for_work(self, space: Workspace) -> None:
        """When settle says that nothing runs, the work that was queued is done."""
        device = space.device
        several = Capability.STREAMS in device.capabilities
        streams = [device.create_stream() for _ in range(3)] if several else [DEFAULT_STREAM]
        source, targets = space.put(pattern(SIZE)), [space.take(SIZE) for _ in streams]
        for _ in range(10):
            for stream, target in zip(streams, targets, strict=True):
                for value in range(3):
                    device.fill(target, value, SIZE, stream=stream)
                device.copy_on_device(target, source, SIZE, stream)
            assert device.settle(PATIENCE)
            if several:
                assert all(device.query_stream(stream) for stream in streams)
            for target in targets:
                assert space.get(target, SIZE) == pattern(SIZE)

    @requires(Capability.SETTLE, Capability.STREAMS)
    def test_settle_only_looks_at_zero(self, space: Workspace) -> None:
        """A look at a busy device says no, or the work is done; a look at an idle one says yes."""
        device, stream, target = space.device, space.device.create_stream(), space.take(SIZE)
        assert device.settle(0)
        for _ in range(20):
            for value in range(8):
                device.fill(target, value, SIZE, stream=stream)
            assert not device.settle(0) or device.query_stream(stream)
        assert device.settle(PATIENCE)

    @requires(Capability.SETTLE, Capability.GATES, Capability.STREAMS, Capability.EVENTS)
    def test_what_waits_is_settled(self, space: Workspace) -> None:
        """Streams at a gate, and streams that wait for them, are settled; what an opening lets go is not,
        until it is done."""
        device, target = space.device, space.put(bytes(SIZE))
        first, second, reader = (device.create_stream() for _ in range(3))
        gate, event = device.make_gate(), device.create_event()
        device.wait_gate(first, gate)
        device.fill(target, 1, SIZE, stream=first)
        device.record_event(event, first)
        device.wait_event(second, event)
        for value in range(2, 10):
            device.fill(target, value, SIZE, stream=second)
        for _ in range(3):
            assert device.settle(PATIENCE)
            assert not device.query_stream(first)
            assert not device.query_stream(second)
            assert space.get(target, SIZE, reader) == bytes(SIZE)
        device.open_gate(gate)
        assert not device.settle(0) or device.query_stream(second)
        assert device.settle(PATIENCE)
        assert device.query_stream(second)
        assert space.get(target, SIZE, reader) == bytes([9]) * SIZE
