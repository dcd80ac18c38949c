"""``singularity-ctl``: jobs, what is installed, and whether this machine can run jobs."""

from __future__ import annotations

import sys
from typing import Any

import click

from .. import __version__
from ..hal.registry import BackendDescription, list_backends
from .control import guarded, verbs
from .display import json_option, print_json, print_table
from .resuming import resume
from .store_verbs import store_verbs


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="singularity-ctl")
def cli() -> None:
    """Look at jobs and control them; look at what is installed, and at whether jobs can run here."""


@cli.command()
@json_option
def backends(as_json: bool) -> None:
    """List the backends, and why those that cannot be used cannot."""
    found = list_backends()
    if as_json:
        print_json({"backends": [_backend_record(description) for description in found]})
        return
    rows = [
        (d.name, d.availability.state.value, str(d.device_count), d.summary or d.availability.reason)
        for d in found
    ]
    print_table(("backend", "state", "devices", "summary"), rows)
    for description in found:
        reason = description.availability
        if not reason.available:
            click.echo(f"{description.name}: {reason.reason} {reason.remedy}".rstrip(), err=True)


def _backend_record(description: BackendDescription) -> dict[str, Any]:
    availability = description.availability
    return {
        "name": description.name,
        "summary": description.summary,
        "version": description.version,
        "origin": description.origin,
        "state": availability.state.value,
        "reason": availability.reason,
        "remedy": availability.remedy,
        "device_count": description.device_count,
    }


@cli.command()
@json_option
def doctor(as_json: bool) -> None:
    """Check what this machine must offer.  Exit code 1 when something required is missing."""
    from .doctor import Verdict, examine

    findings = examine()
    healthy = all(finding.verdict is not Verdict.FAILED for finding in findings)
    if as_json:
        print_json(
            {
                "healthy": healthy,
                "checks": [
                    {"check": f.check, "verdict": f.verdict.value, "detail": f.detail, "remedy": f.remedy}
                    for f in findings
                ],
            }
        )
    else:
        print_table(("check", "verdict", "detail"), [(f.check, f.verdict.value, f.detail) for f in findings])
        for finding in findings:
            if finding.verdict is not Verdict.OK and finding.remedy:
                click.echo(f"{finding.check}: {finding.remedy}", err=True)
    sys.exit(0 if healthy else 1)


for _verb in [*verbs(), resume, *store_verbs()]:
    cli.add_command(_verb)


def main() -> None:
    """The console script."""
    guarded(lambda: cli.main(prog_name="singularity-ctl"))


if __name__ == "__main__":
    main()
