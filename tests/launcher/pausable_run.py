"""singularity-run with a cut that the test moves: it reads its state from a file, and notes what it was
told."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from singularity_core.barrier.interface import CutState, Progress
from singularity_core.launcher import attempt, run
from singularity_core.launcher.supervisor import Supervisor

FOLDER = Path(os.environ["CUT_FOLDER"])


class FileCut:
    """The file `cut` holds the state, and a line for each who waits; `calls` what was called."""

    def _note(self, what: str) -> None:
        with (FOLDER / "calls").open("a") as calls:
            calls.write(what + "\n")

    def begin(self, timeout: float) -> None:
        self._note("begin")

    def poll(self) -> Progress:
        state, *waiting = (FOLDER / "cut").read_text().splitlines()
        return Progress(CutState(state), reached=1, waiting=waiting)

    def waits(self, seconds: float) -> list[str]:
        return []

    def release(self) -> None:
        self._note("release")
        (FOLDER / "cut").write_text("open")

    def hand_over(self) -> None:
        self._note("hand_over")

    def handed_over(self) -> bool:
        return False

    def freeze_ahead(self) -> None:
        self._note("freeze_ahead")

    def close(self) -> None:
        self._note("close")


class PausableSupervisor(Supervisor):
    """The real one, but for the cut."""

    def __init__(self, *arguments: object, **named: object) -> None:
        super().__init__(*arguments, **{**named, "make_cut": lambda *_: FileCut()})  # type: ignore[arg-type]


attempt.Supervisor = PausableSupervisor  # type: ignore[misc]
sys.exit(run.main())
