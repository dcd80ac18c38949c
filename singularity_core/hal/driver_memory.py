"""Arena, host registration and liveness for a device behind the driver ABI, by one of two ways.

* `TableMemory`: the library brings a native table (the in-memory device).
* `MappedMemory`: the driver's virtual memory management maps physical memory at the wanted address (a
  vendor's driver).
"""

from __future__ import annotations

import abc
from typing import Any

from .driver_calls import NOT_READY, DriverLibrary
from .errors import InvalidArgument, InvalidState, OutOfMemory
from .types import Arena

# Kept free of the arena: modules, stacks and contexts that are made later live there too.
SLACK = 512 << 20
_PIECE = (
    1 << 30
)  # physical memory is created in pieces, so that no single request is too large for the driver
_PAGE = 4096
_PORTABLE_AND_MAPPED = 1 | 2


class DriverMemory(abc.ABC):
    """What `DriverDevice` needs; its context is current during each call, arguments were checked."""

    @abc.abstractmethod
    def arena_limit(self) -> int:
        """As in `Device.arena_limit`."""

    @abc.abstractmethod
    def open_arena(self, address: int, size: int) -> Arena:
        """As in `Device.open_arena`."""

    @abc.abstractmethod
    def close_arena(self, arena: Arena) -> None:
        """As in `Device.close_arena`."""

    @abc.abstractmethod
    def register_host(self, address: int, size: int) -> None:
        """As in `Device.register_host`."""

    @abc.abstractmethod
    def unregister_host(self, address: int) -> None:
        """As in `Device.unregister_host`."""


class TableMemory(DriverMemory):
    """Through the library's own table.  `Unsupported` when it has none for this device."""

    def __init__(self, library: DriverLibrary, ordinal: int) -> None:
        self._library = library
        out = library.ffi.new("const struct sg_hal_table **")
        library.call("sg_hal_open_table", ordinal, out)
        self.table: Any = out[0]
        self.address = int(library.ffi.cast("uintptr_t", self.table))
        first = library.ffi.offsetof("struct sg_hal_table", "copy_to_host")  # what table size 1 had
        if self.table.abi != 1 or self.table.struct_size < first:
            raise InvalidState(
                f"The native table of {library.path} has ABI {self.table.abi} and {self.table.struct_size} "
                f"bytes; 1 and at least {first} are needed.",
                remedy="Install a backend and a core of the same release.",
            )

    def has(self, name: str) -> bool:
        """Whether the table has the optional function `name`: one of an earlier release ends before some."""
        ffi = self._library.ffi
        end = ffi.offsetof("struct sg_hal_table", name) + ffi.sizeof("void *")
        return bool(self.table.struct_size >= end and getattr(self.table, name) != ffi.NULL)

    def ask(self, name: str, *arguments: object) -> None:
        """Calls a function of the table; raises what its code means."""
        code = int(getattr(self.table, name)(self.table.state, *arguments))
        if code:
            raise self._library.error(code, f"{name} of the native table")

    def settle(self, timeout: float) -> bool:
        """As `Device.settle`."""
        nanoseconds = min(max(int(timeout * 1e9), 0), (1 << 64) - 1)
        code = int(self.table.settle(self.table.state, nanoseconds))
        if code not in (0, NOT_READY):
            raise self._library.error(code, "settle of the native table")
        return code == 0

    def arena_limit(self) -> int:
        size = self._library.ffi.new("uint64_t *")
        self.ask("arena_limit", size)
        return int(size[0])

    def open_arena(self, address: int, size: int) -> Arena:
        size = -(-size // _PAGE) * _PAGE
        actual = self._library.ffi.new("uint64_t *")
        self.ask("arena_open", address, size, actual)
        return Arena(int(actual[0]), size)

    def close_arena(self, arena: Arena) -> None:
        self.ask("arena_close")

    def register_host(self, address: int, size: int) -> None:
        self.ask("host_register", self._library.ffi.cast("void *", address), size)

    def unregister_host(self, address: int) -> None:
        self.ask("host_unregister", self._library.ffi.cast("void *", address))


class MappedMemory(DriverMemory):
    """Through cuMemAddressReserve, cuMemCreate and cuMemMap.  All contexts of the process see the arena."""

    def __init__(self, library: DriverLibrary, ordinal: int) -> None:
        self._library = library
        self._what = library.ffi.new("sg_allocation *")
        self._what.type = 1  # pinned: the only kind there is
        self._what.location.type, self._what.location.id = 1, ordinal  # on this device
        granularity = library.ffi.new("size_t *")
        library.call("cuMemGetAllocationGranularity", granularity, self._what, 0)
        self.granularity = int(granularity[0])
        self._mapped: list[tuple[int, int, int]] = []  # address, size, physical handle

    def arena_limit(self) -> int:
        free, total = self._library.ffi.new("size_t *"), self._library.ffi.new("size_t *")
        self._library.call("cuMemGetInfo_v2", free, total)
        slack = min(SLACK, int(total[0]) // 8)
        return max(0, int(free[0]) - slack) // self.granularity * self.granularity

    def open_arena(self, address: int, size: int) -> Arena:
        size = -(-size // self.granularity) * self.granularity
        got = self._library.ffi.new("uint64_t *")
        self._library.call("cuMemAddressReserve", got, size, 0, address, 0)
        base = int(got[0])
        try:
            if address not in (0, base):
                raise InvalidArgument(
                    f"The driver cannot give an arena of {size} bytes at {address:#x}; it offers {base:#x}.",
                    remedy="Choose an address that nothing else in this process uses.",
                )
            self._map(base, size)
        except BaseException:
            self._unmap()
            self._library.ask("cuMemAddressFree", base, size)
            raise
        return Arena(base, size)

    def _map(self, base: int, size: int) -> None:
        handle = self._library.ffi.new("unsigned long long *")
        at = base
        while at < base + size:
            piece = min(_PIECE, base + size - at)
            code = self._library.ask("cuMemCreate", handle, piece, self._what, 0)
            if code == 2:
                raise OutOfMemory(
                    f"The device has no {size} bytes for the arena; it ran out after {at - base}."
                )
            if code:
                raise self._library.error(code, "cuMemCreate")
            code = self._library.ask("cuMemMap", at, piece, 0, handle[0], 0)
            if code:
                self._library.ask("cuMemRelease", handle[0])
                raise self._library.error(code, "cuMemMap")
            self._mapped.append((at, piece, int(handle[0])))
            at += piece
        access = self._library.ffi.new("sg_access *")
        access.location.type, access.location.id = 1, self._what.location.id
        access.access = 3  # read and write
        self._library.call("cuMemSetAccess", base, size, access, 1)

    def _unmap(self) -> None:
        for at, size, handle in self._mapped:
            self._library.ask("cuMemUnmap", at, size)
            self._library.ask("cuMemRelease", handle)
        self._mapped.clear()

    def close_arena(self, arena: Arena) -> None:
        self._unmap()
        self._library.call("cuMemAddressFree", arena.base, arena.size)

    def register_host(self, address: int, size: int) -> None:
        host = self._library.ffi.cast("void *", address)
        self._library.call("cuMemHostRegister_v2", host, size, _PORTABLE_AND_MAPPED)

    def unregister_host(self, address: int) -> None:
        self._library.call("cuMemHostUnregister", self._library.ffi.cast("void *", address))
