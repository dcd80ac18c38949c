"""Small trees of files, copied while a job stands still, and carried through a checkpoint."""

from __future__ import annotations

import itertools
import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import pytest

from singularity_core.checkpoint import CheckpointReader, Store, UnsupportedFormatError
from singularity_core.checkpoint.chunking import CHUNK_BYTES
from singularity_core.checkpoint.fsspec_backend import FsspecBackend
from singularity_core.checkpoint.job import TreeError, put_tree, stage_tree, take_tree
from singularity_core.checkpoint.job import trees as trees_module
from singularity_core.checkpoint.job.tree_list import (
    DATA_KIND,
    LIST_KIND,
    DirectoryEntry,
    FifoEntry,
    HardLinkEntry,
    Look,
    RegularEntry,
    SymlinkEntry,
    TreeList,
    decode_tree_list,
    encode_tree_list,
    is_inside,
)

_numbers = itertools.count()
LOOK = Look(0o644, 0, 0, 0)
PAGE = 4096


def memory_store() -> Store:
    """An empty one."""
    return Store(FsspecBackend(f"memory://trees-{os.getpid()}-{next(_numbers)}"), threads=0)


def make_all_kinds(directory: Path) -> None:
    """A tree with one of each kind."""
    directory.mkdir()
    (directory / "empty").mkdir(mode=0o711)
    (directory / "deep/er").mkdir(parents=True)
    (directory / "deep").chmod(0o2770)
    (directory / "deep/er/file").write_bytes(b"contents")
    (directory / "deep/er/file").chmod(0o6755)
    os.link(directory / "deep/er/file", directory / "other-name")
    (directory / "nothing").touch()
    with (directory / "holes").open("wb") as file:
        file.truncate(64 * PAGE)
        file.seek(16 * PAGE)
        file.write(b"a" * PAGE)
        file.seek(48 * PAGE)
        file.write(b"b" * (PAGE + 1))
    with (directory / "hole-only").open("wb") as file:
        file.truncate(3 * PAGE + 5)
    os.mkfifo(directory / "pipe", 0o620)
    os.symlink("/no/such/../place", directory / "link")
    os.symlink("pipe", directory / "to-pipe")
    os.link(directory / "pipe", directory / "pipe-again")
    os.utime(directory / "nothing", ns=(1, 1_000_000_007))


def description(directory: Path) -> dict[str, object]:
    """All that a copy must have in common with its original."""
    found: dict[str, object] = {}
    inodes: dict[int, str] = {}
    for path in sorted(directory.rglob("*")):
        name = str(path.relative_to(directory))
        status = path.lstat()
        first = inodes.setdefault(status.st_ino, name)
        contents: object = None
        if stat.S_ISREG(status.st_mode):
            contents = path.read_bytes(), status.st_blocks
        elif stat.S_ISLNK(status.st_mode):
            contents = os.readlink(path)
        found[name] = (status.st_mode, status.st_uid, status.st_gid, status.st_mtime_ns, first, contents)
    return found


def through_a_store(directory: Path, target: Path) -> None:
    """Put a tree into a checkpoint and take it out again."""
    store = memory_store()
    with store.write("job") as writer:
        put_tree(writer, "tree", directory)
        checkpoint = writer.commit().checkpoint
    target.mkdir()
    with store.read(checkpoint) as reader:
        take_tree(reader, "tree", target)


@pytest.mark.parametrize("carry", [stage_tree, through_a_store])
def test_a_copy_has_all_that_the_tree_has(carry: Callable[[Path, Path], None], tmp_path: Path) -> None:
    """Kinds, modes, times, holes, names of one file, and empty directories."""
    make_all_kinds(tmp_path / "tree")
    carry(tmp_path / "tree", tmp_path / "copy")
    assert description(tmp_path / "copy") == description(tmp_path / "tree")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
@pytest.mark.parametrize("carry", [stage_tree, through_a_store])
def test_owners_travel(carry: Callable[[Path, Path], None], tmp_path: Path) -> None:
    """A file of another user is that user's in the copy, set-user-id included."""
    (tmp_path / "tree").mkdir()
    file = tmp_path / "tree/file"
    file.touch()
    os.chown(file, 12345, 54321)
    file.chmod(0o4711)
    carry(tmp_path / "tree", tmp_path / "copy")
    assert description(tmp_path / "copy") == description(tmp_path / "tree")


def test_what_is_left_out_is_not_in_the_copy(tmp_path: Path) -> None:
    """`leave_out` takes whole directories away, `only` other names, and directories that are empty by it."""
    make_all_kinds(tmp_path / "tree")
    stage_tree(
        tmp_path / "tree",
        tmp_path / "copy",
        leave_out=["deep/er", "holes"],
        only=lambda name: name not in ("pipe", "pipe-again"),
    )
    assert sorted(description(tmp_path / "copy")) == ["hole-only", "link", "nothing", "other-name", "to-pipe"]


def test_two_trees_are_staged_into_one(tmp_path: Path) -> None:
    """Directories that both have are merged; a file that both have is refused by name."""
    for name in ("one", "two"):
        (tmp_path / name / "shared").mkdir(parents=True)
        (tmp_path / name / "shared" / name).write_text(name)
        stage_tree(tmp_path / name, tmp_path / "copy")
    assert sorted(each.name for each in (tmp_path / "copy/shared").iterdir()) == ["one", "two"]
    with pytest.raises(TreeError, match=r"shared/two.*exists"):
        stage_tree(tmp_path / "two", tmp_path / "copy")


def test_sockets_are_left_out(tmp_path: Path) -> None:
    """The processes' image has who listens on them."""
    (tmp_path / "tree").mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "tree/socket"))
        stage_tree(tmp_path / "tree", tmp_path / "copy")
    assert list((tmp_path / "copy").iterdir()) == []


def test_a_file_that_shrinks_is_an_error_by_name(tmp_path: Path) -> None:
    """Something still writes to the tree, so the copy would be of no moment."""
    (tmp_path / "tree").mkdir()
    file = tmp_path / "tree/shrinks"
    file.write_bytes(b"x" * 2 * PAGE)
    look_at = trees_module._look_at

    def then_shrink(*arguments: object) -> object:
        entries = look_at(*arguments)  # type: ignore[arg-type]
        os.truncate(file, PAGE)
        return entries

    with patch.object(trees_module, "_look_at", then_shrink), pytest.raises(TreeError, match="shrinks"):
        stage_tree(tmp_path / "tree", tmp_path / "copy")


def test_a_link_in_the_way_is_not_followed(tmp_path: Path) -> None:
    """What is to be a directory or file of the tree is not made where a link leads to."""
    (tmp_path / "tree/deep").mkdir(parents=True)
    (tmp_path / "tree/deep/file").write_text("mine")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy/deep").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(TreeError, match="deep"):
        stage_tree(tmp_path / "tree", tmp_path / "copy")
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_file_begins_a_chunk(tmp_path: Path) -> None:
    """So a file that did not change is not stored anew when one before it grew."""
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/a").write_bytes(os.urandom(10))
    large = os.urandom(CHUNK_BYTES + 7)
    (tmp_path / "tree/b").write_bytes(large)
    store = memory_store()
    with store.write("job") as writer:
        put_tree(writer, "tree", tmp_path / "tree")
        sizes = [
            [chunk.size for chunk in each.chunks]
            for each in writer.commit().objects
            if each.name == "tree/data"
        ]
    assert sizes == [[10, CHUNK_BYTES, 7]]


def test_a_checkpoint_without_the_tree_is_refused(tmp_path: Path) -> None:
    """By the tree's name."""
    store = memory_store()
    with store.write("job") as writer:
        checkpoint = writer.commit().checkpoint
    with store.read(checkpoint) as reader, pytest.raises(TreeError, match="no tree 'sessions'"):
        take_tree(reader, "sessions", tmp_path)


def open_tree(entries: tuple[object, ...], data: bytes) -> CheckpointReader:
    """A checkpoint with such a tree, whatever it says."""
    store = memory_store()
    with store.write("job") as writer:
        writer.add("tree/data", DATA_KIND, data)
        writer.add("tree/list", LIST_KIND, encode_tree_list(TreeList(entries=entries)))  # type: ignore[arg-type]
        checkpoint = writer.commit().checkpoint
    return store.read(checkpoint)


FILE = RegularEntry(name=b"file", look=LOOK, size=0)


@pytest.mark.parametrize(
    ("entries", "data", "problem"),
    [
        ((RegularEntry(name=b"../escaped", look=LOOK, size=0),), b"", "no name within"),
        ((RegularEntry(name=b"/escaped", look=LOOK, size=0),), b"", "no name within"),
        ((RegularEntry(name=b"a\0b", look=LOOK, size=0),), b"", "no name within"),
        ((FILE, FILE), b"", "occurs twice"),
        ((SymlinkEntry(name=b"l", look=LOOK, target=b"/"), RegularEntry(name=b"l/x", look=LOOK, size=0)), b"",
         "no directory"),
        ((RegularEntry(name=b"d/x", look=LOOK, size=0), DirectoryEntry(name=b"d", look=LOOK)), b"",
         "no directory"),
        ((HardLinkEntry(name=b"link", to=b"/etc/passwd"),), b"", "no file before it"),
        ((FifoEntry(name=b"fifo", look=LOOK), HardLinkEntry(name=b"x", to=b"y")), b"", "no file before it"),
        ((DirectoryEntry(name=b"d", look=LOOK), HardLinkEntry(name=b"x", to=b"d")), b"", "no file before it"),
        ((SymlinkEntry(name=b"l", look=LOOK, target=b""),), b"", "leads to no name"),
        ((RegularEntry(name=b"f", look=LOOK, size=4, spans=((0, 5),)),), b"12345", "exceed its size"),
        ((RegularEntry(name=b"f", look=LOOK, size=9, spans=((2, 2), (3, 2))),), b"1234", "overlap"),
        ((RegularEntry(name=b"f", look=LOOK, size=9, spans=((0, 5),)),), b"1234", "5 bytes, of which 4"),
        ((FILE,), b"1", "0 bytes, of which 1"),
    ],
)  # fmt: skip
def test_a_list_that_contradicts_itself_is_refused(
    entries: tuple[object, ...], data: bytes, problem: str, tmp_path: Path
) -> None:
    """And nothing is made."""
    with open_tree(entries, data) as reader, pytest.raises(TreeError, match=problem):
        take_tree(reader, "tree", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_lists_of_other_versions_and_no_lists_are_refused() -> None:
    """By what they are."""
    with pytest.raises(UnsupportedFormatError, match="version 99"):
        decode_tree_list(encode_tree_list(TreeList(version=99)), 0, "here")
    for data in (b"", b"\xff", encode_tree_list(TreeList())[:-1], b"\x81\xa7version\x01\xa1x\x01"):
        with pytest.raises(TreeError, match="here"):
            decode_tree_list(data, 0, "here")


@pytest.mark.parametrize("name", [b"", b".", b"..", b"a/..", b"a//b", b"a/", b"./a", b"../../a", b"//a"])
def test_names_that_are_not_plain_lie_outside(name: bytes) -> None:
    """There is one way to write each name."""
    assert not is_inside(name)
    assert is_inside(b"a/..b/.c")
