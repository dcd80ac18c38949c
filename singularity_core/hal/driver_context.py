"""The context that a `DriverDevice` has for itself: current around every call, and taken back after it, so
that the caller's thread never sees it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from .driver_calls import DriverLibrary
from .errors import InvalidState


class DriverContext:
    """A context on one device.  Closing waits for the calls that are inside."""

    def __init__(self, library: DriverLibrary, ordinal: int) -> None:
        self._library = library
        self._users_changed = threading.Condition()
        self._users = 0
        self._closing = False
        device, context = library.ffi.new("int *"), library.ffi.new("void **")
        library.call("cuDeviceGet", device, ordinal)
        library.call("cuCtxCreate_v2", context, 0, device[0])
        library.call("cuCtxPopCurrent_v2", library.ffi.new("void **"))
        self.device = int(device[0])
        """The CUdevice."""
        self.handle: Any = context[0]
        """The CUcontext."""

    @contextlib.contextmanager
    def current(self) -> Iterator[None]:
        """Makes it current for the calls inside; `InvalidState` when the device closes."""
        with self._users_changed:
            if self._closing:
                raise InvalidState("The device is closed.", remedy="Open it again with Backend.open_device.")
            self._users += 1
        try:
            with self.pushed():
                yield
        finally:
            with self._users_changed:
                self._users -= 1
                self._users_changed.notify_all()

    @contextlib.contextmanager
    def pushed(self) -> Iterator[None]:
        """As `current`, for who opens and closes the device."""
        self._library.call("cuCtxPushCurrent_v2", self.handle)
        try:
            yield
        finally:
            self._library.ask("cuCtxPopCurrent_v2", self._library.ffi.new("void **"))

    def begin_close(self) -> bool:
        """Lets nobody in any more; False when that was so before."""
        with self._users_changed:
            was, self._closing = self._closing, True
        return not was

    def await_users(self) -> None:
        """Waits until nobody is inside."""
        with self._users_changed:
            self._users_changed.wait_for(lambda: self._users == 0)

    def destroy(self) -> None:
        """Ends the context, whatever state it is in."""
        self._library.ask("cuCtxDestroy_v2", self.handle)
