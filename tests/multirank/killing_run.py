"""singularity-run that kills a process at a step of a resize, or lets the step fail: KILL=STEP:VICTIM, a step
of `ResizeSteps` after which it happens, or several with commas, one for each resize.  Victims: `new` and
`old`, the first of the proxies; `rank`, the last; `launcher`; `disk`, which is full."""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from singularity_core.launcher import attempt, run, supervisor
from singularity_core.launcher.errors import system_error
from singularity_core.launcher.fleet import FleetChange

PLANS = [plan.split(":") for plan in os.environ["KILL"].split(",")]


class KillingChange(FleetChange):
    """The real one, but for the steps that end badly."""

    when, victim = "", ""

    def kill(self, victim: str) -> None:
        if victim == "disk":
            raise system_error(
                OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), "no room for the new proxies"
            )
        if victim == "launcher":
            os.kill(os.getpid(), signal.SIGKILL)
        if victim == "rank":
            member = max(RANKS(), key=lambda member: member.index)
        else:
            fleets = {"old": self._before or self.fleet, "new": self._next or self.fleet}
            member = fleets[victim].members[0]
        os.kill(member.process.pid, signal.SIGKILL)
        # so that it is dead when the next step begins, and still to be noticed
        os.waitid(os.P_PID, member.process.pid, os.WEXITED | os.WNOWAIT)


RANKS: Callable[[], list[Any]] = list


class Supervisor(supervisor.Supervisor):
    """The real one, whose ranks can be found."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        global RANKS
        super().__init__(*arguments, **named)
        RANKS = lambda: self._ranks  # noqa: E731


def dangerous(step: str) -> Callable[..., Any]:
    real: Callable[..., Any] = getattr(FleetChange, step)

    def taken(self: KillingChange, *arguments: Any) -> Any:
        if step == "prepare":
            self.when, self.victim = PLANS.pop(0) if PLANS else ("", "")
        result = real(self, *arguments)
        if step == self.when and result is not False:
            self.when = ""
            self.kill(self.victim)
        return result

    return taken


for name in ("prepare", "prepared", "write", "written", "take_over", "taken_over", "commit", "retire"):
    setattr(KillingChange, name, dangerous(name))
supervisor.FleetChange = KillingChange  # type: ignore[misc]
attempt.Supervisor = Supervisor  # type: ignore[misc]
sys.exit(run.main())
