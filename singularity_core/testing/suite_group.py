"""Conformance of what involves several devices: peer copies and collectives."""

from __future__ import annotations

import pytest

from ..hal import Backend, Capability, Device, DType, InvalidArgument, ReduceOp
from . import oracles
from .harness import Harness, Workspace, pattern
from .requirements import requires


class GroupTests(Harness):
    """Copies between devices, and collective operations of ranks that share devices in any way."""

    def workspaces(self, device: Device, other: Device) -> tuple[Workspace, Workspace]:
        """Arenas on both devices; the second where the device likes."""
        first = Workspace(device, device.open_arena(self.arena_address, self.arena_size))
        return first, Workspace(other, other.open_arena(0, self.arena_size))

    @requires(Capability.PEER_COPY)
    def test_peer_copy(self, device: Device, second_device: Device) -> None:
        """Content is copied from another device, and only read there."""
        here, there = self.workspaces(device, second_device)
        for size in (1, 4096, (1 << 20) + 5):
            source, target = there.put(pattern(size)), here.take(size)
            device.copy_from_peer(target, second_device, source, size)
            assert here.get(target, size) == pattern(size) == there.get(source, size)

    @requires(Capability.PEER_COPY)
    def test_bad_peer_copy_is_refused(self, device: Device, second_device: Device) -> None:
        """A range outside either arena is InvalidArgument."""
        here, there = self.workspaces(device, second_device)
        source, target = there.take(512), here.take(512)
        with pytest.raises(InvalidArgument):
            device.copy_from_peer(target, second_device, there.arena.end - 8, 16)
        with pytest.raises(InvalidArgument):
            device.copy_from_peer(here.arena.end - 8, second_device, source, 16)

    @requires(Capability.COLLECTIVES)
    @pytest.mark.parametrize("dtype", [DType.F32, DType.BF16, DType.F16, DType.I32, DType.F64])
    @pytest.mark.parametrize("ranks", [1, 2, 3, 5, 8])
    def test_all_reduce(self, space: Workspace, available_backend: Backend, dtype: DType, ranks: int) -> None:
        """All ranks receive the tree's sum, also when the result takes the place of the source."""
        values = [oracles.make_elements(dtype, 1500, seed) for seed in range(ranks)]
        buffers = [space.put(v) for v in values]
        group = available_backend.open_group([space.device] * ranks)
        group.all_reduce(dtype, ReduceOp.SUM, buffers, buffers, 1500)
        wanted = oracles.reduce(dtype, ReduceOp.SUM, values)
        for buffer in buffers:
            assert oracles.same_bits(space.get_like(buffer, wanted), wanted)

    @requires(Capability.COLLECTIVES)
    def test_all_reduce_average_with_factor(self, space: Workspace, available_backend: Backend) -> None:
        """Factor and average are applied where the contract says."""
        values = [oracles.make_elements(DType.F32, 900, seed) for seed in range(3)]
        sources, results = [space.put(v) for v in values], [space.take(3600) for _ in values]
        group = available_backend.open_group([space.device] * 3)
        group.all_reduce(DType.F32, ReduceOp.AVERAGE, sources, results, 900, premultiply=0.7)
        wanted = oracles.reduce(DType.F32, ReduceOp.AVERAGE, values, 0.7)
        assert all(oracles.same_bits(space.get_like(r, wanted), wanted) for r in results)

    @requires(Capability.COLLECTIVES, Capability.DETERMINISTIC_REDUCE)
    def test_mapping_of_ranks_does_not_change_bits(
        self, device: Device, second_device: Device, available_backend: Backend
    ) -> None:
        """The same contributions give the same bits on one device, on two, and however the ranks are
        spread."""
        here, there = self.workspaces(device, second_device)
        values = [oracles.make_elements(DType.F16, 300_000, seed) for seed in range(4)]
        wanted = oracles.reduce(DType.F16, ReduceOp.SUM, values)
        for places in ((here,) * 4, (here, there, here, there), (there, there, here, here), (there,) * 4):
            buffers = [place.put(v) for place, v in zip(places, values, strict=True)]
            group = available_backend.open_group([place.device for place in places])
            group.all_reduce(DType.F16, ReduceOp.SUM, buffers, buffers, 300_000)
            for place, buffer in zip(places, buffers, strict=True):
                assert oracles.same_bits(place.get_like(buffer, wanted), wanted)

    @requires(Capability.COLLECTIVES)
    def test_reduce_scatter(self, space: Workspace, available_backend: Backend) -> None:
        """Each rank receives the reduction of its own block."""
        values = [oracles.make_elements(DType.F32, 3 * 500, seed) for seed in range(3)]
        sources, results = [space.put(v) for v in values], [space.take(2000) for _ in values]
        available_backend.open_group([space.device] * 3).reduce_scatter(
            DType.F32, ReduceOp.SUM, sources, results, 500
        )
        for rank, result in enumerate(results):
            blocks = [v[rank * 500 : (rank + 1) * 500] for v in values]
            wanted = oracles.reduce(DType.F32, ReduceOp.SUM, blocks)
            assert oracles.same_bits(space.get_like(result, wanted), wanted)

    @requires(Capability.COLLECTIVES)
    def test_broadcast(self, space: Workspace, available_backend: Backend) -> None:
        """All buffers receive the root's content."""
        buffers = [space.put(pattern(5000, seed)) for seed in range(3)]
        available_backend.open_group([space.device] * 3).broadcast(1, buffers, 5000)
        assert all(space.get(buffer, 5000) == pattern(5000, 1) for buffer in buffers)

    @requires(Capability.COLLECTIVES)
    def test_all_gather(self, space: Workspace, available_backend: Backend) -> None:
        """All ranks receive the blocks of all, in the order of ranks."""
        sources = [space.put(pattern(700, seed)) for seed in range(3)]
        results = [space.take(2100) for _ in sources]
        available_backend.open_group([space.device] * 3).all_gather(sources, results, 700)
        wanted = b"".join(pattern(700, seed) for seed in range(3))
        assert all(space.get(result, 2100) == wanted for result in results)

    @requires(Capability.COLLECTIVES)
    def test_bad_collectives_are_refused(self, space: Workspace, available_backend: Backend) -> None:
        """A missing address, a range outside, an unknown root or no rank is InvalidArgument, and nothing
        changes."""
        group = available_backend.open_group([space.device] * 2)
        a, b = space.put(pattern(512)), space.put(pattern(512, 2))
        for call in (
            lambda: group.all_reduce(DType.F32, ReduceOp.SUM, [a], [a, b], 8),
            lambda: group.all_reduce(DType.F32, ReduceOp.SUM, [a, b + 2], [a, b], 8),
            lambda: group.all_reduce(DType.F32, ReduceOp.SUM, [a, space.arena.end - 8], [a, b], 8),
            lambda: group.all_reduce(DType.I32, ReduceOp.AVERAGE, [a, b], [a, b], 8),
            lambda: group.broadcast(2, [a, b], 8),
            lambda: group.all_gather([a, b], [a], 8),
            lambda: available_backend.open_group([]),
        ):
            with pytest.raises(InvalidArgument):
                call()
        assert space.get(a, 512) == pattern(512)
