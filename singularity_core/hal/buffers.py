"""Host memory as the HAL takes it: whatever has the buffer protocol and is C-contiguous: bytes, bytearray,
memoryview, mmap, numpy arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Buffer  # collections.abc.Buffer, from Python 3.12 on


def read_view(buffer: Buffer) -> memoryview:
    """The bytes of `buffer`, without a copy.  TypeError when it is no buffer, or not contiguous."""
    view = memoryview(buffer)
    return view.cast("B") if view.nbytes else memoryview(b"")


def write_view(buffer: Buffer) -> memoryview:
    """The bytes of `buffer`, to be written.  TypeError when it is no buffer, not contiguous, or read-only."""
    view = memoryview(buffer)
    if view.readonly:
        raise TypeError("a writable buffer is required")
    return view.cast("B") if view.nbytes else memoryview(bytearray())
