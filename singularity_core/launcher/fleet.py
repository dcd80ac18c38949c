"""The device proxies that serve a job: one for each physical device, each with the doors of the ordinals
behind which that device is.  A job has one fleet at a time; a resize gives it another."""

from __future__ import annotations

import os
import selectors
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ..barrier.coordinator import carry_communicators
from ..barrier.interface import Cut
from ..proxy.process import PREPARED_LINE, READY_LINE
from .door import Dead, mark_dead
from .errors import LaunchError, system_error
from .job_directory import JobDirectory
from .members import Member
from .pausing import Pausing
from .processes import kill_all
from .sessions import read_arena_bytes
from .settings import JobSettings, ordinals_of, proxy_environment
from .sharing import Placement, place_again

StartProxy = Callable[[int, list[str], Mapping[str, str], Sequence[int]], Member]
"""Starts the proxy of a device with a command, an environment, and the descriptors that it inherits."""


class Fleet:
    """The proxies of `settings`, which share the directory `exchange`."""

    def __init__(
        self,
        settings: JobSettings,
        directory: JobDirectory,
        exchange: Path,
        environment: Mapping[str, str],
        selector: selectors.BaseSelector,
        *,
        arena_bytes: int | None = None,
        restored: bool = False,
    ) -> None:
        """`environment`: what the backend asks for.  `arena_bytes`: they take over the sessions of others,
        which have that much memory; None: they begin.  `restored`: those come from a checkpoint."""
        self.settings = settings
        self.exchange = exchange
        # also those that no rank is placed on: a rank may open any ordinal that it sees
        self.devices = sorted(set(settings.device_of_ordinal))
        self.members: list[Member] = []
        self._directory = directory
        self._environment = environment
        self._selector = selector
        self._arena_bytes = arena_bytes
        self._restored = restored
        self._prepared: set[int] = set()
        self._go = -1

    def start(self, start_proxy: StartProxy) -> None:
        """Starts all of them.  Those that take over wait for `take_over`."""
        wait, self._go = os.pipe2(os.O_CLOEXEC)
        try:
            for device in self.devices:
                self._start(device, wait, start_proxy)
        finally:
            os.close(wait)

    def _start(self, device: int, wait: int, start_proxy: StartProxy) -> None:
        ready, tell = os.pipe2(os.O_CLOEXEC)
        environment = proxy_environment(self._directory.job, self._environment, device)
        try:
            member = start_proxy(device, self._command(device, tell, wait), environment, (tell, wait))
        except BaseException:
            os.close(ready)
            raise
        finally:
            os.close(tell)
        self.members.append(member)
        self._listen(member, ready)

    def _command(self, device: int, tell: int, wait: int) -> list[str]:
        settings = self.settings
        command = [
            *(sys.executable, "-P", "-m", "singularity_core.proxy"),
            *("--backend", settings.backend, "--device", "0"),  # the one that it sees
            *("--ready-fd", str(tell), "--exchange", str(self.exchange)),
            *("--proxy-index", str(self.devices.index(device)), "--proxy-count", str(len(self.devices))),
        ]
        for ordinal in ordinals_of(device, settings.device_of_ordinal):
            command += ["--directory", str(self._directory.ordinal_directory(ordinal))]
        if settings.swap_limit is not None:
            command += ["--swap-limit", str(settings.swap_limit)]
        if settings.slice_wait is not None:
            command += ["--slice-wait", str(settings.slice_wait)]
        if self._arena_bytes is not None:
            command += ["--arena", str(self._arena_bytes), "--resume-fd", str(wait)]
        if self._restored:
            command += ["--restored"]
        return command

    def _listen(self, member: Member, ready: int) -> None:
        def says() -> None:
            said = os.read(ready, 64)
            if said == PREPARED_LINE:
                self._prepared.add(member.index)
                return
            member.ready = said == READY_LINE
            self._selector.unregister(ready)
            os.close(ready)  # without a word: it is dying, and its pidfd will say so

        self._selector.register(ready, selectors.EVENT_READ, says)

    @property
    def prepared(self) -> bool:
        """Whether all have opened their devices, and wait for `take_over`."""
        return len(self._prepared) == len(self.devices)

    def check_living(self) -> None:
        """`LaunchError` with its last words when one of them has ended."""
        for member in self.members:
            if member.ending is not None:
                said = "; ".join(line.strip() for line in member.errors.tail[-2:])
                raise LaunchError(f"{member.label} {member.ending}" + f" ({said})" * bool(said))

    def take_over(self) -> None:
        """The sessions are there."""
        os.write(self._go, b"." * len(self.devices))

    @property
    def ready(self) -> bool:
        """Whether all serve."""
        return all(member.ready for member in self.members)

    @property
    def proxy_of_rank(self) -> list[int]:
        """The index of the proxy that serves each rank, as its peers count them."""
        return [self.devices.index(device) for device in self.settings.device_of_rank]

    def mark_dead(self, device: int) -> None:
        """Tells the ranks that the proxy of `device` is dead."""
        for ordinal in ordinals_of(device, self.settings.device_of_ordinal):
            mark_dead(self._directory.ordinal_path(ordinal), Dead.PROXY)

    def kill(self) -> None:
        """Ends all at once."""
        self.close()
        kill_all(member.process.pid for member in self.members if member.ending is None)

    def close(self) -> None:
        """Forgets how to tell them anything."""
        if self._go >= 0:
            os.close(self._go)
        self._go = -1


class FleetChange:
    """What a resize does (`ResizeSteps`): another fleet takes the place of the job's."""

    def __init__(
        self,
        fleet: Fleet,
        pausing: Pausing,
        directory: JobDirectory,
        *,
        make_fleet: Callable[[JobSettings, Path, int], Fleet],
        make_cut: Callable[[Path, int], Cut],
        start_proxy: StartProxy,
    ) -> None:
        """`make_fleet`: one that takes over, by its exchange directory and the memory of each session."""
        self.fleet = fleet
        """The job's."""
        self._pausing = pausing
        self._directory = directory
        self._make_fleet = make_fleet
        self._make_cut = make_cut
        self._start_proxy = start_proxy
        self._settings = fleet.settings
        self._arena_bytes = 0
        self._next: Fleet | None = None
        self._before: Fleet | None = None
        self._next_cut: Cut | None = None

    def plan(self, devices: int) -> str:
        """See `ResizeSteps`."""
        self._settings = place_again(self.fleet.settings, devices)
        if self._settings.device_of_ordinal == self.fleet.settings.device_of_ordinal:
            return ""
        self._arena_bytes = self.arena_bytes()
        said = Placement(devices, self._settings.device_of_rank).describe_sharing()
        return said or f"each of {self._settings.ranks} ranks has a device of its own"

    def arena_bytes(self) -> int:
        """Device memory that each session of the job sees; `LaunchError` when they differ."""
        ordinals = range(len(self.fleet.settings.device_of_ordinal))
        found = {read_arena_bytes(self._directory.ordinal_path(ordinal)) for ordinal in ordinals}
        size = found.pop()
        if size is None or found:
            raise LaunchError(
                "The devices of this job offer different amounts of memory.",
                remedy="Only jobs whose devices are alike can be resized or checkpointed.",
            )
        return size

    def prepare(self) -> None:
        """See `ResizeSteps`."""
        try:
            exchange = self._directory.new_exchange_directory()
        except OSError as error:
            raise system_error(error, "No directory for the new proxies") from error
        self._next = self._make_fleet(self._settings, exchange, self._arena_bytes)
        self._next_cut = self._make_cut(exchange, len(self._next.devices))
        self._next_cut.freeze_ahead()
        self._next.start(self._start_proxy)

    def prepared(self) -> bool:
        """See `ResizeSteps`."""
        return self._living().prepared

    def _living(self) -> Fleet:
        assert self._next is not None
        self._next.check_living()
        return self._next

    def write(self) -> None:
        """See `ResizeSteps`."""
        self._living()
        self._pausing.cut().hand_over()

    def written(self) -> bool:
        """See `ResizeSteps`."""
        return self._pausing.cut().handed_over()

    def take_over(self) -> None:
        """See `ResizeSteps`."""
        fleet = self._living()
        carry_communicators(self.fleet.exchange, fleet.exchange, fleet.proxy_of_rank)
        fleet.take_over()

    def taken_over(self) -> bool:
        """See `ResizeSteps`."""
        return self._living().ready

    def commit(self) -> Cut:
        """See `ResizeSteps`."""
        assert self._next is not None
        assert self._next_cut is not None
        cut = self._next_cut
        self._before, self.fleet = self.fleet, self._next
        self._next = self._next_cut = None
        return cut

    def retire(self) -> None:
        """See `ResizeSteps`."""
        self.fleet.close()
        if self._before is not None:
            self._before.kill()
            shutil.rmtree(self._before.exchange, ignore_errors=True)
        self._before = None

    def abandon(self) -> None:
        """See `ResizeSteps`."""
        if self._next is not None:
            self._next.kill()
            if self._next_cut is not None:
                self._next_cut.close()
            shutil.rmtree(self._next.exchange, ignore_errors=True)
        self._next = self._next_cut = None
