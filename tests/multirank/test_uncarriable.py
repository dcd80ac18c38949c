"""What no checkpoint can carry is refused by name, before any harm is done, and the job goes on."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from singularity_core.checkpoint.store import Store

from .jobs import finish, start_job
from .transitions import CONTROL

PROGRAMS = Path(__file__).parent / "programs"


@pytest.fixture
def around(tmp_path: Path) -> Iterator[Callable[[str], None]]:
    """`around(what)` gives a job the other end of what it has, and ends with the test."""
    with ExitStack() as stack:

        def make(what: str) -> None:
            if what == "connection":
                listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
                (tmp_path / "port").write_text(str(listener.getsockname()[1]))
                threading.Thread(target=echo, args=(listener,), daemon=True).start()
            if what == "pipe":
                os.mkfifo(tmp_path / "pipe")
                stack.callback(os.close, os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK))

        yield make


def echo(listener: socket.socket) -> None:
    peer, _ = listener.accept()
    with peer:
        while data := peer.recv(100):
            peer.sendall(data)


HOST = ("--box-network", "host")
CASES = [
    ("uncarried.py", "variable", (), "a module has a variable of its own"),
    ("uncarried.py", "capture", (), "a stream is being captured"),
    ("uncarried.py", "host_function", (), "a host function of it still runs"),
    (
        "uncarriable.py",
        "userfaultfd",
        (),
        "[userfaultfd]) is a kernel object of a kind that cannot be carried",
    ),
    ("uncarriable.py", "pipe", (), "which is not part of the job, holds too"),
    ("uncarriable.py", "connection", HOST, "is a TCP connection (ESTABLISHED)"),
]


@pytest.mark.parametrize(("program", "what", "options", "reason"), CASES, ids=[case[1] for case in CASES])
def test_what_cannot_be_carried_is_refused_by_name(
    program: str,
    what: str,
    options: tuple[str, ...],
    reason: str,
    around: Callable[[str], None],
    movable: None,
    tmp_path: Path,
) -> None:
    """Neither a checkpoint nor a preemption of such a job is taken: the answer says why, nothing is left in
    the store, and the job goes on and succeeds."""
    around(what)
    name, store = f"uncarriable-{os.getpid()}", tmp_path / "store"
    process = start_job(
        PROGRAMS / program, str(tmp_path), what,
        ranks=1, devices=1, options=["--box", f"--rdzv-id={name}", *options],
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while not (tmp_path / "there").exists():
        assert process.poll() is None, finish(process)
        assert time.monotonic() < deadline, "it does not begin"
        time.sleep(0.01)
    for verb in ("checkpoint", "preempt"):
        command = [str(CONTROL), verb, name, "--to", str(store)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        said = done.stdout + done.stderr
        assert done.returncode == 1, said
        assert reason in said
        assert "the job goes on as before" in said
    assert Store.open(str(store)).checkpoints() == []
    (tmp_path / "stop").touch()
    code, _, stderr = finish(process)
    assert code == 0, stderr
