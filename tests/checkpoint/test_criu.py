"""Which CRIU is taken, and why one is not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from singularity_core.checkpoint import criu_trial
from singularity_core.checkpoint.criu import (
    COMMAND_VARIABLE,
    MINIMUM_VERSION,
    CriuFound,
    CriuUnavailableError,
    choose_command,
    find_criu,
    parse_version,
    quote_errors,
)

from ..launched import MARK, processes_with

GOOD_VERSION = 'if [ "$1" = --version ]; then echo "Version: 4.2.1"; echo "GitID: v4.2.1"; exit; fi'
GOOD_CHECK = f'{GOOD_VERSION}\nif [ "$1" = check ]; then echo "Looks good."; exit; fi'
HANG = "sleep 1000 & sleep 1000"
Fake = Callable[[str], Path]


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whatever comes of a test, no process and no temporary file of it remains."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.setenv(MARK, str(tmp_path))
    yield
    until = time.monotonic() + 5  # the kernel ends the processes of a namespace after its first one
    while processes_with(MARK, str(tmp_path)) and time.monotonic() < until:
        time.sleep(0.02)
    left = processes_with(MARK, str(tmp_path))
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert left == {}
    assert list(temporary.iterdir()) == []


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    """`fake(lines)` makes a shell script, which `SINGULARITY_CRIU` then names."""

    def make(lines: str) -> Path:
        script = tmp_path / "criu"
        script.write_text(f"#!/bin/sh\n{lines}\n")
        script.chmod(0o755)
        monkeypatch.setenv(COMMAND_VARIABLE, str(script))
        return script

    return make


@pytest.fixture
def namespaces() -> None:
    """What it takes to try CRIU."""
    box = ["unshare", "--pid", "--fork", "--mount-proc", "--net", "--ipc", "--uts", "true"]
    if os.geteuid() != 0 or subprocess.run(box, stderr=subprocess.DEVNULL, check=False).returncode != 0:
        pytest.skip("needs root and the right to make namespaces")


def refused(deadline_seconds: float = 10) -> CriuUnavailableError:
    """Why the CRIU that the environment leads to is not taken."""
    with pytest.raises(CriuUnavailableError) as caught:
        find_criu(deadline_seconds=deadline_seconds)
    assert caught.value.remedy
    return caught.value


@pytest.mark.parametrize(
    ("output", "version"),
    [
        ("Version: 4.2.1\n", (4, 2, 1)),
        ("Version: 4.2\nGitID: v4.2-12-gabcdef\n", (4, 2)),
        ("Warn  (criu/kerndat.c:1290): no cache\nVersion: 3.17.1\n", (3, 17, 1)),
        ("Version: 10\n", (10,)),
        ("Version: v5.0-rc1\n", (5, 0)),
        ("Version: " + "9" * 5000, None),
        ("Version: four\n", None),
        ("My Version: 4.2\n", None),
        ("Version: ٤.٢\n", None),
        ("", None),
    ],
)
def test_versions_are_read(output: str, version: tuple[int, ...] | None) -> None:
    """A version is read from its own line among others, and nothing else is taken for one."""
    assert parse_version(output) == version


def test_only_errors_are_quoted() -> None:
    """Of a log, the last error lines are quoted, without times, control characters and endless text."""
    log = (
        "(00.1) fine\n" + "".join(f"(00.00{n}) Error (a.c:{n}): bad\x1b\n" for n in range(5)) + "(00.9) end\n"
    )
    assert quote_errors(log) == "Error (a.c:2): bad ; Error (a.c:3): bad ; Error (a.c:4): bad"
    assert quote_errors("(00.1) fine\n") == ""
    assert len(quote_errors("Error " + "x" * 100_000)) < 1000


@pytest.mark.parametrize(
    ("environment", "there", "chosen"),
    [
        ({"SINGULARITY_CRIU": "/n/c", "HOME": "/h", "PATH": "/a"}, {"/n/c", "/a/criu"}, "/n/c"),
        ({"SINGULARITY_CRIU": "", "PATH": "/a"}, {"/a/criu"}, "/a/criu"),
        ({"HOME": "/h", "PATH": "/a"}, {"/h/.local/share/singularity/criu/criu", "/a/criu"},
         "/h/.local/share/singularity/criu/criu"),
        ({"XDG_DATA_HOME": "/x", "HOME": "/h", "PATH": "/a"},
         {"/x/singularity/criu/criu", "/h/.local/share/singularity/criu/criu"}, "/x/singularity/criu/criu"),
        ({"XDG_DATA_HOME": "x", "PATH": "/a"}, {"x/singularity/criu/criu", "/a/criu"}, "/a/criu"),
        ({"HOME": "/h", "PATH": "/a::/b"}, {"/b/criu", "criu"}, "/b/criu"),
    ],
)  # fmt: skip
def test_choice(environment: dict[str, str], there: set[str], chosen: str) -> None:
    """The variable wins over the private prefix, and that over PATH; relative places do not count."""
    assert choose_command(environment, lambda path: str(path) in there) == Path(chosen)


def test_a_named_command_has_no_substitute() -> None:
    """A missing command that the variable names is an error that names it, though PATH has one."""
    with pytest.raises(CriuUnavailableError, match="/no/such/criu") as caught:
        choose_command(
            {"SINGULARITY_CRIU": "/no/such/criu", "PATH": "/a"}, lambda path: path == Path("/a/criu")
        )
    assert COMMAND_VARIABLE in caught.value.remedy


def test_no_command_anywhere() -> None:
    """Where there is none, the remedy says which version to install."""
    with pytest.raises(CriuUnavailableError) as caught:
        choose_command({"PATH": "/a"}, lambda path: False)
    assert caught.value.cause == "There is no CRIU here."
    assert "4.2" in caught.value.remedy


@pytest.mark.parametrize(
    ("lines", "cause"),
    [
        ("echo Version: 3.17.1", "is CRIU 3.17.1, which is too old"),
        ("echo Version: 4.1.1", "is CRIU 4.1.1, which is too old"),
        ("echo hello", "--version ended with 0 (hello), and names no version of CRIU."),
        ("head -c 300000 /dev/urandom", "names no version of CRIU."),
        ("echo 'no vDSO' >&2; exit 3", "--version ended with 3 (no vDSO)."),
    ],
)
def test_what_is_no_usable_criu(fake: Fake, lines: str, cause: str) -> None:
    """An old version, garbage and a failure are told apart, and a flood of output is not repeated."""
    command = fake(lines)
    error = refused()
    assert cause in error.cause
    assert error.cause.startswith(str(command))
    assert len(error.cause) < 1000


def test_what_cannot_be_executed(fake: Fake) -> None:
    """A file that the kernel does not execute is named, with what the kernel says."""
    command = fake("")
    command.write_bytes(b"\x7fnot a program")
    assert refused().cause == f"{command} cannot be run: Exec format error."


def test_users_are_told_that_it_takes_root(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    """For another user than root a good CRIU is refused for that reason, before anything fails."""
    fake(GOOD_VERSION)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    error = refused()
    assert "user 1000: that takes root" in error.cause
    assert error.remedy == "Run as root."


@pytest.mark.usefixtures("namespaces")
@pytest.mark.parametrize(
    ("lines", "cause"),
    [
        (f"{GOOD_VERSION}\necho Error: no right; exit 1", "check ended with 1 (Error: no right)"),
        (f"{GOOD_CHECK}\necho '(00.1) Error (sk.c:1): no sockets' >$3/$1.log; exit 1",
         "'dump', ended with 1 (criu dump ended with 1); the log says: Error (sk.c:1): no sockets."),
        (f"{GOOD_CHECK}\n[ $1 = dump ] && kill -9 $9 && exit\necho 'Error (x.c:1): pid' >$3/$1.log; exit 2",
         "'restore', ended with 1 (criu restore ended with 2); the log says: Error (x.c:1): pid."),
        (f"{GOOD_CHECK}\n[ $1 = dump ] && kill -9 $9 && exit\n"
         f"{sys.executable} -I {criu_trial.__file__} victim >/dev/null 2>&1 &",
         "'restore', ended with 1 (the listener counts 1 where 2 is due)."),
    ],
    ids=["check", "dump", "restore", "impostor"],
)  # fmt: skip
def test_what_fails_here(fake: Fake, lines: str, cause: str) -> None:
    """A failing check, dump or restore is told with what CRIU said; a fresh process is no restored one."""
    fake(lines)
    assert cause in refused().cause


def test_a_hanging_command_is_killed(fake: Fake) -> None:
    """At its deadline a command is killed with its children, and the cause says so."""
    fake(HANG)
    began = time.monotonic()
    assert "--version did not end within 0.3 s" in refused(0.3).cause
    assert time.monotonic() - began < 60


@pytest.mark.usefixtures("namespaces")
@pytest.mark.parametrize(
    ("lines", "cause"),
    [
        (f"{GOOD_VERSION}\n{HANG}", "check did not end within 3 s"),
        (f"{GOOD_CHECK}\nsetsid {HANG}", "'dump', did not end within 3 s"),
        (f"{GOOD_CHECK}\n[ $1 = restore ] || kill -9 $9", "'restore', did not end within 3 s"),
    ],
    ids=["check", "dump", "nobody listens"],
)
def test_a_hanging_trial_is_killed(fake: Fake, lines: str, cause: str) -> None:
    """At its deadline a trial is killed with all its processes, also those in sessions of their own."""
    fake(lines)
    began = time.monotonic()
    assert cause in refused(3).cause  # seconds: it must come to that step also on a busy machine
    assert time.monotonic() - began < 60


def test_no_room_for_images(fake: Fake, monkeypatch: pytest.MonkeyPatch, namespaces: None) -> None:
    """Where no temporary directory can be made, that is the cause, with its remedy."""
    fake(GOOD_CHECK)
    with monkeypatch.context() as patched:
        patched.setattr(tempfile, "tempdir", "/no/such/place")
        error = refused()
    assert "/no/such/place" in error.cause
    assert "TMPDIR" in error.remedy


@pytest.mark.usefixtures("namespaces")
def test_the_real_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A real CRIU dumps and restores a listener, twice in a row."""
    none = "no CRIU >= 4.2: .ci/get-criu fetches one"
    try:
        command = choose_command(os.environ)
    except CriuUnavailableError as error:
        pytest.skip(f"{none} ({error.cause})")
    asked = subprocess.run([command, "--version"], capture_output=True, text=True, timeout=60, check=False)
    version = parse_version(asked.stdout)
    if version is None or version < MINIMUM_VERSION:
        pytest.skip(f"{none} ({command} is {version})")
    found = CriuFound(command, ".".join(map(str, version)))
    assert [find_criu(), find_criu()] == [found, found]
