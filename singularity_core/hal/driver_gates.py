"""Gates of a device whose library has a native table: which exist, so that bad handles are refused and none
stays closed when the device closes."""

from __future__ import annotations

import contextlib
import enum
import threading
from typing import Any

from .driver_calls import DriverLibrary
from .driver_memory import TableMemory
from .errors import HalError, InvalidHandle
from .types import GateHandle


class _State(enum.Flag):
    MADE = 0
    OPEN = enum.auto()
    DROPPED = enum.auto()


class DriverGates:
    """The gates of one `DriverDevice`; its context is current during `wait`."""

    def __init__(self, library: DriverLibrary, table: TableMemory) -> None:
        self._library, self._table = library, table
        self._lock = threading.Lock()
        self._gates: dict[int, _State] = {}

    def make(self) -> GateHandle:
        """As `Device.make_gate`."""
        out = self._library.ffi.new("uint64_t *")
        self._table.ask("gate_make", out)
        gate = int(out[0])
        with self._lock:
            self._gates[gate] = _State.MADE
        return GateHandle(gate)

    def wait(self, stream: Any, gate: GateHandle) -> None:
        """As `Device.wait_gate`; `stream` is the driver's."""
        with self._lock:
            self._find(gate, usable=True)
            self._table.ask("gate_wait", int(gate), stream)

    def open(self, gate: GateHandle) -> None:
        """As `Device.open_gate`."""
        with self._lock:
            self._find(gate)
            self._table.ask("gate_open", int(gate))
            self._change(gate, _State.OPEN)

    def drop(self, gate: GateHandle) -> None:
        """As `Device.drop_gate`."""
        with self._lock:
            self._find(gate, usable=True)
            self._table.ask("gate_drop", int(gate))
            self._change(gate, _State.DROPPED)

    def close(self) -> None:
        """Opens what is closed, and drops all."""
        with self._lock:
            for gate, state in self._gates.items():
                with contextlib.suppress(HalError):
                    self._table.ask("gate_open", gate)
                    if _State.DROPPED not in state:
                        self._table.ask("gate_drop", gate)
            self._gates.clear()

    def _find(self, gate: GateHandle, *, usable: bool = False) -> None:
        if gate not in self._gates or (usable and _State.DROPPED in self._gates[gate]):
            raise InvalidHandle(f"There is no gate {gate:#x} on this device.")

    def _change(self, gate: GateHandle, change: _State) -> None:
        self._gates[gate] |= change
        if self._gates[gate] == _State.OPEN | _State.DROPPED:
            del self._gates[gate]
