"""From the command line to when a job is checkpointed by itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from .option_group import option_group
from .seconds import Duration
from .settings import CheckpointSettings

_ONLY_WITH_STORE = ("checkpoint_every", "keep", "auto_resume")


def checkpoint_options(option: Callable[..., Callable[[Any], Any]]) -> Callable[[Any], Any]:
    """Adds the options about checkpoints; `option` makes one in all its spellings."""
    options = [
        option("--checkpoint-to", metavar="STORE",
               help="Directory or URL for checkpoints.  Then SIGTERM is a notice: the job is checkpointed, "
               "and ends with exit code 85; a second one ends it.  Puts the ranks in a box (as --box)."),
        option("--checkpoint-every", type=Duration(), metavar="TIME",
               help="Take one every TIME (90s, 30m, 2h).  Needs --checkpoint-to."),
        option("--keep", type=click.IntRange(1), metavar="N",
               help="Delete all but the job's newest N checkpoints from the store."),
        option("--auto-resume", is_flag=True,
               help="When a rank or a proxy fails, go on from the newest checkpoint."),
    ]  # fmt: skip
    return option_group(options)


def shared_mount_option(option: Callable[..., Callable[[Any], Any]]) -> Callable[[Any], Any]:
    """Adds the one about what no checkpoint contains."""
    return option(
        "--shared-mount",
        metavar="DIR",
        multiple=True,
        type=click.Path(exists=True, file_okay=False, resolve_path=True),
        help="Checkpoints leave alone what is in DIR, and a resume finds there what there is.  May be given "
        "more than once.",
    )


def checkpoint_settings(options: dict[str, Any]) -> CheckpointSettings | None:
    """None: nothing happens by itself.  `click.UsageError` for what does not go together."""
    place = options["checkpoint_to"]
    if place is None:
        given = [name for name in _ONLY_WITH_STORE if options[name]]
        if given:
            name = given[0].replace("_", "-")
            raise click.UsageError(f"--{name}: where do checkpoints go? add --checkpoint-to STORE")
        return None
    return CheckpointSettings(
        store_place(place), options["checkpoint_every"], options["keep"], options["auto_resume"]
    )


def store_place(store: str) -> str:
    """A store as everybody finds it, in whatever directory they are."""
    return store if "://" in store else str(Path(store).absolute())
