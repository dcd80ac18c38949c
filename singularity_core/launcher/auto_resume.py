"""After a failure a job goes on from its newest checkpoint, if it is to do that by itself.

The launcher becomes `singularity-ctl resume` (execve): the same process for whoever started it, with nothing
left of the attempt before."""

from __future__ import annotations

import os
import signal
import sys

from ..checkpoint.errors import StoreError
from ..checkpoint.store import Store
from .processes import LAUNCHER_SIGNALS
from .report import say
from .settings import CheckpointSettings, JobSettings

MOST_ATTEMPTS = 3
"""From one checkpoint."""
_ATTEMPT = "SINGULARITY_RESUMED"
"""Environment: the checkpoint that this process went on from, a colon, and the how many-th time that was."""


def goes_on(job_settings: JobSettings, job: str, *, noticed: bool) -> bool:
    """Goes on with a job that failed, of which nothing is left here; does not return then.  `noticed`: it was
    to end here; True: it can go on elsewhere."""
    settings = job_settings.checkpoints
    if settings is None or not settings.auto_resume:
        return False
    try:
        found = Store.open(settings.place).checkpoints(job_settings.lineage or job)
    except (StoreError, OSError) as error:
        say(f"not resumed: {error}")
        return False
    if not found:
        say("not resumed: there is no checkpoint of the job yet")
        return False
    checkpoint = found[0].checkpoint
    if noticed:
        say(f"not resumed, for it was to end: `singularity-ctl resume` goes on from checkpoint {checkpoint}")
        return True
    attempt = _attempts(checkpoint) + 1
    if attempt > MOST_ATTEMPTS:
        say(f"not resumed: it failed {MOST_ATTEMPTS} times from checkpoint {checkpoint}")
        return False
    say(f"resuming the job from checkpoint {checkpoint} (attempt {attempt} of {MOST_ATTEMPTS})")
    sys.stdout.flush()
    sys.stderr.flush()
    # A notice that comes before it listens must not kill it: it waits until then.
    signal.pthread_sigmask(signal.SIG_BLOCK, LAUNCHER_SIGNALS)
    environment = {**os.environ, _ATTEMPT: f"{checkpoint}:{attempt}"}
    command = _command(settings, checkpoint)
    command += ["--devices-at-most", str(job_settings.devices)]
    if job_settings.moved:
        command += ["--work-directory", job_settings.moved.outside]
    os.execve(sys.executable, command, environment)
    raise AssertionError("unreachable")


def _attempts(checkpoint: str) -> int:
    before, _, number = os.environ.get(_ATTEMPT, "").partition(":")
    return int(number) if before == checkpoint and number.isdecimal() else 0


def _command(settings: CheckpointSettings, checkpoint: str) -> list[str]:
    command = [
        sys.executable,
        "-P",
        "-m",
        "singularity_core.launcher.ctl",
        "resume",
        settings.place,
        checkpoint,
    ]
    command += ["--checkpoint-to", settings.place, "--auto-resume"]
    if settings.every is not None:
        command += ["--checkpoint-every", repr(settings.every)]
    if settings.keep is not None:
        command += ["--keep", str(settings.keep)]
    return command
