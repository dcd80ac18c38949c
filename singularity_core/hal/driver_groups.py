"""Collective operations between devices behind the driver ABI, in one process.

A reduction gathers one piece of every rank's contribution in the scratch of one device, in the order of
ranks, reduces it there by the tree, and copies the result to all.  So the result depends on the ranks and
their contributions only, not on which device holds which rank; and all ranks get the same bits because they
are copies."""

from __future__ import annotations

from collections.abc import Sequence

from .device import Device
from .driver_abi import DriverDevice
from .driver_kernels import Reduction
from .errors import InvalidArgument
from .group import Group
from .ranges import check_accumulate
from .types import DType, ReduceOp

_ALIGNMENT = 256


class DriverGroup(Group):
    """`Group` over `DriverDevice` objects of one library; up to 64 ranks."""

    def __init__(self, devices: Sequence[Device]) -> None:
        """`InvalidArgument` for no device, more than 64, or devices of different libraries."""
        members = [device for device in devices if isinstance(device, DriverDevice)]
        if not 1 <= len(devices) <= 64:
            raise InvalidArgument(f"A group has 1 to 64 ranks, not {len(devices)}.")
        if len(members) != len(devices) or len({m.library_path for m in members}) != 1:
            raise InvalidArgument("The devices of a group must all belong to one backend.")
        self._members = tuple(members)

    @property
    def devices(self) -> tuple[Device, ...]:
        return self._members

    def all_reduce(
        self,
        dtype: DType,
        op: ReduceOp,
        sources: Sequence[int],
        results: Sequence[int],
        count: int,
        *,
        premultiply: float = 1.0,
    ) -> None:
        size = count * dtype.size
        check_accumulate(dtype, op, (*sources, *results), count, premultiply)
        self._check((sources, size), (results, size))
        self._wait()
        how = Reduction(dtype, op, len(self._members), premultiply)
        self._reduce(how, sources, list(zip(self._members, results, strict=True)), size)

    def reduce_scatter(
        self, dtype: DType, op: ReduceOp, sources: Sequence[int], results: Sequence[int], count: int
    ) -> None:
        block = count * dtype.size
        check_accumulate(dtype, op, (*sources, *results), count)
        self._check((sources, block * len(self._members)), (results, block))
        self._wait()
        how = Reduction(dtype, op, len(self._members))
        for rank, (member, result) in enumerate(zip(self._members, results, strict=True)):
            self._reduce(how, [source + rank * block for source in sources], [(member, result)], block)

    def broadcast(self, root: int, buffers: Sequence[int], size: int) -> None:
        if not 0 <= root < len(self._members):
            raise InvalidArgument(f"There is no rank {root} in a group of {len(self._members)}.")
        self._check((buffers, size))
        self._wait()
        source, content = self._members[root], buffers[root]
        for member, buffer in zip(self._members, buffers, strict=True):
            if buffer != content or member is not source:
                member.raw_copy(buffer, source, content, size)
        self._wait()

    def all_gather(self, sources: Sequence[int], results: Sequence[int], size: int) -> None:
        self._check((sources, size), (results, size * len(self._members)))
        self._wait()
        for member, result in zip(self._members, results, strict=True):
            for rank, (peer, source) in enumerate(zip(self._members, sources, strict=True)):
                block = result + rank * size
                if block != source or member is not peer:
                    member.raw_copy(block, peer, source, size)
        self._wait()

    def _check(self, *buffers: tuple[Sequence[int], int]) -> None:
        for addresses, size in buffers:
            if len(addresses) != len(self._members):
                raise InvalidArgument(
                    f"{len(addresses)} addresses were given for {len(self._members)} ranks."
                )
            for member, address in zip(self._members, addresses, strict=True):
                member.check_range(address, size)

    def _wait(self) -> None:
        for member in dict.fromkeys(self._members):
            member.quiesce()

    def _reduce(
        self, how: Reduction, sources: Sequence[int], results: Sequence[tuple[DriverDevice, int]], size: int
    ) -> None:
        root = results[0][0]
        with root.scratch() as (scratch, room):
            piece = room // (how.leaves + 1) // _ALIGNMENT * _ALIGNMENT
            leaves, reduced = scratch, scratch + how.leaves * piece
            for at in range(0, size, piece):
                part = min(piece, size - at)
                for rank, (peer, source) in enumerate(zip(self._members, sources, strict=True)):
                    root.raw_copy(leaves + rank * piece, peer, source + at, part)
                root.raw_reduce(how, reduced, leaves, piece, part // how.dtype.size)
                for member, result in results:
                    member.raw_copy(result + at, root, reduced, part)
                self._wait()
