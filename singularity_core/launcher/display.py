"""How singularity-ctl prints: tables on a terminal, tab-separated lines elsewhere, JSON when asked."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from typing import Any

import click

SCHEMA_VERSION = 1
"""Of the JSON that --json prints; grows when a field changes its meaning or goes."""

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON with a schema_version.")

_COLOURS = {
    **dict.fromkeys(("ok", "available", "running"), "green"),
    **dict.fromkeys(("warning", "paused", "pausing", "continuing", "starting", "ending"), "yellow"),
    **dict.fromkeys(("failed", "broken"), "red"),
}


def print_json(content: dict[str, Any], *, indent: int | None = 2) -> None:
    """Prints `content` with the schema's version."""
    click.echo(json.dumps({"schema_version": SCHEMA_VERSION, **content}, indent=indent))


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]], *, kind: str = "") -> None:
    """A table on a terminal; tab-separated lines, for other programs, elsewhere, each led by `kind` if
    there is one."""
    if not sys.stdout.isatty():
        for row in rows:
            click.echo("\t".join([kind, *row] if kind else row))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*header, box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for row in rows:
        table.add_row(*(Text(cell, style=_COLOURS.get(cell, "")) for cell in row))
    Console(no_color="NO_COLOR" in os.environ).print(table)


def size_text(number: int | None) -> str:
    """Bytes, with a letter for their order of magnitude; "-" for what is not known."""
    if number is None:
        return "-"
    size, unit = float(number), "B"
    for larger in "KMGTPE":
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{size:.1f}{unit}" if unit != "B" else f"{number}B"
