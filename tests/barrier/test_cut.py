"""The consistent cut, explored in all interleavings: the very C code that proxies and coordinator run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from .model import State, World, explore, hear, issue, tell, wait

ALL3 = (0, 1, 2)


def consistent(world: World) -> Callable[[State], None]:
    def check(state: State) -> None:
        for channel, members in world.members.items():
            clocks = {world.clock(state, rank, channel) for rank in members}
            assert len(clocks) == 1, f"{channel} is cut in two: {clocks} at {state}"

    return check


STEP = (issue("w"), wait("w"))
WORLDS = {
    "data parallel, asynchronous": World((STEP * 3,) * 3, {"w": ALL3}),
    "run ahead without waiting": World(
        ((issue("w"),) * 4, (issue("w"),) * 4, (issue("w"), wait("w")) * 4), {"w": ALL3}
    ),
    "two groups that cross": World(
        (
            (issue("a"), issue("b"), wait("b"), issue("a"), wait("a")),
            (issue("b"), issue("a"), wait("a"), issue("a"), wait("a")),
            (issue("b"), wait("b")),
        ),
        {"a": (0, 1), "b": ALL3},
    ),
    "a pipeline with send and receive": World(
        (
            (issue("0>1"), issue("0>1"), issue("1>0"), issue("1>0"), wait("1>0")),
            (
                issue("0>1"),
                wait("0>1"),
                issue("1>2"),
                issue("0>1"),
                issue("1>2"),
                issue("2>1"),
                issue("1>0"),
                issue("2>1"),
                issue("1>0"),
            ),
            (issue("1>2"), issue("2>1"), issue("1>2"), issue("2>1")),
        ),
        {"0>1": (0, 1), "1>0": (0, 1), "1>2": (1, 2), "2>1": (1, 2)},
    ),
    "a group with operations on several channels": World(
        ((issue("a", "0>1"), issue("a"), wait("a")), (issue("a", "0>1"), issue("a"))),
        {"a": (0, 1), "0>1": (0, 1)},
    ),
    "a rank that waits for a message of one that is held": World(
        ((issue("w"), issue("w"), tell("go"), issue("w"), wait("w")), (hear("go"), *STEP * 3)), {"w": (0, 1)}
    ),
    "a rank that needs several operations of others first": World(
        (
            (issue("a"), wait("a"), issue("a"), wait("a"), tell("go"), issue("w"), wait("w")),
            (issue("a"), wait("a"), issue("a"), wait("a"), issue("w"), wait("w")),
            (hear("go"), issue("w"), wait("w")),
        ),
        {"a": (0, 1), "w": ALL3},
    ),
    "a rank that ends early": World(
        ((issue("w"), wait("w")), STEP[:2] + (issue("a"),) * 2, STEP[:2] + (issue("a"),) * 2),
        {"w": ALL3, "a": (1, 2)},
    ),
    "a rank without collectives": World(((tell("x"),), STEP * 2, (hear("x"), *STEP * 2)), {"w": (1, 2)}),
    "unequal numbers on the stages": World(
        (
            (issue("p"), issue("p"), issue("d0"), wait("d0")),
            (issue("p"), issue("p"), issue("d0"), wait("d0")),
            (issue("q"), issue("e"), issue("e"), wait("e")),
            (issue("q"), issue("e"), issue("e"), wait("e")),
        ),
        {"p": (0, 1), "q": (2, 3), "d0": (0, 1), "e": (2, 3)},
    ),
}


@pytest.mark.parametrize("period", [0, 2, 3])
@pytest.mark.parametrize("name", WORLDS)
def test_every_interleaving_reaches_a_consistent_cut_and_stays_there(name: str, period: int) -> None:
    """Whenever the request comes and whoever is slow, the cut is reached, halves no operation, and holds;
    also when it shall lie at the ends of mini-batches, which may never come, until that is given up."""
    world = replace(WORLDS[name], periods=dict.fromkeys(WORLDS[name].members, period) if period else {})
    states, cuts = explore(world, consistent(world))
    assert states > 10
    assert cuts


# all but the one with the most states
AGAIN = [name for name in WORLDS if name != "a pipeline with send and receive"]


@pytest.mark.parametrize("name", AGAIN)
def test_released_and_abandoned_cuts_leave_nothing_behind(name: str) -> None:
    """A cut may be released at any moment, reached or not: all programs can go on to their ends, and the next
    request, whenever it comes, finds a consistent cut."""
    world = WORLDS[name]
    explore(world, consistent(world), requests=3)


def test_a_rank_is_held_only_before_its_next_operation_beyond_the_cut() -> None:
    """Ranks in lock step are cut at several places, not only where their programs end."""
    world = WORLDS["data parallel, asynchronous"]
    _, cuts = explore(world, consistent(world))
    places = {world.clock(State(at), 0, "w") for at in cuts}
    assert places == {0, 1, 2, 3}


def test_a_cut_lies_where_mini_batches_end() -> None:
    """Where nobody leaves the rhythm or waits too long, ranks stop only after whole mini-batches."""
    steady = World((STEP * 4,) * 3, {"w": ALL3}, {"w": 2})
    _, cuts = explore(steady, consistent(steady), patient=True)
    assert {steady.clock(State(at), 0, "w") for at in cuts} == {0, 2, 4}


@st.composite
def matched_worlds(draw: st.DrawFn) -> World:
    """Random programs that cannot deadlock by themselves: a random order of operations, each given to all of
    its members; some are waited for; some messages from the past of one rank to another."""
    count = draw(st.integers(2, 4))
    names = {"a": tuple(range(count)), "b": (0, 1), "c": (count - 2, count - 1), "0>1": (0, 1)}
    programs: list[list[tuple[str, object]]] = [[] for _ in range(count)]
    for number in range(draw(st.integers(1, 5))):
        channel = draw(st.sampled_from(sorted(names)))
        for rank in names[channel]:
            programs[rank].append(issue(channel))
            if draw(st.booleans()):
                programs[rank].append(wait(channel))
        if draw(st.integers(0, 3)) == 0:
            teller = draw(st.integers(0, count - 1))
            hearer = (teller + draw(st.integers(1, count - 1))) % count
            programs[teller].append(tell(str(number)))
            programs[hearer].append(hear(str(number)))
    periods = draw(st.dictionaries(st.sampled_from(sorted(names)), st.integers(1, 4)))
    return World(tuple(tuple(p) for p in programs), names, periods)


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(matched_worlds())
def test_random_programs_reach_a_consistent_cut_in_every_interleaving(world: World) -> None:
    """Random groups, pairs, waits and messages out of sight: the cut is reached and halves no operation."""
    explore(world, consistent(world))
