"""singularity-run whose checkpoints end badly: KILL=STEP:VICTIM, one of `STEPS`, in which it happens, or
several with commas, one for each checkpoint; "-" for one that ends well.  Victims: `keeper` and `criu`, who
hold the job still; `proxy`, `rank`, the first; `launcher`; `disk`, which is full."""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from singularity_core.checkpoint.host import Hold
from singularity_core.checkpoint.job.sessions import StagedMemory
from singularity_core.checkpoint.writer import CheckpointWriter
from singularity_core.launcher import attempt, job_capture, run, supervisor
from singularity_core.launcher.job_capture import JobCapture

PLANS = [(step, victim) for step, _, victim in (it.partition(":") for it in os.environ["KILL"].split(","))]
STEPS: dict[str, tuple[Any, str]] = {
    "prepared": (JobCapture, "_prepare"),
    "dumped": (Hold, "dump"),
    "copied": (job_capture, "stage_tree"),
    "memory": (StagedMemory, "stage"),
    "files": (job_capture, "capture_files"),
    "went on": (Hold, "go_on"),
    "stored": (job_capture, "put_tree"),
    "processes": (job_capture, "ingest"),
    "commit": (CheckpointWriter, "commit"),
}
"""All but the last two have been taken when it happens; those are about to be."""
NOW: list[tuple[str, str]] = []
"""What is to happen in the checkpoint that is being taken."""
SUPERVISORS: list[supervisor.Supervisor] = []


class Supervisor(supervisor.Supervisor):
    """The real one, whose parts can be found."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        SUPERVISORS.append(self)


def kill(victim: str) -> None:
    (job,) = SUPERVISORS
    if victim == "disk":
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    if victim == "launcher":
        os.kill(os.getpid(), signal.SIGKILL)
    if victim in ("rank", "proxy"):
        member = (job._ranks if victim == "rank" else job._fleet.members)[0]
        os.kill(member.process.pid, signal.SIGKILL)
        return
    capture = job._capture._current
    assert capture is not None
    assert capture.held is not None
    keeper = capture.held._keeper
    pid = keeper.criu_pid if victim == "criu" else keeper._process.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)


def dangerous(step: str, real: Callable[..., Any]) -> Callable[..., Any]:
    def taken(*arguments: Any, **named: Any) -> Any:
        if step == "prepared":
            NOW[:] = [PLANS.pop(0) if PLANS else ("-", "")]
        late = step not in ("processes", "commit")
        result = real(*arguments, **named) if late else None
        if NOW and NOW[0][0] == step:
            kill(NOW.pop()[1])
        return result if late else real(*arguments, **named)

    return taken


for step, (owner, name) in STEPS.items():
    setattr(owner, name, dangerous(step, getattr(owner, name)))
attempt.Supervisor = Supervisor  # type: ignore[misc]
sys.exit(run.main())
