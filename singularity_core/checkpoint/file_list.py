"""What a checkpoint says about files.  Pure: structs, and bytes in the format MessagePack (paths are bytes).

Where it is believed it is checked first: `decode_file_list` refuses paths that lead elsewhere."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterator
from typing import Annotated, Final

import msgspec

from .errors import StoreError, UnsupportedFormatError

LIST_OBJECT: Final = "files/list"
LIST_KIND: Final = "file-list"
NOTES_OBJECT: Final = "files/notes"
NOTES_KIND: Final = "file-notes"
CONTENT_KIND: Final = "file-content"
LIST_VERSION: Final = 1

Size = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
RawPath = bytes
"""Absolute, as the job names it, without symbolic links, ``.`` and ``..``."""


class FileListError(StoreError):
    """A checkpoint's list of files contradicts itself."""


class Attributes(msgspec.Struct, frozen=True, array_like=True):
    """Of a file, directory or link."""

    mode: Annotated[int, msgspec.Meta(ge=0, le=0o7777)]
    uid: Size
    gid: Size
    mtime_ns: int
    xattrs: tuple[tuple[bytes, bytes], ...] = ()


class Run(msgspec.Struct, frozen=True, array_like=True):
    """Bytes of a file that are not a hole, and where they are stored."""

    offset: Size
    """In the file."""
    bytes: Annotated[int, msgspec.Meta(ge=1, le=1 << 62)]
    object_name: str
    object_offset: Size


class Entry(msgspec.Struct, frozen=True, kw_only=True, tag_field="is", forbid_unknown_fields=True):
    """One path that travels."""

    path: RawPath


class DirectoryEntry(Entry, frozen=True, kw_only=True, tag="directory"):
    """A directory, without what is in it."""

    attributes: Attributes
    whole: bool = False
    """What is in it and not in the list goes."""
    implied: bool = False
    """Only leads to others: made where it is missing, else left alone."""


class RegularEntry(Entry, frozen=True, kw_only=True, tag="file"):
    """A file with its contents."""

    attributes: Attributes
    size: Size
    runs: tuple[Run, ...] = ()
    appended: bool = False
    """Open for appending: where the file is there and has only grown, it is cut to this size instead of
    replaced, so that others who have it open see the same file."""


class SymlinkEntry(Entry, frozen=True, kw_only=True, tag="symlink"):
    """A symbolic link."""

    attributes: Attributes
    target: bytes


class HardLinkEntry(Entry, frozen=True, kw_only=True, tag="link"):
    """Another name of a file that comes earlier in the list."""

    to: RawPath


class SpecialEntry(Entry, frozen=True, kw_only=True, tag="special"):
    """A named pipe, a socket's name, or a device."""

    attributes: Attributes
    file_type: Annotated[int, msgspec.Meta(ge=0, le=0o170000)]
    device: Size = 0


_HAVE_NAMES = (RegularEntry, SymlinkEntry, SpecialEntry)
AnyEntry = DirectoryEntry | RegularEntry | SymlinkEntry | HardLinkEntry | SpecialEntry


class Truncation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file that is not carried, but was open for appending: it is cut to where it was."""

    path: RawPath
    size: Size
    sha256: str
    """Of its first `size` bytes."""


class NeededFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file that a process has open or mapped and that is not carried: it must be the same where it is
    restored."""

    path: RawPath
    size: Size
    sha256: str
    why: str
    """In words, for messages."""


class FileList(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file part of a checkpoint."""

    version: int = LIST_VERSION
    entries: tuple[AnyEntry, ...] = ()
    """A directory comes before what is in it."""
    deleted: tuple[RawPath, ...] = ()
    truncated: tuple[Truncation, ...] = ()
    needed: tuple[NeededFile, ...] = ()
    left_alone: tuple[RawPath, ...] = ()
    """Shared mounts and the like: a restore touches neither them nor what is in them."""

    @property
    def paths(self) -> list[str]:
        """All that is carried, implied directories left out."""
        return [
            os.fsdecode(each.path)
            for each in self.entries
            if not (isinstance(each, DirectoryEntry) and each.implied)
        ]

    @property
    def whole(self) -> list[RawPath]:
        """Directories that are exactly what is in the list, or gone with all that was in them."""
        kept = (each.path for each in self.entries if isinstance(each, DirectoryEntry) and each.whole)
        return [*kept, *self.deleted]


class _Version(msgspec.Struct, frozen=True):
    version: int


def encode_file_list(files: FileList) -> bytes:
    """What is stored."""
    return msgspec.msgpack.encode(files)


def decode_file_list(data: bytes, where: str) -> FileList:
    """The list in `data`, which was read from `where`; `FileListError` for one that cannot be followed."""
    try:
        version = msgspec.msgpack.decode(data, type=_Version).version
        if version != LIST_VERSION:
            raise UnsupportedFormatError(
                f"The list of files in {where} has version {version}; this release reads {LIST_VERSION}.",
                remedy="Use the release that wrote it.",
            )
        files = msgspec.msgpack.decode(data, type=FileList)
    except msgspec.DecodeError as error:
        raise _bad(where, str(error)) from error
    for problem in _problems(files):
        raise _bad(where, problem)
    return files


def _bad(where: str, problem: str) -> FileListError:
    return FileListError(
        f"The list of files in {where} cannot be followed: {problem}.", remedy="Restore another checkpoint."
    )


def _problems(files: FileList) -> Iterator[str]:
    seen: dict[bytes, AnyEntry] = {}
    for path in (
        *(each.path for each in (*files.entries, *files.truncated, *files.needed)),
        *files.deleted,
        *files.left_alone,
    ):
        if not is_plain(path):
            yield f"{path!r} is no absolute path in its plain form"
    for entry in files.entries:
        above = seen.get(posixpath.dirname(entry.path))
        if entry.path in seen:
            yield f"{entry.path!r} occurs twice"
        if above is not None and not isinstance(above, DirectoryEntry):
            yield f"{entry.path!r} lies in what is no directory"
        if isinstance(entry, HardLinkEntry) and not isinstance(seen.get(entry.to), _HAVE_NAMES):
            yield f"{entry.path!r} is a name of {entry.to!r}, which is no file before it"
        if isinstance(entry, RegularEntry) and not _fits(entry):
            yield f"the contents of {entry.path!r} overlap or exceed its size"
        seen[entry.path] = entry
    for path in files.deleted:
        if path in seen:
            yield f"{path!r} is both there and deleted"


def _fits(entry: RegularEntry) -> bool:
    end = 0
    for run in entry.runs:
        if run.offset < end:
            return False
        end = run.offset + run.bytes
    return end <= entry.size


def is_plain(path: bytes) -> bool:
    """Whether a path is absolute and has neither ``.``, ``..``, doubled slashes nor NUL."""
    return (
        path.startswith(b"/") and b"\0" not in path and posixpath.normpath(path) == path and path[:2] != b"//"
    )
