"""Conformance of content: copies, fills, digests, dump and restore."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from ..hal import Capability, Device, DeviceRange, InvalidArgument
from . import oracles
from .harness import UNIT, Harness, Workspace, pattern
from .requirements import requires

SIZES = [1, 7, 8, 511, 512, 4096, 65537, (1 << 20) + 3]


class ContentTests(Harness):
    """Bytes arrive, and only where they should."""

    @pytest.mark.parametrize("shift", [0, 1, 13])
    @pytest.mark.parametrize("size", SIZES)
    def test_copies_keep_content(self, space: Workspace, size: int, shift: int) -> None:
        """What was copied to the device, at any alignment, comes back unchanged."""
        assert space.get(space.put(pattern(size), shift), size) == pattern(size)

    def test_empty_copies_do_nothing(self, space: Workspace) -> None:
        """Copies and fills of nothing are allowed."""
        address = space.put(b"kept....")
        space.device.copy_to_device(address, b"")
        space.device.copy_to_host(bytearray(), address)
        space.device.copy_on_device(address, address + 512, 0)
        space.device.fill(address, 0, 0)
        assert space.get(address, 8) == b"kept...."

    def test_host_buffers_of_any_kind(self, space: Workspace) -> None:
        """bytes, bytearray, memoryview and numpy arrays are read; the writable ones are filled."""
        numbers: Any = np.arange(64, dtype=np.float64).reshape(8, 8)
        raw: bytes = numbers.tobytes()
        for source in (raw, bytearray(raw), memoryview(raw), numbers):
            address = space.take(len(raw))
            space.device.copy_to_device(address, source)
            assert space.get(address, len(raw)) == raw
        into: Any = np.zeros_like(numbers)
        space.device.copy_to_host(into, address)
        assert np.array_equal(into, numbers)

    def test_unsuitable_host_buffers_are_refused(self, space: Workspace) -> None:
        """A read-only target, a buffer with gaps, and what is no buffer are TypeError."""
        address = space.take(UNIT)
        gaps: Any = np.zeros((8, 8), dtype=np.uint8)[:, ::2]
        with pytest.raises(TypeError):
            space.device.copy_to_host(b"12345678", address)
        with pytest.raises(TypeError):
            space.device.copy_to_device(address, gaps)
        with pytest.raises(TypeError):
            space.device.copy_to_device(address, "text")  # type: ignore[arg-type]

    def test_host_buffer_may_change_after_the_copy(self, space: Workspace) -> None:
        """When copy_to_device returns, the device has its own copy."""
        source = bytearray(pattern(1 << 20))
        address = space.take(len(source))
        space.device.copy_to_device(address, source)
        source[:] = bytes(len(source))
        assert space.get(address, len(source)) == pattern(1 << 20)

    @pytest.mark.parametrize("size", SIZES)
    def test_copies_on_the_device(self, space: Workspace, size: int) -> None:
        """A copy inside the device gives the same content, and leaves the source."""
        source, target = space.put(pattern(size)), space.take(size)
        space.device.copy_on_device(target, source, size)
        assert space.get(target, size) == pattern(size) == space.get(source, size)

    def test_overlapping_copy_is_refused(self, space: Workspace) -> None:
        """A copy onto a range that overlaps the source is InvalidArgument and changes nothing."""
        address = space.put(pattern(4096))
        for target in (address, address + 1, address + 4095):
            with pytest.raises(InvalidArgument):
                space.device.copy_on_device(target, address, 4096)
        assert space.get(address, 4096) == pattern(4096)

    @pytest.mark.parametrize("width", [1, 2, 4])
    def test_fill(self, space: Workspace, width: int) -> None:
        """A fill repeats the low bytes of its value, and touches nothing around it."""
        count, value = 1001, 0x89ABCDEF
        address = space.put(pattern(4 * count + 64))
        space.device.fill(address + 32, value, count, width=width)
        wanted = bytearray(pattern(4 * count + 64))
        wanted[32 : 32 + count * width] = (value & ((1 << 8 * width) - 1)).to_bytes(width, "little") * count
        assert space.get(address, len(wanted)) == wanted

    @pytest.mark.parametrize(("shift", "width"), [(1, 2), (2, 4), (0, 3), (0, 8), (0, 0)])
    def test_bad_fill_is_refused(self, space: Workspace, shift: int, width: int) -> None:
        """A misaligned fill, and one of another width than 1, 2 or 4, is InvalidArgument and changes
        nothing."""
        address = space.put(pattern(64))
        with pytest.raises(InvalidArgument):
            space.device.fill(address + shift, 0, 2, width=width)
        assert space.get(address, 64) == pattern(64)

    def test_neighbours_stay_untouched(self, space: Workspace) -> None:
        """Copies of odd sizes at odd addresses change their range and not a byte beside it."""
        address = space.put(pattern(8192, seed=5))
        wanted = bytearray(pattern(8192, seed=5))
        other = space.put(pattern(999, seed=6), shift=3)
        space.device.copy_to_device(address + 101, pattern(777, seed=7))
        wanted[101:878] = pattern(777, seed=7)
        space.device.copy_on_device(address + 3001, other, 999)
        wanted[3001:4000] = pattern(999, seed=6)
        assert space.get(address, 8192) == wanted

    def test_ranges_outside_the_arena_are_refused(self, space: Workspace) -> None:
        """A copy or fill that is partly outside the arena is InvalidArgument, and nothing of it happens."""
        base, end = space.arena.base, space.arena.end
        inside = space.put(pattern(UNIT))
        for address, size in ((base - 8, 16), (end - 8, 16), (end, 1), (0, 8), (base - 512, 512)):
            with pytest.raises(InvalidArgument):
                space.device.copy_to_device(address, bytes(size))
            with pytest.raises(InvalidArgument):
                space.device.copy_to_host(bytearray(size), address)
            with pytest.raises(InvalidArgument):
                space.device.copy_on_device(address, inside, size)
            with pytest.raises(InvalidArgument):
                space.device.copy_on_device(inside, address, size)
            with pytest.raises(InvalidArgument):
                space.device.fill(address, 0, size)
        assert space.get(inside, UNIT) == pattern(UNIT)

    def test_raw_reads_see_what_was_copied(self, space: Workspace) -> None:
        """Content that was copied, filled and copied again lies at its address in device memory."""
        address = space.put(pattern(4096))
        space.device.fill(address + 16, 0x5A, 100)
        twin = space.take(4096)
        space.device.copy_on_device(twin, address, 4096)
        space.device.quiesce()
        wanted = pattern(4096)[:16] + b"\x5a" * 100 + pattern(4096)[116:]
        assert self.raw_read(space.device, address, 4096) == wanted
        assert self.raw_read(space.device, twin, 4096) == wanted

    def test_copies_see_raw_writes(self, space: Workspace) -> None:
        """Content that reached device memory by another way is copied to the host as it is."""
        address = space.take(4096)
        space.device.quiesce()
        self.raw_write(space.device, address, pattern(4096))
        assert space.get(address, 4096) == pattern(4096)

    # ---- digest -----------------------------------------------------------------------------------

    @requires(Capability.CHECKSUM)
    @pytest.mark.parametrize("size", [0, *SIZES, (5 << 20) + 9])
    def test_digest_is_the_defined_one(self, space: Workspace, size: int) -> None:
        """The digest is the function that digest.h defines, for content of any size."""
        assert space.device.digest(space.put(pattern(size)), size) == oracles.digest(pattern(size))

    @requires(Capability.CHECKSUM)
    def test_digest_depends_on_content_alone(self, space: Workspace) -> None:
        """Equal content at two addresses has one digest; one changed bit, or a zero more, gives another."""
        size = 10_000
        first, second = space.put(pattern(size)), space.put(pattern(size), shift=8)
        digest = space.device.digest(first, size)
        assert len(digest) == 16
        assert space.device.digest(second, size) == digest
        seen = {digest, space.device.digest(first, size - 1)}
        for at in (0, 4999, 9999):
            changed = bytearray(pattern(size))
            changed[at] ^= 1
            space.device.copy_to_device(first, changed)
            seen.add(space.device.digest(first, size))
        assert len(seen) == 5

    @requires(Capability.CHECKSUM)
    def test_digest_of_a_bad_range_is_refused(self, space: Workspace) -> None:
        """A misaligned address, or a range outside the arena, is InvalidArgument."""
        address = space.take(UNIT)
        for bad, size in ((address + 1, 8), (space.arena.end - 8, 16), (space.arena.base - 8, 8)):
            with pytest.raises(InvalidArgument):
                space.device.digest(bad, size)

    # ---- dump and restore -------------------------------------------------------------------------

    def test_dump_and_restore(self, space: Workspace) -> None:
        """What was dumped is back at its addresses after the arena was closed and opened again."""
        ranges = []
        for seed, size in enumerate((1, 512, 1000, 1 << 20), start=1):
            ranges.append(DeviceRange(space.put(pattern(size, seed)), size))
        image = space.device.dump(ranges)
        assert [len(saved.content) for saved in image.ranges] == [r.size for r in ranges]
        for piece in ranges:
            assert space.get(piece.address, piece.size) != b"", "a dump changes nothing"
        space.device.close_arena()
        space.device.open_arena(image.arena.base, image.arena.size)
        space.device.restore(image)
        for seed, piece in enumerate(ranges, start=1):
            assert space.get(piece.address, piece.size) == pattern(piece.size, seed)

    def test_dump_waits_for_work(self, space: Workspace) -> None:
        """A dump holds the result of everything that was queued before it."""
        size = 4 << 20
        source, target = space.put(pattern(size)), space.take(size)
        space.device.fill(target, 0, size)
        space.device.copy_on_device(target, source, size)
        assert space.device.dump([DeviceRange(target, size)]).ranges[0].content == pattern(size)

    def test_unfit_image_is_refused(self, device: Device) -> None:
        """An image of another backend, or of a larger arena, is InvalidArgument."""
        space = Workspace(device, device.open_arena(self.arena_address, self.arena_size))
        image = device.dump([DeviceRange(space.put(b"content."), 8)])
        with pytest.raises(InvalidArgument):
            device.restore(dataclasses.replace(image, backend="another"))
        far = dataclasses.replace(image.ranges[0], range=DeviceRange(space.arena.end, 8))
        with pytest.raises(InvalidArgument):
            device.restore(dataclasses.replace(image, ranges=(far,)))

    @requires(Capability.CHECKSUM)
    def test_damaged_image_is_refused(self, space: Workspace) -> None:
        """An image whose content is not what was dumped is InvalidArgument."""
        image = space.device.dump([DeviceRange(space.put(pattern(1000)), 1000)])
        damaged = dataclasses.replace(image.ranges[0], content=pattern(1000, seed=2))
        with pytest.raises(InvalidArgument):
            space.device.restore(dataclasses.replace(image, ranges=(damaged,)))
