"""Where mini-batches end, found from what a rank issues (singularity_core/barrier/tempo.c)."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from singularity_core._native import ffi, lib

Operation = tuple[int, int]
"""(mark, launches before it)."""


def beat_of(operations: list[Operation]) -> Any:
    tempo = ffi.new("struct sg_tempo *")
    for number, (mark, work) in enumerate(operations):
        lib.sg_tempo_note(tempo, mark, work, number * 1000)
    return lib.sg_tempo_beat(tempo)


def smallest_period(step: list[Operation]) -> int:
    """Of the step repeated without end, by trying."""
    return next(p for p in range(1, len(step) + 1) if step[p:] + step[:p] == step)


OPERATIONS = st.tuples(st.integers(0, 3), st.integers(0, 5))


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.lists(OPERATIONS, max_size=20), st.lists(OPERATIONS, min_size=1, max_size=12), st.integers(1, 30))
def test_a_repeated_step_is_recognised(start: list[Operation], step: list[Operation], stretch: int) -> None:
    """After whatever a job begins with, its period is the shortest that explains all steps, and a mini-batch
    ends before the operation with most launches ahead of it."""
    step = [(step[0][0], 10 + stretch), *step[1:]]
    operations = start + step * (len(start) + 6)
    beat = beat_of(operations)
    assert beat.period == smallest_period(step)
    assert beat.work == 10 + stretch
    assert beat.ns == beat.period * 1000
    assert beat.end == len(start) % beat.period
    clock = len(operations) + 1
    following = lib.sg_tempo_next(clock, beat.period, beat.end)
    assert clock <= following < clock + beat.period
    assert (following - len(start)) % len(step) == 0 or beat.period < len(step)


def test_what_does_not_repeat_itself_has_no_end() -> None:
    """Without a rhythm there is no period, and the next end is at once."""
    assert beat_of([(n, n) for n in range(100)]).period == 0
    assert beat_of([]).period == 0
    assert lib.sg_tempo_next(7, 0, 0) == 7


def test_a_rhythm_that_breaks_off_is_forgotten_and_found_again() -> None:
    """An evaluation between mini-batches leaves no period behind; afterwards it is found anew."""
    step = [(1, 9), (2, 1), (2, 1)]
    training = step * 10
    assert beat_of(training).period == 3
    broken = [*training, (5, 40), (1, 2)]
    assert beat_of(broken).period == 0
    assert beat_of(broken + training).period == 3


def test_the_longest_period_and_what_is_longer() -> None:
    """A mini-batch may have the documented number of operations; a longer one is not recognised."""
    longest = int(lib.SG_TEMPO_LONGEST)
    step = [(n, 1) for n in range(longest)]
    assert beat_of(step * 3).period == longest
    assert beat_of([*step, (longest, 1)] * 3).period == 0


def test_ends_follow_each_other_at_the_period() -> None:
    """All clocks up to an end are led to it, the next ones to the next end."""
    ends = sorted({int(lib.sg_tempo_next(clock, 5, 3)) for clock in range(40)})
    assert ends[0] == 3
    assert {b - a for a, b in pairwise(ends)} == {5}
