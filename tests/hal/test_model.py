"""Any sequence of copies, fills and liveness changes leaves on the device what it leaves in a plain model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from singularity_core.hal import DEFAULT_STREAM, Device, IllegalAddress, InvalidArgument, StreamHandle
from singularity_core.hal.registry import load_backend
from singularity_core.testing import oracles

UNITS = 48  # of 512 bytes: a few pages, so that operations meet
SIZE = UNITS * 512
BASE = 0x2000_0000_0000
STREAMS = 3


@dataclass
class Opened:
    """The device with an arena, and streams to choose from."""

    device: Device
    streams: list[StreamHandle]


@pytest.fixture(scope="module")
def opened() -> Iterator[Opened]:
    """One device for all examples; each example starts from an arena that is dead as a whole."""
    backend = load_backend("fake")
    backend.require_available()
    with backend.open_device(0) as device:
        device.open_arena(BASE, SIZE)
        yield Opened(device, [DEFAULT_STREAM, *(device.create_stream() for _ in range(STREAMS - 1))])


_range = st.tuples(st.integers(0, SIZE - 1), st.integers(1, 3000))
_units = st.tuples(st.integers(0, UNITS - 1), st.integers(1, 12))
_stream = st.integers(0, STREAMS - 1)
OPERATIONS = st.one_of(
    st.tuples(st.just("live"), _units),
    st.tuples(st.just("dead"), _units),
    st.tuples(st.just("write"), _range, st.integers(0, 255), _stream),
    st.tuples(st.just("fill"), _range, st.sampled_from([1, 2, 4]), st.integers(0, 2**32 - 1), _stream),
    st.tuples(st.just("copy"), _range, st.integers(0, SIZE - 1), _stream),
)


class Model:
    """What the arena holds: None where it is dead, or undefined since it came to life."""

    def __init__(self) -> None:
        self.live = [False] * UNITS
        self.content: list[int | None] = [None] * SIZE

    def usable(self, at: int, size: int) -> bool:
        """Whether all of a range may be used."""
        return at + size <= SIZE and all(self.live[at // 512 : (at + size - 1) // 512 + 1])

    def mark(self, first: int, count: int, live: bool) -> None:
        """Changes liveness; what dies, or comes to life, has no defined content."""
        for unit in range(first, first + count):
            if self.live[unit] != live:
                self.content[unit * 512 : (unit + 1) * 512] = [None] * 512
            self.live[unit] = live


def apply(opened: Opened, model: Model, operation: tuple[object, ...]) -> None:
    """Does one operation on both; what the model forbids, the device must refuse and leave undone."""
    device = opened.device
    match operation:
        case ("live" | "dead" as what, (int(first), int(count))):
            count = min(count, UNITS - first)
            device.quiesce()  # liveness does not wait for work: the contract leaves that to the caller
            (device.mark_live if what == "live" else device.mark_dead)(BASE + first * 512, count * 512)
            model.mark(first, count, what == "live")
        case ("write", (int(at), int(size)), int(seed), int(stream)):
            content = bytes((seed + 7 * k) & 255 for k in range(size))
            attempt(
                model, [(at, size)], lambda: device.copy_to_device(BASE + at, content, opened.streams[stream])
            )
            store(model, at, list(content))
        case ("fill", (int(at), int(size)), int(width), int(value), int(stream)):
            at, count = at // width * width, max(1, size // width)
            raw = (value & ((1 << 8 * width) - 1)).to_bytes(width, "little") * count
            queue = opened.streams[stream]
            attempt(
                model,
                [(at, len(raw))],
                lambda: device.fill(BASE + at, value, count, width=width, stream=queue),
            )
            store(model, at, list(raw))
        case ("copy", (int(at), int(size)), int(source), int(stream)):
            if at < source + size and source < at + size:
                with pytest.raises(InvalidArgument):
                    device.copy_on_device(BASE + at, BASE + source, size, opened.streams[stream])
                return
            queue = opened.streams[stream]
            attempt(
                model,
                [(at, size), (source, size)],
                lambda: device.copy_on_device(BASE + at, BASE + source, size, queue),
            )
            if model.usable(source, size):
                store(model, at, model.content[source : source + size])
    device.quiesce()


def attempt(model: Model, ranges: list[tuple[int, int]], call: object) -> None:
    """Calls; expects a refusal exactly when a range may not be used."""
    assert callable(call)
    if all(model.usable(*piece) for piece in ranges):
        call()
        return
    with pytest.raises((InvalidArgument, IllegalAddress)):
        call()


def store(model: Model, at: int, content: list[int | None] | list[int]) -> None:
    """Writes to the model, if the range may be used."""
    if model.usable(at, len(content)):
        model.content[at : at + len(content)] = content


@settings(max_examples=60, deadline=None)
@given(operations=st.lists(OPERATIONS, max_size=25))
def test_device_follows_the_model(opened: Opened, operations: list[tuple[object, ...]]) -> None:
    """After any operations on any streams, all defined bytes are the model's, and so is their digest."""
    model = Model()
    opened.device.mark_dead(BASE, SIZE)
    opened.device.mark_live(BASE, 16 * 512)
    model.mark(0, 16, live=True)
    for operation in operations:
        apply(opened, model, operation)
    for unit in range(UNITS):
        if not model.live[unit]:
            continue
        content = bytearray(512)
        opened.device.copy_to_host(content, BASE + unit * 512)
        known = model.content[unit * 512 : (unit + 1) * 512]
        assert all(want is None or got == want for got, want in zip(content, known, strict=True))
        assert opened.device.digest(BASE + unit * 512, 512) == oracles.digest(bytes(content))
