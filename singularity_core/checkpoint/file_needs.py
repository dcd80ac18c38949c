"""Where the files of a checkpoint go here, and whether those that it does not carry are as they were."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable

from .errors import StoreError
from .file_digests import FileDigests
from .file_list import LIST_OBJECT, FileList, Truncation, decode_file_list
from .file_log import is_within
from .reader import CheckpointReader

NAMED_DIFFERENCES = 10


class FileRestoreError(StoreError):
    """Files cannot be put back; the target is as it was."""


class HostFilesDifferError(FileRestoreError):
    """Files that the job uses and that do not travel are missing here, or others."""

    def __init__(self, differences: list[str]) -> None:
        named = "; ".join(differences[:NAMED_DIFFERENCES])
        more = len(differences) - NAMED_DIFFERENCES
        super().__init__(
            f"{len(differences)} file(s) that the job has in use are not here as they were: {named}"
            + (f"; and {more} more." if more > 0 else "."),
            remedy="Install the same versions at the same places, or restore where the job ran.",
        )
        self.differences = differences


class PathMapping:
    """Where paths of the job are here: the longest prefix counts; without one they are where they were."""

    def __init__(self, prefixes: Iterable[tuple[str, str]] = ()) -> None:
        """`prefixes`: (as the job names it, as it is here); both absolute."""
        self._prefixes = sorted(
            ((old.rstrip("/") or "/", os.path.realpath(new)) for old, new in prefixes),
            key=lambda each: len(each[0]),
            reverse=True,
        )

    def __call__(self, path: str) -> str:
        for old, new in self._prefixes:
            if is_within(path, old):
                rest = path.removeprefix(old).lstrip("/")
                return os.path.join(new, rest) if rest else new
        return path


def read_file_list(reader: CheckpointReader) -> FileList:
    """The file part of a checkpoint."""
    return decode_file_list(reader.read(LIST_OBJECT), f"checkpoint {reader.manifest.checkpoint}")


def differences(files: FileList, mapping: PathMapping, digests: FileDigests | None = None) -> list[str]:
    """What of the files that do not travel is not here as it was, in words."""
    digests = digests or FileDigests()
    found = []
    for needed in files.needed:
        path = os.fsdecode(needed.path)
        here = mapping(path)
        place = path if here == path else f"{path} (here {here})"
        try:
            if not stat.S_ISREG(os.stat(here).st_mode):
                found.append(f"{place} is no regular file ({needed.why})")
            elif os.stat(here).st_size != needed.size or digests.digest(here)[1] != needed.sha256:
                found.append(f"{place} has other contents ({needed.why})")
        except OSError as error:
            found.append(f"{place}: {error.strerror} ({needed.why})")
    found += [problem for each in files.truncated if (problem := _shortened(each, mapping, digests))]
    return found


def _shortened(cut: Truncation, mapping: PathMapping, digests: FileDigests) -> str | None:
    path = mapping(os.fsdecode(cut.path))
    try:
        found = os.lstat(path)
        if not stat.S_ISREG(found.st_mode):
            return f"{path} is no regular file (it was open for appending)"
        same = found.st_size >= cut.size and digests.digest(path, cut.size)[1] == cut.sha256
    except OSError as error:
        return f"{path}: {error.strerror} (it was open for appending)"
    return None if same else f"{path} does not begin with what it held (it was open for appending)"
