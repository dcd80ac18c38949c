"""What backends share whose devices all lie behind one library with the CUDA driver ABI."""

from __future__ import annotations

import abc
import functools
from collections.abc import Sequence
from pathlib import Path

from .backend import Backend
from .device import Device
from .driver_abi import DriverDevice
from .driver_calls import DriverLibrary
from .driver_groups import DriverGroup
from .driver_properties import device_count, read_properties
from .errors import HalError
from .group import Group
from .types import Availability, DeviceProperties


@functools.cache
def _load(path: Path) -> DriverLibrary:
    return DriverLibrary(path)


class DriverBackend(Backend):
    """A backend says where its library lies, and why it may have no devices."""

    @abc.abstractmethod
    def driver_library(self) -> Path:
        """As `Backend.driver_library`, always a path."""

    @abc.abstractmethod
    def no_devices(self) -> Availability:
        """The answer of `availability` when the library is there and reports no device."""

    def availability(self) -> Availability:
        try:
            return self.no_devices() if device_count(self.library()) == 0 else Availability.yes()
        except HalError as error:
            return Availability.no(error.cause, error.remedy)

    def device_count(self) -> int:
        try:
            return device_count(self.library())
        except HalError:
            return 0

    def properties(self, ordinal: int) -> DeviceProperties:
        return read_properties(self.library(), ordinal)

    def open_device(self, ordinal: int) -> Device:
        return DriverDevice(self.name, self.library(), ordinal)

    def open_group(self, devices: Sequence[Device]) -> Group:
        return DriverGroup(devices)

    def library(self) -> DriverLibrary:
        """The library, loaded into this process.  Raises what `driver_library` does."""
        return _load(self.driver_library())
