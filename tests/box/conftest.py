"""A launcher for jobs in boxes, and whether boxes can be made here."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from singularity_core.box.errors import BoxUnavailableError
from singularity_core.box.messages import Plan, Share
from singularity_core.box.remote import Box
from singularity_core.box.trial import ADDRESS, try_box

from ..launcher.conftest import Launcher


@pytest.fixture(scope="session")
def box() -> None:
    """Skips where no box can be made."""
    try:
        try_box()
    except BoxUnavailableError as error:
        pytest.skip(f"no job box here: {error}")


@pytest.fixture
def launcher(box: None, tmp_path: Path) -> Iterator[Launcher]:
    """A launcher whose leftovers (processes, files, mounts outside of boxes) fail the test, and are removed
    all the same."""
    before = mounts()
    launcher = Launcher(tmp_path)
    yield launcher
    assert launcher.end() == []
    assert mounts() == before


MakeBox = Callable[..., Box]


@pytest.fixture
def make_box(box: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeBox]:
    """Makes a box without a launcher; it ends with the test."""
    made: list[Box] = []

    def make(
        *, work_directory: Path = tmp_path, shared: list[Share] | None = None, directory: Path = tmp_path,
        restored: bool = False,
    ) -> Box:  # fmt: skip
        monkeypatch.chdir(work_directory)
        plan = Plan(
            directory=os.fsencode(directory),
            work_directory=os.fsencode(work_directory),
            hostname="a-job",
            address=ADDRESS,
            shared=shared or [],
            fixed_addresses=True,
            restored=restored,
        )
        with (tmp_path / "messages").open("ab") as messages:
            made.append(Box(plan, dict(os.environ), messages.fileno()))
        return made[-1]

    yield make
    for one in made:
        one.end()


def mounts() -> list[str]:
    """What is mounted, as this process sees it; not what others do elsewhere meanwhile."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    ours = ("/dev/shm", "/proc", "/dev/pts", "/dev/mqueue", "/etc/hosts", os.getcwd())
    return sorted(line for line in lines if line.split()[4].startswith(ours))
