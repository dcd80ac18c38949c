"""One implementation of `Device` over any library that speaks the CUDA driver ABI.

The vendor's driver and the in-memory device differ only in where the arena comes from (driver_memory.py).
What the driver API lacks, the digest and the reductions, are kernels that travel with this package as PTX
(kernels/), so both run the same code, on the device.

Each `DriverDevice` has a context of its own, which it makes current around every call and takes back after
it: the caller's thread never sees it, and a sticky error ends this device object and no other.  `quiesce`
covers this context and, where the library has a native table, the whole device; a proxy that makes contexts
through the vendor's driver synchronises those itself.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .buffers import read_view, write_view
from .capabilities import Capability
from .device import Device
from .driver_calls import NOT_READY, DriverLibrary
from .driver_gates import DriverGates
from .driver_kernels import DriverKernels, Reduction
from .driver_memory import DriverMemory, MappedMemory, TableMemory
from .driver_properties import read_attribute, read_properties
from .errors import HalError, InvalidArgument, InvalidHandle, InvalidState, Unsupported
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
_TIMING_OFF = 2

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
        self._lock = threading.RLock()  # guards the tables below; taken before _users_changed
        self._users_changed = threading.Condition()
        self._users = 0
        self._closing = False
        self._arena: Arena | None = None
        self._streams: set[int] = set()
        self._events: dict[int, bool] = {}  # handle: has timing
        self._registered: dict[int, int] = {}
        self._gates: DriverGates | None = None
        device, context = self._ffi.new("int *"), self._ffi.new("void **")
        library.call("cuDeviceGet", device, ordinal)
        library.call("cuCtxCreate_v2", context, 0, device[0])
        library.call("cuCtxPopCurrent_v2", self._ffi.new("void **"))
        self._context: Any = context[0]
        try:
            self._prepare(ordinal, int(device[0]))
        except BaseException:
            library.ask("cuCtxDestroy_v2", self._context)
            raise

    def _prepare(self, ordinal: int, device: int) -> None:
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
            if read_attribute(self._library, device, _REGISTERED_POINTER):
                found.add(Capability.HOST_REGISTER)
        if not self._library.has("cuMemcpyPeerAsync"):
            found -= {Capability.PEER_COPY, Capability.COLLECTIVES, Capability.DETERMINISTIC_REDUCE}
        self._capabilities = frozenset(found)
        self._kernels = DriverKernels(self._library, self._properties.multiprocessors)
        with self._pushed():
            self._kernels.prepare()

    def _find_table(self, ordinal: int) -> TableMemory | None:
        if not self._library.has("sg_hal_open_table"):
            return None
        try:
            return TableMemory(self._library, ordinal)
        except Unsupported:
            return None

    @contextlib.contextmanager
    def _current(self) -> Iterator[None]:
        """Makes the context current for the calls inside; `close` waits until nobody is inside."""
        with self._users_changed:
            if self._closing:
                raise InvalidState("The device is closed.", remedy="Open it again with Backend.open_device.")
            self._users += 1
        try:
            with self._pushed():
                yield
        finally:
            with self._users_changed:
                self._users -= 1
                self._users_changed.notify_all()

    @contextlib.contextmanager
    def _pushed(self) -> Iterator[None]:
        self._library.call("cuCtxPushCurrent_v2", self._context)
        try:
            yield
        finally:
            self._library.ask("cuCtxPopCurrent_v2", self._ffi.new("void **"))

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
        with self._current():
            return int(self._ffi.cast("uintptr_t", self._context))

    def memory_info(self) -> MemoryInfo:
        free, total = self._ffi.new("size_t *"), self._ffi.new("size_t *")
        with self._current():
            self._library.call("cuMemGetInfo_v2", free, total)
        return MemoryInfo(int(free[0]), int(total[0]))

    def close(self) -> None:
        with self._users_changed:
            if self._closing:
                return
            self._closing = True
            if self._gates is not None:
                self._gates.close()  # or who waits for a stream would wait for ever
            self._users_changed.wait_for(lambda: self._users == 0)
        with contextlib.suppress(HalError), self._pushed():
            self._library.ask("cuCtxSynchronize")
            self._kernels.close()
        # Neither needs a healthy context: a sticky error must not keep host memory or the arena.
        for host in list(self._registered):
            with contextlib.suppress(HalError):
                self._memory.unregister_host(host)
        if self._arena is not None:
            with contextlib.suppress(HalError):
                self._memory.close_arena(self._arena)
        self._library.ask("cuCtxDestroy_v2", self._context)
        self._arena = None

    # ---- arena ----------------------------------------------------------------------------------

    def arena_limit(self) -> int:
        with self._current():
            return 0 if self._arena is not None else self._memory.arena_limit()

    def open_arena(self, address: int, size: int) -> Arena:
        with self._lock, self._current():
            if self._arena is not None:
                raise InvalidState(
                    f"An arena of {self._arena.size} bytes is open already.", remedy="Close it first."
                )
            if size <= 0 or address < 0:
                raise InvalidArgument(f"An arena of {size} bytes at {address:#x} cannot be opened.")
            self._arena = self._memory.open_arena(address, size)
            return self._arena

    def close_arena(self) -> None:
        with self._lock, self._current():
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
        with self._current():
            check_aligned_range(self.require_arena(), address, size)
            self._table.ask(name, address, size)

    def register_host(self, address: int, size: int) -> None:
        if Capability.HOST_REGISTER not in self._capabilities:
            raise self.lacks(Capability.HOST_REGISTER)
        if address <= 0 or size <= 0 or address % 4096 or size % 4096:
            raise InvalidArgument(f"[{address:#x}, +{size}) is no range of whole host pages.")
        with self._lock, self._current():
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
        with self._lock, self._current():
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

    def _stream(self, stream: StreamHandle) -> Any:
        if stream != DEFAULT_STREAM and stream not in self._streams:
            raise InvalidHandle(f"There is no stream {stream:#x} on this device.")
        return self._ffi.cast("void *", int(stream))

    def copy_to_device(self, dst: int, src: Buffer, stream: StreamHandle = DEFAULT_STREAM) -> None:
        view = read_view(src)
        with self._current():
            queue = self._stream(stream)
            self.check_range(dst, len(view))
            if len(view):
                self._library.call("cuMemcpyHtoDAsync_v2", dst, self._ffi.from_buffer(view), len(view), queue)
                self._library.call("cuStreamSynchronize", queue)

    def copy_to_host(self, dst: Buffer, src: int, stream: StreamHandle = DEFAULT_STREAM) -> None:
        view = write_view(dst)
        with self._current():
            queue = self._stream(stream)
            self.check_range(src, len(view))
            if len(view):
                into = self._ffi.from_buffer(view, require_writable=True)
                self._library.call("cuMemcpyDtoHAsync_v2", into, src, len(view), queue)
            self._library.call("cuStreamSynchronize", queue)

    def copy_on_device(self, dst: int, src: int, size: int, stream: StreamHandle = DEFAULT_STREAM) -> None:
        with self._current():
            queue = self._stream(stream)
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
        with self._current():
            queue = self._stream(stream)
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
        with peer._current():
            peer.check_range(src, size)
            source = peer._context
        with self._current():
            queue = self._stream(stream)
            self.check_range(dst, size)
            if size:
                self._library.call("cuMemcpyPeerAsync", dst, self._context, src, source, size, queue)
                self._library.call("cuStreamSynchronize", queue)

    def digest(self, address: int, size: int) -> bytes:
        with self._current():
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
        with self._current():
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
        with self._current():
            queue = self._stream(stream)
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
        with self._current(), self._kernels.scratch_lock:
            yield self._kernels.scratch, self._kernels.scratch_size

    def raw_copy(self, dst: int, peer: DriverDevice, src: int, size: int) -> None:
        """Copies from `peer`, which may be this device."""
        if size == 0:
            return
        with peer._current(), self._current():
            null = self._ffi.NULL
            if peer is self:
                self._library.call("cuMemcpyDtoDAsync_v2", dst, src, size, null)
            else:
                contexts = (self._context, peer._context)
                self._library.call("cuMemcpyPeerAsync", dst, contexts[0], src, contexts[1], size, null)
                self._library.call(
                    "cuStreamSynchronize", null
                )  # the peer's later work is not ordered after it

    def raw_reduce(self, how: Reduction, dst: int, leaves: int, stride: int, count: int) -> None:
        """Reduces leaves at equal distances, and waits, so that peers may read the result."""
        with self._current():
            self._kernels.reduce_strided(how, dst, leaves, stride, count, self._ffi.NULL)
            self._library.call("cuStreamSynchronize", self._ffi.NULL)

    # ---- order ----------------------------------------------------------------------------------

    def create_stream(self, priority: int = 0) -> StreamHandle:
        out = self._ffi.new("void **")
        with self._current():
            self._library.call("cuStreamCreateWithPriority", out, 0, priority)
            handle = int(self._ffi.cast("uintptr_t", out[0]))
            self._streams.add(handle)
        return StreamHandle(handle)

    def destroy_stream(self, stream: StreamHandle) -> None:
        with self._lock, self._current():
            if stream == DEFAULT_STREAM:
                raise InvalidHandle("The default stream cannot be destroyed.")
            queue = self._stream(stream)
            self._streams.discard(stream)
            self._library.call("cuStreamDestroy_v2", queue)

    def synchronize_stream(self, stream: StreamHandle = DEFAULT_STREAM) -> None:
        with self._current():
            self._library.call("cuStreamSynchronize", self._stream(stream))

    def query_stream(self, stream: StreamHandle = DEFAULT_STREAM) -> bool:
        with self._current():
            return self._done("cuStreamQuery", self._stream(stream))

    def _done(self, name: str, handle: Any) -> bool:
        code = self._library.ask(name, handle)
        if code not in (0, NOT_READY):
            raise self._library.error(code, name)
        return code == 0

    def _event(self, event: EventHandle) -> Any:
        if event not in self._events:
            raise InvalidHandle(f"There is no event {event:#x} on this device.")
        return self._ffi.cast("void *", int(event))

    def create_event(self, *, timing: bool = False) -> EventHandle:
        out = self._ffi.new("void **")
        with self._current():
            self._library.call("cuEventCreate", out, 0 if timing else _TIMING_OFF)
            handle = int(self._ffi.cast("uintptr_t", out[0]))
            self._events[handle] = timing
        return EventHandle(handle)

    def destroy_event(self, event: EventHandle) -> None:
        with self._lock, self._current():
            mark = self._event(event)
            del self._events[event]
            self._library.call("cuEventDestroy_v2", mark)

    def record_event(self, event: EventHandle, stream: StreamHandle = DEFAULT_STREAM) -> None:
        with self._current():
            self._library.call("cuEventRecord", self._event(event), self._stream(stream))

    def wait_event(self, stream: StreamHandle, event: EventHandle) -> None:
        with self._current():
            self._library.call("cuStreamWaitEvent", self._stream(stream), self._event(event), 0)

    def query_event(self, event: EventHandle) -> bool:
        with self._current():
            return self._done("cuEventQuery", self._event(event))

    def synchronize_event(self, event: EventHandle) -> None:
        with self._current():
            self._library.call("cuEventSynchronize", self._event(event))

    def elapsed(self, start: EventHandle, end: EventHandle) -> float:
        milliseconds = self._ffi.new("float *")
        with self._current():
            first, last = self._event(start), self._event(end)
            if not (self._events[start] and self._events[end]):
                raise InvalidHandle(
                    "An event without timing cannot measure.", remedy="Create it with timing=True."
                )
            code = self._library.ask("cuEventElapsedTime", milliseconds, first, last)
            if code == NOT_READY:
                raise InvalidState("An event is not done yet.", remedy="Call synchronize_event first.")
            if code:
                raise self._library.error(code, "cuEventElapsedTime")
        return float(milliseconds[0]) / 1000.0

    def _gate_keeper(self) -> DriverGates:
        if self._gates is None:
            raise self.lacks(Capability.GATES)
        return self._gates

    def make_gate(self) -> GateHandle:
        with self._current():
            return self._gate_keeper().make()

    def wait_gate(self, stream: StreamHandle, gate: GateHandle) -> None:
        gates = self._gate_keeper()
        with self._current():
            gates.wait(self._stream(stream), gate)

    def open_gate(self, gate: GateHandle) -> None:
        gates = self._gate_keeper()
        with self._current():
            gates.open(gate)

    def drop_gate(self, gate: GateHandle) -> None:
        gates = self._gate_keeper()
        with self._current():
            gates.drop(gate)

    def settle(self, timeout: float) -> bool:
        if self._table is None or Capability.SETTLE not in self._capabilities:
            raise self.lacks(Capability.SETTLE)
        with self._current():
            return self._table.settle(timeout)

    def quiesce(self) -> None:
        with self._current():
            self._library.call("cuCtxSynchronize")
            if self._table is not None:
                self._table.ask("quiesce")

    def native_table(self) -> int:
        with self._current():
            return self._table.address if self._table is not None else build_table(self)
