"""The hardware abstraction layer: the contract for backends, and the registry that finds them.

A backend imports this package and nothing else of the core.
"""

from __future__ import annotations

from .backend import Backend
from .capabilities import Capability
from .device import Device
from .errors import (
    DeviceLost,
    ExecutionFailed,
    HalError,
    IllegalAddress,
    InvalidArgument,
    InvalidHandle,
    InvalidState,
    MisalignedAddress,
    OutOfMemory,
    Unavailable,
    Unsupported,
    error_from_code,
)
from .group import Group
from .hookspecs import BackendRegistration, hookimpl
from .types import (
    DEFAULT_STREAM,
    DIGEST_BYTES,
    RANGE_ALIGNMENT,
    Arena,
    Availability,
    DeviceImage,
    DeviceProperties,
    DeviceRange,
    Diagnosis,
    DType,
    EventHandle,
    GateHandle,
    MemoryInfo,
    ReduceOp,
    SavedRange,
    State,
    StreamHandle,
)

__all__ = [
    "DEFAULT_STREAM",
    "DIGEST_BYTES",
    "RANGE_ALIGNMENT",
    "Arena",
    "Availability",
    "Backend",
    "BackendRegistration",
    "Capability",
    "DType",
    "Device",
    "DeviceImage",
    "DeviceLost",
    "DeviceProperties",
    "DeviceRange",
    "Diagnosis",
    "EventHandle",
    "ExecutionFailed",
    "GateHandle",
    "Group",
    "HalError",
    "IllegalAddress",
    "InvalidArgument",
    "InvalidHandle",
    "InvalidState",
    "MemoryInfo",
    "MisalignedAddress",
    "OutOfMemory",
    "ReduceOp",
    "SavedRange",
    "State",
    "StreamHandle",
    "Unavailable",
    "Unsupported",
    "error_from_code",
    "hookimpl",
]
