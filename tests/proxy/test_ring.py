"""The ring against a queue, and against hostile bytes."""

from __future__ import annotations

import struct
from collections import deque
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from .conftest import PureModule

MAX_PAYLOAD = 2048 * 64 - 32
LINES = 1 << 16
SIZES = st.one_of(
    st.integers(0, 200), st.sampled_from([31, 32, 33, 95, 96, 97, MAX_PAYLOAD]), st.integers(0, MAX_PAYLOAD)
)
RELAXED = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))


def lines_of(size: int) -> int:
    return -(-(32 + size) // 64)


def taken(ffi: Any) -> tuple[Any, Any, Any, Any]:
    """Where pure_ring_take puts operation, length, fill byte, and whether all bytes are that."""
    return ffi.new("uint32_t *"), ffi.new("uint32_t *"), ffi.new("uint8_t *"), ffi.new("int *")


@RELAXED
@given(st.lists(st.tuples(st.integers(1, 60), SIZES, st.integers(0, 60)), max_size=40))
def test_ring_is_a_queue(pure: PureModule, bursts: list[tuple[int, int, int]]) -> None:
    """What is taken is what was pushed, in order and whole, across wraps and PADs; a push fails only when
    there is no room."""
    ffi, lib = pure.ffi, pure.lib
    ring, queue, count = lib.pure_ring_new(), deque[tuple[int, int, int]](), 0
    op, size, fill, same = taken(ffi)

    def take() -> None:
        got = lib.pure_ring_take(ring, op, size, fill, same)
        assert got == bool(queue)
        if queue:
            expected = queue.popleft()
            assert (op[0], size[0], fill[0]) == (*expected[:2], expected[2] if expected[1] else 0)
            assert same[0] == 1 or expected[1] == 0

    for pushes, length, takes in bursts:
        for _ in range(pushes):
            count += 1
            if lib.pure_ring_push(ring, count % 1000, length, count % 256):
                queue.append((count % 1000, length, count % 256))
            else:
                assert lib.pure_ring_used(ring) + 2 * lines_of(length) + 1 > LINES
        for _ in range(takes):
            take()
    while queue:
        take()
    take()
    lib.pure_ring_free(ring)


@RELAXED
@given(st.integers(8, 63), st.binary(min_size=1, max_size=8), st.integers(0, 300))
def test_hostile_header_is_harmless(pure: PureModule, at: int, data: bytes, size: int) -> None:
    """A published header that is overwritten gives a message within bounds, or is refused as malformed."""
    ffi, lib = pure.ffi, pure.lib
    ring = lib.pure_ring_new()
    op, length, fill, same = taken(ffi)
    assert lib.pure_ring_push(ring, 5, size, 7) == 1
    lib.pure_ring_spoil(ring, at, data[: 64 - at], len(data[: 64 - at]))
    got = lib.pure_ring_take(ring, op, length, fill, same)
    if got == 1:
        assert lines_of(length[0]) == lines_of(size)
    else:
        assert got in (-1, 0)
    lib.pure_ring_free(ring)


def test_lengths_that_overflow_are_refused(pure: PureModule) -> None:
    """A payload length near 2^32, whose line count wraps around to one, is malformed."""
    ffi, lib = pure.ffi, pure.lib
    op, length, fill, same = taken(ffi)
    for claimed in (2**32 - 1, 2**32 - 32, 2**32 - 95, 2**31):
        ring = lib.pure_ring_new()
        assert lib.pure_ring_push(ring, 5, 8, 7) == 1
        lib.pure_ring_spoil(ring, 20, struct.pack("<I", claimed), 4)
        assert lib.pure_ring_take(ring, op, length, fill, same) == -1
        lib.pure_ring_free(ring)


def test_endless_padding_is_refused(pure: PureModule) -> None:
    """Two PADs in a row are malformed: skipping them cannot keep the proxy busy for ever."""
    ffi, lib = pure.ffi, pure.lib
    op, length, fill, same = taken(ffi)
    ring = lib.pure_ring_new()
    pushed = 0
    while pushed < LINES - 1:  # up to the last line of the ring, so that a PAD of one line is in order
        assert lib.pure_ring_push(ring, 1, 32, 1) == 1
        assert lib.pure_ring_take(ring, op, length, fill, same) == 1
        pushed += 1
    pad = struct.pack("<IHH", 2**32 - 1, 1, 0xFFFF)
    assert lib.pure_ring_push(ring, 1, 32, 1) == 1
    lib.pure_ring_spoil(ring, 8, pad, len(pad))
    assert lib.pure_ring_take(ring, op, length, fill, same) == 0  # a PAD and nothing after it
    lib.pure_ring_free(ring)
