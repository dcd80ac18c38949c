"""What the launcher needs of the kernel: who is whose child, how a process ended, and who dies with whom."""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import select
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

LAUNCHER_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
"""What tells a launcher to end."""
JOB_VARIABLE = "SINGULARITY_JOB"
"""Marks every process of a job, so that those that lost their parent are still found."""

_KILL_SECONDS = 20.0
_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, argument: int | bytes) -> None:
    if isinstance(argument, bytes):
        failed = _libc.prctl(option, ctypes.c_char_p(argument), 0, 0, 0)
    else:
        failed = _libc.prctl(option, ctypes.c_ulong(argument), 0, 0, 0)
    if failed:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}): {os.strerror(number)}")


def become_subreaper() -> None:
    """From now on, orphans among this process's descendants become its children instead of init's."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def set_process_name(name: str) -> None:
    """Sets what `ps -o comm` shows; at most 15 bytes."""
    _prctl(_PR_SET_NAME, name.encode()[:15])


_inherited_files: tuple[int, int] | None = None
_OPEN_FILES = 16384


def allow_open_files() -> None:
    """Takes what a job of many ranks needs, as far as it may: most shells grant less.  Children made with
    `die_with_parent` get what the caller had, because some programs misbehave with more."""
    global _inherited_files
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        _inherited_files = (soft, hard)


def die_with_parent(parent: int) -> Callable[[], None]:
    """For `subprocess.Popen(preexec_fn=...)`: the child is killed when `parent`, the caller, ends."""

    def in_child() -> None:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it ended before prctl took effect
            os.kill(os.getpid(), signal.SIGKILL)
        if _inherited_files is not None:
            resource.setrlimit(resource.RLIMIT_NOFILE, _inherited_files)

    return in_child


def die_with(process: int) -> None:
    """This process is killed when its parent ends, of which `process` is a pidfd: in a pid namespace of one's
    own, a parent outside has no number."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if select.select([process], [], [], 0)[0]:  # it ended before prctl took effect
        os._exit(1)


def pid_of(pidfd: int) -> int:
    """The process behind a pidfd, as this one numbers it; -1 when it is gone, 0 when it is out of sight."""
    for line in Path(f"/proc/self/fdinfo/{pidfd}").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "Pid":
            return int(value)
    raise OSError(errno.EINVAL, f"descriptor {pidfd} is no pidfd")


@dataclass(frozen=True)
class Ending:
    """How a process ended."""

    returncode: int
    """Exit code, or minus the number of the signal that killed it."""

    @property
    def exit_code(self) -> int:
        """As a shell reports it: the process's own code, or 128 + signal."""
        return 128 - self.returncode if self.returncode < 0 else self.returncode

    def __str__(self) -> str:
        if self.returncode >= 0:
            return f"exited with code {self.returncode}"
        try:
            name = signal.Signals(-self.returncode).name
        except ValueError:
            name = "real-time signal"
        return f"was killed by signal {-self.returncode} ({name})"


@dataclass(frozen=True)
class ProcessEntry:
    """A line of the process table."""

    pid: int
    parent: int
    session: int
    zombie: bool


def process_table() -> dict[int, ProcessEntry]:
    """All processes that /proc shows, by pid."""
    table: dict[int, ProcessEntry] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            text = Path("/proc", name, "stat").read_text(errors="replace")
        except OSError:
            continue  # ended meanwhile
        fields = text[text.rindex(")") + 2 :].split()
        table[int(name)] = ProcessEntry(int(name), int(fields[1]), int(fields[3]), fields[0] in "ZX")
    return table


def with_descendants(roots: Iterable[int], table: dict[int, ProcessEntry]) -> set[int]:
    """`roots` and all their descendants in `table`."""
    children: dict[int, list[int]] = {}
    for entry in table.values():
        children.setdefault(entry.parent, []).append(entry.pid)
    found: set[int] = set()
    waiting = list(roots)
    while waiting:
        pid = waiting.pop()
        if pid not in found:
            found.add(pid)
            waiting.extend(children.get(pid, ()))
    return found


def live_descendants(root: int) -> set[int]:
    """Descendants of `root` that still run (no zombies), without `root`."""
    table = process_table()
    return {pid for pid in with_descendants([root], table) - {root} if pid in table and not table[pid].zombie}


def job_members(job: str, leaders: Iterable[int] = ()) -> set[int]:
    """Processes that run as part of `job`: those whose environment names it, those in a session that one of
    `leaders` (pids) founded, and all their descendants.  Never this process."""
    table = process_table()
    founders = set(leaders)
    marker = f"{JOB_VARIABLE}={job}".encode()
    roots = []
    for entry in table.values():
        if entry.zombie:
            continue
        if entry.session in founders or marker in _environment(entry.pid):
            roots.append(entry.pid)
    members = with_descendants(roots, table) - {os.getpid()}
    return {pid for pid in members if not table[pid].zombie}


def _environment(pid: int) -> list[bytes]:
    try:
        return Path("/proc", str(pid), "environ").read_bytes().split(b"\0")
    except OSError:  # ended, or another user's
        return []


def kill_all(pids: Iterable[int], number: int = signal.SIGKILL) -> None:
    """Signals each process that still exists."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            continue


def kill_until_quiet(look: Callable[[], set[int]], seconds: float) -> set[int]:
    """Kills what `look` finds until two looks in a row find nothing: a process may fork while it is looked
    for.  Returns what is left after `seconds`."""
    deadline = time.monotonic() + seconds
    quiet = 0
    while quiet < 2:
        found = look()
        if found and time.monotonic() > deadline:
            return found
        kill_all(found)
        quiet = 0 if found else quiet + 1
        if quiet < 2:
            time.sleep(0.01)
    return set()


def end_members(job: str, leaders: Iterable[int] = ()) -> set[int]:
    """Kills the members of `job` (see `job_members`) until none is left; returns those that would not go."""
    return kill_until_quiet(lambda: job_members(job, leaders), _KILL_SECONDS)
