"""The arena against a list of blocks that is searched from end to end."""

from __future__ import annotations

from typing import ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from .conftest import PureModule

GRAIN = 512
BASE = 0x2000_0000_0000
GRAINS = 64
OWNERS = st.integers(1, 3)


def grains(size: int) -> int:
    return -(-size // GRAIN) * GRAIN


class ArenaMachine(RuleBasedStateMachine):
    """Random calls on a small arena; the model tries every address."""

    module: ClassVar[PureModule]

    def __init__(self) -> None:
        super().__init__()
        self.ffi, self.lib = self.module.ffi, self.module.lib
        self.arena = self.lib.sg_arena_create(BASE, GRAINS * GRAIN)
        self.live: dict[int, tuple[int, int]] = {}

    def teardown(self) -> None:
        self.lib.sg_arena_destroy(self.arena)

    def fits(self, address: int, size: int) -> bool:
        return (
            size > 0
            and address % GRAIN == 0
            and address >= BASE
            and address + size <= BASE + GRAINS * GRAIN
            and all(address + size <= at or at + length <= address for at, (length, _) in self.live.items())
        )

    def places(self, size: int) -> list[int]:
        return [a for a in range(BASE, BASE + GRAINS * GRAIN, GRAIN) if self.fits(a, size)]

    @rule(size=st.integers(0, 20 * GRAIN), high=st.booleans(), owner=OWNERS)
    def alloc(self, size: int, high: bool, owner: int) -> None:
        out = self.ffi.new("uint64_t *")
        end = self.lib.SG_ARENA_HIGH if high else self.lib.SG_ARENA_LOW
        result = self.lib.sg_arena_alloc(self.arena, size, end, owner, out)
        places = self.places(grains(size))
        if not places:
            assert result == self.lib.SG_ARENA_FULL
            return
        assert result == self.lib.SG_ARENA_OK
        assert out[0] == (places[-1] if high else places[0])
        self.live[out[0]] = (grains(size), owner)

    @rule(at=st.integers(-2, 2 * GRAINS), size=st.integers(0, 8 * GRAIN), owner=OWNERS)
    def alloc_at(self, at: int, size: int, owner: int) -> None:
        address = BASE + at * GRAIN // 2
        result = self.lib.sg_arena_alloc_at(self.arena, address, size, owner)
        if self.fits(address, grains(size)):
            assert result == self.lib.SG_ARENA_OK
            self.live[address] = (grains(size), owner)
        else:
            assert result == self.lib.SG_ARENA_TAKEN

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        address = data.draw(st.sampled_from(sorted(self.live)))
        assert self.lib.sg_arena_free(self.arena, address) == self.lib.SG_ARENA_OK
        del self.live[address]

    @rule(at=st.integers(-4, 2 * GRAINS + 4))
    def free_wrong(self, at: int) -> None:
        address = BASE + at * GRAIN // 2
        if address not in self.live:
            assert self.lib.sg_arena_free(self.arena, address) == self.lib.SG_ARENA_UNKNOWN

    @rule(at=st.integers(-100, GRAINS * GRAIN + 100))
    def find(self, at: int) -> None:
        block = self.ffi.new("struct sg_arena_block *")
        result = self.lib.sg_arena_find(self.arena, BASE + at, block)
        holding = [(a, *self.live[a]) for a in self.live if a <= BASE + at < a + self.live[a][0]]
        if holding:
            assert (block.address, block.bytes, block.owner) == holding[0]
        else:
            assert result == self.lib.SG_ARENA_UNKNOWN

    @invariant()
    def agrees(self) -> None:
        lib = self.lib
        assert lib.sg_arena_check(self.arena) == 1
        assert lib.sg_arena_free_bytes(self.arena) == GRAINS * GRAIN - sum(n for n, _ in self.live.values())
        largest = lib.sg_arena_largest(self.arena)
        assert largest == 0 or self.places(largest)
        assert not self.places(largest + GRAIN)

    @invariant()
    def walks_in_order(self) -> None:
        block, seen, at = self.ffi.new("struct sg_arena_block *"), [], 0
        while self.lib.sg_arena_next(self.arena, at, block) == self.lib.SG_ARENA_OK:
            seen.append((block.address, (block.bytes, block.owner)))
            at = block.address + block.bytes
        assert seen == sorted(self.live.items())


def test_arena_agrees_with_exhaustive_search(pure: PureModule) -> None:
    """Every answer of the arena is the one that trying all addresses gives, from both ends."""
    ArenaMachine.module = pure
    relaxed = settings(max_examples=60, stateful_step_count=40, deadline=None,
                       suppress_health_check=list(HealthCheck))  # fmt: skip
    run_state_machine_as_test(ArenaMachine, settings=relaxed)


@pytest.mark.parametrize(
    ("base", "size"), [(0, 0), (1, 500), (513, 1000), (2**64 - 512, 512), (2**64 - 100, 1000)]
)
def test_arena_needs_a_whole_grain(pure: PureModule, base: int, size: int) -> None:
    """A range that holds no whole grain, or wraps around, is no arena."""
    assert pure.lib.sg_arena_create(base, size) == pure.ffi.NULL


def test_arena_refuses_impossible_sizes(pure: PureModule) -> None:
    """Sizes that overflow when rounded up are refused, not rounded to nothing."""
    arena = pure.lib.sg_arena_create(BASE, 1 << 40)
    out = pure.ffi.new("uint64_t *")
    for size in (2**64 - 1, 2**64 - 511, 2**63, (1 << 40) + 1):
        assert pure.lib.sg_arena_alloc(arena, size, 0, 1, out) == pure.lib.SG_ARENA_FULL
        assert pure.lib.sg_arena_alloc_at(arena, BASE, size, 1) == pure.lib.SG_ARENA_TAKEN
    assert pure.lib.sg_arena_alloc(arena, 1 << 40, 1, 1, out) == pure.lib.SG_ARENA_OK
    pure.lib.sg_arena_destroy(arena)
