"""A proxy with two doors: what ranks that come through different ones share, and what they do not."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from singularity_core.proxy.process import parse_arguments

from ..sanitizers import PREFIX, SLOW
from .conftest import StubProxy, environment, stub_proxy

FULL_BYTES = 600 << 20
"""For the files of as many sessions as may share a device."""


@pytest.fixture
def doors(programs: Path) -> Iterator[StubProxy]:
    """A stub proxy with two doors."""
    with stub_proxy(programs, 2) as stub:
        yield stub


def both(doors: StubProxy, rank: int, scenario: str) -> subprocess.Popen[str]:
    """A process that comes through both doors."""
    return doors.start(rank, scenario, str(doors.directories[1]), program="doors")


def finish(process: subprocess.Popen[str]) -> None:
    """Waits for a good end."""
    out, err = process.communicate(timeout=60 * SLOW)
    assert process.returncode == 0, out + err


def await_line(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == line + "\n", process.communicate()


@pytest.mark.parametrize("scenario", ["share", "window"])
def test_scenario(doors: StubProxy, scenario: str) -> None:
    """Each scenario of doors.c holds, and afterwards the driver holds nothing."""
    finish(both(doors, 1, scenario))
    doors.await_clean()


def test_one_too_many_is_refused_by_name(doors: StubProxy) -> None:
    """A device serves 64 sessions, whatever doors they came through; the next is refused by name, and comes
    in when one goes."""
    space = os.statvfs("/dev/shm")
    if space.f_bavail * space.f_frsize < FULL_BYTES:
        pytest.skip(f"/dev/shm has not the {FULL_BYTES >> 20} MiB that 64 sessions need")
    finish(both(doors, 1, "full"))
    doors.await_clean()


@pytest.mark.parametrize("door", [0, 1])
def test_each_door_has_a_bell(doors: StubProxy, door: int) -> None:
    """Whoever claims at a door is heard at once, though the proxy looks by itself after longer than the rank
    waits; the session's files lie beside that door."""
    doors.run(1, "reopen", door=door)
    rank = doors.start(1, "until-death", door=door)
    await_line(rank, "waiting")
    found = [sorted(path.name for path in directory.iterdir()) for directory in doors.directories]
    (_, pinned, session) = found[door].pop(found[door].index("door")), *found[door]
    assert pinned.removesuffix(".pinned") == session.removesuffix(".session")
    assert found[1 - door] == ["door"]
    rank.kill()
    doors.await_clean()


def test_death_harms_nobody_at_the_other_door(doors: StubProxy) -> None:
    """A rank that dies in the middle of endless work is buried while one that came through the other door
    works on, and its successor may come through that one."""
    hung = doors.start(1, "hang", door=0)
    await_line(hung, "hanging")
    other = doors.start(2, "threads", "bulk", "posts", door=1)
    hung.kill()
    finish(other)
    doors.run(1, "echo", "bulk", door=1)
    doors.await_clean()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_ranks_at_all_doors_notice_the_end(doors: StubProxy, number: signal.Signals) -> None:
    """Ranks that wait in calls learn that the proxy is gone, whatever door they came through."""
    ranks = [doors.start(rank, "until-death", door=rank % 2) for rank in (1, 2)]
    for rank in ranks:
        await_line(rank, "waiting")
    doors.process.send_signal(number)
    doors.process.wait(timeout=30 * SLOW)
    for rank in ranks:
        finish(rank)
    for path in (path for directory in doors.directories for path in directory.iterdir()):
        assert number == signal.SIGKILL  # what a killed proxy leaves is the launcher's to remove
        path.unlink()


def test_stop_amid_claims(doors: StubProxy) -> None:
    """A proxy that is stopped while ranks come and go at both doors ends in good order and leaves no file,
    and all of them are told."""
    ranks = [both(doors, rank, "knock") for rank in range(1, 5)]
    for rank in ranks:
        await_line(rank, "knocking")
    doors.stop()
    for rank in ranks:
        finish(rank)


def test_sessions_at_all_doors_have_numbers(doors: StubProxy, tmp_path: Path) -> None:
    """Who looks for a session in the server's slots finds those behind each door."""
    ranks = [doors.start(rank, "until-death", door=rank - 1) for rank in (1, 2)]
    for rank in ranks:
        await_line(rank, "waiting")
    for number in (1, 2):
        assert doors.command(f"export {number} {tmp_path / 'log'}") == "done"
    assert doors.command(f"export 3 {tmp_path / 'log'}") == "failed: no such session"
    doors.stop()


def refused(programs: Path, first: Path, *others: Path) -> str:
    """What a proxy says that does not serve these directories."""
    command = [
        *PREFIX, str(programs / "stub_proxy"), str(first), str(programs / "libstub.so"), *map(str, others),
    ]  # fmt: skip
    result = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=30 * SLOW,
        env=environment(),
        stdin=subprocess.DEVNULL,
    )
    assert result.returncode == 69
    return result.stderr


def test_all_doors_or_none(doors: StubProxy) -> None:
    """A proxy that cannot have one of its doors makes none, and lets alone the one that is another's."""
    with tempfile.TemporaryDirectory(prefix="singularity-test-", dir="/dev/shm") as name:
        mine = Path(name)
        said = refused(doors.programs, mine, doors.directories[1])
        assert "is another proxy serving this directory?" in said
        assert list(mine.iterdir()) == []
        (mine / "open").mkdir()
        (mine / "open").chmod(0o755)
        assert "must be a directory of ours with mode 0700" in refused(doors.programs, mine, mine / "open")
        assert [path.name for path in mine.iterdir()] == ["open"]
    doors.run(1, "echo", door=1)


def test_too_many_doors_are_refused(programs: Path, tmp_path: Path) -> None:
    """The number of doors is limited, and the limit is named."""
    said = refused(programs, tmp_path, *[tmp_path] * 128)
    assert said == "stub_proxy: a proxy serves 1 to 128 doors, not 129\n"


def test_command_line_names_doors_in_order() -> None:
    """--directory may come several times; the first is the first door."""
    common = ["--backend", "fake", "--device", "0"]
    found = parse_arguments([*common, "--directory", "/b", "--directory", "/a"])
    assert found.directories == (Path("/b"), Path("/a"))
    with pytest.raises(SystemExit):
        parse_arguments(common)
