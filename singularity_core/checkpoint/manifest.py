"""What is written down about a checkpoint.  Pure: bytes in, structs out.

A record is two lines: a header, whose shape never changes, and a body in JSON.  The header says what the
record is, in which version, who wrote it, and the digest of the body; so a record of another version is
refused by name before anything in it is believed, and a damaged one is told from a foreign one.
"""

from __future__ import annotations

import enum
import hashlib
from typing import Annotated, TypeVar

import msgspec

from .errors import UnsupportedFormatError

FORMAT_VERSION = 1
"""Grows when a record changes its meaning."""

Digest = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
Size = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
CheckpointId = Annotated[str, msgspec.Meta(pattern="^[0-9]{8}T[0-9]{6}-[0-9a-f]{16}$")]
"""When it was begun (UTC), and 64 random bits: never used twice."""


class RecordKind(enum.Enum):
    """What a record is."""

    STORE = "store"
    CHECKPOINT = "checkpoint"
    ABANDONED = "abandoned"
    """In the place of a checkpoint whose writer was declared dead: it can never commit."""
    MARKER = "marker"


class Chunk(msgspec.Struct, frozen=True, array_like=True):
    """A piece of an object, by its contents and by who stored it."""

    owner: CheckpointId
    """The checkpoint in whose folder it lies: this one, or an earlier one that had the same contents."""
    digest: Digest
    """SHA-256 of the contents."""
    size: Annotated[int, msgspec.Meta(ge=1, le=1 << 30)]
    """Bytes of the contents."""
    stored: Annotated[int, msgspec.Meta(ge=1, le=1 << 31)]
    """Bytes in the store."""

    @property
    def key(self) -> str:
        """Where it is in the store."""
        return chunk_key(self.owner, self.digest)


class StoredObject(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A named run of bytes: a device buffer, a file of a process image, a log."""

    name: Annotated[str, msgspec.Meta(min_length=1)]
    kind: str
    """For the caller; the store gives it no meaning."""
    size: Size
    chunks: tuple[Chunk, ...]


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One committed checkpoint."""

    checkpoint: CheckpointId
    job: str
    """Whose it is: retention counts per job."""
    created_ns: int
    """When it was begun, nanoseconds since 1970."""
    objects: tuple[StoredObject, ...]
    labels: dict[str, str] = {}
    """For the caller."""

    @property
    def keys(self) -> set[str]:
        """All chunks that it needs."""
        return {chunk.key for stored in self.objects for chunk in stored.chunks}


class Marker(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Someone who is at work in the store: a writer, or a reader."""

    name: CheckpointId
    """The checkpoint that is being written; for a reader an id of its own."""
    renewed_ns: int
    """When it last said that it lives, by its own clock."""
    process: str
    """Which process, as `leases.describe_process` says it."""
    writes: bool
    """Whether it may commit a checkpoint of its name."""
    pins: tuple[CheckpointId, ...] = ()
    """Checkpoints whose chunks it relies on."""


class StoreFormat(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The store as a whole."""


class Abandoned(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A checkpoint that was given up for its writer."""

    since_ns: int


class DamagedRecordError(ValueError):
    """These bytes are not a record of the kind asked for."""


class _Header(msgspec.Struct, frozen=True):
    format: str
    version: int
    kind: str
    sha256: str
    writer: str = "unknown"


FORMAT_NAME = "singularity-checkpoint-store"
BODY_TYPES: dict[RecordKind, type[msgspec.Struct]] = {
    RecordKind.STORE: StoreFormat,
    RecordKind.CHECKPOINT: Manifest,
    RecordKind.ABANDONED: Abandoned,
    RecordKind.MARKER: Marker,
}
Body = TypeVar("Body", bound=msgspec.Struct)


def chunk_key(owner: str, digest: str) -> str:
    """Where a chunk is."""
    return f"chunks/{owner}/{digest}"


def checkpoint_key(checkpoint: str) -> str:
    """Where the manifest of a committed checkpoint is."""
    return f"checkpoints/{checkpoint}"


def retired_key(checkpoint: str) -> str:
    """Where the manifest of a deleted checkpoint is while someone may rely on its chunks."""
    return f"retired/{checkpoint}"


def marker_key(name: str) -> str:
    """Where the marker of someone at work is."""
    return f"markers/{name}"


def encode_record(body: msgspec.Struct, *, writer: str) -> bytes:
    """The bytes of a record."""
    kind = next(kind for kind, of in BODY_TYPES.items() if isinstance(body, of))
    encoded = msgspec.json.encode(body)
    digest = hashlib.sha256(encoded).hexdigest()
    header = _Header(FORMAT_NAME, FORMAT_VERSION, kind.value, digest, writer)
    return msgspec.json.encode(header) + b"\n" + encoded + b"\n"


def record_kind(data: bytes, where: str) -> RecordKind:
    """What a record is; raises as `decode_record` does."""
    return _split(data, where)[0]


def decode_record(data: bytes, body: type[Body], where: str) -> Body:
    """The record in `data`, which was read from `where`.

    Raises `UnsupportedFormatError` for another version, `DamagedRecordError` for all else that is wrong."""
    kind, encoded = _split(data, where)
    if BODY_TYPES[kind] is not body:
        raise DamagedRecordError(f"it is a record of the kind {kind.value!r}")
    try:
        return msgspec.json.decode(encoded, type=body)
    except msgspec.DecodeError as error:
        raise DamagedRecordError(f"its body does not fit version {FORMAT_VERSION}: {error}") from error


def _split(data: bytes, where: str) -> tuple[RecordKind, bytes]:
    line, separator, rest = data.partition(b"\n")
    try:
        header = msgspec.json.decode(line, type=_Header)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DamagedRecordError("its first line is not a header") from error
    if header.format != FORMAT_NAME:
        raise DamagedRecordError(f"its format is called {header.format!r}, not {FORMAT_NAME!r}")
    if header.version != FORMAT_VERSION:
        raise UnsupportedFormatError(
            f"{where} has the format version {header.version} (written by {header.writer}); this release "
            f"reads version {FORMAT_VERSION}.",
            remedy="Use the release that wrote it.",
        )
    encoded = rest[:-1]
    if not separator or rest[-1:] != b"\n" or hashlib.sha256(encoded).hexdigest() != header.sha256:
        raise DamagedRecordError("its body does not have the digest that its header states")
    try:
        return RecordKind(header.kind), encoded
    except ValueError as error:
        raise DamagedRecordError(f"it is of the unknown kind {header.kind!r}") from error
