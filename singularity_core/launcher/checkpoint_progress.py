"""Shows how far a checkpoint is while singularity-ctl waits for it."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import Future, wait
from pathlib import Path

import click

from .agent_client import ask
from .agent_messages import LONGEST_PAUSE, CheckpointRequest, CheckpointStatus, Done, JobStatus, StatusRequest
from .errors import LaunchError

_LOOK_SECONDS = 0.25
_STEPS = 1000
_SECONDS = 2 * LONGEST_PAUSE
"""For the answer: a store may be slow, and when the launcher ends the connection does."""


def ask_for_checkpoint(job: Path, request: CheckpointRequest) -> Done:
    """Asks the agent of the job with directory `job`; meanwhile there is a bar on standard error, if that is
    a terminal."""
    if not sys.stderr.isatty():
        return ask(job, request, Done, seconds=_SECONDS)
    answer: Future[Done] = Future()
    # A daemon: who is interrupted does not wait for it.
    threading.Thread(target=_ask, args=(job, request, answer), daemon=True).start()
    with click.progressbar(length=_STEPS, label="preparing", file=sys.stderr, show_eta=False) as bar:
        shown = 0
        while not answer.done():
            wait([answer], _LOOK_SECONDS)
            found = _look(job)
            share = found.stored_bytes / found.total_bytes if found and found.total_bytes else 0.0
            bar.label = found.doing if found else bar.label
            bar.update(int(share * _STEPS) - shown)
            shown = int(share * _STEPS)
            bar.render_progress()
    return answer.result()


def _ask(job: Path, request: CheckpointRequest, answer: Future[Done]) -> None:
    try:
        answer.set_result(ask(job, request, Done, seconds=_SECONDS))
    except BaseException as error:
        answer.set_exception(error)


def _look(job: Path) -> CheckpointStatus | None:
    try:
        return ask(job, StatusRequest(), JobStatus).checkpoint
    except LaunchError:
        return None
