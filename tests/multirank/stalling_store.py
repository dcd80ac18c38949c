"""singularity-run whose stores take nothing while the file that STALL names is there; what it says is what
becomes of who waits then: nothing, or "fail".  PATIENCE: seconds after which a store is given up; SPOOL:
bytes of files that wait in memory for it."""

from __future__ import annotations

import errno
import os
import sys
import time
from pathlib import Path
from typing import Any

from singularity_core.checkpoint.job import spool
from singularity_core.checkpoint.writer import CheckpointWriter
from singularity_core.launcher import job_capture, run

STALL = Path(os.environ["STALL"])
real = CheckpointWriter._store


def stall(writer: CheckpointWriter, *arguments: Any) -> Any:
    while STALL.exists():
        if STALL.read_text() == "fail":
            raise OSError(errno.EIO, "the store is broken")
        time.sleep(0.01)
    return real(writer, *arguments)


CheckpointWriter._store = stall  # type: ignore[method-assign]
spool.SPOOL_BYTES = int(os.environ.get("SPOOL", spool.SPOOL_BYTES))
job_capture.STALL_SECONDS = float(os.environ.get("PATIENCE", "inf"))
job_capture._END_SECONDS = 0.5
sys.exit(run.main())
