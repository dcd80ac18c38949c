"""A process that has what no checkpoint can carry: uncarriable.py FOLDER WHAT, with WHAT `connection` (to the
TCP port that FOLDER/port names), `pipe` (FOLDER/pipe, which somebody else reads) or `userfaultfd`.

Creates FOLDER/there when it has it, and at FOLDER/stop looks whether it still works."""

from __future__ import annotations

import ctypes
import os
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

_USERFAULTFD = {"x86_64": 323, "aarch64": 282}


def connection(folder: Path) -> Callable[[], None]:
    """What is sent comes back."""
    peer = socket.create_connection(("127.0.0.1", int((folder / "port").read_text())))

    def look() -> None:
        peer.sendall(b"still here")
        assert peer.recv(10, socket.MSG_WAITALL) == b"still here"

    return look


def pipe(folder: Path) -> Callable[[], None]:
    """What is written can be read."""
    file = (folder / "pipe").open("wb", buffering=0)

    def look() -> None:
        file.write(b"still here")

    return look


def userfaultfd(_: Path) -> Callable[[], None]:
    """It stays open."""
    file = ctypes.CDLL(None, use_errno=True).syscall(_USERFAULTFD[os.uname().machine], os.O_CLOEXEC)
    assert file >= 0, os.strerror(ctypes.get_errno())

    def look() -> None:
        assert os.readlink(f"/proc/self/fd/{file}") == "anon_inode:[userfaultfd]"

    return look


def main() -> None:
    folder, what = Path(sys.argv[1]), sys.argv[2]
    look = {"connection": connection, "pipe": pipe, "userfaultfd": userfaultfd}[what](folder)
    (folder / "there").touch()
    while not (folder / "stop").exists():
        time.sleep(0.005)
    look()


if __name__ == "__main__":
    main()
