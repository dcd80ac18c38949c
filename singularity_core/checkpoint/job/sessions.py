"""The device memory of a job's sessions: copied while the job stands at the cut, stored, made again.

Proxies that have written down their sessions (``K.image`` beside each door) say there which blocks of device
memory are in use and in what file their content lies.  That file is the device's own, so it is copied before
the job goes on, into memory that was touched while the job still ran: what costs most is not the copy but its
pages.  Each block begins a piece in the store, so that equal buffers of replicas are stored once."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import re
import stat
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..chunking import CHUNK_BYTES
from ..errors import StoreError
from ..host.errors import NoRoomError
from ..host.room import available_memory
from ..manifest import StoredObject
from ..reader import CheckpointReader
from ..writer import CheckpointWriter

KIND = "device-memory"
_IMAGE = re.compile(r"(0|[1-9]\d{0,3})\.image")
_ORDINAL = re.compile(r"ordinal-(0|[1-9]\d{0,3})")
_MEMORY = re.compile(r"/proc/[1-9]\d*/fd/\d+")
_LARGEST_IMAGE = 1 << 32
_COPIERS = 4
"""One does not use all of a machine's memory bandwidth; many only get in each other's way."""
_ZEROES = memoryview(bytes(CHUNK_BYTES))
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.ENOMEM)


class SessionError(StoreError):
    """A session's memory cannot be copied, stored, or made again."""


@dataclass(frozen=True)
class SessionFacts:
    """A session that its proxy has written down."""

    ordinal: int
    slot: int
    rank: int
    sub: int
    """0 for the rank itself, more for its children."""
    pid: int
    """Of its process, as that is called in the box."""
    arena_bytes: int
    blocks: tuple[tuple[int, int], ...]
    """Address and size of what is in use, by address."""
    memory: str
    """The file that holds them, each at its distance from the lowest address, while the proxy that said so
    lives; empty where there are none."""

    @property
    def name(self) -> str:
        """The object with its memory."""
        return f"device/{self.ordinal}.{self.slot}"

    @property
    def bytes(self) -> int:
        """Of all blocks."""
        return sum(size for _, size in self.blocks)

    def pieces(self) -> Iterator[tuple[int, int]]:
        """Offset in the file and size of what are the chunks of its object.  A block begins one."""
        base = _device_base()
        for address, size in self.blocks:
            for at in range(0, size, CHUNK_BYTES):
                yield address - base + at, min(CHUNK_BYTES, size - at)


def read_sessions(job_directory: Path) -> list[SessionFacts]:
    """All that are written down in the directory of a job, by ordinal and slot.

    :raises SessionError: An image is damaged, or of another release."""
    found = []
    for folder in job_directory.iterdir():
        ordinal = _ORDINAL.fullmatch(folder.name)
        for path in folder.iterdir() if ordinal else ():
            slot = _IMAGE.fullmatch(path.name)
            if ordinal and slot:
                found.append(_read_image(path, int(ordinal[1]), int(slot[1])))
    return sorted(found, key=lambda each: (each.ordinal, each.slot))


def _read_image(path: Path, ordinal: int, slot: int) -> SessionFacts:
    from ..._native import ffi, lib

    data = _read_file(path)
    facts: Any = ffi.new("struct sg_image_facts *")
    image = ffi.from_buffer(data)
    error = lib.sg_image_read(image, len(data), facts, ffi.NULL, 0)
    blocks: Any = ffi.new("struct sg_image_block[]", int(facts.block_count) if error == 0 else 0)
    if error != 0 or lib.sg_image_read(image, len(data), facts, blocks, len(blocks)) != 0:
        raise SessionError(
            f"The image of the session in {path} is damaged, or of another release.",
            remedy="Resume another checkpoint, or with the release that took this one.",
        )
    return SessionFacts(
        ordinal=ordinal,
        slot=slot,
        rank=int(facts.rank),
        sub=int(facts.sub),
        pid=int(facts.pid_inside),
        arena_bytes=int(facts.arena_bytes),
        blocks=tuple((int(block.address), int(block.bytes)) for block in blocks),
        memory=ffi.string(facts.memory).decode(errors="replace"),
    )


def _read_file(path: Path) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_size > _LARGEST_IMAGE:
            raise SessionError(
                f"{path} is no image of a session.", remedy="See who writes to that directory."
            )
        return b"".join(iter(lambda: os.read(descriptor, 1 << 20), b""))
    finally:
        os.close(descriptor)


def _device_base() -> int:
    from ..._native import lib

    return int(lib.SG_DEVICE_BASE)


# ---- into a checkpoint ----------------------------------------------------------------------------------
class StagedMemory:
    """Room for a copy of all sessions' memory.  Used by one thread at a time."""

    def __init__(self, place: Path, expected_bytes: int) -> None:
        """Takes, and touches, `expected_bytes` of memory in `place`, a directory in memory.

        :raises NoRoomError: There is not so much."""
        self._place = place
        self._file = -1
        self._room: mmap.mmap | None = None
        self._staged: list[tuple[SessionFacts, list[int | None]]] = []
        try:
            with _needing_room(place, expected_bytes):
                self._file = os.open(place, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
            if expected_bytes:
                self._make_room(expected_bytes)
        except BaseException:
            self.close()
            raise

    def _make_room(self, size: int) -> None:
        with _needing_room(self._place, size):
            # Allocated, or a full file system would be a SIGBUS later; and no process is to be killed for it.
            if available_memory() < size - (len(self._room) if self._room is not None else 0):
                raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
            os.posix_fallocate(self._file, 0, size)
            if self._room is None:
                self._room = mmap.mmap(self._file, size, mmap.MAP_SHARED | mmap.MAP_POPULATE)
            else:
                self._room.resize(size)

    def stage(self, sessions: Sequence[SessionFacts]) -> None:
        """Copies the memory of `sessions`, which stand still.  What was copied before is forgotten.

        :raises SessionError: It cannot be read.
        :raises NoRoomError: It is more than was expected, and there is not so much memory."""
        self._staged.clear()
        with contextlib.ExitStack() as stack:
            copies: list[tuple[int, int, int, int]] = []
            total = 0
            for each in sessions:
                file = stack.enter_context(_opened(each)) if each.blocks else -1
                places: list[int | None] = []
                for offset, size in each.pieces():
                    if _is_hole(file, offset, size):
                        places.append(None)
                        continue
                    copies.append((file, offset, total, size))
                    places.append(total)
                    total += size
                self._staged.append((each, places))
            if total > (len(self._room) if self._room is not None else 0):
                self._make_room(total)
            with ThreadPoolExecutor(_COPIERS, "device-memory") as threads:
                for done in [threads.submit(self._copy, *copy) for copy in copies]:
                    done.result()

    def _copy(self, file: int, offset: int, at: int, size: int) -> None:
        assert self._room is not None
        with memoryview(self._room) as room, room[at : at + size] as view:
            _read_exactly(file, view, offset)

    def put(self, writer: CheckpointWriter) -> None:
        """Stores what was copied, as an object for each session."""
        for each, places in self._staged:
            writer.add_pieces(each.name, KIND, self._pieces(each, places))

    def _pieces(self, session: SessionFacts, places: list[int | None]) -> Iterator[memoryview]:
        for (_, size), at in zip(session.pieces(), places, strict=True):
            if at is None:
                yield _ZEROES[:size]
            else:
                assert self._room is not None
                yield memoryview(self._room)[at : at + size]

    def close(self) -> None:
        """Gives the memory back.  Harmless when repeated."""
        self._staged.clear()
        if self._room is not None:
            with contextlib.suppress(BufferError):  # somebody still looks at it: then it goes with that
                self._room.close()
        self._room = None
        if self._file >= 0:
            os.close(self._file)
        self._file = -1


def put_memory(writer: CheckpointWriter, sessions: Sequence[SessionFacts]) -> None:
    """Stores the memory of sessions from where it is; they stand still until this returns.

    :raises SessionError: It cannot be read."""
    for each in sessions:
        writer.add_pieces(each.name, KIND, _pieces_in_place(each))


def _pieces_in_place(session: SessionFacts) -> Iterator[memoryview]:
    if not session.blocks:
        return
    with _opened(session) as file:
        for offset, size in session.pieces():
            piece = _ZEROES[:size]
            if not _is_hole(file, offset, size):
                piece = memoryview(bytearray(size))
                _read_exactly(file, piece, offset)
            yield piece


@contextlib.contextmanager
def _opened(session: SessionFacts) -> Iterator[int]:
    """The file with a session's memory.  Ranks can write to images: it is nothing else that is opened."""
    file = -1
    try:
        if not _MEMORY.fullmatch(session.memory):
            raise OSError(errno.EPROTO, "that is no file of a device proxy")
        file = os.open(session.memory, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode) or found.st_size < session.arena_bytes:
            raise OSError(errno.EPROTO, "it is not as large as the device")
    except OSError as error:
        if file >= 0:
            os.close(file)
        raise SessionError(
            f"The device memory of rank {session.rank} cannot be read from {session.memory or 'nowhere'}: "
            f"{error.strerror}.",
            remedy="See whether its device proxy still runs, and try again.",
        ) from error
    try:
        yield file
    finally:
        os.close(file)


def _is_hole(file: int, offset: int, size: int) -> bool:
    """Whether nothing was ever written there, so that it is zero."""
    try:
        return os.lseek(file, offset, os.SEEK_DATA) >= offset + size
    except OSError as error:
        return error.errno == errno.ENXIO  # no data up to the end of the file


def _read_exactly(file: int, view: memoryview, offset: int) -> None:
    while view:
        some = os.preadv(file, [view], offset)
        if some == 0:
            raise SessionError(
                "A file of device memory became shorter while it was read.",
                remedy="See whether all device proxies still run, and try again.",
            )
        view, offset = view[some:], offset + some


# ---- out of a checkpoint --------------------------------------------------------------------------------
def take_memory(reader: CheckpointReader, job_directory: Path) -> None:
    """Makes ``ordinal-N/K.memory`` for each session that is written down in the directory of a job and has
    memory: a file as wide as the device, with holes where nothing is in use.

    What several sessions have in common is read once.  After an error some of the files are there.

    :raises SessionError: What is written down does not fit what is stored.
    :raises NoRoomError: The directory's file system is full."""
    sessions = {each.name: each for each in read_sessions(job_directory) if each.blocks}
    stored = {each.name: each for each in reader.manifest.objects}
    for session in sessions.values():
        _check(session, stored.get(session.name))
    total = sum(each.bytes for each in sessions.values())
    with contextlib.ExitStack() as stack, _needing_room(job_directory, total):
        places = {name: list(each.pieces()) for name, each in sessions.items()}
        files = {name: stack.enter_context(_made(job_directory, each)) for name, each in sessions.items()}
        for contents, targets in reader.distinct(sessions):
            if contents == _ZEROES[: len(contents)]:
                continue
            for name, index in targets:
                _write_exactly(files[name], contents, places[name][index][0])


def _check(session: SessionFacts, stored: StoredObject | None) -> None:
    """A piece of a session is a chunk of its object."""
    if (
        stored is None
        or stored.size != session.bytes
        or [chunk.size for chunk in stored.chunks] != [size for _, size in session.pieces()]
    ):
        raise SessionError(
            f"The device memory of rank {session.rank} in this checkpoint is not what its session says: "
            f"{session.bytes} bytes in {len(session.blocks)} blocks.",
            remedy="Resume another checkpoint.",
        )


@contextlib.contextmanager
def _made(job_directory: Path, session: SessionFacts) -> Iterator[int]:
    path = job_directory / f"ordinal-{session.ordinal}" / f"{session.slot}.memory"
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.ftruncate(file, session.arena_bytes)
        yield file
    finally:
        os.close(file)


def _write_exactly(file: int, view: memoryview, offset: int) -> None:
    while view:
        some = os.pwrite(file, view, offset)
        view, offset = view[some:], offset + some


@contextlib.contextmanager
def _needing_room(place: Path, size: int) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        raise NoRoomError(
            f"There is no room in {place} for {size >> 20} MiB of device memory: {error.strerror}.",
            remedy="Free memory, or make that file system larger (mount -o remount,size=...).  To preempt a "
            "job takes no copy.",
        ) from error
