"""The hooks by which a plugin makes itself known.  pluggy only discovers; all that follows are plain method
calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pluggy

from .backend import Backend

PROJECT = "singularity"
"""The one name: of the plugin manager, its markers, the hooks' prefix, and the entry-point group's first
part."""

ENTRY_POINT_GROUP = "singularity.backends"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@dataclass(frozen=True)
class BackendRegistration:
    """A backend's name, and how to make it: `factory` is called when the backend is first asked for
    anything."""

    name: str
    factory: Callable[[], Backend]


@hookspec
def singularity_register_backends() -> Sequence[BackendRegistration]:
    """Hands over the plugin's backends.

    Called once per process.  Importing the plugin and this hook must be cheap and must not touch a device,
    because listing the backends does both."""
    return ()
