"""The library in front of libc: what programs change is in the log, whatever they do to themselves."""

from __future__ import annotations

import os
import re
import signal
import stat
import subprocess
from pathlib import Path

import pytest

from singularity_core.checkpoint import Store
from singularity_core.checkpoint.files import IncompleteFileLogError, log_changes

from ..sanitizers import PREFIX, SANITIZER, SLOW, compile_c, sanitizer_options
from .conftest import PROGRAMS, Built, Job, fill, make_log
from .trees import carry, change_times, copy_tree, covered, differing, snapshot, with_all_below

CASES = re.findall(r"CASE\((c_\w+)\)", (PROGRAMS / "calls.c").read_text())
NOTHING = ("c_open_for_reading", "c_open_refused", "c_devices", "c_memory")
MISSED = ("c_missed",)
plain_only = pytest.mark.skipif(SANITIZER != "", reason="needs preloading, which sanitizers do not allow")


@pytest.mark.parametrize("case", [case for case in CASES if case not in MISSED])
def test_what_a_call_changes_is_noted(job: Job, case: str, tmp_path: Path) -> None:
    """What differs after a call is in the log and nothing else; carried into a copy of the directory as it
    was, it makes it what the directory is."""
    if "xattrs" in case:
        need_xattrs(job.top)
    if SANITIZER and case == "c_small_stack":
        pytest.skip("sanitizers need a larger stack")
    before, times = snapshot(job.top), change_times(job.top)
    copy = copy_tree(job.top, tmp_path / "copy")
    job.run(job.built.program("calls"), case)
    after = snapshot(job.top)
    changed = differing(before, after)
    touched = changed | differing(times, change_times(job.top))
    found = covered(job.changes(), job.top)
    assert changed <= with_all_below(found, before)
    assert found <= touched | {"d", "empty"}
    if case in NOTHING:
        assert found == set()
        assert job.log.read_bytes() == b"" or case == "c_open_refused"
    carry(Store.open(tmp_path / "store", threads=0), job.changes(), job.top, copy, tmp_path / "space")
    assert snapshot(copy) == after


def need_xattrs(folder: Path) -> None:
    """Skips where the file system does not keep users' attributes."""
    try:
        os.setxattr(folder, "user.try", b"")
        os.removexattr(folder, "user.try")
    except OSError:
        pytest.skip("the file system has no user attributes")


@plain_only
def test_a_raw_system_call_is_missed(job: Job) -> None:
    """Who bypasses libc is not noted: an overlay, which a box has not, would show it."""
    job.run(job.built.program("calls"), "c_missed")
    assert (job.top / "new").exists()
    assert job.changes() == {}


def test_a_busy_writer_is_noted_once(job: Job) -> None:
    """A thousand openings of one file make one note."""
    job.run(job.built.program("calls"), "c_busy")
    assert job.log.read_bytes().count(b"\0") == 2


@pytest.mark.parametrize(
    ("case", "reason"),
    [("g_descriptors", "descriptor"), ("g_file_size", "appended"), ("g_chroot", "root directory")],
)
def test_what_could_not_be_noted_is_confessed(job: Job, case: str, reason: str) -> None:
    """Where a note cannot be written the program goes on, and the log says that it is incomplete, and why."""
    job.run(job.built.program("calls"), case)
    with pytest.raises(IncompleteFileLogError, match=f"{reason}.*or resume it"):
        log_changes(job.log)


@plain_only
def test_a_full_log_is_confessed(job: Job) -> None:
    """The same when the file system of the log is full."""
    if os.geteuid() != 0 or subprocess.run(["unshare", "-m", "true"], check=False).returncode:
        pytest.skip("needs root and mount namespaces")
    folder = job.log.parent / "small"
    folder.mkdir()
    log = folder / "files.log"
    script = (
        f"mount -t tmpfs -o size=4k none {folder} && install -m 600 /dev/null {log} && "
        f"head -c 4096 /dev/zero >>{log} && SINGULARITY_FILE_LOG={log} LD_PRELOAD={job.built.library} "
        f"{job.built.program('calls')} c_rename && stat -c %a {log}"
    )
    result = subprocess.run(
        ["unshare", "-m", "sh", "-c", script],
        cwd=job.top,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (result.stdout, result.stderr) == ("700\n", "")


@plain_only
def test_nothing_is_noted_without_a_log(job: Job) -> None:
    """A program that is no part of a job, or of one that is over, runs as ever, and makes no log."""
    job.log.unlink()
    job.run(job.built.program("calls"), "c_temporary")
    job.run("env", "-u", "SINGULARITY_FILE_LOG", job.built.program("calls"), "c_rename")
    assert not job.log.exists()


@plain_only
def test_before_the_first_constructor(job: Job) -> None:
    """A file that is opened before libc's own constructors have run is noted."""
    job.run(job.built.program("early"))
    assert covered(job.changes(), job.top) == {"early"}


@plain_only
def test_killed_anywhere(built: Built, tmp_path: Path) -> None:
    """Killed at any step between a program's calls and the kernel, what it had changed is in the log."""
    killer = built.folder / "libkiller.so"
    compile_c(killer, [PROGRAMS / "killer.c"], "-shared")
    program = built.program("killed")
    step, ended = 0, None
    while ended != 0:
        folder = Path(os.path.realpath(tmp_path)) / str(step)
        fill(folder / "work")
        make_log(folder / "files.log")
        job = Job(built, folder / "files.log", folder / "work")
        before = snapshot(job.top)
        environment = {**job.environment(killer), "KILL_AT": str(step)}
        ended = subprocess.run([program], cwd=job.top, env=environment, timeout=60, check=False).returncode
        assert ended in (0, -signal.SIGKILL)
        changed = differing(before, snapshot(job.top))
        assert changed <= with_all_below(covered(job.changes(), job.top), before), f"killed at step {step}"
        step += 1
    assert step > 50


@plain_only
def test_shells_and_their_children(job: Job, tmp_path: Path) -> None:
    """Redirections, pipes, command substitutions and the programs that a shell starts are noted."""
    before = snapshot(job.top)
    copy = copy_tree(job.top, tmp_path / "copy")
    job.run(
        "sh",
        "-c",
        "echo 1 >out; echo 2 >>out; (cd d && cat x >y; mv y z); cp -a d e; tar cf a.tar e; rm -r e\n"
        "tar xf a.tar; ln -sf out to-old; touch t; install -m 700 out bin; : >old; find d -name z -delete\n"
        "dd if=out of=dd conv=notrunc 2>e/err; mkdir -p p/q/r; rmdir p/q/r; sed -i s/1/3/ out\n"
        "x=$(echo 4 | tee tee)\n"
        "split -n 2 out",
    )
    assert differing(before, snapshot(job.top)) <= with_all_below(covered(job.changes(), job.top), before)
    carry(Store.open(tmp_path / "store", threads=0), job.changes(), job.top, copy, tmp_path / "space")
    assert snapshot(copy) == snapshot(job.top)


def test_threads_agree(built: Built, tmp_path: Path) -> None:
    """Threads that note at once disturb nobody (this is what the thread sanitizer looks at)."""
    fill(tmp_path / "work")
    make_log(tmp_path / "files.log")
    job = Job(built, tmp_path / "files.log", tmp_path / "work")
    result = subprocess.run(
        [*PREFIX, str(built.program("calls")), "c_threads"],
        cwd=job.top,
        env={**job.environment(), **sanitizer_options()},
        timeout=60 * SLOW,
        check=False,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    assert stat.S_IMODE(job.log.stat().st_mode) == 0o600
