"""One run of a job from its beginning to its end, with all that has to be cleaned up after it, whatever it
began from."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping

from .auto_resume import goes_on
from .beginning import Beginning
from .guardian import Guardian
from .job_directory import JobDirectory
from .known_stores import forget
from .later_changes import forget_changes
from .processes import allow_open_files, become_subreaper
from .restore_place import RestorePlace
from .settings import JobSettings
from .supervisor import EXIT_PREEMPTED, Supervisor
from .terminal import TERMINALS

_READER_SECONDS = 5.0
"""So long a launcher that is told to end waits for a reader of its output who takes nothing."""


def run_attempt(
    settings: JobSettings,
    directory: JobDirectory,
    make_beginning: Callable[[JobDirectory], Beginning],
    backend_environment: Mapping[str, str],
    *,
    place: RestorePlace | None = None,
) -> int:
    """Runs the job in this process, which takes signals for it meanwhile; returns the launcher's exit code.

    `directory` is new, and is removed in the end; nothing else of the job is left, either.  May be called
    again when it has returned or raised.  Does not return when the job failed and goes on by itself.
    `make_beginning` is called when the guardian is there, and not before: from then on there may be threads
    and children.  `place`: of a job that is resumed; it is closed in the end.

    :raises LaunchError: The job could not begin.
    :raises OSError: The system refuses something that each job needs."""
    guardian = supervisor = None
    try:
        guardian = Guardian(directory, place)
        become_subreaper()
        allow_open_files()
        supervisor = Supervisor(
            settings,
            directory,
            guardian,
            backend_environment=backend_environment,
            beginning=make_beginning(directory),
        )
        code = supervisor.run()
    finally:
        left = supervisor is not None and not supervisor.swept
        if guardian is not None and left:
            guardian.hand_over()
        directory.remove()
        if place is not None:
            place.close()
        if guardian is not None and not left:
            guardian.dismiss()
        for terminal in TERMINALS:  # now that nothing is left, a second signal may end us while we wait
            terminal.drain(_READER_SECONDS if supervisor is not None and supervisor.signalled else None)
    if supervisor.failed and goes_on(supervisor.settings, directory.job, noticed=supervisor.noticed):
        code = EXIT_PREEMPTED
    if code == 0:
        forget(settings.lineage or directory.job)
        forget_changes(settings.lineage or directory.job)
    if supervisor.stuck:  # Python would wait for those threads
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code
