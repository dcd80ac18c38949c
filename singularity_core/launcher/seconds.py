"""Times on the command line."""

from __future__ import annotations

import math
from typing import Any

import click


class Seconds(click.FloatRange):
    """A finite number of seconds within bounds; `click.FloatRange` lets "nan" and "inf" pass."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number; `click.BadParameter` for what is none, or is out of bounds."""
        seconds = float(super().convert(value, param, ctx))
        if not math.isfinite(seconds):
            self.fail(f"{value} is no number of seconds.", param, ctx)
        return seconds
