"""Ranks that share an in-memory device: each is served as if it were alone."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from .conftest import MEMORY, PROGRAMS, SharedDevice
from .rank_programs import draw_program


@pytest.mark.parametrize(("ranks", "seed"), [(2, 1), (2, 2), (3, 3), (4, 4)])
def test_same_bytes_as_alone(device: SharedDevice, ranks: int, seed: int) -> None:
    """Random kernels, copies, fills, graphs, events, host functions and frees of several ranks, at the same
    addresses, leave what numpy says for each rank by itself."""
    drawn = [draw_program(100 * seed + number, ranks, 25) for number in range(6)]
    reported = device.interpret([program for program, _ in drawn], ranks)
    for rank in range(ranks):
        for number, (_, expected) in enumerate(drawn):
            assert reported[rank][number] == expected[rank], f"rank {rank}, program {100 * seed + number}"


def test_each_rank_has_the_whole_memory(device: SharedDevice) -> None:
    """Three ranks hold half of the device each, at the same addresses; each sees the rest as free, has its
    own out-of-memory point, and finds its bytes unchanged after the others have used theirs."""
    ranks = [device.start(rank, PROGRAMS / "whole_memory.py", str(1000 * rank)) for rank in range(3)]
    addresses = set()
    for process in ranks:
        addresses.add(device.hear_any(process))
    assert len(addresses) == 1
    counters = device.counters()
    assert all(0.5 * MEMORY < c.live_bytes < 0.6 * MEMORY for c in counters.values())
    for process in ranks:
        device.ask(process, "", "unchanged")
        device.finish(process)


def test_what_is_counted(device: SharedDevice) -> None:
    """A rank alone never switches.  Two that need the device alternately do, and what they held was moved;
    who waits for the device has its waiting counted."""
    first = device.start(0, PROGRAMS / "whole_memory.py", "7")
    device.hear_any(first)
    alone = device.counters()[0]
    assert (alone.switches, alone.swapped_bytes) == (0, 0)
    second = device.start(1, PROGRAMS / "whole_memory.py", "8")
    device.hear_any(second)
    device.ask(first, "", "unchanged")
    counters = device.counters()
    assert counters[1].switches == 1
    assert counters[0].switches == 1
    assert counters[0].swapped_bytes == 2 * counters[0].live_bytes
    assert counters[1].swapped_bytes == 2 * counters[1].live_bytes
    assert counters[1].queue_ns > 0
    device.finish(first)
    device.ask(second, "", "unchanged")  # comes to a device that nobody holds: no switch
    assert device.counters()[1].switches == 1


def test_idle_ranks_cost_nothing(device: SharedDevice) -> None:
    """Beside two ranks that do not need the device for now, a third computes without further switches."""
    sleeping = [device.start(rank, PROGRAMS / "idle.py") for rank in (1, 2)]
    for process in sleeping:
        device.hear(process, "idle")
    program, expected = draw_program(77, 1, 40)
    assert device.interpret([program], 1)[0][0] == expected[0]
    switches = {rank: c.switches for rank, c in device.counters().items()}
    assert all(count <= 1 for count in switches.values()), switches
    for process in sleeping:
        device.ask(process, "", "still there")
        device.finish(process)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_death_of_a_rank(device: SharedDevice, number: signal.Signals) -> None:
    """Ranks that die with the device or waiting for it, with work and host functions in flight, leave it
    to the others, whose bytes are theirs, and leave nothing behind."""
    for round_ in range(3):
        victims = [device.start(rank, PROGRAMS / "busy.py") for rank in (5, 6)]
        for process in victims:
            device.hear(process, "working")
        drawn = [draw_program(500 + 10 * round_ + number, 2, 15) for number in range(2)]
        for process in victims:
            process.send_signal(number)
        reported = device.interpret([program for program, _ in drawn], 2)
        assert reported == [[e[rank] for _, e in drawn] for rank in range(2)]
    deadline = time.monotonic() + 60
    while device.counters() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert device.counters() == {}


def test_proxy_ends_under_sliced_ranks(device: SharedDevice) -> None:
    """A proxy that is told to stop ends in good order while its ranks compete for the device."""
    ranks = [device.start(rank, PROGRAMS / "busy.py") for rank in range(3)]
    for process in ranks:
        device.hear(process, "working")
    device.stop()


def test_swap_limit(directory: Path, rank_environment: dict[str, str]) -> None:
    """When what the ranks hold together does not fit the set bound, the allocation that would exceed it fails
    as on a full device, and one line says whose, how much, and what to do."""
    shared = SharedDevice(directory, rank_environment, f"--swap-limit={64 << 20}")
    try:
        first = shared.start(0, PROGRAMS / "idle.py")
        shared.hear(first, "idle")
        second = shared.start(1, PROGRAMS / "whole_memory.py", "1")
        out, err = second.communicate(timeout=60)
        assert out == ""
        assert "returned 2 CUDA_ERROR_OUT_OF_MEMORY" in err
        shared.ask(first, "", "still there")
        shared.finish(first)
        said = shared.stop().splitlines()
        assert len(said) == 1
        for part in ("rank 1", "8388608 bytes", str(64 << 20), "--swap-limit"):
            assert part in said[0]
    finally:
        shared.close()


def test_hold_and_go_on(device: SharedDevice) -> None:
    """Held sessions launch nothing, though one may come to the device for a due result; afterwards all go on
    with the right bytes."""
    ranks = [device.start(rank, PROGRAMS / "busy.py") for rank in (5, 6)]
    for process in ranks:
        device.hear(process, "working")
    for _ in range(5):
        device.ask(device.proxy, "hold", "done")
        before = device.counters()
        time.sleep(0.05)
        after = device.counters()
        assert {k: c.launches for k, c in after.items()} == {k: c.launches for k, c in before.items()}
        device.ask(device.proxy, "go on", "done")
    program, expected = draw_program(900, 1, 20)
    assert device.interpret([program], 1)[0][0] == expected[0]
