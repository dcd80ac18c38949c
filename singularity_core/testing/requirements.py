"""Why a conformance test may not run: three reasons that must not be confused.

* *Unsupported*: the device lacks a capability that the test needs (`requires`), or the author excludes the
  test as one that can never apply (`Verdict.UNSUPPORTED`).  Permanent; the test is skipped.
* *Unavailable*: the environment lacks the device.  The test is skipped, or fails under ``--hal-must-run``.
* *Expected failure* (`Verdict.EXPECTED_FAILURE`): a fault that is known and should go away.  The test runs,
  and is reported when it passes, so that the list shrinks.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from fnmatch import fnmatchcase

import pytest

from ..hal.capabilities import Capability

MARKER = "hal_requires"


def requires(*capabilities: Capability) -> pytest.MarkDecorator:
    """Marks a test that only makes sense on devices with all these capabilities."""
    return getattr(pytest.mark, MARKER)(*capabilities)  # type: ignore[no-any-return]


class Verdict(enum.Enum):
    """What an exclusion claims."""

    UNSUPPORTED = "unsupported"
    EXPECTED_FAILURE = "expected failure"


@dataclass(frozen=True)
class Exclusion:
    """A test that is not to pass on this backend, and why.

    `test` is a test's name, with its parameters in brackets if it has any, or a pattern with ``*``.  A
    pattern that fits no test of the suite is an error, and so is an empty reason."""

    test: str
    reason: str
    verdict: Verdict = Verdict.UNSUPPORTED

    def __post_init__(self) -> None:
        if not self.reason.strip():
            raise ValueError(f"the exclusion of {self.test!r} gives no reason")

    def fits(self, name: str) -> bool:
        """Whether it excludes the test of that name."""
        return fnmatchcase(name.replace("[", "<"), self.test.replace("[", "<"))

    def fits_function(self, name: str) -> bool:
        """Whether it could exclude some test of the function of that name."""
        return fnmatchcase(name, self.test.partition("[")[0])
