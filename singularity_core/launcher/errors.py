"""Why a job could not be started."""

from __future__ import annotations

import errno


class LaunchError(Exception):
    """The job cannot start or go on: `cause` says why, `remedy` what would help."""

    def __init__(self, cause: str, *, remedy: str = "", exit_code: int = 1) -> None:
        super().__init__(f"{cause} {remedy}".strip())
        self.cause = cause
        self.remedy = remedy
        self.exit_code = exit_code


_REMEDIES = {
    errno.EMFILE: "Allow more open files (`ulimit -Hn`): a rank takes up to five of the launcher's.",
    errno.ENFILE: "The machine has no open file left: raise fs.file-max, or end other programs.",
    errno.EAGAIN: "Allow more processes (`ulimit -u`, or the pids limit of the container).",
    errno.ENOMEM: "Free memory, or start fewer ranks.",
    errno.ENOSPC: "Make room there.",
    errno.EDQUOT: "Make room there: a quota is used up.",
    errno.EACCES: "Give this user access to it.",
    errno.EROFS: "Name a place that can be written to.",
}


def system_error(error: OSError, doing: str) -> LaunchError:
    """What the system refused while `doing` ("the job cannot be started"), with what helps against it."""
    place = f"{error.filename}: " if error.filename is not None else ""
    reason = error.strerror or str(error)
    return LaunchError(f"{doing}: {place}{reason}.", remedy=_REMEDIES.get(error.errno or 0, ""))
