"""The suite on the backend that ``--hal-backend`` names, for authors without tests of their own."""

from __future__ import annotations

from .suite import DeviceConformance


class TestDevice(DeviceConformance):
    """The whole suite, with nothing excluded."""
