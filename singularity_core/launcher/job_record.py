"""What a checkpoint says about the job itself: what its launcher must know to become the launcher again.

The record is the object ``job`` of a checkpoint.  That its bytes are the ones that were written is for the
store to verify; that they make sense is verified here, for a name in it becomes a path.  Pure."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec

from ..placement import Coordinates
from .errors import LaunchError
from .job_directory import is_job_name
from .machine import Machine, Misfit, machine_misfits
from .probe import BackendFacts
from .settings import MAX_RANKS, BoxSettings, JobSettings

OBJECT = "job"
KIND = "job-record"
VERSION = 1
_ANOTHER = "Resume another checkpoint."

_Count = Annotated[int, msgspec.Meta(ge=1, le=1 << 16)]
_Device = Annotated[int, msgspec.Meta(ge=0, lt=1 << 16)]
_Pid = Annotated[int, msgspec.Meta(ge=1, lt=1 << 31)]
_Bytes = Annotated[int, msgspec.Meta(ge=1, lt=1 << 62)]
_Text = Annotated[str, msgspec.Meta(min_length=1, max_length=4096)]
_Path = Annotated[str, msgspec.Meta(pattern=r"^/[^\0]*\Z", max_length=4096)]
_Axis = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]


class _Versioned(msgspec.Struct):
    version: int


class BoxRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`BoxSettings`."""

    hostname: _Text
    address: _Text | None
    fixed_addresses: bool


class SettingsRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of `JobSettings` all that a resume needs; names mean the same."""

    backend: _Text
    command: tuple[str, ...]
    """For people: who cannot be written as text in it is written as a question mark."""
    devices: _Count
    device_of_rank: tuple[_Device, ...]
    behind: tuple[_Device, ...] | None
    run_id: _Text
    master_addr: _Text
    master_port: Annotated[int, msgspec.Meta(ge=1, le=65535)]
    role: str
    log_dir: _Path | None
    grace_seconds: Annotated[float, msgspec.Meta(ge=0.0)]
    swap_limit: _Bytes | None
    slice_wait: Annotated[float, msgspec.Meta(gt=0.0)] | None
    grid: tuple[tuple[_Axis, _Axis, _Axis, _Axis], ...]
    """Of each rank: dp, tp, pp, shard."""
    shared_mounts: tuple[_Path, ...] = ()
    box: BoxRecord


class JobRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A job at a checkpoint."""

    version: int
    job: _Text
    """Its internal name, which its processes bear in their environment."""
    directory: _Path
    """The job's directory, as its ranks see it."""
    work_directory: _Path
    keeper: _Pid
    """The ranks' parent, as it is numbered in the box."""
    ranks: tuple[_Pid | None, ...]
    """The process of each local rank, as it is numbered in the box; None: it had ended with 0."""
    arena_bytes: _Bytes
    """Device memory that each session sees."""
    settings: SettingsRecord
    machine: Machine


def describe(
    settings: JobSettings,
    *,
    job: str,
    directory: Path,
    work_directory: Path,
    keeper: int,
    ranks: Sequence[int | None],
    arena_bytes: int,
    machine: Machine,
) -> JobRecord:
    """The record of a job; the arguments are the fields of `JobRecord`.

    `LaunchError` when the job is in no box, or when a path of it cannot be written as text."""
    if settings.box is None:
        raise LaunchError(
            "The ranks of this job are in no box, so that they cannot be restored.",
            remedy="Start it with `singularity-run --box`.",
        )
    return JobRecord(
        version=VERSION,
        job=job,
        directory=_as_text(directory),
        work_directory=_as_text(work_directory),
        keeper=keeper,
        ranks=tuple(ranks),
        arena_bytes=arena_bytes,
        settings=_describe_settings(settings, settings.box),
        machine=machine,
    )


def _describe_settings(settings: JobSettings, box: BoxSettings) -> SettingsRecord:
    return SettingsRecord(
        backend=settings.backend,
        command=tuple(word.encode(errors="replace").decode() for word in settings.command),
        devices=settings.devices,
        device_of_rank=settings.device_of_rank,
        behind=settings.behind,
        run_id=settings.run_id,
        master_addr=settings.master_addr,
        master_port=settings.master_port,
        role=settings.role,
        log_dir=None if settings.log_dir is None else _log_directory(settings, settings.log_dir),
        grace_seconds=settings.grace_seconds,
        swap_limit=settings.swap_limit,
        slice_wait=settings.slice_wait,
        grid=tuple((one.dp, one.tp, one.pp, one.shard) for one in settings.grid),
        shared_mounts=tuple(_as_text(Path(path)) for path in settings.shared_mounts),
        box=BoxRecord(hostname=box.hostname, address=box.address, fixed_addresses=box.fixed_addresses),
    )


def _log_directory(settings: JobSettings, path: Path) -> str:
    """As the ranks name it."""
    text = _as_text(path.absolute())
    return text if settings.moved is None else settings.moved.seen(text)


def _as_text(path: Path) -> str:
    try:
        return os.fsencode(path).decode()
    except UnicodeDecodeError as error:
        raise LaunchError(
            f"{os.fsencode(path)!r}: a checkpoint cannot name a path that is not UTF-8.",
            remedy="Start the job elsewhere.",
        ) from error


def settings_of(record: JobRecord, *, available: int) -> JobSettings:
    """The job as it was, where its backend has `available` devices."""
    its = record.settings
    return JobSettings(
        backend=its.backend,
        command=its.command,
        ranks=len(record.ranks),
        devices=its.devices,
        device_of_rank=its.device_of_rank,
        proxied=True,
        run_id=its.run_id,
        master_addr=its.master_addr,
        master_port=its.master_port,
        role=its.role,
        log_dir=None if its.log_dir is None else Path(its.log_dir),
        grace_seconds=its.grace_seconds,
        swap_limit=its.swap_limit,
        slice_wait=its.slice_wait,
        grid=tuple(Coordinates(dp=dp, tp=tp, pp=pp, shard=shard) for dp, tp, pp, shard in its.grid),
        available=available,
        behind=its.behind,
        shared_mounts=its.shared_mounts,
        lineage=record.job,
        box=BoxSettings(
            hostname=its.box.hostname, address=its.box.address, fixed_addresses=its.box.fixed_addresses
        ),
    )


def encode_record(record: JobRecord) -> bytes:
    """As the object `OBJECT` of kind `KIND`: JSON, so that people can read it."""
    return msgspec.json.format(msgspec.json.encode(record, order="deterministic"), indent=1)


def decode_record(data: bytes) -> JobRecord:
    """Strictly.  `LaunchError` says what is wrong with it."""
    try:
        version = msgspec.json.decode(data, type=_Versioned).version
        if version != VERSION:
            raise LaunchError(
                f"The checkpoint's record of its job is of version {version}; this is singularity-hal for "
                f"version {VERSION}.",
                remedy="Resume it with the release that took it.",
            )
        record = msgspec.json.decode(data, type=JobRecord)
    except (msgspec.DecodeError, RecursionError) as error:
        raise _malformed(str(error)) from error
    if why := _contradiction(record):
        raise _malformed(why)
    return record


def _malformed(why: str) -> LaunchError:
    return LaunchError(f"The checkpoint's record of its job is malformed: {why}.", remedy=_ANOTHER)


def _contradiction(record: JobRecord) -> str:
    """What the types do not say; "" if nothing."""
    its, ranks = record.settings, len(record.ranks)
    pids = [record.keeper, *(pid for pid in record.ranks if pid is not None)]
    devices = [*its.device_of_rank, *(its.behind or ())]
    directory = Path(record.directory)
    checks = {
        f"it has {ranks} ranks, not 1 to {MAX_RANKS}": 1 <= ranks <= MAX_RANKS,
        "it does not place each rank once": len(its.device_of_rank) == ranks,
        "its grid has not a place for each rank": len(its.grid) in (0, ranks),
        "it names devices that it does not have": all(device < its.devices for device in devices),
        "its ordinals do not begin with its ranks'": its.behind is None
        or (its.behind[:ranks] == its.device_of_rank and len(its.behind) <= max(ranks, 1 << 10)),
        "it names a process twice": len(set(pids)) == len(pids),
        "its name is no job's": is_job_name(record.job),
        "its directory is not one of its job in /dev/shm": directory.parts[:3] == ("/", "dev", "shm")
        and len(directory.parts) == 5
        and directory.name == record.job
        and ".." not in directory.parts,
    }
    return next((why for why, right in checks.items() if not right), "")


def misfits(
    record: JobRecord, here: Machine, backend: BackendFacts | LaunchError, devices: Sequence[int]
) -> list[Misfit]:
    """What the job needs and this place lacks: nothing was tried yet.  `backend`: the job's, or why it cannot
    be used here.  `devices`: those that the job is to have."""
    found = machine_misfits(record.machine, here)
    if isinstance(backend, LaunchError):
        return [*found, Misfit(backend.cause, backend.remedy)]
    if not backend.proxied:
        found.append(
            Misfit(
                f"Backend {backend.name!r} has no driver library for a proxy.", "Install its driver library."
            )
        )
    found += [
        Misfit(
            f"Device {device} has {backend.device_bytes[device]} bytes of memory; each rank of the job sees "
            f"{record.arena_bytes}.",
            "Resume the job on devices with as much memory as those that it had.",
        )
        for device in devices
        if device < len(backend.device_bytes) and backend.device_bytes[device] < record.arena_bytes
    ]
    return found
