"""The contract for what a plugin registers: a kind of device.  Rules that hold for all of it: device.py."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from pathlib import Path

from .capabilities import Capability
from .device import Device
from .errors import Unavailable, Unsupported
from .group import Group
from .types import Availability, DeviceProperties, Diagnosis


class Backend(abc.ABC):
    """A kind of device, as a plugin registers it.  Making one must not touch the device or import what may be
    absent."""

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """The name users type after ``--backend``: lower case letters, digits and dashes."""

    @property
    @abc.abstractmethod
    def summary(self) -> str:
        """One line for ``singularity-ctl backends``."""

    @abc.abstractmethod
    def availability(self) -> Availability:
        """Whether devices can be opened here; with the reason and the remedy when not.  Never raises."""

    @abc.abstractmethod
    def device_count(self) -> int:
        """How many devices can be opened; 0 when the backend is not available.  Never raises."""

    @abc.abstractmethod
    def properties(self, ordinal: int) -> DeviceProperties:
        """Properties of a device that need not be open.  `InvalidArgument` for an ordinal that does not
        exist, `Unavailable` when the backend is not available."""

    @abc.abstractmethod
    def open_device(self, ordinal: int) -> Device:
        """Opens a device for this process.  Errors as in `properties`, and `OutOfMemory`.

        Opening the same ordinal again gives another `Device` object.  Whether each of them can have an arena
        is the device's affair: if not, the second `open_arena` raises `InvalidState`."""

    def driver_library(self) -> Path | None:
        """The library with the CUDA driver ABI that the proxy's dispatch calls; None when the backend has
        another API.

        `Unavailable` when it should be there and is not."""
        return None

    def rank_library_directory(self) -> Path | None:
        """The directory that ``--no-proxy`` puts first in LD_LIBRARY_PATH, so that a rank loads the driver
        library itself; None when the system finds it unaided."""
        return None

    def proxy_environment(self) -> Mapping[str, str]:
        """Environment variables that a proxy of this backend needs beyond its parent's."""
        return {}

    def diagnose(self) -> Sequence[Diagnosis]:
        """What devices of this backend need here beyond `availability`, for ``singularity-ctl doctor``.

        May run helper programs for some seconds, and ends them.  Never raises."""
        return ()

    def open_group(self, devices: Sequence[Device]) -> Group:
        """Collective operations between opened devices of this backend, by rank.  `Unsupported` by
        default."""
        raise Unsupported(
            f"Backend {self.name!r} does not have the capability {Capability.COLLECTIVES.value!r}."
        )

    def require_available(self) -> None:
        """Raises `Unavailable`, with the reason and the remedy, unless the backend is available."""
        found = self.availability()
        if not found.available:
            raise Unavailable(f"Backend {self.name!r} is not available: {found.reason}", remedy=found.remedy)
