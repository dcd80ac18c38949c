"""Only replicas share a device.  The oracle is enumeration of all maps of small worlds."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from singularity_core.placement import (
    Coordinates,
    Degrees,
    PlacementError,
    assign,
    check_assignment,
    data_parallel_world,
    rank_grid,
)

ORDERS = ("megatron", "megatron-tp-pp-dp", "dp-pp-tp")


def obeys(grid: Sequence[Coordinates], device_of: Sequence[int], devices: int) -> bool:
    """The rule, by its definition: pairs on one device agree in all but the replica; every device is used,
    and partitions use equally many."""
    for a, b in itertools.combinations(range(len(grid)), 2):
        same = (grid[a].tp, grid[a].pp, grid[a].shard) == (grid[b].tp, grid[b].pp, grid[b].shard)
        if device_of[a] == device_of[b] and not same:
            return False
    used = {(device_of[rank], at.partition) for rank, at in enumerate(grid)}
    return len(set(device_of)) == devices and len(set(Counter(p for _, p in used).values())) == 1


def worlds(most: int) -> Iterator[tuple[Degrees, str, int]]:
    """All grids of up to `most` ranks, with their number of ranks."""
    for world in range(1, most + 1):
        for tp, pp, shards in itertools.product(range(1, world + 1), repeat=3):
            if world % (tp * pp) == 0 and (world // (tp * pp)) % shards == 0:
                for order in ORDERS:
                    yield Degrees(tp, pp, None, shards), order, world


def test_all_small_worlds() -> None:
    """Up to six ranks: a map is found exactly when one exists among all maps, and it obeys the rule."""
    for degrees, order, world in worlds(6):
        grid = rank_grid(world, degrees, order)
        for devices in range(1, world):
            exists = any(
                obeys(grid, candidate, devices)
                for candidate in itertools.product(range(devices), repeat=world)
            )
            try:
                found = assign(grid, devices)
            except PlacementError:
                assert not exists, (degrees, order, world, devices)
            else:
                assert obeys(grid, found, devices), (degrees, order, world, devices, found)


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 8), st.sampled_from(ORDERS), st.integers(1, 64))
def test_larger_worlds(tp: int, pp: int, dp: int, order: str, devices: int) -> None:
    """Replicas are dealt as evenly as can be, in runs of neighbours, and devices are numbered by first
    rank."""
    grid = rank_grid(tp * pp * dp, Degrees(tp, pp, dp), order)
    try:
        found = assign(grid, devices)
    except PlacementError:
        assert devices < tp * pp or devices % (tp * pp) != 0
        return
    firsts = [found.index(device) for device in range(max(found) + 1)]
    assert firsts == sorted(firsts)
    for stage, piece in itertools.product(range(pp), range(tp)):
        ranks = sorted((at.dp, r) for r, at in enumerate(grid) if (at.pp, at.tp) == (stage, piece))
        dealt = [found[rank] for _, rank in ranks]
        assert dealt == sorted(dealt, key=dealt.index)
        sizes = Counter(dealt).values()
        assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(
    ("world", "devices", "expected"),
    [
        (1, 1, (0,)), (2, 4, (0, 1)), (4, 2, (0, 0, 1, 1)), (5, 2, (0, 0, 0, 1, 1)), (4, 1, (0, 0, 0, 0)),
        (3, 3, (0, 1, 2)),
    ],
)  # fmt: skip
def test_data_parallel_neighbours_share(world: int, devices: int, expected: tuple[int, ...]) -> None:
    """A data-parallel job deals neighbours to a device."""
    assert assign(data_parallel_world(world), devices) == expected


def test_eight_ranks_in_three_dimensions() -> None:
    """2 x 2 x 2: replicas 0 and 2, 1 and 3, 4 and 6, 5 and 7 share four devices; three or two cannot do."""
    grid = rank_grid(8, Degrees(tensor=2, pipeline=2))
    assert assign(grid, 4) == (0, 1, 0, 1, 2, 3, 2, 3)
    assert assign(grid, 8) == tuple(range(8))
    with pytest.raises(PlacementError, match=r"4 model partitions do not fit on 2 device.*DP0,TP0,PP0"):
        assign(grid, 2)
    with pytest.raises(PlacementError, match="cannot be dealt evenly") as caught:
        assign(grid, 6)
    assert "Use 4 devices" in caught.value.remedy


def test_fully_sharded_replicas_never_share() -> None:
    """With a sharding factor of the whole data-parallel degree, fewer devices than ranks are refused."""
    with pytest.raises(PlacementError, match="4 model partitions do not fit on 2"):
        assign(rank_grid(4, Degrees(shards=4)), 2)


@given(st.data())
def test_check_agrees_with_the_definition(data: st.DataObject) -> None:
    """A map by hand passes exactly when pairs on one device are replicas, devices exist, and none is
    overfull."""
    tp, pp, dp = (data.draw(st.integers(1, 2)) for _ in range(3))
    grid = rank_grid(tp * pp * dp, Degrees(tp, pp, dp))
    chosen = data.draw(st.lists(st.integers(0, 3), min_size=len(grid), max_size=len(grid)))
    devices, most = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 3))
    fine = (
        all(device < devices for device in chosen)
        and max(Counter(chosen).values()) <= most
        and all(
            chosen[a] != chosen[b] or (grid[a].tp, grid[a].pp) == (grid[b].tp, grid[b].pp)
            for a, b in itertools.combinations(range(len(grid)), 2)
        )
    )
    try:
        check_assignment(grid, chosen, devices, most=most)
    except PlacementError:
        assert not fine
    else:
        assert fine


@pytest.mark.parametrize(
    ("chosen", "said"),
    [
        ((0, 1, 0, 1, 0, 1, 2, 3), r"Device 0 would hold rank 0 \(DP0,TP0,PP0\) and rank 4 .*stages 0 and 1"),
        ((0, 0, 1, 1, 2, 2, 3, 3), r"rank 0 .* and rank 1 .*tensor-parallel slices 0 and 1"),
        ((0, 1, 0, 1, 2, 3, 2, 4), "Rank 7 is to use device 4, but there are 4"),
    ],
)
def test_maps_by_hand_are_refused_by_name(chosen: tuple[int, ...], said: str) -> None:
    """A refusal names device, ranks, their places, and what differs."""
    with pytest.raises(PlacementError, match=said):
        check_assignment(rank_grid(8, Degrees(2, 2)), chosen, 4, most=64)
