"""What is pure in the store: records, chunks, and what may be deleted."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from singularity_core.checkpoint.chunking import (
    DamagedChunkError,
    decode_chunk,
    digest_of,
    encode_chunk,
    split,
)
from singularity_core.checkpoint.errors import UnsupportedFormatError
from singularity_core.checkpoint.manifest import (
    Chunk,
    DamagedRecordError,
    Manifest,
    Marker,
    StoredObject,
    decode_record,
    encode_record,
)
from singularity_core.checkpoint.retention import plan_gc, plan_sweep

ids = st.integers(0, 2**64 - 1).map(lambda number: f"20261202T120000-{number:016x}")
digests = st.binary(min_size=32, max_size=32).map(bytes.hex)
chunks = st.builds(Chunk, ids, digests, st.integers(1, 1 << 30), st.integers(1, 1 << 31))
objects = st.builds(
    StoredObject,
    st.text(min_size=1).filter(lambda text: text.isprintable()),
    st.sampled_from(["device", "host"]),
    st.integers(0, 1 << 40),
    st.lists(chunks, max_size=3).map(tuple),
)
manifests = st.builds(
    Manifest,
    checkpoint=ids,
    job=st.sampled_from(["a", "b", "c"]),
    created_ns=st.integers(0, 5),
    objects=st.lists(objects, max_size=3).map(tuple),
    labels=st.dictionaries(st.sampled_from(["step", "why"]), st.sampled_from(["1", "2"])),
)


@given(manifests)
def test_a_record_holds_what_was_put_into_it(manifest: Manifest) -> None:
    """A manifest comes back as it was."""
    assert decode_record(encode_record(manifest, writer="us"), Manifest, "here") == manifest


@given(manifests, st.data())
def test_a_changed_record_is_never_believed(manifest: Manifest, data: st.DataObject) -> None:
    """One changed or missing byte anywhere is noticed, or changes nothing of what is read."""
    record = encode_record(manifest, writer="us")
    place = data.draw(st.integers(0, len(record) - 1))
    byte = data.draw(st.integers(0, 255))
    changed = data.draw(
        st.sampled_from([record[:place], record[:place] + bytes([byte]) + record[place + 1 :]])
    )
    try:
        assert decode_record(changed, Manifest, "here") == manifest
    except (DamagedRecordError, UnsupportedFormatError):
        assert changed != record


def test_another_version_is_refused_by_name() -> None:
    """A record of a later format is named with its version and writer, not called damaged."""
    body = b'{"something": "else"}'
    head = {
        "format": "singularity-checkpoint-store",
        "version": 2,
        "kind": "later kind",
        "sha256": hashlib.sha256(body).hexdigest(),
        "writer": "singularity-hal 9.1",
    }
    record = json.dumps(head).encode() + b"\n" + body + b"\n"
    with pytest.raises(
        UnsupportedFormatError, match=r"here has the format version 2 .*singularity-hal 9\.1.*Use"
    ):
        decode_record(record, Manifest, "here")


def test_a_reference_cannot_leave_the_store() -> None:
    """Owners and digests that are no such names are refused when a manifest is read."""
    manifest = Manifest(
        checkpoint="20261202T120000-" + "0" * 16,
        job="a",
        created_ns=0,
        objects=(StoredObject("x", "k", 1, (Chunk("../../etc", "passwd", 1, 1),)),),
    )
    with pytest.raises(DamagedRecordError, match="does not fit"):
        decode_record(encode_record(manifest, writer="us"), Manifest, "here")


@given(st.integers(0, 10_000), st.integers(1, 3000))
def test_pieces_cover_an_object_once(size: int, piece: int) -> None:
    """Pieces are adjacent, at most as large as asked, and end where the object does."""
    numbers = [number for part in split(size, piece) for number in range(part.start, part.stop)]
    assert numbers == list(range(size))
    assert all(part.stop - part.start == piece for part in list(split(size, piece))[:-1])


@given(st.binary(min_size=1, max_size=300), st.integers(1, 500))
def test_a_chunk_comes_back(data: bytes, times: int) -> None:
    """What was encoded is decoded, and what repeats is stored in fewer bytes."""
    contents = data * times
    encoded = encode_chunk(contents)
    assert bytes(decode_chunk(encoded, hashlib.sha256(contents).hexdigest(), len(contents))) == contents
    assert len(encoded) <= len(contents) + 1
    if times > 400:
        assert len(encoded) < len(contents) / 10 + 400


@given(st.binary(min_size=1, max_size=200), st.sampled_from([1, 1000]), st.data())
def test_a_changed_chunk_is_never_handed_out(data: bytes, times: int, draw: st.DataObject) -> None:
    """One changed or missing byte is noticed, whether the chunk is compressed or not."""
    contents = data * times
    encoded = encode_chunk(contents)
    place = draw.draw(st.integers(0, len(encoded) - 1))
    bit = draw.draw(st.integers(0, 7))
    flipped = encoded[:place] + bytes([encoded[place] ^ 1 << bit]) + encoded[place + 1 :]
    for changed in (encoded[:place], flipped):
        try:
            # Bits of a frame's header may change without a change of what it holds.
            assert bytes(decode_chunk(changed, digest_of(contents), len(contents))) == contents
        except DamagedChunkError:
            continue


@given(st.lists(manifests, max_size=8, unique_by=lambda m: m.checkpoint), st.integers(1, 4), st.sets(ids))
def test_retention_keeps_the_newest_of_each_job(listed: list[Manifest], keep: int, others: set[str]) -> None:
    """Deleted is exactly what has `keep` newer ones of its job and is not pinned."""
    pins = others | {manifest.checkpoint for manifest in listed[::3]}
    plan = plan_gc(listed, keep, pins)
    for manifest in listed:
        newer = [
            other
            for other in listed
            if other.job == manifest.job
            and (other.created_ns, other.checkpoint) > (manifest.created_ns, manifest.checkpoint)
        ]
        assert (manifest.checkpoint in plan.delete) == (
            len(newer) >= keep and manifest.checkpoint not in pins
        )
    assert sorted(plan.delete + plan.keep) == sorted(manifest.checkpoint for manifest in listed)
    assert plan_gc(listed, None).delete == ()


def test_a_job_always_keeps_one() -> None:
    """Zero is refused: the last checkpoint of a job is not garbage."""
    with pytest.raises(ValueError, match="at least 1"):
        plan_gc([], 0)


@given(st.data())
def test_a_sweep_spares_what_anybody_can_refer_to(data: st.DataObject) -> None:
    """Chunks of committed, of retired and pinned, and of running checkpoints stay; all others go."""
    committed: list[Manifest] = data.draw(st.lists(manifests, max_size=3))
    retired: list[Manifest] = data.draw(st.lists(manifests, max_size=3, unique_by=lambda m: m.checkpoint))
    loose: list[Chunk] = data.draw(st.lists(chunks, max_size=4))
    running = [chunk.owner for chunk in loose[::2]]
    markers = [
        Marker(
            name=name, renewed_ns=0, process="", writes=True, pins=tuple(m.checkpoint for m in retired[:1])
        )
        for name in running
    ]
    needed = {
        chunk.key
        for m in committed + (retired[:1] if markers else [])
        for o in m.objects
        for chunk in o.chunks
    }
    everything = {c.key for m in committed + retired for o in m.objects for c in o.chunks} | {
        c.key for c in loose
    }
    sweep = plan_sweep(
        chunks=everything, committed=committed, retired={m.checkpoint: m for m in retired}, markers=markers
    )
    spared = {key for key in everything if key in needed or any(f"/{name}/" in key for name in running)}
    assert sweep.chunks == everything - spared
    assert sweep.retired == {m.checkpoint for m in (retired[1:] if markers else retired)}


def test_what_is_not_a_record_is_said_to_be_none() -> None:
    """Foreign files in the place of a record are told from records of other versions."""
    foreign: list[Any] = [b"", b"hello\n", msgspec.json.encode({"a": 1}), b'{"format":"x","version":1}\n']
    for data in foreign:
        with pytest.raises(DamagedRecordError):
            decode_record(data, Manifest, "here")
