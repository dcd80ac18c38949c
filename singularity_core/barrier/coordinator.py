"""The cut of a job on one node: drives survey.c, which looks at the proxies' board and writes targets there.

Phases: *catching up* (ranks that are behind a target go on, the others are held before they would pass one),
*coming to rest* (all sessions stop, what was issued completes, devices get idle), *acquired*, *letting go*.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from .interface import CutError, CutRefusedError, CutState, Progress

PATIENCE_SECONDS = 0.1
"""So long nothing may move before held ranks are let go on, because a rank that is behind may wait for one of
them out of our sight.  Doubles each time."""

STATES = ("absent", "running", "blocked", "held", "joining", "ended")
OPERATIONS = (
    "operation",
    "all-reduce",
    "reduce",
    "broadcast",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "gather",
    "scatter",
    "send",
    "receive",
)
MAX_RANKS = 1024


def carry_communicators(old: Path, new: Path, proxy_of_rank: Sequence[int]) -> None:
    """Takes the communicators of a job at rest from one exchange directory to another, for proxies that go on
    with their members: `proxy_of_rank` is the index there of the one that will serve each global rank.
    `CutError` when that cannot be; `old` is as it was."""
    from singularity_core._native import ffi, lib

    why = ffi.new("char[256]")
    proxies = ffi.new("uint32_t[]", MAX_RANKS)
    proxies[0 : len(proxy_of_rank)] = list(proxy_of_rank)
    if lib.sg_rosters_carry(os.fsencode(old), os.fsencode(new), proxies, why) != 0:
        raise CutError(ffi.string(why).decode(errors="replace"))


def state_of(seen: Any) -> str:
    """What a rank does, from its `struct sg_survey_rank`; any process of the user can write to the board."""
    return STATES[seen.state] if seen.state < len(STATES) else "damaged"


class BoardCut:
    """A `Cut` (interface.py) over the exchange directory of a job."""

    def __init__(self, exchange: Path, proxies: int, *, patience: float = PATIENCE_SECONDS) -> None:
        """`CutError` when the board is not there or of another version."""
        from singularity_core._native import ffi, lib

        self._ffi: Any = ffi
        self._lib: Any = lib
        why = ffi.new("char[256]")
        self._survey: Any = lib.sg_survey_open(os.fsencode(exchange), proxies, why)
        if self._survey == ffi.NULL:
            raise CutError(ffi.string(why).decode(errors="replace"))
        self._patience = patience
        self._number = 0
        self._state = CutState.OPEN
        self._at_rest = False  # all ranks have caught up, and the proxies were told to stop
        self._begun = False  # the first consistent look was had
        self._align_ns = 0  # how long ends of mini-batches may be waited for; 0 once they are known

    def close(self) -> None:
        """Forgets the board.  What is held stays held: release first."""
        self._lib.sg_survey_close(self._survey)
        self._survey = self._ffi.NULL

    def check(self) -> None:
        """Whether ranks can be stopped (see `Cut`)."""
        restless = self._lib.sg_survey_restless(self._survey)
        if restless >= 0:
            raise CutRefusedError(
                f"device proxy {restless} cannot tell when its device has come to rest: its backend lacks "
                "the capability 'settle'. A job can be paused on a backend that has it "
                "(`singularity-ctl backends` lists them)."
            )

    def begin(self, timeout: float) -> None:
        """Asks all ranks to stop (see `Cut`)."""
        self.check()
        self._number += 1
        self._align_ns = int(timeout / 2 * 1e9)
        self._state, self._at_rest, self._begun = CutState.ACQUIRING, False, False

    def release(self) -> None:
        """Lets everybody go on (see `Cut`)."""
        self._lib.sg_survey_freeze(self._survey, 0)
        self._lib.sg_survey_number(self._survey, 0)
        self._state = CutState.RELEASING

    # ---- other proxies go on ---------------------------------------------------------------------------

    def hand_over(self) -> None:
        """Tells the proxies to write down their sessions (see `Cut`)."""
        self._lib.sg_survey_hand_over(self._survey)

    def handed_over(self) -> bool:
        """Whether all have (see `Cut`)."""
        why = self._ffi.new("char[256]")
        found = self._lib.sg_survey_handed(self._survey, why)
        if found < 0:
            raise CutError(self._ffi.string(why).decode(errors="replace"))
        return bool(found)

    def freeze_ahead(self) -> None:
        """Whoever comes stands at this cut (see `Cut`)."""
        self._lib.sg_survey_freeze(self._survey, 1)
        self._state = CutState.ACQUIRED

    def poll(self) -> Progress:
        """Looks, and goes on where that is possible (see `Cut`)."""
        if self._state is CutState.ACQUIRING:
            if self._at_rest:
                if self._lib.sg_survey_frozen(self._survey):
                    self._state = CutState.ACQUIRED
            else:
                self._catch_up()
        elif self._state is CutState.RELEASING and self._lib.sg_survey_frozen(self._survey):
            self._state = CutState.OPEN
        return self._progress()

    def clocks(self) -> dict[int, set[int]]:
        """Per rank: how many operations it has issued on each communicator or pair; as last looked at."""
        cut, found = self._lib.sg_survey_cut(self._survey), dict[int, set[int]]()
        for member in cut.members[0 : cut.member_count]:
            found.setdefault(member.rank, set()).add(member.clock)
        return found

    def look(self) -> bool:
        """Only looks at all clocks, as a cut does at each `poll`.  False: they moved at every try."""
        return bool(self._lib.sg_survey_look(self._survey) == 0)

    # ---- steps ---------------------------------------------------------------------------------------

    def _catch_up(self) -> None:
        """One look: the first sets the targets, the second raises them to where mini-batches end, later ones
        follow what the ranks do."""
        error = self._lib.sg_survey_look(self._survey)
        if error == -errno.EAGAIN:
            return
        if error != 0:
            raise CutError(f"the board cannot be read: {os.strerror(-error)}")
        cut, now = self._lib.sg_survey_cut(self._survey), time.monotonic_ns()
        if not self._begun:
            self._lib.sg_cut_begin(cut, int(self._patience * 1e9), now)
            self._lib.sg_survey_publish(self._survey)
            self._lib.sg_survey_number(self._survey, self._number)
            self._begun = True
            return
        if self._align_ns:  # now that nobody passes the first targets unseen
            found = self._lib.sg_survey_align(self._survey)
            if found:
                wait = min(max(found, int(self._patience * 1e9)), self._align_ns)
                self._lib.sg_cut_align(cut, wait, now)
            self._align_ns = 0
        reached = self._lib.sg_cut_update(cut, now) == self._lib.SG_CUT_REACHED
        self._lib.sg_survey_publish(self._survey)
        if reached:
            self._at_rest = True
            self._lib.sg_survey_freeze(self._survey, 1)

    # ---- for people ----------------------------------------------------------------------------------

    def ranks(self) -> Iterator[tuple[int, Any]]:
        """(global rank, struct sg_survey_rank) of all that are there now."""
        seen = self._ffi.new("struct sg_survey_rank *")
        for rank in range(MAX_RANKS):
            if self._lib.sg_survey_rank(self._survey, rank, seen):
                yield rank, seen
                seen = self._ffi.new("struct sg_survey_rank *")  # who got that one may keep it

    def _progress(self) -> Progress:
        if self._state not in (CutState.ACQUIRING, CutState.ACQUIRED):
            return Progress(self._state)
        there = list(self.ranks())
        if self._state is CutState.ACQUIRED:
            return Progress(self._state, len(there))
        waiting = [self.describe(rank, seen) for rank, seen in there if seen.behind or not self._begun]
        if self._at_rest:
            waiting = [self.describe(rank, seen) for rank, seen in there if state_of(seen) == "blocked"]
            waiting = waiting or ["all ranks stand at one point; a device is not idle yet"]
        return Progress(self._state, len(there) - len(waiting) if not self._at_rest else len(there), waiting)

    def waits(self, seconds: float) -> list[str]:
        """Who has waited for so long (see `Cut`)."""
        limit = time.monotonic_ns() - int(seconds * 1e9)
        return [
            self.describe(rank, seen)
            for rank, seen in self.ranks()
            if state_of(seen) in ("blocked", "joining") and seen.since_ns <= limit
        ]

    def describe(self, rank: int, seen: Any) -> str:
        """One line: what a rank does, for how long, and for whom it waits."""
        call = self._ffi.string(seen.call).decode(errors="replace")
        seconds = max(0.0, (time.monotonic_ns() - seen.since_ns) / 1e9) if seen.since_ns else 0.0
        named = [str(seen.missing[i]) for i in range(min(seen.missing_count, 8))]
        others = ", ".join(named) + (", ..." if seen.missing_count > 8 else "")
        missing = f" for rank{'s' if seen.missing_count > 1 else ''} {others}" if named else ""
        where = f"communicator {seen.communicator:016x}"
        state = state_of(seen)
        if state == "blocked":
            kind = OPERATIONS[seen.operation] if seen.operation < len(OPERATIONS) else OPERATIONS[0]
            doing = f"its {kind} number {seen.number} on {where} waits{missing}"
        elif state == "joining":
            doing = f"joins {where} and waits{missing or ' for others'}"
        elif state == "held":
            doing = f"is held before its next operation on {where}"
        elif state == "damaged":
            doing = "does what cannot be told: its place on the board is damaged"
        else:
            doing = "is busy on the host or on its device, and waits for nobody that the proxies know of"
        return f"rank {rank}: for {seconds:.1f} s, {doing}; last call {call}"
