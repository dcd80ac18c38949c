"""The rules of time-slicing, explored in all interleavings of small ranks; the C code is the proxy's own."""

from __future__ import annotations

import pytest
from singularity_core._native import ffi, lib

from .model import NOBODY, Action, Model, explore

COMPUTE = Action("compute", most=2)


def sync(number: int) -> list[Action]:
    return [Action("contribute", number=number), Action("wait", number=number)]


def step(number: int, host: int = 0) -> list[Action]:
    """A data-parallel step: compute (with a pause on the host inside), and synchronise."""
    pause = [Action("host", most=host), Action("compute")] if host else []
    return [COMPUTE, *pause, *sync(number)]


@pytest.mark.parametrize(("ranks", "host"), [(2, 0), (2, 2), (3, 0), (4, 0), (3, 2)])
def test_data_parallel_switches(ranks: int, host: int) -> None:
    """N ranks that only meet in synchronisations make exactly N-1 switches for each, whatever takes how long,
    and pauses on the host in between make none.  (The last N-1 are for what follows the last one.)"""
    for steps in (1, 2, 3) if ranks < 4 else (1, 2):
        program = [action for number in range(steps) for action in step(number, host)] + [Action("compute")]
        _, ends = explore(Model([program] * ranks, quantum=50))
        assert {state.slicer.switches for state in ends} == {(ranks - 1) * (steps + 1)}


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_who_always_wants_leaves(ranks: int) -> None:
    """Ranks that always compute take turns: nobody waits for more than the others' turns."""
    most = 9 if ranks < 4 else 4
    states, _ = explore(Model([[Action("compute", most=most)] * 2] * ranks, quantum=2))
    assert max(max(state.turns_missed) for state in states) <= ranks - 1


def test_unequal_and_late_ranks_end() -> None:
    """Ranks that sleep, that exit early, that synchronise while another never does: all end."""
    sleeper = [Action("host", most=8), *step(0)]
    busy = [*step(0), COMPUTE, COMPUTE]
    leaves = [COMPUTE, Action("exit")]
    explore(Model([sleeper, busy, leaves], quantum=4))
    explore(Model([[Action("host", most=4)], busy, [COMPUTE, Action("host", most=3), *step(0)]], quantum=4))


def test_wait_without_the_device() -> None:
    """A rank that waits in a call for others that need the device gives it up at once."""
    first = [COMPUTE, *sync(0)]
    second = [Action("host", most=2), COMPUTE, *sync(0)]
    states, ends = explore(Model([first, second], quantum=50))
    assert {state.slicer.switches for state in ends} == {2}
    for state in states:  # nobody holds the device for nothing while the other wants it
        waits = state.slicer.state[0] & (lib.SG_SLICE_WAITS | lib.SG_SLICE_MISSES | lib.SG_SLICE_WANTS)
        if waits == lib.SG_SLICE_WAITS | lib.SG_SLICE_MISSES and state.slicer.state[1] & lib.SG_SLICE_WANTS:
            assert state.slicer.resident == 1


def test_pauses_on_the_host_are_learnt() -> None:
    """Who pauses for 10 ms keeps the device through such pauses, and for not much longer."""
    millisecond = 1_000_000
    slicer = ffi.new("struct sg_slicer *")
    lib.sg_slicer_init(slicer, 2 * millisecond, 10_000 * millisecond)
    now = 10**12
    present, wants = lib.SG_SLICE_PRESENT, lib.SG_SLICE_WANTS
    lib.sg_slicer_set(slicer, 0, present | wants, now)
    lib.sg_slicer_set(slicer, 1, present | wants, now)
    for _ in range(40):  # turns of rank 0, each with a pause of 10 ms
        lib.sg_slicer_switched(slicer, 0, now, 0)
        lib.sg_slicer_set(slicer, 0, present, now)
        now += 10 * millisecond
        assert lib.sg_slicer_decide(slicer, now).what == lib.SG_SLICE_STAY
        lib.sg_slicer_set(slicer, 0, present | wants, now)
        lib.sg_slicer_switched(slicer, 1, now, 0)
        lib.sg_slicer_set(slicer, 1, present | wants, now)
    lib.sg_slicer_switched(slicer, 0, now, 0)
    lib.sg_slicer_set(slicer, 0, present, now)
    assert lib.sg_slicer_decide(slicer, now + 19 * millisecond).what == lib.SG_SLICE_STAY
    assert lib.sg_slicer_decide(slicer, now + 21 * millisecond).what == lib.SG_SLICE_SWITCH


def test_held_slicer_stays() -> None:
    """While a cut is acquired nobody comes to the device, not even an empty one."""
    slicer = ffi.new("struct sg_slicer *")
    lib.sg_slicer_init(slicer, 1, 1)
    lib.sg_slicer_set(slicer, 5, lib.SG_SLICE_PRESENT | lib.SG_SLICE_WANTS, 100)
    slicer.held = 1
    decision = lib.sg_slicer_decide(slicer, 1000)
    assert (decision.what, decision.to, decision.again_ns) == (lib.SG_SLICE_STAY, NOBODY, 0)
    slicer.held = 0
    assert lib.sg_slicer_decide(slicer, 1000).to == 5
