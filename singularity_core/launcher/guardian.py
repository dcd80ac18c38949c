"""The process that cleans up when the launcher itself is killed.

It is forked before anything else, leaves the launcher's session and family (so that neither a signal to the
group nor one to all descendants takes it along), and reads from a pipe whose other end only the launcher
has: lines with the pids of the session leaders it started, then ``done``.  End of file without ``done``
means that the launcher was killed.  The guardian then kills what belongs to the job until nothing is left,
and removes the directory; of a resume that was not completed it takes back what was done to files.  It shares
the launcher's locks, so that nobody interferes.
"""

from __future__ import annotations

import os
import select
import signal
import traceback

from .job_directory import JobDirectory
from .processes import end_members, set_process_name
from .restore_place import RestorePlace

_DONE = b"done"
_END_SECONDS = 40.0
"""More than `end_members` takes."""


class Guardian:
    """The launcher's end.  Create it before any thread or child exists."""

    def __init__(self, directory: JobDirectory, place: RestorePlace | None = None) -> None:
        """`place`: of a job that is resumed."""
        reading, self._pipe = os.pipe2(os.O_CLOEXEC)
        told, tell = os.pipe2(os.O_CLOEXEC)
        middle = os.fork()
        if middle == 0:  # a second fork: the guardian is an orphan, not our child
            status = 1
            try:
                os.close(self._pipe)
                os.setsid()
                pid = os.fork()
                if pid == 0:
                    _guard(reading, directory, place)
                os.write(tell, f"{pid}\n".encode())
                status = 0
            finally:
                os._exit(status)
        os.close(reading)
        os.close(tell)
        os.waitpid(middle, 0)
        self.pid = int(os.read(told, 32) or b"0")
        os.close(told)
        if self.pid == 0:
            raise OSError("the guardian process could not be started")
        self.pidfd = os.pidfd_open(self.pid)

    def know(self, leader: int) -> None:
        """Tells of a process that leads a session of the job."""
        self._send(b"%d" % leader)

    def dismiss(self) -> None:
        """Everything is cleaned up: ends the guardian, and waits until it is gone."""
        self._send(_DONE)
        os.close(self._pipe)
        select.select([self.pidfd], [], [], 10.0)
        os.close(self.pidfd)

    def hand_over(self) -> None:
        """Something may be left that the launcher could not end: lets the guardian do its work, as when the
        launcher is killed, and waits until it has."""
        os.close(self._pipe)
        select.select([self.pidfd], [], [], _END_SECONDS)
        os.close(self.pidfd)

    def _send(self, line: bytes) -> None:
        try:
            os.write(self._pipe, line + b"\n")
        except BrokenPipeError:
            return  # killed: the launcher still cleans up on its own


def _guard(reading: int, directory: JobDirectory, place: RestorePlace | None) -> None:
    """The guardian's whole life; does not return."""
    try:
        set_process_name("sg-guardian")
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, signal.SIG_IGN)
        locks = {directory.lock_descriptor} | ({place.lock_descriptor} if place is not None else set())
        _let_go_of_files({reading, *locks})
        os.chdir("/")
        leaders, done = _listen(reading)
        if not done:
            end_members(directory.job, leaders)
            try:
                if place is not None:
                    place.recover()
                    place.close()
            finally:
                directory.remove()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0)


def _let_go_of_files(keep: set[int]) -> None:
    """The launcher's output may be a pipe that someone reads to the end."""
    nowhere = os.open("/dev/null", os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)
    for name in os.listdir("/proc/self/fd"):
        descriptor = int(name)
        if descriptor > 2 and descriptor not in keep:
            try:
                os.close(descriptor)
            except OSError:
                continue  # the listing's own


def _listen(reading: int) -> tuple[set[int], bool]:
    leaders: set[int] = set()
    with os.fdopen(reading, "rb") as lines:
        for line in lines:
            word = line.strip()
            if word == _DONE:
                return leaders, True
            leaders.add(int(word))
    return leaders, False
