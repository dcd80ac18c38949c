"""Every kernel case, by name."""

from __future__ import annotations

import algorithms  # noqa: F401
import atomics  # noqa: F401
import control_flow  # noqa: F401
import conversions  # noqa: F401
import floats  # noqa: F401
import integers  # noqa: F401
import memory  # noqa: F401
import warps  # noqa: F401
from driver import CASES

__all__ = ["CASES"]
