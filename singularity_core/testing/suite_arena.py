"""Conformance of the arena: where it lies, what of it is live, and host memory that the device sees."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable

import pytest

from ..hal import (
    Capability,
    Device,
    DType,
    IllegalAddress,
    InvalidArgument,
    InvalidState,
    OutOfMemory,
    ReduceOp,
)
from .harness import REFUSED, UNIT, Harness, Workspace, pattern
from .requirements import requires


class ArenaTests(Harness):
    """Opening, closing, liveness, registered host memory."""

    def test_arena_opens_where_it_was_asked_for(self, device: Device) -> None:
        """The arena lies at the wanted address, is at least as large as asked, and is all that is open."""
        arena = device.open_arena(self.arena_address, self.arena_size)
        assert arena.base == self.arena_address
        assert arena.size >= self.arena_size
        assert device.require_arena() == arena

    def test_device_may_choose_the_address(self, device: Device) -> None:
        """Address 0 lets the device choose; the content is usable there."""
        space = Workspace(device, device.open_arena(0, self.arena_size))
        assert space.arena.base > 0
        assert space.get(space.put(b"content"), 7) == b"content"

    def test_whole_arena_is_usable(self, space: Workspace) -> None:
        """The first and the last bytes of the arena hold what was written to them."""
        arena = space.arena
        last = arena.end - UNIT
        if Capability.RANGE_TRACKING in space.device.capabilities:
            space.device.mark_live(arena.base, UNIT)
            space.device.mark_live(last, UNIT)
        for address in (arena.base, last):
            space.device.copy_to_device(address, pattern(UNIT, seed=address & 255))
        for address in (arena.base, last):
            assert space.get(address, UNIT) == pattern(UNIT, seed=address & 255)

    def test_second_arena_is_refused(self, space: Workspace) -> None:
        """Opening an arena while one is open is InvalidState, and the first stays usable."""
        address = space.put(b"kept")
        with pytest.raises(InvalidState):
            space.device.open_arena(0, self.arena_size)
        assert space.get(address, 4) == b"kept"

    def test_arena_beyond_the_limit_is_out_of_memory(self, device: Device) -> None:
        """More than the limit is OutOfMemory; what fits can be opened afterwards."""
        limit = device.arena_limit()
        assert limit >= self.arena_size
        with pytest.raises(OutOfMemory):
            device.open_arena(self.arena_address, limit + (1 << 30))
        assert device.open_arena(self.arena_address, self.arena_size).size >= self.arena_size

    def test_limit_while_open_is_zero(self, space: Workspace) -> None:
        """While an arena is open, no other could be."""
        assert space.device.arena_limit() == 0

    @pytest.mark.parametrize("size", [0, -1])
    def test_size_must_be_positive(self, device: Device, size: int) -> None:
        """An arena of no or negative size is InvalidArgument, and opens nothing."""
        with pytest.raises(InvalidArgument):
            device.open_arena(self.arena_address, size)
        with pytest.raises(InvalidState):
            device.require_arena()

    def test_arena_can_be_opened_again(self, device: Device) -> None:
        """After close_arena the same address and size can be opened again, with as much room as before."""
        limit = device.arena_limit()
        for _ in range(3):
            space = Workspace(device, device.open_arena(self.arena_address, self.arena_size))
            assert space.get(space.put(pattern(4096)), 4096) == pattern(4096)
            device.close_arena()
        assert device.arena_limit() == limit

    def test_without_an_arena_content_is_refused(self, device: Device) -> None:
        """Before an arena is open, and after it was closed, its use is InvalidState."""
        for _ in range(2):
            calls: list[Callable[[], object]] = [
                lambda: device.close_arena(),
                lambda: device.require_arena(),
                lambda: device.copy_to_device(self.arena_address, b"x"),
                lambda: device.copy_to_host(bytearray(1), self.arena_address),
                lambda: device.fill(self.arena_address, 0, 1),
                lambda: device.dump([]),
            ]
            for call in calls:
                with pytest.raises(InvalidState):
                    call()
            device.open_arena(self.arena_address, self.arena_size)
            device.close_arena()

    # ---- liveness ---------------------------------------------------------------------------------

    @requires(Capability.RANGE_TRACKING)
    def test_arena_starts_dead(self, space: Workspace) -> None:
        """Nothing of a fresh arena can be copied to or from before it is marked live."""
        with pytest.raises(REFUSED):
            space.device.copy_to_device(space.arena.base, b"x" * 8)
        with pytest.raises(REFUSED):
            space.device.copy_to_host(bytearray(8), space.arena.base)

    @requires(Capability.RANGE_TRACKING)
    def test_dead_range_is_refused(self, space: Workspace) -> None:
        """A range that was marked dead is refused, and its live neighbours keep their content."""
        before, middle, after = (space.put(pattern(UNIT, seed)) for seed in (1, 2, 3))
        space.device.mark_dead(middle, UNIT)
        with pytest.raises(REFUSED):
            space.device.copy_to_host(bytearray(UNIT), middle)
        assert space.get(before, UNIT) == pattern(UNIT, 1)
        assert space.get(after, UNIT) == pattern(UNIT, 3)

    @requires(Capability.RANGE_TRACKING)
    def test_marking_live_again_keeps_content(self, space: Workspace) -> None:
        """Marking a live range live once more changes nothing."""
        address = space.put(pattern(4 * UNIT))
        space.device.mark_live(address, 4 * UNIT)
        space.device.mark_live(address + UNIT, UNIT)
        assert space.get(address, 4 * UNIT) == pattern(4 * UNIT)

    @requires(Capability.RANGE_TRACKING)
    @pytest.mark.parametrize(("shift", "size"), [(1, 512), (0, 511), (-512, 512), (256, 512)])
    def test_ranges_must_be_aligned_and_inside(self, space: Workspace, shift: int, size: int) -> None:
        """Liveness of a misaligned range, or of one outside the arena, is InvalidArgument."""
        for mark in (space.device.mark_live, space.device.mark_dead):
            with pytest.raises(InvalidArgument):
                mark(space.arena.base + shift, size)
        with pytest.raises(InvalidArgument):
            space.device.mark_live(space.arena.end - UNIT, 2 * UNIT)

    @requires(Capability.RANGE_TRACKING, Capability.ACCUMULATE)
    def test_work_on_dead_memory_is_an_illegal_address(
        self, device: Device, available_backend: object
    ) -> None:
        """A kernel that touches a dead page is reported as IllegalAddress, which sticks until the device is
        closed."""
        space = Workspace(device, device.open_arena(self.arena_address, self.arena_size))
        live, dead = space.put(bytes(4096)), space.take(64 << 10)
        device.mark_dead(dead, 64 << 10)

        def use_dead_memory() -> None:
            device.accumulate(DType.F32, ReduceOp.SUM, live, dead, 1024)
            device.quiesce()

        with pytest.raises(IllegalAddress):
            use_dead_memory()
        for _ in range(2):
            with pytest.raises(IllegalAddress) as caught:
                device.quiesce()
            assert caught.value.sticky

    # ---- host memory ------------------------------------------------------------------------------

    @requires(Capability.HOST_REGISTER)
    def test_registered_host_memory_is_the_devices_too(self, space: Workspace) -> None:
        """The device copies from and to registered host memory at the host's own address."""
        with mmap.mmap(-1, 4 * mmap.PAGESIZE) as host:
            view = (ctypes.c_char * len(host)).from_buffer(host)
            address = ctypes.addressof(view)
            space.device.register_host(address, len(host))
            try:
                host[: mmap.PAGESIZE] = pattern(mmap.PAGESIZE)
                target = space.take(mmap.PAGESIZE)
                space.device.copy_on_device(target, address, mmap.PAGESIZE)
                assert space.get(target, mmap.PAGESIZE) == pattern(mmap.PAGESIZE)
                space.device.copy_on_device(address + 2 * mmap.PAGESIZE, target, mmap.PAGESIZE)
                space.device.quiesce()
                assert host[2 * mmap.PAGESIZE : 3 * mmap.PAGESIZE] == pattern(mmap.PAGESIZE)
            finally:
                space.device.unregister_host(address)
                del view

    @requires(Capability.HOST_REGISTER)
    def test_host_memory_is_registered_once(self, space: Workspace) -> None:
        """Registering the same pages again, parts of pages, or ending what did not begin is
        InvalidArgument."""
        with mmap.mmap(-1, 2 * mmap.PAGESIZE) as host:
            view = (ctypes.c_char * len(host)).from_buffer(host)
            address = ctypes.addressof(view)
            with pytest.raises(InvalidArgument):
                space.device.unregister_host(address)
            with pytest.raises(InvalidArgument):
                space.device.register_host(address + 1, mmap.PAGESIZE)
            space.device.register_host(address, len(host))
            with pytest.raises(InvalidArgument):
                space.device.register_host(address + mmap.PAGESIZE, mmap.PAGESIZE)
            space.device.unregister_host(address)
            with pytest.raises(InvalidArgument):
                space.device.unregister_host(address)
            del view
