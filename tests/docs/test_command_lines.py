"""What the documentation says to type can be typed, and all that can be typed is in the documentation."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from singularity_core.launcher.ctl import cli as ctl
from singularity_core.launcher.run import cli as run

ROOT = Path(__file__).resolve().parents[2]
GUIDE = ROOT / "docs" / "operator-guide.md"
PAGES = sorted([ROOT / "README.md", ROOT / "ARCHITECTURE.md", *(ROOT / "docs").rglob("*.md")])
_LINE = re.compile(r"^(?: {4,})?(?:\$ )?(singularity-(?:run|ctl) .*)$", re.MULTILINE)
"""In a block of code; what programs say begins with their name and a colon."""
_SPAN = re.compile(r"`(singularity-(?:run|ctl)(?:\s[^`]*)?)`")
_ROW = re.compile(r"^\| `([a-z]+[^`]*)` \|", re.MULTILINE)
_REST = re.compile(r"[|>&#;]")
"""From here on it is the shell's, or a comment."""


def commands_in(text: str) -> Iterator[str]:
    """All command lines of a page."""
    for found in (*_LINE.finditer(text), *_SPAN.finditer(text)):
        yield " ".join(found[1].split())


def table_of_verbs() -> str:
    """The guide's."""
    return GUIDE.read_text().split("\n## singularity-ctl\n\n")[1].split("\n\n")[0]


COMMANDS = sorted(
    {(str(page.relative_to(ROOT)), command) for page in PAGES for command in commands_in(page.read_text())}
)


def unknown(command: str) -> list[str]:
    """What of a command line this release does not know: its verb, or options.  Brackets and dots are only
    notation."""
    program, _, rest = command.partition(" ")
    words = shlex.split(re.sub(r"[\[\]]|\.\.\.", " ", _REST.split(rest)[0]))
    wanted: click.Command = run
    if program == "singularity-ctl":
        if not words or words[0].startswith("-"):
            return [word for word in words if word not in _options(ctl)]
        verb = words.pop(0)
        if verb not in ctl.commands:
            return [verb]
        wanted = ctl.commands[verb]
    return list(_unknown_options(wanted, words))


def _unknown_options(command: click.Command, words: list[str]) -> Iterator[str]:
    options = _options(command)
    pending = iter(words)
    for word in pending:
        name = word.partition("=")[0]
        if not name.startswith("-"):
            if command is run and word != "OPTIONS":
                return  # the rest is the script's
        elif name not in options:
            yield name
        elif "=" not in word and not options[name].is_flag:
            next(pending, None)


def _options(command: click.Command) -> dict[str, click.Option]:
    with click.Context(command) as context:
        found = [
            each for each in command.get_params(context) if isinstance(each, click.Option) and not each.hidden
        ]
    return {name: each for each in found for name in (*each.opts, *each.secondary_opts)}


@pytest.mark.parametrize(("page", "command"), COMMANDS)
def test_command_lines_can_be_typed(page: str, command: str) -> None:
    """The verb exists, and every option in it is one of that verb."""
    assert unknown(command) == []


@pytest.mark.parametrize("row", _ROW.findall(table_of_verbs()))
def test_the_table_names_options_that_exist(row: str) -> None:
    """In the guide's table of verbs."""
    assert unknown(f"singularity-ctl {row}".replace("\\|", " ")) == []


@pytest.mark.parametrize("verb", sorted(ctl.commands))
def test_every_verb_is_in_the_guide(verb: str) -> None:
    """It has a row in the table with all of its long options, and is shown somewhere with its output."""
    (row,) = [row for row in _ROW.findall(table_of_verbs()) if row.split()[0] == verb]
    for name in _options(ctl.commands[verb]):
        if name.startswith("--") and name != "--help" and not (verb == "logs" and name == "--lines"):
            assert re.search(rf"{name}(?![a-z-])", row), f"{name} is missing in the row of {verb}"
    shown = re.compile(rf"^    \$ singularity-ctl {verb}\b", re.MULTILINE)
    assert any(shown.search(page.read_text()) for page in PAGES), "its output is shown nowhere"


def test_commands_were_found() -> None:
    """The patterns above find what there is, and see what is wrong."""
    assert len(COMMANDS) > 40
    assert unknown("singularity-ctl frobnicate /ckpt") == ["frobnicate"]
    assert unknown("singularity-ctl resume /ckpt --device 1") == ["--device"]
    assert unknown("singularity-run --backend fake --boxed train.py --steps 3") == ["--boxed"]
    assert unknown("singularity-run --backend fake train.py --steps 3") == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    """Each link to a file, and to a heading in it."""
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if "://" in target:
            continue
        name, _, heading = target.partition("#")
        place = (page.parent / name).resolve() if name else page
        assert place.exists(), target
        if heading:
            titles = re.findall(r"^#+ (.*)$", place.read_text(), re.MULTILINE)
            slugs = [re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles]
            assert heading in slugs, target
