"""What the parts of the suite share: the author's settings, fixtures, and a workspace to lay out test
data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import numpy as np
import pytest

from ..hal import (
    DEFAULT_STREAM,
    Arena,
    Backend,
    Capability,
    Device,
    HalError,
    IllegalAddress,
    InvalidArgument,
    StreamHandle,
    Unavailable,
)
from ..hal.registry import load_backend
from .oracles import Bits
from .plugin import missing_capabilities
from .requirements import Exclusion

UNIT = 512
REFUSED = (InvalidArgument, IllegalAddress)
"""What a copy may raise for a range that is not live: the host may find out before the device does."""


@dataclass
class Workspace:
    """A device with an open arena, and the next free address in it."""

    device: Device
    arena: Arena
    _next: int = 0

    def take(self, size: int, shift: int = 0) -> int:
        """`size` live bytes at a multiple of 512, plus `shift`; filled with nothing in particular."""
        address = self.arena.base + self._next
        whole = -(-(size + shift) // UNIT) * UNIT or UNIT
        assert self._next + whole <= self.arena.size, "the suite needs a larger arena"
        self._next += whole
        if Capability.RANGE_TRACKING in self.device.capabilities:
            self.device.mark_live(address, whole)
        return address + shift

    def put(self, content: bytes | Bits, shift: int = 0) -> int:
        """The address of a copy of `content` on the device."""
        raw = content if isinstance(content, bytes) else content.tobytes()
        address = self.take(len(raw), shift)
        self.device.copy_to_device(address, raw)
        return address

    def get(self, address: int, size: int, stream: StreamHandle = DEFAULT_STREAM) -> bytes:
        """Content of device memory."""
        content = bytearray(size)
        self.device.copy_to_host(content, address, stream)
        return bytes(content)

    def get_like(self, address: int, like: Bits) -> Bits:
        """Content of device memory as an array of the shape and type of `like`."""
        return np.frombuffer(self.get(address, like.nbytes), dtype=like.dtype).reshape(like.shape)


def pattern(size: int, seed: int = 1) -> bytes:
    """Reproducible bytes."""
    return np.random.default_rng(seed).bytes(size)


class Harness:
    """Settings for authors to override, and fixtures."""

    backend_name: ClassVar[str | None] = None
    """Name of the backend under test; None takes ``--hal-backend``."""
    ordinal: ClassVar[int | None] = None
    """Device under test; None takes ``--hal-device``."""
    arena_address: ClassVar[int] = 0x2000_0000_0000
    """Where the arena is to be opened: an address that the device can give."""
    arena_size: ClassVar[int] = 64 << 20
    """Bytes of the arena: at least 32 MiB."""
    must_run: ClassVar[bool] = False
    """Whether an unavailable backend is a failure and not a skip, as with ``--hal-must-run``."""
    exclusions: ClassVar[Sequence[Exclusion]] = ()
    """Tests that are not to pass, each with its reason."""

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        names = [name for name in dir(cls) if name.startswith("test_")]
        for exclusion in cls.exclusions:
            if not any(exclusion.fits_function(name) for name in names):
                raise ValueError(
                    f"{cls.__name__} excludes {exclusion.test!r}, and the suite has no such test"
                )

    # ---- what authors may add ---------------------------------------------------------------------

    def raw_read(self, device: Device, address: int, size: int) -> bytes:
        """Reads device memory by a way that is not under test.  Without one, tests that need it are
        skipped."""
        pytest.skip("unsupported: the suite's author gives no raw accessors")

    def raw_write(self, device: Device, address: int, content: bytes) -> None:
        """Writes device memory by a way that is not under test."""
        pytest.skip("unsupported: the suite's author gives no raw accessors")

    def provoke(self, device: Device, error: type[HalError]) -> None:
        """Makes the device fail so that a later call raises `error`, for errors that the contract's own
        methods cannot cause: MisalignedAddress, ExecutionFailed, DeviceLost."""
        pytest.skip(f"unsupported: the suite's author gives no way to provoke {error.__name__}")

    # ---- fixtures ---------------------------------------------------------------------------------

    @pytest.fixture
    def backend(self, request: pytest.FixtureRequest) -> Backend:
        """The backend under test, whether available or not."""
        name = self.backend_name or request.config.getoption("--hal-backend")
        if not name:
            pytest.skip("no backend was named: use --hal-backend, or set backend_name")
        return load_backend(cast(str, name))

    @pytest.fixture
    def device_ordinal(self, request: pytest.FixtureRequest) -> int:
        """The device under test."""
        return self.ordinal if self.ordinal is not None else int(request.config.getoption("--hal-device"))

    @pytest.fixture
    def available_backend(self, backend: Backend, request: pytest.FixtureRequest) -> Backend:
        """The backend, or a skip when this machine lacks something."""
        try:
            backend.require_available()
        except Unavailable as error:
            if self.must_run or request.config.getoption("--hal-must-run"):
                pytest.fail(f"unavailable: {error}")
            pytest.skip(f"unavailable: {error}")
        return backend

    @pytest.fixture
    def device(
        self, available_backend: Backend, device_ordinal: int, request: pytest.FixtureRequest
    ) -> Iterator[Device]:
        """The device under test, opened."""
        with available_backend.open_device(device_ordinal) as device:
            missing = missing_capabilities(request.node, device.capabilities)
            if missing:
                pytest.skip(f"unsupported: the device lacks {', '.join(missing)}")
            yield device

    @pytest.fixture
    def space(self, device: Device) -> Workspace:
        """The device with an open arena."""
        return Workspace(device, device.open_arena(self.arena_address, self.arena_size))

    @pytest.fixture
    def second_device(self, device: Device, available_backend: Backend) -> Iterator[Device]:
        """Another device of the backend, opened."""
        others = [k for k in range(available_backend.device_count()) if k != device.properties.ordinal]
        if not others:
            pytest.skip("unavailable: the backend has only one device here")
        with available_backend.open_device(others[0]) as other:
            yield other
