"""The in-memory device as a HAL backend: where its library lies, and under which settings it runs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from singularity_core.hal import Availability, Diagnosis, Unavailable
from singularity_core.hal.driver_backend import DriverBackend
from singularity_core.hal.driver_calls import DriverLibrary

from .diagnosis import diagnose
from .settings import PREFIX, FakeSettings


class FakeBackend(DriverBackend):
    """A device of host memory and host threads that executes PTX.

    The settings are read from the environment when the library is first used in a process, and stay."""

    @property
    def name(self) -> str:
        return "fake"

    @property
    def summary(self) -> str:
        return "in-memory device: executes PTX on the CPU, needs no hardware"

    def no_devices(self) -> Availability:
        return Availability.no("the library reports no device.", f"Set {PREFIX}DEVICES to 1 or more.")

    def driver_library(self) -> Path:
        library = FakeSettings.from_environment(os.environ).library
        if not library.is_file():
            raise Unavailable(
                f"The library of the in-memory device, {library}, is not there.",
                remedy=f"Install the wheel of singularity-hal, or name a built library in {PREFIX}LIBRARY.",
            )
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

    def library(self) -> DriverLibrary:
        # The library reads the variable in this very process, and must not start just any python3.
        for name, value in self.proxy_environment().items():
            os.environ.setdefault(name, value)
        return super().library()
