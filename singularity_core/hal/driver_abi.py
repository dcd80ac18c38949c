"""One implementation of `Device` over any library that speaks the CUDA driver ABI.

The vendor's driver and the in-memory device differ only in where the arena comes from (driver_memory.py).
What the driver API lacks, the digest and the reductions, are kernels that travel with this package as PTX
(kernels/), so both run the same code, on the device.

Each `DriverDevice` has a context of its own (driver_context.py), so a sticky error ends this device object
and no other.  `quiesce` covers this context and, where the library has a native table, the whole device; a
proxy that makes contexts through the vendor's driver synchronises those itself.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .buffers import read_view, write_view
from .capabilities import Capability
from .device import Device
from .driver_calls import DriverLibrary
from .driver_context import DriverContext
from .driver_gates import DriverGates
from .driver_kernels import DriverKernels, Reduction
from .driver_memory import DriverMemory, MappedMemory, TableMemory
from .driver_order import DriverOrder
from .driver_properties import read_attribute, read_properties
from .errors import HalError, InvalidArgument, InvalidState, Unsupported
from .native_table import build_table
from .ranges import check_accumulate, check_aligned_range, disjoint
from .types import (
    DEFAULT_STREAM,
    Arena,
    DeviceProperties,
    DType,
    EventHandle,
    GateHandle,
    MemoryInfo,
    ReduceOp,
    StreamHandle,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer

_REGISTERED_POINTER = 91  # CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM

_COMMON = frozenset(
    {
        Capability.STREAMS, Capability.EVENTS, Capability.EVENTS_TIMING, Capability.CHECKSUM,
        Capability.ACCUMULATE, Capability.PEER_COPY, Capability.COLLECTIVES, Capability.DETERMINISTIC_REDUCE,
        Capability.KERNELS_PTX,
    }
)  # fmt: skip


class DriverDevice(Device):
    """A device of `library`.  The backend's name is the caller's to give; all else is found out."""

    def __init__(self, backend_name: str, library: DriverLibrary, ordinal: int) -> None:
        """Opens the device.  Errors as in `Backend.open_device`."""
        self._backend_name = backend_name
        self._properties = read_properties(library, ordinal)
        self._library, self._ffi = library, library.ffi
        self._lock = threading.RLock()  # for the arena and the table of registered memory
        self._arena: Arena | None = None
        self._registered: dict[int, int] = {}
        self._gates: DriverGates | None = None
        self._context = DriverContext(library, ordinal)
        self._order = DriverOrder(library)
        try:
            self._prepare(ordinal)
        except BaseException:
            self._context.destroy()
            raise

    def _prepare(self, ordinal: int) -> None:
        found = set(_COMMON)
        self._memory: DriverMemory
        self._table = self._find_table(ordinal)
        if self._table is not None:
            self._memory = self._table
            found.add(Capability.NATIVE_TABLE)
            found |= {Capability.RANGE_TRACKING} if self._table.has("range_live") else set()
            found |= {Capability.HOST_REGISTER} if self._table.has("host_register") else set()
            found |= {Capability.SETTLE} if self._table.has("settle") else set()
            if self._table.has("gate_make"):
                found.add(Capability.GATES)
                self._gates = DriverGates(self._library, self._table)
        else:
            self._memory = MappedMemory(self._library, ordinal)
            if read_attribute(self._library, self._context.device, _REGISTERED_POINTER):
                found.add(Capability.HOST_REGISTER)
        if not self._library.has("cuMemcpyPeerAsync"):
            found -= {Capability.PEER_COPY, Capability.COLLECTIVES, Capability.DETERMINISTIC_REDUCE}
        self._capabilities = frozenset(found)
        self._kernels = DriverKernels(self._library, self._properties.multiprocessors)
        with self._context.pushed():
            self._kernels.prepare()

    def _find_table(self, ordinal: int) -> TableMemory | None:
        if not self._library.has("sg_hal_open_table"):
            return None
        try:
            return TableMemory(self._library, ordinal)
        except Unsupported:
            return None

    # ---- what it is -----------------------------------------------------------------------------

    @property
    def backend_name(self) -> str:
        return self._backend_name

    @property
    def properties(self) -> DeviceProperties:
        return self._properties

    @property
    def capabilities(self) -> frozenset[Capability]:
        return self._capabilities

    @property
    def context(self) -> int:
        """The CUcontext, for backends and tests that launch kernels of their own; `InvalidState` when
        closed."""
        with self._context.current():
            return int(self._ffi.cast("uintptr_t", self._context.handle))

    def memory_info(self) -> MemoryInfo:
        free, total = self._ffi.new("size_t *"), self._ffi.new("size_t *")
        with self._context.current():
            self._library.call("cuMemGetInfo_v2", free, total)
        return MemoryInfo(int(free[0]), int(total[0]))

    def close(self) -> None:
        if not self._context.begin_close():
            return
        if self._gates is not None:
            self._gates.close()  # or who waits for a stream would wait for ever
        self._context.await_users()
        with contextlib.suppress(HalError), self._context.pushed():
            self._library.ask("cuCtxSynchronize")
            self._kernels.close()
        # Neither needs a healthy context: a sticky error must not keep host memory or the arena.
        for host in list(self._registered):
            with contextlib.suppress(HalError):
                self._memory.unregister_host(host)
        if self._arena is not None:
            with contextlib.suppress(HalError):
                self._memory.close_arena(self._arena)
        self._context.destroy()
        self._arena = None

    # ---- arena ----------------------------------------------------------------------------------

    def arena_limit(self) -> int:
        with self._context.current():
            return 0 if self._arena is not None else self._memory.arena_limit()

    def open_arena(self, address: int, size: int) -> Arena:
        with self._lock, self._context.current():
            if self._arena is not None:
                raise InvalidState(
                    f"An arena of {self._arena.size} bytes is open already.", remedy="Close it first."
                )
            if size <= 0 or address < 0:
                raise InvalidArgument(f"An arena of {size} bytes at {address:#x} cannot be opened.")
            self._arena = self._memory.open_arena(address, size)
            return self._arena

    def close_arena(self) -> None:
        with self._lock, self._context.current():
            arena = self.require_arena()
            self._library.call("cuCtxSynchronize")
            self._memory.close_arena(arena)
            self._arena = None

    def require_arena(self) -> Arena:
        arena = self._arena
        if arena is None:
            raise InvalidState("No arena is open.", remedy="Call open_arena first.")
        return arena

    def mark_live(self, address: int, size: int) -> None:
        self._mark("range_live", address, size)

    def mark_dead(self, address: int, size: int) -> None:
        self._mark("range_dead", address, size)

    def _mark(self, name: str, address: int, size: int) -> None:
        if Capability.RANGE_TRACKING not in self._capabilities or self._table is None:
            raise self.lacks(Capability.RANGE_TRACKING)
        with self._context.current():
            check_aligned_range(self.require_arena(), address, size)
            self._table.ask(name, address, size)

    def register_host(self, address: int, size: int) -> None:
        if Capability.HOST_REGISTER not in self._capabilities:
            raise self.lacks(Capability.HOST_REGISTER)
        if address <= 0 or size <= 0 or address % 4096 or size % 4096:
            raise InvalidArgument(f"[{address:#x}, +{size}) is no range of whole host pages.")
        with self._lock, self._context.current():
            for known, length in self._registered.items():
                if address < known + length and known < address + size:
                    raise InvalidArgument(f"Host memory at {known:#x} is registered already.")
            try:
                self._memory.register_host(address, size)
            except InvalidArgument:
                raise
            except HalError as error:
                if error.code in (712, 713):  # the driver's own codes for "registered before"
                    raise InvalidArgument(error.cause) from error
                raise
            self._registered[address] = size

    def unregister_host(self, address: int) -> None:
        if Capability.HOST_REGISTER not in self._capabilities:
            raise self.lacks(Capability.HOST_REGISTER)
        with self._lock, self._context.current():
            if address not in self._registered:
                raise InvalidArgument(f"Host memory at {address:#x} is not registered.")
            self._library.call("cuCtxSynchronize")
            self._memory.unregister_host(address)
            del self._registered[address]

    # ---- content --------------------------------------------------------------------------------

    def check_range(self, address: int, size: int) -> None:
        """Raises `InvalidArgument` unless the range is in the arena or in registered host memory."""
        arena = self.require_arena()
        if size < 0:
            raise InvalidArgument(f"{size} bytes cannot be used.")
        if arena.base <= address and address + size <= arena.end:
            return
        for known, length in list(self._registered.items()):
            if known <= address and address + size <= known + length:
                return
        raise InvalidArgument(
            f"[{address:#x}, {address + size:#x}) is not inside the arena [{arena.base:#x}, {arena.end:#x})."
        )

    def copy_to_device(self, dst: int, src: Buffer, stream: StreamHandle = DEFAULT_STREAM) -> None:
        view = read_view(src)
        with self._context.current():
            queue = self._order.stream(stream)
            self.check_range(dst, len(view))
            if len(view):
                self._library.call("cuMemcpyHtoDAsync_v2", dst, self._ffi.from_buffer(view), len(view), queue)
                self._library.call("cuStreamSynchronize", queue)

    def copy_to_host(self, dst: Buffer, src: int, stream: StreamHandle = DEFAULT_STREAM) -> None:
        view = write_view(dst)
        with self._context.current():
            queue = self._order.stream(stream)
            self.check_range(src, len(view))
            if len(view):
                into = self._ffi.from_buffer(view, require_writable=True)
                self._library.call("cuMemcpyDtoHAsync_v2", into, src, len(view), queue)
            self._library.call("cuStreamSynchronize", queue)

    def copy_on_device(self, dst: int, src: int, size: int, stream: StreamHandle = DEFAULT_STREAM) -> None:
        with self._context.current():
            queue = self._order.stream(stream)
            self.check_range(dst, size)
            self.check_range(src, size)
            if not disjoint(dst, src, size):
                raise InvalidArgument(f"Source {src:#x} and destination {dst:#x} of {size} bytes overlap.")
            if size:
                self._library.call("cuMemcpyDtoDAsync_v2", dst, src, size, queue)

    def fill(
        self, dst: int, value: int, count: int, *, width: int = 1, stream: StreamHandle = DEFAULT_STREAM
    ) -> None:
        names = {1: "cuMemsetD8Async", 2: "cuMemsetD16Async", 4: "cuMemsetD32Async"}
        if width not in names or dst % width:
            raise InvalidArgument(f"Width {width} is not 1, 2 or 4, or {dst:#x} is not aligned to it.")
        with self._context.current():
            queue = self._order.stream(stream)
            self.check_range(dst, count * width)
            if count:
                self._library.call(names[width], dst, value & ((1 << 8 * width) - 1), count, queue)

    def copy_from_peer(
        self, dst: int, peer: Device, src: int, size: int, stream: StreamHandle = DEFAULT_STREAM
    ) -> None:
        if Capability.PEER_COPY not in self._capabilities:
            raise self.lacks(Capability.PEER_COPY)
        if not isinstance(peer, DriverDevice) or peer._library.path != self._library.path:
            raise InvalidArgument(
                f"The peer is a device of backend {peer.backend_name!r}.",
                remedy="Copy through the host between devices of different backends.",
            )
        with peer._context.current():
            peer.check_range(src, size)
            source = peer._context.handle
        with self._context.current():
            queue = self._order.stream(stream)
            self.check_range(dst, size)
            if size:
                self._library.call("cuMemcpyPeerAsync", dst, self._context.handle, src, source, size, queue)
                self._library.call("cuStreamSynchronize", queue)

    def digest(self, address: int, size: int) -> bytes:
        with self._context.current():
            self.check_range(address, size)
            if address % 8:
                raise InvalidArgument(
                    f"The digest needs an address that is a multiple of 8, not {address:#x}."
                )
            self.quiesce()
            if self._table is not None and self._table.has("digest"):
                out = self._ffi.new("uint8_t[16]")
                self._table.ask("digest", address, size, out)
                return bytes(self._ffi.buffer(out))
            return self._kernels.digest(address, size)

    def digest_by_kernel(self, address: int, size: int) -> bytes:
        """As `digest`, always by the PTX kernel: the way of devices without a native table."""
        with self._context.current():
            self.check_range(address, size)
            return self._kernels.digest(address, size)

    def reduce_tree(
        self,
        dtype: DType,
        op: ReduceOp,
        dst: int,
        sources: Sequence[int],
        count: int,
        *,
        premultiply: float = 1.0,
        divisor: int | None = None,
        stream: StreamHandle = DEFAULT_STREAM,
    ) -> None:
        with self._context.current():
            queue = self._order.stream(stream)
            check_accumulate(dtype, op, (dst, *sources), count, premultiply)
            for address in (dst, *sources):
                self.check_range(address, count * dtype.size)
            if not 1 <= len(sources) <= 64:
                raise InvalidArgument(f"A tree has 1 to 64 sources, not {len(sources)}.")
            for source in sources:
                if source != dst and not disjoint(dst, source, count * dtype.size):
                    raise InvalidArgument(f"Source {source:#x} overlaps the destination {dst:#x} in part.")
            if count:
                how = Reduction(dtype, op, len(sources), premultiply, divisor)
                self._kernels.reduce(how, dst, sources, count, queue)

    # ---- for groups: no checks, default stream, no waiting ------------------------------------------

    @property
    def library_path(self) -> Path:
        """The driver library that this device belongs to."""
        return self._library.path

    @contextlib.contextmanager
    def scratch(self) -> Iterator[tuple[int, int]]:
        """Address and size of device memory outside the arena, for the caller alone while inside."""
        with self._context.current(), self._kernels.scratch_lock:
            yield self._kernels.scratch, self._kernels.scratch_size

    def raw_copy(self, dst: int, peer: DriverDevice, src: int, size: int) -> None:
        """Copies from `peer`, which may be this device."""
        if size == 0:
            return
        with peer._context.current(), self._context.current():
            null = self._ffi.NULL
            if peer is self:
                self._library.call("cuMemcpyDtoDAsync_v2", dst, src, size, null)
            else:
                contexts = (self._context.handle, peer._context.handle)
                self._library.call("cuMemcpyPeerAsync", dst, contexts[0], src, contexts[1], size, null)
                self._library.call(
                    "cuStreamSynchronize", null
                )  # the peer's later work is not ordered after it

    def raw_reduce(self, how: Reduction, dst: int, leaves: int, stride: int, count: int) -> None:
        """Reduces leaves at equal distances, and waits, so that peers may read the result."""
        with self._context.current():
            self._kernels.reduce_strided(how, dst, leaves, stride, count, self._ffi.NULL)
            self._library.call("cuStreamSynchronize", self._ffi.NULL)

    # ---- order ----------------------------------------------------------------------------------

    def create_stream(self, priority: int = 0) -> StreamHandle:
        with self._context.current():
            return self._order.create_stream(priority)

    def destroy_stream(self, stream: StreamHandle) -> None:
        with self._context.current():
            self._order.destroy_stream(stream)

    def synchronize_stream(self, stream: StreamHandle = DEFAULT_STREAM) -> None:
        with self._context.current():
            self._library.call("cuStreamSynchronize", self._order.stream(stream))

    def query_stream(self, stream: StreamHandle = DEFAULT_STREAM) -> bool:
        with self._context.current():
            return self._order.done("cuStreamQuery", self._order.stream(stream))

    def create_event(self, *, timing: bool = False) -> EventHandle:
        with self._context.current():
            return self._order.create_event(timing=timing)

    def destroy_event(self, event: EventHandle) -> None:
        with self._context.current():
            self._order.destroy_event(event)

    def record_event(self, event: EventHandle, stream: StreamHandle = DEFAULT_STREAM) -> None:
        with self._context.current():
            self._library.call("cuEventRecord", self._order.event(event), self._order.stream(stream))

    def wait_event(self, stream: StreamHandle, event: EventHandle) -> None:
        with self._context.current():
            self._library.call("cuStreamWaitEvent", self._order.stream(stream), self._order.event(event), 0)

    def query_event(self, event: EventHandle) -> bool:
        with self._context.current():
            return self._order.done("cuEventQuery", self._order.event(event))

    def synchronize_event(self, event: EventHandle) -> None:
        with self._context.current():
            self._library.call("cuEventSynchronize", self._order.event(event))

    def elapsed(self, start: EventHandle, end: EventHandle) -> float:
        with self._context.current():
            return self._order.elapsed(start, end)

    def _gate_keeper(self) -> DriverGates:
        if self._gates is None:
            raise self.lacks(Capability.GATES)
        return self._gates

    def make_gate(self) -> GateHandle:
        with self._context.current():
            return self._gate_keeper().make()

    def wait_gate(self, stream: StreamHandle, gate: GateHandle) -> None:
        gates = self._gate_keeper()
        with self._context.current():
            gates.wait(self._order.stream(stream), gate)

    def open_gate(self, gate: GateHandle) -> None:
        gates = self._gate_keeper()
        with self._context.current():
            gates.open(gate)

    def drop_gate(self, gate: GateHandle) -> None:
        gates = self._gate_keeper()
        with self._context.current():
            gates.drop(gate)

    def settle(self, timeout: float) -> bool:
        if self._table is None or Capability.SETTLE not in self._capabilities:
            raise self.lacks(Capability.SETTLE)
        with self._context.current():
            return self._table.settle(timeout)

    def quiesce(self) -> None:
        with self._context.current():
            self._library.call("cuCtxSynchronize")
            if self._table is not None:
                self._table.ask("quiesce")

    def native_table(self) -> int:
        with self._context.current():
            return self._table.address if self._table is not None else build_table(self)
