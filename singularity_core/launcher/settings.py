"""What a job is, once its command line has been understood, and what its ranks see of it."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..hal.cuda_wheels import nvrtc_library
from ..placement import Coordinates
from .errors import LaunchError
from .job_directory import ordinal_path
from .later_changes import FILE_LOG
from .processes import JOB_VARIABLE

MAX_RANKS = 1024
"""Page-locked windows exist for global ranks below this (transport/layout.h)."""

MAX_RANKS_PER_DEVICE = 64
"""So many sessions can share a device (splicing/slicer.h)."""


FILE_LOG_VARIABLE = "SINGULARITY_FILE_LOG"
"""Tells the processes of a job where to note what they change among files (checkpoint/file_log.py)."""


@dataclass(frozen=True)
class BoxSettings:
    """The box that a job's ranks are in."""

    hostname: str
    address: str | None
    """Of the job, in a network of its own; None: the machine's network."""
    fixed_addresses: bool = True
    """Without address space randomization, and with a fixed seed for Python's hashes: so ranks, and
    checkpoints, have most of their memory in common."""


@dataclass(frozen=True)
class MovedDirectory:
    """The work directory of a job that was resumed in another: its ranks see that under the old name."""

    inside: str
    """As the job names it."""
    outside: str
    """Where it is."""

    def seen(self, path: str) -> str:
        """What the job calls a path of ours."""
        return self._exchange(path, self.outside, self.inside)

    def found(self, path: str) -> str:
        """Where a path of the job is."""
        return self._exchange(path, self.inside, self.outside)

    @staticmethod
    def _exchange(path: str, old: str, new: str) -> str:
        below = path == old or path.startswith(old.rstrip("/") + "/")
        return new.rstrip("/") + path[len(old.rstrip("/")) :] if below else path


@dataclass(frozen=True)
class CheckpointSettings:
    """When a job is checkpointed by itself."""

    place: str
    """The store: an absolute path, or a URL."""
    every: float | None = None
    """Seconds from one to the next; None: only when somebody asks, or with SIGTERM."""
    keep: int | None = None
    """How many of the job to keep; None: all."""
    auto_resume: bool = False
    """After a failure the job goes on from its newest one."""


@dataclass(frozen=True)
class JobSettings:
    """A job on this node."""

    backend: str
    command: tuple[str, ...]
    """What each rank runs."""
    ranks: int
    devices: int
    """Physical devices at hand: ordinals 0 to this number, exclusively."""
    device_of_rank: tuple[int, ...]
    """The physical device that serves each rank (placement)."""
    proxied: bool
    run_id: str
    """The name that users gave or see; not the internal job name."""
    master_addr: str
    master_port: int
    role: str = "default"
    log_dir: Path | None = None
    """Where each rank's folder with its logs goes."""
    grace_seconds: float = 30.0
    """Between a polite signal and SIGKILL."""
    swap_limit: int | None = None
    """Bytes of host memory that each proxy may use for what is swapped out; None: the proxy's default."""
    slice_wait: float | None = None
    """Seconds that a rank with nothing to run keeps a device that others want; None: the proxy's default."""
    grid: tuple[Coordinates, ...] = ()
    """Who each rank is, for another placement; (): nobody knows."""
    available: int = 0
    """Devices that the backend has here."""
    behind: tuple[int, ...] | None = None
    """The physical device behind each ordinal that ranks see, once the job was resized; None: as it began."""
    box: BoxSettings | None = None
    """None: ranks run on the machine as it is."""
    checkpoints: CheckpointSettings | None = None
    """None: only when somebody asks for one."""
    moved: MovedDirectory | None = None
    """None: the work directory is where it was when the job began."""
    shared_mounts: tuple[str, ...] = ()
    """Directories that checkpoints leave alone, as the ranks see them."""
    lineage: str = ""
    """The internal name that the job had when it began, if it was resumed since: its checkpoints bear it."""

    @property
    def device_of_ordinal(self) -> tuple[int, ...]:
        """The physical device behind each ordinal that ranks see."""
        return (
            tuple(visible_devices(self.device_of_rank, self.devices)) if self.behind is None else self.behind
        )

    def log_file(self, place: str, stream: str) -> Path | None:
        """Where the output of a rank or a proxy is kept; None: nowhere."""
        return None if self.log_dir is None else self.log_dir / place / f"{stream}.log"


def visible_devices(device_of_rank: Sequence[int], devices: int) -> list[int]:
    """The physical device behind each ordinal that a rank sees.  A rank sees what it would see if each rank
    had a device: ordinal n is the device of local rank n, so that scripts that choose device LOCAL_RANK get
    their own, whatever the map.  Devices without a rank follow, up to the number of devices."""
    idle = [device for device in range(devices) if device not in device_of_rank]
    return [*device_of_rank, *idle][: max(len(device_of_rank), devices)]


def ordinals_of(device: int, visible: Sequence[int]) -> list[int]:
    """The ordinals behind which physical device `device` is, of `visible_devices`."""
    return [ordinal for ordinal, behind in enumerate(visible) if behind == device]


def build_command(target: Sequence[str], *, module: bool, no_python: bool) -> tuple[str, ...]:
    """The command of a rank: a script for this Python by default."""
    if no_python:
        return tuple(target)
    return (sys.executable, "-u", *(["-m"] if module else []), *target)


def new_attempt(directory: Path) -> Path:
    """Makes the first `attempt_N` in `directory` that is not there yet.  `LaunchError` when it cannot."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for number in itertools.count():
            with contextlib.suppress(FileExistsError):
                (directory / f"attempt_{number}").mkdir()
                return directory / f"attempt_{number}"
    except OSError as error:
        raise LaunchError(
            f"No logs can be kept in {directory}: {error.strerror}.", remedy="Choose another --log-dir."
        ) from error
    raise AssertionError("unreachable")


def free_port() -> int:
    """A TCP port that nobody listens on at this moment."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def client_library_directory() -> Path:
    """The directory with the libcuda.so.1 that ranks load.  `LaunchError` when the installation lacks it."""
    directory = Path(__file__).parent.parent / "lib" / "rank"
    if not (directory / "libcuda.so.1").is_file():
        raise LaunchError(
            f"There is no libcuda.so.1 in {directory}: the native part of singularity-hal is not installed.",
            remedy="Install the wheel (pip install .) instead of running from a source tree.",
        )
    return directory


def preload_library() -> Path | None:
    """What makes a rank find our NCCL also where it is opened by absolute path; None where it is not
    built."""
    return _rank_library("libsingularity_preload.so")


def files_library() -> Path | None:
    """What notes which files a rank changes, for checkpoints; None where it is not built."""
    return _rank_library("libsingularity_files.so")


def _rank_library(name: str) -> Path | None:
    library = Path(__file__).parent.parent / "lib" / "rank" / name
    return library if library.is_file() else None


def joined_path(first: Sequence[Path | str], inherited: str, last: Sequence[Path | str] = ()) -> str:
    """A search path: `first`, then what the user had, then `last`; each directory once."""
    parts = [str(part) for part in first] + inherited.split(":") + [str(part) for part in last]
    return ":".join(dict.fromkeys(filter(None, parts)))


def job_environment(
    settings: JobSettings, job: str, inherited: Mapping[str, str], library_directory: Path | None
) -> dict[str, str]:
    """What all ranks have in common: torchrun's names, and the library paths."""
    environment = dict(inherited)
    nvrtc = nvrtc_library()
    environment |= {
        JOB_VARIABLE: job,
        "LD_LIBRARY_PATH": joined_path(
            [library_directory] if library_directory else [],
            inherited.get("LD_LIBRARY_PATH", ""),
            [nvrtc.parent] if nvrtc else [],
        ),
        "SINGULARITY_BACKEND": settings.backend,
        "GROUP_RANK": "0",
        "GROUP_WORLD_SIZE": "1",
        "WORLD_SIZE": str(settings.ranks),
        "LOCAL_WORLD_SIZE": str(settings.ranks),
        "ROLE_WORLD_SIZE": str(settings.ranks),
        "ROLE_NAME": settings.role,
        "MASTER_ADDR": settings.master_addr,
        "MASTER_PORT": str(settings.master_port),
        "TORCHELASTIC_RUN_ID": settings.run_id,
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
    }
    preload = [each for each in (preload_library(), files_library()) if each and settings.proxied]
    if preload:  # before the user's own, which stay
        environment["LD_PRELOAD"] = joined_path(preload, inherited.get("LD_PRELOAD", "").replace(" ", ":"))
    if settings.ranks > 1:
        environment.setdefault("OMP_NUM_THREADS", "1")
    return environment


def rank_environment(
    settings: JobSettings, common: Mapping[str, str], local_rank: int, job_directory: Path
) -> dict[str, str]:
    """The environment of one rank (with one node, global and local rank are the same)."""
    environment = dict(common)
    for name in ("RANK", "LOCAL_RANK", "ROLE_RANK", "SINGULARITY_RANK"):
        environment[name] = str(local_rank)
    environment.pop("SINGULARITY_DEVICES", None)
    if settings.proxied:
        environment[FILE_LOG_VARIABLE] = str(job_directory / FILE_LOG)
        environment["SINGULARITY_DEVICES"] = ":".join(
            str(ordinal_path(job_directory, ordinal)) for ordinal in range(len(settings.device_of_ordinal))
        )
        # It chose the proxies' devices; a second time it would hide the wrong ones.
        environment.pop("CUDA_VISIBLE_DEVICES", None)
    return environment


def proxy_environment(job: str, extra: Mapping[str, str], device: int) -> dict[str, str]:
    """The environment of the proxy of physical device `device`: the user's own, what its backend asks for,
    and CUDA_VISIBLE_DEVICES so that it sees this device alone, as ordinal 0.  So it takes no memory on the
    others, and the device window has the same address on every proxy."""
    inherited = os.environ.get("CUDA_VISIBLE_DEVICES")
    visible = str(device) if inherited is None else inherited.split(",")[device].strip()
    return {**os.environ, **extra, JOB_VARIABLE: job, "CUDA_VISIBLE_DEVICES": visible}
