"""The log of files, and what is concluded from it; all pure."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from singularity_core.checkpoint.errors import UnsupportedFormatError
from singularity_core.checkpoint.file_list import (
    Attributes,
    DirectoryEntry,
    FileList,
    FileListError,
    HardLinkEntry,
    RegularEntry,
    Run,
    SymlinkEntry,
    Truncation,
    decode_file_list,
    encode_file_list,
)
from singularity_core.checkpoint.file_log import (
    Change,
    ChangeTracker,
    Excludes,
    FileKind,
    FileNote,
    decode_notes,
    encode_note,
    settle,
)

names = st.text(
    st.characters(blacklist_characters="/\0", blacklist_categories=["Cs"]), min_size=1, max_size=9
).filter(lambda name: name not in (".", ".."))
paths = st.lists(names, min_size=1, max_size=4).map(lambda parts: "/" + "/".join(parts))
notes = st.builds(FileNote, paths, st.sampled_from([True, False, None]), st.booleans(), st.booleans())
PLAIN = Attributes(0o644, 0, 0, 0)


@given(st.lists(notes, max_size=5))
def test_notes_come_back(written: list[FileNote]) -> None:
    """What was appended is read, in order."""
    assert list(decode_notes(b"".join(map(encode_note, written)))) == written


@given(notes, notes, notes, st.data())
def test_a_torn_note_costs_no_other(
    first: FileNote, torn: FileNote, last: FileNote, draw: st.DataObject
) -> None:
    """A note that was written in part, because its process was killed, is left out; all others are read."""
    piece = encode_note(torn)
    part = piece[: draw.draw(st.integers(0, len(piece) - 2))]
    log = encode_note(first) + part + encode_note(last)
    assert list(decode_notes(log)) == [first, last]


@given(notes, st.data())
def test_a_changed_note_is_not_believed(note: FileNote, draw: st.DataObject) -> None:
    """A flipped bit makes a note none."""
    piece = bytearray(encode_note(note))
    piece[draw.draw(st.integers(1, len(piece) - 2))] ^= 1 << draw.draw(st.integers(0, 7))
    assert note not in list(decode_notes(bytes(piece)))


def test_what_failed_is_taken_back() -> None:
    """A refused call leaves no change, unless another one of the same path succeeded; what was there before
    is what the first note says."""
    tracker = ChangeTracker([FileNote("/a", True), FileNote("/a", None)])
    assert tracker.changes() == {}
    tracker.add(FileNote("/a", False, tree=True))
    assert tracker.changes() == {"/a": Change(existed=True, tree=True)}
    tracker.add(FileNote("/a", True))
    tracker.add(FileNote("/a", None, tree=True))
    assert tracker.changes() == {"/a": Change(existed=True)}
    assert ChangeTracker([FileNote("/lost", None)]).changes() == {}


def settled(changes: dict[str, Change], tree: dict[str, FileKind], *shared: str) -> tuple[object, ...]:
    """What `settle` makes of them where `tree` is all that is there."""
    found = settle(changes, Excludes(shared), lambda path: tree.get(path, FileKind.NOTHING))
    return found.present, found.whole, found.deleted


def test_only_what_was_there_before_is_deleted() -> None:
    """What came and went is not mentioned; below what is gone nothing is."""
    changes = {"/was": Change(True), "/came": Change(False), "/was/x": Change(True), "/was/y": Change(False)}
    assert settled(changes, {}) == ((), (), ("/was",))


def test_what_became_a_file_has_nothing_below() -> None:
    """Where a directory became something else, it travels, and what was below goes with what was there."""
    changes = {"/d": Change(True), "/d/x": Change(True), "/d-x": Change(False)}
    tree = {"/d": FileKind.OTHER, "/d-x": FileKind.OTHER}
    assert settled(changes, tree) == (("/d", "/d-x"), (), ())


def test_a_tree_stands_for_all_below() -> None:
    """A directory that came under another name travels whole."""
    changes = {"/d": Change(False, tree=True), "/d/x": Change(True), "/d/y": Change(True)}
    assert settled(changes, {"/d": FileKind.DIRECTORY, "/d/x": FileKind.OTHER}) == ((), ("/d",), ())


def test_what_is_shared_is_left_alone() -> None:
    """Nothing in /proc, /dev, /sys or what the user named travels or is deleted; similar names do."""
    changes = {
        path: Change(True) for path in ("/proc/x", "/dev/shm/x", "/sys/x", "/m/x", "/m", "/mx", "/devx")
    }
    assert settled(changes, {"/mx": FileKind.OTHER}, "/m/") == (("/mx",), (), ("/devx",))


def test_a_list_comes_back() -> None:
    """A list of files is what was stored, names that are no UTF-8 included."""
    files = FileList(
        entries=(
            DirectoryEntry(path=b"/d", attributes=PLAIN),
            RegularEntry(path=b"/d/\xff", attributes=PLAIN, size=9, runs=(Run(3, 6, "files/pack-0", 1),)),
            HardLinkEntry(path=b"/d/z", to=b"/d/\xff"),
            SymlinkEntry(path=b"/s", attributes=PLAIN, target=b"../\xff"),
        ),
        deleted=(b"/gone",),
        truncated=(Truncation(b"/log", 3, "0" * 64),),
    )
    assert decode_file_list(encode_file_list(files), "here") == files


def file(path: bytes, *runs: Run, size: int = 9) -> RegularEntry:
    """A file of a list."""
    return RegularEntry(path=path, attributes=PLAIN, size=size, runs=runs)


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        (FileList(entries=(file(b"/a/../../etc/passwd"),)), "plain form"),
        (FileList(entries=(file(b"relative"),)), "plain form"),
        (FileList(entries=(file(b"//a"),)), "plain form"),
        (FileList(deleted=(b"/a\0",)), "plain form"),
        (FileList(entries=(file(b"/a"), file(b"/a"))), "twice"),
        (FileList(entries=(file(b"/a"),), deleted=(b"/a",)), "both"),
        (FileList(entries=(HardLinkEntry(path=b"/a", to=b"/b"), file(b"/b"))), "no file before it"),
        (FileList(entries=(file(b"/a"), file(b"/a/b"))), "no directory"),
        (FileList(entries=(file(b"/a", Run(4, 9, "o", 0)),)), "exceed its size"),
        (FileList(entries=(file(b"/a", Run(4, 2, "o", 0), Run(5, 2, "o", 0)),)), "overlap"),
    ],
)
def test_a_list_that_leads_astray_is_refused(files: FileList, problem: str) -> None:
    """Paths that leave their place, and contradictions, are named before anything is done."""
    with pytest.raises(FileListError, match=problem):
        decode_file_list(encode_file_list(files), "here")


def test_another_version_of_a_list_is_refused() -> None:
    """A list of a later release is named as one; noise is not taken for a list."""
    with pytest.raises(UnsupportedFormatError, match="version 2"):
        decode_file_list(encode_file_list(FileList(version=2)), "here")
    with pytest.raises(FileListError, match="here cannot be followed"):
        decode_file_list(b"noise", "here")


def test_c_and_python_agree_on_the_head_of_a_piece() -> None:
    """The C code reserves as many bytes before the path as the format has."""
    source = (Path(__file__).parents[2] / "interposers" / "files" / "log.h").read_text()
    found = re.search(r"SG_PIECE_HEAD = (\d+)", source)
    assert found is not None
    assert encode_note(FileNote("/p", True)).index(b"/p") == int(found[1])
