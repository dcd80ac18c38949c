"""Runs a job: starts proxies and ranks, watches everything, and ends everything.

One thread, one selector.  Processes are watched through pidfds, their output through pipes, signals through
the wake-up descriptor.  What happens:

* the first failure by time is the root cause.  Within one turn of the loop a dead proxy counts as earlier
  than a dead rank, because a rank that loses its proxy dies of that; and a rank that a signal killed as
  earlier than one that exited, because ranks are told of the other's death;
* on a failure or a signal the ranks get a polite signal, then the grace period, then SIGKILL;
* whatever the outcome, in the end no descendant is left (this process is a subreaper, so orphans are
  descendants too), and no file in the job's directory;
* the job's agent is served in the same loop, between events of the job; so nothing in it may wait for
  anybody, not even for who reads the launcher's output (terminal.py).
"""

from __future__ import annotations

import errno
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..barrier.coordinator import BoardCut
from ..barrier.interface import Cut
from .agent import Agent
from .agent_messages import JobStatus
from .errors import LaunchError, system_error
from .fleet import Fleet, FleetChange
from .guardian import Guardian
from .job_directory import JobDirectory
from .output import Relay
from .pausing import Pausing
from .processes import Ending, die_with_parent, kill_all, kill_until_quiet, live_descendants
from .report import Failure, describe_failure, say
from .resizing import ResizeState, Resizing
from .settings import JobSettings, rank_environment
from .status import describe_job, log_paths
from .terminal import STANDARD_ERROR, STANDARD_OUTPUT, TERMINALS

_PROXY_START_SECONDS = 120.0
_PROXY_STOP_SECONDS = 10.0
_LINGER_SECONDS = 1.0
_SWEEP_SECONDS = 10.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


@dataclass
class Member:
    """A process that the launcher started."""

    label: str
    proxy: bool
    index: int
    """Local rank, or ordinal of the device."""
    process: subprocess.Popen[bytes]
    pidfd: int
    relays: list[Relay]
    errors: Relay
    """The one of `relays` that carries stderr."""
    started: float
    """On the monotonic clock, as `ended`."""
    ready: bool = False
    ending: Ending | None = field(default=None)
    ended: float | None = None


class Supervisor:
    """The life of one job on this node."""

    def __init__(
        self,
        settings: JobSettings,
        directory: JobDirectory,
        guardian: Guardian,
        *,
        common_environment: Mapping[str, str],
        backend_environment: Mapping[str, str],
        make_cut: Callable[[Path, int], Cut] = BoardCut,
    ) -> None:
        """`make_cut`: from the exchange directory and the number of proxies, what can pause the job."""
        self._settings = settings
        self._directory = directory
        self._guardian = guardian
        self._common_environment = common_environment
        self._make_cut = make_cut
        self._selector = selectors.DefaultSelector()
        self._members: list[Member] = []
        self._failure: Failure | None = None
        self._signals: list[int] = []
        self._ending = False  # endings are no failures any more
        self.swept = True
        """Whether none of the job's processes is left, as before and after `run`."""
        self._wakeup = -1
        self._started = time.monotonic()
        self._pausing = Pausing(
            "it is still starting"
            if settings.proxied
            else "its ranks hold the devices themselves (--no-proxy)"
        )
        self._phase = "starting"

        def make_fleet(wanted: JobSettings, exchange: Path, arena_bytes: int | None = None) -> Fleet:
            return Fleet(
                wanted, directory, exchange, backend_environment, self._selector, arena_bytes=arena_bytes
            )

        exchange = directory.exchange_directory() if settings.proxied else directory.path
        self._change = FleetChange(
            make_fleet(settings, exchange),
            self._pausing,
            directory,
            make_fleet=make_fleet,
            make_cut=make_cut,
            start_proxy=self._start_proxy,
        )
        self._resizing = Resizing(self._pausing, self._change)
        self._agent = Agent(
            directory.path,
            self._selector,
            self._pausing,
            self._resizing,
            status=self._status,
            logs=lambda: log_paths(settings, directory),
        )

    def run(self) -> int:
        """Runs the job to its end; returns the launcher's exit code.  Leaves no process of the job."""
        restore = self._catch_signals()
        self.swept = False
        for terminal in TERMINALS:
            terminal.attach(self._selector)
        try:
            self._start_and_wait()
            return self._exit_code()
        finally:
            try:
                self._clean_up()
            finally:
                restore()

    def _start_and_wait(self) -> None:
        if self._settings.proxied:
            self._fleet.start(self._start_proxy)
            deadline = time.monotonic() + _PROXY_START_SECONDS
            while not self._stopping and not self._fleet.ready:
                if time.monotonic() > deadline:
                    late = [m.label for m in self._proxies if not m.ready]
                    raise LaunchError(
                        f"{', '.join(late)} was not ready within {_PROXY_START_SECONDS:.0f} s.",
                        remedy="See its messages above, and `singularity-ctl doctor`.",
                    )
                self._turn(1.0)
        for rank in range(self._settings.ranks):
            if not self._stopping:
                self._start_rank(rank)
        self._phase = ""
        if self._settings.proxied:
            fleet = self._fleet
            self._pausing.enable(lambda: self._make_cut(fleet.exchange, len(fleet.devices)))
        while not self._stopping and self._running(self._ranks):
            self._turn(None)

    @property
    def signalled(self) -> bool:
        """Whether somebody wants the launcher itself to end."""
        return bool(self._signals)

    # ---- state -------------------------------------------------------------------------------------

    @property
    def _fleet(self) -> Fleet:
        return self._change.fleet

    def _status(self) -> JobStatus:
        resizes = self._resizing.state is not ResizeState.IDLE
        return describe_job(
            self._fleet.settings,
            self._directory,
            [*self._ranks, *self._fleet.members],
            self._pausing,
            phase=self._phase or ("resizing" if resizes else ""),
            started=self._started,
            now=time.monotonic(),
        )

    @property
    def _ranks(self) -> list[Member]:
        return [member for member in self._members if not member.proxy]

    @property
    def _proxies(self) -> list[Member]:
        return [member for member in self._members if member.proxy]

    @staticmethod
    def _running(members: list[Member]) -> list[Member]:
        return [member for member in members if member.ending is None]

    @property
    def _stopping(self) -> bool:
        return self._failure is not None or bool(self._signals)

    def _exit_code(self) -> int:
        if self._failure is not None:
            say("\n".join(describe_failure(self._failure)))
            return self._failure.exit_code
        if self._signals:
            return 128 + self._signals[0]
        return 0

    def _why_it_ends(self) -> str:
        if self._failure is not None:
            return f"the job ends: {self._failure.label} {self._failure.ending}"
        if self._signals:
            return f"the job ends: the launcher got {signal.Signals(self._signals[0]).name}"
        return "the job has ended"

    # ---- starting ------------------------------------------------------------------------------------

    def _start_proxy(
        self, device: int, command: list[str], environment: Mapping[str, str], inherited: Sequence[int]
    ) -> Member:
        errors = Relay(
            STANDARD_ERROR, prefix=f"[proxy {device}] ", log=self._log(f"proxy-{device}", "stderr")
        )
        label = f"the proxy of device {device}"
        return self._start(
            label, device, command, environment, [errors], inherited=inherited, stdout=errors.writing
        )

    def _start_rank(self, rank: int) -> None:
        environment = rank_environment(self._settings, self._common_environment, rank, self._directory.path)
        log_dir = self._settings.log_dir
        prefix = f"[rank{rank}]: " if log_dir and self._settings.ranks > 1 else ""
        relays = [Relay(STANDARD_ERROR, prefix=prefix, log=self._log(str(rank), "stderr"))]
        stdout = None  # the launcher's own: a terminal stays a terminal
        if log_dir:
            relays.append(Relay(STANDARD_OUTPUT, prefix=prefix, log=self._log(str(rank), "stdout")))
            stdout = relays[1].writing
        self._start(f"rank {rank}", rank, self._settings.command, environment, relays, stdout=stdout)

    def _start(
        self,
        label: str,
        index: int,
        command: list[str] | tuple[str, ...],
        environment: Mapping[str, str],
        relays: list[Relay],
        *,
        stdout: int | None,
        inherited: Sequence[int] | None = None,
    ) -> Member:
        """`inherited`: the descriptors of a proxy; None: it is a rank."""
        try:
            process = subprocess.Popen(
                command,
                env=environment,
                stdout=stdout,
                stderr=relays[0].writing,
                stdin=subprocess.DEVNULL if inherited is not None else None,
                pass_fds=inherited or (),
                start_new_session=True,
                preexec_fn=die_with_parent(os.getpid()),
            )
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.EACCES, errno.ENOEXEC, errno.ENOTDIR):
                raise system_error(error, f"{label} could not be started") from error
            raise LaunchError(
                f"{label} could not be started: {command[0]}: {error.strerror}.",
                remedy="With --no-python the program must be an executable file.",
                exit_code=127 if error.errno == errno.ENOENT else 126,
            ) from error
        self._guardian.know(process.pid)
        member = Member(
            label, inherited is not None, index, process, os.pidfd_open(process.pid), relays, relays[0],
            time.monotonic(),
        )  # fmt: skip
        self._members.append(member)
        for relay in relays:
            relay.close_writing()
            relay.watch(self._selector)
        self._selector.register(member.pidfd, selectors.EVENT_READ, member)
        return member

    def _log(self, place: str, stream: str) -> Path | None:
        log_dir = self._settings.log_dir
        return None if log_dir is None else log_dir / place / f"{stream}.log"

    # ---- watching --------------------------------------------------------------------------------------

    def _turn(self, timeout: float | None) -> None:
        """Waits for events once, and handles all that have happened."""
        ended: list[Member] = []
        due = self._agent.next_tick()
        if due is not None:
            timeout = due if timeout is None else min(timeout, due)
        for key, _ in self._selector.select(timeout):
            if isinstance(key.data, Member):
                ended.append(key.data)
            else:
                key.data()
        if any(not member.proxy for member in ended):  # did it lose its proxy?
            ended += [m for m in self._running(self._fleet.members) if m not in ended and _has_ended(m)]
        for member in sorted(ended, key=lambda m: (not m.proxy, m.process.wait() >= 0)):
            self._ended(member)
        self._reap_orphans()
        self._agent.tick()

    def _ended(self, member: Member) -> None:
        returncode = member.process.wait()
        member.ending = Ending(returncode)
        member.ended = time.monotonic()
        self._selector.unregister(member.pidfd)
        os.close(member.pidfd)
        for relay in member.relays:
            relay.close()
        if member.proxy and member not in self._fleet.members:
            return  # of a fleet that was given up, or never was the job's
        if member.proxy:
            self._fleet.mark_dead(member.index)
        if not self._ending and self._failure is None and (member.proxy or returncode != 0):
            self._failure = self._blame(member)

    def _blame(self, member: Member) -> Failure:
        assert member.ending is not None
        device_of_rank = self._fleet.settings.device_of_rank
        users = [r.index for r in self._ranks if device_of_rank[r.index] == member.index]
        return Failure(
            label=member.label,
            pid=member.process.pid,
            ending=member.ending,
            when=time.time(),
            tail=member.errors.tail,
            log=member.errors.log_path,
            affected=[f"rank {rank}" for rank in users] if member.proxy else [],
            proxy=member.proxy,
        )

    def _reap_orphans(self) -> None:
        """Collects descendants that lost their parent; the kernel made them our children."""
        known = {member.process.pid for member in self._members}
        try:
            while (found := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
                if found.si_pid in known:
                    return  # its pidfd is ready; the rest is looked at next time
                os.waitpid(found.si_pid, os.WNOHANG)
        except ChildProcessError:
            return

    # ---- signals -----------------------------------------------------------------------------------------

    def _catch_signals(self) -> Callable[[], None]:
        self._wakeup, writing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        before = {number: signal.getsignal(number) for number in (*_SIGNALS, signal.SIGCHLD)}
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        for number in before:
            signal.signal(number, lambda *_: None)
        self._selector.register(self._wakeup, selectors.EVENT_READ, self._take_signals)

        def restore() -> None:
            signal.set_wakeup_fd(-1)
            for number, handler in before.items():
                signal.signal(number, handler)
            os.close(self._wakeup)
            os.close(writing)

        return restore

    def _take_signals(self) -> None:
        for number in os.read(self._wakeup, 4096):
            if number == signal.SIGCHLD:
                continue  # only there to wake the loop for orphans
            self._signals.append(number)
            name = signal.Signals(number).name
            if len(self._signals) == 1:
                say(f"got {name}; stopping the ranks (once more to kill them)")

    # ---- ending ------------------------------------------------------------------------------------------

    def _clean_up(self) -> None:
        self._ending = True
        self._phase = "ending"
        try:
            self._resizing.abandon(self._why_it_ends())
            self._agent.job_ends(self._why_it_ends())
            number = self._signals[0] if self._signals else signal.SIGTERM
            self._stop(self._ranks, number, self._settings.grace_seconds)
            self._stop(self._proxies, signal.SIGTERM, _PROXY_STOP_SECONDS)
        finally:  # whatever went wrong above
            self._sweep()
            self._agent.close()
            for terminal in TERMINALS:
                terminal.detach()
            self._selector.close()

    def _sweep(self) -> None:
        """Ends all descendants."""

        def look() -> set[int]:
            self._reap_orphans()
            return live_descendants(os.getpid())

        # Some clean up when their parent is gone: Python's resource tracker removes shared memory, say.
        linger = time.monotonic() + _LINGER_SECONDS
        while look() and len(self._signals) < 2 and time.monotonic() < linger:
            time.sleep(0.01)
        left = kill_until_quiet(look, _SWEEP_SECONDS)
        self._reap_orphans()
        self.swept = not left
        if left:
            say(f"could not end {', '.join(f'process {pid}' for pid in sorted(left))}; the guardian tries on")

    def _stop(self, members: list[Member], number: int, grace: float) -> None:
        """Asks politely, waits, kills.  A second signal from the user, now or before, cuts the wait."""
        kill_all((m.process.pid for m in self._running(members)), number)
        deadline = time.monotonic() + grace
        while self._running(members) and len(self._signals) < 2 and time.monotonic() < deadline:
            self._turn(min(1.0, max(0.0, deadline - time.monotonic())))
        kill_all(m.process.pid for m in self._running(members))
        while self._running(members):
            self._turn(1.0)


def _has_ended(member: Member) -> bool:
    return os.waitid(os.P_PIDFD, member.pidfd, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
