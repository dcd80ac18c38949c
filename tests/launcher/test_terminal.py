"""Whoever does not read the launcher's output delays neither the launcher nor what becomes of the job."""

from __future__ import annotations

import os
import pty
import selectors
import socket
import tty
from collections.abc import Callable, Iterator

import pytest

from singularity_core.launcher.terminal import MOST_BACKLOG, Terminal

from .conftest import Launcher, wait_for
from .test_control import control

MUCH = b"".join(b"%09d\n" % number for number in range(300_000))
"""More than a pipe and the backlog hold."""


def _pipe() -> tuple[int, int]:
    return os.pipe()


def _socket() -> tuple[int, int]:
    ours, theirs = socket.socketpair()
    return ours.detach(), theirs.detach()


def _pty() -> tuple[int, int]:
    ours, theirs = pty.openpty()
    tty.setraw(theirs)  # bytes as they are
    return ours, theirs


@pytest.fixture(params=[_pipe, _socket, _pty])
def ends(request: pytest.FixtureRequest) -> Iterator[tuple[int, int]]:
    """Where the reader reads, and the launcher's descriptor."""
    make: Callable[[], tuple[int, int]] = request.param
    ours, theirs = make()
    yield ours, theirs
    for descriptor in (ours, theirs):
        try:
            os.close(descriptor)
        except OSError:
            continue


def test_writing_never_waits(ends: tuple[int, int]) -> None:
    """What nobody reads waits in the backlog, `full` says when it is enough, and later all comes in order;
    the descriptor keeps its mode, which other processes share."""
    ours, theirs = ends
    selector, told = selectors.DefaultSelector(), []
    terminal = Terminal(theirs)
    terminal.attach(selector)
    taken = 0
    while not terminal.full:
        terminal.write(MUCH[taken : taken + 65536])
        taken += 65536
    terminal.when_room(lambda: told.append(terminal.full))
    assert os.get_blocking(theirs)
    assert selector.select(0) == []
    assert told == []
    received = bytearray()
    while len(received) < taken:
        received += os.read(ours, 65536)
        for key, _ in selector.select(0):
            key.data()
    assert received == MUCH[:taken]
    assert told == [False]
    assert not selector.get_map()
    terminal.detach()
    terminal.drain(None)


def test_reader_that_goes(ends: tuple[int, int]) -> None:
    """When nobody can read any more, what is written is dropped, and who waits for room goes on."""
    ours, theirs = ends
    selector, told = selectors.DefaultSelector(), []
    terminal = Terminal(theirs)
    terminal.attach(selector)
    terminal.write(MUCH)
    assert terminal.full
    terminal.when_room(lambda: told.append(True))
    os.close(ours)
    for key, _ in selector.select(60):
        key.data()
    assert told == [True]
    terminal.write(MUCH)
    assert not terminal.full
    terminal.detach()


def test_patience_ends(ends: tuple[int, int]) -> None:
    """A drain with an end to its patience forgets what nobody takes."""
    _, theirs = ends
    terminal = Terminal(theirs)
    terminal.attach(selectors.DefaultSelector())
    terminal.write(MUCH)
    terminal.detach()
    terminal.drain(0.01)
    assert not terminal.full


TALK = """
import os, pathlib, sys
pathlib.Path("up").touch()
sys.stderr.write("".join("%09d\\n" % number for number in range(300_000)))
sys.stderr.flush()
pathlib.Path("said").touch()
"""


def test_nobody_reads(launcher: Launcher) -> None:
    """While nobody reads the launcher's stderr, and a rank writes more than fits, `status` is answered and
    SIGTERM ends job and launcher."""
    process = launcher.start("--rdzv-id", "unread", "--grace-seconds", "0.1", launcher.script(TALK))
    wait_for(lambda: (launcher.folder / "up").exists(), "the rank")
    # twice what a pipe and the backlog hold: it cannot be done while nobody reads
    done = control("status", "unread")
    assert done.returncode == 0, done.stderr
    assert not (launcher.folder / "said").exists()
    process.terminate()
    assert process.wait(timeout=60) == 143
    assert launcher.leftovers() == []


def test_late_reader_gets_all(launcher: Launcher) -> None:
    """Nothing is lost or changes its order when the reader comes late."""
    done = launcher.run(launcher.script(TALK))
    assert done.returncode == 0
    assert done.stderr.encode() == MUCH
    assert len(MUCH) > 2 * MOST_BACKLOG
