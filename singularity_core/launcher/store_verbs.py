"""``singularity-ctl checkpoints|verify|gc``: what is in a store of checkpoints, whether it is whole, and what
of it may go."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path

import click

from ..checkpoint.errors import StoreError
from ..checkpoint.manifest import Manifest
from ..checkpoint.store import Store
from .display import json_option, print_json, print_table, size_text
from .errors import LaunchError

_store_argument = click.argument("store")


def store_verbs() -> list[click.Command]:
    """All of them."""
    return [checkpoints, verify, gc]


def open_store(place: str) -> Store:
    """The store in a directory that is there, or at a URL.  `LaunchError` when it cannot be opened."""
    try:
        if "://" not in place and not Path(place).is_dir():
            raise LaunchError(f"{place}: there is no store.", remedy="Name its directory, or its URL.")
        return Store.open(place)
    except StoreError as error:
        raise LaunchError(error.cause, remedy=error.remedy) from error


def _size(manifest: Manifest) -> int:
    return sum(stored.size for stored in manifest.objects)


def _time(manifest: Manifest) -> str:
    return datetime.fromtimestamp(manifest.created_ns / 1e9, tz=UTC).strftime("%Y-%m-%d %H:%M:%SZ")


@click.command()
@_store_argument
@json_option
@click.option("--job", help="Only those of this job.")
def checkpoints(store: str, as_json: bool, job: str | None) -> None:
    """List the checkpoints in STORE, newest first."""
    try:
        found = open_store(store).checkpoints(job)
    except StoreError as error:
        raise LaunchError(error.cause, remedy=error.remedy) from error
    if as_json:
        print_json(
            {
                "store": store,
                "checkpoints": [
                    {
                        "checkpoint": each.checkpoint,
                        "job": each.job,
                        "created": _time(each),
                        "bytes": _size(each),
                        "labels": each.labels,
                    }
                    for each in found
                ],
            }
        )
        return
    rows = [(each.checkpoint, each.job, _time(each), size_text(_size(each))) for each in found]
    print_table(("checkpoint", "job", "taken", "size"), rows, kind="checkpoint")


@click.command()
@_store_argument
@click.argument("checkpoint", nargs=-1)
@json_option
def verify(store: str, checkpoint: tuple[str, ...], as_json: bool) -> None:
    """Read all that the checkpoints in STORE need (default: all of them), and name what is damaged.

    Exit code 1 when something is."""
    try:
        damage = open_store(store).verify(checkpoint or None)
    except StoreError as error:
        raise LaunchError(error.cause, remedy=error.remedy) from error
    if as_json:
        keys = ("checkpoint", "object_name", "chunk_index", "key", "problem")
        print_json({"store": store, "damage": [{key: getattr(each, key) for key in keys} for each in damage]})
    else:
        for each in damage:
            click.echo(str(each), err=True)
        if not damage:
            click.echo(f"{store}: all is there, and as it was stored")
    sys.exit(1 if damage else 0)


@click.command()
@_store_argument
@json_option
@click.option("--keep", type=click.IntRange(1), help="Of each job; delete all older ones.")
@click.option("--pin", "pins", multiple=True, metavar="CHECKPOINT", help="Not this one; may be repeated.")
@click.option("--dry-run", is_flag=True, help="Only say what would go.")
def gc(store: str, as_json: bool, keep: int | None, pins: tuple[str, ...], dry_run: bool) -> None:
    """Delete old checkpoints from STORE, if --keep says so, and free what nobody needs.

    Jobs may write checkpoints meanwhile."""
    try:
        report = open_store(store).gc(keep=keep, pins=pins, dry_run=dry_run)
    except StoreError as error:
        raise LaunchError(error.cause, remedy=error.remedy) from error
    if as_json:
        print_json(
            {
                "store": store,
                "dry_run": dry_run,
                "checkpoints": list(report.checkpoints),
                "abandoned": list(report.abandoned),
                "chunks": report.chunks,
                "bytes": report.bytes,
                "leftovers": report.leftovers,
            }
        )
        return
    gone = len(report.checkpoints) + len(report.abandoned)
    verb = "would free" if dry_run else "freed"
    click.echo(
        f"{store}: {verb} {size_text(report.bytes)} in {report.chunks} chunks; {gone} checkpoints"
        f"{' would go' if dry_run else ' gone'}, {report.leftovers} leftovers of interrupted writes"
    )
    for each in report.checkpoints:
        click.echo(f"  {each}")
    for each in report.abandoned:
        click.echo(f"  {each} (its writer was killed)")
