"""``singularity-ctl resume``: becomes the launcher of a job that comes from a checkpoint."""

from __future__ import annotations

import dataclasses
import os
import sys
from pathlib import Path

import click

from ..checkpoint.criu import CriuFound, CriuUnavailableError, find_criu
from ..checkpoint.errors import StoreError
from ..checkpoint.files import differences, read_file_list
from ..checkpoint.manifest import Manifest
from ..checkpoint.store import Store
from .attempt import run_attempt
from .checkpoint_options import checkpoint_options, checkpoint_settings
from .display import json_option, print_json
from .errors import LaunchError
from .job_directory import JobDirectory, create_job_directory, sweep_stale_jobs
from .job_record import OBJECT, JobRecord, decode_record, misfits, settings_of
from .known_stores import find_known
from .later_changes import LaterChanges, Origin, later_changes, note_origin
from .machine import Misfit, this_machine
from .probe import BackendFacts, probe_backend
from .processes import job_members
from .report import say
from .restore_place import take_restore_place
from .restored_beginning import Checkpoint, RestoredBeginning, path_mapping
from .restored_ranks import RestoredRanks
from .settings import CheckpointSettings, JobSettings, MovedDirectory
from .sharing import Placement, place_again
from .store_verbs import open_store


@click.command()
@click.argument("store", metavar="STORE|JOB")
@click.argument("checkpoint", required=False)
@click.option("--job", help="The newest checkpoint of this job.  [default: the newest of all]")
@click.option(
    "--devices", type=click.IntRange(1), help="Physical devices to use.  [default: as many as before]"
)
@click.option("--devices-at-most", type=click.IntRange(1), hidden=True)  # of auto_resume: as many as are left
@click.option(
    "--work-directory",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    metavar="DIR",
    help="Go on in DIR: what the job has below its work directory is put there, and seen where it was.",
)
@click.option("--dry-run", is_flag=True, help="Only say whether anything stands in the way.")
@checkpoint_options(click.option)
@json_option
def resume(
    store: str,
    checkpoint: str | None,
    job: str | None,
    devices: int | None,
    devices_at_most: int | None,
    work_directory: Path | None,
    dry_run: bool,
    as_json: bool,
    **options: object,
) -> None:
    """Go on with the job in a CHECKPOINT of STORE, or with a JOB that was checkpointed here, as its launcher:
    like singularity-run, with the same exit codes.

    Its ranks go on where they stood, in a new box, on this machine's devices.  With --dry-run, and --json,
    exit code 1 when it could not."""
    checkpoints = checkpoint_settings(dict(options))
    try:
        if "://" not in store and not Path(store).is_dir():
            known = find_known(store)
            store, job = known.store, job or known.job
        source = _find(open_store(store), checkpoint, job)
        plan = _Plan.make(source, devices, devices_at_most, checkpoints, work_directory)
        if dry_run:
            sys.exit(_report(plan, as_json))
        sys.exit(plan.run())
    except StoreError as error:
        raise LaunchError(error.cause, remedy=error.remedy) from error


def _find(store: Store, checkpoint: str | None, job: str | None) -> Checkpoint:
    if checkpoint is None:
        found = store.checkpoints(job)
        if not found:
            of = f" of job {job}" if job else ""
            raise LaunchError(f"{store.place}: there is no checkpoint{of}.", remedy=_LIST.format(store.place))
        checkpoint = found[0].checkpoint
    with store.read(checkpoint) as reader:
        if not _holds_a_job(reader.manifest):
            raise LaunchError(
                f"Checkpoint {checkpoint} in {store.place} is not of a job.", remedy=_LIST.format(store.place)
            )
        record = decode_record(reader.read(OBJECT))
    return Checkpoint(store, checkpoint, record)


def _move(settings: JobSettings, record: JobRecord, work_directory: Path | None) -> JobSettings:
    """In another work directory."""
    if work_directory is None or str(work_directory.resolve()) == record.work_directory:
        return settings
    moved = MovedDirectory(record.work_directory, str(work_directory.resolve()))
    log_dir = None if settings.log_dir is None else Path(moved.found(str(settings.log_dir)))
    return dataclasses.replace(settings, moved=moved, log_dir=log_dir)


_LIST = "`singularity-ctl checkpoints {}` lists what there is."


def _holds_a_job(manifest: Manifest) -> bool:
    return any(each.name == OBJECT for each in manifest.objects)


@dataclasses.dataclass(frozen=True)
class _Plan:
    """How the job would go on here."""

    checkpoint: Checkpoint
    settings: JobSettings
    facts: BackendFacts | LaunchError
    criu: CriuFound | CriuUnavailableError

    @classmethod
    def make(
        cls,
        checkpoint: Checkpoint,
        devices: int | None,
        at_most: int | None,
        checkpoints: CheckpointSettings | None,
        work_directory: Path | None,
    ) -> _Plan:
        """`LaunchError` when so many devices cannot be had."""
        record = checkpoint.record
        facts: BackendFacts | LaunchError
        try:
            facts = probe_backend(record.settings.backend)
        except LaunchError as error:
            facts = error
        available = record.settings.devices if isinstance(facts, LaunchError) else facts.device_count
        settings = _move(settings_of(record, available=available), record, work_directory)
        most = min(available, at_most or settings.devices)
        if devices is not None or settings.devices != most:
            settings = place_again(settings, devices or most)
        criu: CriuFound | CriuUnavailableError
        try:
            criu = find_criu()
        except CriuUnavailableError as error:
            criu = error
        return cls(checkpoint, dataclasses.replace(settings, checkpoints=checkpoints), facts, criu)

    def obstacles(self) -> list[Misfit]:
        """What stands in the way, but for files."""
        devices, moved = sorted(set(self.settings.device_of_ordinal)), self.settings.moved
        found = misfits(self.checkpoint.record, this_machine(), self.facts, devices)
        if isinstance(self.criu, CriuUnavailableError):
            found.append(Misfit(self.criu.cause, self.criu.remedy))
        if moved and not os.path.isdir(moved.inside):
            found.append(
                Misfit(
                    f"There is no directory {moved.inside} here, where the job will see {moved.outside}.",
                    f"Make an empty one (mkdir -p {moved.inside}).",
                )
            )
        return found

    def origin(self) -> Origin:
        """For those who resume it once more."""
        record, moved = self.checkpoint.record, self.settings.moved
        place = moved.outside if moved else record.work_directory
        return Origin(job=record.job, work_directory=record.work_directory, place=place)

    def files(self) -> tuple[list[str], LaterChanges]:
        """What of the files that do not travel is not here as it was, and what the job did later."""
        mapping = path_mapping(self.settings)
        with self.checkpoint.store.read(self.checkpoint.name) as reader:
            files = read_file_list(reader)
        return differences(files, mapping), later_changes(files, self.origin(), mapping)

    def sharing(self) -> str:
        """Who would share a device."""
        return Placement(self.settings.devices, self.settings.device_of_rank).describe_sharing()

    def run(self) -> int:
        """Becomes the launcher; returns its exit code."""
        for obstacle in self.obstacles():
            raise LaunchError(obstacle.cause, remedy=obstacle.remedy)
        assert not isinstance(self.facts, LaunchError)
        assert not isinstance(self.criu, CriuUnavailableError)
        record, box, criu = self.checkpoint.record, self.settings.box, self.criu
        assert box is not None, "a record has one"
        for name in sweep_stale_jobs():
            say(f"removed what was left of job {name}, whose launcher was killed")
        place = take_restore_place(record.job)
        if sharing := self.sharing():
            say(sharing)

        def make_beginning(directory: JobDirectory) -> RestoredBeginning:
            note_origin(directory.path, self.origin())
            ranks = RestoredRanks(self.settings, box, directory, record)
            return RestoredBeginning(self.checkpoint, ranks, criu, place.path, self.origin())

        say(f"resuming job {record.settings.run_id} from checkpoint {self.checkpoint.name}")
        try:
            directory = create_job_directory()
        except LaunchError:
            place.close()
            raise
        return run_attempt(self.settings, directory, make_beginning, self.facts.environment, place=place)


def _report(plan: _Plan, as_json: bool) -> int:
    """Says what would happen; returns the exit code."""
    record = plan.checkpoint.record
    problems = [f"{each.cause} {each.remedy}".rstrip() for each in plan.obstacles()]
    missing, later = plan.files()
    problems += [f"file in use: {each}" for each in missing]
    if members := job_members(record.job):
        problems.append(f"The job still runs here: process {min(members)} is one of it.")
    if as_json:
        print_json(
            {
                "checkpoint": plan.checkpoint.name,
                "job": record.job,
                "id": record.settings.run_id,
                "ranks": len(record.ranks),
                "devices": plan.settings.devices,
                "problems": problems,
                "removed": later.made,
                "warnings": list(later.warnings()),
            }
        )
    else:
        shared = plan.sharing() or f"each of {len(record.ranks)} ranks has a device of its own"
        click.echo(f"checkpoint {plan.checkpoint.name} of job {record.settings.run_id}: {shared}")
        for problem in problems:
            click.echo(f"  {problem}", err=True)
        for line in later.plan():
            click.echo(f"  {line}")
        if not problems:
            click.echo("nothing stands in the way")
    return 1 if problems else 0
