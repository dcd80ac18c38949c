"""Where the newest checkpoint of each job of this machine is, so that a job can be resumed by its name.  Only
a convenience: what is lost or damaged here costs nothing but that."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import msgspec

from .errors import LaunchError


class KnownJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job that was checkpointed."""

    job: str
    """Its name when it began."""
    run_id: str
    """What users call it."""
    store: str


def remember(known: KnownJob) -> None:
    """After a commit.  Errors do not matter."""
    with contextlib.suppress(OSError):
        folder = _folder()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = folder / f".{known.job}.{os.getpid()}"
        draft.write_bytes(msgspec.json.encode(known))
        draft.rename(folder / known.job)


def forget(job: str) -> None:
    """It has ended well: nobody will resume it."""
    with contextlib.suppress(OSError):
        (_folder() / job).unlink()


def find_known(name: str) -> KnownJob:
    """The job called `name`: its id, its name when it began, or a unique beginning of that.  `LaunchError`
    when there is none, or more than one."""
    found = [known for path in sorted(_paths()) if (known := _read(path)) is not None]
    exact = [known for known in found if name in (known.job, known.run_id)]
    matching = exact or [known for known in found if known.job.startswith(name)]
    if len(matching) == 1:
        return matching[0]
    if matching:
        listed = ", ".join(f"{known.job} in {known.store}" for known in matching)
        raise LaunchError(f"Several jobs match {name}: {listed}.", remedy="Name a store, or one of them.")
    raise LaunchError(
        f"{name}: there is no store, and no job of that name was checkpointed here.",
        remedy="Name the directory or URL of a store.",
    )


def is_known(job: str) -> bool:
    """Whether the job, by the name that it had when it began, was checkpointed."""
    return (_folder() / job).exists()


def state_directory() -> Path:
    """What outlives the jobs of this user."""
    state = os.environ.get("XDG_STATE_HOME", "")
    base = Path(state) if os.path.isabs(state) else Path.home() / ".local" / "state"
    return base / "singularity"


def _folder() -> Path:
    return state_directory() / "checkpointed"


def _paths() -> list[Path]:
    try:
        return [path for path in _folder().iterdir() if not path.name.startswith(".")]
    except OSError:
        return []


def _read(path: Path) -> KnownJob | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=KnownJob)
    except (OSError, msgspec.DecodeError):
        return None
