"""A job that was checkpointed can be named in place of its store."""

from __future__ import annotations

from pathlib import Path

import pytest

from singularity_core.launcher.errors import LaunchError
from singularity_core.launcher.known_stores import KnownJob, find_known, forget, remember


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where it is written down."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path / "singularity" / "checkpointed"


def known(job: str, run_id: str = "train", store: str = "/ckpt") -> KnownJob:
    return KnownJob(job=job, run_id=run_id, store=store)


def test_jobs_are_found_by_id_name_and_beginning() -> None:
    """The newest store counts; who has ended well is forgotten."""
    remember(known("20261203-1", "one"))
    remember(known("20261203-1", "one", "s3://other"))
    remember(known("20261203-22", "two"))
    for name in ("one", "20261203-1"):
        assert find_known(name).store == "s3://other"
    assert find_known("20261203-2").run_id == "two"
    with pytest.raises(LaunchError, match="Several jobs match 2026"):
        find_known("2026")
    forget("20261203-1")
    forget("20261203-1")
    with pytest.raises(LaunchError, match="one: there is no store, and no job"):
        find_known("one")


def test_what_is_damaged_is_not_there(folder: Path) -> None:
    """It is a convenience: nothing depends on it."""
    with pytest.raises(LaunchError):
        find_known("one")
    folder.mkdir(parents=True)
    (folder / "20261203-1").write_text("{")
    remember(known("20261203-2"))
    assert find_known("train").job == "20261203-2"
    folder.chmod(0)
    remember(known("20261203-3"))
    folder.chmod(0o700)
