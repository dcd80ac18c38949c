"""How a test lets a job go on step by step, and sees where it is: FOLDER/gate is as many bytes long as there
are steps that may begin, FOLDER/seen.RANK gets a byte with each that has.

Nothing is held open: what is open for reading must be the same when a job is resumed."""

from __future__ import annotations

import os
import time
from pathlib import Path

_POLL_SECONDS = 0.002


class Gate:
    """One rank's."""

    def __init__(self, folder: Path) -> None:
        self._gate = folder / "gate"
        self._seen = folder / f"seen.{os.environ.get('RANK', '0')}"
        self._step = 0

    def begin(self) -> int:
        """The number of the next step, once it may begin."""
        self._step += 1
        while self._gate.stat().st_size < self._step:
            time.sleep(_POLL_SECONDS)
        with self._seen.open("ab") as seen:
            seen.write(b".")
        return self._step
