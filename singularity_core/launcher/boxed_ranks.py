"""Ranks in a job box."""

from __future__ import annotations

import os
import selectors
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ..box.errors import BoxUnavailableError
from ..box.messages import Plan, Share
from ..box.namespaces import SHM
from ..box.remote import Box, BoxedProcess
from .errors import LaunchError
from .job_directory import JobDirectory
from .log_tail import LogTail, LogWatch
from .members import Kind, Member, RankTree, cannot_start, rank_prefix
from .output import Relay
from .processes import JOB_VARIABLE
from .report import say
from .settings import BoxSettings, JobSettings
from .terminal import STANDARD_ERROR, STANDARD_OUTPUT


class _BoxMember:
    """The box as a process: the one out here, which ends when the box does."""

    def __init__(self, box: Box) -> None:
        self._box = box
        self._pidfd = os.pidfd_open(box.pids.outer)
        self._selector: selectors.BaseSelector | None = None

    @property
    def pid(self) -> int:
        return self._box.pids.outer

    def watch(self, selector: selectors.BaseSelector, on_end: Callable[[], None]) -> None:
        selector.register(self._pidfd, selectors.EVENT_READ, on_end)
        selector.register(self._box, selectors.EVENT_READ, self._look)
        self._selector = selector

    def _look(self) -> None:
        if not self._box.look() and self._selector is not None:
            self._selector.unregister(self._box)  # that it is gone, the process will say

    def returncode(self) -> int | None:
        code = self._box.poll()
        if code is not None:
            self._box.look()  # what ranks did before counts
            self._box.lost()
        return code

    def signal(self, number: int) -> None:
        self._box.kill()

    def close(self) -> None:
        if self._selector is not None:
            self._selector.unregister(self._pidfd)
        os.close(self._pidfd)


class _BoxedRank:
    """`BoxedProcess`, for the supervisor; `_BoxMember` watches for all of them."""

    def __init__(self, process: BoxedProcess) -> None:
        self._process = process
        self.pid = process.pid
        self.returncode = process.returncode
        self.signal = process.signal
        self.close = process.close

    def watch(self, selector: selectors.BaseSelector, on_end: Callable[[], None]) -> None:
        self._process.when_ended(on_end)


class BoxedRanks:
    """See `RankStarter`."""

    restored = False

    def __init__(
        self,
        settings: JobSettings,
        box: BoxSettings,
        directory: JobDirectory,
        *,
        inside: Path | None = None,
        work_directory: Path | None = None,
    ) -> None:
        """`inside`: the job's directory, as the ranks see it, if that is not where it is; `work_directory`:
        in which they begin or began, if that is not this process's."""
        self._settings = settings
        self._box_settings = box
        self._directory = directory
        self._inside = inside or directory.path
        self._work_directory = work_directory or Path.cwd()
        self._place = directory.path / "box"
        self._log_watch = LogWatch()
        self._box: Box | None = None
        self._ranks: dict[int, int] = {}

    def open(self) -> Member | None:
        """See `RankStarter`."""
        self._tell()
        self._place.mkdir(mode=0o700, exist_ok=self.restored)
        plan = self._plan(self._work_directory)
        log = self._settings.log_file("box", "stderr")
        errors = Relay(STANDARD_ERROR, prefix="[box] ", log=log)
        environment = {**os.environ, JOB_VARIABLE: self._directory.job}
        try:
            self._box = Box(plan, environment, errors.writing)
        except BoxUnavailableError as error:
            errors.close_writing()
            errors.close()  # shows what it said
            raise LaunchError(error.cause, remedy=error.remedy) from error
        errors.close_writing()
        return Member("the job's box", Kind.BOX, 0, _BoxMember(self._box), [errors], errors)

    def _tell(self) -> None:
        if self._box_settings.address is not None:
            say(
                "the ranks are in a box with a network of its own, which leads nowhere (--box-network host: "
                "the machine's)"
            )
        if os.isatty(0):
            say("the ranks are in a box without a terminal: their standard input is empty")

    def _plan(self, work_directory: Path) -> Plan:
        if work_directory == SHM:
            raise LaunchError(
                f"A job box has a {SHM} of its own, so it cannot be the work directory.",
                remedy="Start the job in a directory below it, or elsewhere.",
            )
        moved = self._settings.moved
        outside = [work_directory, *([self._settings.log_dir] if self._settings.log_dir else [])]
        below = {path.resolve() for path in outside if SHM in path.resolve().parents}
        shared = {self._directory.path: self._inside} | {path: path for path in below}
        return Plan(
            directory=os.fsencode(self._inside / self._place.name),
            work_directory=os.fsencode(work_directory),
            hostname=self._box_settings.hostname,
            address=self._box_settings.address,
            shared=[Share(os.fsencode(path), os.fsencode(shared[path])) for path in sorted(shared)],
            fixed_addresses=self._box_settings.fixed_addresses,
            binds=[Share(os.fsencode(moved.outside), os.fsencode(moved.inside))] if moved else [],
            restored=self.restored,
        )

    @property
    def _opened(self) -> Box:
        assert self._box is not None, "open comes first"
        return self._box

    def proxy_options(self) -> tuple[list[str], list[int]]:
        """See `RankStarter`."""
        descriptor = self._opened.pid_namespace
        return ["--pid-namespace-fd", str(descriptor)], [descriptor]

    def start(self, rank: int, environment: Mapping[str, str]) -> Member:
        """See `RankStarter`."""
        if self._box_settings.fixed_addresses:
            environment = {"PYTHONHASHSEED": "0", **environment}
        label, (errors, out) = f"rank {rank}", self._outputs(rank)
        try:
            process = self._opened.start(self._settings.command, environment, str(out.path), str(errors.path))
        except OSError as error:
            raise cannot_start(label, self._settings.command[0], error) from error
        except BoxUnavailableError as error:
            self._opened.kill()
            raise LaunchError(error.cause, remedy=error.remedy) from error
        return self._member(rank, process, [errors, out])

    def _member(self, rank: int, process: BoxedProcess, outputs: Sequence[LogTail]) -> Member:
        self._ranks[rank] = process.pid_inside
        return Member(f"rank {rank}", Kind.RANK, rank, _BoxedRank(process), outputs, outputs[0])

    def _outputs(self, rank: int) -> list[LogTail]:
        return [
            LogTail(
                self._log_watch,
                terminal,
                self._log(rank, stream),
                prefix=rank_prefix(self._settings, rank),
                log=self._settings.log_file(str(rank), stream),
                goes_on=self.restored,
            )
            for terminal, stream in ((STANDARD_ERROR, "stderr"), (STANDARD_OUTPUT, "stdout"))
        ]

    def _log(self, rank: int, stream: str) -> Path:
        kept = self._settings.log_file(str(rank), stream)
        return self._place / f"{rank}.{stream}" if kept is None else kept.absolute()

    def all_started(self) -> None:
        """See `RankStarter`."""
        if self._box is not None:
            self._box.seal()

    def tree(self) -> RankTree:
        """See `RankStarter`."""
        box, work_directory = self._opened, self._work_directory
        if SHM in work_directory.parents:
            raise LaunchError(
                f"The job's work directory {work_directory} is in memory, which a checkpoint does not hold.",
                remedy="Start the job in a directory on a disk.",
            )
        return RankTree(
            root=box.pids.keeper,
            root_inside=box.keeper_inside,
            first=box.pids.shim,
            ranks=dict(self._ranks),
            directory=self._inside,
            work_directory=work_directory,
            shared=(self._inside,),
        )

    def caretakers(self) -> set[int]:
        """See `RankStarter`."""
        if self._box is None:
            return set()
        return {self._box.pids.outer, self._box.pids.shim, self._box.pids.keeper}

    def close(self) -> None:
        """See `RankStarter`."""
        if self._box is not None:
            self._box.end()
        self._log_watch.close()
