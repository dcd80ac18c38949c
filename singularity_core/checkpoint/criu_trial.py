"""Dumps and restores a small process that listens on a TCP port: what `criu check` does not try.

`criu.py` runs this file as the first process of new pid, mount and network namespaces: a restored process
gets back the pid and the port that it had, which something else may have taken outside.  When this process
ends, the kernel ends all others in there.  It uses the standard library only and needs no import path."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import struct
import subprocess
import sys
import time

ADDRESS = ("127.0.0.1", 7077)
"""No one else is in this network namespace."""
_SIOCSIFFLAGS = 0x8914
_IFF_UP = 1
_POLL_SECONDS = 0.02


class TrialError(Exception):
    """What did not go as it must."""


def run_trial(criu: str, images: str) -> None:
    """Prints the name of each step as it begins.

    :raises TrialError: CRIU failed, or what it restored is not what it dumped."""
    _raise_loopback()
    _say("start")
    victim = subprocess.Popen(
        [sys.executable, "-I", __file__, "victim"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,  # CRIU dumps whole sessions
    )
    identity = _ask(1)
    _say("dump")
    # Nothing is connected when it dumps, so no lock on the network is needed (most lack iptables anyway).
    _criu(criu, "dump", images, "--tree", str(victim.pid), "--network-lock", "skip")
    victim.wait()  # its pid must be free
    _say("restore")
    _criu(criu, "restore", images, "--restore-detached")
    if _ask(2) != identity:
        raise TrialError("another process answers than the one that was dumped")


def _criu(criu: str, action: str, images: str, *options: str) -> None:
    command = [criu, action, "-D", images, "-v4", "-o", f"{action}.log", "--tcp-established", *options]
    ended = subprocess.run(command, stdin=subprocess.DEVNULL, check=False).returncode
    if ended != 0:
        raise TrialError(f"criu {action} ended with {ended}")


def _ask(expected_count: int) -> str:
    """The listener's identity.  Waits for it without end: who runs this has a deadline."""
    while True:
        try:
            connection = socket.create_connection(ADDRESS)
            break
        except ConnectionRefusedError:
            time.sleep(_POLL_SECONDS)
    with connection, connection.makefile() as answer:
        identity, _, count = answer.read().partition(" ")
    if count != str(expected_count):
        raise TrialError(f"the listener counts {count or 'nothing'} where {expected_count} is due")
    return identity


def _be_victim() -> None:
    """Answers each connection with what only this process knows: a random word, and how many there were."""
    identity = os.urandom(8).hex()
    count = 0
    with socket.create_server(ADDRESS) as listener:
        while True:
            connection, _ = listener.accept()
            count += 1
            with connection:
                connection.sendall(f"{identity} {count}".encode())


def _raise_loopback() -> None:
    """A new network namespace has one, which is down."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", _IFF_UP))


def _say(step: str) -> None:
    print(step, flush=True)


def _main() -> int:
    if sys.argv[1:] == ["victim"]:
        _be_victim()
    criu, images, seconds = sys.argv[1:]
    # Should the one who waits for this be killed.  Without a handler, the first process ignores the signal.
    signal.signal(signal.SIGALRM, lambda *_: os._exit(1))
    signal.setitimer(signal.ITIMER_REAL, float(seconds))
    try:
        run_trial(criu, images)
    except (TrialError, OSError) as error:
        print(error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(_main())
