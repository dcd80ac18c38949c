"""Which processes descend from one.  A process that ends while it is looked at counts as ended."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from .errors import TreeGoneError

PROC = Path("/proc")


@dataclass(frozen=True)
class ProcessStatus:
    """The part of /proc/PID/stat that is of use here."""

    pid: int
    name: str
    state: str
    parent: int
    group: int
    session: int
    terminal: int
    started: int
    """Clock ticks since the boot: with the pid it names a process for ever."""

    @property
    def has_ended(self) -> bool:
        """Nothing but its exit code is left."""
        return self.state in "ZX"


def parse_status(stat: str) -> ProcessStatus:
    """One line of /proc/PID/stat."""
    # The name, in parentheses, may itself hold spaces and parentheses.
    head, _, tail = stat.rpartition(")")
    pid, _, name = head.partition(" (")
    fields = tail.split()
    parent, group, session, terminal = map(int, fields[1:5])
    return ProcessStatus(int(pid), name, fields[0], parent, group, session, terminal, started=int(fields[19]))


def read_status(pid: int, proc: Path = PROC) -> ProcessStatus | None:
    """A process's status; None if there is none of that number."""
    try:
        return parse_status((proc / str(pid) / "stat").read_text(errors="replace"))
    except (FileNotFoundError, ProcessLookupError):
        return None


def all_processes(proc: Path = PROC) -> dict[int, ProcessStatus]:
    """All that /proc shows, by pid."""
    found = (read_status(int(entry.name), proc) for entry in proc.iterdir() if entry.name.isdecimal())
    return {status.pid: status for status in found if status is not None}


def descendants(processes: Iterable[ProcessStatus], root: int) -> list[ProcessStatus]:
    """`root` and all that descend from it, parents first; empty if it is not there."""
    processes = tuple(processes)
    children: dict[int, list[ProcessStatus]] = defaultdict(list)
    for status in processes:
        if status.pid != root:
            children[status.parent].append(status)
    found = [status for status in processes if status.pid == root]
    for status in found:
        found.extend(children[status.pid])
    return found


def number_inside(pid: int, proc: Path = PROC) -> int:
    """What a process is called in its own pid namespace; 0 if there is none of that number."""
    try:
        status = (proc / str(pid) / "status").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return 0
    found = [line for line in status.splitlines() if line.startswith("NSpid:")]
    return int(found[0].split()[-1]) if found else pid


def tree_of(root: int, proc: Path = PROC) -> list[ProcessStatus]:
    """The processes of a tree, parents first.

    :raises TreeGoneError: Its root has ended."""
    found = descendants(all_processes(proc).values(), root)
    if not found or found[0].has_ended:
        raise TreeGoneError(
            f"Process {root}, the first one of the job, has ended.",
            remedy="Look at the job's log for the reason.",
        )
    return found
