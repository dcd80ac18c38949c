"""``singularity-run``: starts a job on this node, as torchrun would."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from .. import __version__
from ..hal.registry import list_backends
from .attempt import run_attempt
from .beginning import FreshBeginning
from .boxed_ranks import BoxedRanks
from .boxing import box_options, box_settings
from .checkpoint_options import checkpoint_options, checkpoint_settings, shared_mount_option
from .errors import LaunchError, system_error
from .job_directory import JobDirectory, create_job_directory, new_job_name, sweep_stale_jobs
from .later_changes import Origin, note_origin
from .members import ChildRanks
from .probe import BackendFacts, probe_backend
from .report import fail, say
from .seconds import Seconds
from .settings import (
    MAX_RANKS,
    JobSettings,
    build_command,
    client_library_directory,
    free_port,
    job_environment,
    new_attempt,
)
from .sharing import place_ranks, placement_options, swap_limit

_F = TypeVar("_F", bound=Callable[..., Any])


def _option(name: str, *more: str, **settings: Any) -> Callable[[_F], _F]:
    """An option in `-` and `_` spelling, with its default in SINGULARITY_RUN_<NAME> or torchrun's
    PET_<NAME>."""
    spellings = dict.fromkeys([name, f"--{name[2:].replace('-', '_')}", *more])
    word = name[2:].replace("-", "_").upper()
    variables = [f"SINGULARITY_RUN_{word}", f"PET_{word}"]
    if word == "BACKEND":
        variables = ["SINGULARITY_BACKEND", *variables]
    destination = settings.pop("destination", name[2:].replace("-", "_"))
    return click.option(destination, *spellings, envvar=variables, show_envvar=False, **settings)


@click.command(
    context_settings={"allow_interspersed_args": False, "help_option_names": ["-h", "--help"]},
    epilog="Each option has an environment default: SINGULARITY_RUN_NPROC_PER_NODE=2, and so on.",
)
@_option("--backend", help="The kind of device (singularity-ctl backends lists them).  No default.")
@_option("--nproc-per-node", default="1", show_default=True, help="Ranks: a number, gpu, auto or cpu.")
@_option("--devices", type=click.IntRange(1), help="Physical devices to use.  [default: one per rank]")
@_option("--nnodes", default="1", show_default=True, help="Nodes; this release runs on one.")
@_option("--node-rank", type=int, default=0, help="Must be 0.")
@_option("--standalone", is_flag=True, help="As torchrun's; a job on one node always is.")
@_option("--rdzv-id", help="Name of the job, for TORCHELASTIC_RUN_ID and logs.  [default: a new one]")
@_option("--rdzv-backend", default="static", help="Accepted; one node needs no rendezvous.")
@_option("--rdzv-endpoint", default="", help="HOST[:PORT] for MASTER_ADDR and MASTER_PORT.")
@_option("--rdzv-conf", default="", help="Accepted; one node needs no rendezvous.")
@_option("--master-addr", default="127.0.0.1", show_default=True)
@_option("--master-port", type=click.IntRange(0, 65535), default=0, help="[default: a free one]")
@_option("--max-restarts", type=int, default=0, help="Must be 0 in this release.")
@_option("--monitor-interval", type=float, default=0.1, help="Accepted; the launcher does not poll.")
@_option("--role", default="default", show_default=True, help="ROLE_NAME of the ranks.")
@_option("--log-dir", type=click.Path(path_type=Path, file_okay=False),
         help="Keep each rank's output in DIR/ID/attempt_N/RANK/{stdout,stderr}.log.")  # fmt: skip
@_option("--grace-seconds", type=Seconds(0), default=30.0, show_default=True,
         help="Between the polite signal and SIGKILL.")  # fmt: skip
@_option("--no-proxy", is_flag=True, help="Load the backend's driver library into the ranks (a baseline).")
@_option("--module", "-m", is_flag=True, help="The script is a module name, as for python -m.")
@_option("--no-python", is_flag=True, help="The script is a program; run it without Python.")
@placement_options(_option)
@box_options(_option)
@checkpoint_options(_option)
@shared_mount_option(_option)
@click.version_option(__version__, prog_name="singularity-run")
@click.argument("target", nargs=-1, type=click.UNPROCESSED, metavar="SCRIPT [ARGS]...")
def cli(**options: Any) -> None:
    """Run SCRIPT once per rank, on devices that proxies hold.

    Everything after SCRIPT goes to the script untouched.  The exit code is 0, that of the first rank that
    failed, 128 + n when signal n ended it or the launcher, or 2 for a usage error."""
    sys.exit(_launch(**options))


def _launch(backend: str | None, target: tuple[str, ...], **options: Any) -> int:
    if not backend:
        raise click.UsageError(f"--backend is missing (or SINGULARITY_BACKEND); {_offer()}")
    if not target:
        raise click.UsageError("the script is missing")
    _refuse_what_is_not_there(options)
    count = _rank_count(options["nproc_per_node"])
    facts = probe_backend(backend)
    settings = _job_settings(backend, target, options, count, facts)
    library = client_library_directory() if settings.proxied else _direct_directory(facts)
    for name in sweep_stale_jobs():
        say(f"removed what was left of job {name}, whose launcher was killed")

    def make_beginning(directory: JobDirectory) -> FreshBeginning:
        if settings.proxied:
            directory.make_file_log()
            here = os.getcwd()
            note_origin(directory.path, Origin(job=directory.job, work_directory=here, place=here))
        common = job_environment(settings, directory.job, os.environ, library)
        if not settings.proxied:
            common |= facts.environment
        ranks = BoxedRanks(settings, settings.box, directory) if settings.box else ChildRanks(settings)
        return FreshBeginning(ranks, common)

    return run_attempt(settings, create_job_directory(), make_beginning, facts.environment)


def _offer() -> str:
    ready = [found.name for found in list_backends() if found.availability.available]
    others = [
        f"{found.name} ({found.availability.reason.rstrip('.')})"
        for found in list_backends()
        if not found.availability.available
    ]
    return f"available: {', '.join(ready) or 'none'}" + (f"; not here: {', '.join(others)}" if others else "")


def _refuse_what_is_not_there(options: dict[str, Any]) -> None:
    if options["nnodes"] not in ("1", "1:1"):
        raise click.UsageError(f"--nnodes {options['nnodes']}: this release runs jobs on one node only")
    if options["node_rank"] != 0:
        raise click.UsageError(f"--node-rank {options['node_rank']}: with one node it is 0")
    if options["max_restarts"] != 0:
        raise click.UsageError(
            f"--max-restarts {options['max_restarts']}: this release does not restart jobs; use 0"
        )
    if options["module"] and options["no_python"]:
        raise click.UsageError("--module and --no-python exclude each other")
    name = options["rdzv_id"]
    if name is not None and not re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]*", name):
        raise click.UsageError(f"--rdzv-id {name!r}: letters, digits, '.', '_' and '-' only")


def _rank_count(text: str) -> int | None:
    """A number of ranks; None for one per device."""
    if text in ("gpu", "auto"):
        return None
    if text == "cpu":
        return os.cpu_count() or 1
    if not _is_number(text) or not 1 <= int(text) <= MAX_RANKS:
        raise click.UsageError(f"--nproc-per-node {text}: a number from 1 to {MAX_RANKS}, gpu, auto or cpu")
    return int(text)


def _is_number(text: str) -> bool:
    """Digits that `int` takes; not those of other scripts, nor superscripts."""
    return text.isascii() and text.isdecimal()


def _job_settings(
    backend: str, target: tuple[str, ...], options: dict[str, Any], count: int | None, facts: BackendFacts
) -> JobSettings:
    wanted = options["devices"]
    if wanted is not None and wanted > facts.device_count:
        raise click.UsageError(
            f"--devices {wanted}: backend {backend!r} has {facts.device_count} device(s) here"
        )
    proxied = not options["no_proxy"]
    if proxied and not facts.proxied:
        raise click.UsageError(f"backend {backend!r} has no driver library for a proxy; use --no-proxy")
    placement = place_ranks(options, count, facts.device_count)
    if proxied and (sharing := placement.describe_sharing()):
        say(sharing)
    host, _, port = options["rdzv_endpoint"].partition(":")
    if port and not (_is_number(port) and int(port) <= 65535):
        raise click.UsageError(
            f"--rdzv-endpoint {options['rdzv_endpoint']}: HOST[:PORT], with a port up to 65535"
        )
    if port and options["master_port"] not in (0, int(port)):
        raise click.UsageError(
            f"--rdzv-endpoint and --master-port name different ports: {port} and "
            f"{options['master_port']}; leave one out"
        )
    master_addr = host or options["master_addr"]
    checkpoints = checkpoint_settings(options)
    if checkpoints is not None and not proxied:
        raise click.UsageError(
            "--checkpoint-to: only ranks behind proxies can be checkpointed; leave out --no-proxy"
        )
    if checkpoints is not None and not options["box"]:
        if os.geteuid() == 0:
            options["box"] = True
        else:
            say("no checkpoint can be taken: that takes root, because the ranks have to be in a box")
    box = box_settings(options, master_addr)
    run_id = options["rdzv_id"] or new_job_name()
    return JobSettings(
        backend=backend,
        command=build_command(target, module=options["module"], no_python=options["no_python"]),
        ranks=len(placement.device_of_rank),
        devices=placement.devices,
        device_of_rank=placement.device_of_rank,
        swap_limit=swap_limit(options),
        slice_wait=options["slice_wait"],
        proxied=proxied,
        run_id=run_id,
        master_addr=master_addr,
        master_port=int(port or 0) or options["master_port"] or free_port(),
        role=options["role"],
        log_dir=new_attempt(options["log_dir"] / run_id) if options["log_dir"] else None,
        grace_seconds=options["grace_seconds"],
        grid=placement.grid,
        available=facts.device_count,
        box=box,
        checkpoints=checkpoints,
        shared_mounts=tuple(dict.fromkeys(options["shared_mount"])),
    )


def _direct_directory(facts: BackendFacts) -> Path | None:
    return Path(facts.rank_library_directory) if facts.rank_library_directory else None


def main() -> None:
    """The console script."""
    try:
        cli.main(prog_name="singularity-run", standalone_mode=False)
    except click.exceptions.Exit as ending:
        sys.exit(ending.exit_code)
    except click.exceptions.Abort:  # SIGINT before there was a job
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (LaunchError, OSError) as error:
        refused = system_error(error, "The job cannot go on") if isinstance(error, OSError) else error
        fail(refused.cause, refused.remedy)
        sys.exit(refused.exit_code)


if __name__ == "__main__":
    main()
