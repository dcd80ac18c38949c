"""Writes docs/reference/hal.md from the docstrings of the contract; ``--check`` only says whether it is
current.

python docs/make_hal_reference.py [--check]
"""

from __future__ import annotations

import enum
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from singularity_core.hal import (
    backend,
    capabilities,
    device,
    digest,
    errors,
    group,
    hookspecs,
    registry,
    types,
)

PAGE = Path(__file__).parent / "reference" / "hal.md"
SECTIONS = (
    ("Devices", device),
    ("Groups of devices", group),
    ("Backends", backend),
    ("Values", types),
    ("Capabilities", capabilities),
    ("Errors", errors),
    ("Hooks", hookspecs),
    ("Registry", registry),
    ("Content digest", digest),
)


def page() -> str:
    """The whole page."""
    lines = [
        "# HAL reference",
        "",
        "Made from the docstrings by `docs/make_hal_reference.py`.  Do not edit.",
        "",
    ]
    for title, module in SECTIONS:
        lines += [f"## {title}: `{module.__name__}`", "", *text(module), ""]
        for name, member in vars(module).items():
            if not name.startswith("_") and getattr(member, "__module__", None) == module.__name__:
                lines += describe(name, member)
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).rstrip() + "\n"


def describe(name: str, member: object) -> Iterator[str]:
    """A class with its public members, or a function."""
    if isinstance(member, type):
        bases = [base.__name__ for base in member.__bases__ if base not in (object, enum.Enum)]
        yield from (
            f"### {name}{f'({bases[0]})' if bases and bases != ['ABC'] else ''}",
            "",
            *text(member),
            "",
        )
        if issubclass(member, enum.Enum):
            yield from (", ".join(f"`{entry.name}`" for entry in member), "")
            return
        for own, value in vars(member).items():
            plain = value.__func__ if isinstance(value, classmethod) else value
            if own.startswith("_") or not (inspect.isfunction(plain) or isinstance(plain, property)):
                continue
            signature = "" if isinstance(plain, property) else str(inspect.signature(plain)).replace("'", "")
            yield from (f"#### {own}", "", f"`{name}.{own}{signature}`", "", *text(plain), "")
    elif inspect.isfunction(member):
        signature = str(inspect.signature(member)).replace("'", "")
        signature = re.sub(r"environ\(.*\)\)", "os.environ)", signature)  # not this machine's
        yield from (
            f"### {name}",
            "",
            f"`{name}{signature}`",
            "",
            *text(member),
            "",
        )


def text(documented: object) -> list[str]:
    """Lines of a docstring; none for what inherits its documentation."""
    return (inspect.getdoc(documented) or "").splitlines()


def main(arguments: list[str]) -> int:
    """Writes the page, or with ``--check`` compares it; exit status 1 when it is not current."""
    wanted = page()
    if "--check" in arguments:
        return int(not PAGE.exists() or PAGE.read_text() != wanted)
    PAGE.write_text(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
