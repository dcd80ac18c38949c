"""The conformance kit finds gates that hold nothing or never open, and a settle that is wrong either way."""

from __future__ import annotations

from pathlib import Path

import pytest

from singularity_core.hal import Device
from singularity_core.hal.driver_calls import declarations
from singularity_core.hal.native_table import table_for
from singularity_core.hal.registry import Registry

from .conftest import RunSuite

QUEUED = Path(__file__).with_name("queued_backend.py")
SUITE = """
from singularity_core.testing import suite_gates
from singularity_core.testing.suite import DeviceConformance

suite_gates.PATIENCE = {patience}

class TestDevice(DeviceConformance):
    backend_name = "queued"
    def raw_read(self, device, address, size):
        return device._bytes[address - device.require_arena().base :][:size].tobytes()
    def raw_write(self, device, address, content):
        at = address - device.require_arena().base
        device._bytes[at : at + len(content)] = list(content)
"""

# What is broken, how (old text, new text in the queued backend), and tests that must find it.
FAULTS = {
    "a gate that never opens": (
        "self._gate(gate).open = True",
        "self._gate(gate).open = False",
        {"test_gate_holds_what_follows", "test_open_gate_holds_nobody", "test_dropped_gate_still_opens"},
    ),
    "a gate that holds nothing": (
        "lambda: found.open)",
        "lambda: True)",
        {"test_gate_holds_what_follows", "test_dropped_gate_still_opens", "test_what_waits_is_settled"},
    ),
    "a gate that opens when it is dropped": (
        ".dropped = True",
        ".dropped = self._gate(gate).open = True",
        {"test_dropped_gate_still_opens"},
    ),
    "a settle that returns too early": (
        "not any(",
        "True or not any(",
        {"test_settle_waits_for_work", "test_settle_only_looks_at_zero", "test_what_waits_is_settled"},
    ),
    "a settle that does not see what runs": (
        "s.running or (s.works and s.works[0].ready())",
        "not s.running and s.works and s.works[0].ready()",
        {"test_settle_waits_for_work"},
    ),
    "a settle that waits for gates": (
        "s.running or (s.works and s.works[0].ready())",
        "s.works",
        {"test_gate_holds_what_follows", "test_what_waits_is_settled"},
    ),
}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f.replace(" ", "-"))
def test_fault_is_found(tutorial: Path, tmp_path: Path, run_suite: RunSuite, fault: str) -> None:
    """A backend with one deliberate fault in its gates fails the tests that are there for it."""
    good, bad, tests = FAULTS[fault]
    source = QUEUED.read_text()
    assert source.count(good) == 1
    plugin = tmp_path / "queued_backend.py"
    plugin.write_text(source.replace(good, bad))
    outcome = run_suite(
        SUITE.format(patience=2), "-k", " or ".join(sorted(tests)), plugins=[plugin],
        env={"PYTHONPATH": str(tutorial)},
    )  # fmt: skip
    assert outcome.failed == tests, outcome.output[-3000:]


def test_healthy_backend_conforms(tutorial: Path, run_suite: RunSuite) -> None:
    """The queued backend without faults passes all of the suite."""
    outcome = run_suite(SUITE.format(patience=60), plugins=[QUEUED], env={"PYTHONPATH": str(tutorial)})
    assert not outcome.failed | outcome.errors, outcome.output[-3000:]
    gates = {"test_gate_holds_what_follows", "test_what_waits_is_settled", "test_settle_waits_for_work"}
    assert gates <= outcome.passed


@pytest.fixture
def queued(tutorial: Path, monkeypatch: pytest.MonkeyPatch) -> Device:
    """The healthy queued device."""
    monkeypatch.syspath_prepend(str(tutorial))
    return Registry(plugins=str(QUEUED), entry_points=False).load("queued").open_device(0)


def test_native_table_has_gates(queued: Device) -> None:
    """Through the table that the core builds: gates hold and open, settle tells, and copies pass by what
    waits."""
    ffi = declarations()
    table = ffi.cast("struct sg_hal_table *", table_for(queued))
    arena = queued.open_arena(0, 1 << 20)
    gate, host = ffi.new("uint64_t *"), ffi.new("char[512]", b"before")
    stream = queued.create_stream()
    assert table.copy_to_device(table.state, arena.base, host, 512) == 0
    assert table.gate_make(table.state, gate) == 0
    assert table.gate_wait(table.state, gate[0], ffi.cast("void *", stream)) == 0
    queued.fill(arena.base, 7, 512, stream=stream)
    assert table.settle(table.state, 10**10) == 0
    assert table.copy_to_host(table.state, host, arena.base, 512) == 0
    assert ffi.string(host) == b"before"
    assert table.settle(table.state, 0) == 0
    assert table.gate_open(table.state, gate[0]) == 0
    assert table.gate_drop(table.state, gate[0]) == 0
    assert table.gate_open(table.state, gate[0]) == 400
    queued.quiesce()
    assert table.settle(table.state, 0) == 0
    assert table.copy_to_host(table.state, host, arena.base, 512) == 0
    assert bytes(ffi.buffer(host)) == bytes([7]) * 512
    queued.close()
