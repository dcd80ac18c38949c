"""More of what a process can have (some is in tests/checkpoint/programs/host_job.py): each function makes one
thing, and answers with what checks it in each round."""

from __future__ import annotations

import asyncio
import ctypes
import importlib
import json
import mmap
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "checkpoint" / "programs"))
from host_job import Part, expect

_WORDS = struct.Struct("=Q")


def named_pipes(place: Path) -> Part:
    """A program (sed) that answers through them."""
    to, back = place / "to", place / "back"
    os.mkfifo(to)
    os.mkfifo(back)
    command = f'exec sed -u "s/^/seen /" < {to} > {back}'
    child = subprocess.Popen(["/bin/sh", "-c", command], env={})
    asked, answered = to.open("w", buffering=1), back.open()

    def play(number: int) -> None:
        asked.write(f"{number}\n")
        expect(answered.readline(), f"seen {number}\n")
        expect(child.poll(), None)

    return play


def removed_directory(place: Path) -> Part:
    """A child whose working directory is gone."""
    where = place / "removed"
    where.mkdir()
    ask, asked = os.pipe()
    answered, answer = os.pipe()
    if os.fork() == 0:
        os.close(asked)
        os.chdir(where)
        where.rmdir()
        os.write(answer, b"!")
        while os.read(ask, 1):
            try:
                os.getcwd()
            except FileNotFoundError:
                os.write(answer, b"gone")
            else:
                os.write(answer, b"here")
        os._exit(0)
    os.close(ask)
    os.close(answer)
    expect(os.read(answered, 1), b"!")

    def play(_: int) -> None:
        os.write(asked, b"?")
        expect(os.read(answered, 4), b"gone")

    return play


def shared_mapping(place: Path) -> Part:
    """A file that is mapped, and one that is mapped and has no name any more."""
    maps = []
    for name in ("mapped", "mapped-nameless"):
        with (place / name).open("w+b") as file:
            file.truncate(1 << 16)
            maps.append(mmap.mmap(file.fileno(), 1 << 16))
    (place / "mapped-nameless").unlink()
    so_far = 0

    def play(number: int) -> None:
        nonlocal so_far
        for each in maps:
            expect(_WORDS.unpack(each[:8])[0], so_far)
            each[:8] = _WORDS.pack(so_far + number)
        so_far += number
        if number % 8 == 0:
            maps[0].flush()

    return play


def event_loop() -> Part:
    """asyncio in a thread: a server on a Unix socket, a client, and a task that only sleeps."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    path = tempfile.mktemp(prefix="server-", dir="/dev/shm")  # of the box; paths of sockets are short
    sleeps = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            writer.write(line[::-1])
            await writer.drain()

    async def sleep() -> None:
        nonlocal sleeps
        while True:
            await asyncio.sleep(0.01)
            sleeps += 1

    async def begin() -> tuple[asyncio.StreamReader, asyncio.StreamWriter, object]:
        server = await asyncio.start_unix_server(serve, path)
        return (*await asyncio.open_unix_connection(path), (server, asyncio.create_task(sleep())))

    reader, writer, kept = asyncio.run_coroutine_threadsafe(begin(), loop).result(60)
    before = 0

    async def ask(number: int) -> bytes:
        writer.write(f"{number}\n".encode())
        return await reader.readexactly(len(str(number)) + 1)

    def play(number: int) -> None:
        nonlocal before
        expect(
            asyncio.run_coroutine_threadsafe(ask(number), loop).result(60), f"\n{str(number)[::-1]}".encode()
        )
        expect(kept is not None and sleeps >= before, True)
        before = sleeps

    return play


def installed_package(place: Path) -> Part:
    """A package that pip installs while the job runs; each round imports another module of it."""
    site = place / "site"
    modules = 64

    def install() -> None:
        wheel = place / "late_package-1.0-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr("late_package/__init__.py", "")
            for number in range(modules):
                archive.writestr(f"late_package/part{number}.py", f"NUMBER = {number}\n")
            info = "late_package-1.0.dist-info"
            archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: late-package\nVersion: 1.0\n")
            archive.writestr(
                f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
            )
            archive.writestr(f"{info}/RECORD", "")
        pip = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--no-compile"]
        subprocess.run([*pip, "--target", str(site), str(wheel)], check=True, stdin=subprocess.DEVNULL)
        sys.path.append(str(site))
        importlib.invalidate_caches()

    def play(number: int) -> None:
        if number == 2:
            install()
        if number >= 2:
            module = importlib.import_module(f"late_package.part{number % modules}")
            expect(module.NUMBER, number % modules)

    return play


def things_made_once(place: Path) -> Part:
    """Each round makes a directory and files that must not be there before: it does not know that it may have
    been here already."""
    held = place / "once"
    held.mkdir()

    def play(number: int) -> None:
        (held / f"directory-{number}").mkdir()
        with (held / f"directory-{number}" / "file").open("x") as file:
            file.write(f"{number}")
        if number > 1:
            os.link(held / f"directory-{number - 1}" / "file", held / f"link-{number}")
            expect((held / f"link-{number}").read_text(), f"{number - 1}")

    return play


def things_that_wait() -> Part:
    """What is on its way from one round to the next: a count, a signal, data that nobody has read, and a
    timer that is far from its end."""
    libc = ctypes.CDLL(None, use_errno=True)
    event = os.eventfd(0)
    timer = libc.timerfd_create(time.CLOCK_MONOTONIC, 0)
    deadline = time.monotonic() + 100_000
    libc.timerfd_settime(timer, 1, struct.pack("=qqqq", 0, 0, int(deadline), 0), None)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
    left, right = socket.socketpair()
    reading, writing = os.pipe()

    def play(number: int) -> None:
        if number > 1:
            expect(os.eventfd_read(event), number - 1)
            expect(signal.sigtimedwait([signal.SIGUSR2], 60).si_signo, signal.SIGUSR2)
            expect(right.recv(8), _WORDS.pack(number - 1))
            expect(os.read(reading, 8), _WORDS.pack(number - 1))
        remains = (ctypes.c_int64 * 4)()
        expect(libc.timerfd_gettime(timer, remains), 0)
        expect(abs(time.monotonic() + remains[2] - deadline) < 600, True)
        os.eventfd_write(event, number)
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR2)
        left.sendall(_WORDS.pack(number))
        os.write(writing, _WORDS.pack(number))

    return play


def openmp(library: str) -> Part:
    """A team of threads of OpenMP (`sum_of` is in openmp.c)."""
    sum_of = ctypes.CDLL(library).sum_of
    sum_of.restype = ctypes.c_longlong

    def play(number: int) -> None:
        expect(sum_of(number), sum(k * number for k in range(1000)))

    return play


def clock(place: Path) -> Part:
    """The monotonic clock never goes back.  When it, or the wall clock, goes on by a second at once,
    PLACE/jumps gets a line with both, in seconds.  A wait of an hour ends when told to, and not before."""
    stop = threading.Event()
    ended: list[bool] = []
    threading.Thread(target=lambda: ended.append(stop.wait(3600.0)), daemon=True).start()

    def tick() -> None:
        monotonic, wall = time.monotonic(), time.time()
        while True:
            time.sleep(0.01)
            now, wall_now = time.monotonic(), time.time()
            if now < monotonic:
                ended.append(True)
            if now - monotonic > 1 or wall_now - wall > 1:
                with (place / "jumps").open("a") as file:
                    file.write(json.dumps([now - monotonic, wall_now - wall]) + "\n")
            monotonic, wall = now, wall_now

    threading.Thread(target=tick, daemon=True).start()

    def play(_: int) -> None:
        expect(ended, [])

    return play
