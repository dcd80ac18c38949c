"""The process that keeps a hold: it freezes, runs CRIU, and lets go, on behalf of its owner.

It is a process of its own so that a tree does not stand still for ever when its owner is killed: then the
connection to the owner ends, and the keeper undoes what was done.  Where CRIU runs at that moment, it is let
come to its end, because a tree from which CRIU is torn away may be damaged.  If the keeper is killed, the
owner undoes it.  If both are, a tree that CRIU itself has stopped goes on, by CRIU's hook below; one in a
cgroup stands still until somebody comes by (`cgroup.free_cgroup_of`, which each new hold begins with).

``python -m singularity_core.checkpoint.host.keeper CONNECTION PARENT [DESCRIPTOR...]`` with an inherited
connection, the directory in memory where images may lie, and what CRIU is to inherit."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from ..supervised import Supervised, Waited
from .cgroup import Freezer, FreezerUnavailableError, abandoned_holds
from .errors import HoldError, HostImageError
from .hold_names import new_hold_name
from .messages import (
    LARGEST_MESSAGE,
    Answer,
    Begin,
    Done,
    Dump,
    Ended,
    Failed,
    Finish,
    Freeze,
    Held,
    Ready,
    Request,
    Restore,
    Started,
)
from .process_tree import all_processes, descendants

_PR_SET_CHILD_SUBREAPER = 36
_HOOK = "hook"
_HOOK_LINES = """#!/bin/sh
# The tree stands still when CRIU calls this, and all images are written.  It goes on when this fails: also
# when nobody answers, because all who might have are dead.  CRIU, the parent, has the pipes' ends.
[ "$CRTOOLS_SCRIPT_ACTION" = post-dump ] || exit 0
echo stopped > /proc/$PPID/fd/{told} || exit 1
read -r answer < /proc/$PPID/fd/{answered} || exit 1
[ "$answer" = end ]
"""


class Keeper:
    """All that one keeper keeps."""

    def __init__(self, connection: socket.socket, parent: Path, passed: Sequence[int]) -> None:
        self._connection = connection
        self._passed = tuple(passed)
        self._freezer: Freezer | None = None
        self._hook: _Hook | None = None
        self._criu: Supervised | None = None
        self._held_since = 0.0
        self._restored = False
        self._images = parent / new_hold_name(os.getpid())
        try:
            for left in abandoned_holds(parent):
                shutil.rmtree(left, ignore_errors=True)
            self._images.mkdir(mode=0o700)
            self._images_descriptor = os.open(self._images, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            shutil.rmtree(self._images, ignore_errors=True)
            raise HoldError(
                f"No directory for images can be made in {parent}: {error.strerror or error}.",
                remedy="See that it is there, can be written to, and has room for more files.",
            ) from error

    def serve(self) -> None:
        """Until the owner closes the connection, or dies."""
        try:
            self._say(Ready(str(self._images)))
            while packet := self._connection.recv(LARGEST_MESSAGE):
                try:
                    self._say(self._obey(msgspec.json.decode(packet, type=Request)))
                except HostImageError as error:
                    self._say(Failed(error.cause, error.remedy))
                except OSError as error:
                    self._say(Failed(f"{error}.", "See whether this machine allows it."))
        except (BrokenPipeError, ConnectionResetError):
            pass
        finally:
            self._undo()

    def _say(self, answer: Answer) -> None:
        self._connection.send(msgspec.json.encode(answer))

    def _obey(self, request: Request) -> Answer:
        match request:
            case Freeze():
                return self._freeze(request)
            case Dump():
                return self._dump(request)
            case Restore():
                return self._restore(request)
            case Begin():
                return Failed("There is nothing to begin.", "Report this as a bug.")
            case Finish():
                return self._finish(end=request.end)

    def _freeze(self, request: Freeze) -> Answer:
        why_not = ""
        self._held_since = time.monotonic()
        self._hook = _Hook(self._images)
        if request.cgroup:
            try:
                self._freezer = Freezer.make(request.root, Path(request.cgroup), seconds=request.seconds)
                return Held()
            except FreezerUnavailableError as error:
                why_not = str(error)
        return Held(why_not=why_not)

    def _dump(self, request: Dump) -> Answer:
        images = f"/proc/self/fd/{self._images_descriptor}"
        command = [*request.command, "--images-dir", images]
        descriptors = [self._images_descriptor]
        if self._hook is not None:
            command += ["--action-script", f"./{_HOOK}"]  # it runs in the directory of the images
            descriptors += self._hook.inherited
        if self._freezer is not None:
            cgroup = os.open(self._freezer.directory, os.O_RDONLY | os.O_DIRECTORY)
            command += ["--leave-running", "--freeze-cgroup", f"/proc/self/fd/{cgroup}"]
            descriptors.append(cgroup)
        else:
            self._held_since = time.monotonic()
        self._criu = Supervised(command, pass_fds=descriptors, gated=True)
        if self._freezer is not None:
            os.close(descriptors[-1])
        self._begin()
        told = self._hook.told if self._hook is not None else None
        waited = self._criu.wait(time.monotonic() + request.seconds, told)
        if waited is Waited.READY:
            return Ended(0, "")
        return self._end_criu(waited)

    def _restore(self, request: Restore) -> Answer:
        # Whatever loses its parent meanwhile becomes a child of ours, and is found when it is to end.
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self._restored = True
        command = [*request.command, "--images-dir", f"/proc/self/fd/{self._images_descriptor}"]
        self._criu = Supervised(command, pass_fds=[self._images_descriptor, *self._passed], gated=True)
        self._begin()
        waited = self._criu.wait(time.monotonic() + request.seconds)
        if waited is Waited.LATE:
            kill_descendants()  # else `finish` waits for what has left CRIU's process group
        answer = self._end_criu(waited)
        if answer.returncode != 0:
            end_descendants()
        return answer

    def _begin(self) -> None:
        """Whatever happens to us, the owner knows which process to wait for, before that does anything.

        :raises ConnectionResetError: The owner is dead; nothing was begun."""
        assert self._criu is not None
        try:
            self._say(Started(self._criu.pid))
            packet = self._connection.recv(LARGEST_MESSAGE)
            if not packet or not isinstance(msgspec.json.decode(packet, type=Request), Begin):
                raise ConnectionResetError
        except BaseException:
            criu, self._criu = self._criu, None
            criu.finish()
            raise
        self._criu.open_gate()

    def _end_criu(self, waited: Waited) -> Ended:
        assert self._criu is not None
        criu, self._criu = self._criu, None
        returncode = criu.finish()
        return Ended(returncode if waited is Waited.ENDED else None, criu.output)

    def _finish(self, *, end: bool) -> Answer:
        try:
            if self._hook is not None:
                hook, self._hook = self._hook, None
                hook.answer(end=end)
                if self._criu is not None:
                    # It only has to kill the tree or to let go of it.
                    self._end_criu(self._criu.wait(time.monotonic() + 60))
        finally:
            if self._freezer is not None:
                freezer, self._freezer = self._freezer, None
                if end:
                    freezer.kill()
                else:
                    freezer.release()
        self._restored = False
        held, self._held_since = time.monotonic() - self._held_since, 0.0
        return Done(held)

    def _undo(self) -> None:
        restored = self._restored
        try:
            with contextlib.suppress(OSError):
                self._finish(end=False)
        finally:
            if restored:
                end_descendants()
            shutil.rmtree(self._images, ignore_errors=True)


class _Hook:
    """Holds CRIU up when it has dumped, until the hold is over.

    It holds the tree where no cgroup does.  And it keeps CRIU from cleaning up: where a process has a file
    by a name that is gone, while another name is left (a semaphore of multiprocessing, say), CRIU gives it a
    name of its own in the same directory (``link_remap.N``), wants that at the restore, and removes it when
    it ends.  So whoever copies such a directory does so before."""

    def __init__(self, images: Path) -> None:
        self.told, told_end = os.pipe()
        answered, self._answer_end = os.pipe()
        self.inherited = [told_end, answered]
        hook = images / _HOOK
        hook.write_text(_HOOK_LINES.format(told=told_end, answered=answered))
        hook.chmod(0o700)

    def answer(self, *, end: bool) -> None:
        """Let CRIU end the tree, or let it go on."""
        if end:
            with contextlib.suppress(BrokenPipeError):
                os.write(self._answer_end, b"end\n")
        os.close(self._answer_end)
        for descriptor in (self.told, *self.inherited):
            os.close(descriptor)


def kill_descendants() -> list[int]:
    """Kill all that descends from this process and has not ended; which these were."""
    family = descendants(all_processes().values(), os.getpid())[1:]
    living = [status.pid for status in family if not status.has_ended]
    for pid in living:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return living


def end_descendants() -> None:
    """Kill all that descends from this process, and wait for it."""
    while True:
        living = kill_descendants()
        try:
            # Killed parents leave their children to us; so this goes on until there is none.
            os.waitpid(-1, 0)
        except ChildProcessError:
            if not living:
                return


def _main() -> None:
    connection, parent, *passed = sys.argv[1:]
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # Meant for the owner, who tells us by closing the connection.  Not ignored, which CRIU would inherit:
        # it ends a process of its own with SIGTERM, and would wait for that without end.
        signal.signal(number, lambda *_: None)
    owner = socket.socket(fileno=int(connection))
    try:
        keeper = Keeper(owner, Path(parent), [int(it) for it in passed])
    except HoldError as error:
        with contextlib.suppress(OSError):  # the owner is dead
            owner.send(msgspec.json.encode(Failed(error.cause, error.remedy)))
        return
    keeper.serve()


if __name__ == "__main__":
    _main()
