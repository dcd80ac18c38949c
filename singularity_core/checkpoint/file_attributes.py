"""Mode, owner, time and extended attributes of a path: read and set, never by way of a link."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator

from .file_list import Attributes

_UNREADABLE = (errno.ENODATA, errno.ENOTSUP, errno.EPERM, errno.EACCES)
"""Gone meanwhile; unknown to this file system; of a kind, or a file, that is not for this user to read."""


def attributes_of(path: bytes, found: os.stat_result | None = None) -> Attributes:
    """As they are now; `found` spares a look.  Extended attributes that cannot be read are left out."""
    found = found or os.lstat(path)
    return Attributes(
        stat.S_IMODE(found.st_mode),
        found.st_uid,
        found.st_gid,
        found.st_mtime_ns,
        tuple(sorted(_xattrs(path).items())),
    )


def dress(path: bytes, attributes: Attributes) -> None:
    """Give a path these attributes.  Raises `OSError`."""
    found = os.lstat(path)
    if (found.st_uid, found.st_gid) != (attributes.uid, attributes.gid):
        os.chown(path, attributes.uid, attributes.gid, follow_symlinks=False)
    there, wanted = _xattrs(path), dict(attributes.xattrs)
    for name in there.keys() - wanted.keys():
        if name.startswith(b"user."):
            os.removexattr(path, name, follow_symlinks=False)
    for name, value in wanted.items():
        if there.get(name) != value:
            os.setxattr(path, name, value, follow_symlinks=False)
    if not stat.S_ISLNK(found.st_mode):
        os.chmod(path, attributes.mode)  # after the owner: chown clears set-user-id
    os.utime(path, ns=(attributes.mtime_ns, attributes.mtime_ns), follow_symlinks=False)


def _xattrs(path: bytes) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    with _readable_only():
        for name in os.listxattr(path, follow_symlinks=False):
            with _readable_only():
                found[os.fsencode(name)] = os.getxattr(path, name, follow_symlinks=False)
    return found


@contextlib.contextmanager
def _readable_only() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in _UNREADABLE:
            raise
