"""Every operation, by name."""

from __future__ import annotations

import operations_elementwise  # noqa: F401
import operations_network  # noqa: F401
import operations_shape  # noqa: F401
from operation_case import CASES, Case

__all__ = ["CASES", "Case"]
