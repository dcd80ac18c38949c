"""The native function table (native.h) over any `Device`.

A backend in C brings its own table.  For all others the functions here are cffi callbacks that call the
Python methods: slower by microseconds per call, the same in meaning.  They may be called from any thread,
with or without the GIL.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

from .capabilities import Capability
from .device import Device
from .driver_calls import NOT_READY, declarations
from .errors import HalError
from .types import DEFAULT_STREAM, GateHandle, StreamHandle

ABI = 1
UNKNOWN_ERROR = 999

_tables: weakref.WeakKeyDictionary[Device, list[Any]] = weakref.WeakKeyDictionary()


def table_for(device: Device) -> int:
    """Address of a ``struct sg_hal_table`` for `device`: its own where it has one.  Valid while `device`
    lives."""
    own = device.native_table()
    return own if own is not None else build_table(device)


def build_table(device: Device) -> int:
    """Address of a table of callbacks; functions of capabilities that `device` lacks are NULL."""
    if device in _tables:
        return int(declarations().cast("uintptr_t", _tables[device][0]))
    ffi: Any = declarations()
    table = ffi.new("struct sg_hal_table *")
    table.struct_size, table.abi = ffi.sizeof("struct sg_hal_table"), ABI
    kept = [table]
    weak = weakref.ref(device)
    for name, function in _functions(weak, ffi, device.capabilities).items():
        kind = ffi.typeof(getattr(table, name))
        callback = ffi.callback(kind, _guarded(function), error=UNKNOWN_ERROR)
        setattr(table, name, callback)
        kept.append(callback)
    _tables[device] = kept
    return int(ffi.cast("uintptr_t", table))


def _guarded(function: Callable[..., int | None]) -> Callable[..., int]:
    """Errors become codes: an exception cannot cross C."""

    def call(*arguments: object) -> int:
        try:
            return function(*arguments) or 0
        except HalError as error:
            print(f"singularity: {error}", file=sys.stderr)
            return error.code

    return call


def _functions(
    device: weakref.ref[Device], ffi: Any, capabilities: frozenset[Capability]
) -> dict[str, Callable[..., int | None]]:
    def it() -> Device:
        found = device()
        if found is None:
            raise HalError(
                "The device of this table is gone.", remedy="Keep the Device object while its table is used."
            )
        return found

    def arena_open(_: object, address: int, size: int, actual: Any) -> None:
        actual[0] = it().open_arena(address, size).base

    def arena_limit(_: object, size: Any) -> None:
        size[0] = it().arena_limit()

    def digest(_: object, address: int, size: int, out: Any) -> None:
        ffi.memmove(out, it().digest(address, size), 16)

    functions: dict[str, Callable[..., int | None]] = {
        "arena_open": arena_open,
        "arena_close": lambda _: it().close_arena(),
        "arena_limit": arena_limit,
        "quiesce": lambda _: it().quiesce(),
    }
    if Capability.RANGE_TRACKING in capabilities:
        functions["range_live"] = lambda _, address, size: it().mark_live(address, size)
        functions["range_dead"] = lambda _, address, size: it().mark_dead(address, size)
    if Capability.HOST_REGISTER in capabilities:
        functions["host_register"] = lambda _, host, size: it().register_host(
            int(ffi.cast("uintptr_t", host)), size
        )
        functions["host_unregister"] = lambda _, host: it().unregister_host(int(ffi.cast("uintptr_t", host)))
    if Capability.CHECKSUM in capabilities:
        functions["digest"] = digest
    return functions | _sharing_functions(it, ffi, capabilities)


def _sharing_functions(
    it: Callable[[], Device], ffi: Any, capabilities: frozenset[Capability]
) -> dict[str, Callable[..., int | None]]:
    """What sharing a device needs."""
    streams: list[StreamHandle] = []  # one: the default stream would wait for all others, gates included
    streams_lock = threading.Lock()

    def own_stream() -> StreamHandle:
        if Capability.STREAMS not in capabilities:
            return DEFAULT_STREAM
        with streams_lock:
            if not streams:
                streams.append(it().create_stream())
            return streams[0]

    def copy_to_host(_: object, host: Any, address: int, size: int) -> None:
        it().copy_to_host(ffi.buffer(host, size), address, own_stream())

    def copy_to_device(_: object, address: int, host: Any, size: int) -> None:
        it().copy_to_device(address, ffi.buffer(host, size), own_stream())

    def gate_make(_: object, gate: Any) -> None:
        gate[0] = it().make_gate()

    def gate_wait(_: object, gate: int, stream: Any) -> None:
        it().wait_gate(StreamHandle(int(ffi.cast("uintptr_t", stream))), GateHandle(gate))

    functions: dict[str, Callable[..., int | None]] = {
        "copy_to_host": copy_to_host,
        "copy_to_device": copy_to_device,
    }
    if Capability.GATES in capabilities:
        functions["gate_make"], functions["gate_wait"] = gate_make, gate_wait
        functions["gate_open"] = lambda _, gate: it().open_gate(GateHandle(gate))
        functions["gate_drop"] = lambda _, gate: it().drop_gate(GateHandle(gate))
    if Capability.SETTLE in capabilities:
        functions["settle"] = lambda _, nanoseconds: 0 if it().settle(nanoseconds / 1e9) else NOT_READY
    return functions
