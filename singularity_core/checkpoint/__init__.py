"""Checkpoints of jobs: the store that they are kept in.

`Store` is what others use.  `manifest`, `chunking` and `retention` are pure; `backend` is what the place
must be able to do; `writer`, `reader` and `collector` hold the protocol, which `collector` explains."""

from .collector import GcReport
from .errors import (
    CheckpointNotFoundError,
    Damage,
    DamagedCheckpointError,
    StoreError,
    StoreFullError,
    StoreReadOnlyError,
    StoreUnavailableError,
    UnsupportedFormatError,
    WriterLostError,
)
from .manifest import Chunk, Manifest, StoredObject
from .reader import CheckpointReader
from .retention import GcPlan, plan_gc
from .store import Store
from .writer import CheckpointWriter

__all__ = [
    "CheckpointNotFoundError",
    "CheckpointReader",
    "CheckpointWriter",
    "Chunk",
    "Damage",
    "DamagedCheckpointError",
    "GcPlan",
    "GcReport",
    "Manifest",
    "Store",
    "StoreError",
    "StoreFullError",
    "StoreReadOnlyError",
    "StoreUnavailableError",
    "StoredObject",
    "UnsupportedFormatError",
    "WriterLostError",
    "plan_gc",
]
