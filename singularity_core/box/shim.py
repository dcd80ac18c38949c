"""The first process of the box, and the one outside that makes it.

``python -m singularity_core.box.shim CONTROL STARTING`` stays outside, makes the namespaces that only
children enter, and forks the shim, which is pid 1 inside: the kernel kills all others in there when it ends.
It ends when the launcher does (its end of the control socket closes), when the outer process does
(PDEATHSIG), and when the keeper, the ranks' common parent, was killed; so nothing of the box outlives any of
them.

It is not in a checkpoint: CRIU, which it runs as a *tool*, dumps the keeper and the tree below.  A restore
begins with another shim, without a keeper, which runs CRIU and adopts what that has restored."""

from __future__ import annotations

import os
import selectors
import signal
import socket
import struct
import subprocess
import sys
import traceback
from collections.abc import Callable

from ..launcher.processes import die_with, set_process_name
from .errors import BoxUnavailableError, needs_root, step_failed
from .messages import (
    Adopt,
    Channel,
    ChannelClosedError,
    Ended,
    Failed,
    NotStarted,
    Opened,
    Plan,
    RunTool,
    Started,
)
from .namespaces import enter, prepare_children
from .starter import run_starter

ENDINGS = "endings"
"""A named pipe in the box's directory, into which the keeper writes how its children ended."""
EXIT_FAILED = 70
_ENDING = struct.Struct("=ii")


class Shim:
    """Pid 1: reaps, and tells the launcher."""

    def __init__(self, control: Channel, plan: Plan) -> None:
        self._control = control
        endings = os.path.join(plan.directory, os.fsencode(ENDINGS))
        os.mkfifo(endings, 0o600)
        # Open for writing, too: so it never comes to an end, whoever writes or does not.
        self._endings = os.open(endings, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self._received = b""
        self._wakeup, writing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._keeper = 0
        self._tools: dict[int, subprocess.Popen[bytes]] = {}
        self._selector = selectors.DefaultSelector()

    def run(self, start_keeper: Callable[[], int] | None) -> int:
        """Serves until the box is to end; returns the exit code.  None: the keeper is to be restored."""
        pids = [os.getpid()]
        if start_keeper is not None:
            self._keeper = start_keeper()
            pids.append(self._keeper)
        pidfds = [os.pidfd_open(pid) for pid in pids]
        self._control.send(Opened(self._keeper), pidfds)
        for descriptor in pidfds:
            os.close(descriptor)
        self._selector.register(self._control, selectors.EVENT_READ, self._listen)
        self._selector.register(self._wakeup, selectors.EVENT_READ, self._reap)
        if self._keeper:
            self._selector.register(self._endings, selectors.EVENT_READ, self._take_endings)
        while True:
            for key, _ in self._selector.select():
                code: int | None = key.data()
                if code is not None:
                    return code

    def _listen(self) -> int | None:
        try:
            for message in self._control.ready():
                if isinstance(message, RunTool | Adopt):
                    self._answer(message)
        except ChannelClosedError:
            return 0
        return None

    def _answer(self, message: RunTool | Adopt) -> None:
        try:
            pid = self._run_tool(message) if isinstance(message, RunTool) else message.pid
            pidfd = os.pidfd_open(pid)
        except OSError as error:
            self._control.send(NotStarted(error.errno or 0, os.fsencode(error.filename or b"")))
            return
        self._control.send(Started(pid), [pidfd])
        os.close(pidfd)
        if isinstance(message, Adopt) and message.is_keeper:
            self._keeper = pid  # all ranks are known: now their ends can be told
            self._selector.register(self._endings, selectors.EVENT_READ, self._take_endings)

    def _run_tool(self, message: RunTool) -> int:
        with open(message.output, "ab") as output:
            process = subprocess.Popen(
                message.command,
                env=dict(message.environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self._tools[process.pid] = process
        return process.pid

    def _take_endings(self) -> None:
        try:
            self._received += os.read(self._endings, 4096)
        except BlockingIOError:
            return
        whole = len(self._received) // _ENDING.size * _ENDING.size
        for pid, status in _ENDING.iter_unpack(self._received[:whole]):
            self._control.send(Ended(pid, status))
        self._received = self._received[whole:]

    def _reap(self) -> int | None:
        os.read(self._wakeup, 4096)
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return None
            if pid == 0:
                return None
            if pid in self._tools:
                self._tools.pop(pid).returncode = os.waitstatus_to_exitcode(status)
                self._control.send(Ended(pid, status))
            if pid == self._keeper:
                self._take_endings()
                code = os.waitstatus_to_exitcode(status)
                how = f"was killed by signal {-code}" if code < 0 else f"exited with code {code}"
                print(f"the keeper of the ranks {how}", file=sys.stderr, flush=True)
                return EXIT_FAILED


def _be_shim(control: Channel, starting: Channel, plan: Plan, outer: int) -> int:
    """The whole life of pid 1."""
    try:
        die_with(outer)
        set_process_name("sg-box")
        enter(plan)
        shim = Shim(control, plan)
        code = shim.run(None if plan.restored else lambda: _fork_starter(control, starting, plan))
    except ChannelClosedError:
        return 0  # the launcher is gone, and so are we
    except (BoxUnavailableError, OSError) as error:
        failed = step_failed("watch its processes", error) if isinstance(error, OSError) else error
        control.send(Failed(failed.cause, failed.remedy))
        return EXIT_FAILED
    return code


def _fork_starter(control: Channel, starting: Channel, plan: Plan) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            control.close()
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            run_starter(starting, plan, os.path.join(plan.directory, os.fsencode(ENDINGS)))
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(EXIT_FAILED)
    starting.close()
    return pid


def main(control_descriptor: int, starting_descriptor: int) -> int:
    """The outer process: returns once the box is gone."""
    control = Channel(socket.socket(fileno=control_descriptor))
    starting = Channel(socket.socket(fileno=starting_descriptor))
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, lambda *_: None)  # and no SIG_IGN: the ranks would inherit that
    try:
        plan = control.receive(Plan)
        if os.geteuid() != 0:
            raise needs_root()
        prepare_children()
        here = os.pidfd_open(os.getpid())
        pid = os.fork()
    except BoxUnavailableError as error:
        control.send(Failed(error.cause, error.remedy))
        return EXIT_FAILED
    except ChannelClosedError:  # the launcher is gone
        return EXIT_FAILED
    if pid == 0:
        code = EXIT_FAILED
        try:
            code = _be_shim(control, starting, plan, here)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    control.close()
    starting.close()
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return 128 - code if code < 0 else code


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
