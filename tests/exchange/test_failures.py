"""What goes wrong between ranks: they are told, and do not wait."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from singularity_core._native import ffi, lib

from .conftest import (
    ALL_REDUCE,
    BROADCAST,
    FAIL_REMOTE,
    FAIL_USAGE,
    MAX,
    RECV,
    REDUCE,
    SEND,
    SUM,
    World,
    address,
)  # fmt: skip

MAPS = [[0, 0], [0, 1]]


@pytest.fixture(params=MAPS, ids=["shared", "apart"])
def world(request: pytest.FixtureRequest, exchange: Path) -> Any:
    """Two ranks, on one proxy or on two."""
    world = World(request.param, exchange)
    yield world
    world.end()


def array(count: int = 8, dtype: Any = np.float32) -> Any:
    """Some memory."""
    return np.ones(count, dtype)


@pytest.mark.parametrize(
    ("one", "other", "words"),
    [
        ((ALL_REDUCE, 7, SUM, 0, 8), (ALL_REDUCE, 7, SUM, 0, 9), ("8 elements", "9 elements")),
        ((ALL_REDUCE, 7, SUM, 0, 8), (ALL_REDUCE, 2, SUM, 0, 8), ("float32", "int32")),
        ((ALL_REDUCE, 7, SUM, 0, 8), (ALL_REDUCE, 7, MAX, 0, 8), ("sum", "max")),
        ((ALL_REDUCE, 7, SUM, 0, 8), (BROADCAST, 7, SUM, 0, 8), ("all_reduce", "broadcast")),
        ((REDUCE, 7, SUM, 0, 8), (REDUCE, 7, SUM, 1, 8), ("root 0", "root 1")),
        ((SEND, 7, 0, 1, 8), (RECV, 7, 0, 0, 4), ("8 elements", "4 elements")),
    ],
)
def test_mismatch(world: World, one: Any, other: Any, words: tuple[str, str]) -> None:
    """Ranks that do different things are both told, by the communicator's error, what each does."""
    members = world.communicator()
    for rank, operation in zip(world.ranks, (one, other), strict=True):
        rank.submit((members[rank.rank], *operation, array(16), array(16)))
    world.settle()
    for rank in world.ranks:
        code, said = rank.error(members[rank.rank])
        assert code == FAIL_USAGE
        assert all(word in said for word in (*words, "rank 0", "rank 1"))
        assert rank.opened == [1]
        assert len(rank.failures) == 1


def test_bytes_are_bytes(world: World) -> None:
    """A broadcast of 8 floats to who expects 32 bytes is no mismatch."""
    members, got = world.communicator(), np.zeros(32, np.uint8)
    data = array()
    world.ranks[0].submit((members[0], BROADCAST, 7, 0, 0, 8, data, data))
    world.ranks[1].submit((members[1], BROADCAST, 1, 0, 0, 32, None, got))
    world.settle()
    assert np.array_equal(got.view(np.float32), data)
    assert not world.ranks[1].failures


@pytest.mark.parametrize("kind", [ALL_REDUCE, SEND])
def test_a_session_that_ends_while_others_wait(world: World, kind: int) -> None:
    """Who waits for a rank that goes away, and who comes later, gets an error that names it."""
    members = world.communicator()
    world.ranks[0].submit((members[0], kind, 7, SUM, 1, 8, array(), array()))
    world.settle()
    assert world.ranks[0].opened == []
    lib.sg_party_quit(world.ranks[1].party)
    world.settle()
    code, said = world.ranks[0].error(members[0])
    assert code == FAIL_REMOTE
    assert "rank 1 (global rank 1)" in said
    assert world.ranks[0].opened == [1]
    with pytest.raises(RuntimeError) as failed:
        world.ranks[0].submit((members[0], ALL_REDUCE, 7, SUM, 0, 8, array(), array()))
    assert failed.value.args[0] == FAIL_REMOTE


def test_a_session_that_ends_before_others_come(world: World) -> None:
    """A rank that left after its last operation hurts nobody, until somebody waits for it."""
    members = world.communicator()
    for rank in world.ranks:
        rank.submit((members[rank.rank], ALL_REDUCE, 7, SUM, 0, 8, array(), array()))
    world.settle()
    lib.sg_party_quit(world.ranks[1].party)
    world.settle()
    assert world.ranks[0].error(members[0]) == (0, "")
    world.ranks[0].submit((members[0], ALL_REDUCE, 7, SUM, 0, 8, array(), array()))
    world.settle()
    assert world.ranks[0].error(members[0])[0] == FAIL_REMOTE
    assert world.ranks[0].opened == [1, 2]


def test_a_session_that_ends_opens_its_own_gates(world: World) -> None:
    """Quitting opens the gates of all pending groups, arrived or not, without an error of that session."""
    members = world.communicator()
    rank = world.ranks[0]
    rank.submit((members[0], ALL_REDUCE, 7, SUM, 0, 8, array(), array()))
    rank.submit((members[0], SEND, 7, 0, 1, 8, array(), None), arrive=False)
    world.settle()
    lib.sg_party_quit(rank.party)
    assert sorted(rank.opened) == [1, 2]
    assert not rank.failures
    world.settle()
    assert world.ranks[1].error(members[1])[0] == FAIL_REMOTE


@pytest.mark.parametrize("begun", [False, True])
def test_abort(world: World, begun: bool) -> None:
    """Abort ends the rank's own operations without an error of its own.  Who waits for it gets one of the
    communicator, not of its context, and goes on when it has aborted too: on a new communicator."""
    members = world.communicator()
    one, other = world.ranks
    count = 8 << 20 if begun else 8
    data = [np.ones(count, np.float32) for _ in range(2)]
    for rank in world.ranks[: 2 if begun else 1]:
        rank.submit((members[rank.rank], ALL_REDUCE, 7, SUM, 0, count, data[rank.rank], data[rank.rank]))
    for _ in range(4):
        world.turn()
    lib.sg_member_leave(members[0], 1)
    assert one.opened == [1]
    world.settle()
    other.submit((members[1], ALL_REDUCE, 7, SUM, 0, 8, array(), array()))
    world.settle()
    assert other.error(members[1])[0] == FAIL_REMOTE
    assert other.opened == []
    assert len(other.stranded) == 1
    lib.sg_member_leave(members[1], 1)
    assert sorted(other.opened) == list(range(1, other.groups + 1))
    assert not one.failures + other.failures
    again, got = world.communicator(key=b"a" * 16), [np.zeros(8, np.float32) for _ in range(2)]
    for rank in world.ranks:
        rank.submit((again[rank.rank], ALL_REDUCE, 7, SUM, 0, 8, array(), got[rank.rank]))
    world.settle()
    assert got[0].tolist() == got[1].tolist() == [2] * 8


def test_an_end_is_no_abort(world: World) -> None:
    """A rank that ends in the middle of its operations takes its peers' results along: their gates open, and
    their contexts fail."""
    members = world.communicator()
    for rank in world.ranks:
        rank.submit((members[rank.rank], ALL_REDUCE, 7, SUM, 0, 8, array(), array()), arrive=rank.rank == 1)
    world.settle()
    lib.sg_party_quit(world.ranks[0].party)
    world.settle()
    assert world.ranks[1].opened == [1]
    assert len(world.ranks[1].failures) == 1
    assert not world.ranks[1].stranded


def test_leaving_after_the_last_operation(world: World) -> None:
    """A communicator that all have left is gone: its file too, and its key can be used again."""
    for _ in range(3):
        members = world.communicator()
        out = [np.zeros(8, np.float32) for _ in range(2)]
        for rank in world.ranks:
            rank.submit((members[rank.rank], ALL_REDUCE, 7, SUM, 0, 8, array(), out[rank.rank]))
        world.settle()
        for member in members:
            assert not lib.sg_member_busy(member)
            lib.sg_member_leave(member, 0)
        world.settle()
        assert out[1].tolist() == [2] * 8
        assert world.directory is not None
        assert not list(world.directory.glob("c-*"))


def test_memory_that_is_gone(world: World) -> None:
    """A buffer that was freed meanwhile breaks the communicator, and the message names the rank."""
    members = world.communicator()
    data = array()
    world.ranks[1].revoked.add(address(data))
    for rank in world.ranks:
        rank.submit((members[rank.rank], ALL_REDUCE, 7, SUM, 0, 8, data, array()))
    world.settle()
    for rank in world.ranks:
        assert rank.opened == [1]
        assert "rank 1" in rank.error(members[rank.rank])[1]


def test_one_failed_communicator_of_a_group(exchange: Path) -> None:
    """When one communicator of a group breaks, the gate opens with an error at once, and the partners on the
    other one still get what they were promised."""
    world = World([0, 0, 1], exchange)
    try:
        broken = world.communicator([0, 1], b"b" * 16)
        good = world.communicator([0, 2], b"g" * 16)
        got = np.zeros(8, np.float32)
        world.ranks[0].submit(
            (broken[0], ALL_REDUCE, 7, SUM, 0, 8, array(), array()),
            (good[0], SEND, 7, 0, 1, 8, array(), None),
        )
        world.settle()
        lib.sg_party_quit(world.ranks[1].party)
        world.settle()
        assert world.ranks[0].opened == [1]
        assert len(world.ranks[0].failures) == 1
        world.ranks[2].submit((good[1], RECV, 7, 0, 0, 8, None, got))
        world.settle()
        assert got.tolist() == [1] * 8
        assert world.ranks[0].error(good[0]) == (0, "")
    finally:
        world.end()


def test_refused_joins(exchange: Path) -> None:
    """A rank that is taken, a rank out of range and another number of ranks are refused, with a reason."""
    world = World([0, 0, 1], exchange)
    try:
        world.ranks[0].join(b"k" * 16, 3, 0)
        for rank, ranks, place in (
            (1, 3, 0),
            (2, 3, 0),
            (1, 3, 3),
            (1, 2, 1),
            (2, 4, 1),
            (1, 0, 0),
            (1, 2000, 1),
        ):
            with pytest.raises(RuntimeError) as refused:
                world.ranks[rank].join(b"k" * 16, ranks, place)
            assert refused.value.args[0] == 4
            assert refused.value.args[1]
    finally:
        world.end()


def test_a_rank_that_ends_before_all_have_joined(world: World) -> None:
    """Who waits for the others to join learns that one of them will not be there."""
    said = ffi.new("char[160]")
    members = [world.ranks[i].join(b"k" * 16, 3, i) for i in range(2)]
    assert lib.sg_member_ready(members[0], said) == 0
    lib.sg_party_quit(world.ranks[1].party)
    assert lib.sg_member_ready(members[0], said) == -FAIL_REMOTE
    assert b"rank 1" in ffi.string(said)


PEER = """
import sys
sys.path.append(sys.argv[2])
from pathlib import Path
from tests.exchange.conftest import ALL_REDUCE, SUM, World
import numpy as np, time
from singularity_core._native import ffi, lib
from tests.exchange import conftest
options, why = ffi.new("struct sg_engine_options *"), ffi.new("char[256]")
name = ffi.new("char[]", sys.argv[1].encode())
options.directory, options.proxy_index, options.proxy_count = name, 1, 2
options.calls = conftest.CALLS
engine = lib.sg_engine_create(options, why)
rank = conftest.Rank(None, 1, engine)
rank.handle = ffi.new_handle(rank)
rank.party = lib.sg_party_begin(engine, rank.handle, 1, 1)
rank.join(b"k" * 16, 2, 1)
print("joined", flush=True)
sys.stdin.read()
"""


def test_a_proxy_that_is_killed(exchange: Path) -> None:
    """When another proxy is killed, who waits for its ranks learns it from its process, and is told which."""
    peer = subprocess.Popen(
        [sys.executable, "-P", "-c", PEER, str(exchange), str(Path(__file__).parents[2])],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ,
    )  # fmt: skip
    world = World([0], exchange, proxies=2)
    try:
        assert peer.stdout is not None
        assert peer.stdout.readline() == "joined\n"
        member, said = world.ranks[0].join(b"k" * 16, 2, 0), ffi.new("char[160]")
        assert lib.sg_member_ready(member, said) == 1
        world.ranks[0].submit((member, ALL_REDUCE, 7, SUM, 0, 8, array(), array()))
        world.settle()
        assert world.ranks[0].opened == []
        peer.kill()
        peer.wait()
        while not world.ranks[0].opened:
            world.turn()
        code, text = world.ranks[0].error(member)
        assert code == FAIL_REMOTE
        assert f"process {peer.pid}" in text
    finally:
        peer.kill()
        peer.wait()
        for stream in (peer.stdin, peer.stdout):
            if stream is not None:
                stream.close()
        (exchange / "o-1").unlink(missing_ok=True)
        world.end()


def test_idle_communicators_hold_no_memory(exchange: Path) -> None:
    """What two proxies offered to each other is given back when it was taken, not at the next offer."""
    world = World([0, 1], exchange)
    try:
        held = []
        for index in range(12):
            members = world.communicator(key=bytes([index]) * 16)
            for rank in world.ranks:
                rank.submit((members[rank.rank], ALL_REDUCE, 7, SUM, 0, 8, array(), array()))
            world.settle()
            held.append((exchange / "o-0").stat().st_blocks)
        assert max(held) == held[3]
    finally:
        world.end()
