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

import os
import selectors
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ..barrier.coordinator import BoardCut
from ..barrier.interface import Cut
from .agent import Agent
from .agent_messages import CheckpointStatus, JobStatus
from .background import Background
from .beginning import Beginning, Stage
from .checkpoint_schedule import Schedule
from .checkpointing import Checkpointing, CheckpointState
from .fleet import Fleet, FleetChange
from .guardian import Guardian
from .job_capture import JobCapture
from .job_directory import JobDirectory
from .members import Kind, Member, start_child
from .output import Relay
from .pausing import Pausing
from .processes import LAUNCHER_SIGNALS, Ending, kill_until_quiet, live_descendants
from .report import Failure, describe_failure, say
from .resizing import ResizeState, Resizing
from .settings import JobSettings
from .status import describe_job, log_paths
from .terminal import STANDARD_ERROR, TERMINALS

_PROXY_STOP_SECONDS = 10.0
_LINGER_SECONDS = 1.0
_SWEEP_SECONDS = 10.0
EXIT_PREEMPTED = 85
"""Of a job that was ended on demand, and can be resumed from its checkpoint."""


class Supervisor:
    """The life of one job on this node."""

    def __init__(
        self,
        settings: JobSettings,
        directory: JobDirectory,
        guardian: Guardian,
        *,
        backend_environment: Mapping[str, str],
        beginning: Beginning,
        make_cut: Callable[[Path, int], Cut] = BoardCut,
    ) -> None:
        """`make_cut`: from the exchange directory and the number of proxies, what can pause the job."""
        self._settings = settings
        self._directory = directory
        self._guardian = guardian
        self._make_cut = make_cut
        self._selector = selectors.DefaultSelector()
        self._beginning = beginning
        self._starter = beginning.ranks
        self._members: list[Member] = []
        self._noticed: list[Member] = []
        """Those whose ends are to be looked at in this turn of the loop."""
        self._failure: Failure | None = None
        self._signals: list[int] = []
        self._ending = False  # endings are no failures any more
        self.swept = True
        """Whether none of the job's processes is left, as before and after `run`."""
        self.stuck = False
        """After `run`: threads of this process wait for a store that does not answer."""
        self._wakeup = -1
        self._started = time.monotonic()
        self._pausing = Pausing(
            "it is still starting"
            if settings.proxied
            else "its ranks hold the devices themselves (--no-proxy)"
        )
        self._phase = beginning.phase

        def make_fleet(
            wanted: JobSettings, exchange: Path, arena_bytes: int | None, restored: bool = False
        ) -> Fleet:
            return Fleet(
                wanted, directory, exchange, backend_environment, self._selector,
                arena_bytes=arena_bytes, restored=restored,
            )  # fmt: skip

        bytes_before = beginning.session_bytes
        self._change = FleetChange(
            make_fleet(settings, self._first_exchange(), bytes_before, restored=bytes_before is not None),
            self._pausing,
            directory,
            make_fleet=make_fleet,
            make_cut=make_cut,
            start_proxy=self._start_proxy,
        )
        self._resizing = Resizing(self._pausing, self._change)
        self._preempted = self._begun = False
        self._capture = JobCapture(
            self._change,
            beginning.ranks,
            self._pausing,
            directory,
            running=lambda: [member.index for member in self._running(self._ranks)],
            preempted=self._let_end,
        )
        self._checkpointing = Checkpointing(self._pausing, self._capture)
        self._schedule = Schedule(
            self._pausing,
            self._checkpointing,
            settings.checkpoints,
            failed=lambda: self._signals.append(signal.SIGTERM),
        )
        self._agent = Agent(
            directory.path,
            self._selector,
            self._pausing,
            self._resizing,
            self._checkpointing,
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

    def _first_exchange(self) -> Path:
        """What the proxies share."""
        if not self._settings.proxied:
            return self._directory.path
        if self._beginning.session_bytes is None:
            return self._directory.exchange_directory()
        return self._directory.new_exchange_directory()  # the checkpoint's own holds the communicators

    def _start_and_wait(self) -> None:
        cut = self._beginning.begin(self._stage())
        self._phase, self._begun = "", not self._stopping
        if self._settings.proxied:
            fleet = self._fleet
            self._pausing.enable(lambda: self._make_cut(fleet.exchange, len(fleet.devices)))
        self._schedule.begin(time.monotonic())
        if cut is not None:
            self._pausing.begin_at(cut)
            self._pausing.resume(time.monotonic(), lambda _: None)
        while not self._stopping and self._running(self._ranks):
            self._turn(None)
        while self._preempted and self._checkpointing.busy:  # who asked for it is told
            self._turn(None)

    def _stage(self) -> Stage:
        def give_up() -> None:
            self._ending = True

        return Stage(
            settings=self._settings,
            directory=self._directory,
            fleet=self._fleet,
            make_cut=self._make_cut,
            start_proxy=self._start_proxy,
            take_in=self._take_in,
            selector=self._selector,
            turn=self._turn,
            stopping=lambda: self._stopping,
            give_up=give_up,
        )

    @property
    def failed(self) -> bool:
        """Whether it ended because something went wrong."""
        return self._failure is not None and not self._signals and not self._preempted

    @property
    def noticed(self) -> bool:
        """Whether it was to be preempted."""
        return self._schedule.noticed

    @property
    def settings(self) -> JobSettings:
        """The job as it was in the end: it may have been resized."""
        return self._fleet.settings

    @property
    def signalled(self) -> bool:
        """Whether somebody wants the launcher itself to end."""
        return bool(self._signals)

    # ---- state -------------------------------------------------------------------------------------

    @property
    def _fleet(self) -> Fleet:
        return self._change.fleet

    def _status(self) -> JobStatus:
        checkpoint = None
        if self._checkpointing.busy:
            stored, total = self._capture.progress()
            doing = self._checkpointing.state.value
            checkpoint = CheckpointStatus(doing=doing, stored_bytes=stored, total_bytes=total)
        return describe_job(
            self._fleet.settings,
            self._directory,
            [*self._ranks, *self._fleet.members],
            self._pausing,
            phase=self._phase or self._transition(),
            checkpoint=checkpoint,
            started=self._started,
            now=time.monotonic(),
        )

    def _transition(self) -> str:
        if self._resizing.state is not ResizeState.IDLE:
            return "resizing"
        runs = self._checkpointing.state in (CheckpointState.IDLE, CheckpointState.STORING)
        return "" if runs and not self._preempted else "checkpointing"

    def _let_end(self) -> None:
        self._preempted = self._ending = True
        for member in self._members:
            if member.kind is Kind.BOX:
                member.errors.muted = True

    @property
    def _ranks(self) -> list[Member]:
        return [member for member in self._members if member.kind is Kind.RANK]

    @property
    def _proxies(self) -> list[Member]:
        return [member for member in self._members if member.kind is Kind.PROXY]

    @staticmethod
    def _running(members: list[Member]) -> list[Member]:
        return [member for member in members if member.ending is None]

    @property
    def _stopping(self) -> bool:
        return self._failure is not None or bool(self._signals) or self._preempted

    def _exit_code(self) -> int:
        if self._preempted or self._can_still_be_resumed():
            return EXIT_PREEMPTED
        if self._failure is not None:
            say("\n".join(describe_failure(self._failure)))
            return self._failure.exit_code
        if self._signals:
            return 128 + self._signals[0]
        return 0

    def _can_still_be_resumed(self) -> bool:
        """Whether it got a notice before it had gone on from its checkpoint, which is as good as ever."""
        noticed = self._settings.checkpoints is not None and self._signals[:1] == [signal.SIGTERM]
        return noticed and not self._begun and self._beginning.session_bytes is not None

    def _why_it_ends(self) -> str:
        if self._failure is not None:
            return f"the job ends: {self._failure.label} {self._failure.ending}"
        if self._preempted:
            return "the job ends: it was preempted"
        if self._signals:
            return f"the job ends: the launcher got {signal.Signals(self._signals[0]).name}"
        return "the job has ended"

    # ---- starting ------------------------------------------------------------------------------------

    def _start_proxy(
        self, device: int, command: list[str], environment: Mapping[str, str], inherited: Sequence[int]
    ) -> Member:
        options, descriptors = self._starter.proxy_options()
        log = self._settings.log_file(f"proxy-{device}", "stderr")
        errors = Relay(STANDARD_ERROR, prefix=f"[proxy {device}] ", log=log)
        label = f"the proxy of device {device}"
        process = start_child(
            label,
            [*command, *options],
            environment,
            stdout=errors.writing,
            stderr=errors.writing,
            inherited=[*inherited, *descriptors],
        )
        errors.close_writing()
        member = Member(label, Kind.PROXY, device, process, [errors], errors)
        self._take_in(member)
        return member

    def _take_in(self, member: Member) -> None:
        """From now on it is watched."""
        if member.process.pid > 0:
            self._guardian.know(member.process.pid)
        self._members.append(member)
        for output in member.outputs:
            output.watch(self._selector)
        member.process.watch(self._selector, lambda: self._noticed.append(member))

    # ---- watching --------------------------------------------------------------------------------------

    def _turn(self, timeout: float | None) -> None:
        """Waits for events once, and handles all that have happened."""
        due = [timeout, self._agent.next_tick(), self._schedule.next_tick(time.monotonic())]
        timeout = min((seconds for seconds in due if seconds is not None), default=None)
        for key, _ in self._selector.select(0 if self._noticed else timeout):
            key.data()
        ended, self._noticed = self._noticed, []
        if any(member.kind is Kind.RANK for member in ended):  # did it lose its proxy, or all its box?
            others = [m for m in self._running(self._members) if m.kind is not Kind.RANK and m not in ended]
            ended += [member for member in others if member.process.returncode() is not None]
        for member in sorted(ended, key=_earlier):
            self._ended(member)
        self._reap_orphans()
        self._agent.tick()
        if not self._ending:
            self._schedule.tick(time.monotonic())

    def _ended(self, member: Member) -> None:
        returncode = member.process.returncode()
        if returncode is None or member.ending is not None:
            return
        member.ending = Ending(returncode)
        member.ended = time.monotonic()
        member.process.close()
        for output in member.outputs:
            output.close()
        if member.kind is Kind.PROXY:
            if member not in self._fleet.members:
                return  # of a fleet that was given up, or never was the job's
            self._fleet.mark_dead(member.index)
        if not self._ending and self._failure is None and (member.kind is not Kind.RANK or returncode != 0):
            self._failure = self._blame(member)

    def _blame(self, member: Member) -> Failure:
        assert member.ending is not None
        device_of_rank = self._fleet.settings.device_of_rank
        served = [
            rank.index
            for rank in self._ranks
            if member.kind is Kind.BOX or device_of_rank[rank.index] == member.index
        ]
        return Failure(
            label=member.label,
            pid=member.process.pid,
            ending=member.ending,
            when=time.time(),
            tail=member.errors.tail,
            log=member.errors.log_path,
            affected=[f"rank {rank}" for rank in served] if member.kind is not Kind.RANK else [],
        )

    def _reap_orphans(self) -> None:
        """Collects descendants that lost their parent; the kernel made them our children."""
        if Background.running or self._capture.busy:
            return  # somebody waits for children of their own
        known = {member.process.pid for member in self._running(self._members)}
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
        before = {number: signal.getsignal(number) for number in (*LAUNCHER_SIGNALS, signal.SIGCHLD)}
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        for number in before:
            signal.signal(number, lambda *_: None)
        self._selector.register(self._wakeup, selectors.EVENT_READ, self._take_signals)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, LAUNCHER_SIGNALS)  # auto_resume blocks them

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
            if number == signal.SIGTERM and not self._stopping and self._schedule.notice():
                say("got SIGTERM; taking a checkpoint before the job ends (once more to end it without)")
                continue
            name = signal.Signals(number).name
            if self._schedule.noticed and not self._stopping:  # what the notice promised
                say(f"got {name} after the notice; killing the ranks")
                self._signals += [number, number]
                continue
            self._signals.append(number)
            if len(self._signals) == 1:
                say(f"got {name}; stopping the ranks (once more to kill them)")

    # ---- ending ------------------------------------------------------------------------------------------

    def _clean_up(self) -> None:
        self._ending = True
        self._phase = "ending"
        try:
            self._resizing.abandon(self._why_it_ends())
            self._checkpointing.abandon(self._why_it_ends())
            self._agent.job_ends(self._why_it_ends())
            self._starter.all_started()
            number = self._signals[0] if self._signals else signal.SIGTERM
            # A preempted job's work from here on would be lost, and done again.
            self._stop(self._ranks, number, 0.0 if self._preempted else self._settings.grace_seconds)
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
        while look() - self._starter.caretakers() and len(self._signals) < 2 and time.monotonic() < linger:
            time.sleep(0.01)
        self._starter.close()
        left = kill_until_quiet(look, _SWEEP_SECONDS)
        self.stuck = not self._capture.close()
        self._reap_orphans()
        self.swept = not left
        if left:
            say(f"could not end {', '.join(f'process {pid}' for pid in sorted(left))}; the guardian tries on")

    def _stop(self, members: list[Member], number: int, grace: float) -> None:
        """Asks politely, waits, kills.  A second signal from the user, now or before, cuts the wait."""
        self._signal(members, number)
        deadline = time.monotonic() + grace
        while self._running(members) and len(self._signals) < 2 and time.monotonic() < deadline:
            self._turn(min(1.0, max(0.0, deadline - time.monotonic())))
        self._signal(members, signal.SIGKILL)
        patience = time.monotonic() + _SWEEP_SECONDS
        while self._running(members):
            self._turn(1.0)
            if time.monotonic() > patience:  # who should tell us of their ends does not
                self._starter.close()
            if time.monotonic() > patience + _SWEEP_SECONDS:
                return  # the guardian tries on

    def _signal(self, members: list[Member], number: int) -> None:
        for member in self._running(members):
            member.process.signal(number)


def _earlier(member: Member) -> tuple[bool, bool]:
    """Sorts what ended in one turn by what probably came first."""
    returncode = member.process.returncode()
    return member.kind is Kind.RANK, returncode is None or returncode >= 0
