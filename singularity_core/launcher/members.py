"""The processes that make up a job, as the supervisor sees them: whose child they are, where they run and
where their output comes from is the business of those that start them (`RankStarter`)."""

from __future__ import annotations

import enum
import errno
import os
import selectors
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from ..checkpoint.file_capture import JobRoot
from .errors import LaunchError, system_error
from .output import Output, Relay
from .processes import Ending, die_with_parent, kill_all
from .settings import JobSettings
from .terminal import STANDARD_ERROR, STANDARD_OUTPUT


class Kind(enum.Enum):
    """What a member is for."""

    RANK = "rank"
    PROXY = "proxy"
    BOX = "box"


class Process(Protocol):
    """What runs, or ran."""

    @property
    def pid(self) -> int:
        """As this process numbers it."""

    def watch(self, selector: selectors.BaseSelector, on_end: Callable[[], None]) -> None:
        """Has `on_end` called by the selector's loop once it has ended."""

    def returncode(self) -> int | None:
        """Exit code, or minus the number of the signal that killed it; None while it runs."""

    def signal(self, number: int) -> None:
        """Harmless when it has ended."""

    def close(self) -> None:
        """It has ended, and is watched no more."""


class Child:
    """A child of the launcher."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._pidfd = os.pidfd_open(process.pid)
        self._selector: selectors.BaseSelector | None = None

    @property
    def pid(self) -> int:
        """Its number, which is nobody else's before `returncode` tells of its end."""
        return self._process.pid

    def watch(self, selector: selectors.BaseSelector, on_end: Callable[[], None]) -> None:
        """See `Process`."""
        selector.register(self._pidfd, selectors.EVENT_READ, on_end)
        self._selector = selector

    def returncode(self) -> int | None:
        """See `Process`."""
        return self._process.poll()

    def signal(self, number: int) -> None:
        """See `Process`."""
        if self._process.returncode is None:
            kill_all([self._process.pid], number)

    def close(self) -> None:
        """See `Process`."""
        if self._selector is not None:
            self._selector.unregister(self._pidfd)
        os.close(self._pidfd)


@dataclass(eq=False)
class Member:
    """A process of the job."""

    label: str
    kind: Kind
    index: int
    """Local rank, or ordinal of the device."""
    process: Process
    outputs: Sequence[Output]
    errors: Output
    """The one of `outputs` that carries stderr."""
    started: float = field(default_factory=time.monotonic)
    """On the monotonic clock, as `ended`."""
    ready: bool = False
    ending: Ending | None = None
    ended: float | None = None


def start_child(
    label: str,
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    stdout: int | None,
    stderr: int,
    inherited: Sequence[int] = (),
) -> Child:
    """Starts a child in a session of its own, which dies with this process.  `inherited`:
    descriptors that it keeps; then it has no standard input."""
    try:
        process = subprocess.Popen(
            command,
            env=environment,
            stdout=stdout,
            stderr=stderr,
            stdin=subprocess.DEVNULL if inherited else None,
            pass_fds=inherited,
            start_new_session=True,
            preexec_fn=die_with_parent(os.getpid()),
        )
    except OSError as error:
        raise cannot_start(label, command[0], error) from error
    return Child(process)


def cannot_start(label: str, program: str, error: OSError) -> LaunchError:
    """Why a process could not be started."""
    if error.errno not in (errno.ENOENT, errno.EACCES, errno.ENOEXEC, errno.ENOTDIR):
        return system_error(error, f"{label} could not be started")
    return LaunchError(
        f"{label} could not be started: {program}: {error.strerror}.",
        remedy="With --no-python the program must be an executable file.",
        exit_code=127 if error.errno == errno.ENOENT else 126,
    )


@dataclass(frozen=True)
class RankTree:
    """The ranks as a tree of processes that can be taken into a checkpoint."""

    root: int
    """Their common parent."""
    root_inside: int
    """The same, as it is numbered in the ranks' pid namespace."""
    first: int
    """A process that is in all their namespaces, and not of the tree."""
    ranks: Mapping[int, int]
    """By local rank: its number in their pid namespace."""
    directory: Path
    """The job's directory, as they see it."""
    work_directory: Path
    shared: tuple[Path, ...]
    """Directories below /dev/shm that are not theirs alone; the job's is one."""

    @property
    def job(self) -> str:
        """The name that the job had when it began: it may have been restored since."""
        return self.directory.name

    @property
    def root_directory(self) -> JobRoot:
        """The file system as they see it."""
        return JobRoot(f"/proc/{self.first}/root")


class RankStarter(Protocol):
    """How ranks are started, and where."""

    def open(self) -> Member | None:
        """Makes the place where they will run, before any proxy is started; the member that this takes."""

    def proxy_options(self) -> tuple[list[str], list[int]]:
        """What proxies must be told about that place: options, and descriptors to pass."""

    def start(self, rank: int, environment: Mapping[str, str]) -> Member:
        """Starts one."""

    def all_started(self) -> None:
        """No more will be started; only then it is known which have ended.  Harmless when repeated."""

    def tree(self) -> RankTree:
        """The ranks that were started.  `LaunchError` when they cannot be taken into a checkpoint."""

    def caretakers(self) -> set[int]:
        """Descendants of this process that end by themselves in `close`."""

    def close(self) -> None:
        """Removes the place with all that is in it.  Harmless when repeated."""


def rank_prefix(settings: JobSettings, rank: int) -> str:
    """What goes before each line that a rank writes: as torchrun does it, with --log-dir only."""
    return f"[rank{rank}]: " if settings.log_dir and settings.ranks > 1 else ""


class ChildRanks:
    """Ranks as children of the launcher, on the machine as it is."""

    def __init__(self, settings: JobSettings) -> None:
        self._settings = settings

    def open(self) -> Member | None:
        """See `RankStarter`."""
        return None

    def proxy_options(self) -> tuple[list[str], list[int]]:
        """See `RankStarter`."""
        return [], []

    def start(self, rank: int, environment: Mapping[str, str]) -> Member:
        """See `RankStarter`."""
        settings, prefix = self._settings, rank_prefix(self._settings, rank)
        relays = [Relay(STANDARD_ERROR, prefix=prefix, log=settings.log_file(str(rank), "stderr"))]
        stdout = None  # the launcher's own: a terminal stays a terminal
        if settings.log_dir:
            log = settings.log_file(str(rank), "stdout")
            relays.append(Relay(STANDARD_OUTPUT, prefix=prefix, log=log))
            stdout = relays[1].writing
        process = start_child(
            f"rank {rank}", settings.command, environment, stdout=stdout, stderr=relays[0].writing
        )
        for relay in relays:
            relay.close_writing()
        return Member(f"rank {rank}", Kind.RANK, rank, process, relays, relays[0])

    def all_started(self) -> None:
        """See `RankStarter`."""

    def tree(self) -> RankTree:
        """See `RankStarter`."""
        raise LaunchError(
            "The ranks of this job are not in a box, which is what a checkpoint is taken of.",
            remedy="Start it with `singularity-run --box`, as root and with CRIU (`singularity-ctl doctor`).",
        )

    def caretakers(self) -> set[int]:
        """See `RankStarter`."""
        return set()

    def close(self) -> None:
        """See `RankStarter`."""
