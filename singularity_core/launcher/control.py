"""The verbs of singularity-ctl about running jobs.  Exit codes: 0 done, 1 failed or timed out, 2 usage."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import click
import msgspec

from .agent_client import (
    ANSWER_SECONDS,
    START_ONE,
    FoundJobs,
    JobGoneError,
    JobSilentError,
    ask,
    find_job,
    find_jobs,
)
from .agent_messages import (
    LONGEST_PAUSE,
    CheckpointRequest,
    ContinueRequest,
    Counters,
    Done,
    JobStatus,
    LogPaths,
    LogsRequest,
    PauseRequest,
    RankStatus,
    ResizeRequest,
    StatusRequest,
)
from .checkpoint_options import store_place
from .checkpoint_progress import ask_for_checkpoint
from .display import json_option, print_json, print_table, size_text
from .errors import LaunchError
from .log_reading import LogReader
from .resizing import MOST_SECONDS
from .seconds import Seconds

_RANK_HEADER = ("rank", "dev", "pid", "state", "busy", "queued", "share", "switches", "swapped", "live",
                "launches")  # fmt: skip
_job_argument = click.argument("job", required=False)


def verbs() -> list[click.Command]:
    """All of them."""
    return [status, pause, resume, resize, checkpoint, preempt, logs]


@click.command()
@_job_argument
@json_option
@click.option("--watch", type=Seconds(0.1), metavar="SECONDS", help="Again and again, until it ends.")
def status(job: str | None, as_json: bool, watch: float | None) -> None:
    """Show what JOB (default: all of yours) does: ranks, proxies, and what each used so far."""
    shown = _show(job, as_json, compact=watch is not None)
    while watch is not None and (shown.jobs or shown.silent):
        time.sleep(watch)
        try:
            shown = _show(job, as_json, compact=True)
        except JobGoneError:
            return
    sys.exit(1 if shown.silent else 0)


def _show(job: str | None, as_json: bool, *, compact: bool) -> FoundJobs:
    """Prints once what there is."""
    found = FoundJobs([find_job(job)], {}) if job is not None else find_jobs()
    if not as_json and not found.jobs and not found.silent:
        raise JobGoneError("No job of yours runs here.", remedy=START_ONE)
    if as_json:
        records = [_record(one.status) for one in found.jobs]
        print_json({"jobs": records}, indent=None if compact else 2)
    else:
        if compact and sys.stdout.isatty():
            click.clear()
        for one in found.jobs:
            _print_job(one.status)
    for error in found.silent.values():
        tell(error)
    return found


def _record(job: JobStatus) -> dict[str, Any]:
    record: dict[str, Any] = msgspec.to_builtins(job)
    del record["kind"], record["schema_version"]  # of the agent's protocol, not of this
    return record


def _print_job(job: JobStatus) -> None:
    print_table(
        ("job", "id", "state", "backend", "ranks", "running for"),
        [(job.job, job.run_id, job.state, job.backend, str(len(job.ranks)), f"{job.elapsed_seconds:.0f} s")],
        kind="job",
    )
    print_table(_RANK_HEADER, [_rank_row(rank) for rank in job.ranks], kind="rank")
    if job.proxies:
        rows = [
            (str(p.device), str(p.pid), p.state, size_text(p.arena_bytes), str(p.sessions))
            for p in job.proxies
        ]
        print_table(("device", "proxy", "state", "arena", "sessions"), rows, kind="proxy")
    for line in job.waiting:
        print_table(("waits",), [(line,)], kind="waits")


def _rank_row(rank: RankStatus) -> tuple[str, ...]:
    known = rank.counters is not None
    used = rank.counters or Counters()
    fraction = f"{rank.device_fraction:.1%}" if rank.device_fraction is not None else "-"
    numbers = (
        _seconds(used.device_ns), _seconds(used.queue_ns), fraction, str(used.switches),
        size_text(used.swapped_bytes), size_text(used.live_bytes), str(used.launches),
    )  # fmt: skip
    device = "-" if rank.device is None else str(rank.device)
    pid = "-" if rank.pid is None else str(rank.pid)
    return (str(rank.rank), device, pid, rank.state, *(numbers if known else ("-",) * len(numbers)))


def _seconds(nanoseconds: int) -> str:
    return f"{nanoseconds / 1e9:.1f}s"


@click.command()
@_job_argument
@json_option
@click.option("--timeout", type=Seconds(0, LONGEST_PAUSE, min_open=True), default=60.0,
              show_default=True, metavar="SECONDS",
              help="Then everything is released, and the job goes on.")  # fmt: skip
def pause(job: str | None, as_json: bool, timeout: float) -> None:
    """Stop all ranks of JOB (default: the only one) at one consistent point.

    Exit code 1 when that does not work in time: then it says which rank did not stop, and what it waits
    for."""
    found = find_job(job)
    try:
        done = ask(found.path, PauseRequest(timeout=timeout), Done, seconds=timeout + ANSWER_SECONDS)
    except KeyboardInterrupt:
        click.echo(
            f"the job may still be paused; `singularity-ctl continue {found.status.job}` undoes it", err=True
        )
        sys.exit(130)
    _finish(found.status.job, done, as_json)


@click.command(name="continue")
@_job_argument
@json_option
def resume(job: str | None, as_json: bool) -> None:
    """Let the ranks of JOB (default: the only one) go on; ends a pause that is under way."""
    found = find_job(job)
    _finish(found.status.job, ask(found.path, ContinueRequest(), Done, seconds=60.0), as_json)


@click.command()
@click.argument("arguments", nargs=-1, required=True, metavar="[JOB] DEVICES")
@json_option
@click.option("--timeout", type=Seconds(0, LONGEST_PAUSE, min_open=True), default=60.0,
              show_default=True, metavar="SECONDS",
              help="Until all ranks must stand at one point; then the job goes on as before.")  # fmt: skip
def resize(arguments: tuple[str, ...], as_json: bool, timeout: float) -> None:
    """Let JOB (default: the only one) go on with another number of DEVICES, without a restart.

    Its ranks stop at one consistent point, other device proxies take over, and all go on.  Exit code 1 when
    that does not work: then it says why, and the job goes on as before."""
    *names, number = arguments
    if len(names) > 1 or not (number.isascii() and number.isdecimal() and 1 <= int(number) <= 1 << 16):
        raise click.UsageError(f"{' '.join(arguments)}: [JOB] DEVICES, with a number of devices from 1")
    found = find_job(names[0] if names else None)
    seconds = timeout + MOST_SECONDS + ANSWER_SECONDS
    try:
        done = ask(found.path, ResizeRequest(devices=int(number), timeout=timeout), Done, seconds=seconds)
    except KeyboardInterrupt:
        click.echo(f"the job may still be resized; see `singularity-ctl status {found.status.job}`", err=True)
        sys.exit(130)
    _finish(found.status.job, done, as_json)


_to_option = click.option(
    "--to", "store", required=True, metavar="STORE",
    help="Directory or URL of the store that it goes to; made when it is not there.",
)  # fmt: skip
_cut_timeout_option = click.option(
    "--timeout", type=Seconds(0, LONGEST_PAUSE, min_open=True), default=60.0, show_default=True,
    metavar="SECONDS", help="Until all ranks must stand at one point; then the job goes on as before.",
)  # fmt: skip
_dry_run_option = click.option("--dry-run", is_flag=True, help="Only say whether anything stands in the way.")


@click.command()
@_job_argument
@_to_option
@_cut_timeout_option
@click.option(
    "--keep", type=click.IntRange(1), metavar="N", help="Delete all but the job's newest N from STORE."
)
@_dry_run_option
@json_option
def checkpoint(
    job: str | None, store: str, timeout: float, keep: int | None, dry_run: bool, as_json: bool
) -> None:
    """Take a checkpoint of JOB (default: the only one), which runs on.

    Its ranks stand still while they are copied; the copies are stored when they run again.  Exit code 1 when
    that does not work: then it says why, and the job goes on as before."""
    _take(
        job, CheckpointRequest(store=store_place(store), timeout=timeout, dry_run=dry_run, keep=keep), as_json
    )


@click.command()
@_job_argument
@_to_option
@_cut_timeout_option
@_dry_run_option
@json_option
def preempt(job: str | None, store: str, timeout: float, dry_run: bool, as_json: bool) -> None:
    """Take a checkpoint of JOB (default: the only one), and end it; `singularity-ctl resume` goes on with it.

    singularity-run ends with exit code 85.  Exit code 1 when no checkpoint can be taken: then it says why,
    and the job goes on as before."""
    request = CheckpointRequest(store=store_place(store), timeout=timeout, preempt=True, dry_run=dry_run)
    _take(job, request, as_json)


def _take(job: str | None, request: CheckpointRequest, as_json: bool) -> None:
    found = find_job(job)
    try:
        done = ask_for_checkpoint(found.path, request)
    except KeyboardInterrupt:
        name = found.status.job
        click.echo(f"the checkpoint may still be taken; see `singularity-ctl status {name}`", err=True)
        sys.exit(130)
    _finish(found.status.job, done, as_json)


def _finish(job: str, done: Done, as_json: bool) -> None:
    if as_json:
        print_json(
            {"job": job, "ok": done.ok, "state": done.state, "message": done.message, "waiting": done.waiting}
        )
    else:
        click.echo(f"{job}: {done.message}", err=not done.ok)
        for line in done.waiting:
            click.echo(f"  {line}", err=True)
    sys.exit(0 if done.ok else 1)


@click.command()
@_job_argument
@json_option
@click.option("--rank", type=click.IntRange(0), help="Only this one.")
@click.option("--follow", "-f", is_flag=True, help="Go on until the job ends.")
@click.option("--lines", "-n", type=click.IntRange(0), default=20, show_default=True, help="Of each file.")
def logs(job: str | None, as_json: bool, rank: int | None, follow: bool, lines: int) -> None:
    """Print the last lines that the ranks of JOB (default: the only one) wrote, or with --json where they
    are."""
    found = find_job(job)
    paths = ask(found.path, LogsRequest(), LogPaths)
    chosen = [one for one in paths.ranks if rank is None or one.rank == rank]
    if not chosen:
        raise click.UsageError(f"--rank {rank}: the job has ranks 0 to {len(paths.ranks) - 1}")
    if as_json:
        print_json({"job": paths.job, "ranks": [msgspec.to_builtins(one) for one in chosen]})
        return
    readers = [
        LogReader(f"[rank{one.rank} {stream}] ", path)
        for one in chosen
        for stream, path in (("stdout", one.stdout), ("stderr", one.stderr))
    ]
    for reader in readers:
        _echo(reader.tail(lines) + ([] if follow else reader.rest()))
    while follow:
        alive = _answers(found.path)
        for reader in readers:
            _echo(reader.more())
        if not alive:
            for reader in readers:
                _echo(reader.rest())
            return
        time.sleep(0.2)


def _answers(path: Any) -> bool:
    try:
        ask(path, StatusRequest(), JobStatus)
    except JobGoneError:
        return False
    except JobSilentError:
        return True  # it may be stopped for a while
    return True


def _echo(lines: list[bytes]) -> None:
    for line in lines:
        sys.stdout.buffer.write(line + b"\n")
    sys.stdout.buffer.flush()


def guarded(main: Callable[[], None]) -> None:
    """Runs `main`; what cannot be done is told on stderr and becomes the exit code."""
    try:
        main()
    except LaunchError as error:
        tell(error)
        sys.exit(error.exit_code)


def tell(error: LaunchError) -> None:
    """What does not work, and what to do about it."""
    click.echo(f"singularity-ctl: {error.cause}", err=True)
    if error.remedy:
        click.echo(f"  {error.remedy}", err=True)
