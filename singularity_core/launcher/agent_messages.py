"""What singularity-ctl and a job's agent say to each other: one line of JSON each way, and the end.

Both carry `SCHEMA_VERSION`; it grows when a field changes its meaning or goes.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

SCHEMA_VERSION = 1
AGENT_SOCKET = "agent"
"""Its name in the job's directory."""
LONGEST_REQUEST = 1 << 16
"""Bytes of a request, with its line end."""
LONGEST_PAUSE = 7 * 86400.0


class Request(msgspec.Struct, tag_field="verb", kw_only=True, frozen=True, forbid_unknown_fields=True):
    """What all requests have."""

    schema_version: int = SCHEMA_VERSION


class StatusRequest(Request, tag="status", frozen=True):
    """How is the job?  Answer: `JobStatus`."""


class PauseRequest(Request, tag="pause", frozen=True):
    """Stop all ranks at one point.  Answer: `Done`, when they stand there or will not."""

    timeout: Annotated[float, msgspec.Meta(gt=0, le=LONGEST_PAUSE)]
    """Seconds."""


class ContinueRequest(Request, tag="continue", frozen=True):
    """Let all ranks go on.  Answer: `Done`."""


class ResizeRequest(Request, tag="resize", frozen=True):
    """Go on with another number of devices.  Answer: `Done`, when it does or will not."""

    devices: Annotated[int, msgspec.Meta(ge=1, le=1 << 16)]
    timeout: Annotated[float, msgspec.Meta(gt=0, le=LONGEST_PAUSE)]
    """Seconds until all ranks must stand at one point."""


class CheckpointRequest(Request, tag="checkpoint", frozen=True):
    """Take a checkpoint.  Answer: `Done`, when it is committed or will not be."""

    store: Annotated[str, msgspec.Meta(min_length=1, max_length=4096)]
    """An absolute path, or a URL."""
    timeout: Annotated[float, msgspec.Meta(gt=0, le=LONGEST_PAUSE)]
    """Seconds until all ranks must stand at one point."""
    preempt: bool = False
    """Then the job ends."""
    dry_run: bool = False
    keep: Annotated[int, msgspec.Meta(ge=1)] | None = None
    """How many checkpoints of the job to keep."""


class LogsRequest(Request, tag="logs", frozen=True):
    """Where do ranks write?  Answer: `LogPaths`."""


AnyRequest = StatusRequest | PauseRequest | ContinueRequest | ResizeRequest | CheckpointRequest | LogsRequest


class Reply(msgspec.Struct, tag_field="kind", kw_only=True, frozen=True):
    """What all replies have."""

    schema_version: int = SCHEMA_VERSION


class Refusal(Reply, tag="refusal", frozen=True):
    """The request was not understood, or cannot be served."""

    cause: str
    remedy: str = ""


class Done(Reply, tag="done", frozen=True):
    """How a pause or continue ended."""

    ok: bool
    state: str
    message: str
    waiting: list[str] = []
    """After a failed pause: for each rank that had not stopped, its last call and what it waits for."""


class RankLogs(msgspec.Struct, kw_only=True, frozen=True):
    """The files of one rank."""

    rank: int
    stdout: str
    stderr: str


class LogPaths(Reply, tag="logs", frozen=True):
    """Absolute paths; the files grow while the job runs."""

    job: str
    ranks: list[RankLogs]


class Counters(msgspec.Struct, kw_only=True, frozen=True):
    """What a rank used so far, added up over its sessions (its own and those of its children)."""

    device_ns: int = 0
    """Time with its work on the device."""
    queue_ns: int = 0
    """Time with work that had to wait for the device, because another rank had it."""
    switches: int = 0
    """How often it was brought onto the device."""
    swapped_bytes: int = 0
    """Moved between device and host by switches."""
    live_bytes: int = 0
    """Device memory that it holds now."""
    launches: int = 0
    messages: int = 0


class RankStatus(msgspec.Struct, kw_only=True, frozen=True):
    """One rank."""

    rank: int
    device: int | None
    """The physical device that serves it; None: it has no proxy."""
    pid: int | None
    """None: not started yet."""
    state: str
    """``starting``, ``running``, or how it ended."""
    counters: Counters | None
    """None: it has no session now."""
    device_fraction: float | None
    """The part of its life so far in which its work was on the device."""


class ProxyStatus(msgspec.Struct, kw_only=True, frozen=True):
    """One device proxy."""

    device: int
    pid: int
    state: str
    arena_bytes: int | None
    """Device memory that each of its ranks sees; None: its door is not open."""
    sessions: int


class CheckpointStatus(msgspec.Struct, kw_only=True, frozen=True):
    """A checkpoint that is being taken."""

    doing: str
    """``preparing``, ``cutting``, ``cut``, ``writing``, ``capturing``, ``releasing``, ``storing`` or
    ``ending``."""
    stored_bytes: int
    total_bytes: int
    """More or less; 0: not known yet."""


class JobStatus(Reply, tag="status", frozen=True):
    """A job on this node."""

    job: str
    run_id: str
    backend: str
    launcher_pid: int
    state: str
    """``starting``, ``running``, ``pausing``, ``paused``, ``continuing``, ``resizing``, ``checkpointing`` (it
    stands still, or is about to) or ``ending``."""
    elapsed_seconds: float
    reached: int
    """While it is pausing or paused: ranks that stand at the cut."""
    waiting: list[str]
    """While it is pausing: who has not reached the cut, and what each waits for.  While it runs: ranks that
    have waited for others for more than two seconds, and for whom."""
    ranks: list[RankStatus]
    proxies: list[ProxyStatus]
    checkpoint: CheckpointStatus | None = None
    """None: nobody takes one now."""


AnyReply = Refusal | Done | LogPaths | JobStatus


class _Version(msgspec.Struct):
    schema_version: int


def decode_request(line: bytes) -> AnyRequest:
    """A request; ValueError in words when it is none, or of another version."""
    return msgspec.json.decode(_of_our_version(line), type=AnyRequest)


def decode_reply(line: bytes) -> AnyReply:
    """A reply; ValueError in words when it is none, or of another version."""
    return msgspec.json.decode(_of_our_version(line), type=AnyReply)


def _of_our_version(line: bytes) -> bytes:
    spoken = msgspec.json.decode(line, type=_Version).schema_version
    if spoken != SCHEMA_VERSION:
        raise ValueError(f"it speaks version {spoken} of the protocol, and this is version {SCHEMA_VERSION}")
    return line


def encode(message: Request | Reply) -> bytes:
    """A message as its line."""
    return msgspec.json.encode(message) + b"\n"
