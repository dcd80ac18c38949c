"""What is made durable in a store in a directory."""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from singularity_core.checkpoint.local_backend import LocalBackend

Synced = list[Path]


def watch(monkeypatch: pytest.MonkeyPatch, before: Callable[[Path], None] = lambda path: None) -> Synced:
    """The folders that are made durable from now on; `before` is called before each."""
    real, synced = os.fsync, Synced()

    def fsync(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
            before(path)
            synced.append(path)
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    return synced


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Where a store is to be made, two folders deep."""
    return Path(os.path.realpath(tmp_path)) / "deep" / "store"


def test_folders_of_others_are_made_durable_too(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file is there after a power failure if all folders on the way to it are, also those that were made by
    somebody who died before it made them durable."""
    synced = watch(monkeypatch)
    LocalBackend(root).put("chunks/x/1", b"1")
    assert synced == []
    backend = LocalBackend(root)
    backend.put("chunks/x/2", b"2")
    backend.make_durable()
    assert {root.parent, root, root / "chunks", root / "chunks" / "x"} <= set(synced)


def test_a_new_folder_above_a_store_is_made_durable(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a store is made in folders that are not there yet, they last as well."""
    synced = watch(monkeypatch)
    backend = LocalBackend(root)
    backend.put("a", b"1")
    backend.make_durable()
    assert {root.parent.parent, root.parent, root} <= set(synced)


def test_what_could_not_be_made_durable_is_tried_again(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The failure is told, and the next call does not leave out what this one had still to do."""
    backend = LocalBackend(root)
    backend.put("a/1", b"1")
    backend.put("b/1", b"1")

    def fail(path: Path) -> None:
        if path == root / "a":
            raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        watch(patch, fail)
        with pytest.raises(OSError, match="Input/output"):
            backend.make_durable()
    synced = watch(monkeypatch)
    backend.make_durable()
    assert {root / "a", root / "b"} <= set(synced)
    synced.clear()
    backend.make_durable()
    assert synced == []


def test_nobody_is_told_that_it_is_durable_before_it_is(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread whose file is in a folder that another thread is just making durable waits for that."""
    backend = LocalBackend(root)
    backend.put("a/1", b"1")
    order: list[str] = []

    def second() -> None:
        backend.make_durable()
        order.append("second")

    thread = threading.Thread(target=second)

    def before(path: Path) -> None:
        if path == root / "a":
            thread.start()
            thread.join(0.1)  # were it not to wait, it would most likely have ended by then
            order.append("first")

    watch(monkeypatch, before)
    backend.make_durable()
    thread.join()
    assert order == ["first", "second"]
