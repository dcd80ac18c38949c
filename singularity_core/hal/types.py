"""The values that cross the HAL: plain, frozen, and free of behaviour that could differ between backends.

Sizes and addresses are in bytes, times in seconds.  Addresses are device addresses: plain integers, the same
for kernels, copies and the host.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import NewType

StreamHandle = NewType("StreamHandle", int)
"""An ordered queue of a device.  Opaque; only the device that made it knows what it means."""

EventHandle = NewType("EventHandle", int)
"""A mark in a stream.  Opaque; only the device that made it knows what it means."""

GateHandle = NewType("GateHandle", int)
"""A point that streams wait at until the host opens it.  Opaque; only the device that made it knows what it
means."""

DEFAULT_STREAM = StreamHandle(0)
"""The stream that every device has.  Work on it is ordered before and after work on all other streams."""

DIGEST_BYTES = 16
"""Length of a content digest."""

RANGE_ALIGNMENT = 512
"""Addresses and sizes that are marked live or dead are multiples of this many bytes."""


class State(enum.Enum):
    """Whether a backend can be used here and now."""

    AVAILABLE = "available"
    UNAVAILABLE = "unavailable"
    BLOCKED = "blocked"
    BROKEN = "broken"


@dataclass(frozen=True)
class Availability:
    """Whether a backend can be used on this machine; if not, why (`reason`) and what would help
    (`remedy`)."""

    state: State
    reason: str = ""
    remedy: str = ""

    @property
    def available(self) -> bool:
        """True when `open_device` may be expected to succeed."""
        return self.state is State.AVAILABLE

    @classmethod
    def yes(cls) -> Availability:
        """The backend is ready."""
        return cls(State.AVAILABLE)

    @classmethod
    def no(cls, reason: str, remedy: str) -> Availability:
        """The environment lacks something: `reason` says what, `remedy` how to get it."""
        return cls(State.UNAVAILABLE, reason, remedy)


@dataclass(frozen=True)
class Diagnosis:
    """One need of a backend, as `Backend.diagnose` found it."""

    check: str
    """What was looked at, in a few words."""
    ok: bool
    detail: str
    """What was found."""
    remedy: str = ""


@dataclass(frozen=True)
class DeviceProperties:
    """What does not change about a device."""

    ordinal: int
    """Position among the backend's devices, from 0."""
    name: str
    uuid: bytes
    """16 bytes that tell this device from every other; the same in each process that sees it."""
    total_bytes: int
    """Device memory, including what the driver keeps for itself."""
    compute_capability: tuple[int, int] = (0, 0)
    """Major and minor number of the instruction set that kernels may use; (0, 0) when the notion does not
    apply."""
    multiprocessors: int = 1
    driver_version: int = 0
    """As cuDriverGetVersion counts: 1000 * major + 10 * minor; 0 when there is no such driver."""


@dataclass(frozen=True)
class MemoryInfo:
    """Device memory at this moment, all processes taken together."""

    free_bytes: int
    total_bytes: int


@dataclass(frozen=True)
class Arena:
    """The device memory that the sub-allocator manages: [base, base + size)."""

    base: int
    size: int

    @property
    def end(self) -> int:
        """The first address after the arena."""
        return self.base + self.size


@dataclass(frozen=True)
class DeviceRange:
    """Device memory [address, address + size)."""

    address: int
    size: int


@dataclass(frozen=True)
class SavedRange:
    """A range together with its content at the time of `Device.dump`."""

    range: DeviceRange
    content: bytes = field(repr=False)
    digest: bytes | None = None
    """Content digest as the device computed it; None when it lacks the capability ``checksum``."""


@dataclass(frozen=True)
class DeviceImage:
    """What `Device.dump` saved, and `Device.restore` brings back: on the same device, or on an equal one."""

    backend: str
    arena: Arena
    ranges: tuple[SavedRange, ...]


class DType(enum.Enum):
    """Element types of reductions."""

    F16 = "f16"
    BF16 = "bf16"
    F32 = "f32"
    F64 = "f64"
    I8 = "i8"
    U8 = "u8"
    I32 = "i32"
    U32 = "u32"
    I64 = "i64"
    U64 = "u64"

    @property
    def size(self) -> int:
        """Bytes per element; elements are aligned to it."""
        return {"8": 1, "6": 2, "2": 4, "4": 8}[self.value[-1]]

    @property
    def floating(self) -> bool:
        """True for types with fractions.  The 16-bit ones are accumulated in F32 and rounded once, to nearest
        even."""
        return self.value[0] in "fb"


class ReduceOp(enum.Enum):
    """How two elements become one.

    Integers wrap around.  MIN and MAX answer NaN when either side is NaN.  AVERAGE is the sum divided by the
    number of contributions, divided in the accumulation type after the whole tree, before the only rounding;
    floating types only.
    """

    SUM = "sum"
    PRODUCT = "product"
    MIN = "min"
    MAX = "max"
    AVERAGE = "average"
