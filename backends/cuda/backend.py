"""NVIDIA devices as a HAL backend: the system's driver library, and why it may not be usable here."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from pathlib import Path

from singularity_core.hal import (
    Availability,
    Backend,
    Device,
    DeviceProperties,
    Group,
    HalError,
    Unavailable,
)
from singularity_core.hal.driver_abi import DriverDevice
from singularity_core.hal.driver_calls import DriverLibrary
from singularity_core.hal.driver_groups import DriverGroup
from singularity_core.hal.driver_properties import device_count, read_properties

from .locate import LIBRARY_VARIABLE, find

_MISSING = "There is no NVIDIA driver library (libcuda.so.1) on this machine."
_INSTALL = (
    "Install the NVIDIA driver; in a container, start it with the NVIDIA container runtime; "
    f"or name the library in {LIBRARY_VARIABLE}."
)


@functools.cache
def _load(path: Path) -> DriverLibrary:
    return DriverLibrary(path)


class CudaBackend(Backend):
    """The devices that the vendor's driver shows to this process (CUDA_VISIBLE_DEVICES applies)."""

    @property
    def name(self) -> str:
        return "cuda"

    @property
    def summary(self) -> str:
        return "NVIDIA devices through the system's driver"

    def availability(self) -> Availability:
        try:
            if device_count(self._library()) == 0:
                return Availability.no(
                    "The NVIDIA driver reports no device.",
                    "Check `nvidia-smi`, and that CUDA_VISIBLE_DEVICES does not hide the devices.",
                )
        except HalError as error:
            return Availability.no(error.cause, error.remedy)
        return Availability.yes()

    def device_count(self) -> int:
        try:
            return device_count(self._library())
        except HalError:
            return 0

    def properties(self, ordinal: int) -> DeviceProperties:
        return read_properties(self._library(), ordinal)

    def open_device(self, ordinal: int) -> Device:
        return DriverDevice(self.name, self._library(), ordinal)

    def driver_library(self) -> Path:
        found = find(os.environ)
        if found is None:
            raise Unavailable(_MISSING, remedy=_INSTALL)
        return found.absolute()

    def open_group(self, devices: Sequence[Device]) -> Group:
        return DriverGroup(devices)

    def _library(self) -> DriverLibrary:
        return _load(self.driver_library())
