"""How the HAL's tests run pytest on a suite of their own, and build the tutorial's backend."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = ROOT / "docs" / "backend-authors.md"


@dataclass(frozen=True)
class Outcome:
    """What a run of pytest said about each test."""

    passed: frozenset[str]
    failed: frozenset[str]
    skipped: frozenset[str]
    xfailed: frozenset[str]
    errors: frozenset[str]
    output: str
    status: int


RunSuite = Callable[..., Outcome]


@pytest.fixture(scope="module", autouse=True)
def two_small_devices(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Settings of the in-memory device for these tests; the library reads them when it is first used."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SINGULARITY_FAKE_DEVICES", "2")
        patch.setenv("SINGULARITY_FAKE_MEMORY", "512M")
        patch.setenv("SINGULARITY_FAKE_CACHE", str(tmp_path_factory.getbasetemp() / "objects"))
        yield


@pytest.fixture(scope="session")
def tutorial(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the files that the tutorial for backend authors consists of."""
    folder = tmp_path_factory.mktemp("tutorial")
    blocks: dict[str, list[str]] = {}
    for found in re.finditer(r"^```python (?:file=(\S+)|run)\n(.*?)^```$", DOCUMENT.read_text(), re.M | re.S):
        blocks.setdefault(found[1] or "run.py", []).append(found[2])
    for name, texts in blocks.items():
        (folder / name).write_text("\n".join(texts))
    return folder


@pytest.fixture
def run_suite(tmp_path: Path) -> RunSuite:
    """`run_suite(text, *arguments, plugins=[], env={})` runs pytest on a file with that text, in a process of
    its own."""

    def run(
        text: str, *arguments: str, plugins: list[Path] | None = None, env: dict[str, str] | None = None
    ) -> Outcome:
        (tmp_path / "test_inner.py").write_text(text)
        (tmp_path / "pytest.ini").write_text("[pytest]\n")
        environment = {
            **os.environ,
            "SINGULARITY_PLUGINS": ":".join(map(str, plugins or [])),
            **(env or {}),
        }
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "no:cacheprovider",
            "-v",
            "-rA",
            "--tb=short",
            *arguments,
        ]
        done = subprocess.run(
            [*command, "test_inner.py"], cwd=tmp_path, env=environment, text=True, timeout=280, check=False,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        return read_outcome(done.stdout, done.returncode)

    return run


def read_outcome(output: str, status: int) -> Outcome:
    """Sorts the lines of ``pytest -v``."""
    found: dict[str, set[str]] = {}
    for line in re.finditer(
        r"^test_inner\.py::(\S+?)(?:::(.+?))? (PASSED|FAILED|SKIPPED|XFAIL|ERROR)\b", output, re.M
    ):
        found.setdefault(line[3], set()).add(line[2] or line[1])
    sets = {
        name: frozenset(found.get(name, ())) for name in ("PASSED", "FAILED", "SKIPPED", "XFAIL", "ERROR")
    }
    return Outcome(
        sets["PASSED"], sets["FAILED"], sets["SKIPPED"], sets["XFAIL"], sets["ERROR"], output, status
    )
