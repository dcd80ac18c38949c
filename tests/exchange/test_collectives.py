"""Collectives, sends and receives among engines, against numpy."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from .arithmetic import random_array, reduce, same
from .conftest import ALL_REDUCE, AVG, BF16, BROADCAST, RECV, SEND, SUM, TYPES, World
from .random_programs import Check, Step, add_collective, add_transfers, play

MAPS = [[0], [0, 0], [0, 1], [0, 0, 0], [0, 1, 0], [0, 0, 1], [0, 1, 2], [0, 0, 1, 1], [0, 1, 0, 1],
        [0, 1, 1, 2], [0, 0, 0, 0, 0], [0, 1, 2, 0, 1]]  # fmt: skip


def check(checks: list[Check]) -> None:
    """All outputs are what they have to be."""
    for one in checks:
        assert same(one.dtype, one.got, one.expected), (one.rank, one.kind, one.dtype, len(one.got))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(places=st.sampled_from(MAPS), seed=st.integers(0, 2**32 - 1), length=st.integers(1, 12))
def test_random_programs(places: list[int], seed: int, length: int) -> None:
    """Groups of any collectives and transfers on two communicators, issued, arriving and moved in any order,
    give numpy's results on any map; all gates open, once, and nobody is told of an error."""
    choice = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="singularity-test-", dir="/dev/shm") as name:
        world = World(places, Path(name), seed)
        try:
            everyone = list(range(len(places)))
            groups = [everyone, sorted(choice.sample(everyone, choice.randint(1, len(everyone))))]
            choice.shuffle(groups[1])
            members = [world.communicator(group, bytes([index]) * 16) for index, group in enumerate(groups)]
            steps: list[Step] = []
            checks: list[Check] = []
            for _ in range(length):
                step = Step(choice.randrange(2))
                for _ in range(choice.choice((1, 1, 1, 2, 5))):
                    add = add_transfers if choice.random() < 0.4 else add_collective
                    add(step, groups[step.communicator], choice, checks)
                steps.append(step)
            play(world, members, groups, steps, choice)
            check(checks)
            for rank in world.ranks:
                assert sorted(rank.opened) == list(range(1, rank.groups + 1))
                assert not rank.failures
                assert not rank.misses
        finally:
            world.end()


@pytest.mark.parametrize("places", [[0, 0], [0, 1], [0, 0, 1, 1], [0, 1, 0, 1], [0, 1, 2]])
def test_large_messages(places: list[int], exchange: Path) -> None:
    """Messages of many blocks, of sizes that do not divide into tiles, arrive whole; memory stays bounded."""
    world = World(places, exchange)
    try:
        members = world.communicator()
        checks: list[Check] = []
        choice = random.Random(7)
        for _ in range(6):
            step = Step(0)
            add_collective(step, list(range(len(places))), choice, checks, (1_700_001,))
            play(world, [members], [list(range(len(places)))], [step], choice)
        step = Step(0)
        add_transfers(step, list(range(len(places))), choice, checks, (3_000_001, 1 << 20, 1 << 21))
        play(world, [members], [list(range(len(places)))], [step], choice)
        check(checks)
        kept = sum(path.stat().st_blocks * 512 for path in exchange.glob("o-*"))
        assert kept <= len(world.engines) * 5 * (2 << 20)
    finally:
        world.end()


@pytest.mark.parametrize("dtype", [*TYPES, BF16])
def test_bits_do_not_depend_on_the_map(dtype: int) -> None:
    """A sum and an average of numbers of very different size are the same bits on every map of five ranks."""
    results = set()
    inputs = [random_array(dtype, 40_000, seed) for seed in range(5)]
    for places in ([0] * 5, [0, 1, 2, 3, 4], [0, 1, 0, 1, 0], [0, 0, 1, 1, 1], [1, 0, 0, 1, 2]):
        with tempfile.TemporaryDirectory(prefix="singularity-test-", dir="/dev/shm") as name:
            world = World(places, Path(name))
            try:
                members = world.communicator()
                outputs = [np.zeros_like(inputs[0]) for _ in places]
                for reduction in (SUM, AVG):
                    for rank in world.ranks:
                        operation = (
                            ALL_REDUCE,
                            dtype,
                            reduction,
                            0,
                            40_000,
                            inputs[rank.rank],
                            outputs[rank.rank],
                        )
                        rank.submit((members[rank.rank], *operation))
                    world.settle()
                    assert len({output.tobytes() for output in outputs}) == 1
                    if reduction == SUM:
                        assert same(dtype, outputs[0], reduce(dtype, SUM, inputs))
                results.add(outputs[0].tobytes())
            finally:
                world.end()
    assert len(results) == 1


def test_crossing_orders(exchange: Path) -> None:
    """Two ranks that issue on two communicators in opposite orders, on two streams, both get through."""
    world = World([0, 1], exchange)
    try:
        one, two = world.communicator(), world.communicator(key=b"2" * 16)
        data = np.ones(8, np.float32)
        for rank, order in ((0, (one, two)), (1, (two, one))):
            for members in order:
                world.ranks[rank].submit(
                    (members[rank], ALL_REDUCE, 7, SUM, 0, 8, data, np.zeros(8, np.float32))
                )
        world.settle()
        assert [sorted(rank.opened) for rank in world.ranks] == [[1, 2], [1, 2]]
    finally:
        world.end()


def test_both_send_first(exchange: Path) -> None:
    """Two ranks whose groups list a large send before the receive exchange their data."""
    world = World([0, 1], exchange)
    try:
        members = world.communicator()
        count = 3 << 20
        data = [random_array(7, count, seed) for seed in (1, 2)]
        out = [np.zeros(count, np.float32) for _ in range(2)]
        for me, rank in enumerate(world.ranks):
            rank.submit(
                (members[me], SEND, 7, 0, 1 - me, count, data[me], None),
                (members[me], RECV, 7, 0, 1 - me, count, None, out[me]),
            )
        world.settle()
        assert np.array_equal(out[0], data[1])
        assert np.array_equal(out[1], data[0])
    finally:
        world.end()


def test_operations_of_a_rank_keep_their_order(exchange: Path) -> None:
    """The second group of a rank starts only after the first, even when its stream arrived before."""
    from singularity_core._native import lib

    world = World([0, 1], exchange)
    try:
        members = world.communicator()
        buffer = [np.full(4, rank + 1, np.int32) for rank in range(2)]
        groups = []
        for me, rank in enumerate(world.ranks):
            for kind, root in ((ALL_REDUCE, 0), (BROADCAST, 1)):
                groups.append(
                    rank.submit((members[me], kind, 2, SUM, root, 4, buffer[me], buffer[me]), arrive=False)
                )
        lib.sg_group_arrived(groups[1])
        lib.sg_group_arrived(groups[3])
        world.settle()
        assert [rank.opened for rank in world.ranks] == [[], []]
        lib.sg_group_arrived(groups[0])
        lib.sg_group_arrived(groups[2])
        world.settle()
        assert [rank.opened for rank in world.ranks] == [[1, 2], [1, 2]]
        assert buffer[0].tolist() == [3] * 4
    finally:
        world.end()
