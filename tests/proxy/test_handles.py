"""The handle table against a dictionary."""

from __future__ import annotations

from typing import ClassVar

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

CLIENT = 1 << 20
KINDS = st.integers(1, 11)
CONTEXT, STREAM, EVENT, MODULE, FUNCTION = 1, 2, 3, 4, 5


def handle(kind: int, generation: int, index: int) -> int:
    return kind << 48 | generation << 32 | index


class HandleMachine(RuleBasedStateMachine):
    """Random handles of all kinds with parents, some chosen by the client."""

    module: ClassVar[PureModule]

    def __init__(self) -> None:
        super().__init__()
        self.ffi, self.lib = self.module.ffi, self.module.lib
        self.table = self.lib.pure_handles_new()
        self.live: dict[int, tuple[int, int]] = {}
        """Handle to (object, parent)."""
        self.ever: set[int] = set()
        self.objects = 1

    def teardown(self) -> None:
        gone = self.ffi.new("struct pure_destroyed *")
        self.lib.pure_handles_take_all(self.table, gone)
        assert gone.count == len(self.live)
        self.lib.pure_handles_free(self.table)

    def some_parent(self, data: st.DataObject) -> int:
        return data.draw(st.sampled_from([0, *sorted(self.live)]))

    @rule(kind=KINDS, data=st.data())
    def put(self, kind: int, data: st.DataObject) -> None:
        parent = self.some_parent(data)
        self.objects += 1
        made = self.lib.pure_handles_put(self.table, kind, self.objects, parent)
        assert made not in self.ever, "a proxy-chosen handle came twice"
        assert made >> 48 == kind
        assert made & 0xFFFFFFFF >= CLIENT
        self.ever.add(made)
        self.live[made] = (self.objects, parent)

    @rule(
        kind=KINDS,
        generation=st.integers(0, 3),
        index=st.sampled_from([0, 1, 2, 1023, 1024, CLIENT - 1]),
        data=st.data(),
    )
    def put_at(self, kind: int, generation: int, index: int, data: st.DataObject) -> None:
        parent = self.some_parent(data)
        wanted = handle(kind, generation, index)
        self.objects += 1
        taken = any(h >> 48 == kind and h & 0xFFFFFFFF == index for h in self.live)
        result = self.lib.pure_handles_put_at(self.table, wanted, self.objects, parent)
        assert (result == 0) == (index != 0 and not taken)
        if result == 0:
            self.live[wanted] = (self.objects, parent)

    @rule(kind=st.sampled_from([0, 13, 255]))
    def put_at_unknown_kind(self, kind: int) -> None:
        assert self.lib.pure_handles_put_at(self.table, handle(kind, 1, 1), 5, 0) != 0

    @rule(parent=st.integers(1, 2**64 - 1))
    def put_under_nothing(self, parent: int) -> None:
        if parent not in self.live:
            assert self.lib.pure_handles_put(self.table, STREAM, 5, parent) == 0

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def take(self, data: st.DataObject) -> None:
        chosen = data.draw(st.sampled_from(sorted(self.live)))
        doomed = {chosen}
        while True:
            more = {h for h, (_, parent) in self.live.items() if parent in doomed} - doomed
            if not more:
                break
            doomed |= more
        gone = self.ffi.new("struct pure_destroyed *")
        assert self.lib.pure_handles_take(self.table, chosen >> 48, chosen, gone) == self.live[chosen][0]
        seen = {gone.physical[i] for i in range(gone.count)}
        assert gone.count == len(seen)
        assert seen == {self.live[h][0] for h in doomed - {chosen}}
        kinds = [gone.kind[i] for i in range(gone.count)]
        assert CONTEXT not in kinds or set(kinds[kinds.index(CONTEXT) :]) == {CONTEXT}
        for h in doomed:
            del self.live[h]

    @rule(wrong=st.integers(0, 2**64 - 1), kind=KINDS)
    def foreign(self, wrong: int, kind: int) -> None:
        if wrong not in self.live:
            gone = self.ffi.new("struct pure_destroyed *")
            assert self.lib.pure_handles_get(self.table, kind, wrong) == 0
            assert self.lib.pure_handles_take(self.table, kind, wrong, gone) == 0

    @invariant()
    def only_live_handles_answer(self) -> None:
        for h, (physical, _) in self.live.items():
            assert self.lib.pure_handles_get(self.table, h >> 48, h) == physical
            assert self.lib.pure_handles_get(self.table, (h >> 48) % 11 + 1, h) == 0, "another kind"
            assert (
                self.lib.pure_handles_get(self.table, h >> 48, h ^ 1 << 32) == 0 or h ^ 1 << 32 in self.live
            )
        for h in self.ever - set(self.live):
            assert self.lib.pure_handles_get(self.table, h >> 48, h) == 0, "stale"


def test_handles_agree_with_a_dictionary(pure: PureModule) -> None:
    """Live handles find their object, all others find nothing, and a parent takes exactly its descendants."""
    HandleMachine.module = pure
    relaxed = settings(max_examples=60, stateful_step_count=40, deadline=None,
                       suppress_health_check=list(HealthCheck))  # fmt: skip
    run_state_machine_as_test(HandleMachine, settings=relaxed)
