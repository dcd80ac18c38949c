"""Starts the ranks inside the box, and becomes their keeper (keeper.c) by exec when all are there.

The ranks must be children of a process that is dumped with them; starting them takes Python's comfort, being
their parent does not."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
from pathlib import Path

from ..launcher.processes import become_subreaper
from . import system_calls as kernel
from .messages import Channel, ChannelClosedError, NotStarted, Plan, Seal, Started, StartRank

KEEPER = Path(__file__).parent.parent / "lib" / "box" / "sg-keeper"

_IO_URING_SETUP = 425
"""The same number on all architectures but one that is no more."""
_X32_BIT = 0x40000000
_LOAD_WORD, _AND, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x54, 0x15, 0x06
_ALLOW, _FAIL = 0x7FFF0000, 0x00050000


def io_uring_filter() -> list[bytes]:
    """io_uring_setup answers ENOSYS, as on a kernel without it, because CRIU cannot dump its rings; programs
    do without then."""
    return [
        kernel.bpf(_LOAD_WORD, 0),  # seccomp_data.nr
        kernel.bpf(_AND, ~_X32_BIT & 0xFFFFFFFF),
        kernel.bpf(_JUMP_IF_EQUAL, _IO_URING_SETUP, 0, 1),
        kernel.bpf(_RETURN, _FAIL | errno.ENOSYS),
        kernel.bpf(_RETURN, _ALLOW),
    ]


def run_starter(channel: Channel, plan: Plan, endings: bytes) -> None:
    """The process's whole life as a starter; returns only when the launcher is gone."""
    os.setsid()  # CRIU dumps whole sessions
    become_subreaper()  # orphans of ranks are dumped with them
    if plan.fixed_addresses:
        kernel.fix_address_layout()
    kernel.install_filter(io_uring_filter())
    stdin = _open_stdin()
    processes = []  # kept: Python would reap those that it forgets
    try:
        while isinstance(message := channel.receive(StartRank, Seal), StartRank):
            processes.append(_start(channel, message, stdin))
    except ChannelClosedError:
        return
    channel.close()
    _become_keeper(endings)


def _start(channel: Channel, message: StartRank, stdin: int) -> subprocess.Popen[bytes] | None:
    """Each rank leads a session, has its own log files, and shares the launcher's standard input."""
    opened = []
    try:
        for path in (message.stdout, message.stderr):
            opened.append(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666))
        process = subprocess.Popen(
            message.command,
            env=dict(message.environment),
            stdin=stdin,
            stdout=opened[0],
            stderr=opened[1],
            start_new_session=True,
        )
        pidfd = os.pidfd_open(process.pid)
        channel.send(Started(process.pid), [pidfd])
        os.close(pidfd)
        return process
    except OSError as error:
        channel.send(NotStarted(error.errno or 0, os.fsencode(error.filename or b"")))
        return None
    finally:
        for descriptor in opened:
            os.close(descriptor)


def _open_stdin() -> int:
    """The launcher's standard input; a file is opened once more, for CRIU knows only what was opened in the
    box.  A terminal is not in the box: from it there is nothing to read."""
    nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    try:
        found = os.fstat(0)
    except OSError:  # closed
        return nothing
    if stat.S_ISCHR(found.st_mode):
        return nothing if os.isatty(0) or found.st_rdev == os.fstat(nothing).st_rdev else 0
    if not stat.S_ISREG(found.st_mode):
        return 0
    try:
        again = os.open(os.readlink("/proc/self/fd/0"), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:  # deleted
        return 0
    reopened = os.fstat(again)
    if (reopened.st_dev, reopened.st_ino) != (found.st_dev, found.st_ino):
        return 0
    os.lseek(again, os.lseek(0, 0, os.SEEK_CUR), os.SEEK_SET)
    return again


def _become_keeper(endings: bytes) -> None:
    pipe = os.open(endings, os.O_WRONLY)
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    messages = os.dup(2)
    os.chdir("/")
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    os.set_inheritable(pipe, True)
    try:
        os.execv(KEEPER, [KEEPER.name, str(pipe)])
    except OSError:
        os.dup2(messages, 2)  # for who tells of it
        raise
