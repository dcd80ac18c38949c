"""What a job did to files after a checkpoint is known when it is set back to it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from singularity_core.checkpoint.file_list import Attributes, FileList, SymlinkEntry
from singularity_core.checkpoint.file_log import Change, encode_changes
from singularity_core.checkpoint.files import PathMapping
from singularity_core.launcher.job_directory import create_job_directory, sweep_stale_jobs
from singularity_core.launcher.known_stores import KnownJob, remember
from singularity_core.launcher.later_changes import (
    LaterChanges,
    Origin,
    forget_changes,
    later_changes,
    note_origin,
)


class Past:
    """A job that was checkpointed, and changed files since; then it ended."""

    def __init__(self, tmp_path: Path) -> None:
        self.place = tmp_path / "place"
        self.place.mkdir()
        self.directory = create_job_directory(tmp_path / "jobs")
        self.origin = self.of(self.place)

    def of(self, place: Path) -> Origin:
        """The job in a work directory."""
        return Origin(job=self.directory.job, work_directory=str(self.place), place=str(place))

    def ends(self, changes: dict[str, Change], *, known: bool = True, swept: bool = False) -> None:
        """It has changed these, by names in its work directory; `swept`: nobody saw it end."""
        if known:
            remember(KnownJob(job=self.directory.job, run_id="run", store="/store"))
        log = self.directory.make_file_log()
        log.write_bytes(encode_changes({self.name(path): change for path, change in changes.items()}))
        note_origin(self.directory.path, self.origin)
        if swept:
            os.close(self.directory.lock_descriptor)
            assert sweep_stale_jobs(self.directory.path.parent) == [self.directory.job]
        else:
            self.directory.remove()

    def name(self, path: str) -> str:
        return str(self.place / path)

    def later(self, origin: Origin | None = None, files: FileList | None = None) -> LaterChanges:
        origin = origin or self.origin
        mapping = PathMapping([(origin.work_directory, origin.place)])
        return later_changes(files or FileList(), origin, mapping)


@pytest.fixture
def past(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Past:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return Past(tmp_path)


NEW, OLD = Change(existed=False), Change(existed=True)


def test_what_it_made_goes_and_what_it_altered_is_named(past: Past) -> None:
    """A directory with all that it made in it is one of them; what is gone again is none."""
    (past.place / "made").mkdir()
    for name in ("made/one", "old", "new"):
        (past.place / name).touch()
    past.ends({"made": NEW, "made/one": NEW, "old": OLD, "new": NEW, "gone": NEW})
    later = past.later()
    assert later == LaterChanges(made=(past.name("made"), past.name("new")), altered=(past.name("old"),))
    assert [line.split(":")[0] for line in later.plan()] == [
        "goes, for the job made it after the checkpoint",
        "stays as the job left it after the checkpoint",
    ]
    forget_changes(past.origin.job)
    assert past.later() == LaterChanges()


def test_what_the_checkpoint_has_is_none_of_it(past: Past) -> None:
    """Nor what it left alone, nor what is only in the job's memory."""
    for name in ("carried", "new"):
        (past.place / name).touch()
    (past.place / "shared").mkdir()
    (past.place / "shared" / "x").touch()
    past.ends({"carried": NEW, "new": NEW, "shared/x": NEW, "/dev/shm/x": NEW})
    entry = SymlinkEntry(
        path=os.fsencode(past.name("carried")), attributes=Attributes(0o777, 0, 0, 0), target=b"x"
    )
    files = FileList(entries=(entry,), left_alone=(os.fsencode(past.name("shared")),))
    assert past.later(files=files).made == (past.name("new"),)


def test_what_others_touched_since_stays(past: Past) -> None:
    """Also when it is deep in a directory that the job made, of which the rest goes."""
    (past.place / "made" / "deep").mkdir(parents=True)
    for name in ("made/one", "made/deep/two", "new"):
        (past.place / name).touch()
    past.ends({"made": NEW, "made/one": NEW, "made/deep": NEW, "made/deep/two": NEW, "new": NEW})
    kept = next(Path(os.environ["XDG_STATE_HOME"]).glob("singularity/changed/*/*"))
    before = max(os.lstat(past.name(name)).st_ctime for name in ("made/one", "new"))
    os.utime(kept, (before, before))
    while os.lstat(past.name("made/deep")).st_ctime <= before + 0.2:
        (past.place / "made" / "deep" / "theirs").touch()
        (past.place / "made" / "deep" / "theirs").unlink()
    (past.place / "made" / "deep" / "theirs").touch()
    later = past.later()
    assert later.made == (past.name("made/deep/two"), past.name("made/one"), past.name("new"))
    assert later.touched == (past.name("made"), past.name("made/deep"))
    assert any("others changed it" in line for line in later.warnings())


def test_another_work_directory_is_another_place(past: Path, tmp_path: Path) -> None:
    """What it did in one is of no interest in another; what it did outside of both is."""
    (past.place / "new").touch()
    (tmp_path / "outside").touch()
    other = tmp_path / "other"
    other.mkdir()
    (other / "new").touch()
    past.ends({"new": NEW, str(tmp_path / "outside"): NEW})
    assert past.later(past.of(other)).made == (str(tmp_path / "outside"),)
    assert past.later().made == (str(tmp_path / "outside"), past.name("new"))


@pytest.mark.parametrize("swept", [False, True])
def test_whoever_removes_its_directory_keeps_what_it_did(past: Past, swept: bool) -> None:
    """The launcher, the guardian, and who sweeps after both were killed."""
    (past.place / "new").touch()
    past.ends({"new": NEW}, swept=swept)
    assert past.later().made == (past.name("new"),)


def test_of_a_job_without_a_checkpoint_nothing_is_kept(past: Past) -> None:
    """Nobody can resume it."""
    (past.place / "new").touch()
    past.ends({"new": NEW}, known=False)
    assert not list(Path(os.environ["XDG_STATE_HOME"]).glob("singularity/changed/*"))
    assert past.later() == LaterChanges()
