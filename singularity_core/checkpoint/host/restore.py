"""Makes the processes of a checkpoint again."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..criu import quote_errors
from ..reader import CheckpointReader
from .criu_lines import PIDFILE, RESTORE_LOG, describe_failure, error_lines, restore_command
from .errors import RestoreError
from .hold import describe_ending, read_log
from .ingest import HOST_IMAGE
from .keeper_link import KeeperLink, KeeperLostError
from .messages import Done, Ended, Finish, Restore
from .process_tree import all_processes, descendants
from .rebuild import image_bytes, rebuild
from .room import check_room

RESTORE_SECONDS = 300.0


@dataclass(frozen=True)
class Restored:
    """A tree that runs again."""

    pid: int
    """Of its first process, as it is called in the pid namespace that it was restored in."""


def restore(
    reader: CheckpointReader,
    *,
    place: Path,
    criu: Path,
    image: str = HOST_IMAGE,
    inherit: Mapping[str, int] | None = None,
    enter: Sequence[str] = (),
    seconds: float = RESTORE_SECONDS,
) -> Restored:
    """Restore the tree of a checkpoint; it runs when this returns, as a child of nobody in particular.

    `place` is a directory in memory for the images, which are gone afterwards.  `inherit` gives descriptors
    of this process in place of what the tree had open (``pipe:[4711]``).  `enter` is a command that runs
    another inside the namespaces where the tree is to be; who made these also ends what a failure leaves in
    them.

    :raises RestoreError: CRIU could not.  Nothing is left of the tree.
    :raises DamagedCheckpointError: The store has lost or damaged a part.  No process was made.
    :raises NoRoomError: The memory is too small."""
    given = dict(inherit or {})
    # The images, and the processes that CRIU fills from them.
    check_room(place, image_bytes(reader, image=image), times_in_memory=2)
    link = KeeperLink(place, passed=tuple(given.values()))
    try:
        rebuild(reader, link.images, image=image)
        command = restore_command(criu, inherit=given, enter=enter)
        try:
            ended = link.run_criu(Restore(command, seconds), seconds)
            if ended.returncode != 0:
                raise _failure(link.images, ended, seconds)
            pid = int((link.images / PIDFILE).read_text())
            link.ask(Finish(), Done)
        except KeeperLostError as error:
            if not enter:
                _end_what_lost_its_keeper(link)
            raise RestoreError(
                "The process that watched over the restore was killed; what it had restored was ended.",
                remedy="Try again; if it happens again, see whether memory runs out.",
            ) from error
    finally:
        link.close()
    return Restored(pid)


def _failure(images: Path, ended: Ended, seconds: float) -> RestoreError:
    log = read_log(images / RESTORE_LOG)
    quoted = quote_errors("\n".join(error_lines(log)[:3]))
    cause, remedy = describe_failure("restored", describe_ending(ended, seconds), log, quoted)
    return RestoreError(cause, remedy=remedy)


def _end_what_lost_its_keeper(link: KeeperLink) -> None:
    """Kill what CRIU had made by its end; if it failed, it has done that itself."""
    with contextlib.suppress(OSError, ValueError):
        root = int((link.images / PIDFILE).read_text())
        for status in descendants(all_processes().values(), root):
            with contextlib.suppress(ProcessLookupError):
                os.kill(status.pid, signal.SIGKILL)
