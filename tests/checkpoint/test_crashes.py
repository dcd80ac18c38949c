"""What is left when a process that uses a store in a directory dies, or the disk is full, at any step."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from singularity_core.checkpoint import Manifest, Store, StoreFullError, StoreUnavailableError, local_backend
from singularity_core.checkpoint.collector import Collector
from singularity_core.checkpoint.local_backend import LocalBackend

PROGRAM = Path(__file__).parent / "programs" / "killed.py"
OLD = b"a" * 1000 + b"b" * 1000


def store_in(place: Path) -> Store:
    """As the program opens it."""
    return Store(LocalBackend(place), threads=0, chunk_bytes=1000)


def write(store: Store, data: bytes) -> Manifest:
    """A checkpoint with one object."""
    with store.write("job") as writer:
        writer.add("old", "test", data)
        return writer.commit()


def left_when_killed(template: Path, place: Path, what: str) -> Iterator[tuple[int, bool]]:
    """Run the program on copies of `template` until it gets through; each time what it left is at `place`."""
    for deadly in range(1, 200):
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(template, place)
        ran = subprocess.run(
            [sys.executable, "-P", str(PROGRAM), str(place), what, str(deadly)],
            stdout=subprocess.PIPE,
            text=True,
            timeout=60,
        )
        through = ran.stdout == "through\n"
        assert through or ran.returncode == -signal.SIGKILL
        yield deadly, through
        if through:
            return


def files_of(place: Path) -> set[str]:
    """All files but the store's own record."""
    found = {str(path.relative_to(place)) for path in place.rglob("*") if path.is_file()}
    return {name for name in found if name != "store"}


def assert_clean(place: Path) -> None:
    """After a collection by another process nothing is left but what checkpoints need, and it is whole."""
    store = store_in(place)
    assert store.verify() == []
    Collector(store._catalogue, lease_seconds=3600).collect(keep=None, pins=(), dry_run=False)
    LocalBackend(place).remove_leftovers(0)
    needed = {key for manifest in store.checkpoints() for key in manifest.keys}
    kept = {f"checkpoints/{manifest.checkpoint}" for manifest in store.checkpoints()}
    abandoned = {f"checkpoints/{name}" for name in store._catalogue.committed().abandoned}
    assert files_of(place) == needed | kept | abandoned
    assert store.verify() == []


def test_a_killed_writer_leaves_the_earlier_checkpoint_and_no_half_one(tmp_path: Path) -> None:
    """Killed before any system call, or within a write: the new one is there whole or not at all."""
    first = write(store_in(tmp_path / "template"), OLD)
    seen = set()
    for _, through in left_when_killed(tmp_path / "template", tmp_path / "store", "write"):
        checkpoints = store_in(tmp_path / "store").checkpoints()
        assert checkpoints[-1] == first
        seen.add((len(checkpoints), through))
        assert_clean(tmp_path / "store")
        assert len(store_in(tmp_path / "store").checkpoints()) == len(checkpoints)
    assert seen == {(1, False), (2, False), (2, True)}


def test_a_collector_that_is_killed_harms_nothing_that_is_kept(tmp_path: Path) -> None:
    """Killed before any system call: what is still committed is whole, and the next one finishes the work."""
    store = store_in(tmp_path / "template")
    write(store, OLD)
    second = write(store, OLD[:1000] + b"d" * 1000)
    for _, _ in left_when_killed(tmp_path / "template", tmp_path / "store", "gc"):
        assert store_in(tmp_path / "store").checkpoints()[0] == second
        assert store_in(tmp_path / "store").verify() == []
        # The next one repeats a deletion that was begun, if it is to delete the same.
        store_in(tmp_path / "store").gc(keep=1)
        assert store_in(tmp_path / "store").checkpoints() == [second]
        assert_clean(tmp_path / "store")


class FailingSystem:
    """The module `os`, whose n-th write, sync or link fails, and all later ones too."""

    def __init__(self, good: int, error: int) -> None:
        self.left = good
        self._error = error

    def __getattr__(self, name: str) -> Any:
        function = getattr(os, name)
        if name not in ("write", "fsync", "link", "replace"):
            return function

        def counted(*arguments: Any, **options: Any) -> Any:
            self.left -= 1
            if self.left < 0:
                raise OSError(self._error, os.strerror(self._error))
            return function(*arguments, **options)

        return counted


@pytest.mark.parametrize(
    ("number", "error"),
    [(errno.ENOSPC, StoreFullError), (errno.EIO, StoreUnavailableError)],
    ids=["full", "broken"],
)
def test_a_disk_that_fails_is_named_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, error: type[Exception]
) -> None:
    """From whichever step on it fails: a named error, the earlier checkpoint intact, no lasting trash."""
    first = write(store_in(tmp_path / "template"), OLD)
    for good in range(200):
        place = tmp_path / "store"
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(tmp_path / "template", place)
        failing = FailingSystem(good, number)
        with monkeypatch.context() as patch:
            patch.setattr(local_backend, "os", failing)
            said = str(place)
            try:
                write(store_in(place), b"d" * 2500)
            except error as raised:
                said = str(raised)
        assert str(place) in said
        checkpoints = store_in(place).checkpoints()
        assert checkpoints[-1] == first
        # This process lives, so a collection takes its markers for those of the living, unless told.
        Collector(store_in(place)._catalogue, lease_seconds=-1).collect(keep=None, pins=(), dry_run=False)
        assert_clean(place)
        if failing.left >= 0:
            assert len(checkpoints) == 2
            return
    pytest.fail("never got through")
