"""The contract for collective operations between devices of one process."""

from __future__ import annotations

import abc
from collections.abc import Sequence

from .device import Device
from .types import DType, ReduceOp


class Group(abc.ABC):
    """Collective operations between devices of one process (``collectives``).  Member i is rank i.

    Each method takes one address per rank, waits for earlier work of all members, and returns when the result
    is in place on all of them.  Reductions follow the tree of `Device.reduce_tree` over ranks when the
    devices have ``deterministic_reduce``.  Bad arguments (length, alignment, ranges) raise `InvalidArgument`
    before anything happens; after an error of a device the content of all results is undefined."""

    @property
    @abc.abstractmethod
    def devices(self) -> tuple[Device, ...]:
        """The members, by rank.  A device may be there more than once: ranks that share it."""

    @abc.abstractmethod
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
        """results[r][i] = reduction over all ranks s of sources[s][i], the same bits on every rank r.

        A result may be its rank's source."""

    @abc.abstractmethod
    def reduce_scatter(
        self, dtype: DType, op: ReduceOp, sources: Sequence[int], results: Sequence[int], count: int
    ) -> None:
        """Each source holds one block of `count` elements per rank; rank r receives the reduction of all
        blocks r."""

    @abc.abstractmethod
    def broadcast(self, root: int, buffers: Sequence[int], size: int) -> None:
        """The `size` bytes of the buffer of rank `root` are copied to the buffers of all others."""

    @abc.abstractmethod
    def all_gather(self, sources: Sequence[int], results: Sequence[int], size: int) -> None:
        """Each result holds one block of `size` bytes per rank, and block s becomes the content of
        sources[s]."""
