"""What users write about ranks and devices is read as meant, or refused by name."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from singularity_core.placement import Coordinates, PlacementError, parse_rank_devices, parse_rank_map

places = st.builds(Coordinates, st.integers(0, 9), st.integers(0, 9), st.integers(0, 9), st.integers(0, 9))
grids = st.lists(places, min_size=1, max_size=8, unique=True)


@given(
    grids, st.permutations(["DP{0.dp}", "MP{0.tp}", "PP{0.pp}", "SHARD{0.shard}"]), st.sampled_from("\n; ")
)
def test_entries(grid: list[Coordinates], terms: list[str], separator: str) -> None:
    """Any order of terms, and any separator, says the same."""
    text = separator.join(
        f"{rank}={','.join(terms).format(at)}" for rank, at in reversed(list(enumerate(grid)))
    )
    assert parse_rank_map(text, len(grid)) == tuple(grid)


@given(grids)
def test_json(grid: list[Coordinates]) -> None:
    """JSON: an object from rank to coordinates."""
    stated = {str(r): {"dp": at.dp, "tp": at.tp, "pp": at.pp, "shard": at.shard} for r, at in enumerate(grid)}
    assert parse_rank_map(json.dumps(stated), len(grid)) == tuple(grid)


def test_as_in_the_paper() -> None:
    """ "Rank 4 is DP0 MP0 PP1", with comments, blanks and lower case; what is not named is 0."""
    text = "# two stages\n 0 = dp0 , mp0, pp0\n1=PP1  # the second\n"
    assert parse_rank_map(text, 2) == (Coordinates(), Coordinates(pp=1))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0=DP0", "does not say who rank 1 is"),
        ("0=DP0 1=DP0", "ranks 0 and 1 both DP0"),
        ("0=DP0 1=DP1 2=DP2", "names rank 2, but there are 2"),
        ("0=DP0 0=DP1", "rank 0 twice"),
        ("0=DP0 1=DP1,DP2", "'DP2'"),
        ("0=DP0 1=EP1", "'EP1'"),
        ("0=DP0 1", "'1', which states no rank"),
        ("", "states no rank"),
        ("-1=DP0", "states no rank"),
        ('{"0": {"dp": 0}, "1": {"dp": "x"}}', "not what it should be"),
        ('{"0": {"dp": 0}, "1": {"rank": 1}}', "not what it should be"),
        ('{"0": {}, "01": {"dp": 1}}', "'01'"),
        ('{"0": {}, "1": {"dp": -1}}', "no rank's place"),
        ("{", "not what it should be"),
    ],
)
def test_maps_that_are_wrong(text: str, said: str) -> None:
    """A wrong map is refused with the entry, and an example of a right one."""
    with pytest.raises(PlacementError, match=said) as caught:
        parse_rank_map(text, 2)
    assert "4=DP0,MP0,PP1" in caught.value.remedy


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0,0,1,1", (0, 0, 1, 1)),
        ("0,2/1,3", (0, 1, 0, 1)),
        ("0,1,2,3/", (0, 0, 0, 0)),
        ("/0,1//2,3", (1, 1, 3, 3)),
        (" 3, 1 ,0,2", (3, 1, 0, 2)),
    ],
)
def test_rank_devices(text: str, expected: tuple[int, ...]) -> None:
    """Without a slash a list has the device of each rank, with slashes the ranks of each device."""
    assert parse_rank_devices(text, 4) == expected


@given(st.lists(st.integers(0, 5), min_size=1, max_size=12))
def test_both_notations_agree(device_of: list[int]) -> None:
    """The same map written per rank and per device is the same map."""
    per_device = "/".join(
        ",".join(str(rank) for rank, device in enumerate(device_of) if device == wanted)
        for wanted in range(7)
    )
    assert parse_rank_devices(per_device, len(device_of)) == tuple(device_of)
    assert parse_rank_devices(",".join(map(str, device_of)), len(device_of)) == tuple(device_of)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0,0,1", "gives devices to 3 ranks, but there are 4"),
        ("", "gives devices to 0 ranks"),
        ("0,2/1,4", "names rank 4"),
        ("0,2/1,2,3", "puts rank 2 on devices 0 and 1"),
        ("0,2/1", "puts rank 3 on no device"),
        ("0,0,x,1", "'x' is not a number"),
        ("0,0,-1,1", "'-1' is not a number"),
    ],
)
def test_rank_devices_that_are_wrong(text: str, said: str) -> None:
    """A wrong list is refused with the rank or word that is wrong."""
    with pytest.raises(PlacementError, match=said):
        parse_rank_devices(text, 4)
