"""What a checkpoint says about a tree of files.  Pure: structs, and bytes in the format MessagePack.

Names are bytes, relative to the tree's directory.  A list is believed only after `decode_tree_list`, which
refuses names that lead elsewhere, and entries that contradict each other."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from typing import Annotated, Final

import msgspec

from ..errors import StoreError, UnsupportedFormatError

LIST_KIND: Final = "tree-list"
DATA_KIND: Final = "tree-data"
LIST_VERSION: Final = 1

Size = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
Span = tuple[Size, Annotated[int, msgspec.Meta(ge=1, le=1 << 62)]]
"""Bytes of a file that are no hole: where they begin, and how many."""


class TreeError(StoreError):
    """A tree of files cannot be taken into a checkpoint, or out of it."""


class Look(msgspec.Struct, frozen=True, array_like=True):
    """What a name looks like from outside."""

    mode: Annotated[int, msgspec.Meta(ge=0, le=0o7777)]
    uid: Size
    gid: Size
    mtime_ns: int


class Entry(msgspec.Struct, frozen=True, kw_only=True, tag_field="is", forbid_unknown_fields=True):
    """One name."""

    name: bytes


class DirectoryEntry(Entry, frozen=True, kw_only=True, tag="directory"):
    """A directory, without what is in it."""

    look: Look


class RegularEntry(Entry, frozen=True, kw_only=True, tag="file"):
    """A file.  Its spans follow those of the files before it in the tree's data."""

    look: Look
    size: Size
    spans: tuple[Span, ...] = ()

    @property
    def bytes(self) -> int:
        """How many are stored."""
        return sum(count for _, count in self.spans)


class SymlinkEntry(Entry, frozen=True, kw_only=True, tag="symlink"):
    """A symbolic link; it may name anything, and nobody follows it here."""

    look: Look
    target: bytes


class FifoEntry(Entry, frozen=True, kw_only=True, tag="fifo"):
    """A named pipe."""

    look: Look


class HardLinkEntry(Entry, frozen=True, kw_only=True, tag="link"):
    """Another name of a file that comes earlier in the list."""

    to: bytes


AnyEntry = DirectoryEntry | RegularEntry | SymlinkEntry | FifoEntry | HardLinkEntry
_HAVE_NAMES = (RegularEntry, SymlinkEntry, FifoEntry)


class TreeList(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All names of a tree, each directory before what is in it."""

    version: int = LIST_VERSION
    entries: tuple[AnyEntry, ...] = ()

    @property
    def bytes(self) -> int:
        """How many the tree's data has."""
        return sum(entry.bytes for entry in self.entries if isinstance(entry, RegularEntry))


class _Version(msgspec.Struct, frozen=True):
    version: int


def encode_tree_list(tree: TreeList) -> bytes:
    """What is stored."""
    return msgspec.msgpack.encode(tree)


def decode_tree_list(data: bytes, data_bytes: int, where: str) -> TreeList:
    """The list in `data`, which was read from `where`, for a tree whose data has so many bytes.

    `TreeError`: it cannot be followed.  `UnsupportedFormatError`: another release wrote it."""
    try:
        version = msgspec.msgpack.decode(data, type=_Version).version
        if version != LIST_VERSION:
            raise UnsupportedFormatError(
                f"The list of files in {where} has version {version}; this release reads {LIST_VERSION}.",
                remedy="Use the release that wrote it.",
            )
        tree = msgspec.msgpack.decode(data, type=TreeList)
    except msgspec.DecodeError as error:
        raise _bad(where, str(error)) from error
    for problem in _problems(tree, data_bytes):
        raise _bad(where, problem)
    return tree


def is_inside(name: bytes) -> bool:
    """Whether a name is relative and has neither ``.``, ``..``, doubled slashes nor NUL."""
    return (
        name not in (b"", b".", b"..")
        and not name.startswith((b"/", b"../"))
        and b"\0" not in name
        and posixpath.normpath(name) == name
    )


def _bad(where: str, problem: str) -> TreeError:
    return TreeError(
        f"The list of files in {where} cannot be followed: {problem}.", remedy="Restore another checkpoint."
    )


def _problems(tree: TreeList, data_bytes: int) -> Iterator[str]:
    seen: dict[bytes, AnyEntry] = {}
    for entry in tree.entries:
        above = posixpath.dirname(entry.name)
        if not is_inside(entry.name):
            yield f"{entry.name!r} is no name within the tree"
        if entry.name in seen:
            yield f"{entry.name!r} occurs twice"
        if above and not isinstance(seen.get(above), DirectoryEntry):
            yield f"{entry.name!r} lies in what is no directory of the tree"
        if isinstance(entry, HardLinkEntry) and not isinstance(seen.get(entry.to), _HAVE_NAMES):
            yield f"{entry.name!r} is a name of {entry.to!r}, which is no file before it"
        if isinstance(entry, RegularEntry) and not _fits(entry):
            yield f"the contents of {entry.name!r} overlap or exceed its size"
        if isinstance(entry, SymlinkEntry) and (not entry.target or b"\0" in entry.target):
            yield f"the link {entry.name!r} leads to no name"
        seen[entry.name] = entry
    if tree.bytes != data_bytes:
        yield f"its files have {tree.bytes} bytes, of which {data_bytes} are stored"


def _fits(entry: RegularEntry) -> bool:
    end = 0
    for start, count in entry.spans:
        if start < end:
            return False
        end = start + count
    return end <= entry.size
