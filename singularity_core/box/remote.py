"""The launcher's end of a box."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from ..launcher.processes import die_with_parent, pid_of
from .errors import BoxUnavailableError
from .messages import (
    Adopt,
    Channel,
    ChannelClosedError,
    Ended,
    Failed,
    Message,
    NotStarted,
    Opened,
    Plan,
    RunTool,
    Seal,
    Started,
    StartRank,
    channel_pair,
)

_OPEN_SECONDS = 60.0
_START_SECONDS = 60.0
_END_SECONDS = 10.0
_M = TypeVar("_M", bound=Message)


class BoxedProcess:
    """A rank or a tool in the box, seen from outside."""

    def __init__(self, pid_inside: int, pidfd: int) -> None:
        self.pid_inside = pid_inside
        self.pid = pid_of(pidfd) if pidfd >= 0 else -1
        """Outside; -1: it was gone already."""
        self._pidfd = pidfd
        self._returncode: int | None = None
        self._on_end: Callable[[], None] | None = None

    def when_ended(self, call: Callable[[], None]) -> None:
        """Calls `call` once it has ended; at once when it has already."""
        self._on_end = call
        if self._returncode is not None:
            call()

    def returncode(self) -> int | None:
        """Exit code, or minus the number of the signal that killed it; None while it runs."""
        return self._returncode

    def signal(self, number: int) -> None:
        """Harmless when it has ended."""
        if self._pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    def ended(self, returncode: int) -> None:
        """For `Box` to say so."""
        if self._returncode is None:
            self._returncode = returncode
            if self._on_end is not None:
                self._on_end()

    def close(self) -> None:
        """Harmless when repeated."""
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1


@dataclass(frozen=True)
class BoxPids:
    """Who is not a rank and comes from none; outside."""

    outer: int
    shim: int
    keeper: int
    """The ranks' common parent; 0: none has been restored yet."""


class Box:
    """Opens a box, and starts ranks in it.  Not more than one thread may use it."""

    def __init__(self, plan: Plan, environment: Mapping[str, str], messages: int) -> None:
        """`environment` of the box's own processes; `messages`: where they write what goes wrong.

        :raises BoxUnavailableError: It cannot be made here."""
        self._processes: dict[int, BoxedProcess] = {}
        self._control, control = channel_pair()
        self._starting, starting = channel_pair()
        self._shim = self._namespace = -1
        self.keeper_inside = 0
        """The ranks' common parent, which CRIU is to dump, as it is numbered in the box."""
        try:
            with control, starting:
                self._process = self._start_outer(environment, messages, control.fileno(), starting.fileno())
            try:
                self._await_opening(plan)
            except BaseException:
                self.end()
                raise
        except BaseException:
            self._control.close()
            self._starting.close()
            raise

    @staticmethod
    def _start_outer(environment: Mapping[str, str], messages: int, *sockets: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "singularity_core.box.shim", *map(str, sockets)],
            env=environment,
            stdout=messages,
            stderr=messages,
            pass_fds=sockets,
            start_new_session=True,
            preexec_fn=die_with_parent(os.getpid()),
        )

    def _await_opening(self, plan: Plan) -> None:
        try:
            self._control.send(plan)
            answer = self._await_answer(_OPEN_SECONDS, Opened, Failed)
        except ChannelClosedError as error:
            raise BoxUnavailableError(
                "No job box can be made: its first process ended.", remedy="See its messages."
            ) from error
        if isinstance(answer, Failed):
            raise BoxUnavailableError(answer.cause, remedy=answer.remedy)
        assert isinstance(answer, Opened)
        self._shim = self._control.take_descriptor()
        self.pids = BoxPids(self._process.pid, pid_of(self._shim), 0)
        if answer.keeper != 0:
            keeper = self._control.take_descriptor()
            self._know_keeper(answer.keeper, pid_of(keeper))
            os.close(keeper)
        self._namespace = os.open(f"/proc/{self.pids.shim}/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
        if _has_ended(self._shim):  # its number may be another's
            raise BoxUnavailableError("The job box ended at once.", remedy="See its messages.")

    def _know_keeper(self, inside: int, outside: int) -> None:
        self.keeper_inside = inside
        self.pids = BoxPids(self.pids.outer, self.pids.shim, outside)

    @property
    def pid_namespace(self) -> int:
        """A descriptor of the pid namespace that the ranks are in."""
        return self._namespace

    def fileno(self) -> int:
        """Readable when `look` has something to do."""
        return self._control.fileno()

    def look(self) -> bool:
        """Takes in who has ended; False when nothing more will come, because the box is gone."""
        if self._control.fileno() < 0:
            return False
        try:
            while messages := self._control.ready():
                for message in messages:
                    self._take_ending(message)
        except ChannelClosedError:
            return False
        return True

    def _take_ending(self, message: Message) -> None:
        # Ranks can reach the keeper's pipe: what comes from there may be anything.
        if isinstance(message, Ended) and (os.WIFEXITED(message.status) or os.WIFSIGNALED(message.status)):
            process = self._processes.pop(message.pid, None)
            if process is not None:
                process.ended(os.waitstatus_to_exitcode(message.status))

    def lost(self) -> None:
        """The box is gone, and the kernel has killed who was in it."""
        for process in self._processes.values():
            process.ended(-signal.SIGKILL)
        self._processes.clear()

    def start(
        self, command: Sequence[str], environment: Mapping[str, str], stdout: str, stderr: str
    ) -> BoxedProcess:
        """Starts a rank, whose output is appended to files.

        :raises OSError: As `subprocess.Popen` does.
        :raises BoxUnavailableError: The box is gone."""
        files = os.fsencode(stdout), os.fsencode(stderr)
        try:
            self._starting.send(StartRank(_words(command), _variables(environment), *files))
            answer: Message = _answer(self._starting, _START_SECONDS, Started, NotStarted)
        except ChannelClosedError as error:
            raise _box_ended() from error
        return self._know(answer, self._starting)

    def run_tool(self, command: Sequence[str], environment: Mapping[str, str], output: str) -> BoxedProcess:
        """Starts a program beside the ranks: CRIU, which dumps `keeper_inside` (and leaves it stopped or
        running, for the box ends when it is killed) or restores it.  Its output is appended to a file.

        :raises OSError: As `subprocess.Popen` does.
        :raises BoxUnavailableError: The box is gone."""
        return self._ask(RunTool(_words(command), _variables(environment), os.fsencode(output)))

    def adopt_rank(self, pid_inside: int) -> BoxedProcess:
        """Takes a restored process for a rank; before `adopt_keeper`.  It may have ended since: then its pid
        is -1, and how it ended is told as ever.

        :raises OSError: The system refuses something else.
        :raises BoxUnavailableError: The box is gone."""
        try:
            return self._ask(Adopt(pid_inside, is_keeper=False))
        except ProcessLookupError:
            process = self._processes[pid_inside] = BoxedProcess(pid_inside, -1)
            return process

    def adopt_keeper(self, pid_inside: int) -> None:
        """Takes a restored process for the keeper: from now on it is told how ranks end, and the box ends
        with it.

        :raises OSError: There is no such process.
        :raises BoxUnavailableError: The box is gone."""
        keeper = self._ask(Adopt(pid_inside, is_keeper=True))
        del self._processes[pid_inside]
        self._know_keeper(pid_inside, keeper.pid)
        keeper.close()

    def _ask(self, message: RunTool | Adopt) -> BoxedProcess:
        try:
            self._control.send(message)
            answer: Message = self._await_answer(_START_SECONDS, Started, NotStarted)
        except ChannelClosedError as error:
            raise _box_ended() from error
        process = self._know(answer, self._control)
        self.look()  # what came with the answer makes nobody look again
        return process

    def _await_answer(self, seconds: float, *kinds: type[_M]) -> _M:
        """Of the first process; takes in endings that come before."""
        deadline = time.monotonic() + seconds
        while True:
            answer = _answer(self._control, deadline - time.monotonic(), *kinds, Ended)
            if isinstance(answer, kinds):
                return answer
            self._take_ending(answer)

    def _know(self, answer: Message, channel: Channel) -> BoxedProcess:
        if isinstance(answer, NotStarted):
            place = os.fsdecode(answer.place) or None
            raise OSError(answer.number, os.strerror(answer.number), place)
        assert isinstance(answer, Started)
        process = BoxedProcess(answer.pid, channel.take_descriptor())
        self._processes[answer.pid] = process
        return process

    def seal(self) -> None:
        """All ranks are started: only now it is told how they ended.  Harmless when repeated."""
        with contextlib.suppress(ChannelClosedError, OSError):
            self._starting.send(Seal())
        self._starting.close()

    def poll(self) -> int | None:
        """The exit code of the box's process out here, once the box is gone."""
        return self._process.poll()

    def kill(self) -> None:
        """Begins the end of the box with all that is in it."""
        if self._shim >= 0 and not _has_ended(self._shim):
            signal.pidfd_send_signal(self._shim, signal.SIGKILL)
        else:
            self._process.kill()

    def end(self) -> None:
        """Ends the box, and waits until nothing of it is left, if that does not take too long.  Harmless when
        repeated."""
        self.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # the caller looks what is left
            self._process.wait(_END_SECONDS)
        self.lost()
        self._control.close()
        self._starting.close()
        for descriptor in (self._shim, self._namespace):
            if descriptor >= 0:
                os.close(descriptor)
        self._shim = self._namespace = -1


def _words(command: Sequence[str]) -> list[bytes]:
    return [os.fsencode(word) for word in command]


def _variables(environment: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    return [(os.fsencode(name), os.fsencode(value)) for name, value in environment.items()]


def _box_ended() -> BoxUnavailableError:
    return BoxUnavailableError("The job box ended while somebody waited for it.", remedy="See its messages.")


def _answer(channel: Channel, seconds: float, *kinds: type[_M]) -> _M:
    """:raises BoxUnavailableError: It takes too long."""
    if not channel.pending and not select.select([channel], [], [], max(0.0, seconds))[0]:
        raise BoxUnavailableError(
            f"The job box did not answer within {seconds:.0f} s.",
            remedy="See its messages; is the machine overloaded?",
        )
    return channel.receive(*kinds)


def _has_ended(pidfd: int) -> bool:
    return bool(select.select([pidfd], [], [], 0)[0])
