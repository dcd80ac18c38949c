"""A proxy of one in-memory device, and ranks that share it, without the launcher."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

import pytest

from singularity_core.launcher.agent_messages import Counters
from singularity_core.launcher.sessions import read_sessions

TESTS: Final = Path(__file__).parents[1]
PROGRAMS: Final = Path(__file__).parent / "programs"
INTERPRETER: Final = TESTS / "multirank" / "programs" / "interpreter.py"
MEMORY: Final = 256 << 20
"""Bytes that the device has."""
PATIENCE: Final = 240.0
"""Seconds after which a program hangs."""


class SharedDevice:
    """A running proxy; all that a test starts beside it ends with the test."""

    def __init__(self, directory: Path, environment: dict[str, str], *options: str) -> None:
        self.directory = directory
        self.environment = environment | {"SINGULARITY_FAKE_MEMORY": str(MEMORY)}
        (directory / "door").mkdir(mode=0o700)
        self.processes: list[subprocess.Popen[str]] = []
        self.proxy = self._start(
            [str(PROGRAMS / "proxy.py"), str(directory / "door"), *options], self.environment
        )
        self.hear(self.proxy, "ready")

    def _start(self, command: list[str], environment: dict[str, str]) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            [sys.executable, "-P", *command], env=environment, stdin=pipe, stdout=pipe, stderr=pipe, text=True
        )
        self.processes.append(process)
        return process

    def start(self, rank: int, script: Path, *arguments: str, ranks: int = 1) -> subprocess.Popen[str]:
        """A program as that rank of so many."""
        helpers = os.pathsep.join(str(TESTS / part / "programs") for part in ("interposers", "multirank"))
        environment = self.environment | {
            "SINGULARITY_DEVICES": str(self.directory / "door"),
            "SINGULARITY_RANK": str(rank),
            "RANK": str(rank),
            "WORLD_SIZE": str(ranks),
            "LD_LIBRARY_PATH": str(files("singularity_core") / "lib" / "rank"),
            "PYTHONPATH": helpers,
        }
        return self._start([str(script), *arguments], environment)

    def start_programs(
        self, programs: list[dict[str, Any]], ranks: int, world: int = 0
    ) -> list[subprocess.Popen[str]]:
        """Starts programs on that many ranks at once.  `world`: that `meet` waits for more; the test itself
        takes the others' places."""
        path, folder = self.directory / "programs.json", str(self.directory)
        path.write_text(json.dumps(programs))
        return [
            self.start(rank, INTERPRETER, str(path), folder, "0", ranks=world or ranks)
            for rank in range(ranks)
        ]

    def interpret(self, programs: list[dict[str, Any]], ranks: int) -> list[list[list[str]]]:
        """Runs programs on that many ranks at once; per rank and program what it reported."""
        for process in self.start_programs(programs, ranks):
            self.finish(process)
        return [json.loads((self.directory / f"result.{rank}").read_text()) for rank in range(ranks)]

    def finish(self, process: subprocess.Popen[str]) -> str:
        """The output of a program that must succeed."""
        out, err = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, f"{process.args}: {process.returncode}\n{out[-2000:]}{err[-4000:]}"
        return out

    def hear(self, process: subprocess.Popen[str], expected: str) -> None:
        """The next line of a program."""
        assert process.stdout is not None
        line = process.stdout.readline().strip()
        if line != expected:
            process.kill()
            pytest.fail(f"expected {expected!r}, got {line!r}\n{process.communicate()[1][-2000:]}")

    def hear_any(self, process: subprocess.Popen[str]) -> str:
        """The next line of a program, whatever it says; not its end."""
        assert process.stdout is not None
        line = process.stdout.readline().strip()
        assert line, process.communicate()[1][-2000:]
        return line

    def ask(self, process: subprocess.Popen[str], line: str, expected: str) -> None:
        """One line there, one line back."""
        assert process.stdin is not None
        process.stdin.write(line + "\n")
        process.stdin.flush()
        self.hear(process, expected)

    def counters(self) -> dict[int, Counters]:
        """What the proxy has counted, per rank."""
        return {facts.rank: facts.counters for facts in read_sessions(self.directory / "door")}

    def stop(self) -> str:
        """Ends the proxy in good order; what it said on stderr."""
        self.proxy.terminate()
        err = self.proxy.communicate(timeout=PATIENCE)[1]
        assert self.proxy.returncode == 0, err
        assert list((self.directory / "door").iterdir()) == []
        return err

    def close(self) -> None:
        """Ends what still runs."""
        for process in reversed(self.processes):
            if process.poll() is None:
                process.kill()
            process.communicate()


@pytest.fixture
def directory() -> Iterator[Path]:
    """A private directory in shared memory."""
    with tempfile.TemporaryDirectory(prefix="singularity-test-", dir="/dev/shm") as path:
        yield Path(path)


@pytest.fixture
def device(directory: Path, rank_environment: dict[str, str]) -> Iterator[SharedDevice]:
    """A device to be shared; afterwards its proxy must end in good order."""
    shared = SharedDevice(directory, rank_environment)
    try:
        yield shared
        if shared.proxy.poll() is None:
            shared.stop()
    finally:
        shared.close()
