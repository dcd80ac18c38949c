"""What changed under an overlay mount, as its upper directory says.

The upper directory holds what was created or copied up.  What else there is to know is written in ways of
its own (Documentation/filesystems/overlayfs.rst): a *whiteout* hides a name of the lower layers, an *opaque*
directory all names below, a *redirect* says that a directory has the lower contents of another name,
*metacopy* that only a file's attributes were copied up.  Contents are therefore never read from here, only
which paths to read from the mount."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from .file_log import Change

_PREFIXES = ("trusted.overlay.", "user.overlay.")
"""The second where a mount without privileges uses ``userxattr``."""


def overlay_changes(upper: Path, mount: str) -> dict[str, Change]:
    """The paths below `mount` (as the job names it) that differ from the lower layers.

    `Change.existed` is exact for what was deleted, the only case where it counts."""
    changes: dict[str, Change] = {}
    pending = [""]
    while pending:
        folder = pending.pop()
        opaque = folder != "" and _is_whole(upper / folder)
        with os.scandir(upper / folder) as entries:
            for entry in [] if opaque else entries:
                name = f"{folder}/{entry.name}" if folder else entry.name
                if _is_whiteout(entry):
                    changes[_join(mount, name)] = Change(existed=True)
                elif entry.is_dir(follow_symlinks=False):
                    changes[_join(mount, name)] = Change(existed=False)
                    pending.append(name)
                else:
                    changes[_join(mount, name)] = Change(existed=False)
        if opaque:
            changes[_join(mount, folder)] = Change(existed=False, tree=True)
    return changes


def _join(mount: str, name: str) -> str:
    return f"{mount.rstrip('/')}/{name}"


def _is_whole(directory: Path) -> bool:
    """Whether what the mount shows there cannot be told from this directory and its own name alone."""
    return _attribute(directory, "opaque") == b"y" or _attribute(directory, "redirect") is not None


def _is_whiteout(entry: os.DirEntry[str]) -> bool:
    found = entry.stat(follow_symlinks=False)
    if stat.S_ISCHR(found.st_mode):
        return found.st_rdev == 0
    # Some mounts have no right to make devices.
    empty = stat.S_ISREG(found.st_mode) and found.st_size == 0
    return empty and _attribute(Path(entry.path), "whiteout") is not None


def _attribute(path: Path, name: str) -> bytes | None:
    for prefix in _PREFIXES:
        try:
            return os.getxattr(path, prefix + name, follow_symlinks=False)
        except OSError as error:
            if error.errno not in (errno.ENODATA, errno.ENOTSUP, errno.EPERM):
                raise
    return None
