"""Sessions that die, and sessions that are made again from their replay log."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parent / "programs"


class Children:
    """Programs of one test, spoken to by lines; all end with the test."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.environment = environment
        self.running: list[subprocess.Popen[str]] = []

    def start(self, program: str, *arguments: str, directory: Path | None = None) -> subprocess.Popen[str]:
        """A program; with `directory` as a rank of the proxy that serves it.  Waits for its first line."""
        environment = dict(self.environment)
        if directory is not None:
            library = str(files("singularity_core") / "lib" / "rank")
            environment |= {
                "SINGULARITY_DEVICES": str(directory),
                "SINGULARITY_RANK": "0",
                "LD_LIBRARY_PATH": library,
            }
        command = [sys.executable, "-P", str(PROGRAMS / program), *arguments]
        if directory is not None:
            environment["PYTHONPATH"] = str(PROGRAMS)
        pipe = subprocess.PIPE
        child = subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        self.running.append(child)
        return child

    def close(self) -> None:
        """Ends what still runs."""
        for child in reversed(self.running):
            if child.poll() is None:
                child.kill()
            child.communicate()


def ask(child: subprocess.Popen[str], line: str) -> str:
    """One line there, one line back."""
    assert child.stdin is not None
    child.stdin.write(line + "\n")
    child.stdin.flush()
    return hear(child)


def hear(child: subprocess.Popen[str]) -> str:
    """The next line of a child; the test fails with its last words when it has ended."""
    assert child.stdout is not None
    line = child.stdout.readline().strip()
    if not line:
        pytest.fail(f"the program ended: {child.communicate()[1][-2000:]}")
    return line


@pytest.fixture
def children(rank_environment: dict[str, str]) -> Iterator[Children]:
    """Starts programs, and ends them with the test."""
    found = Children(rank_environment | {"SINGULARITY_FAKE_MEMORY": "512M"})
    yield found
    found.close()


@pytest.fixture
def directory() -> Iterator[Path]:
    """A private directory in shared memory."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as path:
        yield Path(path)


def test_dead_proxy_is_reported(children: Children, directory: Path) -> None:
    """When the proxy dies, the waiting call and all later ones return 46; one line names call and cause."""
    proxy = children.start("replaying_proxy.py", str(directory))
    assert hear(proxy) == "ready"
    rank = children.start("outlives_proxy.py", directory=directory)
    assert hear(rank) == "waiting"
    proxy.kill()
    proxy.wait()
    assert hear(rank) == "passed"
    _, stderr = rank.communicate(timeout=60)
    assert stderr.count("\n") == 1
    assert stderr.startswith("singularity: rank 0: cuStreamSynchronize: the device session is gone")


def test_log_makes_everything_again(children: Children, tmp_path: Path) -> None:
    """A replayed log gives the same handles and addresses in a fresh session, and the same log again."""
    logs = [tmp_path / "first", tmp_path / "second"]
    for step, log in zip(("all", "empty"), logs, strict=True):
        with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
            proxy = children.start("replaying_proxy.py", directory)
            assert hear(proxy) == "ready"
            rank = children.start("many_objects.py", step, directory=Path(directory))
            assert hear(rank) == "made"
            if step == "empty":
                assert ask(proxy, f"import {logs[0]}") == "imported"
            assert ask(proxy, f"export {log}").startswith("exported ")
            rank.communicate("\n", timeout=60)
            proxy.communicate("stop\n", timeout=60)
            assert (rank.returncode, proxy.returncode) == (0, 0)
    assert logs[0].stat().st_size > 200_000  # the large module's image is in it
    assert logs[1].read_bytes() == logs[0].read_bytes()
