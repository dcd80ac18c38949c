"""Taking dumps apart into pages, each contents once, and putting them together again."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from singularity_core.checkpoint import CheckpointReader, DamagedCheckpointError, Manifest, Store
from singularity_core.checkpoint.fsspec_backend import FsspecBackend
from singularity_core.checkpoint.host import packing
from singularity_core.checkpoint.host.errors import ImageMissingError
from singularity_core.checkpoint.host.ingest import IngestReport, digests_name, ingest, packs_name
from singularity_core.checkpoint.host.page_index import PageIndex, digest_of_page
from singularity_core.checkpoint.host.page_map import (
    PAGE_BYTES,
    ZERO,
    MalformedMapError,
    MappedFile,
    decode_map,
    decode_runs,
    encode_map,
    encode_runs,
)
from singularity_core.checkpoint.host.rebuild import image_bytes, rebuild

PACK_PAGES = 8
_numbers = itertools.count()
Dump = dict[str, bytes]


def page(number: int) -> bytes:
    """A page like no other; 0 is the zero page."""
    return number.to_bytes(4, "little") * (PAGE_BYTES // 4)


def pages(*numbers: int) -> bytes:
    """Several."""
    return b"".join(map(page, numbers))


def memory_store() -> Store:
    """An empty one."""
    return Store(FsspecBackend(f"memory://pages-{os.getpid()}-{next(_numbers)}"), threads=0)


def save(store: Store, dump: Dump, place: Path) -> tuple[Manifest, IngestReport]:
    """Take a dump apart into a new checkpoint."""
    directory = place / f"dump-{next(_numbers)}"
    directory.mkdir()
    for name, contents in dump.items():
        (directory / name).write_bytes(contents)
    with patch.object(packing, "PACK_PAGES", PACK_PAGES), store.write("job") as writer:
        report = ingest(writer, directory)
        return writer.commit(), report


def load(reader: CheckpointReader, place: Path) -> Dump:
    """What was taken apart, put together."""
    directory = place / f"rebuilt-{next(_numbers)}"
    directory.mkdir()
    rebuild(reader, directory)
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def unique(dump: Dump) -> set[bytes]:
    """The oracle: all different pages but the zero page."""
    padded = [contents + bytes(-len(contents) % PAGE_BYTES) for contents in dump.values()]
    found = {it[at : at + PAGE_BYTES] for it in padded for at in range(0, len(it), PAGE_BYTES)}
    return found - {page(0)}


contents = st.builds(
    lambda numbers, tail: pages(*numbers) + tail,
    st.lists(st.integers(0, 60), max_size=40),
    st.sampled_from([b"", b"x", b"\0", b"y" * 4095]),
)
dumps = st.dictionaries(st.sampled_from(["core.img", "pages-1.img", "pages-2.img"]), contents, min_size=1)


@settings(max_examples=60, deadline=None)
@given(history=st.lists(dumps, min_size=1, max_size=4))
def test_every_checkpoint_of_a_history_comes_back(
    history: list[Dump], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Whatever changes between checkpoints, each gives back its dump, stores only pages that the one before
    did not have or that lay in sparse packs, and keeps no pack that is less than a quarter in use."""
    place = tmp_path_factory.mktemp("dumps")
    store = memory_store()
    manifests = []
    packed: set[bytes] = set()
    for dump in history:
        manifest, report = save(store, dump, place)
        manifests.append(manifest)
        assert report.packing.unique_pages == len(unique(dump))
        assert report.packing.new_pages == len(unique(dump) - packed)
        with store.read(manifest.checkpoint) as reader:
            stored = reader.read(packs_name("host"))
            digests = reader.read(digests_name("host"))
        in_packs = [stored[at : at + PAGE_BYTES] for at in range(0, len(stored), PAGE_BYTES)]
        assert digests == b"".join(map(digest_of_page, in_packs))
        packed = set(in_packs)
        assert len(packed) == len(in_packs)
        assert unique(dump) <= packed
        assert len(packed) <= 4 * len(unique(dump))
        new = [it for each in manifest.objects for it in each.chunks if it.owner == manifest.checkpoint]
        assert report.contents_bytes == sum(chunk.size for chunk in set(new))
    for dump, manifest in zip(history, manifests, strict=True):
        with store.read(manifest.checkpoint) as reader:
            assert load(reader, place) == dump
            assert image_bytes(reader) <= sum(len(it) + PAGE_BYTES for it in dump.values())
    assert store.verify() == []


def test_sparse_packs_are_let_go(tmp_path: Path) -> None:
    """A page that alone is left of its pack is stored anew, and the earlier checkpoint can be collected."""
    store = memory_store()
    save(store, {"a": pages(*range(1, 17))}, tmp_path)
    second, report = save(store, {"a": pages(3, 9, 10, 11, 20)}, tmp_path)
    assert (report.packing.new_pages, report.packing.repacked_pages) == (1, 1)
    packs = next(it for it in second.objects if it.name == packs_name("host"))
    assert [chunk.owner == second.checkpoint for chunk in packs.chunks] == [True, False]
    store.gc(keep=1)
    with store.read(second.checkpoint) as reader:
        assert load(reader, tmp_path) == {"a": pages(3, 9, 10, 11, 20)}


def test_one_changed_page_of_many_costs_one_page(tmp_path: Path) -> None:
    """A second checkpoint stores the pages that changed, wherever they now are, and small tables."""
    store = memory_store()
    before = [*range(1, 500)]
    save(store, {"pages-1.img": pages(*before)}, tmp_path)
    moved = [*before[250:], 1000, *before[:250]]
    _, report = save(store, {"pages-7.img": pages(*moved)}, tmp_path)
    assert report.packing.new_pages == 1
    assert report.packing.repacked_pages == 0
    assert report.contents_bytes < PAGE_BYTES + 500 * 16 + 200


@pytest.mark.parametrize("what", ["packs", "map"])
def test_a_damaged_chunk_is_named_and_nothing_is_made_of_it(tmp_path: Path, what: str) -> None:
    """A corrupt or missing piece of an image is named by object and file in the store."""
    store = Store.open(tmp_path / "store")
    manifest, _ = save(store, {"a": pages(*range(1, 30))}, tmp_path)
    stored = next(it for it in manifest.objects if it.name == f"host/{what}")
    path = tmp_path / "store" / stored.chunks[-1].key
    data = path.read_bytes()
    for damaged in (data[:-1] + bytes([data[-1] ^ 1]), None):
        if damaged is None:
            path.unlink()
        else:
            path.write_bytes(damaged)
        with store.read(manifest.checkpoint) as reader, pytest.raises(DamagedCheckpointError) as caught:
            load(reader, tmp_path)
        assert caught.value.damage.object_name == f"host/{what}"
        assert caught.value.damage.key == stored.chunks[-1].key


@pytest.mark.parametrize("damage", [b"", b"something else"])
def test_without_the_digests_of_the_base_all_is_stored_anew(tmp_path: Path, damage: bytes) -> None:
    """Damage to what only saves space does not stop a checkpoint, and does not spread to it."""
    store = Store.open(tmp_path / "store")
    first, _ = save(store, {"a": pages(*range(1, 30))}, tmp_path)
    digests = next(it for it in first.objects if it.name == digests_name("host"))
    (tmp_path / "store" / digests.chunks[0].key).write_bytes(damage)
    second, report = save(store, {"a": pages(*range(1, 31))}, tmp_path)
    assert report.packing.new_pages == 30
    assert store.verify([second.checkpoint]) == []


def test_lost_packs_of_the_base_are_stored_anew(tmp_path: Path) -> None:
    """A pack that is gone from the store is not relied on; the others are."""
    store = Store.open(tmp_path / "store")
    first, _ = save(store, {"a": pages(*range(1, 25))}, tmp_path)
    packs = next(it for it in first.objects if it.name == packs_name("host"))
    (tmp_path / "store" / packs.chunks[1].key).unlink()
    second, report = save(store, {"a": pages(*range(1, 25))}, tmp_path)
    assert report.packing.new_pages == 8
    with store.read(second.checkpoint) as reader:
        assert load(reader, tmp_path) == {"a": pages(*range(1, 25))}


def test_a_checkpoint_without_an_image_says_so(tmp_path: Path) -> None:
    """Asking for the image of a checkpoint that has none is refused by name."""
    store = memory_store()
    with store.write("job") as writer:
        writer.add("weights", "device", b"1234")
        manifest = writer.commit()
    with store.read(manifest.checkpoint) as reader, pytest.raises(ImageMissingError, match="no image 'host'"):
        load(reader, tmp_path)


def test_a_file_that_shrinks_while_it_is_read_is_no_checkpoint(tmp_path: Path) -> None:
    """A dump that is not as long as it was when it was looked at is an error, not a shorter file."""
    (tmp_path / "a").write_bytes(pages(1))
    packer = packing.Packer(None)
    with (tmp_path / "a").open("rb") as file, pytest.raises(EOFError):
        list(packer.pieces([("a", 2 * PAGE_BYTES, file)]))


@given(st.lists(st.one_of(st.just(ZERO), st.integers(0, 6)), max_size=50))
def test_runs_say_what_they_were_made_of(locations: list[int]) -> None:
    """Runs decode to the very pages, and no two of them could be one."""
    runs = list(decode_runs(encode_runs(locations)))
    found = [first if first == ZERO else first + at for first, count in runs for at in range(count)]
    assert found == locations
    for (first, count), (following, _) in itertools.pairwise(runs):
        assert following != (ZERO if first == ZERO else first + count)


@given(st.lists(st.integers(0, 300), max_size=400))
def test_the_index_is_a_dict(numbers: list[int]) -> None:
    """The table finds and keeps what a dict does, through collisions and growth."""
    index, oracle = PageIndex(), dict[bytes, int]()
    index._make(4)
    for location, number in enumerate(numbers):
        digest = (number % 5).to_bytes(8, "little") + number.to_bytes(8, "little")  # all collide
        assert index.find_or_add(digest, location) == oracle.setdefault(digest, location)
    assert len(index) == len(oracle)


def file(name: str = "a", size: int = PAGE_BYTES, runs: tuple[int, ...] = (0,)) -> MappedFile:
    """A file in a map."""
    return MappedFile(name, size, encode_runs(runs))


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "truncated"),
        (b"\x01", "Expected"),
        (encode_map([file()], 2), "about 2 pages"),
        (encode_map([file(runs=(1,))], 1), "beyond the packs"),
        (encode_map([MappedFile("a", PAGE_BYTES, b"1234567")], 1), "cut off"),
        (encode_map([MappedFile("a", 0, bytes(8))], 1), "beyond the packs"),
        (encode_map([file(size=PAGE_BYTES + 1)], 1), "1 pages for 4097 bytes"),
        (encode_map([file(size=-1, runs=())], 1), "0 pages for -1 bytes"),
        (encode_map([file(), file()], 1), "two files of one name"),
        (encode_map([file("../a")], 1), "no file name"),
        (encode_map([file("..")], 1), "no file name"),
        (encode_map([file("")], 1), "no file name"),
        (encode_map([file("a\0b")], 1), "no file name"),
    ],
)
def test_a_map_that_does_not_fit_is_refused(data: bytes, problem: str) -> None:
    """No map leads out of the packs, out of the directory, or to files of another size."""
    with pytest.raises(MalformedMapError, match=problem):
        decode_map(data, 1)


def test_a_map_of_another_version_is_told_by_its_version() -> None:
    """What a later release writes is refused for that reason, whatever else is in it."""
    import msgspec

    with pytest.raises(MalformedMapError, match="version 7"):
        decode_map(msgspec.msgpack.encode({"version": 7, "new": True}), 1)
