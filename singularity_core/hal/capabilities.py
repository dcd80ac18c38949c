"""The optional parts of the contract, by name.

A backend states in `Device.capabilities` which of these it has.  A method that belongs to a missing
capability raises `Unsupported`; the conformance kit checks that, and skips the tests that need it.  Whatever
has no tag is required.
"""

from __future__ import annotations

import enum


class Capability(enum.Enum):
    """One optional ability of a device.  The value is its name in messages and in documentation."""

    STREAMS = "streams"
    """Several ordered queues that may run at the same time.  Without it there is only the default stream,
    0."""

    EVENTS = "events"
    """Marks in streams that streams and the host can wait for."""

    EVENTS_TIMING = "events_timing"
    """Events that were created with ``timing=True`` measure time on the device."""

    RANGE_TRACKING = "range_tracking"
    """The arena starts dead, and the device reports every access to a part that is not marked live."""

    HOST_REGISTER = "host_register"
    """Host memory of this process can be made readable and writable by the device, at the same address."""

    CHECKSUM = "checksum"
    """The 128-bit content digest is computed on the device, without a copy to the host."""

    ACCUMULATE = "accumulate"
    """Element-wise reductions (`Device.accumulate`, `Device.reduce_tree`) run on the device."""

    PEER_COPY = "peer_copy"
    """Content can be copied between two devices of the backend, in one process."""

    COLLECTIVES = "collectives"
    """`Backend.open_group` gives collective operations between devices of one process."""

    DETERMINISTIC_REDUCE = "deterministic_reduce"
    """Collective reductions follow the fixed binary tree over ranks, so results do not depend on the mapping
    of ranks to devices.  Vendor libraries such as NCCL cannot promise this."""

    KERNELS_PTX = "kernels_ptx"
    """The device runs PTX that the driver-ABI library of `Backend.driver_library` loads."""

    GATES = "gates"
    """Streams can be held at a gate that the host opens: what follows a collective waits there until its
    result is in place."""

    SETTLE = "settle"
    """The device can say when nothing runs on it or could begin by itself, so that another rank may have
    it, and a job can be paused."""

    NATIVE_TABLE = "native_table"
    """The backend brings its own `sg_hal_table` (native.h), so that the proxy's data path runs without
    Python."""
