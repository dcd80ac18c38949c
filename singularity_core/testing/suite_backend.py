"""Conformance of `Backend`, and of a device's life."""

from __future__ import annotations

import re

import pytest

from ..hal import (
    Backend,
    Capability,
    Device,
    DeviceLost,
    DeviceRange,
    DType,
    ExecutionFailed,
    HalError,
    InvalidArgument,
    InvalidState,
    MisalignedAddress,
    ReduceOp,
    State,
    StreamHandle,
    Unavailable,
    Unsupported,
)
from ..hal.types import EventHandle, GateHandle
from .harness import Harness, Workspace
from .plugin import missing_capabilities

_STREAM, _EVENT, _GATE = StreamHandle(0), EventHandle(0), GateHandle(0)

# One call per method that belongs to a capability.
OPTIONAL_CALLS = [
    (Capability.RANGE_TRACKING, "mark_live", (0, 512)),
    (Capability.RANGE_TRACKING, "mark_dead", (0, 512)),
    (Capability.HOST_REGISTER, "register_host", (4096, 4096)),
    (Capability.HOST_REGISTER, "unregister_host", (4096,)),
    (Capability.CHECKSUM, "digest", (0, 8)),
    (Capability.ACCUMULATE, "accumulate", (DType.F32, ReduceOp.SUM, 0, 4, 1)),
    (Capability.ACCUMULATE, "reduce_tree", (DType.F32, ReduceOp.SUM, 0, [0, 4], 1)),
    (Capability.STREAMS, "create_stream", ()),
    (Capability.STREAMS, "destroy_stream", (StreamHandle(1),)),
    (Capability.STREAMS, "query_stream", ()),
    (Capability.EVENTS, "create_event", ()),
    (Capability.EVENTS, "destroy_event", (_EVENT,)),
    (Capability.EVENTS, "record_event", (_EVENT,)),
    (Capability.EVENTS, "wait_event", (_STREAM, _EVENT)),
    (Capability.EVENTS, "query_event", (_EVENT,)),
    (Capability.EVENTS, "synchronize_event", (_EVENT,)),
    (Capability.EVENTS_TIMING, "elapsed", (_EVENT, _EVENT)),
    (Capability.GATES, "make_gate", ()),
    (Capability.GATES, "wait_gate", (_STREAM, _GATE)),
    (Capability.GATES, "open_gate", (_GATE,)),
    (Capability.GATES, "drop_gate", (_GATE,)),
    (Capability.SETTLE, "settle", (0.0,)),
]

REQUIRED_CALLS = [
    ("memory_info", ()),
    ("arena_limit", ()),
    ("open_arena", (0, 4096)),
    ("close_arena", ()),
    ("copy_to_device", (0, b"x")),
    ("copy_to_host", (bytearray(1), 0)),
    ("copy_on_device", (0, 4096, 1)),
    ("fill", (0, 0, 1)),
    ("quiesce", ()),
    ("synchronize_stream", ()),
    ("dump", ([DeviceRange(0, 1)],)),
]


class BackendTests(Harness):
    """Enumeration, opening, closing, and what is refused."""

    def test_name_and_summary(self, backend: Backend) -> None:
        """A backend has a short lower-case name and a one-line summary."""
        assert re.fullmatch(r"[a-z0-9][a-z0-9-]*", backend.name)
        assert backend.summary.strip() == backend.summary != ""
        assert "\n" not in backend.summary

    def test_availability_says_why(self, backend: Backend) -> None:
        """A backend is available, or says why not and what would help."""
        found = backend.availability()
        assert found.state in (State.AVAILABLE, State.UNAVAILABLE)
        if not found.available:
            assert found.reason
            assert found.remedy

    def test_unavailable_backend_raises_unavailable(self, backend: Backend) -> None:
        """Without a device, opening one raises Unavailable, and the count is 0."""
        if backend.availability().available:
            pytest.skip("unsupported: the backend is available here")
        assert backend.device_count() == 0
        with pytest.raises(Unavailable) as caught:
            backend.open_device(0)
        assert caught.value.cause
        assert caught.value.remedy

    def test_properties_are_plausible(self, available_backend: Backend) -> None:
        """Every device has a name, memory, a UUID of its own, and knows its ordinal."""
        count = available_backend.device_count()
        assert count >= 1
        found = [available_backend.properties(ordinal) for ordinal in range(count)]
        assert [p.ordinal for p in found] == list(range(count))
        assert all(p.name and p.total_bytes > 0 and p.multiprocessors >= 1 for p in found)
        assert all(len(p.uuid) == 16 for p in found)
        assert len({p.uuid for p in found}) == count

    def test_open_device_has_the_same_properties(self, available_backend: Backend, device: Device) -> None:
        """An open device answers what the backend said about it before."""
        assert device.properties == available_backend.properties(device.properties.ordinal)
        assert device.backend_name == available_backend.name

    @pytest.mark.parametrize("shift", [0, 1, 1000])
    def test_missing_ordinal_is_refused(self, available_backend: Backend, shift: int) -> None:
        """An ordinal past the last, or below 0, is InvalidArgument."""
        count = available_backend.device_count()
        for ordinal in (count + shift, -1 - shift):
            with pytest.raises(InvalidArgument):
                available_backend.properties(ordinal)
            with pytest.raises(InvalidArgument):
                available_backend.open_device(ordinal)

    def test_proxy_settings_are_usable(self, available_backend: Backend) -> None:
        """The driver library exists if there is one, and the environment is text."""
        library, folder = available_backend.driver_library(), available_backend.rank_library_directory()
        assert library is None or library.is_file()
        assert folder is None or folder.is_dir()
        for name, value in available_backend.proxy_environment().items():
            assert re.fullmatch(r"[A-Z_][A-Z0-9_]*", name)
            assert isinstance(value, str)

    def test_capabilities_do_not_change(self, device: Device) -> None:
        """The capabilities are a frozen set, the same each time, and hang together."""
        found = device.capabilities
        assert isinstance(found, frozenset)
        assert all(isinstance(capability, Capability) for capability in found)
        assert device.capabilities == found
        assert Capability.EVENTS in found or Capability.EVENTS_TIMING not in found
        assert Capability.COLLECTIVES in found or Capability.DETERMINISTIC_REDUCE not in found

    def test_native_table_goes_with_its_capability(self, device: Device) -> None:
        """Who claims the capability native_table answers an address."""
        if Capability.NATIVE_TABLE in device.capabilities:
            assert device.native_table()

    @pytest.mark.parametrize(("capability", "method", "arguments"), OPTIONAL_CALLS, ids=lambda v: str(v)[:40])
    def test_missing_capability_is_refused_by_name(
        self, device: Device, capability: Capability, method: str, arguments: tuple[object, ...]
    ) -> None:
        """A method of a capability that the device lacks raises Unsupported, and the error names the
        capability."""
        if capability in device.capabilities:
            pytest.skip(f"unsupported: the device has {capability.value}, so it has nothing to refuse")
        device.open_arena(self.arena_address, self.arena_size)
        with pytest.raises(Unsupported) as caught:
            getattr(device, method)(*arguments)
        assert capability.value in str(caught.value)

    def test_close_twice(self, device: Device) -> None:
        """Closing a closed device does nothing."""
        device.close()
        device.close()

    @pytest.mark.parametrize(
        ("method", "arguments"), REQUIRED_CALLS, ids=lambda v: v if isinstance(v, str) else ""
    )
    def test_closed_device_is_refused(
        self, device: Device, method: str, arguments: tuple[object, ...]
    ) -> None:
        """After close, every method raises InvalidState."""
        device.close()
        with pytest.raises(InvalidState):
            getattr(device, method)(*arguments)

    def test_closed_device_gives_its_memory_back(
        self, available_backend: Backend, device_ordinal: int
    ) -> None:
        """After close, the device can be opened again with as large an arena as before."""
        limits = []
        for _ in range(2):
            with available_backend.open_device(device_ordinal) as device:
                limits.append(device.arena_limit())
                device.open_arena(self.arena_address, self.arena_size)
        assert limits[1] >= limits[0]

    def test_memory_info(self, device: Device) -> None:
        """Free memory never exceeds the total, and an open arena counts as used."""
        before = device.memory_info()
        assert 0 < before.free_bytes <= before.total_bytes <= device.properties.total_bytes
        device.open_arena(self.arena_address, self.arena_size)
        after = device.memory_info()
        assert after.total_bytes == before.total_bytes
        assert after.free_bytes <= before.free_bytes - self.arena_size

    @pytest.mark.parametrize(
        "error", [MisalignedAddress, ExecutionFailed, DeviceLost], ids=lambda e: e.__name__
    )
    def test_provoked_error_is_sticky(
        self,
        available_backend: Backend,
        device_ordinal: int,
        error: type[HalError],
        request: pytest.FixtureRequest,
    ) -> None:
        """A failure of work on the device is raised by what waits, stays until close, and is gone
        afterwards."""
        with available_backend.open_device(device_ordinal) as device:
            if missing_capabilities(request.node, device.capabilities):
                pytest.skip("unsupported")
            space = Workspace(device, device.open_arena(self.arena_address, self.arena_size))
            self.provoke(device, error)
            for _ in range(2):
                with pytest.raises(error) as caught:
                    device.quiesce()
                assert caught.value.sticky
                assert caught.value.remedy
            with pytest.raises(error):
                space.device.fill(space.arena.base, 0, 512)
        with available_backend.open_device(device_ordinal) as device:
            device.quiesce()
