"""Asks a backend what it offers, in a process of its own.

Loading a driver library starts threads and may crash; neither should happen to the launcher, which forks.
"""

from __future__ import annotations

import os
import subprocess
import sys

import msgspec

from ..hal.backend import Backend
from ..hal.errors import HalError, InvalidArgument
from ..hal.registry import load_backend
from .errors import LaunchError
from .processes import die_with_parent

_SECONDS = 120.0


class BackendFacts(msgspec.Struct, frozen=True):
    """What the launcher needs to know of a backend."""

    name: str
    device_count: int
    proxied: bool
    """Whether the backend has a driver-ABI library that a proxy can call."""
    rank_library_directory: str | None
    """What ``--no-proxy`` puts first in LD_LIBRARY_PATH."""
    environment: dict[str, str]
    """Variables that processes with the driver library in them need."""
    device_bytes: tuple[int, ...] = ()
    """Memory of each device, what the driver keeps for itself included; (): the backend does not say."""


class _Refusal(msgspec.Struct, frozen=True):
    cause: str
    remedy: str
    usage: bool


class _Answer(msgspec.Struct, frozen=True):
    facts: BackendFacts | None = None
    refusal: _Refusal | None = None


def probe_backend(name: str) -> BackendFacts:
    """The facts about backend `name`; `LaunchError`, with the backend's reason and remedy, when it cannot be
    used here (exit code 2 for a name that nothing registered)."""
    try:
        finished = subprocess.run(
            [sys.executable, "-P", "-m", "singularity_core.launcher.probe", name],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_SECONDS,
            check=False,
            preexec_fn=die_with_parent(os.getpid()),
        )
        answer = msgspec.json.decode(finished.stdout.splitlines()[-1], type=_Answer)
    except subprocess.TimeoutExpired as error:
        raise LaunchError(
            f"Backend {name!r} did not answer within {_SECONDS:.0f} s.",
            remedy="See `singularity-ctl doctor`.",
        ) from error
    except (IndexError, msgspec.DecodeError) as error:
        said = finished.stderr.decode(errors="replace").strip()
        raise LaunchError(
            f"Asking backend {name!r} for its devices ended with code {finished.returncode}: {said}",
            remedy="See `singularity-ctl backends`.",
        ) from error
    if answer.facts is None:
        assert answer.refusal is not None
        refusal = answer.refusal
        raise LaunchError(refusal.cause, remedy=refusal.remedy, exit_code=2 if refusal.usage else 1)
    return answer.facts


def _ask(name: str) -> _Answer:
    try:
        backend = load_backend(name)
        backend.require_available()
        library = backend.driver_library()
        directory = backend.rank_library_directory()
        count = backend.device_count()
        return _Answer(
            facts=BackendFacts(
                name=name,
                device_count=count,
                proxied=library is not None,
                rank_library_directory=None if directory is None else str(directory),
                environment=dict(backend.proxy_environment()),
                device_bytes=_device_bytes(backend, count),
            )
        )
    except HalError as error:
        return _Answer(refusal=_Refusal(error.cause, error.remedy, isinstance(error, InvalidArgument)))


def _device_bytes(backend: Backend, count: int) -> tuple[int, ...]:
    try:
        return tuple(backend.properties(ordinal).total_bytes for ordinal in range(count))
    except HalError:
        return ()


if __name__ == "__main__":
    sys.stdout.write("\n" + msgspec.json.encode(_ask(sys.argv[1])).decode() + "\n")
