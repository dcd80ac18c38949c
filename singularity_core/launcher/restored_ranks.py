"""Ranks that come from a checkpoint, in a new job box."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..box.namespaces import SHM
from .boxed_ranks import BoxedRanks
from .job_directory import JobDirectory
from .job_record import JobRecord
from .log_tail import LogTail
from .members import Member
from .settings import BoxSettings, JobSettings


class RestoredRanks(BoxedRanks):
    """See `RankStarter`.  They are not started: once they were restored in the box, `adopt` takes them for
    what they were."""

    restored = True

    def __init__(
        self, settings: JobSettings, box: BoxSettings, directory: JobDirectory, record: JobRecord
    ) -> None:
        super().__init__(
            settings,
            box,
            directory,
            inside=Path(record.directory),
            work_directory=Path(record.work_directory),
        )
        self._record = record
        self._logs: dict[int, Sequence[LogTail]] = {}

    @property
    def shm(self) -> Path:
        """The box's /dev/shm."""
        return Path(f"/proc/{self._opened.pids.shim}/root{SHM}")

    @property
    def fallen(self) -> bool:
        """Whether the box was there and is not any more, whoever knows of that already."""
        return self._box is not None and not self.shm.exists()

    @property
    def enter(self) -> tuple[str, ...]:
        """A command that runs another in the box."""
        return ("nsenter", "--all", "--target", str(self._opened.pids.shim))

    def kill(self) -> None:
        """Begins the end of the box, if there is one."""
        if self._box is not None:
            self._box.kill()

    def open_logs(self) -> None:
        """The files that the ranks write to are there, and they do not run yet: what they write is shown from
        here on."""
        for rank, pid in enumerate(self._record.ranks):
            if pid is not None:
                self._logs[rank] = self._outputs(rank)

    def adopt(self) -> list[Member]:
        """They run: those that had not ended at the checkpoint."""
        box = self._opened
        members = [
            self._member(rank, box.adopt_rank(pid), self._logs[rank])
            for rank, pid in enumerate(self._record.ranks)
            if pid is not None
        ]
        box.adopt_keeper(self._record.keeper)
        return members
