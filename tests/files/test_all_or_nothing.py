"""A restore of files is all or nothing: whatever fails, and wherever it is killed, the files of before come
back, and nothing that came later is taken for them."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import resource
import shutil
import subprocess
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from singularity_core.checkpoint import CheckpointReader, Store, StoreError
from singularity_core.checkpoint.file_journal import JOURNAL, FileJournal
from singularity_core.checkpoint.files import (
    Change,
    Excludes,
    FileRestoreError,
    FilesInBetweenError,
    HostFilesDifferError,
    OpenFile,
    PathMapping,
    recover_files,
    restore_files,
    restored_files,
)

from ..sanitizers import SANITIZER
from .conftest import fill
from .trees import copy_tree, snapshot, store_changes

pytestmark = pytest.mark.skipif(SANITIZER != "", reason="tries the Python side, for which one build suffices")

TAKES_ROOM = ("mkdir", "link", "symlink", "mknod", "pwrite", "write", "open")
CHANGING = (*TAKES_ROOM, "rename", "unlink", "rmdir", "chmod", "utime", "truncate", "ftruncate")
CREATES = os.O_CREAT | os.O_TMPFILE


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """An empty one."""
    return Store.open(tmp_path / "store", threads=0)


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A job's directory."""
    fill(tmp_path / "work")
    return Path(os.path.realpath(tmp_path)) / "work"


@pytest.fixture
def both(store: Store, work: Path, tmp_path: Path) -> tuple[str, Path]:
    """A checkpoint with every kind of change, and a directory that it changes."""
    target = copy_tree(work, tmp_path / "target")
    (work / "old").write_text("new contents")
    (work / "made").mkdir()
    (work / "made" / "f").write_text("f")
    os.link(work / "made" / "f", work / "hard")
    shutil.rmtree(work / "empty")
    (work / "empty").symlink_to("made")
    (work / "to-d").unlink()
    (work / "d").chmod(0o711)
    (work / "log").write_text("first")
    (target / "log").write_text("first and second")
    copy_tree(target, tmp_path / "original")
    changes = {str(work / name): Change(existed=True) for name in ("old", "empty", "to-d", "d", "log")}
    changes |= {str(work / name): Change(existed=False) for name in ("made", "made/f", "hard")}
    opened = {str(work / "log"): OpenFile(str(work / "log"), True, True, "test")}
    manifest, _ = store_changes(store, changes, opened)
    return manifest.checkpoint, target


def seen(target: Path) -> dict[str, object]:
    """With the times of directories: a restore that is taken back leaves no trace at all."""
    times = {str(path): path.lstat().st_mtime_ns for path in [target, *target.rglob("*")]}
    return {**snapshot(target), **times}


@dataclass
class Trial:
    """A checkpoint, and a directory that it changes.  Its restore fails, or is killed, in other processes."""

    store: Store
    checkpoint: str
    work: Path
    target: Path
    workspace: Path
    before: dict[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.before = seen(self.target)

    def restore(self) -> None:
        """Without an end."""
        with self.store.read(self.checkpoint) as reader:
            mapping = PathMapping([(str(self.work), str(self.target))])
            restore_files(reader, workspace=self.workspace, mapping=mapping)

    def is_before(self) -> bool:
        """Whether all is as if there had been no restore, and nothing is left of it."""
        left = list(self.target.parent.glob("**/.singularity*"))
        return seen(self.target) == self.before and not (self.workspace / JOURNAL).exists() and not left

    def recover(self) -> None:
        """What the next process does; nothing is left to do then."""
        recover_files(self.workspace)
        assert not recover_files(self.workspace)


@pytest.fixture
def trial(store: Store, both: tuple[str, Path], work: Path, tmp_path: Path) -> Trial:
    """Nothing of it has been done."""
    checkpoint, target = both
    return Trial(store, checkpoint, work, target, tmp_path / "space")


Fault = Callable[[int, str, bool], None]
"""Is told a step's number, its name, and whether it was done: before and after every call that changes
files."""
WELL, FAILED, IN_BETWEEN, KILLED = range(4)


def step_by_step(patch: pytest.MonkeyPatch, fault: Fault) -> None:
    """From here on."""
    count = 0

    def wrap(name: str) -> None:
        real = getattr(os, name)

        def changed(*arguments: object, **named: object) -> object:
            nonlocal count
            if name == "open" and not int(str(arguments[1])) & CREATES:
                return real(*arguments, **named)
            count += 1
            step = count
            fault(step, name, False)
            result = real(*arguments, **named)
            fault(step, name, True)
            return result

        patch.setattr(os, name, changed)

    for name in CHANGING:
        wrap(name)


def apart(call: Callable[[], None], fault: Fault | None = None) -> int:
    """Calls it in a process of its own, and says how that ended."""
    pid = os.fork()
    if pid == 0:
        code = 100
        try:
            if fault is not None:
                step_by_step(pytest.MonkeyPatch(), fault)
            call()
            code = WELL
        except FilesInBetweenError:
            code = IN_BETWEEN
        except FileRestoreError:
            code = FAILED
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code in (WELL, FAILED, IN_BETWEEN, KILLED)
    return code


def fails_at(number: int) -> Fault:
    """One step fails, and no other."""

    def fault(step: int, name: str, done: bool) -> None:
        if step == number and not done:
            raise OSError(errno.ENOSPC, "No space left on device")

    return fault


def fails_from(number: int, names: tuple[str, ...]) -> Fault:
    """From that step on, these calls fail."""

    def fault(step: int, name: str, done: bool) -> None:
        if step >= number and not done and name in names:
            raise OSError(errno.ENOSPC, "No space left on device")

    return fault


def killed_at(number: int) -> Fault:
    """Before (even numbers) or after a step."""

    def fault(step: int, name: str, done: bool) -> None:
        if step * 2 + done == number:
            os._exit(KILLED)

    return fault


def both_of(first: Fault, second: Fault) -> Fault:
    """Two faults."""

    def fault(step: int, name: str, done: bool) -> None:
        first(step, name, done)
        second(step, name, done)

    return fault


# ---- steps that fail ----


def test_a_restore_that_fails_changes_nothing(
    store: Store, both: tuple[str, Path], work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever step fails, the target is as it was, times of directories included; then it works."""
    checkpoint, target = both
    mapping, before, steps = PathMapping([(str(work), str(target))]), seen(target), 0
    causes: set[str] = set()
    while True:
        steps += 1
        failed = named = False

        def fail(step: int, name: str, done: bool, at: int = steps) -> None:
            nonlocal failed
            if step == at and not done and not failed:
                failed = True
                raise OSError(28, "No space left on device")

        with store.read(checkpoint) as reader, monkeypatch.context() as patch:
            step_by_step(patch, fail)
            try:
                restore_files(reader, workspace=tmp_path / "space", mapping=mapping)
            except FileRestoreError as error:
                named = True
                causes.add(error.cause.rpartition(": ")[2])
        if not named:  # either nothing failed, or it was behind the commit
            break
        assert seen(target) == before, f"failed at step {steps}"
        assert not (tmp_path / "space").exists() or os.listdir(tmp_path / "space") == []
        shutil.rmtree(tmp_path / "space", ignore_errors=True)  # as pathlib makes light of a failing mkdir
    assert steps > 20
    assert causes == {"No space left on device."}
    assert snapshot(target) == snapshot(work)
    recover_files(tmp_path / "space")
    assert not list(target.rglob(".singularity*"))


@pytest.mark.parametrize("names", [TAKES_ROOM, CHANGING], ids=["full", "read-only"])
def test_nothing_is_lost_when_all_fails_from_some_step_on(trial: Trial, names: tuple[str, ...]) -> None:
    """A disk that is full, or read-only, from some step on: what could not be taken back is said, with the
    journal kept, and taken back when the disk is well again."""
    seen_codes, number, code = set(), 0, FAILED
    while code != WELL:
        number += 1
        code = apart(trial.restore, fails_from(number, names))
        seen_codes.add(code)
        if code == IN_BETWEEN:
            assert (trial.workspace / JOURNAL).exists()
        if code != WELL:
            trial.recover()
            assert trial.is_before(), f"failed from step {number} on"
    assert number > 40
    assert seen_codes == {WELL, FAILED} | ({IN_BETWEEN} if names == CHANGING else seen_codes & {IN_BETWEEN})
    trial.recover()
    assert snapshot(trial.target) == snapshot(trial.work)


def test_a_journal_that_is_cut_short_anywhere_is_followed(trial: Trial) -> None:
    """Wherever in a line the journal's file can grow no more, in a real file system, and though the process
    is killed before it has removed it: what was taken back is not taken back again."""
    code, limit = KILLED, 0

    def die(journal: FileJournal) -> None:
        os._exit(WELL if journal.committed else KILLED)

    def restore() -> None:
        pytest.MonkeyPatch().setattr(FileJournal, "close", die)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        trial.restore()

    while code != WELL:
        code = apart(restore)
        if code != WELL:
            trial.recover()
            assert trial.is_before(), limit
        limit += 61
    assert limit > 1000


@pytest.mark.long
def test_a_full_disk_loses_nothing(trial: Trial, tmp_path: Path) -> None:
    """A real one, with room for ever more pages and inodes: the files are as before or as they are to be."""
    (tmp_path / "small").mkdir()

    def fill_and_restore() -> None:
        assert ctypes.CDLL(None).unshare(0x20000) == 0  # CLONE_NEWNS
        subprocess.run(["mount", "--make-rprivate", "/"], check=True)
        for options in ("size={}k", "size=1m,nr_inodes={}"):
            well = False
            for room in range(0, 400, 4 if "size={" in options else 1):
                top = tmp_path / "small"
                subprocess.run(["mount", "-t", "tmpfs", "none", top], check=True)
                small = Trial(
                    trial.store,
                    trial.checkpoint,
                    trial.work,
                    copy_tree(trial.target, top / "target"),
                    top / "space",
                )
                used = os.statvfs(top)
                limit = room + (
                    (used.f_blocks - used.f_bfree) * used.f_frsize // 1024
                    if "size={" in options
                    else used.f_files - used.f_ffree
                )
                subprocess.run(["mount", "-o", f"remount,{options.format(limit)}", top], check=True)
                with contextlib.suppress(FilesInBetweenError, FileRestoreError):
                    small.restore()
                    well = True
                if not well:
                    subprocess.run(["mount", "-o", "remount,size=1m,nr_inodes=1000", top], check=True)
                    recover_files(small.workspace)
                    assert small.is_before(), (options, room)
                subprocess.run(["umount", top], check=True)
                if well:
                    break
            assert well
            assert room > 3

    if os.geteuid() != 0:
        pytest.skip("needs root, for a mount")
    apart(fill_and_restore)


# ---- processes that are killed ----


def in_vain(trial: Trial) -> Callable[[], None]:
    """A restore all of which works, but for its end."""

    def fail(journal: FileJournal) -> None:
        raise OSError(errno.EIO, "no end")

    def restore() -> None:
        pytest.MonkeyPatch().setattr(FileJournal, "commit", fail)
        trial.restore()

    return restore


def test_a_kill_at_any_step_loses_nothing(trial: Trial) -> None:
    """Killed before or after any step of a restore that then fails, also while that takes it back: the next
    process takes back what is left."""
    number, code = 2, KILLED
    while code == KILLED:
        code = apart(in_vain(trial), killed_at(number))
        trial.recover()
        assert trial.is_before(), f"killed at step {number / 2}"
        number += 1
    assert number > 100


def test_a_kill_at_the_end_leaves_all_or_nothing(trial: Trial) -> None:
    """Killed before or after any step of a restore that works, it is taken back before its commit, and
    complete after it."""
    number, code, complete = 2, KILLED, 0
    while code == KILLED:
        code = apart(trial.restore, killed_at(number))
        trial.recover()
        if snapshot(trial.target) == snapshot(trial.work):
            assert not list(trial.target.parent.glob("**/.singularity*"))
            complete += 1
            shutil.rmtree(trial.target)
            copy_tree(trial.target.parent / "original", trial.target)
            trial.before = seen(trial.target)
        else:
            assert not complete
            assert trial.is_before(), f"killed at step {number / 2}"
        number += 1
    assert number > 80
    assert complete > 3


def test_a_second_kill_loses_nothing(trial: Trial) -> None:
    """Killed in the middle of taking back what a killed restore did, wherever that is: the third process
    takes back what is left."""
    interrupt(trial, every=7)


@pytest.mark.long
def test_any_two_kills_lose_nothing(trial: Trial) -> None:
    """As the test before, for each pair of steps; and for each pair of a step that fails and a kill."""
    interrupt(trial, every=1)
    first, code = 0, FAILED
    while code != WELL:
        first += 1
        code = apart(trial.restore, fails_at(first))
        second, end = first * 2 + 1, KILLED
        while code != WELL and end == KILLED:
            end = apart(trial.restore, both_of(killed_at(second), fails_at(first)))
            trial.recover()
            assert trial.is_before(), f"failed at step {first}, killed at {second / 2}"
            second += 1


def interrupt(trial: Trial, every: int) -> None:
    """A kill at each `every`th step, and one at each step of what takes that back."""
    first, code = 2, KILLED
    while code == KILLED:
        second, end = 2, KILLED
        while end == KILLED:
            code = apart(in_vain(trial), killed_at(first))
            end = apart(lambda: trial.recover(), killed_at(second))
            trial.recover()
            assert trial.is_before(), f"killed at step {first / 2}, and at {second / 2} of the recovery"
            second += 1 if every == 1 else 3
        first += every


# ---- what comes later ----


def test_what_came_after_it_was_taken_back_stays(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a journal can neither be marked nor removed, it is read again: by then all was taken back, and
    what users did since is not touched, neither old files nor new ones at the places of the job's."""
    real = os.unlink

    def refuse(path: Path, **named: int) -> None:
        if str(path).endswith(JOURNAL):
            raise OSError(errno.EIO, "Input/output error")
        real(path, **named)

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", refuse)
        patch.setattr(FileJournal, "_mark", fail)
        patch.setattr(os, "ftruncate", fail)
        with pytest.raises(FilesInBetweenError, match=f"{JOURNAL}.*error"):
            trial.restore()
    assert seen(trial.target) == trial.before
    (trial.target / "old").write_text("what the user wrote then")
    with open(trial.target / "log", "a") as log:
        log.write(", and third")
    for name in ("made", "hard"):
        (trial.target / name).write_text("new")
    (trial.target / "d").chmod(0o755)
    later = snapshot(trial.target)
    trial.recover()
    assert snapshot(trial.target) == later


def test_a_line_without_an_end_is_no_step(trial: Trial) -> None:
    """A journal of a process that was killed while it wrote a line is followed up to that line; one that is
    damaged before its end, or of another release, is kept, and named."""
    assert apart(in_vain(trial), killed_at(100)) == KILLED
    journal = trial.workspace / JOURNAL
    whole = journal.read_bytes()
    lines = whole.splitlines(keepends=True)
    for damaged in (b"".join([*lines[:3], b"{}\n", *lines[3:]]), whole[len(lines[0]) :]):
        journal.write_bytes(damaged)
        with pytest.raises(FileRestoreError, match=f"{JOURNAL} cannot be restored: (it is dam|this is no)"):
            recover_files(trial.workspace)
        assert journal.read_bytes() == damaged
    journal.write_bytes(whole + lines[-1][:-1])
    trial.recover()
    assert trial.is_before()


def test_what_the_job_did_before_the_end_failed_is_taken_back(trial: Trial) -> None:
    """Processes that were brought back may have begun to write, replace and remove their files: they are
    ended before these are taken away, also when it is the end of the restore that fails."""
    ended: list[str] = []

    def end() -> None:
        assert (trial.target / "old").read_text() == "replaced"
        ended.append("all")

    def fail(journal: FileJournal) -> None:
        raise OSError(errno.EIO, "no end")

    def run(reader: CheckpointReader) -> None:
        mapping = PathMapping([(str(trial.work), str(trial.target))])
        with restored_files(reader, workspace=trial.workspace, mapping=mapping, end_users=end):
            (trial.target / "new").write_text("replaced")
            os.replace(trial.target / "new", trial.target / "old")
            (trial.target / "to-d").write_text("a file, where the job had removed a link")
            (trial.target / "hard").unlink()
            with open(trial.target / "log", "a") as log:
                log.write(" and more")

    with pytest.MonkeyPatch.context() as patch, trial.store.read(trial.checkpoint) as reader:
        patch.setattr(FileJournal, "commit", fail)
        with pytest.raises(FileRestoreError, match="no end"):
            run(reader)
    assert ended == ["all"]
    assert trial.is_before()


def test_a_link_in_the_place_of_a_log_is_not_followed(store: Store, work: Path, tmp_path: Path) -> None:
    """A symbolic link that lies where a log was open for appending does not get what it leads to cut, whether
    it lies there beforehand or comes after that was looked at."""
    shared, other = tmp_path / "shared", tmp_path / "other"
    shared.mkdir()
    other.write_text("first and what must stay")
    log = shared / "log"
    log.write_text("first")
    opened = {str(log): OpenFile(str(log), True, True, "test")}
    manifest, files = store_changes(store, {}, opened, Excludes([str(shared)]))
    assert files.truncated
    log.unlink()
    log.symlink_to(other)
    with store.read(manifest.checkpoint) as reader:
        with pytest.raises(HostFilesDifferError, match="log is no regular file"):
            restore_files(reader, workspace=tmp_path / "space")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("singularity_core.checkpoint.file_restore.differences", lambda *_: [])
            with pytest.raises(FileRestoreError, match="log cannot be restored: Too many levels"):
                restore_files(reader, workspace=tmp_path / "space")
    assert other.read_text() == "first and what must stay"
    assert log.is_symlink()


def test_files_go_again_if_the_processes_do_not_come_back(
    store: Store, both: tuple[str, Path], work: Path, tmp_path: Path
) -> None:
    """An error inside of `restored_files`, where processes are restored, takes the files back as well."""
    checkpoint, target = both
    before = seen(target)

    def resume(reader: CheckpointReader) -> None:
        mapping = PathMapping([(str(work), str(target))])
        with restored_files(reader, workspace=tmp_path / "space", mapping=mapping):
            assert snapshot(target) == snapshot(work)
            raise StoreError("no process", remedy="none")

    with store.read(checkpoint) as reader, pytest.raises(StoreError, match="no process"):
        resume(reader)
    assert seen(target) == before


def test_two_restores_do_not_meet(store: Store, both: tuple[str, Path], work: Path, tmp_path: Path) -> None:
    """A second restore in the same workspace is refused while one is at work."""
    checkpoint, target = both
    mapping = PathMapping([(str(work), str(target))])
    with (
        store.read(checkpoint) as reader,
        restored_files(reader, workspace=tmp_path / "space", mapping=mapping),
    ):
        with pytest.raises(FileRestoreError, match="another restore is at work"):
            restore_files(reader, workspace=tmp_path / "space", mapping=mapping)
        assert snapshot(target) == snapshot(work)
    assert snapshot(target) == snapshot(work)


def test_a_link_in_the_way_is_refused(
    store: Store, both: tuple[str, Path], work: Path, tmp_path: Path
) -> None:
    """Where a directory of the job is a link here, files would go elsewhere: refused by name."""
    checkpoint, target = both
    shutil.rmtree(target)
    (tmp_path / "elsewhere").mkdir()
    target.symlink_to(tmp_path / "elsewhere")
    with store.read(checkpoint) as reader:
        mapping = PathMapping([(str(work), f"{target}/../target/.")])  # PathMapping follows links itself
        restore_files(reader, workspace=tmp_path / "space", mapping=mapping)
    assert (tmp_path / "elsewhere" / "old").exists()
    shutil.rmtree(tmp_path / "elsewhere" / "made")
    (tmp_path / "elsewhere" / "made").symlink_to(tmp_path)
    changes = {str(work / "made" / "f"): Change(existed=False)}
    manifest, _ = store_changes(store, changes)
    mapping = PathMapping([(str(work), str(target))])
    with (
        store.read(manifest.checkpoint) as reader,
        pytest.raises(FileRestoreError, match="made is no directory here"),
    ):
        restore_files(reader, workspace=tmp_path / "space", mapping=mapping)
