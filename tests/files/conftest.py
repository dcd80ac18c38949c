"""Builds the library in front of libc and the programs that it is tried with, plain or under sanitizers."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from singularity_core.checkpoint.files import LOG_VARIABLE, Change, log_changes

from ..sanitizers import PREFIX, ROOT, SANITIZER, SLOW, compile_c, sanitizer_options

PROGRAMS = Path(__file__).parent / "programs"
SOURCES = sorted((ROOT / "interposers" / "files").glob("*.c"))
# as CMakeLists.txt has it
OPTIONS = ("-U_FORTIFY_SOURCE", "-fno-delete-null-pointer-checks")


@dataclass(frozen=True)
class Built:
    """The library, and where the programs lie."""

    folder: Path

    @property
    def library(self) -> Path:
        """What is preloaded."""
        return self.folder / "libsingularity_files.so"

    def program(self, name: str, *options: str) -> Path:
        """One of `programs`, compiled when it is first asked for.  Sanitizers insist on being loaded first,
        so under one the library is linked into the program."""
        out = self.folder / name
        if not out.exists():
            sources = [PROGRAMS / f"{name}.c", *(SOURCES if SANITIZER else [])]
            compile_c(out, sources, "-Wl,-z,now", *OPTIONS, *options)
        return out


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The library, from the sources in the checkout."""
    out = tmp_path_factory.mktemp("files")
    compile_c(out / "libsingularity_files.so", SOURCES, "-shared", "-Wl,-z,defs,-z,now", *OPTIONS)
    return Built(out)


@dataclass(frozen=True)
class Job:
    """Runs programs as parts of a job that keeps a log."""

    built: Built
    log: Path
    top: Path
    """Where they run."""

    def environment(self, *behind: Path) -> dict[str, str]:
        """With the library in front of libc; `behind` are libraries between it and libc."""
        preload = ":".join(map(str, [self.built.library, *behind]))
        return {
            **os.environ,
            LOG_VARIABLE: str(self.log),
            **({} if SANITIZER else {"LD_PRELOAD": preload}),
            **sanitizer_options(asan="detect_leaks=0"),
        }

    def run(self, *command: str | Path, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Runs a command to its end."""
        result = subprocess.run(
            [*PREFIX, *map(str, command)],
            cwd=self.top,
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=60 * SLOW,
        )
        assert result.returncode == 0 or not check, result.stderr + result.stdout
        return result

    def python(self, code: str, *arguments: str) -> None:
        """Runs a Python program."""
        self.run(sys.executable, "-P", "-c", code, *arguments)

    def changes(self) -> dict[str, Change]:
        """By the log, below `top`."""
        return {
            path: change for path, change in log_changes(self.log).items() if path.startswith(f"{self.top}/")
        }


MakeJob = Callable[[Path], Job]


@pytest.fixture
def job(built: Built, tmp_path: Path) -> Job:
    """A job in a directory with a few files."""
    top = Path(os.path.realpath(tmp_path)) / "work"
    fill(top)
    make_log(tmp_path / "files.log")
    return Job(built, tmp_path / "files.log", top)


def make_log(path: Path) -> None:
    """An empty log, as the launcher makes it."""
    path.touch(0o600, exist_ok=False)


def fill(top: Path) -> None:
    """What programs/calls.c expects."""
    (top / "d").mkdir(parents=True)
    (top / "empty").mkdir()
    (top / "old").write_text("old contents")
    (top / "d" / "x").write_text("x contents")
    (top / "to-old").symlink_to("old")
    (top / "to-d").symlink_to("d")
    (top / "dangling").symlink_to("made-behind-link")
