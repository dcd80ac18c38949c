"""How a job begins: its place is made, its proxies are started, and then its ranks.  Here those of a job that
is new; `resuming` has those that come from a checkpoint.

A beginning is called once, by the supervisor, in whose loop (`Stage.turn`) everything that takes time is
waited for: so signals are obeyed, the agent answers, and who dies is seen meanwhile."""

from __future__ import annotations

import selectors
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ..barrier.interface import Cut
from .errors import LaunchError
from .fleet import Fleet, StartProxy
from .job_directory import JobDirectory
from .members import Member, RankStarter
from .settings import JobSettings, rank_environment

_PROXY_START_SECONDS = 120.0


@dataclass(frozen=True)
class Stage:
    """What a supervisor offers to a beginning."""

    settings: JobSettings
    directory: JobDirectory
    fleet: Fleet
    """Not started yet; of no use if the job is not proxied."""
    make_cut: Callable[[Path, int], Cut]
    """From an exchange directory and the number of its proxies."""
    start_proxy: StartProxy
    take_in: Callable[[Member], None]
    """From now on the member is watched."""
    selector: selectors.BaseSelector
    turn: Callable[[float | None], None]
    """Waits for events once, at most so many seconds, and handles all that have happened."""
    stopping: Callable[[], bool]
    """Whether the job is to end: begin no more, and return."""
    give_up: Callable[[], None]
    """From now on it is no failure if a part of the job ends."""


class Beginning(Protocol):
    """One way to begin."""

    @property
    def ranks(self) -> RankStarter:
        """How, and where, the ranks run."""

    @property
    def phase(self) -> str:
        """What `status` calls the job meanwhile."""

    @property
    def session_bytes(self) -> int | None:
        """The device memory of each session that its proxies take over; None: there is none yet."""

    def begin(self, stage: Stage) -> Cut | None:
        """Starts all of the job, or as much as there is until it is to end.  Returns the cut at which its
        ranks stand; None: they stand at none.

        :raises LaunchError: It cannot begin; the supervisor ends what has begun."""


class FreshBeginning:
    """All ranks start their command."""

    phase = "starting"
    session_bytes = None

    def __init__(self, ranks: RankStarter, common_environment: Mapping[str, str]) -> None:
        """`common_environment`: what the environments of all ranks have in common."""
        self.ranks = ranks
        self._common_environment = common_environment

    def begin(self, stage: Stage) -> None:
        """See `Beginning`."""
        place = self.ranks.open()
        if place is not None:
            stage.take_in(place)
        if stage.settings.proxied:
            stage.fleet.start(stage.start_proxy)
            await_proxies(stage, lambda: stage.fleet.ready, "was not ready")
        for rank in range(stage.settings.ranks):
            if not stage.stopping():
                environment = rank_environment(
                    stage.settings, self._common_environment, rank, stage.directory.path
                )
                stage.take_in(self.ranks.start(rank, environment))
        self.ranks.all_started()


def await_proxies(stage: Stage, there: Callable[[], bool], late: str) -> None:
    """Waits until `there`, or the job is to end.  `LaunchError` when it takes too long: `late` is what the
    proxies that are not ready have not done."""
    deadline = time.monotonic() + _PROXY_START_SECONDS
    while not stage.stopping() and not there():
        if time.monotonic() > deadline:
            labels = [member.label for member in stage.fleet.members if not member.ready]
            raise LaunchError(
                f"{', '.join(labels)} {late} within {_PROXY_START_SECONDS:.0f} s.",
                remedy="See its messages above, and `singularity-ctl doctor`.",
            )
        stage.turn(1.0)
