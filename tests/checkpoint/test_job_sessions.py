"""The device memory of sessions: copied, stored, made again."""

from __future__ import annotations

import contextlib
import itertools
import os
import struct
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from singularity_core._native import lib

from singularity_core.checkpoint import CheckpointWriter, Manifest, Store
from singularity_core.checkpoint.chunking import CHUNK_BYTES
from singularity_core.checkpoint.fsspec_backend import FsspecBackend
from singularity_core.checkpoint.host.errors import NoRoomError
from singularity_core.checkpoint.job import sessions as module
from singularity_core.checkpoint.job.sessions import (
    SessionError,
    SessionFacts,
    StagedMemory,
    put_memory,
    read_sessions,
    take_memory,
)

HEAD = struct.Struct("<QIIQIIIIQQQII32Q64sQ")
"""`struct image_head` of session_image.c."""
MAGIC = 0x4547414D49474C41
ARENA = 64 << 20
PAGE = 4096
BASE = int(lib.SG_DEVICE_BASE)
_numbers = itertools.count()
Blocks = Sequence[tuple[int, bytes | int]]
"""Offset in the arena, and contents; or a size, for one that was never written."""
Put = Callable[[CheckpointWriter, Path, Path], None]


def size_of(contents: bytes | int) -> int:
    return contents if isinstance(contents, int) else len(contents)


def image(
    blocks: Sequence[tuple[int, int]],
    *,
    memory: str = "",
    rank: int = 0,
    version: int = 2,
    arena: int = ARENA,
    count: int | None = None,
) -> bytes:
    """What a proxy would write of a session."""
    count = len(blocks) if count is None else count
    numbers = (1234, 0, rank, 0, 1000 + rank, 0, arena, 0, count, 0, 0)
    head = HEAD.pack(MAGIC, version, *numbers, *[0] * 32, memory.encode(), 0)
    return head + b"".join(struct.pack("<QQ", BASE + at, size) for at, size in blocks)


class Job:
    """A job's directory with sessions at rest, as proxies leave it."""

    def __init__(self, directory: Path, stack: contextlib.ExitStack) -> None:
        self.directory = directory
        self._stack = stack

    def add(self, ordinal: int, slot: int, blocks: Blocks, *, rank: int = 0) -> None:
        """A session with this memory."""
        file = os.memfd_create("arena")
        self._stack.callback(os.close, file)
        os.ftruncate(file, ARENA)
        for at, contents in blocks:
            if isinstance(contents, bytes):
                os.pwrite(file, contents, at)
        table = [(at, size_of(contents)) for at, contents in blocks]
        memory = f"/proc/{os.getpid()}/fd/{file}" if blocks else ""
        self.write(ordinal, slot, image(table, memory=memory, rank=rank))

    def change(self, contents: bytes) -> None:
        """Of the first session, which goes on."""
        with open(read_sessions(self.directory)[0].memory, "r+b") as file:
            file.write(contents)

    def write(self, ordinal: int, slot: int, data: bytes) -> None:
        """Any image."""
        folder = self.directory / f"ordinal-{ordinal}"
        folder.mkdir(exist_ok=True)
        (folder / f"{slot}.image").write_bytes(data)


@pytest.fixture
def memory() -> Iterator[Path]:
    """A private directory in memory."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        yield Path(name)


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    """One without sessions."""
    (tmp_path / "job").mkdir()
    with contextlib.ExitStack() as stack:
        yield Job(tmp_path / "job", stack)


def memory_store() -> Store:
    """An empty one."""
    return Store(FsspecBackend(f"memory://sessions-{os.getpid()}-{next(_numbers)}"), threads=2)


def put_staged(writer: CheckpointWriter, directory: Path, place: Path) -> None:
    """By way of a copy for which there is just enough room."""
    sessions = read_sessions(directory)
    staged = StagedMemory(place, sum(each.bytes for each in sessions))
    staged.stage(sessions)
    staged.put(writer)
    staged.close()


def put_staged_with_too_little_room(writer: CheckpointWriter, directory: Path, place: Path) -> None:
    """By way of a copy that is larger than was thought."""
    staged = StagedMemory(place, PAGE)
    staged.stage(read_sessions(directory))
    staged.put(writer)
    staged.close()


def put_in_place(writer: CheckpointWriter, directory: Path, place: Path) -> None:
    """Without a copy."""
    put_memory(writer, read_sessions(directory))


def save(store: Store, job: Job, place: Path, put: Put = put_staged) -> Manifest:
    """A checkpoint of the job's memory."""
    with store.write("job") as writer:
        put(writer, job.directory, place)
        return writer.commit()


def empty_copy(job: Job, target: Path) -> Path:
    """What the tree of session files would make again: all but the memory."""
    for path in job.directory.rglob("*.image"):
        (target / path.parent.name).mkdir(exist_ok=True, parents=True)
        (target / path.parent.name / path.name).write_bytes(path.read_bytes())
    return target


def arena_of(blocks: Blocks) -> bytes:
    """All of a device."""
    arena = bytearray(ARENA)
    for at, contents in blocks:
        if isinstance(contents, bytes):
            arena[at : at + len(contents)] = contents
    return bytes(arena)


@pytest.mark.parametrize("put", [put_staged, put_staged_with_too_little_room, put_in_place])
def test_memory_comes_back_where_it_was(job: Job, memory: Path, tmp_path: Path, put: Put) -> None:
    """Blocks of all sizes, neighbours, zeroes, and what was never written, of several sessions."""
    large = os.urandom(CHUNK_BYTES + 5 * PAGE)
    contents: dict[tuple[int, int], Blocks] = {
        (0, 0): [(0, os.urandom(512)), (512, os.urandom(1024)), (16 << 20, large), (40 << 20, 9 << 20)],
        (0, 1): [(3 * PAGE, bytes(2 * CHUNK_BYTES)), (32 << 20, large), (ARENA - 512, os.urandom(512))],
        (1, 5): [(8 << 20, large)],
        (1, 6): [],
    }
    for number, ((ordinal, slot), blocks) in enumerate(contents.items()):
        job.add(ordinal, slot, blocks, rank=number)
    store = memory_store()
    checkpoint = save(store, job, memory, put).checkpoint
    restored = empty_copy(job, tmp_path / "restored")
    with store.read(checkpoint) as reader:
        take_memory(reader, restored)
    for (ordinal, slot), blocks in contents.items():
        path = restored / f"ordinal-{ordinal}/{slot}.memory"
        assert path.exists() == bool(blocks)
        if blocks:
            assert path.read_bytes() == arena_of(blocks)
            written = sum(len(each) for _, each in blocks if isinstance(each, bytes) and any(each))
            assert path.stat().st_blocks * 512 <= written + 2 * PAGE * len(blocks)
    assert list(memory.iterdir()) == []


def test_a_session_is_described(job: Job) -> None:
    """By where it is, whose it is, and what of the device it uses."""
    job.add(3, 7, [(512, b"x" * 512)], rank=2)
    (found,) = read_sessions(job.directory)
    memory = found.memory
    assert memory.startswith(f"/proc/{os.getpid()}/fd/")
    blocks = ((BASE + 512, 512),)
    assert found == SessionFacts(
        ordinal=3, slot=7, rank=2, sub=0, pid=1002, arena_bytes=ARENA, blocks=blocks, memory=memory
    )
    assert (found.name, found.bytes) == ("device/3.7", 512)


def test_sessions_come_in_order(job: Job) -> None:
    """By ordinal and slot as numbers, and other files are no sessions."""
    for ordinal, slot in [(10, 0), (2, 11), (2, 3)]:
        job.add(ordinal, slot, [])
    for other in ("ordinal-2/3.image.draft", "ordinal-2/03.image", "ordinal-2/door"):
        (job.directory / other).write_bytes(b"something else")
    (job.directory / "ordinal-02").mkdir()
    assert [(each.ordinal, each.slot) for each in read_sessions(job.directory)] == [(2, 3), (2, 11), (10, 0)]


def test_equal_buffers_are_stored_once_and_read_once(
    job: Job, memory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of replicas, whose buffers lie at different places, and beside different ones."""
    weights = os.urandom(CHUNK_BYTES + 700 * PAGE)
    for rank in range(4):
        job.add(0, rank, [(0, os.urandom(512 * (rank + 1))), ((rank + 1) << 20, weights)], rank=rank)
    store = memory_store()
    manifest = save(store, job, memory)
    assert len(manifest.keys) == 4 + 2
    loads: list[str] = []
    load = module.CheckpointReader._load

    def counted(self: object, stored: object, index: int, chunk: object) -> memoryview:
        loads.append(chunk.digest)  # type: ignore[attr-defined]
        return load(self, stored, index, chunk)  # type: ignore[arg-type]

    monkeypatch.setattr(module.CheckpointReader, "_load", counted)
    restored = empty_copy(job, tmp_path / "restored")
    with store.read(manifest.checkpoint) as reader:
        take_memory(reader, restored)
    assert len(loads) == len(set(loads)) == 6


def test_what_was_never_written_takes_no_room(job: Job, memory: Path) -> None:
    """The copy of a large block without content fits into nothing, and is stored as one chunk."""
    job.add(0, 0, [(0, 10 * CHUNK_BYTES)])
    staged = StagedMemory(memory, 0)
    with contextlib.closing(staged), memory_store().write("job") as writer:
        staged.stage(read_sessions(job.directory))
        assert staged._room is None
        staged.put(writer)
        assert len(writer.commit().keys) == 1


def test_a_copy_is_of_the_moment_and_replaces_the_one_before(job: Job, memory: Path, tmp_path: Path) -> None:
    """What the job writes when it goes on is not in it, and of two copies the second counts."""
    job.add(0, 0, [(0, b"1" * PAGE)])
    (session,) = read_sessions(job.directory)
    store = memory_store()
    with contextlib.closing(StagedMemory(memory, PAGE)) as staged, store.write("job") as writer:
        for content in (b"2", b"3"):
            job.change(content * PAGE)
            staged.stage([session])
        job.change(b"4" * PAGE)
        staged.put(writer)
        checkpoint = writer.commit().checkpoint
    with store.read(checkpoint) as reader:
        assert reader.read("device/0.0") == b"3" * PAGE


def test_room_that_is_not_there_is_refused_by_name(memory: Path) -> None:
    """Before anything stands still, with what to do, and nothing is left."""
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(NoRoomError, match=f"room in {memory} for .* MiB") as refused:
        StagedMemory(memory, 1 << 50)
    assert "remount" in refused.value.remedy
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(
    "data",
    [
        b"",
        image([])[:-1],
        image([], version=1),
        image([], count=1),
        image([], count=1 << 60),
        image([(0, 0)]),
        image([(0, 512), (256, 512)]),
        image([(512, 512), (0, 512)]),
        image([(ARENA - 512, 1024)]),
        image([(-512, 512)]),
        image([(512, (1 << 64) - 512)]),
        image([], arena=(1 << 64) - 1),
    ],
    ids=itertools.count(),
)
def test_damaged_images_are_refused(job: Job, data: bytes) -> None:
    """Cut off, of another version, or with blocks that overlap, are empty, or lie outside of the device."""
    job.write(0, 0, data)
    with pytest.raises(SessionError, match=r"0\.image is damaged, or of another release"):
        read_sessions(job.directory)


@pytest.mark.parametrize("memory_path", ["/etc/passwd", "/proc/1/fd/../environ", "", "/proc/self/fd/0"])
def test_only_files_of_proxies_are_opened(job: Job, memory: Path, memory_path: str) -> None:
    """Whatever a rank has written into the image: it would be in the checkpoint."""
    job.write(0, 0, image([(0, 512)], memory=memory_path, rank=6))
    with contextlib.closing(StagedMemory(memory, 0)) as staged, pytest.raises(SessionError, match="rank 6"):
        staged.stage(read_sessions(job.directory))


def test_a_proxy_that_is_gone_is_named(job: Job, memory: Path) -> None:
    """Its file cannot be opened, or is another by now."""
    with tempfile.TemporaryFile() as file:
        job.write(0, 0, image([(0, 512)], memory=f"/proc/{os.getpid()}/fd/{file.fileno()}", rank=3))
        with memory_store().write("job") as writer, pytest.raises(SessionError, match=r"rank 3.*as large"):
            put_memory(writer, read_sessions(job.directory))
    with memory_store().write("job") as writer, pytest.raises(SessionError, match="rank 3"):
        put_memory(writer, read_sessions(job.directory))


@pytest.mark.parametrize("table", [[(0, 1024)], [(0, 256), (256, 256)], [(0, 512), (1024, 512)]])
def test_memory_that_does_not_fit_its_session_is_refused(
    job: Job, memory: Path, tmp_path: Path, table: list[tuple[int, int]]
) -> None:
    """By rank, before a file is made: sizes as a whole, and of each block."""
    job.add(0, 0, [(0, b"x" * 512)])
    store = memory_store()
    checkpoint = save(store, job, memory).checkpoint
    job.write(0, 0, image(table, rank=5))
    restored = empty_copy(job, tmp_path / "restored")
    with store.read(checkpoint) as reader, pytest.raises(SessionError, match="rank 5"):
        take_memory(reader, restored)
    assert list(restored.rglob("*.memory")) == []


def test_files_that_are_there_are_not_written_through(job: Job, memory: Path, tmp_path: Path) -> None:
    """A link in the place of a session's memory leads nowhere."""
    job.add(0, 0, [(0, b"x" * 512)])
    store = memory_store()
    checkpoint = save(store, job, memory).checkpoint
    restored = empty_copy(job, tmp_path / "restored")
    (tmp_path / "other").write_bytes(b"other")
    (restored / "ordinal-0/0.memory").symlink_to(tmp_path / "other")
    with store.read(checkpoint) as reader, pytest.raises(FileExistsError):
        take_memory(reader, restored)
    assert (tmp_path / "other").read_bytes() == b"other"
