"""The agent serves its clients between the events of its loop, and none of them can disturb it."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from singularity_core.barrier.interface import CutState
from singularity_core.launcher import agent as agent_module
from singularity_core.launcher.agent import MOST_CLIENTS, PATIENCE_SECONDS, Agent
from singularity_core.launcher.agent_messages import (
    LONGEST_REQUEST,
    JobStatus,
    LogPaths,
    PauseRequest,
    RankStatus,
    StatusRequest,
    encode,
)
from singularity_core.launcher.checkpointing import Checkpointing
from singularity_core.launcher.pausing import Pausing
from singularity_core.launcher.resizing import Resizing

from .test_checkpointing import Steps as CheckpointSteps
from .test_pausing import FakeCut
from .test_resizing import Steps

STATUS = encode(StatusRequest())


class Loop:
    """A loop with an agent in it, whose time stands still unless told."""

    def __init__(self, folder: Path) -> None:
        self.now = 0.0
        self.ranks = 1
        self.selector = selectors.DefaultSelector()
        self.cut = FakeCut()
        self.pausing = Pausing("starting")
        self.pausing.enable(lambda: self.cut)
        self.path = folder / "agent"
        self.agent = Agent(
            folder,
            self.selector,
            self.pausing,
            Resizing(self.pausing, Steps(self.cut)),
            Checkpointing(self.pausing, CheckpointSteps(self.cut)),
            status=self._status,
            logs=lambda: LogPaths(job="j", ranks=[]),
            clock=lambda: self.now,
        )
        self.sockets: list[socket.socket] = []

    def _status(self) -> JobStatus:
        if self.ranks < 0:
            raise OSError("the directory is gone")
        rank = RankStatus(rank=0, device=0, pid=1, state="running", counters=None, device_fraction=None)
        return JobStatus(
            job="j", run_id="r", backend="b", launcher_pid=1, state="running", elapsed_seconds=1.0, reached=0,
            waiting=[], ranks=[rank] * self.ranks, proxies=[],
        )  # fmt: skip

    def connect(self) -> socket.socket:
        """A client of the agent, which never blocks."""
        client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        client.connect(str(self.path))
        client.setblocking(False)
        self.sockets.append(client)
        return client

    def turn(self) -> None:
        """Serves events until there are none."""
        self.agent.tick()
        while events := self.selector.select(0):
            for key, _ in events:
                key.data()
            self.agent.tick()
        self.agent.tick()

    def answer(self, client: socket.socket) -> Any:
        """The one answer to `client`; None when the agent closed without one."""
        received = b""
        while True:
            self.turn()
            try:
                data = client.recv(1 << 20)
            except ConnectionResetError:
                data = b""
            received += data
            if not data:
                break
        assert received == b"" or received.index(b"\n") == len(received) - 1
        return json.loads(received) if received else None

    def ask(self, request: bytes) -> Any:
        """Sends a request on a new connection, and returns the answer."""
        client = self.connect()
        client.send(request)
        return self.answer(client)

    def silent(self, client: socket.socket) -> bool:
        """Whether the connection is open and nothing has come."""
        self.turn()
        try:
            client.recv(1)
        except BlockingIOError:
            return True
        return False


@pytest.fixture
def loop(tmp_path: Path) -> Iterator[Loop]:
    """A loop whose descriptors are all closed at the end."""
    before = len(os.listdir("/proc/self/fd"))
    loop = Loop(tmp_path)
    yield loop
    for client in loop.sockets:
        client.close()
    loop.agent.close()
    assert not loop.selector.get_map()
    loop.selector.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_socket_is_private(loop: Loop) -> None:
    """The socket's mode is 0600."""
    assert stat.S_IMODE(loop.path.stat().st_mode) == 0o600
    assert stat.S_ISSOCK(loop.path.stat().st_mode)


def test_status(loop: Loop) -> None:
    """One line of JSON each way, both with the protocol's version, and then the connection ends."""
    reply = loop.ask(b'{"schema_version": 1, "verb": "status"}\n')
    assert (reply["schema_version"], reply["kind"], reply["job"]) == (1, "status", "j")


def test_request_in_pieces(loop: Loop) -> None:
    """A request may come byte by byte."""
    client = loop.connect()
    for byte in STATUS[:-1]:
        client.send(bytes([byte]))
        assert loop.silent(client)
    client.send(b"\n")
    assert loop.answer(client)["kind"] == "status"


def test_client_that_closes_its_sending_side(loop: Loop) -> None:
    """A client may say that it sends nothing more, and still gets its answer."""
    client = loop.connect()
    client.send(STATUS)
    client.shutdown(socket.SHUT_WR)
    assert loop.answer(client)["kind"] == "status"


@pytest.mark.parametrize(
    ("request_line", "said"),
    [
        (b"\n", "not understood"),
        (b"status\n", "not understood"),
        (b'{"verb": "status"}\n', "schema_version"),
        (b'{"schema_version": 2, "verb": "status"}\n', "version 2"),
        (b'{"schema_version": 1, "verb": "explode"}\n', "explode"),
        (b'{"schema_version": 1, "verb": "status", "extra": 1}\n', "extra"),
        (b'{"schema_version": 1, "verb": "pause"}\n', "timeout"),
        (b'{"schema_version": 1, "verb": "pause", "timeout": -1}\n', "timeout"),
        (b'{"schema_version": 1, "verb": "pause", "timeout": 1e999}\n', "not understood"),
        (b'{"schema_version": 1, "verb": "pause", "timeout": "soon"}\n', "timeout"),
        (b"\xff\xfe\n", "not understood"),
        (b"[" * 50000 + b"\n", "not understood"),
    ],
)
def test_malformed_requests(loop: Loop, request_line: bytes, said: str) -> None:
    """A wrong request is refused with what is wrong, and the job is not touched."""
    reply = loop.ask(request_line)
    assert reply["kind"] == "refusal"
    assert said in reply["cause"]
    assert loop.cut.begun == 0


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=300))
def test_any_bytes(loop: Loop, content: bytes) -> None:
    """Any line gets an answer, and the agent serves on."""
    assert loop.ask(content.replace(b"\n", b"") + b"\n")["kind"] in ("refusal", "status")
    assert loop.ask(STATUS)["kind"] == "status"


def test_endless_request(loop: Loop) -> None:
    """A request without an end is refused once it is too long, and no more of it is kept."""
    client = loop.connect()
    client.send(STATUS[:1])
    loop.turn()
    (serving,) = loop.agent._clients
    kept = 0
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        while True:
            with contextlib.suppress(BlockingIOError):
                client.send(b"x" * 4096)
            loop.turn()
            kept = max(kept, len(serving._received))
    assert LONGEST_REQUEST <= kept <= 2 * LONGEST_REQUEST
    refusal = json.loads(client.recv(1 << 20))
    assert refusal["kind"] == "refusal"
    assert f"longer than {LONGEST_REQUEST} bytes" in refusal["cause"]
    assert loop.ask(STATUS)["kind"] == "status"


def test_slow_client_is_left(loop: Loop) -> None:
    """Who has not sent its request in time is left; who has asked for a pause may wait longer."""
    slow, pauser = loop.connect(), loop.connect()
    slow.send(STATUS[:5])
    pauser.send(encode(PauseRequest(timeout=1000.0)))
    assert loop.silent(slow)
    wait = loop.agent.next_tick()
    assert wait is not None
    loop.now += PATIENCE_SECONDS
    assert not loop.silent(slow)
    assert loop.silent(pauser)


def test_client_that_does_not_read(loop: Loop) -> None:
    """An answer larger than the socket's buffer waits for its reader, and others are served meanwhile; it is
    dropped when it is not taken in time."""
    loop.ranks = 20000
    lazy, later = loop.connect(), loop.connect()
    lazy.send(STATUS)
    later.send(STATUS)
    loop.turn()
    loop.ranks = 1
    assert loop.ask(STATUS)["kind"] == "status"
    assert len(loop.answer(later)["ranks"]) == 20000
    loop.now += PATIENCE_SECONDS
    loop.turn()
    assert loop.agent._clients == []


def test_more_clients_than_places(loop: Loop) -> None:
    """The idle client that has waited longest makes room for a new one."""
    idle = [loop.connect() for _ in range(MOST_CLIENTS)]
    loop.turn()
    assert loop.ask(STATUS)["kind"] == "status"
    assert not loop.silent(idle[0])
    assert loop.silent(idle[1])


def test_pausers_keep_their_places(loop: Loop) -> None:
    """When all places are taken by those who wait for a pause, a new client is turned away."""
    pausers = [loop.connect() for _ in range(MOST_CLIENTS)]
    for client in pausers:
        client.send(encode(PauseRequest(timeout=5.0)))
        loop.turn()
    assert loop.answer(loop.connect()) is None
    loop.cut.next = loop.cut.next.__class__(CutState.ACQUIRED)
    assert all(loop.answer(client)["ok"] for client in pausers)
    assert loop.ask(STATUS)["kind"] == "status"


def test_killed_pausers_lose_their_places(loop: Loop) -> None:
    """Clients that waited for a pause and are gone make room; those that only send no more do not."""
    pausers = [loop.connect() for _ in range(MOST_CLIENTS)]
    for client in pausers:
        client.send(encode(PauseRequest(timeout=5.0)))
        loop.turn()
    pausers[0].shutdown(socket.SHUT_WR)
    for client in pausers[1:]:
        client.close()
    assert all(loop.ask(STATUS)["kind"] == "status" for _ in range(MOST_CLIENTS))
    loop.cut.next = loop.cut.next.__class__(CutState.ACQUIRED)
    assert loop.answer(pausers[0])["ok"]


@pytest.mark.parametrize("point", ["before", "amid", "after"])
def test_client_that_leaves(loop: Loop, point: str) -> None:
    """A client may be killed at any point; a pause that it asked for goes on."""
    client = loop.connect()
    request = encode(PauseRequest(timeout=5.0))
    client.send({"before": b"", "amid": request[:9], "after": request}[point])
    loop.turn()
    client.close()
    loop.turn()
    loop.cut.next = loop.cut.next.__class__(CutState.ACQUIRED)
    loop.turn()
    assert loop.pausing.state.value == ("paused" if point == "after" else "running")
    assert loop.agent._clients == []


def test_time_out_of_a_pause(loop: Loop) -> None:
    """The answer carries the diagnosis, and everything is released."""
    client = loop.connect()
    client.send(encode(PauseRequest(timeout=5.0)))
    assert loop.silent(client)
    loop.cut.next = loop.cut.next.__class__(CutState.ACQUIRING, waiting=["rank 1: sleeps"])
    loop.now += 5.0
    reply = loop.answer(client)
    assert (reply["kind"], reply["ok"], reply["waiting"]) == ("done", False, ["rank 1: sleeps"])
    assert not loop.cut.held


def test_error_while_serving(loop: Loop, capfd: pytest.CaptureFixture[str]) -> None:
    """An error of the agent's own is the answer to the request, and the end of nothing else."""
    loop.ranks = -1
    assert "the directory is gone" in loop.ask(STATUS)["cause"]
    assert "the directory is gone" in loop.ask(STATUS)["cause"]
    assert capfd.readouterr().err.count("Traceback") == 1  # told once, not at each request
    loop.ranks = 1
    assert loop.ask(STATUS)["kind"] == "status"


def test_other_users_are_turned_away(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection whose peer the kernel knows as another user gets nothing."""
    monkeypatch.setattr(agent_module, "_is_ours", lambda connection: False)
    assert loop.answer(loop.connect()) is None


def test_no_descriptors_left(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    """When no connection can be accepted the agent rests for a second instead of spinning, and then goes
    on."""

    class Exhausted:
        def accept(self) -> None:
            raise OSError(24, "Too many open files")

        def fileno(self) -> int:
            return real.fileno()

    real = loop.agent._listener
    client = loop.connect()
    monkeypatch.setattr(loop.agent, "_listener", Exhausted())
    loop.turn()
    assert loop.selector.select(0) == []
    assert loop.agent.next_tick() == 1.0
    monkeypatch.setattr(loop.agent, "_listener", real)
    loop.now += 1.0
    client.send(STATUS)
    assert loop.answer(client)["kind"] == "status"


def test_end_of_the_job(loop: Loop) -> None:
    """Whoever waits for a pause when the job ends is told why there will be none."""
    client = loop.connect()
    client.send(encode(PauseRequest(timeout=5.0)))
    loop.turn()
    loop.agent.job_ends("the job ends: rank 0 was killed")
    assert loop.answer(client)["message"] == "the job ends: rank 0 was killed"
    assert not loop.cut.held
