"""The agent of a job: answers singularity-ctl inside the launcher's own loop.

No thread, and nothing that blocks: clients are sockets in the supervisor's selector.  A client sends one
line and gets one line.  What it does wrong costs only itself: its buffers are bounded, it has
`PATIENCE_SECONDS` to send its request and to take the reply, more than `MOST_CLIENTS` push out the one that
has dawdled longest, and an error while serving it is its answer.  Who it is, the kernel says (SO_PEERCRED):
this user or root."""

from __future__ import annotations

import os
import select
import selectors
import socket
import struct
import time
from collections.abc import Callable
from pathlib import Path

from .agent_messages import (
    AGENT_SOCKET,
    LONGEST_REQUEST,
    AnyRequest,
    CheckpointRequest,
    ContinueRequest,
    Done,
    JobStatus,
    LogPaths,
    LogsRequest,
    PauseRequest,
    Refusal,
    Reply,
    ResizeRequest,
    decode_request,
    encode,
)
from .checkpointing import Checkpointing, CheckpointOrder
from .pausing import Outcome, Pausing
from .report import say_fault
from .resizing import Resizing

MOST_CLIENTS = 64
PATIENCE_SECONDS = 10.0
_CREDENTIALS = struct.Struct("3i")


class _Client:
    """One connection: reads a line, waits for the answer, writes it."""

    def __init__(self, agent: Agent, connection: socket.socket) -> None:
        self._agent = agent
        self._socket = connection
        self._received = bytearray()
        self._unsent = b""
        self._interest = 0
        self.reading = True
        self.deadline: float | None = agent.clock() + PATIENCE_SECONDS
        """When it will have taken too long; None while it waits for us."""
        self._watch(selectors.EVENT_READ)

    def ready(self) -> None:
        """The selector's callback."""
        if self.reading:
            self._read()
        elif self._unsent:
            self._write()

    def _read(self) -> None:
        try:
            data = self._socket.recv(LONGEST_REQUEST)
        except BlockingIOError:
            return
        except OSError:
            self.close()
            return
        self._received += data
        line, end, _ = self._received.partition(b"\n")
        if end and len(line) < LONGEST_REQUEST:
            self._watch(0)  # the rest is of no interest
            self.reading, self.deadline = False, None
            self._agent.serve(bytes(line), self.reply)
        elif not data:
            self.close()
        elif len(self._received) >= LONGEST_REQUEST:
            self._watch(0)
            self.reply(Refusal(cause=f"The request is longer than {LONGEST_REQUEST} bytes."))

    def hung_up(self) -> bool:
        """Whether nobody can take the answer: killed, say, while it waited for a pause.  (One that only sends
        nothing more has not hung up.)"""
        poll = select.poll()
        poll.register(self._socket, 0)
        return bool(poll.poll(0))

    def reply(self, message: Reply) -> None:
        """Sends the one answer, and closes; nothing when the client is gone."""
        if self._socket.fileno() < 0:
            return
        self.reading = False
        self.deadline = self._agent.clock() + PATIENCE_SECONDS
        self._unsent = encode(message)
        self._write()

    def _write(self) -> None:
        try:
            self._unsent = self._unsent[self._socket.send(self._unsent) :]
        except BlockingIOError:
            pass
        except OSError:  # it did not wait for the answer
            self._unsent = b""
        if self._unsent:
            self._watch(selectors.EVENT_WRITE)
        else:
            self.close()

    def _watch(self, interest: int) -> None:
        if interest == self._interest:
            return
        if self._interest:
            self._agent.selector.unregister(self._socket)
        if interest:
            self._agent.selector.register(self._socket, interest, self.ready)
        self._interest = interest

    def close(self) -> None:
        """Harmless when repeated."""
        if self._socket.fileno() >= 0:
            self._watch(0)
            self._socket.close()
            self._agent.forget(self)


class Agent:
    """Listens in the job's directory.  The supervisor calls `tick` after each turn of its loop, and waits no
    longer than `next_tick`."""

    def __init__(
        self,
        directory: Path,
        selector: selectors.BaseSelector,
        pausing: Pausing,
        resizing: Resizing,
        checkpointing: Checkpointing,
        *,
        status: Callable[[], JobStatus],
        logs: Callable[[], LogPaths | Refusal],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.selector = selector
        self.clock = clock
        self._pausing = pausing
        self._resizing = resizing
        self._checkpointing = checkpointing
        self._status = status
        self._logs = logs
        self._clients: list[_Client] = []
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.setblocking(False)
        path = directory / AGENT_SOCKET
        self._listener.bind(str(path))  # in a directory of mode 0700: nobody else could connect before chmod
        path.chmod(0o600)
        self._listener.listen(MOST_CLIENTS)
        self._listening = False
        self._listen_again = 0.0
        self._set_listening(True)

    # ---- the supervisor's side -----------------------------------------------------------------------

    def next_tick(self) -> float | None:
        """Seconds until `tick` is due; None: after the next event."""
        due = [client.deadline for client in self._clients if client.deadline is not None]
        if not self._listening:
            due.append(self._listen_again)
        waits = [max(0.0, min(due) - self.clock())] if due else []
        steps = [each.next_tick() for each in (self._pausing, self._resizing, self._checkpointing)]
        waits += [step for step in steps if step is not None]
        return min(waits, default=None)

    def tick(self) -> None:
        """Takes pauses, resizes and checkpoints on, and leaves clients that dawdle."""
        now = self.clock()
        self._pausing.tick(now)
        self._resizing.tick(now)
        self._checkpointing.tick(now)
        for client in list(self._clients):
            if client.deadline is not None and client.deadline <= now:
                client.close()
        if not self._listening and self._listen_again <= now:
            self._set_listening(True)

    def job_ends(self, why: str) -> None:
        """Whoever waits for a pause is told `why` there will be none; the cut is released."""
        self._pausing.abandon(why, self.clock())

    def close(self) -> None:
        """Closes all connections."""
        for client in list(self._clients):
            client.close()
        self._set_listening(False)
        self._listener.close()

    # ---- the clients' side ---------------------------------------------------------------------------

    def serve(self, line: bytes, answer: Callable[[Reply], None]) -> None:
        """Does what a client asks; `answer` is called once, now or later."""
        try:
            request = decode_request(line)
        except (ValueError, RecursionError) as error:  # ValueError: of which msgspec's errors are
            answer(Refusal(cause=f"The request is not understood: {error}."))
            return
        try:
            self._serve(request, answer)
        except Exception as error:  # whatever it is: it must not end the job
            say_fault("the agent failed:", error)
            answer(Refusal(cause=f"The agent failed: {type(error).__name__}: {error}."))

    def _serve(self, request: AnyRequest, answer: Callable[[Reply], None]) -> None:
        def tell(outcome: Outcome) -> None:
            answer(
                Done(
                    ok=outcome.ok,
                    state=outcome.state.value,
                    message=outcome.message,
                    waiting=outcome.waiting,
                )
            )

        if isinstance(request, PauseRequest):
            self._pausing.pause(request.timeout, self.clock(), tell)
        elif isinstance(request, ContinueRequest):
            self._checkpointing.cancel("the job was asked to continue", self.clock())
            self._pausing.resume(self.clock(), tell)
        elif isinstance(request, ResizeRequest):
            self._resizing.resize(request.devices, request.timeout, self.clock(), tell)
        elif isinstance(request, CheckpointRequest):
            order = CheckpointOrder(
                request.store, request.timeout, request.preempt, request.dry_run, request.keep
            )
            self._checkpointing.checkpoint(order, self.clock(), tell)
        elif isinstance(request, LogsRequest):
            answer(self._logs())
        else:
            answer(self._status())

    def forget(self, client: _Client) -> None:
        """It is closed."""
        self._clients.remove(client)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError:  # no descriptors left: whoever comes waits in the backlog
            self._set_listening(False)
            self._listen_again = self.clock() + 1.0
            return
        if not _is_ours(connection):
            connection.close()
            return
        if len(self._clients) >= MOST_CLIENTS:
            dawdler = next((client for client in self._clients if client.reading or client.hung_up()), None)
            if dawdler is None:
                connection.close()
                return
            dawdler.close()
        connection.setblocking(False)
        self._clients.append(_Client(self, connection))

    def _set_listening(self, on: bool) -> None:
        if on and not self._listening:
            self.selector.register(self._listener, selectors.EVENT_READ, self._accept)
        elif self._listening and not on:
            self.selector.unregister(self._listener)
        self._listening = on


def _is_ours(connection: socket.socket) -> bool:
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, user, _ = _CREDENTIALS.unpack(found)
    return user in (0, os.getuid())
