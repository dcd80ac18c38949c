"""What a machine must offer for jobs to run: each need is one check with a reason and a remedy.

Needs of a backend are the backend's own business: `Backend.availability` answers for it.
"""

from __future__ import annotations

import enum
import mmap
import os
import platform
import pwd
import select
import shutil
import stat
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from ..box.errors import BoxUnavailableError
from ..box.trial import try_box
from ..checkpoint.criu import CriuUnavailableError, find_criu
from ..hal.cuda_wheels import nvrtc_library
from ..hal.registry import list_backends, load_backend
from .errors import LaunchError
from .job_directory import jobs_root, stale_jobs
from .settings import client_library_directory

SHM_BYTES = 256 << 20
"""What a few sessions take: rings, replies and staging; page-locked memory comes on top."""

_LAST_SYSTEM_USER = 999


class Verdict(enum.Enum):
    """What a check found."""

    OK = "ok"
    WARNING = "warning"
    """Some programs will not run."""
    FAILED = "failed"
    """Nothing will run."""


class Finding(msgspec.Struct, frozen=True):
    """One line of the doctor's report."""

    check: str
    verdict: Verdict
    detail: str
    remedy: str = ""


def examine() -> list[Finding]:
    """Runs all checks.  None of them changes anything; CRIU is tried on a process of our own."""
    findings = []
    for check in (
        _platform,
        _shm,
        remove_ipc,
        _shared_mapping,
        _pidfd,
        _native_module,
        _client,
        _nvrtc,
        _criu,
        _box,
        _stale,
    ):
        findings.append(_guarded(check))
    return findings + _backends()


def _guarded(check: Callable[[], Finding]) -> Finding:
    try:
        return check()
    except Exception as error:
        return Finding(check.__name__.strip("_"), Verdict.FAILED, f"{type(error).__name__}: {error}")


def _platform() -> Finding:
    here = (
        f"{platform.system()} {platform.release()} {platform.machine()}, Python {platform.python_version()}"
    )
    if sys.platform != "linux" or platform.machine() not in ("x86_64", "aarch64"):
        return Finding("platform", Verdict.FAILED, here, "Use Linux on x86_64 or aarch64.")
    return Finding("platform", Verdict.OK, here)


def _shm() -> Finding:
    place = Path("/dev/shm")
    if not place.is_dir():
        return Finding("/dev/shm", Verdict.FAILED, "not there", "Mount a tmpfs at /dev/shm.")
    free = shutil.disk_usage(place).free
    mode = stat.S_IMODE(place.stat().st_mode)
    detail = f"{free / (1 << 30):.1f} GiB free, mode {mode:04o}"
    if not os.access(place, os.W_OK | os.X_OK):
        return Finding("/dev/shm", Verdict.FAILED, f"{detail}, not writable", "chmod 1777 /dev/shm")
    if free < SHM_BYTES:
        return Finding(
            "/dev/shm",
            Verdict.FAILED,
            f"{detail}; sessions need {SHM_BYTES >> 20} MiB",
            "Free space there, or enlarge it (docker run --shm-size=1g).",
        )
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        return Finding("/dev/shm", Verdict.WARNING, f"{detail}, not sticky", "chmod 1777 /dev/shm")
    return Finding("/dev/shm", Verdict.OK, detail)


def remove_ipc(root: Path = Path("/"), user: int | None = None) -> Finding:
    """systemd-logind removes what users without a session have in /dev/shm, unless it is told not to
    (logind.conf(5)); system users are spared."""
    user = os.getuid() if user is None else user
    name = "RemoveIPC"
    spared = Finding(name, Verdict.OK, "jobs outlive the session that started them")
    if user <= _LAST_SYSTEM_USER or not (root / "run/systemd/system").is_dir():
        return spared
    places = ("usr/lib", "run", "etc")  # later ones override
    drops = {
        drop.name: drop for at in places for drop in (root / at / "systemd/logind.conf.d").glob("*.conf")
    }
    main = next((it for at in reversed(places) if (it := root / at / "systemd/logind.conf").is_file()), None)
    value = "yes"
    for file in [*([main] if main else []), *(drops[drop] for drop in sorted(drops))]:
        for line in file.read_text(errors="replace").splitlines():
            key, _, said = line.partition("=")
            value = said.strip().lower() if key.strip() == name else value
    lingers = any(it.name == _user_name(user) for it in (root / "var/lib/systemd/linger").glob("*"))
    if value in ("no", "false", "off", "0") or lingers:
        return spared
    return Finding(
        name,
        Verdict.WARNING,
        "systemd-logind removes a job's files from /dev/shm when its user has logged out",
        "Set RemoveIPC=no in logind.conf, or run `loginctl enable-linger`.",
    )


def _user_name(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return ""


def _shared_mapping() -> Finding:
    """Windows of a tebibyte are reserved, but not used: overcommit must allow that."""
    try:
        mmap.mmap(-1, 1 << 40, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ).close()
    except OSError as error:
        return Finding(
            "address space",
            Verdict.FAILED,
            f"1 TiB cannot be reserved: {error.strerror}",
            "Lift the limit on virtual memory (ulimit -v unlimited).",
        )
    return Finding("address space", Verdict.OK, "1 TiB can be reserved")


def _pidfd() -> Finding:
    if not hasattr(os, "pidfd_open"):
        return Finding("pidfd", Verdict.FAILED, "Python was built without pidfd_open", "Use another Python.")
    try:
        descriptor = os.pidfd_open(os.getpid())
        select.select([descriptor], [], [], 0)
        os.close(descriptor)
    except OSError as error:
        return Finding(
            "pidfd",
            Verdict.FAILED,
            f"pidfd_open: {error.strerror}",
            "Use Linux 5.4 or later; in a container, let seccomp allow pidfd_open.",
        )
    return Finding("pidfd", Verdict.OK, "processes can be watched")


def _native_module() -> Finding:
    try:
        import singularity_core._native  # noqa: F401
    except ImportError as error:
        return Finding(
            "proxy module", Verdict.FAILED, str(error), "Install the wheel: pip install singularity-hal"
        )
    return Finding("proxy module", Verdict.OK, "singularity_core._native loads")


def _client() -> Finding:
    try:
        return Finding("client library", Verdict.OK, str(client_library_directory() / "libcuda.so.1"))
    except LaunchError as error:
        return Finding("client library", Verdict.FAILED, error.cause, error.remedy)


def _nvrtc() -> Finding:
    found = nvrtc_library()
    if found is None:
        return Finding(
            "NVRTC",
            Verdict.WARNING,
            "the wheel nvidia-cuda-nvrtc is not installed",
            "Programs that compile CUDA C (tinygrad) need it: pip install nvidia-cuda-nvrtc",
        )
    return Finding("NVRTC", Verdict.OK, str(found))


def _criu() -> Finding:
    """Jobs run without it: it is a warning, whatever is missing."""
    try:
        found = find_criu()
    except CriuUnavailableError as error:
        return Finding("CRIU", Verdict.WARNING, error.cause, error.remedy)
    return Finding("CRIU", Verdict.OK, f"{found.version}, {found.command}")


def _box() -> Finding:
    """Jobs run without it, too."""
    try:
        return Finding("job box", Verdict.OK, try_box())
    except BoxUnavailableError as error:
        return Finding("job box", Verdict.WARNING, error.cause, error.remedy)


def _stale() -> Finding:
    left = stale_jobs()
    if left:
        return Finding(
            "stale jobs",
            Verdict.WARNING,
            f"{len(left)} in {jobs_root()}: {', '.join(path.name for path in left)}",
            "The next singularity-run removes them.",
        )
    return Finding("stale jobs", Verdict.OK, f"none in {jobs_root()}")


def _backends() -> list[Finding]:
    """A backend that lacks something is a warning; it takes one that lacks nothing."""
    findings: list[Finding] = []
    usable = False
    for found in list_backends():
        available = found.availability
        if available.available:
            needs = _needs(found.name)
            usable = usable or all(need.verdict is Verdict.OK for need in needs)
            detail = f"{found.device_count} device(s); {found.summary}"
            findings += [Finding(f"backend {found.name}", Verdict.OK, detail), *needs]
        else:
            detail = f"{available.state.value}: {available.reason}"
            findings.append(Finding(f"backend {found.name}", Verdict.WARNING, detail, available.remedy))
    if not usable:
        findings.append(
            Finding(
                "backends",
                Verdict.FAILED,
                "no backend can be used here",
                "The in-memory device needs no hardware: pip install 'singularity-hal[fake]'",
            )
        )
    return findings


def _needs(name: str) -> list[Finding]:
    try:
        return [
            Finding(
                f"{name}: {need.check}",
                Verdict.OK if need.ok else Verdict.WARNING,
                need.detail,
                need.remedy,
            )
            for need in load_backend(name).diagnose()
        ]
    except Exception as error:  # the plugin breaks its promise
        return [Finding(f"{name}: diagnosis", Verdict.WARNING, f"{type(error).__name__}: {error}")]
