"""What the board shows of ranks, and how the cut holds them."""

from __future__ import annotations

import errno
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from singularity_core._native import ffi, lib

from singularity_core.barrier.coordinator import BoardCut
from singularity_core.barrier.interface import CutRefusedError, CutState

from .conftest import ALL_REDUCE, FAIL_REMOTE, RECV, SEND, SUM, World

KEY = b"k" * 16


@pytest.fixture(params=[[0, 0], [0, 1]], ids=["shared", "apart"])
def world(request: pytest.FixtureRequest, exchange: Path) -> Any:
    """Two ranks, on one proxy or on two."""
    world = World(request.param, exchange)
    yield world
    world.end()


def operation(member: Any, kind: int = ALL_REDUCE, root: int = 0) -> tuple[Any, ...]:
    """Of eight floats."""
    return (member, kind, 7, SUM, root, 8, np.ones(8, np.float32), np.zeros(8, np.float32))


def roster(exchange: Path) -> Any:
    """The communicator's file, as the agent sees it."""
    found = ffi.new("struct sg_roster_map *")
    (path,) = exchange.glob("c-*")
    assert lib.sg_roster_look(str(exchange).encode(), path.name.encode(), found) == 0
    return found


def test_who_waits_for_whom(world: World) -> None:
    """A rank whose collective lacks another is shown as blocked, with the communicator, the operation and who
    is missing; then as running, with its operations counted."""
    members = world.communicator()
    first, second = world.ranks
    for _ in range(2):
        first.submit(operation(members[0]))
        world.settle()
        assert first.status.state == lib.SG_RANK_BLOCKED
        assert bytes(first.status.waits_key) == KEY
        assert first.status.waits_kind == ALL_REDUCE
        assert first.status.waits_number == first.groups - 1
        assert list(first.status.missing[0 : first.status.missing_count]) == [1]
        assert second.status.state == lib.SG_RANK_RUNNING
        second.submit(operation(members[1]))
        world.settle()
        assert first.status.state == lib.SG_RANK_RUNNING
    assert (first.status.issued, first.status.completed) == (2, 2)


def test_only_arrived_ranks_are_blocked(world: World) -> None:
    """While a rank's stream has not come to its collective, the rank itself is what is missing: it is not
    blocked, and it misses nobody; the other is, and does if it shares the device."""
    members = world.communicator()
    first, second = world.ranks
    group = first.submit(operation(members[0]), arrive=False)
    second.submit(operation(members[1]))
    world.settle()
    assert first.status.state == lib.SG_RANK_RUNNING
    assert second.status.state == lib.SG_RANK_BLOCKED
    assert not first.misses
    assert second.misses == (len(world.engines) == 1)
    lib.sg_group_arrived(group)
    world.settle()
    assert not second.misses


def test_transfers_show_what_they_miss(world: World) -> None:
    """A receive without its send is shown as blocked by the sender."""
    members = world.communicator()
    world.ranks[1].submit(operation(members[1], RECV, 0))
    world.settle()
    assert world.ranks[1].status.state == lib.SG_RANK_BLOCKED
    assert world.ranks[1].status.waits_kind == RECV
    assert world.ranks[1].status.missing[0] == 0
    assert world.ranks[1].misses == (len(world.engines) == 1)
    world.ranks[0].submit(operation(members[0], SEND, 1))
    world.settle()
    assert world.ranks[1].status.state == lib.SG_RANK_RUNNING


def test_ends_are_shown(world: World) -> None:
    """A session that has ended is shown as ended."""
    lib.sg_party_quit(world.ranks[1].party)
    lib.sg_party_end(world.ranks[1].party)
    world.ranks[1].party = None
    assert world.ranks[1].status.state == lib.SG_RANK_ENDED


def test_the_cut_holds_at_its_target(world: World, exchange: Path) -> None:
    """During a cut a rank is held before it passes its communicator's target, or has none yet, and the board
    shows what it wants; a rank that is behind is not; raising the target, or ending the cut, lets it go."""
    members = world.communicator()
    first, second = world.ranks
    said = ffi.new("char[160]")
    first.submit(operation(members[0]))
    board, found = lib.sg_engine_board(first.engine), roster(exchange)
    assert [found.members[i].clock for i in range(2)] == [1, 0]
    board.cut = 1
    found.roster.target = 1
    held = first.submit(operation(members[0]))
    assert lib.sg_group_issue(held, said) == 0  # asked again, the answer is the same
    assert first.status.state == lib.SG_RANK_HELD
    assert found.members[0].wants == 1
    assert found.members[0].clock == 1
    second.submit(operation(members[1]))
    world.settle()
    assert first.opened == second.opened == [1]
    found.roster.target = 2
    assert lib.sg_group_issue(held, said) == 1
    lib.sg_group_arrived(held)
    assert (found.members[0].clock, found.members[0].wants) == (2, 0)
    assert first.status.state == lib.SG_RANK_RUNNING
    found.roster.target = lib.SG_NO_TARGET  # the agent has not got to it yet
    again = first.submit(operation(members[0]))
    assert first.status.state == lib.SG_RANK_HELD
    board.cut = 0
    assert lib.sg_group_issue(again, said) == 1
    lib.sg_group_arrived(again)
    assert found.members[0].wants == 0
    lib.sg_roster_close(found)


def test_the_cut_holds_sends_and_receives(world: World, exchange: Path) -> None:
    """Ordered pairs have clocks and targets of their own; both sides are held by them."""
    members = world.communicator()
    first, second = world.ranks
    said = ffi.new("char[160]")
    first.submit(operation(members[0], SEND, 1))
    board, found = lib.sg_engine_board(first.engine), roster(exchange)
    pair = found.pairs[0 * 2 + 1]
    assert (pair.send_clock, pair.receive_clock) == (1, 0)
    board.cut = 1
    found.roster.target, pair.target = 0, 1
    held = first.submit(operation(members[0], SEND, 1))
    assert first.status.state == lib.SG_RANK_HELD
    assert (pair.send_clock, pair.send_wants) == (1, 1)
    second.submit(operation(members[1], RECV, 0))
    world.settle()
    assert (pair.receive_clock, pair.receive_wants) == (1, 0)
    other = second.submit(operation(members[1], RECV, 0))
    assert second.status.state == lib.SG_RANK_HELD
    assert (pair.receive_clock, pair.receive_wants) == (1, 1)
    board.cut = 0
    for group in (held, other):
        assert lib.sg_group_issue(group, said) == 1
        lib.sg_group_arrived(group)
    world.settle()
    assert (pair.receive_clock, pair.receive_wants) == (2, 0)
    assert first.status.state == second.status.state == lib.SG_RANK_RUNNING
    lib.sg_roster_close(found)


def test_who_is_behind_may_pass_other_targets(exchange: Path) -> None:
    """A rank that has not reached one target issues on a communicator whose target it has reached."""
    world = World([0, 0], exchange)
    try:
        one, two = world.communicator(), world.communicator(key=b"2" * 16)
        board = lib.sg_engine_board(world.ranks[0].engine)
        maps = {}
        for path in exchange.glob("c-*"):
            found = ffi.new("struct sg_roster_map *")
            assert lib.sg_roster_look(str(exchange).encode(), path.name.encode(), found) == 0
            maps[bytes(found.roster.key)] = found
        board.cut = 1
        maps[KEY].roster.target, maps[b"2" * 16].roster.target = 0, 1
        assert world.ranks[0].submit(operation(one[0])) == 1
        assert world.ranks[0].submit(operation(two[0])) == 2
        held = world.ranks[0].submit(operation(one[0]))
        assert world.ranks[0].status.state == lib.SG_RANK_HELD
        lib.sg_group_free(held)
        board.cut = 0
        for found in maps.values():
            lib.sg_roster_close(found)
    finally:
        world.end()


def test_a_damaged_roster_is_refused(exchange: Path) -> None:
    """A file whose size is not what its head says is not mapped."""
    world = World([0, 0], exchange)
    try:
        world.communicator()
        (path,) = exchange.glob("c-*")
        found = ffi.new("struct sg_roster_map *")
        content = path.read_bytes()[:4096]
        damaged = exchange / "c-00"
        for text in (content, content[:8] + b"\xff" * 8 + content[16:], b"", b"x" * 100):
            damaged.write_bytes(text)
            assert lib.sg_roster_look(str(exchange).encode(), b"c-00", found) < 0
        assert lib.sg_roster_look(str(exchange).encode(), b"../board", found) < 0
        damaged.unlink()
    finally:
        world.end()


def test_a_held_group_that_fails_wants_nothing(world: World, exchange: Path) -> None:
    """A group that the cut held, and that its communicator's error ends, leaves no wish behind."""
    members, said = world.communicator(), ffi.new("char[160]")
    first = world.ranks[0]
    board, found = lib.sg_engine_board(first.engine), roster(exchange)
    board.cut = 1
    group = first.submit(operation(members[0]))
    assert (first.status.state, found.members[0].wants) == (lib.SG_RANK_HELD, 1)
    found.roster.error = FAIL_REMOTE
    assert lib.sg_group_issue(group, said) == -FAIL_REMOTE
    assert (first.status.state, found.members[0].wants) == (lib.SG_RANK_RUNNING, 0)
    lib.sg_group_free(group)
    board.cut = 0
    lib.sg_roster_close(found)


def test_a_place_is_its_proxys_from_the_first_moment(exchange: Path) -> None:
    """A proxy that dies while one of its ranks joins is found in the rank's place: the others are told."""
    world = World([0], exchange, proxies=2)
    try:
        member, said = world.ranks[0].join(KEY, 2, 0), ffi.new("char[160]")
        found = roster(exchange)
        assert lib.sg_roster_claim(found.members + 1, 1) == 1
        assert lib.sg_roster_claim(found.members + 1, 0) == 0
        assert (found.members[1].state, found.members[1].proxy) == (lib.SG_MEMBER_JOINING, 1)
        assert lib.sg_member_ready(member, said) == 0
        lib.sg_engine_board(world.ranks[0].engine).proxies[1].state = lib.SG_PROXY_DEAD
        while lib.sg_member_ready(member, said) == 0:
            world.turn()
        assert lib.sg_member_ready(member, said) == -FAIL_REMOTE
        lib.sg_roster_close(found)
    finally:
        world.end()


def test_another_process_with_a_proxys_id_is_not_that_proxy(exchange: Path) -> None:
    """Who waits for ranks of a proxy whose process id now is another process's is told that it is gone."""
    world = World([0, 1], exchange)
    try:
        members = world.communicator()
        lib.sg_engine_board(world.ranks[0].engine).proxies[1].start += 1
        world.ranks[0].submit(operation(members[0]))
        while not world.ranks[0].opened:
            world.turn()
        assert world.ranks[0].error(members[0])[0] == FAIL_REMOTE
    finally:
        world.end()


# ---- what the agent sees -------------------------------------------------------------------------------


@pytest.fixture
def survey(exchange: Path) -> Any:
    """Looks at a board that is made with one proxy."""
    why = ffi.new("char[256]")
    survey = lib.sg_survey_open(str(exchange).encode(), 1, why)
    assert survey != ffi.NULL, ffi.string(why)
    yield survey
    lib.sg_survey_close(survey)


def test_all_pairs_are_seen(exchange: Path, survey: Any) -> None:
    """Every pair of a backward ring is a channel with its clocks, wherever it lies in the roster, also while
    only one side has come."""
    world = World([0] * 8, exchange)
    try:
        members = world.communicator()
        for rank in range(1, 8):
            world.ranks[rank].submit(operation(members[rank], SEND, rank - 1), arrive=False)
        assert lib.sg_survey_look(survey) == 0
        cut = lib.sg_survey_cut(survey)
        pairs: dict[int, list[tuple[int, int]]] = {}
        for member in cut.members[0 : cut.member_count]:
            pairs.setdefault(member.channel, []).append((member.rank, member.clock))
        wanted = [[(rank, 1), (rank - 1, 0)] for rank in range(1, 8)]
        assert sorted(pairs[channel] for channel in pairs if channel != 0) == wanted
    finally:
        world.end()


def test_a_rank_that_decides_delays_a_look_while_its_proxy_lives(exchange: Path, survey: Any) -> None:
    """What a rank is deciding is waited for, unless its proxy died over it, or another process has its id."""
    world = World([0], exchange)
    board = lib.sg_engine_board(world.ranks[0].engine)
    proxy = board.proxies[0]
    try:
        assert lib.sg_survey_look(survey) == 0
        board.ranks[0].issuing = 1
        assert lib.sg_survey_look(survey) == -errno.EAGAIN
        proxy.start += 1
        assert lib.sg_survey_look(survey) == 0
        proxy.start -= 1
        proxy.state = lib.SG_PROXY_DEAD
        assert lib.sg_survey_look(survey) == 0
        board.ranks[0].proxy = 1 << 20
        assert lib.sg_survey_look(survey) == 0
    finally:
        proxy.state, board.ranks[0].issuing = lib.SG_PROXY_ALIVE, 0
        world.end()


def test_communicators_come_and_go(exchange: Path, survey: Any) -> None:
    """Each look sees the communicators that there are, whatever their names, and each once."""
    world = World([0, 0], exchange)
    draw, there = random.Random(5), dict[bytes, list[Any]]()
    try:
        for _ in range(60):
            if there and draw.random() < 0.4:
                for member in there.pop(draw.choice(sorted(there))):
                    lib.sg_member_leave(member, 0)
                world.settle()
            else:
                key = draw.randbytes(16)
                there[key] = world.communicator(key=key)
            for _ in range(2):
                assert lib.sg_survey_look(survey) == 0
                assert lib.sg_survey_cut(survey).channel_count == len(there)
    finally:
        world.end()


def test_no_cut_begins_where_a_device_cannot_rest(exchange: Path) -> None:
    """A living proxy whose backend cannot tell rest from work refuses the cut, with cause and remedy, and
    leaves the board as it was."""
    world = World([0, 1], exchange)
    try:
        board, cut = lib.sg_engine_board(world.ranks[0].engine), BoardCut(exchange, 2)
        board.proxies[0].rests = 1
        with pytest.raises(CutRefusedError, match=r"device proxy 1 .* 'settle'.*`singularity-ctl backends`"):
            cut.begin(1.0)
        assert (board.cut, cut.poll().state) == (0, CutState.OPEN)
        board.proxies[1].rests = 1
        cut.begin(1.0)
        assert cut.poll().state is CutState.ACQUIRING
        cut.release()
        cut.close()
    finally:
        world.end()
