"""Who is at work in a store, and who is believed dead.

A writer or reader puts up a *marker* before it relies on anything, renews it while it gets on, and takes it
down at its end.  Whether a marker's owner lives can be known only on the same host; elsewhere it is guessed
from its age.  A wrong guess costs a checkpoint that is being written, never one that is committed: see
`collector`."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterable
from pathlib import Path

from .catalogue import Catalogue
from .manifest import Marker, marker_key

LEASE_SECONDS = 3600.0
"""Someone at work who has not renewed its marker for so long is believed dead."""

RENEW_SECONDS = 300.0


class Lease:
    """A marker that is up until `release`.  Used by one thread."""

    def __init__(self, catalogue: Catalogue, name: str, pins: Iterable[str], *, writes: bool) -> None:
        """Raises `OSError`, as all methods do."""
        self._catalogue = catalogue
        self._name = name
        self._pins = tuple(pins)
        self._writes = writes
        self._renewed = 0.0
        self._put()

    @property
    def expired(self) -> bool:
        """Whether others may believe by now that we are dead."""
        return boot_seconds() - self._renewed > LEASE_SECONDS

    def renew_if_due(self) -> None:
        """Say that we live; to be called wherever there is progress."""
        if boot_seconds() - self._renewed > RENEW_SECONDS:
            self._put()

    def release(self) -> None:
        """Take the marker down."""
        self._catalogue.backend.delete([marker_key(self._name)])

    def _put(self) -> None:
        before = boot_seconds()
        marker = Marker(
            name=self._name,
            renewed_ns=now_ns(),
            process=describe_process(),
            writes=self._writes,
            pins=self._pins,
        )
        self._catalogue.backend.put(marker_key(self._name), self._catalogue.encode(marker))
        self._renewed = before


def new_id(created_ns: int) -> str:
    """A name for a checkpoint: readable, in the order of time, never the same twice."""
    return time.strftime("%Y%m%dT%H%M%S", time.gmtime(created_ns // 10**9)) + "-" + secrets.token_hex(8)


def describe_process() -> str:
    """This process, so that others on this host can see whether it lives.

    The boot and the pid namespace are part of it: elsewhere the same number is another process."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')} {os.getpid()} {_started(os.getpid())}"
    except OSError:
        return "unknown"


def is_dead(marker: Marker, *, now_ns: int, lease_seconds: float = LEASE_SECONDS) -> bool:
    """Whether the owner of `marker` is to be believed dead."""
    if now_ns - marker.renewed_ns > lease_seconds * 1e9:
        return True
    there, here = marker.process.rsplit(" ", 2), describe_process().rsplit(" ", 2)
    if len(there) != 3 or there[0] != here[0] or not there[1].isdigit():
        return False
    return _started(int(there[1])) != there[2]


def now_ns() -> int:
    """Wall clock, for what other hosts compare."""
    return time.time_ns()


def boot_seconds() -> float:
    """Since the boot, sleep included: what a suspended machine missed counts."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _started(pid: int) -> str:
    """When a process began, in clock ticks since the boot; "gone" if there is none or only its shell."""
    try:
        # The name, in parentheses, may itself hold spaces and parentheses.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return "gone"
    return "gone" if fields[0] in "ZX" else fields[19]
