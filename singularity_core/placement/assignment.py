"""Deals ranks out to devices, and checks what was dealt by hand.

The rule is one: ranks on the same device are of the same partition.  What follows from it: there must be at
least as many devices as partitions; and, as all partitions wait for each other in every mini-batch, each
gets the same number of devices, so that none is sliced finer than the others.  Replicas of one partition
may be dealt unevenly (5 on 2 devices: 3 and 2); neighbours stay together, and devices are numbered by their
first rank."""

from __future__ import annotations

from collections.abc import Sequence

from .errors import PlacementError
from .grid import Coordinates


def assign(grid: Sequence[Coordinates], devices: int) -> tuple[int, ...]:
    """The device of each rank, for devices 0 to `devices`.  With a device for every rank that is the rank's
    number.  `PlacementError` when ranks of different partitions would have to share, or to share unevenly."""
    world = len(grid)
    if devices >= world:
        return tuple(range(world))
    partitions: dict[tuple[int, int, int], list[int]] = {}
    for rank, at in enumerate(grid):
        partitions.setdefault(at.partition, []).append(rank)
    _check_counts(grid, partitions, devices)
    each = devices // len(partitions)
    hands = []
    for ranks in partitions.values():
        ranks.sort(key=lambda rank: (grid[rank].dp, rank))
        hands += [hand for hand in _deal(ranks, each) if hand]
    hands.sort(key=min)
    device_of = {rank: device for device, hand in enumerate(hands) for rank in hand}
    return tuple(device_of[rank] for rank in range(world))


def _deal(ranks: list[int], count: int) -> list[list[int]]:
    """`count` runs of neighbours whose lengths differ by one at most, the longer ones first."""
    short, longer = divmod(len(ranks), count)
    hands, at = [], 0
    for number in range(count):
        size = short + (number < longer)
        hands.append(ranks[at : at + size])
        at += size
    return hands


def _check_counts(
    grid: Sequence[Coordinates], partitions: dict[tuple[int, int, int], list[int]], devices: int
) -> None:
    count = len(partitions)
    if devices < count:
        first, second = (ranks[0] for ranks in list(partitions.values())[:2])
        raise PlacementError(
            f"{count} model partitions do not fit on {devices} device(s): ranks {first} ({grid[first]}) and "
            f"{second} ({grid[second]}), for one, hold different parts of the model, and only replicas of "
            "the same part share a device.",
            remedy=f"Use at least {count} devices.",
        )
    if devices % count:
        raise PlacementError(
            f"{devices} devices cannot be dealt evenly to {count} model partitions: some would be sliced "
            "finer, and all others wait for them.",
            remedy=f"Use {devices - devices % count} devices, or state the device of each rank.",
        )


def check_assignment(
    grid: Sequence[Coordinates], device_of_rank: Sequence[int], devices: int, *, most: int
) -> None:
    """Checks a map that was made by hand: known devices (0 to `devices`), `most` ranks on each at most, and
    one partition on each. `PlacementError` names the first two ranks that must not share."""
    holders: dict[int, list[int]] = {}
    for rank, device in enumerate(device_of_rank):
        if not 0 <= device < devices:
            raise PlacementError(
                f"Rank {rank} is to use device {device}, but there are {devices} device(s), from 0."
            )
        sharing = holders.setdefault(device, [])
        if sharing and grid[sharing[0]].partition != grid[rank].partition:
            raise PlacementError(
                f"Device {device} would hold rank {sharing[0]} ({grid[sharing[0]]}) and rank {rank} "
                f"({grid[rank]}): {_difference(grid[sharing[0]], grid[rank])}, and only replicas of the same "
                "part of the model share a device.",
                remedy="Move one of them to a device with its replicas.",
            )
        sharing.append(rank)
        if len(sharing) > most:
            raise PlacementError(
                f"Device {device} would serve more than {most} ranks.", remedy="Use more devices."
            )


def _difference(one: Coordinates, other: Coordinates) -> str:
    if one.pp != other.pp:
        return f"they are of pipeline stages {one.pp} and {other.pp}"
    if one.tp != other.tp:
        return f"they are tensor-parallel slices {one.tp} and {other.tp}"
    return f"they hold shards {one.shard} and {other.shard}"


def usable_devices(grid: Sequence[Coordinates], available: int) -> int:
    """How many of `available` devices `assign` can use; `available` itself when it can use none, so that
    `assign` says why."""
    count = len({at.partition for at in grid})
    if available >= len(grid):
        return len(grid)
    return available - available % count or available
