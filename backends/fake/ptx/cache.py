"""The object cache on disk: LOAD answers, PTX texts and objects, written whole or not at all.

Default ~/.cache/singularity/ptx, or $SINGULARITY_FAKE_CACHE.  The directory is private (0700): what lies in
it is run as code.  Entries are named by digests of everything that they depend on, so nothing is ever
invalidated.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from functools import lru_cache
from pathlib import Path

KERNEL_ABI = 2  # SGF_KERNEL_ABI of backends/fake/device/kernel_abi.h


class CacheError(Exception):
    """The cache directory cannot be used; the message says why and what to do."""


@lru_cache(maxsize=1)
def compiler_digest() -> str:
    """Changes whenever the compiler's source, its ABI or llvmlite does."""
    import llvmlite

    digest = hashlib.sha256(f"{KERNEL_ABI} {llvmlite.__version__}".encode())
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.name.encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()[:40]


class Cache:
    def __init__(self, root: Path | None = None) -> None:
        if root is None:
            named = os.environ.get("SINGULARITY_FAKE_CACHE")
            base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
            root = Path(named) if named else Path(base) / "singularity" / "ptx"
        self.root = root.absolute()
        self.prepare()

    def prepare(self) -> None:
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            info = self.root.stat()
        except OSError as error:
            raise CacheError(
                f"cannot use the object cache {self.root}: {error}; set SINGULARITY_FAKE_CACHE"
            ) from error
        if info.st_uid != os.getuid():
            raise CacheError(
                f"the object cache {self.root} belongs to another user; set SINGULARITY_FAKE_CACHE"
            )
        if stat.S_IMODE(info.st_mode) & 0o077:
            os.chmod(self.root, 0o700)

    def path(self, name: str) -> Path:
        return self.root / name[:2] / name

    def read(self, name: str) -> bytes | None:
        try:
            return self.path(name).read_bytes()
        except OSError:
            return None

    def write(self, name: str, data: bytes) -> Path:
        """Stores an entry atomically; others may be writing the same one."""
        path = self.path(name)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".new-")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
        return path
