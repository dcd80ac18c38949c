"""Conformance of reductions on the device: exact results, by the fixed tree."""

from __future__ import annotations

import numpy as np
import pytest

from ..hal import Capability, DType, InvalidArgument, ReduceOp
from . import oracles
from .harness import Harness, Workspace
from .requirements import requires

OPS = [ReduceOp.SUM, ReduceOp.PRODUCT, ReduceOp.MIN, ReduceOp.MAX]
FLOATING = [dtype for dtype in DType if dtype.floating]


class ReduceTests(Harness):
    """`Device.accumulate` and `Device.reduce_tree` against numpy, bit for bit."""

    @requires(Capability.ACCUMULATE)
    @pytest.mark.parametrize("op", OPS)
    @pytest.mark.parametrize("dtype", list(DType))
    def test_accumulate(self, space: Workspace, dtype: DType, op: ReduceOp) -> None:
        """Each element of the target becomes the exact result of both; integers wrap around."""
        a, b = oracles.make_elements(dtype, 1003, 1), oracles.make_elements(dtype, 1003, 2)
        target, source = space.put(a), space.put(b)
        space.device.accumulate(dtype, op, target, source, len(a))
        assert oracles.same_bits(space.get_like(target, a), oracles.reduce(dtype, op, [a, b]))
        assert space.get(source, b.nbytes) == b.tobytes()

    @requires(Capability.ACCUMULATE)
    @pytest.mark.parametrize("leaves", [1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 16, 31, 33, 63, 64])
    def test_tree_order(self, space: Workspace, leaves: int) -> None:
        """The sum of any number of leaves is that of the fixed tree, not of another order."""
        values = [oracles.make_elements(DType.F32, 517, seed) for seed in range(leaves)]
        target, sources = space.take(values[0].nbytes), [space.put(v) for v in values]
        space.device.reduce_tree(DType.F32, ReduceOp.SUM, target, sources, len(values[0]))
        wanted = oracles.reduce(DType.F32, ReduceOp.SUM, values)
        assert oracles.same_bits(space.get_like(target, wanted), wanted)

    @requires(Capability.ACCUMULATE)
    @pytest.mark.parametrize("dtype", [DType.F16, DType.BF16])
    @pytest.mark.parametrize("leaves", [3, 8])
    def test_short_types_are_rounded_once(self, space: Workspace, dtype: DType, leaves: int) -> None:
        """16-bit leaves are added in F32, and only the root is rounded."""
        values = [oracles.make_elements(dtype, 2000, 50 + seed) for seed in range(leaves)]
        target, sources = space.take(values[0].nbytes), [space.put(v) for v in values]
        space.device.reduce_tree(dtype, ReduceOp.SUM, target, sources, len(values[0]))
        wanted = oracles.reduce(dtype, ReduceOp.SUM, values)
        stepwise = values[0]
        for value in values[1:]:
            stepwise = oracles.reduce(dtype, ReduceOp.SUM, [stepwise, value])
        assert not oracles.same_bits(stepwise, wanted), "the data must tell the two apart"
        assert oracles.same_bits(space.get_like(target, wanted), wanted)

    @requires(Capability.ACCUMULATE)
    @pytest.mark.parametrize("dtype", FLOATING)
    def test_average_and_premultiply(self, space: Workspace, dtype: DType) -> None:
        """An average divides the root; a factor multiplies each leaf; a divisor may be given."""
        values = [oracles.make_elements(dtype, 300, seed) for seed in (4, 5, 6)]
        sources, target = [space.put(v) for v in values], space.take(values[0].nbytes)
        for factor, divisor in ((1.0, None), (0.3, None), (1.0, 7)):
            space.device.reduce_tree(
                dtype, ReduceOp.AVERAGE, target, sources, 300, premultiply=factor, divisor=divisor
            )
            wanted = oracles.reduce(dtype, ReduceOp.AVERAGE, values, factor, divisor)
            assert oracles.same_bits(space.get_like(target, wanted), wanted)

    @requires(Capability.ACCUMULATE)
    @pytest.mark.parametrize("op", [ReduceOp.MIN, ReduceOp.MAX])
    def test_nan_wins(self, space: Workspace, op: ReduceOp) -> None:
        """The minimum or maximum with NaN on either side is NaN."""
        a = np.array([np.nan, 1, 2, np.inf, -np.inf, np.nan], dtype=np.float32)
        b = np.array([1, np.nan, 3, -np.inf, np.inf, np.nan], dtype=np.float32)
        target = space.put(a)
        space.device.accumulate(DType.F32, op, target, space.put(b), len(a))
        assert oracles.same_bits(space.get_like(target, a), oracles.reduce(DType.F32, op, [a, b]))

    @requires(Capability.ACCUMULATE)
    def test_extreme_values(self, space: Workspace) -> None:
        """Subnormal numbers, overflow to infinity and ties to even come out as IEEE 754 says."""
        for dtype, stored in (
            (DType.F32, np.array([1e-45, 1e-40, 3e38, -3e38, 16777216.0, 0.0], dtype=np.float32)),
            (DType.F16, np.array([6e-8, 6e-5, 65504.0, -65504.0, 2048.0, 0.0], dtype=np.float16)),
            (DType.BF16, np.array([0x0001, 0x0080, 0x7F7F, 0xFF7F, 0x4380, 0x8000], dtype=np.uint16)),
        ):
            other = np.roll(stored, 1)
            for left, right in ((stored, stored), (stored, other)):
                target = space.put(left)
                space.device.accumulate(dtype, ReduceOp.SUM, target, space.put(right), len(left))
                wanted = oracles.reduce(dtype, ReduceOp.SUM, [left, right])
                assert oracles.same_bits(space.get_like(target, wanted), wanted)

    @requires(Capability.ACCUMULATE)
    def test_target_may_be_a_source(self, space: Workspace) -> None:
        """The target may be any one of the sources."""
        values = [oracles.make_elements(DType.F32, 5000, seed) for seed in range(3)]
        wanted = oracles.reduce(DType.F32, ReduceOp.SUM, values)
        for index in range(3):
            sources = [space.put(v) for v in values]
            space.device.reduce_tree(DType.F32, ReduceOp.SUM, sources[index], sources, 5000)
            assert oracles.same_bits(space.get_like(sources[index], wanted), wanted)

    @requires(Capability.ACCUMULATE)
    def test_large_reduction(self, space: Workspace) -> None:
        """A reduction of more elements than the device has threads, from sources in no order, is complete."""
        values = [oracles.make_elements(DType.BF16, 700_001, seed) for seed in range(5)]
        sources = [space.put(v) for v in values]
        target = space.take(values[0].nbytes)
        order = [3, 0, 4, 1, 2]
        space.device.reduce_tree(DType.BF16, ReduceOp.SUM, target, [sources[k] for k in order], 700_001)
        wanted = oracles.reduce(DType.BF16, ReduceOp.SUM, [values[k] for k in order])
        assert oracles.same_bits(space.get_like(target, wanted), wanted)

    @requires(Capability.ACCUMULATE)
    def test_reducing_nothing(self, space: Workspace) -> None:
        """No elements: nothing changes."""
        target = space.put(b"kept....")
        space.device.accumulate(DType.F32, ReduceOp.SUM, target, space.take(8), 0)
        assert space.get(target, 8) == b"kept...."

    @requires(Capability.ACCUMULATE)
    def test_bad_reductions_are_refused(self, space: Workspace) -> None:
        """Misaligned, outside, overlapping in part, integer average, no source, too many: InvalidArgument
        each."""
        device, a, b = space.device, space.put(bytes(1024)), space.put(bytes(1024))
        for arguments in (
            (DType.F32, ReduceOp.SUM, a + 2, [a, b], 4),
            (DType.F64, ReduceOp.SUM, a, [a, b + 4], 4),
            (DType.F32, ReduceOp.SUM, a, [b, space.arena.end - 8], 4),
            (DType.F32, ReduceOp.SUM, a + 4, [a, b], 4),
            (DType.I32, ReduceOp.AVERAGE, a, [a, b], 4),
            (DType.F32, ReduceOp.SUM, a, [], 4),
            (DType.F32, ReduceOp.SUM, a, [b] * 65, 4),
            (DType.F32, ReduceOp.SUM, a, [a, b], -1),
        ):
            with pytest.raises(InvalidArgument):
                device.reduce_tree(*arguments)
        with pytest.raises(InvalidArgument):
            device.reduce_tree(DType.I32, ReduceOp.SUM, a, [a, b], 4, premultiply=2.0)
        assert space.get(a, 1024) == bytes(1024)
