"""A store at a URL, on any file system that fsspec knows.

`create` is atomic where the file system can do that (S3, memory, Google's and Azure's).  Elsewhere fsspec
looks first and writes then; what that costs is in `collector`."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterable, Iterator
from typing import Any


class FsspecBackend:
    """Files below one URL."""

    def __init__(self, url: str, options: dict[str, Any] | None = None) -> None:
        """`options` go to the file system: credentials, endpoint, timeouts."""
        import fsspec

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
        with _only_os_errors(f"creating {key}"):
            self._files.pipe_file(self._path(key), data, mode="create")

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
