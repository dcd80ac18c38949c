"""Communicators that go on in other proxies, at rest."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from singularity_core._native import ffi, lib

from .arithmetic import same
from .conftest import World
from .random_programs import Check, Step, add_collective, add_transfers, play

MAPS = {
    2: [[0, 0], [0, 1], [1, 0]],
    4: [[0, 0, 0, 0], [0, 0, 1, 1], [0, 1, 0, 1], [0, 1, 2, 3], [2, 1, 0, 0]],
}


def carry(old: Path, new: Path, places: list[int]) -> str:
    """Takes all communicators there; "" or why not."""
    proxies, why = ffi.new("uint32_t[1024]"), ffi.new("char[256]")
    proxies[0 : len(places)] = places
    error = lib.sg_rosters_carry(str(old).encode(), str(new).encode(), proxies, why)
    return ffi.string(why).decode() if error else ""


def resume(world: World, key: bytes, group: list[int]) -> list[Any]:
    """The members of a carried communicator, in another world."""
    members = []
    for index, rank in enumerate(group):
        member, said = ffi.new("sg_member **"), ffi.new("char[160]")
        error = lib.sg_member_resume(world.ranks[rank].party, key, len(group), index, member, said)
        assert error == 0, ffi.string(said)
        members.append(member[0])
    return members


def random_steps(groups: list[list[int]], choice: random.Random, checks: list[Check]) -> list[Step]:
    """Some groups of collectives and transfers on two communicators."""
    steps = []
    for _ in range(choice.randint(0, 6)):
        step = Step(choice.randrange(2))
        for _ in range(choice.choice((1, 1, 2, 5))):
            add = add_transfers if choice.random() < 0.5 else add_collective
            add(step, groups[step.communicator], choice, checks)
        steps.append(step)
    return steps


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(ranks=st.sampled_from([2, 4]), seed=st.integers(0, 2**32 - 1), moves=st.integers(1, 3))
def test_results_do_not_depend_on_moves(ranks: int, seed: int, moves: int) -> None:
    """Ranks that change proxies between any groups of any collectives and transfers get numpy's results, and
    the proxies from before are not disturbed while they are there."""
    choice, checks = random.Random(seed), list[Check]()
    groups = [list(range(ranks)), choice.sample(range(ranks), choice.randint(1, ranks))]
    keys = [bytes([index]) * 16 for index in range(2)]
    worlds: list[World] = []
    with tempfile.TemporaryDirectory(prefix="singularity-test-", dir="/dev/shm") as name:
        try:
            for move in range(moves + 1):
                directory, places = Path(name, str(move)), choice.choice(MAPS[ranks])
                directory.mkdir()
                if move:
                    assert carry(Path(name, str(move - 1)), directory, places) == ""
                worlds.append(World(places, directory, seed + move))
                members = [
                    resume(worlds[-1], key, group) if move else worlds[-1].communicator(group, key)
                    for key, group in zip(keys, groups, strict=True)
                ]
                play(worlds[-1], members, groups, random_steps(groups, choice, checks), choice)
                assert all(not rank.failures for rank in worlds[-1].ranks)
        finally:
            for world in worlds:
                world.end()
    for one in checks:
        assert same(one.dtype, one.got, one.expected), (one.rank, one.kind, one.dtype)


def test_split_counts_on(exchange: Path) -> None:
    """The next split of a carried communicator gets the key that it would have got without the move, and that
    is another one than that before."""
    old, new = exchange / "old", exchange / "new"
    old.mkdir()
    new.mkdir()
    worlds = [World([0, 1], old)]
    try:
        members = worlds[0].communicator()
        first = _split(members)
        assert carry(old, new, [1, 0]) == ""
        worlds.append(World([1, 0], new))
        second = _split(resume(worlds[1], b"k" * 16, [0, 1]))
        assert first != second == _split(members)
    finally:
        for world in worlds:
            world.end()


def _split(members: list[Any]) -> bytes:
    found, said = [], ffi.new("char[160]")
    for member in members:
        split = ffi.new("struct sg_split *")
        assert lib.sg_split_begin(member, 0, 0, split) == 0
        found.append(split)
    for member, split in zip(members, found, strict=True):
        assert lib.sg_split_ready(member, split, said) == 1, ffi.string(said)
        lib.sg_split_end(member)
    return bytes(ffi.buffer(found[0].key))


@pytest.mark.parametrize(
    "what", ["another rank's place", "not of this proxy", "twice", "no such communicator"]
)
def test_only_who_was_a_member_resumes(exchange: Path, what: str) -> None:
    """A place on the roster is taken over once, by the rank whose it was, in the proxy that it was given."""
    old, new = exchange / "old", exchange / "new"
    old.mkdir()
    new.mkdir()
    worlds = [World([0, 1], old)]
    member, said = ffi.new("sg_member **"), ffi.new("char[160]")
    try:
        worlds[0].communicator()
        assert carry(old, new, [0, 0] if what == "not of this proxy" else [0, 1]) == ""
        worlds.append(World([0, 1], new))
        first, second = (rank.party for rank in worlds[1].ranks)
        if what == "twice":
            assert lib.sg_member_resume(second, b"k" * 16, 2, 1, member, said) == 0
        key = b"x" * 16 if what == "no such communicator" else b"k" * 16
        party = first if what == "another rank's place" else second
        assert lib.sg_member_resume(party, key, 2, 1, member, said) != 0
    finally:
        for world in worlds:
            world.end()


def test_a_communicator_that_is_being_made_is_not_carried(exchange: Path) -> None:
    """While a rank takes its place, the roster does not say who is where: that is refused in words."""
    old, new = exchange / "old", exchange / "new"
    old.mkdir()
    new.mkdir()
    world = World([0, 1], old)
    try:
        world.communicator()
        roster = next(old.glob("c-*"))
        content = bytearray(roster.read_bytes())
        at = ffi.sizeof("struct sg_roster")
        content[at : at + 4] = (1).to_bytes(4, "little")  # SG_MEMBER_JOINING
        roster.write_bytes(content)
        assert "joining" in carry(old, new, [0, 1])
    finally:
        world.end()
