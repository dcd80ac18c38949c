"""The native function table (native.h) over any `Device`.

A backend in C brings its own table.  For all others the functions here are cffi callbacks that call the
Python methods: slower by microseconds per call, the same in meaning.  They may be called from any thread,
with or without the GIL.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from typing import Any

from .capabilities import Capability
from .device import Device
from .driver_calls import declarations
from .errors import HalError

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


def _guarded(function: Callable[..., None]) -> Callable[..., int]:
    """Errors become codes: an exception cannot cross C."""

    def call(*arguments: object) -> int:
        try:
            function(*arguments)
            return 0
        except HalError as error:
            print(f"singularity: {error}", file=sys.stderr)
            return error.code

    return call


def _functions(
    device: weakref.ref[Device], ffi: Any, capabilities: frozenset[Capability]
) -> dict[str, Callable[..., None]]:
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

    functions: dict[str, Callable[..., None]] = {
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
    return functions
