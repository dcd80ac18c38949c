"""Holds a tree of processes still, dumps it, and lets it go on or ends it.

Nothing but `end` ends the tree.  However this process, the keeper (see there) or CRIU come to their end, the
tree goes on, and nothing is left of the images."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType

from ..criu import quote_errors
from .cgroup import FreezerUnavailableError, free_cgroup_of
from .criu_lines import DUMP_LOG, describe_failure, dump_command, error_lines
from .errors import DataMovedError, DumpError, RefusedError
from .facts import Allowed, Facts
from .guard import Verdict, judge
from .keeper_link import KeeperLink, KeeperLostError
from .messages import Done, Dump, Ended, Finish, Freeze, Held
from .process_tree import PROC, number_inside, tree_of
from .room import check_room, estimate_image, unlinked_bytes
from .scan import scan
from .sockets import read_connections

FREEZE_SECONDS = 10.0
DUMP_SECONDS = 300.0
_LOG_BYTES = 1 << 20


class Hold:
    """One tree, held; a context manager.  Used by one thread."""

    def __init__(
        self,
        root: int,
        *,
        place: Path,
        allowed: Allowed = Allowed(),  # noqa: B008  (immutable)
        with_cgroup: bool = True,
        seconds: float = FREEZE_SECONDS,
    ) -> None:
        """`place` is a directory in memory (tmpfs), where the images will lie; `allowed` is what may lead out
        of the tree.

        Without a cgroup (or where that is not possible: see `why_not_still`) CRIU stops the tree, so that it
        stands still only from `dump` on."""
        self._root = root
        self._allowed = allowed
        self._dumped = False
        self._holding = True
        self._ghost_bytes, estimate = unlinked_bytes(root), estimate_image(root)
        check_room(place, estimate)
        cgroup, why_not = None, "it was asked for without"
        if with_cgroup:
            try:
                cgroup = free_cgroup_of(root)
            except FreezerUnavailableError as error:
                why_not = str(error)
        self._keeper = KeeperLink(place, cgroup=cgroup)
        try:
            held = self._keeper.ask(Freeze(root, seconds, str(cgroup or "")), Held)
        except BaseException:
            self._keeper.close()
            raise
        self.why_not_still: str | None = held.why_not or (None if cgroup else why_not)
        """Why the tree still runs until it is dumped; None: it stands still."""
        self.held_seconds: float | None = None
        """For how long the tree stood still, when it is over."""

    def __enter__(self) -> Hold:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def images(self) -> Path:
        """Where the images are, until `close`."""
        return self._keeper.images

    def judge(self) -> list[Verdict]:
        """All that stands in the way of `dump`, which looks at it, too."""
        return judge(scan(self._root), self._allowed)

    def dump(self, criu: Path, *, enter: Sequence[str] = (), seconds: float = DUMP_SECONDS) -> None:
        """Dump the tree, which stands still afterwards.

        `enter` is a command that runs another inside the tree's namespaces (such as ``nsenter``).

        :raises RefusedError: The guard found something in the way; nothing was done.
        :raises DumpError: CRIU could not, or did not end within `seconds`."""
        if self._dumped or not self._holding:
            raise ValueError("A hold is good for one dump, before the tree goes on.")
        facts = scan(self._root)
        if verdicts := judge(facts, self._allowed):
            raise refusal(verdicts)
        pid = number_inside(self._root) if enter else self._root
        if pid == 0:
            tree_of(self._root)  # says so
        command = dump_command(criu, pid, ghost_bytes=self._ghost_bytes, enter=enter)
        ended = self._keeper.run_criu(Dump(command, seconds), seconds)
        if ended.returncode != 0:
            raise self._failure(ended, seconds)
        if self.why_not_still is None:
            _refuse_if_data_moved(facts)
        self._dumped = True
        for log in (DUMP_LOG, "hook"):
            with contextlib.suppress(FileNotFoundError):
                (self.images / log).unlink()

    def go_on(self) -> None:
        """Let the tree run; nothing happens if it does."""
        self._finish(end=False)

    def end(self) -> None:
        """Kill the tree, which must have been dumped; when this returns it is gone."""
        if not self._dumped or not self._holding:
            raise ValueError("Only a tree that was dumped and stands still can be ended.")
        self._finish(end=True)

    def close(self) -> None:
        """Let the tree go on, unless it was ended, and throw away the images."""
        try:
            with contextlib.suppress(KeeperLostError):
                self.go_on()
        finally:
            self._keeper.close()

    def _finish(self, *, end: bool) -> None:
        if self._holding:
            self._holding = False
            self.held_seconds = self._keeper.ask(Finish(end), Done).held_seconds

    def _failure(self, ended: Ended, seconds: float) -> DumpError:
        log = read_log(self.images / DUMP_LOG)
        cause, remedy = describe_failure(
            "dumped", describe_ending(ended, seconds), log, quote_errors("\n".join(error_lines(log)[:3]))
        )
        return DumpError(cause, remedy=remedy)


def _refuse_if_data_moved(before: Facts) -> None:
    """A process that stands still reads nothing, but the kernel may deliver what was sent before, such as
    when it asks whether there is room again.  If it did so after the receiver was dumped and before the
    sender was, the restored sender would never repeat what the restored receiver waits for."""
    pids = {process.network: process.pid for process in before.processes}
    now = {network: tuple(read_connections(PROC / str(pid))) for network, pid in pids.items()}
    if replace(before, connections=now).unread != before.unread:
        raise DataMovedError(
            "Data arrived on a TCP connection of the job while it was dumped, so that its ends do not fit.",
            remedy="Take the checkpoint again.",
        )


def refusal(verdicts: Sequence[Verdict]) -> RefusedError:
    """What to say when the guard finds something."""
    first = verdicts[0]
    more = f" {len(verdicts) - 1} more things like this stand in the way." if len(verdicts) > 1 else ""
    return RefusedError(
        f"The job cannot be dumped: process {first.pid} ({first.process}): {first.what}.{more}",
        remedy=first.remedy,
    )


def describe_ending(ended: Ended, seconds: float) -> str:
    """In words."""
    said = f" ({' '.join(ended.output.split())[-300:]})" if ended.output.strip() else ""
    if ended.returncode is None:
        return f"did not end within {seconds:g} s and was killed, which may have damaged the job{said}"
    if ended.returncode < 0:
        return f"was killed by signal {-ended.returncode}, which may have damaged the job{said}"
    return f"ended with {ended.returncode}{said}"


def read_log(log: Path) -> str:
    """The end of a log; empty if there is none."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _LOG_BYTES))
            return file.read(_LOG_BYTES).decode(errors="replace")
    except OSError:
        return ""
