"""The conformance suite: subclass `DeviceConformance` to run it on your backend.

class TestMyDevice(DeviceConformance):
    backend_name = "mine"
    exclusions = (Exclusion("test_peer_copy", "the two devices share no bus"),)
"""

from __future__ import annotations

from .harness import Harness, Workspace
from .suite_arena import ArenaTests
from .suite_backend import BackendTests
from .suite_content import ContentTests
from .suite_gates import GateTests
from .suite_group import GroupTests
from .suite_order import OrderTests
from .suite_reduce import ReduceTests

__all__ = ["DeviceConformance", "Harness", "Workspace"]


class DeviceConformance(
    BackendTests, ArenaTests, ContentTests, ReduceTests, OrderTests, GateTests, GroupTests
):
    """All tests of the contract."""
