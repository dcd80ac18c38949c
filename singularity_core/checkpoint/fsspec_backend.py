"""A store at a URL, on any file system that fsspec knows.

`create` is atomic where the file system can do that (S3, memory, Google's and Azure's).  Elsewhere fsspec
looks first and writes then; what that costs is in `collector`."""

from __future__ import annotations

import contextlib
import enum
import errno
from collections.abc import Iterable, Iterator
from typing import Any

_FEW = 8
_PRECONDITION_FAILED = {"412", "PreconditionFailed"}


class FsspecBackend:
    """Files below one URL."""

    def __init__(self, url: str, options: dict[str, Any] | None = None) -> None:
        """`options` go to the file system: credentials, endpoint, timeouts."""
        import fsspec
        from fsspec.core import has_magic

        self._has_magic = has_magic
        self._url = url.rstrip("/")
        with _only_os_errors(f"opening {url}"):
            # Without a cache of listings: others write into the store, too.
            options = {"use_listings_cache": False, **(options or {})}
            self._files, self._root = fsspec.url_to_fs(self._url, **options)

    @property
    def place(self) -> str:
        """The URL."""
        return self._url

    def put(self, key: str, data: bytes) -> None:
        """See `Backend.put`."""
        with _only_os_errors(f"writing {key}"):
            self._files.pipe_file(self._path(key), data)

    def create(self, key: str, data: bytes) -> None:
        """See `Backend.create`."""
        for again in (True, True, False):
            try:
                with _only_os_errors(f"creating {key}"):
                    self._files.pipe_file(self._path(key), data, mode="create")
                return
            except OSError as error:
                refusal = _refusal(error)
                if refusal is _Refusal.EXISTS:
                    raise FileExistsError(errno.EEXIST, "it is there already", key) from error
                if refusal is not _Refusal.CONFLICT or not again:
                    raise

    def get(self, key: str) -> bytes:
        """See `Backend.get`."""
        with _only_os_errors(f"reading {key}"):
            contents: bytes = self._files.cat_file(self._path(key))
            return contents

    def list(self, prefix: str) -> dict[str, int]:
        """See `Backend.list`."""
        with _only_os_errors(f"listing {prefix}"):
            self._files.invalidate_cache()
            try:
                found = self._files.find(self._path(prefix), detail=True)
            except FileNotFoundError:
                return {}
            begin = len(self._root.rstrip("/")) + 1
            return {path[begin:]: int(entry["size"]) for path, entry in found.items()}

    def delete(self, keys: Iterable[str]) -> None:
        """See `Backend.delete`."""
        keys = list(keys)
        if len(keys) > _FEW and not any(self._has_magic(self._path(key)) for key in keys):
            # Many with one request, where there is such a one.  What it could not, it may not say.
            with contextlib.suppress(Exception):
                self._files.rm([self._path(key) for key in keys])
            folders = {key.rpartition("/")[0] for key in keys}
            left = {key for folder in folders for key in self.list(f"{folder}/")}
            keys = [key for key in keys if key in left]
        for key in keys:
            with _only_os_errors(f"deleting {key}"), contextlib.suppress(FileNotFoundError):
                self._files.rm_file(self._path(key))

    def make_durable(self) -> None:
        """See `Backend.make_durable`: a remote store answers when it has the data."""

    def remove_leftovers(self, older_than_seconds: float) -> int:
        """See `Backend.remove_leftovers`: remote stores have names only for what is complete."""
        return 0

    def _path(self, key: str) -> str:
        return f"{self._root.rstrip('/')}/{key}".rstrip("/")


@contextlib.contextmanager
def _only_os_errors(what: str) -> Iterator[None]:
    """Network libraries raise all kinds of exceptions; who calls a `Backend` knows one."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        raise OSError(errno.EIO, f"{what}: {type(error).__name__}: {error}") from error


class _Refusal(enum.Enum):
    """Why a file was not created."""

    EXISTS = enum.auto()
    CONFLICT = enum.auto()
    """Somebody else is just writing or deleting it: to be tried again, as S3 says."""
    OTHER = enum.auto()


def _refusal(error: OSError) -> _Refusal:
    """From all that an error comes from: a server's answer 412 (Precondition Failed) has no class of its own.
    s3fs, for one, knows it where the server says which condition it was, as Amazon's does and MinIO does
    not."""
    each: BaseException | None = error
    while each is not None:
        if isinstance(each, FileExistsError) or _PRECONDITION_FAILED & _codes(each):
            return _Refusal.EXISTS
        if "ConditionalRequestConflict" in _codes(each):
            return _Refusal.CONFLICT
        each = each.__cause__
    return _Refusal.OTHER


def _codes(error: BaseException) -> set[str]:
    """What a server answered, as libraries note it."""
    found = [getattr(error, name, None) for name in ("status", "status_code", "code", "error_code")]
    response = getattr(error, "response", None)  # botocore's
    if isinstance(response, dict):
        found.append(response.get("Error", {}).get("Code"))
        found.append(response.get("ResponseMetadata", {}).get("HTTPStatusCode"))
    return {str(each) for each in found if isinstance(each, int | str)}
