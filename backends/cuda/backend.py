"""NVIDIA devices as a HAL backend: the system's driver library, and why it may not be usable here."""

from __future__ import annotations

import os
from pathlib import Path

from singularity_core.hal import Availability, Unavailable
from singularity_core.hal.driver_backend import DriverBackend

from .locate import LIBRARY_VARIABLE, find

_MISSING = "There is no NVIDIA driver library (libcuda.so.1) on this machine."
_INSTALL = (
    "Install the NVIDIA driver; in a container, start it with the NVIDIA container runtime; "
    f"or name the library in {LIBRARY_VARIABLE}."
)


class CudaBackend(DriverBackend):
    """The devices that the vendor's driver shows to this process (CUDA_VISIBLE_DEVICES applies)."""

    @property
    def name(self) -> str:
        return "cuda"

    @property
    def summary(self) -> str:
        return "NVIDIA devices through the system's driver"

    def no_devices(self) -> Availability:
        return Availability.no(
            "The NVIDIA driver reports no device.",
            "Check `nvidia-smi`, and that CUDA_VISIBLE_DEVICES does not hide the devices.",
        )

    def driver_library(self) -> Path:
        found = find(os.environ)
        if found is None:
            raise Unavailable(_MISSING, remedy=_INSTALL)
        return found.absolute()
