"""Times on the command line."""

from __future__ import annotations

import math
import re
from typing import Any, ClassVar

import click


class Seconds(click.FloatRange):
    """A finite number of seconds within bounds; `click.FloatRange` lets "nan" and "inf" pass."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number; `click.BadParameter` for what is none, or is out of bounds."""
        seconds = float(super().convert(value, param, ctx))
        if not math.isfinite(seconds):
            self.fail(f"{value} is no number of seconds.", param, ctx)
        return seconds


class Duration(click.FloatRange):
    """``90``, ``45s``, ``30m``, ``2h``, ``1h30m`` or ``1d`` as seconds, more than none."""

    name = "duration"
    _UNITS: ClassVar = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
    _PATTERN: ClassVar = re.compile(
        r"(?:(?P<d>\d{1,6})d)?(?:(?P<h>\d{1,6})h)?(?:(?P<m>\d{1,6})m)?(?:(?P<s>\d{1,9}(?:\.\d{1,9})?)s?)?",
        re.ASCII,
    )

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The seconds; `click.BadParameter` for what is no duration."""
        if isinstance(value, float):
            return value
        found = self._PATTERN.fullmatch(str(value).strip())
        given = found.groupdict(default="0") if found else {}
        seconds = sum(float(number) * self._UNITS[unit] for unit, number in given.items())
        if seconds <= 0.0:
            self.fail(f"{value!r} is no duration; write 90, 45s, 30m, 2h or 1h30m.", param, ctx)
        return seconds
