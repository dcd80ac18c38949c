"""A small world in which the cut's C code is explored: ranks with programs, channels, messages out of sight.

A program is a tuple of steps.  ``issue(a, b)`` issues one group with an operation on each of these channels
and goes on; ``wait(a)`` returns when all members of the channel have issued as much as the caller;
``tell(n)`` and ``hear(n)`` are a message outside of the device (TCP, a file): who hears waits until it was
told.  Everything that can happen in some state is a transition, and `explore` takes them all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from singularity_core._native import ffi, lib

Step = tuple[str, Any]
Program = tuple[Step, ...]
NO_TARGET = 2**64 - 1


def issue(*channels: str) -> Step:
    return ("issue", channels)


def wait(channel: str) -> Step:
    return ("wait", channel)


def tell(name: str) -> Step:
    return ("tell", name)


def hear(name: str) -> Step:
    return ("hear", name)


@dataclass(frozen=True)
class State:
    at: tuple[int, ...]
    """Per rank: the next step of its program."""
    targets: tuple[int, ...] | None = None
    """Per channel, once the cut was asked for."""
    reached: bool = False
    aligned: bool | None = None
    """Targets lie where mini-batches end, and may yet go back.  None: not yet looked for."""
    requests: int = 1
    """How many may yet come.  While there are any, the one under way may be released, reached or not."""


@dataclass(frozen=True)
class World:
    programs: tuple[Program, ...]
    members: dict[str, tuple[int, ...]]
    periods: dict[str, int] = field(default_factory=dict)
    """Per channel: how many operations are thought to make a mini-batch."""

    def channels(self) -> list[str]:
        return sorted(self.members)

    def clock(self, state: State, rank: int, channel: str) -> int:
        done = self.programs[rank][: state.at[rank]]
        return sum(what.count(channel) for kind, what in done if kind == "issue")

    def may_issue(self, state: State, rank: int, wanted: tuple[str, ...]) -> bool:
        """What the rank's proxy would decide, by the C function."""
        own = [c for c in self.channels() if rank in self.members[c]]
        standings = ffi.new("struct sg_cut_standing[]", max(1, len(own)))
        for i, channel in enumerate(own):
            standings[i].clock = self.clock(state, rank, channel)
            target = NO_TARGET if state.targets is None else state.targets[self.channels().index(channel)]
            standings[i].target = target
            standings[i].wants = wanted.count(channel)
        return bool(lib.sg_cut_may_issue(standings, len(own)))

    def enabled(self, state: State, rank: int) -> bool:
        if state.at[rank] == len(self.programs[rank]):
            return False
        kind, what = self.programs[rank][state.at[rank]]
        if kind == "issue":
            return self.may_issue(state, rank, what)
        if kind == "wait":
            mine = self.clock(state, rank, what)
            return all(self.clock(state, other, what) >= mine for other in self.members[what])
        if kind == "hear":
            return any(
                ("tell", what) in program[: state.at[other]] for other, program in enumerate(self.programs)
            )
        return True

    def moves(self, state: State, patient: bool) -> Iterator[State]:
        """All that can happen next, but for the passing of time."""
        for rank in range(len(self.programs)):
            if self.enabled(state, rank):
                at = (*state.at[:rank], state.at[rank] + 1, *state.at[rank + 1 :])
                yield replace(state, at=at)
        if state.targets is None:
            if state.requests > 0:
                yield self.coordinate(state, begin=True, patient=True)
        else:
            if state.requests > 0:
                yield self.release(state)
            yield self.coordinate(state, begin=False, patient=True)
            if state.aligned and not patient:
                yield self.coordinate(state, begin=False, patient=True, late=True)

    def release(self, state: State) -> State:
        """Nobody is held any more."""
        return replace(state, targets=None, reached=False, aligned=None)

    def over(self, state: State) -> bool:
        return all(at == len(program) for at, program in zip(state.at, self.programs, strict=True))

    def coordinate(self, state: State, *, begin: bool, patient: bool, late: bool = False) -> State:
        """One look of the coordinator.  Not `patient`: nothing has moved for as long as it takes.  `late`: it
        no longer waits for the ends of mini-batches."""
        names = self.channels()
        pairs = [(c, r) for c in names for r in self.members[c]]
        members = ffi.new("struct sg_cut_member[]", len(pairs))
        channels = ffi.new("struct sg_cut_channel[]", len(names))
        ranks = ffi.new("struct sg_cut_rank[]", len(self.programs))
        for rank, program in enumerate(self.programs):
            step = program[state.at[rank]] if state.at[rank] < len(program) else ("end", ())
            if step[0] == "issue" and not self.enabled(state, rank):
                ranks[rank].flags = lib.SG_CUT_HELD
        for i, (channel, rank) in enumerate(pairs):
            members[i].channel, members[i].rank = names.index(channel), rank
            members[i].clock = self.clock(state, rank, channel)
            if ranks[rank].flags:
                members[i].wants = self.programs[rank][state.at[rank]][1].count(channel)
        cut: Any = ffi.new("struct sg_cut *")
        cut.members, cut.channels, cut.ranks = members, channels, ranks
        cut.member_count, cut.channel_count, cut.rank_count = len(pairs), len(names), len(self.programs)
        if begin:
            lib.sg_cut_begin(cut, 1, 0)
            targets = tuple(int(c.target) for c in channels[0 : len(names)])
            return replace(state, targets=targets, requests=state.requests - 1)
        for i, target in enumerate(state.targets or ()):
            channels[i].target = target
        cut.patience_ns = 1
        cut.align_until = 100 if state.aligned else 0
        if state.aligned is None:
            for i, channel in enumerate(names):
                if channel in self.periods:
                    channels[i].aligned = lib.sg_tempo_next(channels[i].target, self.periods[channel], 0)
            lib.sg_cut_align(cut, 100, 0)
        lib.sg_cut_update(cut, 0)  # brings `sum` up to date, as after a movement
        now = 100 if late else 0 if patient else 10
        reached = lib.sg_cut_update(cut, now) == lib.SG_CUT_REACHED
        targets = tuple(int(channels[i].target) for i in range(len(names)))
        return replace(state, targets=targets, reached=reached, aligned=bool(cut.align_until))


def explore(
    world: World, check: Callable[[State], None], *, patient: bool = False, requests: int = 1
) -> tuple[int, set[tuple[int, ...]]]:
    """Visits every state; `check`s each that is reached.  Returns how many states there are, and where cuts
    were found.  `patient`: ends of mini-batches are waited for as long as it takes.  `requests`: so many,
    each but the last one released at any moment.

    AssertionError where nothing can happen any more although a cut was asked for and not reached, or was
    released and the programs are not through."""
    first = State((0,) * len(world.programs), requests=requests)
    seen, todo, cuts = {first}, deque([first]), set()
    while todo:
        state = todo.popleft()
        if state.reached:
            check(state)
            cuts.add(state.at)
        following = [s for s in world.moves(state, patient) if s != state]
        if not following and state.targets is not None and not state.reached:
            following = [world.coordinate(state, begin=False, patient=False)]
            assert following[0] != state, f"stuck: {state}"
        if not any(world.enabled(state, rank) for rank in range(len(state.at))) and state.targets is None:
            assert world.over(state), f"held by nobody: {state}"
        for other in following:
            if (
                state.reached and other.targets is not None
            ):  # what is reached stays: no operation can be issued any more
                clocks = [(c, r) for c in world.members for r in world.members[c]]
                assert [world.clock(state, r, c) for c, r in clocks] == [
                    world.clock(other, r, c) for c, r in clocks
                ]
                assert other.reached
            if other not in seen:
                seen.add(other)
                todo.append(other)
    return len(seen), cuts
