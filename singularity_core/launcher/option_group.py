"""Options that belong together, defined away from the command that has them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


def option_group(options: Sequence[Callable[[Any], Any]]) -> Callable[[Any], Any]:
    """A decorator that gives a command all of `options`, which its help lists in this order."""

    def add(command: Any) -> Any:
        for one in reversed(options):
            command = one(command)
        return command

    return add
