"""What may be deleted.  Pure: what is there goes in, what to delete comes out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from .manifest import Manifest, Marker


@dataclass(frozen=True)
class GcPlan:
    """Which checkpoints to give up."""

    delete: tuple[str, ...]
    """Oldest first."""
    keep: tuple[str, ...]


@dataclass(frozen=True)
class Sweep:
    """Which files nobody can need any more."""

    chunks: frozenset[str]
    """Keys."""
    retired: frozenset[str]
    """Checkpoints whose retired manifest nobody relies on."""


def plan_gc(manifests: Iterable[Manifest], keep: int | None, pins: Collection[str] = ()) -> GcPlan:
    """Keep the newest `keep` checkpoints of each job (None: all), and those in `pins`."""
    if keep is not None and keep < 1:
        raise ValueError(f"keep must be at least 1, not {keep}: a job's last checkpoint is never collected.")
    by_job: dict[str, list[Manifest]] = defaultdict(list)
    for manifest in manifests:
        by_job[manifest.job].append(manifest)
    delete: list[Manifest] = []
    kept: list[Manifest] = []
    for of_job in by_job.values():
        of_job.sort(key=_age)
        surplus = 0 if keep is None else max(len(of_job) - keep, 0)
        for position, manifest in enumerate(of_job):
            (delete if position < surplus and manifest.checkpoint not in pins else kept).append(manifest)
    return GcPlan(
        delete=tuple(manifest.checkpoint for manifest in sorted(delete, key=_age)),
        keep=tuple(manifest.checkpoint for manifest in sorted(kept, key=_age)),
    )


def plan_sweep(
    *,
    chunks: Collection[str],
    committed: Iterable[Manifest],
    retired: Mapping[str, Manifest],
    markers: Iterable[Marker],
) -> Sweep:
    """What is dead: chunks that no committed checkpoint and nobody at work can refer to.

    `chunks` are keys, ``chunks/<owner>/<digest>``.  What must have been listed in which order for this to be
    right is told in `collector`."""
    markers = tuple(markers)
    pinned = {pin for marker in markers for pin in marker.pins}
    at_work = {marker.name for marker in markers}
    live: set[str] = set()
    for manifest in committed:
        live |= manifest.keys
    for checkpoint, manifest in retired.items():
        if checkpoint in pinned:
            live |= manifest.keys
    dead = (key for key in chunks if key not in live and key.split("/")[1] not in at_work)
    return Sweep(frozenset(dead), frozenset(retired) - pinned)


def newest_first(manifests: Iterable[Manifest]) -> list[Manifest]:
    """The order in which people look for checkpoints."""
    return sorted(manifests, key=_age, reverse=True)


def _age(manifest: Manifest) -> tuple[int, str]:
    return manifest.created_ns, manifest.checkpoint
