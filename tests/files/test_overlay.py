"""What an overlay's upper directory says, and that the log says the same of a busy program."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import traceback
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from singularity_core.checkpoint import Store
from singularity_core.checkpoint.files import log_changes, overlay_changes

from ..sanitizers import SANITIZER
from .conftest import PROGRAMS, Built, Job, make_log
from .trees import carry, copy_tree, covered, snapshot

CLONE_NEWNS = 0x20000
IMPOSSIBLE = 77
pytestmark = pytest.mark.skipif(SANITIZER != "", reason="needs preloading, which sanitizers do not allow")


def in_mount_namespace(body: Callable[[], None]) -> None:
    """Runs `body` in a child with mounts of its own, which go with it.  Skips where that cannot be."""
    pid = os.fork()
    if pid == 0:
        try:
            if ctypes.CDLL(None).unshare(CLONE_NEWNS) or run("mount", "--make-rprivate", "/"):
                os._exit(IMPOSSIBLE)
            body()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code == IMPOSSIBLE:
        pytest.skip("needs root, mount namespaces and overlayfs")
    assert code == 0


def run(*command: str) -> int:
    """A command's exit code."""
    return subprocess.run(command, capture_output=True, check=False, timeout=60).returncode


def fill_lower(lower: Path) -> None:
    """What programs/busy.py expects."""
    for name in ("dir/sub", "gone", "empty", "opaque"):
        (lower / f"lower-{name}").mkdir(parents=True)
    for name in (
        "file",
        "link",
        "mode",
        "time",
        "cut",
        "dir/a",
        "dir/b",
        "dir/sub/c",
        "gone/c",
        "opaque/hidden",
    ):
        (lower / f"lower-{name}").write_text(f"{name}\n" * 1000)
    (lower / "moved-here").mkdir()


class Overlay:
    """A tmpfs with an overlay mounted in it."""

    def __init__(self, space: Path, options: str) -> None:
        if run("mount", "-t", "tmpfs", "none", str(space)):
            os._exit(IMPOSSIBLE)
        fill_lower(space / "lower")
        for name in ("upper", "work", "merged"):
            (space / name).mkdir()
        layers = f"lowerdir={space}/lower,upperdir={space}/upper,workdir={space}/work{options}"
        if run("mount", "-t", "overlay", "none", "-o", layers, str(space / "merged")):
            os._exit(IMPOSSIBLE)
        self.lower, self.upper, self.merged = space / "lower", space / "upper", space / "merged"
        self.original = copy_tree(self.lower, space / "original")


def wheel_in(folder: Path) -> Path:
    """A wheel with one module, one script and no dependencies."""
    wheel, info = folder / "tiny-1.0-py3-none-any.whl", "tiny-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr("tiny.py", "def main():\n    pass\n")
        file.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
        file.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{info}/entry_points.txt", "[console_scripts]\ntiny = tiny:main\n")
        file.writestr(f"{info}/RECORD", "")
    return wheel


@pytest.mark.parametrize("options", ["", ",redirect_dir=on,metacopy=on"], ids=["plain", "redirects"])
def test_log_and_overlay_agree(built: Built, tmp_path: Path, options: str) -> None:
    """A busy program (pip, tempfile, sqlite, numpy, a shell with tar and cp): the log covers all that the
    overlay has, and either, by way of a checkpoint, makes of the lower directory what the program left."""
    wheel = wheel_in(tmp_path)
    (tmp_path / "space").mkdir()

    def body() -> None:
        space = Path(os.path.realpath(tmp_path)) / "space"
        overlay = Overlay(space, options)
        make_log(space / "log")
        job = Job(built, space / "log", overlay.merged)
        job.run(sys.executable, "-P", PROGRAMS / "busy.py", overlay.merged, wheel)
        after = snapshot(overlay.merged)
        assert {"site/tiny.py", "base.db", "renamed/a", "tee2"} <= after.keys()
        by_log, by_overlay = log_changes(space / "log"), overlay_changes(overlay.upper, str(overlay.merged))
        missed = covered(by_overlay, overlay.merged) - covered(by_log, overlay.merged)
        assert {path for path in missed if not (overlay.merged / path).is_dir()} == set()
        store = Store.open(space / "store", threads=0)
        for name, changes in {"log": by_log, "overlay": by_overlay}.items():
            target = copy_tree(overlay.original, space / f"by-{name}")
            carry(store, changes, overlay.merged, target, space / "workspace")
            assert snapshot(target) == after, name

    in_mount_namespace(body)


@pytest.mark.parametrize("options", ["", ",redirect_dir=on,metacopy=on"], ids=["plain", "redirects"])
def test_a_program_that_bypasses_libc_is_seen(built: Built, tmp_path: Path, options: str) -> None:
    """The overlay knows of what a raw system call made, which the log misses, and of a lower directory that
    was replaced by another one of its name."""
    (tmp_path / "space").mkdir()

    def body() -> None:
        overlay = Overlay(Path(os.path.realpath(tmp_path)) / "space", options)
        subprocess.run([built.program("calls"), "c_missed"], cwd=overlay.merged, check=True, timeout=60)
        script = "rm -r lower-opaque; mkdir lower-opaque; mv lower-dir moved-here; chmod 600 moved-here/*/a"
        subprocess.run(["sh", "-ec", script], cwd=overlay.merged, check=False, timeout=60)
        changes = overlay_changes(overlay.upper, str(overlay.merged))
        assert {"new", "lower-opaque"} <= covered(changes, overlay.merged)
        target = copy_tree(overlay.original, overlay.lower.parent / "target")
        store = Store.open(overlay.lower.parent / "store", threads=0)
        carry(store, changes, overlay.merged, target, overlay.lower.parent / "workspace")
        assert snapshot(target) == snapshot(overlay.merged)

    in_mount_namespace(body)
