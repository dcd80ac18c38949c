"""The conformance kit: tests that every backend must pass, shipped so that authors can run them.

Run them on an installed backend::

pytest --pyargs singularity_core.testing --hal-backend NAME

or subclass `singularity_core.testing.suite.DeviceConformance` in your own tests, where you can give
exclusions with reasons, raw accessors, and ways to provoke errors.  Importing this package needs pytest; the
suite needs numpy.
"""

from __future__ import annotations

from .requirements import Exclusion, Verdict, requires

__all__ = ["Exclusion", "Verdict", "requires"]
