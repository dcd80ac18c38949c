"""What CRIU is asked to do, and what its logs mean.  Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

DUMP_LOG = "dump.log"
RESTORE_LOG = "restore.log"
PIDFILE = "restored.pid"
_COMMON = (
    "--tcp-established",
    "--file-locks",
    "--link-remap",
    "--manage-cgroups=ignore",
    # The whole tree stands still, and others are not connected to it.  `Hold.dump` looks whether data moved.
    "--network-lock=skip",
    "-v2",
)
_HARMLESS = ("RLIMIT_NOFILE for self",)
_OTHER_REMEDY = "docs/checkpoints.md names what can be carried."
_MEANINGS = (
    (r"No space left on device", "there is no room left for its images", "Free memory."),
    (r"Can't fork for (?P<pid>\d+)|[Pp]id (?P<pid2>\d+) (?:is|do)",
     "the number of one of its processes is taken", "Restore it in a box of its own, or end that process."),
    (r"File (?P<path>\S+) has bad (?P<what>size|mode|build-ID)",
     "{path} is not what it was (its {what} differs)", "Put that file back as it was at the checkpoint."),
    (r"Can't open file (?P<path>\S+)", "{path} cannot be opened", "Put that file back as it was."),
    (r"Can't (?:bind inet|create inet)[^:]*(?:: (?P<why>.*))?", "its network address cannot be had again",
     "Restore it in a box of its own, or end what uses that address."),
    (r"(?:Can't|Unable to) seize", "one of its processes is traced, or protected",
     "Detach the debugger, and run as root."),
    (r"outside of (?:its|our) pid namespace|session leader", "its session is led from outside of the job",
     "Start the job's first process in a session of its own (setsid)."),
    (r"half of stream unix connection|[Ee]xternal (?:socket|unix)",
     "it has a Unix socket that is connected to a process outside of the job", "Close that connection."),
    (r"Can't dump ghost file|ghost file .* too (?:large|big)", "it has a nameless file that is too large",
     "Let the program give that file a name, or close it."),
)  # fmt: skip


def dump_command(criu: Path, pid: int, *, ghost_bytes: int, enter: Sequence[str] = ()) -> tuple[str, ...]:
    """Dumps the tree of `pid`, as that is called where `enter` leads."""
    return (
        *enter, str(criu), "dump", "--tree", str(pid), "-o", DUMP_LOG,
        "--ghost-limit", str(max(ghost_bytes, 1 << 20)), *_COMMON,
    )  # fmt: skip


def restore_command(criu: Path, *, inherit: Mapping[str, int], enter: Sequence[str] = ()) -> tuple[str, ...]:
    """Restores a tree and leaves it alone; `inherit` gives descriptors in place of what the tree had."""
    given = [f"--inherit-fd=fd[{descriptor}]:{what}" for what, descriptor in inherit.items()]
    return (
        *enter, str(criu), "restore", "--restore-detached", "--pidfile", PIDFILE, "-o", RESTORE_LOG,
        *_COMMON, *given,
    )  # fmt: skip


def explain(log: str) -> tuple[str, str] | None:
    """What an error in CRIU's log means, and what to do about it; None: nothing that is known."""
    for line in error_lines(log):
        for pattern, cause, remedy in _MEANINGS:
            if found := re.search(pattern, line):
                return cause.format(**{key: value or "" for key, value in found.groupdict().items()}), remedy
    return None


def error_lines(log: str) -> list[str]:
    """The lines about errors that matter, in order."""
    return [
        line
        for line in log.splitlines()
        if "Error" in line and not any(harmless in line for harmless in _HARMLESS)
    ]


def describe_failure(action: str, ending: str, log: str, quoted: str) -> tuple[str, str]:
    """Cause and remedy, from how CRIU ended, its log, and what is to be quoted of that."""
    known = explain(log)
    because = f": {known[0]}" if known else ""
    quote = f" CRIU says: {quoted}." if quoted else ""
    return f"The job cannot be {action}{because}. CRIU {ending}.{quote}", known[1] if known else _OTHER_REMEDY
