"""singularity-ctl whose resume ends badly: KILL=STEP:VICTIM, one of `STEPS`, after which it happens.
Victims: `launcher`, which is killed; `signal`, which it gets; `proxy`, the first; `box`; `disk`, which is
full.  At the step `commit` it is the last write of all that fails, when the processes run."""

from __future__ import annotations

import errno
import os
import signal
import threading
from collections.abc import Callable
from typing import Any

from singularity_core.checkpoint.file_journal import FileJournal
from singularity_core.launcher import ctl, restored_beginning
from singularity_core.launcher.beginning import Stage
from singularity_core.launcher.fleet import Fleet
from singularity_core.launcher.members import Member
from singularity_core.launcher.processes import process_table
from singularity_core.launcher.restored_ranks import RestoredRanks

STEP, VICTIM = os.environ["KILL"].split(":")
STAGES: list[Stage] = []
STEPS: dict[str, tuple[Any, str]] = {
    "sessions": (restored_beginning, "take_tree"),
    "memory": (restored_beginning, "take_memory"),
    "box": (RestoredRanks, "open"),
    "proxies": (Fleet, "start"),
    "files": (RestoredRanks, "open_logs"),
    "processes": (restored_beginning, "restore"),
    "adopted": (RestoredRanks, "adopt"),
    "carried": (restored_beginning, "carry_communicators"),
    "told": (Fleet, "take_over"),
    "commit": (FileJournal, "commit"),
}
SOON = 0.1
"""After the beginning of the step `criu`: somewhere in it, mostly."""


def kill() -> None:
    if VICTIM == "disk":
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    if VICTIM == "launcher":
        os.kill(os.getpid(), signal.SIGKILL)
    if VICTIM == "signal":
        os.kill(os.getpid(), signal.SIGTERM)
    (stage,) = STAGES
    if VICTIM == "proxy":
        os.kill(stage.fleet.members[0].process.pid, signal.SIGKILL)
    if VICTIM == "box":
        BOXES[0].kill()


BOXES: list[RestoredRanks] = []
RANKS: list[int] = []


def dangerous(real: Callable[..., Any], *, soon: bool = False) -> Callable[..., Any]:
    def taken(*arguments: Any, **named: Any) -> Any:
        if STEP == "commit":
            assert RANKS
            kill()
        if soon:
            threading.Timer(SOON, kill).start()
        result = real(*arguments, **named)
        if not soon:
            kill()
        return result

    return taken


def adopt_noted(self: RestoredRanks) -> list[Member]:
    members = adopt(self)
    RANKS.extend(member.process.pid for member in members)
    return members


def undo_after_the_end(self: FileJournal) -> None:
    """The exit code says so if files are taken from processes that still run."""
    table = process_table()
    if any(pid in table and not table[pid].zombie for pid in RANKS):
        os._exit(99)
    undo(self)


adopt, undo = RestoredRanks.adopt, FileJournal.undo
RestoredRanks.adopt = adopt_noted  # type: ignore[method-assign]
FileJournal.undo = undo_after_the_end  # type: ignore[method-assign]
begin = restored_beginning.RestoredBeginning.begin


def begin_noted(self: restored_beginning.RestoredBeginning, stage: Stage) -> Any:
    STAGES.append(stage)
    BOXES.append(self.ranks)
    return begin(self, stage)


restored_beginning.RestoredBeginning.begin = begin_noted  # type: ignore[method-assign]
owner, name = STEPS["processes" if STEP == "criu" else STEP]
setattr(owner, name, dangerous(getattr(owner, name), soon=STEP == "criu"))
ctl.main()
