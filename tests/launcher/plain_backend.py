"""A backend plugin without any driver library: what the launcher does with ranks shows without devices."""

from __future__ import annotations

from pathlib import Path

from singularity_core.hal import (
    Availability,
    Backend,
    BackendRegistration,
    Device,
    DeviceProperties,
    Unavailable,
    hookimpl,
)


class PlainBackend(Backend):
    """Four devices that nobody can open."""

    name = "plain"
    summary = "no driver library; for tests of the launcher"

    def availability(self) -> Availability:
        return Availability.yes()

    def device_count(self) -> int:
        return 4

    def properties(self, ordinal: int) -> DeviceProperties:
        raise Unavailable("plain devices have no properties.")

    def open_device(self, ordinal: int) -> Device:
        raise Unavailable("plain devices cannot be opened.")

    def rank_library_directory(self) -> Path:
        return Path("/nonexistent/plain-libraries")

    def proxy_environment(self) -> dict[str, str]:
        return {"PLAIN_SETTING": "for processes with the driver"}


class AbsentBackend(PlainBackend):
    """Never available."""

    name = "absent"

    def availability(self) -> Availability:
        return Availability.no("its hardware is absent.", "Plug it in.")


@hookimpl
def singularity_register_backends() -> list[BackendRegistration]:
    """Registers `plain` and `absent`."""
    return [BackendRegistration("plain", PlainBackend), BackendRegistration("absent", AbsentBackend)]
