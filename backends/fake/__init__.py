"""The in-memory device: a backend that executes PTX on the CPU, for development, tests and measurements."""

from __future__ import annotations

from collections.abc import Sequence

from singularity_core.hal import BackendRegistration, hookimpl

from .backend import FakeBackend

__all__ = ["FakeBackend", "singularity_register_backends"]


@hookimpl
def singularity_register_backends() -> Sequence[BackendRegistration]:
    """Registers the backend ``fake``."""
    return [BackendRegistration("fake", FakeBackend)]
