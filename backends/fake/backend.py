"""The in-memory device as a HAL backend: where its library lies, and under which settings it runs."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from singularity_core.hal import (
    Availability,
    Backend,
    Device,
    DeviceProperties,
    Diagnosis,
    Group,
    HalError,
    Unavailable,
)
from singularity_core.hal.driver_abi import DriverDevice
from singularity_core.hal.driver_calls import DriverLibrary
from singularity_core.hal.driver_groups import DriverGroup
from singularity_core.hal.driver_properties import device_count, read_properties

from .diagnosis import diagnose
from .settings import PREFIX, FakeSettings


@functools.cache
def _load(path: Path) -> DriverLibrary:
    return DriverLibrary(path)


class FakeBackend(Backend):
    """A device of host memory and host threads that executes PTX.

    The settings are read from the environment when the library is first used in a process, and stay."""

    @property
    def name(self) -> str:
        return "fake"

    @property
    def summary(self) -> str:
        return "in-memory device: executes PTX on the CPU, needs no hardware"

    def availability(self) -> Availability:
        try:
            settings = FakeSettings.from_environment(os.environ)
            if not settings.library.is_file():
                return Availability.no(
                    f"its library {settings.library} is not there.",
                    f"Install the wheel of singularity-hal, or name a built library in {PREFIX}LIBRARY.",
                )
            if device_count(self._library()) == 0:
                return Availability.no("the library reports no device.", f"Set {PREFIX}DEVICES to 1 or more.")
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
        library = FakeSettings.from_environment(os.environ).library
        if not library.is_file():
            self.require_available()
        return library.absolute()

    def rank_library_directory(self) -> Path:
        library = self.driver_library()
        if library.name != "libcuda.so.1":
            raise Unavailable(
                f"Ranks look for libcuda.so.1, and {library} has another name.",
                remedy=f"Name a file libcuda.so.1 in {PREFIX}LIBRARY.",
            )
        return library.parent

    def proxy_environment(self) -> Mapping[str, str]:
        return {f"{PREFIX}PTX_COMPILE": FakeSettings.from_environment(os.environ).compiler}

    def diagnose(self) -> Sequence[Diagnosis]:
        return diagnose(FakeSettings.from_environment(os.environ).compiler)

    def open_group(self, devices: Sequence[Device]) -> Group:
        return DriverGroup(devices)

    def _library(self) -> DriverLibrary:
        path = self.driver_library()
        # The library reads the variable in this very process, and must not start just any python3.
        for name, value in self.proxy_environment().items():
            os.environ.setdefault(name, value)
        return _load(path)
