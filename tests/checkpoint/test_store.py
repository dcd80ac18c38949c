"""The store as others use it, in a directory, in memory, and on an S3 server."""

from __future__ import annotations

import os
import random
import stat
from pathlib import Path

import pytest

from singularity_core.checkpoint import (
    CheckpointNotFoundError,
    DamagedCheckpointError,
    Manifest,
    Store,
    StoreReadOnlyError,
    StoreUnavailableError,
    leases,
)
from singularity_core.checkpoint.manifest import chunk_key

from .conftest import CHUNK_BYTES, OpenStore


def noise(seed: int, size: int) -> bytes:
    """Bytes that do not compress, the same each time."""
    return random.Random(seed).randbytes(size)


def write(store: Store, job: str = "job", **objects: bytes) -> Manifest:
    """A checkpoint that holds these objects."""
    with store.write(job) as writer:
        writer.add_all((name, "test", data) for name, data in objects.items())
        return writer.commit({"step": "7"})


def files(store: Store, prefix: str) -> dict[str, int]:
    """What the place really holds."""
    return store._catalogue.backend.list(prefix)


def test_what_was_written_comes_back(open_store: OpenStore) -> None:
    """Objects of all sizes, read by another process' store, are the same bytes under the same names."""
    contents = {
        "empty": b"",
        "one": b"x",
        "zeros": bytes(3 * CHUNK_BYTES),
        "exact": noise(1, 2 * CHUNK_BYTES),
        "ragged": noise(2, 5 * CHUNK_BYTES + 17),
    }
    manifest = write(open_store(), **contents)
    store = open_store()
    assert store.checkpoints() == [manifest]
    assert manifest.labels == {"step": "7"}
    with store.read(manifest.checkpoint) as reader:
        assert {each.name: reader.read(each.name) for each in reader.manifest.objects} == contents
        target = bytearray(len(contents["ragged"]))
        reader.read_into("ragged", target)
        assert bytes(target) == contents["ragged"]
    assert files(store, "markers/") == {}
    assert store.verify() == []


def test_only_what_changed_is_stored(open_store: OpenStore) -> None:
    """Equal chunks within and across checkpoints lie in the store once."""
    first = noise(3, 8 * CHUNK_BYTES)
    write(open_store(), a=first, b=first)
    assert len(files(open_store(), "chunks/")) == 8
    second = bytearray(first)
    second[3 * CHUNK_BYTES] ^= 1
    write(open_store(), a=second, c=first)
    assert len(files(open_store(), "chunks/")) == 9
    assert open_store().verify() == []


def test_what_was_not_committed_was_never_there(open_store: OpenStore) -> None:
    """Until `commit` nobody sees a checkpoint, and a writer that gives up takes its chunks along."""
    store = open_store()
    with store.write("job") as writer:
        writer.add("a", "test", noise(4, 3 * CHUNK_BYTES))
        assert open_store().checkpoints() == []
        with pytest.raises(CheckpointNotFoundError, match=writer.checkpoint):
            open_store().read(writer.checkpoint)
    assert files(store, "chunks/") == files(store, "markers/") == {}


def test_collection_frees_exactly_what_nobody_needs(open_store: OpenStore) -> None:
    """The newest of each job and the pinned stay whole; chunks that they inherited stay; the rest goes."""
    store = open_store()
    common = noise(5, 2 * CHUNK_BYTES)
    written = [write(store, a=common, b=noise(number, CHUNK_BYTES)) for number in range(10, 14)]
    other = write(store, "other job", a=noise(20, 10))
    planned = store.gc(keep=1, pins=[written[1].checkpoint], dry_run=True)
    assert len(store.checkpoints()) == 5
    report = open_store().gc(keep=1, pins=[written[1].checkpoint])
    assert report.checkpoints == (written[0].checkpoint, written[2].checkpoint)
    assert (report.chunks, report.bytes) == (2, 2 * (CHUNK_BYTES + 1))
    assert planned == report
    assert store.checkpoints() == [other, written[3], written[1]]
    assert store.verify() == []
    assert set(files(store, "chunks/")) == written[1].keys | written[3].keys | other.keys
    assert files(store, "retired/") == {}


def test_collection_spares_what_a_running_writer_counts_on(open_store: OpenStore) -> None:
    """Chunks that a writer stored or inherited stay, though the checkpoint that they came from is deleted."""
    store = open_store()
    first = write(store, a=noise(6, 2 * CHUNK_BYTES))
    with store.write("job") as writer:
        writer.add("new", "test", noise(7, CHUNK_BYTES))
        open_store().delete([first.checkpoint])
        assert open_store().gc().chunks == 0
        assert open_store().gc().chunks == 0
        writer.add("old", "test", noise(6, 2 * CHUNK_BYTES))
        second = writer.commit()
    assert store.checkpoints() == [second]
    assert {chunk.owner for chunk in second.objects[1].chunks} == {first.checkpoint}
    store.gc()
    assert open_store().verify() == []
    assert files(store, "retired/") == {}


def test_an_open_checkpoint_is_not_collected(open_store: OpenStore) -> None:
    """Who restores from a checkpoint can finish although it is deleted meanwhile."""
    store = open_store()
    first = write(store, a=noise(8, 3 * CHUNK_BYTES))
    with store.read(first.checkpoint) as reader:
        open_store().delete([first.checkpoint])
        assert open_store().gc().chunks == 0
        assert reader.read("a") == noise(8, 3 * CHUNK_BYTES)
    assert open_store().gc().chunks == 3


@pytest.mark.parametrize("harm", ["missing", "corrupt", "short", "other"])
def test_damage_is_named_and_not_restored(open_store: OpenStore, harm: str) -> None:
    """A bad chunk is named with checkpoint, object, number and file; no byte of it is handed out."""
    store = open_store()
    data = noise(9, 3 * CHUNK_BYTES)
    manifest = write(store, good=b"fine", tensor=data)
    backend = store._catalogue.backend
    chunk = manifest.objects[1].chunks[1]
    stored = backend.get(chunk.key)
    if harm == "missing":
        backend.delete([chunk.key])
    else:
        bad = {
            "corrupt": stored[:-1] + bytes([stored[-1] ^ 1]),
            "short": stored[:-1],
            "other": b"\0" + stored[2:],
        }
        backend.put(chunk.key, bad[harm])
    (damage,) = store.verify()
    assert (damage.checkpoint, damage.object_name, damage.chunk_index) == (manifest.checkpoint, "tensor", 1)
    with open_store().read(manifest.checkpoint) as reader:
        assert reader.read("good") == b"fine"
        pieces = reader.chunks("tensor")
        assert bytes(next(pieces)) == data[:CHUNK_BYTES]
        with pytest.raises(DamagedCheckpointError) as caught:
            next(pieces)
    assert caught.value.damage == damage
    for part in (manifest.checkpoint, "'tensor'", "chunk 1", chunk_key(chunk.owner, chunk.digest)):
        assert part in str(caught.value)
    assert ("missing" if harm == "missing" else "corrupt") in str(caught.value)


def test_missing_chunks_are_named_without_reading_any(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is gone or has another size is named, inherited chunks too, by listings alone; what has its size
    is taken on trust."""
    shared = noise(30, 3 * CHUNK_BYTES)
    first = write(open_store(), a=shared)
    second = write(open_store(), a=shared, b=noise(31, 2 * CHUNK_BYTES))
    assert open_store().missing(second.checkpoint) == []
    backend = open_store()._catalogue.backend
    gone, short, bad = (
        first.objects[0].chunks[1],
        second.objects[1].chunks[0],
        second.objects[1].chunks[1],
    )
    backend.delete([gone.key])
    backend.put(short.key, backend.get(short.key)[:-1])
    backend.put(bad.key, bytes(bad.stored))
    store = open_store()
    read = []
    real = store._catalogue.backend.get
    monkeypatch.setattr(store._catalogue.backend, "get", lambda key: read.append(key) or real(key))
    found = store.missing(second.checkpoint)
    assert [(each.object_name, each.chunk_index, each.key) for each in found] == [
        ("a", 1, gone.key),
        ("b", 0, short.key),
    ]
    assert "missing" in str(found[0])
    assert f"{short.stored - 1} bytes in the store instead of {short.stored}" in str(found[1])
    assert read == [f"checkpoints/{second.checkpoint}"]
    with pytest.raises(CheckpointNotFoundError):
        store.missing("20260101T000000-0123456789abcdef")


def test_a_lost_chunk_is_stored_again(open_store: OpenStore) -> None:
    """A checkpoint does not inherit what is no longer there."""
    store = open_store()
    data = noise(10, 3 * CHUNK_BYTES)
    first = write(store, a=data)
    store._catalogue.backend.delete([first.objects[0].chunks[2].key])
    second = write(store, a=data)
    assert {damage.checkpoint for damage in store.verify()} == {first.checkpoint}
    assert store.verify([second.checkpoint]) == []


def test_a_damaged_manifest_stops_collection_until_it_is_deleted(open_store: OpenStore) -> None:
    """What an unreadable manifest needs is unknown, so nothing is collected before it is deleted by name."""
    store = open_store()
    first = write(store, a=noise(11, CHUNK_BYTES))
    key = f"checkpoints/{first.checkpoint}"
    store._catalogue.backend.put(key, store._catalogue.backend.get(key)[:-5])
    second = write(open_store(), a=noise(12, CHUNK_BYTES))
    store = open_store()
    assert store.checkpoints() == [second]
    assert [(each.checkpoint, each.object_name) for each in store.verify()] == [(first.checkpoint, None)]
    with pytest.raises(DamagedCheckpointError, match=first.checkpoint):
        store.gc(keep=1)
    store.delete([first.checkpoint])
    assert store.gc(keep=1).chunks == 1
    assert store.verify() == []


def test_names_within_a_checkpoint_are_unique(open_store: OpenStore) -> None:
    """The second object of a name is refused."""
    with open_store().write("job") as writer:
        writer.add("a", "test", b"1")
        with pytest.raises(ValueError, match="'a'"):
            writer.add("a", "test", b"2")


def test_a_dying_server_is_named(s3_options: dict[str, object]) -> None:
    """A store that nobody answers for is a store that is not available, with its URL."""
    options = {**s3_options, "endpoint_url": "http://127.0.0.1:9"}
    with pytest.raises(StoreUnavailableError, match="s3://store/gone"):
        Store.open("s3://store/gone", options=options)


def test_a_read_only_store_is_named_and_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writing is refused by name; a restore from there works."""
    manifest = write(Store.open(tmp_path), a=b"data")
    store = Store.open(tmp_path)

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(store._catalogue.backend, "put", refuse)
    with store.read(manifest.checkpoint) as reader:
        assert reader.read("a") == b"data"
    with pytest.raises(StoreReadOnlyError, match=str(tmp_path)):
        store.write("job")


def test_nothing_is_made_by_looking(tmp_path: Path) -> None:
    """A store that does not exist is empty, and stays so."""
    store = Store.open(tmp_path / "none")
    assert store.checkpoints() == []
    assert store.verify() == []
    assert not (tmp_path / "none").exists()


def test_a_file_url_is_a_directory(tmp_path: Path) -> None:
    """``file://`` means the local store, with its atomic commit."""
    manifest = write(Store.open(f"file://{tmp_path}"), a=b"data")
    assert Store.open(tmp_path).checkpoints() == [manifest]


def test_the_newest_is_the_last_one_whatever_clocks_say(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that goes on where the clock is behind writes newer checkpoints all the same, and those are
    kept."""
    first = write(open_store(), a=b"1")
    monkeypatch.setattr(leases, "now_ns", lambda: first.created_ns - 10**12)
    last = write(open_store(), a=b"2")
    other = write(open_store(), job="other", a=b"3")
    assert [each.checkpoint for each in open_store().checkpoints("job")] == [
        last.checkpoint,
        first.checkpoint,
    ]
    assert other.created_ns < first.created_ns
    open_store().gc(keep=1)
    assert open_store().checkpoints("job") == [last]


def test_nobody_else_can_read_what_processes_had_in_memory(tmp_path: Path) -> None:
    """Whatever the umask, and in a directory that others can look into."""
    tmp_path.chmod(0o755)
    before = os.umask(0)
    try:
        write(Store.open(tmp_path / "deep" / "store"), a=noise(1, 3 * CHUNK_BYTES))
    finally:
        os.umask(before)
    store = tmp_path / "deep" / "store"
    for path in (store, *store.rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path
