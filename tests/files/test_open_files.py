"""What processes have open, as /proc says."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from singularity_core.checkpoint.files import OpenFile, ProcessUnreadableError, open_files

HOLDS = """
import mmap, os, sys
read = open("read")
written = open("written", "w")
appended = open("appended", "a")
both, again = open("both", "a"), open("both", "r+")
mapped = open("mapped", "r+b")
shared = mmap.mmap(mapped.fileno(), 0)
mapped.close()
private = open("private", "rb")
kept = mmap.mmap(private.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
private.close()
gone = open("gone", "w")
os.unlink("gone")
pipe, folder, null = os.pipe(), os.open(".", os.O_RDONLY), open("/dev/null", "w")
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[int]:
    """A process that runs HOLDS in `tmp_path`."""
    for name in ("read", "both", "mapped", "private"):
        (tmp_path / name).write_text(name)
    command = [sys.executable, "-P", "-c", HOLDS]
    with subprocess.Popen(command, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield process.pid
        process.kill()


def test_open_and_mapped_files_are_found(holder: int, tmp_path: Path) -> None:
    """Reading, writing, appending and mapping are told apart; what has no name or is no file does not count;
    and the program and its libraries are there."""
    top = os.path.realpath(tmp_path)
    found = open_files([holder])
    here = {os.path.relpath(path, top): each for path, each in found.items() if path.startswith(top)}
    uses = {name: (each.written, each.appended) for name, each in here.items()}
    assert uses == {
        "read": (False, False),
        "written": (True, False),
        "appended": (True, True),
        "both": (True, False),
        "mapped": (True, False),
        "private": (False, False),
    }
    assert f"process {holder} has it open as descriptor" in here["read"].why
    assert os.path.realpath(sys.executable) in found
    assert any("libc.so" in path for path in found)


def test_a_process_that_is_not_there_is_named() -> None:
    """A process that went, or that is somebody else's, is an error that says which."""
    with pytest.raises(ProcessUnreadableError, match="process 4194305"):
        open_files([4194305])


def test_uses_of_several_processes_add_up(holder: int, tmp_path: Path) -> None:
    """A file that one process appends to and another one writes is no log."""
    top = os.path.realpath(tmp_path)
    with open(tmp_path / "appended", "r+"):
        found = open_files([holder, os.getpid()])[f"{top}/appended"]
    assert found == OpenFile(f"{top}/appended", True, False, found.why)
