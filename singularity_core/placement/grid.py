"""Who a rank is: its coordinates in the grid of data, tensor and pipeline parallelism.

Orders are written as Megatron-LM writes them (``initialize_model_parallel(order=...)``): axes joined by
dashes, *the first varies fastest* from rank to rank.  Supported are all orders of ``tp``, ``dp`` and
``pp``, and these names:

* ``megatron`` = ``tp-cp-ep-dp-pp``, Megatron-LM's default;
* ``megatron-tp-pp-dp`` = ``tp-cp-ep-pp-dp``, what Megatron-LM's ``--use-tp-pp-dp-mapping`` chooses;
* ``deepspeed`` = ``tp-dp-pp``: DeepSpeed's ``PipeModelDataParallelTopology`` has the axes pipe, data,
  model, the *last* of which varies fastest; its ``PipeDataParallelTopology`` is the same without model.
  With the degrees that we know it is Megatron's default order under other names.

The axes ``cp`` (context) and ``ep`` (expert) may be named, and have degree 1: ranks that differ in them
hold different activations or experts, so that they never share a device.  State such a grid rank by rank
(`parse_rank_map`)."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from .errors import PlacementError

NAMED_ORDERS = {
    "megatron": "tp-cp-ep-dp-pp",
    "megatron-tp-pp-dp": "tp-cp-ep-pp-dp",
    "deepspeed": "tp-dp-pp",
}
_AXES = {"tp", "dp", "pp"}
_AXES_OF_ONE = {"cp", "ep"}


@dataclass(frozen=True, order=True)
class Coordinates:
    """A rank's place in the job's grid; all count from 0."""

    dp: int = 0
    """Which replica."""
    tp: int = 0
    """Which slice of each layer (tensor, or "model", parallelism)."""
    pp: int = 0
    """Which pipeline stage."""
    shard: int = 0
    """Which shard of parameters and optimizer state (ZeRO, FSDP), where they are sharded among replicas."""

    @property
    def partition(self) -> tuple[int, int, int]:
        """What it holds of the model; equal for exactly those ranks that may share a device."""
        return (self.pp, self.tp, self.shard)

    def __str__(self) -> str:
        shard = f",SHARD{self.shard}" if self.shard else ""
        return f"DP{self.dp},TP{self.tp},PP{self.pp}{shard}"


@dataclass(frozen=True)
class Degrees:
    """How many ranks each kind of parallelism spans."""

    tensor: int = 1
    pipeline: int = 1
    data: int | None = None
    """None: whatever the number of ranks leaves."""
    shards: int = 1
    """Partial sharding: parameters and optimizer state are split among so many *consecutive* replicas, and
    that is repeated along the data-parallel axis.  1: every replica holds all; the data-parallel degree:
    fully sharded, so that no two ranks are replicas of each other."""

    def resolve(self, world: int) -> int:
        """The data-parallel degree for `world` ranks.  `PlacementError` when the degrees do not multiply to
        it, or the shards do not divide it."""
        if min(self.tensor, self.pipeline, self.shards, 1 if self.data is None else self.data) < 1:
            raise PlacementError("Degrees of parallelism must be at least 1.")
        model = self.tensor * self.pipeline
        data = self.data if self.data is not None else world // model
        if data * model != world:
            asked = f"data {self.data} x " if self.data is not None else ""
            raise PlacementError(
                f"{asked}tensor {self.tensor} x pipeline {self.pipeline} does not give {world} ranks.",
                remedy=f"The product of the degrees must be the number of ranks (a multiple of {model}).",
            )
        if data % self.shards:
            raise PlacementError(
                f"{self.shards} shards do not divide {data} data-parallel replicas.",
                remedy="The sharding factor must divide the data-parallel degree.",
            )
        return data


def resolve_order(order: str) -> tuple[str, ...]:
    """The axes among tp, dp, pp, fastest first.  `PlacementError` for an order that is not supported."""
    axes = NAMED_ORDERS.get(order, order).split("-")
    known = [axis for axis in axes if axis not in _AXES_OF_ONE]
    if len(set(axes)) != len(axes) or set(known) != _AXES:
        raise PlacementError(
            f"There is no rank order {order!r}.",
            remedy=f"Use {', '.join(NAMED_ORDERS)}, or an order of tp, dp and pp such as tp-dp-pp (the first "
            "varies fastest).",
        )
    return tuple(known)


def rank_grid(world: int, degrees: Degrees, order: str = "megatron") -> tuple[Coordinates, ...]:
    """The coordinates of ranks 0 to `world`, in that order.  `PlacementError` for what does not fit."""
    data = degrees.resolve(world)
    extent = {"tp": degrees.tensor, "dp": data, "pp": degrees.pipeline}
    axes = resolve_order(order)
    grid = []
    for slowest_first in itertools.product(*(range(extent[axis]) for axis in reversed(axes))):
        at = dict(zip(reversed(axes), slowest_first, strict=True))
        grid.append(Coordinates(**at, shard=at["dp"] % degrees.shards))
    return tuple(grid)


def data_parallel_world(world: int) -> tuple[Coordinates, ...]:
    """What a job is when nobody says otherwise: replicas of one whole model."""
    return rank_grid(world, Degrees())
