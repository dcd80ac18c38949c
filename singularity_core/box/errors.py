"""Why there is no box."""

from __future__ import annotations

import errno
import os


class BoxUnavailableError(Exception):
    """No box can be made: `cause` says why, `remedy` what would help."""

    def __init__(self, cause: str, *, remedy: str) -> None:
        super().__init__(f"{cause} {remedy}".strip())
        self.cause = cause
        self.remedy = remedy


_REMEDIES = {
    errno.EPERM: "Run as root on the machine itself, or in a container that may do this "
    "(docker run --privileged); or leave out --box.",
    errno.EINVAL: "Use a kernel with such namespaces (time namespaces: Linux 5.6), or leave out --box.",
    errno.ENOSPC: "Allow more namespaces (sysctl user.max_*_namespaces), or leave out --box.",
    errno.ENOSYS: "Use a kernel that has this system call, or leave out --box.",
}
_OTHERWISE = "Leave out --box; `singularity-ctl doctor` says what is missing here."


def step_failed(step: str, error: OSError) -> BoxUnavailableError:
    """What the system refused at `step` ("make a time namespace")."""
    reason = error.strerror or str(error)
    return BoxUnavailableError(
        f"No job box can be made: cannot {step}: {reason}.",
        remedy=_REMEDIES.get(error.errno or 0, _OTHERWISE),
    )


def needs_root() -> BoxUnavailableError:
    """For whoever is not root."""
    return BoxUnavailableError(
        f"No job box can be made for user {os.geteuid()}: namespaces that CRIU can dump take root.",
        remedy="Run as root, or leave out --box.",
    )
