"""The rules of time-slicing, explored in all interleavings of small ranks; the C code is the proxy's own."""

from __future__ import annotations

import pytest
from singularity_core._native import ffi, lib

from .model import NOBODY, Action, Model, explore

COMPUTE = Action("compute", most=2)
EXIT = Action("exit", most=2)


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
    most = {2: 9, 3: 6, 4: 3}[ranks]
    states, _ = explore(Model([[Action("compute", most=most)] * 2] * ranks, quantum=2))
    assert max(max(state.turns_missed) for state in states) <= ranks - 1


def test_unequal_and_late_ranks_end() -> None:
    """Ranks that sleep, that exit early, that synchronise while another never does: all end."""
    sleeper = [Action("host", most=8), *step(0)]
    busy = [*step(0), COMPUTE, COMPUTE]
    leaves = [COMPUTE, EXIT]
    explore(Model([sleeper, busy, leaves], quantum=4))
    explore(Model([[Action("host", most=4)], busy, [COMPUTE, Action("host", most=3), *step(0)]], quantum=4))


def test_two_devices_switch_no_more_than_each_alone() -> None:
    """Ranks on two devices that all synchronise make N-1 switches on each for each synchronisation."""
    for steps in (1, 2):
        program = [action for number in range(steps) for action in step(number)] + [Action("compute")]
        _, ends = explore(Model([program] * 4, quantum=50, devices=(0, 0, 1, 1)))
        assert {state.switches for state in ends} == {2 * (steps + 1)}


PIPELINE = [
    [COMPUTE, Action("contribute", number=0), COMPUTE, *sync(2)],
    [COMPUTE, Action("contribute", number=1), COMPUTE, *sync(2)],
    [*sync(0), COMPUTE, *sync(3)],
    [*sync(1), COMPUTE, *sync(3)],
]
CROSSING = [
    [Action("compute"), Action("contribute", number=0), *sync(1), Action("wait", number=0)],
    [Action("contribute", number=2), *sync(0), Action("wait", number=2), Action("compute")],
    [Action("contribute", number=1), Action("compute"), *sync(3), Action("wait", number=1)],
    [Action("compute"), Action("contribute", number=3), *sync(2), Action("wait", number=3)],
]


@pytest.mark.parametrize("devices", [(0, 0, 1, 1), (0, 1, 0, 1), (0, 1, 1, 0)])
@pytest.mark.parametrize("programs", [PIPELINE, CROSSING], ids=["pipeline", "crossing"])
def test_groups_across_two_devices_end(programs: list[list[Action]], devices: tuple[int, ...]) -> None:
    """Stages that feed each other, and pairs that close a circle, end on whatever two devices they are."""
    explore(Model(programs, quantum=4, devices=devices))


@pytest.mark.parametrize(
    ("programs", "devices", "cuts"),
    [
        ([[*step(0, 1), *step(1)]] * 2, (0, 0), 3),
        ([[*step(0), COMPUTE]] * 3, (0, 0, 0), 2),
        ([[*step(0), COMPUTE]] * 4, (0, 0, 1, 1), 1),
        ([[COMPUTE, COMPUTE], [COMPUTE, EXIT], [Action("host", most=3), COMPUTE]], (0, 0, 0), 2),
    ],
    ids=["again and again", "three ranks", "two devices", "an exit"],
)  # fmt: skip
def test_cuts_at_any_moment(programs: list[list[Action]], devices: tuple[int, ...], cuts: int) -> None:
    """Whenever cuts hold the devices and let them go, nobody is switched meanwhile and all ends afterwards,
    also where a session ends while it is held."""
    states, _ = explore(Model(programs, quantum=4, devices=devices, cuts=cuts))
    assert any(state.held and state.cuts == 0 for state in states)


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
