"""Why ranks cannot be placed as asked."""

from __future__ import annotations


class PlacementError(ValueError):
    """The ranks cannot be placed so: `cause` names ranks and devices, `remedy` says what would do."""

    def __init__(self, cause: str, *, remedy: str = "") -> None:
        super().__init__(f"{cause} {remedy}".rstrip())
        self.cause = cause
        self.remedy = remedy
