"""Ranks that share devices, as small as they can be, around the very slicer that the proxies run.

Time goes in ticks of 20 ms.  A rank is a list of actions; what takes time takes 1 to the action's most ticks,
as an adversary chooses.  So is when a cut holds the devices: then nothing but hosts and exits goes on.
States hold ages instead of times, none beyond any deadline, so they are finite.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from singularity_core._native import ffi, lib

TICK = 20_000_000
NOW = 1_000_000 * TICK
OLD = 60
"""Ticks after which it matters no more how long something is ago."""
HELD_MOST = 2
"""Ticks that a cut holds the devices at most."""
NOBODY: int = lib.SG_SLICER_NOBODY


@dataclass(frozen=True)
class Action:
    """``compute`` needs the device, ``host`` does not; both take 1 to `most` ticks.  ``contribute`` and
    ``wait`` are the two sides of collective `number` of all ranks that have it.  ``exit`` is the last one:
    for 1 to `most` ticks the session is being buried, then it is gone."""

    kind: str
    most: int = 1
    number: int = 0


@dataclass(frozen=True)
class Slicer:
    """struct sg_slicer, with ages in ticks."""

    state: tuple[int, ...]
    age: tuple[int, ...]
    pause: tuple[int, ...]
    pause_before: tuple[int, ...]
    resident: int
    last: int
    resident_age: int
    switches: int = 0


@dataclass(frozen=True)
class State:
    at: tuple[int, ...]
    """Per rank: its action; the number of actions when it is through."""
    spent: tuple[int, ...]
    """Per rank: ticks in that action."""
    slicers: tuple[Slicer, ...]
    """Per device."""
    turns_missed: tuple[int, ...]
    """Per rank: switches to others since it wants the device."""
    cuts: int = 0
    """How many may yet come."""
    held: int = 0
    """For how many ticks a cut has held the devices; 0: none does."""

    @property
    def slicer(self) -> Slicer:
        """Of the first device."""
        return self.slicers[0]

    @property
    def switches(self) -> int:
        return sum(slicer.switches for slicer in self.slicers)


class Model:
    """The ranks' programs and the slicer's settings."""

    def __init__(
        self,
        programs: list[list[Action]],
        *,
        quantum: int,
        wait: int = 1,
        devices: tuple[int, ...] = (),
        cuts: int = 0,
    ) -> None:
        """`devices`: where each rank is; on one if it is left out.  `cuts`: how often one is asked for."""
        self.programs = programs
        self.count = len(programs)
        self.devices = devices or (0,) * self.count
        self.cuts = cuts
        self._native: Any = ffi.new("struct sg_slicer *")
        lib.sg_slicer_init(self._native, wait * TICK, quantum * TICK)

    # ---- between the model's slicer and the C struct -----------------------------------------------
    def _load(self, s: Slicer) -> Any:
        native = self._native
        native.resident, native.last, native.switches = s.resident, s.last, s.switches
        native.resident_since = NOW - s.resident_age * TICK
        for i in range(self.count):
            native.state[i], native.since[i] = s.state[i], NOW - s.age[i] * TICK
            native.pause[i], native.pause_before[i] = s.pause[i], s.pause_before[i]
        return native

    def _store(self) -> Slicer:
        native, ranks = self._native, range(self.count)
        return Slicer(
            state=tuple(native.state[i] for i in ranks),
            age=tuple((NOW - native.since[i]) // TICK for i in ranks),
            pause=tuple(native.pause[i] for i in ranks),
            pause_before=tuple(native.pause_before[i] for i in ranks),
            resident=native.resident,
            last=native.last,
            resident_age=(NOW - native.resident_since) // TICK,
            switches=native.switches,
        )

    def first(self) -> State:
        """Nobody has done anything, and nobody has the device."""
        zero = (0,) * self.count
        slicer = Slicer(zero, zero, zero, zero, NOBODY, 63, 0)
        return self._settle(State(zero, zero, (slicer,) * (max(self.devices) + 1), zero, self.cuts))

    # ---- what ranks are about ----------------------------------------------------------------------
    def action(self, state: State, rank: int) -> Action | None:
        at, program = state.at[rank], self.programs[rank]
        return program[at] if at < len(program) else None

    def _contributed(self, state: State, rank: int, number: int) -> bool:
        own = Action("contribute", number=number)
        program = self.programs[rank]
        return own not in program or state.at[rank] > program.index(own)

    def _missing(self, state: State, number: int) -> list[int]:
        return [rank for rank in range(self.count) if not self._contributed(state, rank, number)]

    def _resident(self, state: State, rank: int) -> bool:
        return state.slicers[self.devices[rank]].resident == rank

    def _bits(self, state: State, rank: int) -> int:
        action, bits = self.action(state, rank), int(lib.SG_SLICE_PRESENT)
        if action is None:
            return 0 if self.programs[rank][-1].kind == "exit" else bits
        if action.kind == "exit":
            bits |= lib.SG_SLICE_ENDS
        if action.kind == "compute":
            bits |= lib.SG_SLICE_WANTS
        if action.kind == "wait":
            missing = self._missing(state, action.number)
            bits |= lib.SG_SLICE_WAITS | (0 if missing else lib.SG_SLICE_WANTS)
            if any(self.devices[other] == self.devices[rank] for other in missing):
                bits |= lib.SG_SLICE_MISSES
        return bits

    def _advance(self, state: State, rank: int) -> State:
        at = (*state.at[:rank], state.at[rank] + 1, *state.at[rank + 1 :])
        spent = (*state.spent[:rank], 0, *state.spent[rank + 1 :])
        return replace(state, at=at, spent=spent)

    def _at_once(self, state: State) -> State | None:
        """The state after one thing that takes no time; None: there is none."""
        for rank in range(self.count):
            action = self.action(state, rank)
            if action is None or state.held:
                continue
            passes = (
                action.kind == "wait"
                and self._resident(state, rank)
                and not self._missing(state, action.number)
            )
            if action.kind == "contribute" or passes:
                return self._advance(state, rank)
        return None

    def _settle(self, state: State) -> State:
        """Everything that happens without time passing, the slicer's decisions included."""
        for _ in range(1000):
            after = self._at_once(state)
            state = decided = state if after is None else after
            for device in range(len(state.slicers)):
                decided = self._decide(decided, device)
            residents = [[slicer.resident for slicer in one.slicers] for one in (decided, state)]
            if after is None and decided.switches == state.switches and residents[0] == residents[1]:
                return decided
            state = decided
        raise AssertionError(f"decisions without end in {state}")

    def _decide(self, state: State, device: int) -> State:
        native = self._load(state.slicers[device])
        native.held = state.held > 0
        for rank in range(self.count):
            bits = self._bits(state, rank) if self.devices[rank] == device else 0
            lib.sg_slicer_set(native, rank, bits, NOW)
            if native.resident == rank and bits == 0:
                lib.sg_slicer_switched(native, NOBODY, NOW, 0)
        decision = lib.sg_slicer_decide(native, NOW)
        wanting = [i for i in range(self.count) if native.state[i] & lib.SG_SLICE_WANTS]
        missed = [
            m if i in wanting or self.devices[i] != device else 0 for i, m in enumerate(state.turns_missed)
        ]
        buried = native.resident != NOBODY and native.state[native.resident] & lib.SG_SLICE_ENDS
        if decision.what == lib.SG_SLICE_SWITCH:
            assert decision.to in wanting, f"{decision.to} wants nothing in {state}"
            assert not state.held, f"a switch during a cut in {state}"
            assert not buried, f"the device is taken from a session that ends in {state}"
            lib.sg_slicer_switched(native, decision.to, NOW, 0)
            for i in wanting:
                missed[i] = 0 if i == decision.to else missed[i] + 1
        else:
            asks = any(i != native.resident for i in wanting) and not state.held and not buried
            assert (decision.again_ns > NOW) == asks, f"the slicer forgets who wants the device in {state}"
        slicers = (*state.slicers[:device], self._store(), *state.slicers[device + 1 :])
        return replace(state, slicers=slicers, turns_missed=tuple(missed))

    # ---- time ---------------------------------------------------------------------------------------
    def _takes_time(self, state: State, rank: int) -> bool:
        action = self.action(state, rank)
        return action is not None and (
            action.kind in ("host", "exit")
            or (action.kind == "compute" and self._resident(state, rank) and not state.held)
        )

    def successors(self, state: State) -> Iterator[State]:
        """All states one tick later."""
        older = tuple(
            replace(s, age=tuple(min(a + 1, OLD) for a in s.age), resident_age=min(s.resident_age + 1, OLD))
            for s in state.slicers
        )
        choices: list[list[bool]] = []
        for rank in range(self.count):
            action = self.action(state, rank)
            if action is None or not self._takes_time(state, rank):
                choices.append([False])
            else:
                choices.append([True] if state.spent[rank] + 1 >= action.most else [True, False])
        for held, *ends in itertools.product(self._holds(state), *choices):
            spent = tuple(n + self._takes_time(state, i) for i, n in enumerate(state.spent))
            begins = held > 0 and state.held == 0
            after = replace(state, slicers=older, spent=spent, held=held, cuts=state.cuts - begins)
            for rank, through in enumerate(ends):
                after = self._advance(after, rank) if through else after
            yield self._settle(after)

    def _holds(self, state: State) -> list[int]:
        """What `held` can be a tick later."""
        if state.held == 0:
            return [0, 1] if state.cuts > 0 else [0]
        return [0, state.held + 1] if state.held < HELD_MOST else [0]

    def over(self, state: State) -> bool:
        return all(self.action(state, rank) is None for rank in range(self.count))


def explore(model: Model, most: int = 400_000) -> tuple[set[State], list[State]]:
    """All reachable states, and those in which all ranks are through.

    AssertionError: a state without a future in which not all are through, or a run that comes back to itself.
    Both are found by one search in depth: what is on the path to itself goes on for ever."""
    first = model.first()
    done: set[State] = set()
    ends: list[State] = []
    path: set[State] = {first}
    stack = [(first, iter([] if model.over(first) else list(model.successors(first))))]
    while stack:
        state, rest = stack[-1]
        following = next(rest, None)
        if following is None:
            stack.pop()
            path.discard(state)
            done.add(state)
            if model.over(state):
                ends.append(state)
            continue
        assert following not in path, f"for ever without progress: {following}"
        if following in done:
            continue
        assert len(done) < most, "more states than the test has time for"
        path.add(following)
        stack.append((following, iter([] if model.over(following) else list(model.successors(following)))))
    return done, ends
