"""NVIDIA devices through the driver that the system has."""

from __future__ import annotations

from collections.abc import Sequence

from singularity_core.hal import BackendRegistration, hookimpl

from .backend import CudaBackend

__all__ = ["CudaBackend", "singularity_register_backends"]


@hookimpl
def singularity_register_backends() -> Sequence[BackendRegistration]:
    """Registers the backend ``cuda``."""
    return [BackendRegistration("cuda", CudaBackend)]
