"""Why the processes of a job cannot be dumped or restored.

Each error says what happened (``cause``) and what to do about it (``remedy``)."""

from __future__ import annotations


class HostImageError(Exception):
    """The root of what `singularity_core.checkpoint.host` raises."""

    def __init__(self, cause: str, *, remedy: str) -> None:
        super().__init__(f"{cause} {remedy}")
        self.cause = cause
        self.remedy = remedy


class ImageMissingError(HostImageError):
    """The checkpoint has no such image."""


class NoRoomError(HostImageError):
    """Memory or the memory-backed file system is too small."""


class TreeGoneError(HostImageError):
    """There is no such process, or it ended meanwhile."""


class RefusedError(HostImageError):
    """The guard found what a dump would break.  Nothing was done to the processes."""


class HoldError(HostImageError):
    """The processes cannot be made to stand still, or were let go by somebody else."""


class DumpError(HostImageError):
    """CRIU did not dump the processes.  They go on, unless the cause says otherwise."""


class DataMovedError(DumpError):
    """The dump is good for nothing, because the processes' connections moved data meanwhile.  It happens, and
    the next one is good."""


class RestoreError(HostImageError):
    """CRIU did not restore the processes.  Nothing of them is left."""
