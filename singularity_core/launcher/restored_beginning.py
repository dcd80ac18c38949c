"""How a job goes on from a checkpoint, in a launcher of its own.

In this order: the files of its sessions, and device memory; a box with its /dev/shm; proxies, which open
their devices and wait; the job's files; its processes, which run at once and wait for their devices; the
proxies take over; the cut is released.  Until then everything is taken back when something fails: the
checkpoint stays, and so does what was in the place of the job's files."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ..barrier.coordinator import carry_communicators
from ..barrier.interface import Cut, CutError
from ..box.errors import BoxUnavailableError
from ..checkpoint.criu import CriuFound
from ..checkpoint.errors import StoreError
from ..checkpoint.files import PathMapping, read_file_list, restored_files, resume_log
from ..checkpoint.host import HostImageError, restore
from ..checkpoint.job.sessions import take_memory
from ..checkpoint.job.trees import take_tree
from ..checkpoint.reader import CheckpointReader
from ..checkpoint.store import Store
from .background import Background
from .beginning import Stage, await_proxies
from .errors import LaunchError, system_error
from .job_capture import IMAGES
from .job_record import JobRecord
from .later_changes import Origin, forget_changes, later_changes
from .report import say
from .restored_ranks import RestoredRanks
from .settings import JobSettings

_ANOTHER = "Resume another checkpoint (`singularity-ctl checkpoints` lists them)."
_DRY_RUN = "`singularity-ctl resume --dry-run` looks what stands in the way."


@dataclass(frozen=True)
class Checkpoint:
    """What to go on from."""

    store: Store
    name: str
    record: JobRecord


def path_mapping(settings: JobSettings) -> PathMapping:
    """Where the files of a job are."""
    moved = settings.moved
    return PathMapping([(moved.inside, moved.outside)] if moved else [])


class _StoppedError(Exception):
    """The job is to end before it has begun."""


class RestoredBeginning:
    """See `Beginning`."""

    phase = "resuming"

    def __init__(
        self,
        checkpoint: Checkpoint,
        ranks: RestoredRanks,
        criu: CriuFound,
        workspace: Path,
        origin: Origin,
    ) -> None:
        """`workspace`: a directory that outlives this process, where it is noted what is done to files."""
        self.ranks = ranks
        self.session_bytes = checkpoint.record.arena_bytes
        self._checkpoint = checkpoint
        self._criu = criu
        self._workspace = workspace
        self._origin = origin

    def begin(self, stage: Stage) -> Cut | None:
        """See `Beginning`."""
        try:
            with contextlib.ExitStack() as stack:
                reader = stack.enter_context(self._checkpoint.store.read(self._checkpoint.name))
                cut = self._prepare(stage, reader)
                self._restore(stage, reader, stack)
                self._take_over(stage)
            forget_changes(self._origin.job)  # they are taken back
            return cut
        except _StoppedError:
            return None
        except (StoreError, HostImageError, BoxUnavailableError) as error:
            raise LaunchError(error.cause, remedy=error.remedy) from error
        except CutError as error:
            raise LaunchError(f"The job cannot be resumed: {error}.", remedy=_ANOTHER) from error
        except OSError as error:
            raise system_error(error, "The job cannot be resumed") from error

    def _prepare(self, stage: Stage, reader: CheckpointReader) -> Cut:
        """All that is needed before its processes run; nothing outside of the job's directory is touched."""

        def take_sessions() -> None:
            take_tree(reader, "sessions", stage.directory.path)
            take_memory(reader, stage.directory.path)
            resume_log(reader, stage.directory.make_file_log())

        self._beside(stage, reader, take_sessions)
        _look(stage)
        place = self.ranks.open()
        assert place is not None
        stage.take_in(place)
        self._beside(stage, reader, lambda: take_tree(reader, "box-memory", self.ranks.shm))
        _look(stage)
        cut = stage.make_cut(stage.fleet.exchange, len(stage.fleet.devices))
        cut.freeze_ahead()
        stage.fleet.start(stage.start_proxy)
        await_proxies(stage, lambda: stage.fleet.prepared, "did not open its device")
        _look(stage)
        return cut

    def _restore(self, stage: Stage, reader: CheckpointReader, stack: contextlib.ExitStack) -> None:
        """Files and processes.  What fails from here on ends the processes first, and then takes back the
        files."""

        def end() -> None:
            stage.give_up()
            self.ranks.close()

        mapping = path_mapping(stage.settings)
        later = later_changes(read_file_list(reader), self._origin, mapping)
        for line in later.plan():
            say(line)
        files = restored_files(
            reader, workspace=self._workspace, mapping=mapping, remove_paths=later.made, end_users=end
        )
        self._beside(stage, reader, files.__enter__)
        stack.push(files)
        _look(stage)
        self.ranks.open_logs()
        self._beside(
            stage,
            reader,
            lambda: restore(reader, place=IMAGES, criu=self._criu.command, enter=self.ranks.enter),
        )
        _look(stage)
        for member in self.ranks.adopt():
            stage.take_in(member)

    def _take_over(self, stage: Stage) -> None:
        """The processes run, and have no devices yet."""
        before = stage.directory.exchange_directory()
        carry_communicators(before, stage.fleet.exchange, stage.fleet.proxy_of_rank)
        stage.fleet.take_over()
        await_proxies(stage, lambda: stage.fleet.ready, "did not take over its sessions")
        _look(stage)
        stage.fleet.close()
        shutil.rmtree(before, ignore_errors=True)

    def _beside(self, stage: Stage, reader: CheckpointReader, call: Callable[[], object]) -> None:
        """Calls it in a thread, while the loop turns.  When the job is to end meanwhile, the call is made to
        end early: it reads no more from the store, and what runs in the box is killed."""
        work = Background(call, stage.selector)
        stopped = False
        while not work.done:
            stage.turn(None)
            if stage.stopping() and not stopped:
                stopped = True
                stage.give_up()
                reader.before_each = _stop
                self.ranks.kill()
        try:
            work.result()
        except Exception:
            until = time.monotonic() + _NOTICE_SECONDS
            while self.ranks.fallen and not stage.stopping() and time.monotonic() < until:
                stage.turn(0.1)
            _look(stage)  # then that is why
            raise


_NOTICE_SECONDS = 5.0
"""Until the loop is told that the box has ended."""


def _stop() -> None:
    raise _StoppedError


def _look(stage: Stage) -> None:
    """Whether to go on.  Proxies that end now have said why; it is no failure of the job."""
    if stage.stopping():
        try:
            stage.fleet.check_living()
        except LaunchError as error:
            raise LaunchError(f"The job cannot be resumed: {error.cause}.", remedy=_DRY_RUN) from error
        raise _StoppedError
