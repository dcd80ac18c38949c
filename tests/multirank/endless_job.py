"""A job that trains until it is told to stop, for tests that disturb it meanwhile."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .jobs import finish, start_job

PROGRAM = Path(__file__).parent / "programs" / "endless.py"
CONTROL = Path(sys.executable).parent / "singularity-ctl"


class Job:
    """One endless job, and what is seen of it."""

    def __init__(
        self,
        folder: Path,
        ranks: int,
        devices: int,
        *options: str,
        name: str,
        launcher: Sequence[str] = (),
        env: dict[str, str] | None = None,
    ) -> None:
        """`launcher`: the command of another than singularity-run."""
        folder.mkdir()
        self.folder, self.ranks, self.name = folder, ranks, name
        self.process = start_job(
            PROGRAM,
            str(folder),
            ranks=ranks,
            devices=devices,
            options=[f"--rdzv-id={name}", *options],
            launcher=launcher,
            env=env,
        )

    def steps(self) -> list[int]:
        """The step at which each rank is."""
        found = []
        for rank in range(self.ranks):
            path = self.folder / f"steps.{rank}"
            found.append(
                struct.unpack("Q", path.read_bytes())[0] if path.exists() and path.stat().st_size else 0
            )
        return found

    def until(self, steps: int) -> None:
        """Waits until every rank has begun that many."""
        deadline = time.monotonic() + 60
        while min(self.steps()) < steps:
            assert self.process.poll() is None, "the job ended early"
            assert time.monotonic() < deadline, f"the job does not move: {self.steps()}"
            time.sleep(0.005)

    def control(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [str(CONTROL), *arguments, self.name]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    def resize(self, devices: int) -> subprocess.CompletedProcess[str]:
        """Whatever becomes of it."""
        command = [str(CONTROL), "resize", "--timeout=30", self.name, str(devices)]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    def pause(self) -> None:
        done = self.control("pause", "--timeout=30")
        assert done.returncode == 0, done.stderr

    def go_on(self) -> None:
        done = self.control("continue")
        assert done.returncode == 0, done.stderr

    def stop(self) -> list[Any]:
        """Lets the job come to its end; what each rank read."""
        last = -(-(max(self.steps()) + 40) // 16) * 16
        making = self.folder / "stop.making"
        making.write_text(str(last))
        making.rename(self.folder / "stop")
        code, stdout, stderr = finish(self.process)
        assert code == 0, f"{stdout[-1000:]}{stderr[-3000:]}"
        return [json.loads((self.folder / f"result.{rank}").read_text()) for rank in range(self.ranks)]


def agree(found: list[Any], wanted: list[Any]) -> None:
    """What was read at each 16th step, as far as both went."""
    for rank, (one, other) in enumerate(zip(found, wanted, strict=True)):
        both = min(one[0], other[0]) // 16 * 3
        assert both > 0
        assert one[1 : 1 + both] == other[1 : 1 + both], f"rank {rank}"
