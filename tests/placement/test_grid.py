"""Rank orders are those that the frameworks document."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Sequence

import pytest

from singularity_core.placement import Coordinates, Degrees, PlacementError, data_parallel_world, rank_grid


def groups(grid: Sequence[Coordinates], key: Callable[[Coordinates], Hashable]) -> list[list[int]]:
    """Ranks by what `key` says of their coordinates, in rank order."""
    found: dict[Hashable, list[int]] = {}
    for rank, at in enumerate(grid):
        found.setdefault(key(at), []).append(rank)
    return sorted(found.values())


def test_megatrons_documented_example() -> None:
    """16 ranks, tensor 2, pipeline 4: the groups that Megatron's documentation of
    initialize_model_parallel lists."""
    grid = rank_grid(16, Degrees(tensor=2, pipeline=4))
    assert groups(grid, lambda at: (at.tp, at.pp)) == [
        [0, 2], [1, 3], [4, 6], [5, 7], [8, 10], [9, 11], [12, 14], [13, 15],
    ]  # fmt: skip
    assert groups(grid, lambda at: (at.dp, at.pp)) == [[2 * i, 2 * i + 1] for i in range(8)]
    assert groups(grid, lambda at: (at.dp, at.tp)) == [
        [0, 4, 8, 12], [1, 5, 9, 13], [2, 6, 10, 14], [3, 7, 11, 15],
    ]  # fmt: skip


@pytest.mark.parametrize(("pipe", "data", "model"), [(2, 2, 2), (2, 3, 1), (1, 4, 2), (3, 2, 4), (1, 1, 1)])
def test_deepspeeds_axes(pipe: int, data: int, model: int) -> None:
    """DeepSpeed numbers ranks row-major over the axes pipe, data, model."""
    expected = [
        Coordinates(dp=d, tp=m, pp=p) for p, d, m in itertools.product(range(pipe), range(data), range(model))
    ]
    degrees = Degrees(tensor=model, pipeline=pipe, data=data)
    assert list(rank_grid(pipe * data * model, degrees, "deepspeed")) == expected


def test_tp_pp_dp_mapping() -> None:
    """With Megatron's other mapping stages are neighbours, and replicas are farthest apart."""
    grid = rank_grid(8, Degrees(tensor=2, pipeline=2), "megatron-tp-pp-dp")
    assert groups(grid, lambda at: (at.tp, at.pp)) == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert [at.pp for at in grid] == [0, 0, 1, 1, 0, 0, 1, 1]


@pytest.mark.parametrize("order", ["".join(f"-{axis}" for axis in p)[1:] for p in itertools.permutations(
    ["tp", "dp", "pp"])])  # fmt: skip
def test_first_axis_varies_fastest(order: str) -> None:
    """In any explicit order, a rank is the mixed-radix number of its coordinates, first axis least."""
    extent = {"tp": 2, "dp": 3, "pp": 4}
    for rank, at in enumerate(rank_grid(24, Degrees(2, 4, 3), order)):
        number, weight = 0, 1
        for axis in order.split("-"):
            number += getattr(at, axis) * weight
            weight *= extent[axis]
        assert number == rank


def test_shards_are_consecutive_replicas() -> None:
    """With a partial sharding factor of 2, replicas 0 and 2 hold the same shard, and 0 and 1 do not."""
    grid = rank_grid(4, Degrees(shards=2))
    assert groups(grid, lambda at: at.partition) == [[0, 2], [1, 3]]


def test_default_is_data_parallel() -> None:
    """Without degrees all ranks are replicas of one whole."""
    assert data_parallel_world(3) == (Coordinates(0), Coordinates(1), Coordinates(2))


@pytest.mark.parametrize(
    ("degrees", "said"),
    [
        (Degrees(tensor=3), "does not give 8 ranks"),
        (Degrees(tensor=2, data=2), "data 2 x tensor 2 x pipeline 1 does not give 8 ranks"),
        (Degrees(tensor=16), "does not give 8 ranks"),
        (Degrees(shards=3), "3 shards do not divide 8"),
        (Degrees(pipeline=0), "at least 1"),
        (Degrees(data=-8, tensor=-1), "at least 1"),
    ],
)
def test_degrees_that_do_not_fit(degrees: Degrees, said: str) -> None:
    """Degrees that do not multiply to the number of ranks are refused with the numbers."""
    with pytest.raises(PlacementError, match=said):
        rank_grid(8, degrees)


@pytest.mark.parametrize("order", ["", "tp-dp", "tp-dp-pp-tp", "tp-dp-xx", "slurm", "tp-cp-cp-dp-pp"])
def test_unknown_orders(order: str) -> None:
    """An order that lacks or repeats an axis is refused with the orders that there are."""
    with pytest.raises(PlacementError, match="There is no rank order") as caught:
        rank_grid(8, Degrees(), order)
    assert "deepspeed" in caught.value.remedy
