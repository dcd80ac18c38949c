"""Why a job could not be started."""

from __future__ import annotations


class LaunchError(Exception):
    """The job cannot start or go on: `cause` says why, `remedy` what would help."""

    def __init__(self, cause: str, *, remedy: str = "", exit_code: int = 1) -> None:
        super().__init__(f"{cause} {remedy}".strip())
        self.cause = cause
        self.remedy = remedy
        self.exit_code = exit_code
