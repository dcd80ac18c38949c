"""Takes a job into a checkpoint: what `checkpointing` decides, done to real processes.

All that may block (CRIU, copies, the store) happens in one thread, one thing after the other; the launcher's
loop asks whether it is done.  A store that does not answer holds up that thread, but neither the job nor the
launcher's end.  What must fit together is copied in `capture`, while the ranks stand at the cut
and their processes stand still: session files, device memory, the box's /dev/shm, changed files, and the
processes themselves.  Copies lie in the job's directory, which goes with the job, whoever is killed."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import threading
import time
from collections.abc import Callable, Collection
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

from ..barrier.interface import CutRefusedError
from ..checkpoint.criu import CriuFound, CriuUnavailableError, find_criu
from ..checkpoint.errors import StoreError
from ..checkpoint.file_log import is_within
from ..checkpoint.files import (
    CapturedFiles,
    Excludes,
    FileDigests,
    capture_files,
    log_changes,
    open_files,
)
from ..checkpoint.host import Allowed, DataMovedError, Hold, HostImageError, IngestReport, ingest, judge, scan
from ..checkpoint.host.hold import refusal
from ..checkpoint.host.keeper_link import KeeperLostError
from ..checkpoint.host.process_tree import number_inside, tree_of
from ..checkpoint.host.room import estimate_image
from ..checkpoint.job.sessions import StagedMemory, put_memory, read_sessions
from ..checkpoint.job.spool import Spool
from ..checkpoint.job.trees import put_tree, stage_tree
from ..checkpoint.store import Store
from ..checkpoint.writer import CheckpointWriter
from . import job_record
from .background import Worker
from .checkpointing import CheckpointOrder
from .display import size_text
from .errors import LaunchError, system_error
from .fleet import FleetChange
from .job_directory import JobDirectory
from .known_stores import KnownJob, remember
from .machine import this_machine
from .members import RankStarter, RankTree
from .pausing import Pausing
from .report import say
from .sessions import read_sessions as read_sessions_of_door

IMAGES = Path("/dev/shm")
"""Where CRIU's images lie until they are stored."""
STAGE = "checkpoint"
"""In the job's directory: what was copied, until it is stored."""
STALL_SECONDS = 300.0
"""A store that has taken nothing for so long is given up."""
_END_SECONDS = 20.0
"""So long the launcher's end waits for what is still to be done in a store."""
_DUMPS = 3
"""So often a dump is taken during which data moved among the processes."""


@dataclass
class _Snapshot:
    """What the launcher's loop knew when the capture began."""

    record: job_record.JobRecord
    exchange: Path


@dataclass
class _Capture:
    """One checkpoint in the making, in the hands of the thread."""

    order: CheckpointOrder
    tree: RankTree
    criu: CriuFound
    store: Store
    writer: CheckpointWriter
    stage: Path
    cleanup: contextlib.ExitStack
    memory: StagedMemory | None
    """None: the device memory is stored from where it is."""
    spool: Spool
    """For the contents of files."""
    held: Hold | None = None
    letting_go: threading.Lock = field(default_factory=threading.Lock)
    at_store: bool = False
    """The thread may wait for the store, and does nothing to the held processes meanwhile."""
    files: CapturedFiles | None = None
    record: bytes = b""
    committed: str = ""
    """The checkpoint, once it is in the store."""
    total: int = 0
    """Bytes that will go to the store, more or less; 0: not known yet."""


class JobCapture:
    """See `CheckpointSteps`."""

    def __init__(
        self,
        change: FleetChange,
        ranks: RankStarter,
        pausing: Pausing,
        directory: JobDirectory,
        *,
        running: Callable[[], Collection[int]],
        preempted: Callable[[], None],
    ) -> None:
        """`running`: the local ranks that have not ended.  `preempted` is called when a checkpoint is
        committed after which the job is to end: from then on no end of a process is a failure."""
        self._change = change
        self._ranks = ranks
        self._pausing = pausing
        self._directory = directory
        self._running = running
        self._preempted = preempted
        self._digests = FileDigests()
        self._criu: CriuFound | None = None
        self._thread = Worker("checkpoint")
        self._work: Future[None] | None = None
        self._undone: Future[None] | None = None
        self._current: _Capture | None = None
        self._said = ""
        self._seen = (0, 0.0)
        """Bytes that the store had taken, and when that changed."""

    @property
    def busy(self) -> bool:
        """Whether it has children of this process to wait for: in its thread, or for who holds the job
        still."""
        at_work = any(work is not None and not work.done() for work in (self._work, self._undone))
        return at_work or self._current is not None

    def progress(self) -> tuple[int, int]:
        """Bytes that the store has got, and of how many, more or less; (0, 0) before."""
        capture = self._current
        if capture is None or capture.total == 0:
            return 0, 0
        return min(capture.writer.taken_bytes, capture.total), capture.total

    def close(self) -> bool:
        """Nothing of the job is left: ends its thread; False when a store holds that up."""
        return self._thread.close(_END_SECONDS)

    def _done(self) -> bool:
        assert self._work is not None
        if not self._work.done():
            return False
        try:
            self._work.result()
        except (HostImageError, CriuUnavailableError) as error:
            raise LaunchError(error.cause, remedy=error.remedy) from error
        except OSError as error:
            raise system_error(error, "The job cannot be taken into a checkpoint") from error
        return True

    # ---- while the job runs ----------------------------------------------------------------------------

    def prepare(self, order: CheckpointOrder) -> None:
        """See `CheckpointSteps`."""
        self._refuse_if_stuck()
        self._work = self._thread.submit(self._prepare, order, self._ranks.tree(), self._live_bytes())

    def look(self, order: CheckpointOrder) -> None:
        """See `CheckpointSteps`."""
        self._refuse_if_stuck()
        try:
            self._pausing.check()
        except CutRefusedError as refused:
            raise LaunchError(str(refused)) from refused
        self._work = self._thread.submit(self._look, order, self._ranks.tree(), self._live_bytes())

    def _refuse_if_stuck(self) -> None:
        if self._undone is not None and not self._undone.done():
            raise LaunchError(
                "The checkpoint that was given up before this one still waits for its store.",
                remedy="See that the store answers, and try again.",
            )

    def prepared(self) -> bool:
        """See `CheckpointSteps`."""
        return self._done()

    def _look(self, order: CheckpointOrder, tree: RankTree, expected: int) -> None:
        self._criu = self._criu or find_criu()
        log_changes(self._directory.file_log, tree.root_directory)
        Store.open(order.place)
        if verdicts := judge(scan(tree.root), _allowed(tree)):
            raise refusal(verdicts)
        host = estimate_image(tree.root)
        self._said = (
            f"nothing stands in the way; about {size_text(host)} of {len(tree.ranks)} ranks' processes and "
            f"{size_text(expected)} of device memory would be copied"
        )

    def _live_bytes(self) -> int:
        """Of device memory, as the ranks' own pages say it: a guess, and no more than there can be."""
        most, total = self._change.arena_bytes(), 0
        for ordinal in range(len(self._change.fleet.settings.device_of_ordinal)):
            found = read_sessions_of_door(self._directory.ordinal_path(ordinal))
            total += sum(min(each.counters.live_bytes, most) for each in found)
        return total

    def _prepare(self, order: CheckpointOrder, tree: RankTree, expected: int) -> None:
        self._criu = self._criu or find_criu()
        log_changes(
            self._directory.file_log, tree.root_directory
        )  # a log with gaps is refused now, not later
        store = Store.open(order.place)
        with contextlib.ExitStack() as cleanup:
            writer = cleanup.enter_context(store.write(tree.job))
            stage = self._directory.path / STAGE
            stage.mkdir(mode=0o700)
            cleanup.callback(shutil.rmtree, stage, ignore_errors=True)
            memory = None
            if not order.preempt:
                memory = StagedMemory(stage, expected)
                cleanup.callback(memory.close)
            self._current = _Capture(
                order, tree, self._criu, store, writer, stage, cleanup.pop_all(), memory, Spool(writer)
            )

    # ---- while it stands still -------------------------------------------------------------------------

    def write(self) -> None:
        """See `CheckpointSteps`."""
        self._pausing.cut().hand_over()

    def written(self) -> bool:
        """See `CheckpointSteps`."""
        return self._pausing.cut().handed_over()

    def capture(self) -> None:
        """See `CheckpointSteps`."""
        assert self._current is not None
        self._seen = 0, time.monotonic()
        self._work = self._thread.submit(self._capture, self._current, self._snapshot(self._current.tree))

    def captured(self) -> bool:
        """See `CheckpointSteps`."""
        return self._done() or self._waits_for_store()

    def _waits_for_store(self) -> bool:
        """`LaunchError`: it has done so for too long."""
        capture, now = self._current, time.monotonic()
        if capture is None or not capture.at_store or capture.writer.taken_bytes != self._seen[0]:
            self._seen = 0 if capture is None else capture.writer.taken_bytes, now
        elif now - self._seen[1] > STALL_SECONDS:
            raise LaunchError(f"The store has taken nothing for {STALL_SECONDS:.0f} s (does it answer?).")
        return False

    def _snapshot(self, tree: RankTree) -> _Snapshot:
        running = self._running()
        settings = self._change.fleet.settings
        record = job_record.describe(
            settings,
            job=tree.job,
            directory=tree.directory,
            work_directory=tree.work_directory,
            keeper=tree.root_inside,
            ranks=[tree.ranks[rank] if rank in running else None for rank in range(settings.ranks)],
            arena_bytes=self._change.arena_bytes(),
            machine=this_machine(),
        )
        return _Snapshot(record, self._change.fleet.exchange)

    def _capture(self, capture: _Capture, snapshot: _Snapshot) -> None:
        held = _dump(capture)
        try:
            self._copy(capture, snapshot)
            if not capture.order.preempt:
                with capture.letting_go:
                    held.go_on()
        except BaseException:
            _let_go(capture)
            raise

    def _copy(self, capture: _Capture, snapshot: _Snapshot) -> None:
        tree, stage = capture.tree, capture.stage
        processes = [status.pid for status in tree_of(tree.root) if not status.has_ended]
        inside = {number_inside(pid) for pid in processes}
        if any(pid is not None and pid not in inside for pid in snapshot.record.ranks):
            raise LaunchError("A rank ended just when it was to be copied.", remedy="Try again.")
        sessions = stage / "sessions"
        sessions.mkdir()
        for folder in sorted(self._directory.path.glob("ordinal-*")):
            stage_tree(folder, _private(sessions / folder.name))
        stage_tree(
            snapshot.exchange, _private(sessions / "exchange"), only=lambda name: name.startswith("c-")
        )
        stage_tree(
            self._directory.path / "box",
            _private(sessions / "box"),
            only=lambda name: name.endswith(_OUTPUT),
        )
        shm = Path(tree.root_directory("/dev/shm"))
        shared = {str(path.relative_to("/dev/shm")) for path in tree.shared}
        stage_tree(shm, stage / "box-memory", leave_out=shared)
        if capture.memory is not None:
            capture.memory.stage(read_sessions(self._directory.path))
        capture.at_store = True
        capture.files = capture_files(
            capture.spool,
            log_changes(self._directory.file_log, tree.root_directory),
            {path: each for path, each in open_files(processes).items() if not is_within(path, "/dev/shm")},
            root=tree.root_directory,
            excludes=self._excludes(capture),
        )
        capture.at_store = False
        capture.record = job_record.encode_record(snapshot.record)

    def _excludes(self, capture: _Capture) -> Excludes:
        store = capture.order.place.removeprefix("file://")
        own = [] if "://" in store else [os.path.realpath(store)]
        if moved := self._change.fleet.settings.moved:
            own += [moved.seen(path) for path in own]
        return Excludes([*own, str(capture.tree.directory), *self._change.fleet.settings.shared_mounts])

    # ---- afterwards ------------------------------------------------------------------------------------

    def store(self) -> None:
        """See `CheckpointSteps`."""
        assert self._current is not None
        self._current.at_store, self._seen = True, (0, time.monotonic())
        self._work = self._thread.submit(self._store, self._current)

    def stored(self) -> bool:
        """See `CheckpointSteps`."""
        return self._done() or self._waits_for_store()

    def _store(self, capture: _Capture) -> None:
        writer, held, files = capture.writer, capture.held, capture.files
        assert held is not None
        assert files is not None
        capture.total = _size_of(held.images) + sum(_size_of(capture.stage / name) for name in _TREES)
        capture.total += sum(each.bytes for each in read_sessions(self._directory.path))
        for warning in files.warnings:
            say(f"checkpoint: {warning}")
        writer.add(job_record.OBJECT, job_record.KIND, capture.record)
        for name in _TREES:
            put_tree(writer, name, capture.stage / name)
        capture.spool.flush()
        if capture.memory is not None:
            capture.memory.put(writer)
        else:
            put_memory(writer, read_sessions(self._directory.path))
        report = ingest(writer, held.images)
        files.finish(writer, self._digests)
        manifest = writer.commit(_labels(report))
        run_id = self._change.fleet.settings.run_id
        remember(KnownJob(job=capture.tree.job, run_id=run_id, store=capture.store.place))
        self._said = f"checkpoint {manifest.checkpoint} in {capture.store.place}"
        if not capture.order.preempt:
            self._release(capture)
            _retire(capture, manifest.checkpoint)
        capture.committed, capture.at_store = manifest.checkpoint, False

    def end(self) -> None:
        """See `CheckpointSteps`."""
        assert self._current is not None
        self._preempted()
        self._work = self._thread.submit(self._end, self._current)

    def ended(self) -> bool:
        """See `CheckpointSteps`."""
        return self._done()

    def _end(self, capture: _Capture) -> None:
        assert capture.held is not None
        capture.held.end()
        self._release(capture)
        self._thread.submit(_retire, capture, capture.committed)  # who waits for the devices need not wait

    def report(self) -> str:
        """See `CheckpointSteps`."""
        return self._said

    def undo(self) -> None:
        """See `CheckpointSteps`."""
        if self._work is not None:
            self._work.cancel()
        if self._current is not None:
            self._current.writer.cancel()
            if self._current.at_store:  # the job need not wait until the store answers
                threading.Thread(target=_let_go, args=(self._current,), daemon=True).start()
        self._undone = self._thread.submit(self._undo)

    def _undo(self) -> None:
        if self._current is not None:
            self._release(self._current)

    def _release(self, capture: _Capture) -> None:
        """Lets the processes go on, if they stand still, and forgets the copies."""
        _let_go(capture)
        if capture.held is not None:
            capture.held.close()
        capture.cleanup.close()
        self._current = None


_OUTPUT = (".stdout", ".stderr")
_TREES = ("sessions", "box-memory")


def _labels(report: IngestReport) -> dict[str, str]:
    """What the processes cost, for who looks into the store."""
    pages = dataclasses.asdict(report.packing)
    labels = {f"host_{name}": str(number) for name, number in pages.items()}
    return {
        **labels,
        "host_new_bytes": str(report.contents_bytes),
        "host_stored_bytes": str(report.stored_bytes),
    }


def _private(folder: Path) -> Path:
    folder.mkdir(mode=0o700)
    return folder


def _size_of(folder: Path) -> int:
    """Bytes of all files in it that are no holes."""
    files = (Path(place) / name for place, _, names in os.walk(folder) for name in names)
    return sum(path.lstat().st_blocks * 512 for path in files)


def _dump(capture: _Capture) -> Hold:
    """The tree stands still and is dumped when this returns; it goes on by `capture.held`."""
    tree = capture.tree
    enter = ("nsenter", "--all", "--target", str(tree.first))
    for attempt in range(_DUMPS):
        capture.held = Hold(tree.root, place=IMAGES, allowed=_allowed(tree))
        try:
            capture.held.dump(capture.criu.command, enter=enter)
        except BaseException as error:
            capture.held.close()
            capture.held = None
            if not isinstance(error, DataMovedError) or attempt == _DUMPS - 1:
                raise
        else:
            return capture.held
    raise AssertionError("unreachable")


def _allowed(tree: RankTree) -> Allowed:
    """What leads out of the tree: the job's directory is copied, and the box's /dev/shm is nobody else's."""
    return Allowed(paths=(str(tree.directory), "/dev/shm"))


def _let_go(capture: _Capture) -> None:
    with capture.letting_go, contextlib.suppress(KeeperLostError):
        if capture.held is not None:
            capture.held.go_on()


def _retire(capture: _Capture, newest: str) -> None:
    """Leaves as many checkpoints of this job as were asked for.  Whatever goes wrong, `newest` is good."""
    keep = capture.order.keep
    if keep is None:
        return
    try:
        old = [manifest.checkpoint for manifest in capture.store.checkpoints(capture.tree.job)[keep:]]
        capture.store.delete(checkpoint for checkpoint in old if checkpoint != newest)
        capture.store.gc()
    except (StoreError, OSError) as error:
        say(f"older checkpoints were not deleted: {error}")
