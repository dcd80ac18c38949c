"""Files on their way through a checkpoint: what comes out is what went in, and a failure changes nothing."""

from __future__ import annotations

import errno
import os
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from singularity_core.checkpoint import Store
from singularity_core.checkpoint.files import (
    Change,
    Excludes,
    FileCaptureError,
    FileDigests,
    HostFilesDifferError,
    OpenFile,
    PathMapping,
    Since,
    capture_files,
    log_changes,
    restore_files,
    resume_log,
    since_checkpoint,
)

from ..sanitizers import SANITIZER
from .conftest import Built, Job, fill, make_log
from .trees import carry, copy_tree, covered, differing, snapshot, store_changes, with_all_below

plain_only = pytest.mark.skipif(SANITIZER != "", reason="tries the Python side, for which one build suffices")

# ---- programs that do anything ----

some_path = st.sampled_from(
    ["a", "b", "d/x", "d/y", "d/e", "d/e/z", "to-d/x", "to-old", "dangling", "old", "d"]
)
step = st.one_of(
    st.tuples(st.sampled_from(["create", "append", "truncate", "mode", "remove", "mkdir"]), some_path),
    st.tuples(st.sampled_from(["rename", "exchange", "link", "symlink"]), some_path, some_path),
).map(" ".join)


@plain_only
@settings(max_examples=60, deadline=None)
@given(st.lists(step, max_size=12), st.lists(step, max_size=12))
def test_any_program_is_followed(built: Built, first: list[str], second: list[str]) -> None:
    """Whatever a program does in a directory, all that differs afterwards is in the log; a checkpoint makes a
    copy of the directory the same; and that goes on after a resume elsewhere."""
    program = built.program("script")
    with tempfile.TemporaryDirectory() as name:
        top = Path(os.path.realpath(name))
        fill(top / "work")
        make_log(top / "log")
        original = copy_tree(top / "work", top / "original")
        store = Store.open(top / "store", threads=0)
        run_script(Job(built, top / "log", top / "work"), program, first)
        resumed = copy_tree(original, top / "resumed")
        check_and_carry(store, top / "log", original, top / "work", resumed, top / "space")
        make_log(top / "second-log")
        with store.read(store.checkpoints()[0].checkpoint) as reader:
            mapping = PathMapping([(str(top / "work"), str(resumed))])
            resume_log(reader, top / "second-log", mapping)
        run_script(Job(built, top / "second-log", resumed), program, second)
        check_and_carry(
            store, top / "second-log", original, resumed, copy_tree(original, top / "third"), top / "space"
        )


def run_script(job: Job, program: Path, steps: list[str]) -> None:
    """Runs script.c as a part of the job."""
    text = "\n".join([*steps, ""])
    done = subprocess.run(
        [program], cwd=job.top, env=job.environment(), input=text, text=True, timeout=60, check=False
    )
    assert done.returncode == 0


def check_and_carry(store: Store, log: Path, original: Path, work: Path, target: Path, space: Path) -> None:
    """Compares the log with what differs, and takes it to `target`, which is like `original`."""
    before, after, changes = snapshot(original), snapshot(work), log_changes(log)
    assert differing(before, after) <= with_all_below(covered(changes, work), before)
    carry(store, changes, work, target, space)
    assert snapshot(target) == after


# ---- what files may be ----


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """An empty one."""
    return Store.open(tmp_path / "store", threads=0)


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A job's directory."""
    fill(tmp_path / "work")
    return Path(os.path.realpath(tmp_path)) / "work"


def all_of(top: Path) -> dict[str, Change]:
    """As if the job had made everything below `top`."""
    return {str(path): Change(existed=False) for path in top.rglob("*")}


def test_every_kind_of_file_comes_back(store: Store, work: Path, tmp_path: Path) -> None:
    """Contents, holes, modes, times, hard and symbolic links, pipes and names that are no text come back."""
    with open(work / "sparse", "wb") as file:
        file.seek(1 << 24)
        file.write(b"far")
        file.truncate(1 << 25)
    (work / "large").write_bytes(os.urandom(1 << 20) * 3)
    (work / "large").chmod(0o4755)
    os.utime(work / "large", ns=(5, 123456789123456789))
    os.link(work / "large", work / "d" / "same")
    os.mkfifo(work / "pipe", 0o640)
    Path(os.fsdecode(os.fsencode(work) + b"/no-t\xffext\n")).write_bytes(b"1")
    os.utime(work / "to-old", ns=(6, 7), follow_symlinks=False)
    (work / "empty").chmod(0o1777)
    os.utime(work / "empty", ns=(8, 9))
    target = tmp_path / "target"
    target.mkdir()
    carry(store, all_of(work), work, target, tmp_path / "space")
    assert snapshot(target) == snapshot(work)
    assert (target / "empty").stat().st_mtime_ns == 9
    assert (target / "sparse").stat().st_blocks < 1 << 12
    assert not list(target.rglob(".singularity*"))


def test_extended_attributes_come_back(store: Store, work: Path, tmp_path: Path) -> None:
    """Those of users travel with files and directories, and go where the job removed them."""
    target = copy_tree(work, tmp_path / "target")
    try:
        os.setxattr(work / "old", "user.a", b"1")
        os.setxattr(work / "d", "user.b", b"2")
        os.setxattr(target / "empty", "user.c", b"3")
    except OSError:
        pytest.skip("the file system has no user attributes")
    carry(store, all_of(work), work, target, tmp_path / "space")
    assert snapshot(target) == snapshot(work)


def test_the_same_files_cost_nothing_again(store: Store, work: Path) -> None:
    """A second checkpoint of many small files stores those that changed, not their neighbours."""
    for number in range(200):
        (work / f"f{number}").write_bytes(os.urandom(20000))
    first, _ = store_changes(store, all_of(work))
    (work / "f7").write_bytes(os.urandom(10000))
    (work / "f7-new").write_bytes(b"new")
    second, _ = store_changes(store, all_of(work))
    new = [chunk for each in second.objects for chunk in each.chunks if chunk.owner == second.checkpoint]
    assert sum(chunk.size for chunk in new) < 200 * 20000 / 3
    assert first.checkpoint != second.checkpoint


def test_shared_mounts_are_left_alone(store: Store, work: Path, tmp_path: Path) -> None:
    """What lies in an excluded directory is neither carried nor removed, also where a directory above it is
    replaced as a whole."""
    target = copy_tree(work, tmp_path / "target")
    (work / "d" / "shared").mkdir()
    (work / "d" / "shared" / "theirs").write_text("1")
    (target / "d" / "shared").mkdir()
    (target / "d" / "shared" / "kept").write_text("2")
    (target / "d" / "goes").write_text("3")
    changes = {str(work / "d"): Change(existed=False, tree=True)}
    manifest, files = store_changes(store, changes, excludes=Excludes([str(work / "d" / "shared")]))
    assert not any(path.endswith("theirs") for path in files.paths)
    restore(store, manifest.checkpoint, tmp_path, PathMapping([(str(work), str(target))]))
    assert sorted(os.listdir(target / "d")) == ["shared", "x"]
    assert os.listdir(target / "d" / "shared") == ["kept"]


def restore(store: Store, checkpoint: str, tmp_path: Path, mapping: PathMapping | None = None) -> None:
    """A restore with a workspace of this test's."""
    with store.read(checkpoint) as reader:
        restore_files(reader, workspace=tmp_path / "space", mapping=mapping)


# ---- what processes have open ----


def test_open_for_appending_is_cut(store: Store, work: Path, tmp_path: Path) -> None:
    """A log that went on after the checkpoint is cut to its size at the cut, as the same file, carried or
    not; another file of that name is replaced, and on a shared mount it is named."""
    shared = tmp_path / "shared"
    shared.mkdir()
    for log in (work / "log", shared / "log"):
        log.write_text("first\n")
    opened = {str(log): OpenFile(str(log), True, True, "test") for log in (work / "log", shared / "log")}
    manifest, files = store_changes(store, {}, opened, Excludes([str(shared)]))
    assert files.paths == [str(work / "log")]
    inodes = [(folder / "log").stat().st_ino for folder in (work, shared)]
    for folder in (work, shared):
        with open(folder / "log", "a") as file:
            file.write("second\n")
    restore(store, manifest.checkpoint, tmp_path)
    assert [(folder / "log").read_text() for folder in (work, shared)] == ["first\n"] * 2
    assert [(folder / "log").stat().st_ino for folder in (work, shared)] == inodes
    (work / "log").write_text("another\n")
    restore(store, manifest.checkpoint, tmp_path)
    assert (work / "log").read_text() == "first\n"
    (shared / "log").write_text("another\n")
    with pytest.raises(HostFilesDifferError, match="does not begin with what it held"):
        restore(store, manifest.checkpoint, tmp_path)


def test_a_file_that_is_only_used_must_be_the_same(store: Store, work: Path, tmp_path: Path) -> None:
    """A library that is another one where the job is restored is named, with who uses it, and nothing is
    changed; so is one that is missing."""
    (work / "library").write_text("version 1")
    opened = {str(work / "library"): OpenFile(str(work / "library"), why="process 7 has it mapped")}
    manifest, _ = store_changes(store, {str(work / "old"): Change(existed=True)}, opened)
    restore(store, manifest.checkpoint, tmp_path)
    for spoil in ((work / "library").write_text, lambda text: (work / "library").unlink()):
        (work / "old").write_text("something else")
        spoil("version 2")
        before = snapshot(work)
        with pytest.raises(HostFilesDifferError, match=r"library.*process 7 has it mapped"):
            restore(store, manifest.checkpoint, tmp_path)
        assert snapshot(work) == before


def test_a_file_that_others_write_to_is_refused(
    store: Store, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that changes while it is copied would come back torn: the checkpoint fails and names it."""
    real = os.pread

    def meddle(descriptor: int, count: int, offset: int) -> bytes:
        with open(work / "old", "a") as file:
            file.write("more")
        return real(descriptor, count, offset)

    monkeypatch.setattr(os, "pread", meddle)
    with pytest.raises(FileCaptureError, match="old changed while it was copied"):
        store_changes(store, {str(work / "old"): Change(existed=True)})


def test_what_is_altered_after_the_cut_is_not_taken_for_what_the_job_saw(
    store: Store, work: Path, tmp_path: Path
) -> None:
    """Files that are only used are hashed when the job runs on: one that was appended to, rewritten or
    replaced by then is named; a log that is to be cut may have grown, and counts as it was."""
    library, log = work / "library", tmp_path / "shared" / "log"
    log.parent.mkdir()
    log.write_text("first\n")
    opened = {str(library): OpenFile(str(library), why="process 7 has it mapped")}
    opened[str(log)] = OpenFile(str(log), True, True, "process 7 writes it")

    def rewrite(path: Path) -> None:
        path.write_text("version 2")

    def append(path: Path) -> None:
        with open(path, "a") as file:
            file.write("more")

    def replace(path: Path) -> None:
        (work / "other").write_text("version 1")
        os.replace(work / "other", path)

    def shorten(path: Path) -> None:
        os.truncate(path, 3)

    def leave(path: Path) -> None:
        os.link(path, work / "another-name")  # as package managers do

    for spoiled, spoil, well in (
        *((library, each, False) for each in (rewrite, append, replace, Path.unlink)),
        *((log, each, False) for each in (replace, shorten)),
        (library, leave, True),
        (log, append, True),
    ):
        library.write_text("version 1")
        os.utime(library, ns=(1, 1))
        with store.write("job") as writer:
            captured = capture_files(writer, {}, opened, excludes=Excludes([str(log.parent)]))
            size = log.stat().st_size
            spoil(spoiled)
            if well:
                files = captured.finish(writer, FileDigests())
                assert [each.size for each in (*files.needed, *files.truncated)] == [9, size]
            else:
                with pytest.raises(FileCaptureError, match=f"{spoiled.name} is in use .process 7"):
                    captured.finish(writer, FileDigests())


def test_a_hole_that_cannot_be_told_is_no_hole(
    store: Store, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that fails when it is asked where a file has data makes the checkpoint fail, instead of zeroes
    being stored."""

    def fail(*_: object) -> int:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "lseek", fail)
    with pytest.raises(FileCaptureError, match="old, which the job changed, cannot be read: Input/output"):
        store_changes(store, {str(work / "old"): Change(existed=True)})


def test_later_changes_are_told_apart(store: Store, work: Path) -> None:
    """A job that is set back: what it made since can go, what it altered since is named."""
    _, files = store_changes(
        store, {str(work / "old"): Change(True), str(work / "d"): Change(True, tree=True)}
    )
    later = {
        str(work / "old"): Change(True),
        str(work / "d" / "y"): Change(False),
        str(work / "new"): Change(False),
        str(work / "to-old"): Change(True),
        "/dev/shm/x": Change(False),
    }
    assert since_checkpoint(files, later, Excludes()) == Since((str(work / "new"),), (str(work / "to-old"),))
