"""A job that uses about all that a process can have, checks it in each round, and appends the round to a log.

argv: the log, a directory for its other files, and "all" or "small".  A round in which anything is not as it
must be ends the job, with the reason in the log."""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import multiprocessing
import os
import queue
import select
import signal
import socket
import struct
import sys
import threading
import time
import traceback
from collections.abc import Callable
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

Part = Callable[[int], None]
_WORDS = struct.Struct("=Q")


def expect(found: object, wanted: object) -> None:
    """Ends the job if they differ."""
    if found != wanted:
        raise AssertionError(f"{found!r} is not {wanted!r}")


def forked_child_behind_pipes() -> Part:
    """It adds one."""
    ask, asked = os.pipe()
    answered, answer = os.pipe()
    if os.fork() == 0:
        os.close(asked)
        while data := os.read(ask, 8):
            os.write(answer, _WORDS.pack(_WORDS.unpack(data)[0] + 1))
        os._exit(0)
    os.close(ask)
    os.close(answer)

    def play(number: int) -> None:
        os.write(asked, _WORDS.pack(number))
        expect(_WORDS.unpack(os.read(answered, 8))[0], number + 1)

    return play


def _multiply(inbox: Any, outbox: Any, lock: Any, gate: Any, name: str, value: Any) -> None:
    shared = SharedMemory(name)
    while True:
        number = inbox.get()
        gate.acquire()
        with lock:
            shared.buf[:8] = _WORDS.pack(number * 2)
            value.value = number * 3
        outbox.put(number * 5)


def multiprocessing_child(method: str = "fork") -> Part:
    """Queues, a lock, a semaphore, named and anonymous shared memory."""
    context: Any = multiprocessing.get_context(method)
    inbox, outbox = context.Queue(), context.SimpleQueue()
    lock, gate, value = context.Lock(), context.Semaphore(0), context.Value("Q", 0)
    shared = SharedMemory(create=True, size=1 << 16)
    context.Process(
        target=_multiply, args=(inbox, outbox, lock, gate, shared.name, value), daemon=True
    ).start()

    def play(number: int) -> None:
        inbox.put(number)
        gate.release()
        expect(outbox.get(), number * 5)
        with lock:
            expect((_WORDS.unpack(shared.buf[:8])[0], value.value), (number * 2, number * 3))

    return play


def connected_child() -> Part:
    """A TCP connection over which hashes come back; the listener stays."""
    listener = socket.create_server(("127.0.0.1", 0))
    if os.fork() == 0:
        with socket.create_connection(listener.getsockname()) as connection:
            while data := connection.recv(8):
                connection.sendall(hashlib.sha256(data).digest())
        os._exit(0)
    connection, _ = listener.accept()

    def play(number: int) -> None:
        data = _WORDS.pack(number)
        connection.sendall(data)
        expect(connection.recv(32, socket.MSG_WAITALL), hashlib.sha256(data).digest())

    return play


def events() -> Part:
    """An eventfd, a timerfd, a signalfd and a Unix socket pair, all waited for with epoll."""
    libc = ctypes.CDLL(None, use_errno=True)
    event = os.eventfd(0)
    timer = libc.timerfd_create(time.CLOCK_MONOTONIC, 0)
    mask = (ctypes.c_ulong * 16)(1 << (signal.SIGUSR1 - 1))
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    signals = libc.signalfd(-1, mask, 0)
    left, right = socket.socketpair()
    poll = select.epoll()
    for descriptor in (event, timer, signals, right.fileno()):
        poll.register(descriptor, select.EPOLLIN)

    def wait(descriptor: int) -> None:
        expect(poll.poll(60), [(descriptor, select.EPOLLIN)])

    def play(number: int) -> None:
        os.eventfd_write(event, number)
        wait(event)
        expect(os.eventfd_read(event), number)
        libc.timerfd_settime(timer, 0, struct.pack("=qqqq", 0, 0, 0, 1_000_000), None)
        wait(timer)
        expect(os.read(timer, 8), _WORDS.pack(1))
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)
        wait(signals)
        expect(struct.unpack_from("=I", os.read(signals, 128))[0], signal.SIGUSR1)
        left.sendall(_WORDS.pack(number))
        wait(right.fileno())
        expect(right.recv(8), _WORDS.pack(number))

    return play


def threads() -> Part:
    """One that counts on its own, and one that is asked."""
    asked: queue.Queue[int] = queue.Queue()
    answered: queue.Queue[int] = queue.Queue()

    def serve() -> None:
        while True:
            answered.put(asked.get() ^ 0xFF)

    threading.Thread(target=serve, daemon=True).start()

    def play(number: int) -> None:
        asked.put(number)
        expect(answered.get(timeout=60), number ^ 0xFF)

    return play


def nameless_file(place: Path) -> Part:
    """Deleted and still open; its contents grow with the rounds.  And one that is locked."""
    path = place / "nameless"
    file = path.open("w+b")
    path.unlink()
    locked = (place / "locked").open("w")
    fcntl.flock(locked, fcntl.LOCK_EX)
    so_far = hashlib.sha256()

    def play(number: int) -> None:
        file.seek(0, os.SEEK_END)
        file.write(_WORDS.pack(number))
        so_far.update(_WORDS.pack(number))
        file.flush()
        file.seek(0)
        expect(hashlib.sha256(file.read()).digest(), so_far.digest())
        expect(locked.closed, False)
        with (place / "locked").open("w") as other:
            try:
                fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return
            raise AssertionError("the lock is gone")

    return play


def memory(place: Path) -> Part:
    """Pages that stay as they are, some that change, and a file that is only read."""
    (place / "constants").write_bytes(_WORDS.pack(4711))
    constants = (place / "constants").open("rb", buffering=0)
    kept = bytearray(hashlib.shake_256(b"kept").digest(4 << 20))
    digest = hashlib.sha256(kept).digest()
    changing = bytearray(4 << 12)

    def play(number: int) -> None:
        changing[:8] = _WORDS.pack(number)
        constants.seek(0)
        expect(constants.read(), _WORDS.pack(4711))
        if number % 16 == 0:
            expect(hashlib.sha256(kept).digest(), digest)

    return play


def main() -> None:
    """Rounds without end."""
    log_path, place, extent = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    parts = [forked_child_behind_pipes(), memory(place)]
    if extent == "all":
        parts += [multiprocessing_child(), connected_child(), events(), nameless_file(place), threads()]
    number = 1
    with open(log_path, "a", buffering=1) as log:
        try:
            while True:
                for part in parts:
                    part(number)
                log.write(f"{number}\n")
                print(number, flush=True)
                number += 1
                time.sleep(0.005)  # leave some of the machine to the others
        except BaseException:
            log.write(traceback.format_exc())
            raise


if __name__ == "__main__":
    main()
