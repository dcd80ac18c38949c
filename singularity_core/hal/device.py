"""The contract between the core and a device: what a backend author writes, and all that the core calls.

Reading guide.  `Backend` (backend.py) is what a plugin registers: it can be asked about its devices without
touching them, and opens them.  `Device` is one opened device, and `Group` (group.py) is several.  Abstract
methods are the part that every device has; the others belong to a capability (`Capability`), and the versions
here raise `Unsupported`.
`docs/backend-authors.md` builds a complete backend step by step; `singularity_core.testing` holds the tests
that it must pass.

Rules that hold for every method:

* **Threads.**  Every method may be called from any thread, also at the same time.  None depends on
  thread-local state that the caller can see.
* **Order.**  Work on one stream happens in the order of the calls.  Work on `DEFAULT_STREAM` happens after
  all earlier work on every stream, and before all later work.  Nothing else is ordered.
* **Host buffers.**  When a copy returns, the host buffer has been read or filled; the caller may reuse it.
* **Errors.**  Bad arguments and states are found by the call itself, which then did nothing.  What fails
  while it executes on the device is raised by the call if it waits, else by the next call that waits; such
  errors are sticky.
* **Close.**  After `close`, every method but `close` raises `InvalidState`.
"""

from __future__ import annotations

import abc
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

from .capabilities import Capability
from .errors import InvalidArgument, Unsupported
from .types import (
    DEFAULT_STREAM,
    Arena,
    DeviceImage,
    DeviceProperties,
    DeviceRange,
    DType,
    EventHandle,
    GateHandle,
    MemoryInfo,
    ReduceOp,
    SavedRange,
    StreamHandle,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer


class Device(abc.ABC):
    """One opened device.  Usable as a context manager, which closes it."""

    # ---- what it is -----------------------------------------------------------------------------

    @property
    @abc.abstractmethod
    def backend_name(self) -> str:
        """The name under which the backend is registered; it marks what the device dumps."""

    @property
    @abc.abstractmethod
    def properties(self) -> DeviceProperties:
        """What does not change about the device.  Never fails on an open device."""

    @property
    @abc.abstractmethod
    def capabilities(self) -> frozenset[Capability]:
        """The optional parts of the contract that this device has; the same for the device's whole life."""

    @abc.abstractmethod
    def memory_info(self) -> MemoryInfo:
        """Free and total device memory now.  An open arena counts as used."""

    @abc.abstractmethod
    def close(self) -> None:
        """Waits for the device, closes the arena, frees everything.  Calling it again does nothing.

        Never raises for earlier asynchronous errors: what they leave behind is freed all the same."""

    # ---- arena ----------------------------------------------------------------------------------

    @abc.abstractmethod
    def arena_limit(self) -> int:
        """Size in bytes of the largest arena that could be opened now; 0 when one is open."""

    @abc.abstractmethod
    def open_arena(self, address: int, size: int) -> Arena:
        """Backs [address, address + size) with device memory; `address` 0 lets the device choose.

        The size is rounded up to the device's granularity; the answer says what was opened.  With the
        capability ``range_tracking`` all of it starts dead, else live; its content is undefined.  Raises
        `OutOfMemory` when `size` exceeds `arena_limit`, `InvalidArgument` for size <= 0 or an address that
        the device cannot give (taken, misaligned, out of reach), `InvalidState` when an arena is open."""

    @abc.abstractmethod
    def close_arena(self) -> None:
        """Waits for the device and gives the arena's memory back.  Its addresses are not valid any more.

        Raises `InvalidState` when no arena is open."""

    def mark_live(self, address: int, size: int) -> None:
        """Says that [address, address + size) is in use: accesses are allowed from now on
        (``range_tracking``).

        Both are multiples of `RANGE_ALIGNMENT` and lie in the arena, else `InvalidArgument`.  The content is
        undefined.  Marking a live range again keeps its content."""
        raise self.lacks(Capability.RANGE_TRACKING)

    def mark_dead(self, address: int, size: int) -> None:
        """Says that the range is not in use: from now on the device reports each access as `IllegalAddress`.

        Its content is lost.  The caller makes sure that no work that uses it is under way.  Arguments and
        errors as in `mark_live`."""
        raise self.lacks(Capability.RANGE_TRACKING)

    def register_host(self, address: int, size: int) -> None:
        """Makes host memory of this process readable and writable by the device at the same address
        (``host_register``).  Whole pages; `InvalidArgument` when it is not mapped or was registered
        before."""
        raise self.lacks(Capability.HOST_REGISTER)

    def unregister_host(self, address: int) -> None:
        """Ends what `register_host` began at that very address, else `InvalidArgument`.  Waits for the
        device."""
        raise self.lacks(Capability.HOST_REGISTER)

    # ---- content --------------------------------------------------------------------------------

    @abc.abstractmethod
    def copy_to_device(self, dst: int, src: Buffer, stream: StreamHandle = DEFAULT_STREAM) -> None:
        """Copies all of `src`, any C-contiguous buffer, to device memory at `dst`.

        Raises `InvalidArgument` when the range is not inside the arena or registered host memory, and
        `InvalidArgument` or `IllegalAddress` when part of it is dead.  An empty buffer does nothing."""

    @abc.abstractmethod
    def copy_to_host(self, dst: Buffer, src: int, stream: StreamHandle = DEFAULT_STREAM) -> None:
        """Fills all of `dst`, a writable C-contiguous buffer, from device memory at `src`.

        Waits for earlier work on the stream and raises its asynchronous errors.  Arguments as in
        `copy_to_device`."""

    @abc.abstractmethod
    def copy_on_device(self, dst: int, src: int, size: int, stream: StreamHandle = DEFAULT_STREAM) -> None:
        """Copies `size` bytes inside the device; may return before it is done.

        Either side may be registered host memory.  Overlapping ranges are `InvalidArgument`; ranges else as
        in `copy_to_device`.  Size 0 does nothing."""

    @abc.abstractmethod
    def fill(
        self, dst: int, value: int, count: int, *, width: int = 1, stream: StreamHandle = DEFAULT_STREAM
    ) -> None:
        """Writes the low `width` bytes of `value` (1, 2 or 4; little endian) `count` times; may return before
        it is done.

        `dst` is aligned to `width`.  Else, or when the range is not inside the arena: `InvalidArgument`."""

    def copy_from_peer(
        self, dst: int, peer: Device, src: int, size: int, stream: StreamHandle = DEFAULT_STREAM
    ) -> None:
        """Copies `size` bytes from `peer`, another device of the same backend, into this one (``peer_copy``).

        Ordered on this device's `stream`; the caller makes sure that the peer's content is ready.  Waits
        until done."""
        raise self.lacks(Capability.PEER_COPY)

    def digest(self, address: int, size: int) -> bytes:
        """The 128-bit digest of the content, computed on the device (``checksum``); waits for all earlier
        work.

        A function of the content alone, defined in digest.py and the same on every backend; not
        cryptographic. Raises `InvalidArgument` for a range outside the arena, or an address that is no
        multiple of 8."""
        raise self.lacks(Capability.CHECKSUM)

    def accumulate(
        self,
        dtype: DType,
        op: ReduceOp,
        dst: int,
        src: int,
        count: int,
        stream: StreamHandle = DEFAULT_STREAM,
    ) -> None:
        """dst[i] = op(dst[i], src[i]) for `count` elements, on the device (``accumulate``); may return before
        it is done.

        Equals ``reduce_tree(dtype, op, dst, [dst, src], count)``.  AVERAGE is allowed, and halves the sum."""
        self.reduce_tree(dtype, op, dst, [dst, src], count, stream=stream)

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
        """dst[i] = reduction of sources[0][i], sources[1][i]..., on the device, by the fixed binary tree
        (``accumulate``); may return before it is done.

        The tree over n leaves joins the tree of the first m with that of the rest; m is the largest power of
        two below n.  Each leaf is converted to the accumulation type (F32 for 16-bit types, else the type
        itself) and multiplied by `premultiply`; the root is divided by the number of leaves, or by `divisor`,
        for AVERAGE, and rounded once.  `dst` may be one of the sources; ranges may not overlap otherwise.  1
        <= len(sources) <= 64.  Raises `InvalidArgument` for a misaligned address, a range outside the arena,
        `premultiply` != 1 or AVERAGE on an integer type."""
        raise self.lacks(Capability.ACCUMULATE)

    # ---- order ----------------------------------------------------------------------------------

    def create_stream(self, priority: int = 0) -> StreamHandle:
        """A new ordered queue (``streams``).  Lower numbers are preferred; a device may ignore them.

        Raises `OutOfMemory` when the device has no more queues."""
        raise self.lacks(Capability.STREAMS)

    def destroy_stream(self, stream: StreamHandle) -> None:
        """Ends a stream; work that was queued still happens.  `InvalidHandle` for an unknown one, and the
        default."""
        raise self.lacks(Capability.STREAMS)

    def synchronize_stream(self, stream: StreamHandle = DEFAULT_STREAM) -> None:
        """Waits until all work that was queued so far is done, and raises its asynchronous errors."""
        if stream != DEFAULT_STREAM:
            raise self.lacks(Capability.STREAMS)
        self.quiesce()

    def query_stream(self, stream: StreamHandle = DEFAULT_STREAM) -> bool:
        """True when all work that was queued so far is done.  Does not wait.  Raises asynchronous errors."""
        raise self.lacks(Capability.STREAMS)

    def create_event(self, *, timing: bool = False) -> EventHandle:
        """A new event (``events``); it counts as done until it is recorded.  With `timing` it measures
        (``events_timing``)."""
        raise self.lacks(Capability.EVENTS)

    def destroy_event(self, event: EventHandle) -> None:
        """Ends an event.  Streams that already wait for it still do.  `InvalidHandle` for an unknown one."""
        raise self.lacks(Capability.EVENTS)

    def record_event(self, event: EventHandle, stream: StreamHandle = DEFAULT_STREAM) -> None:
        """Puts the event behind the work that is queued on the stream; takes the place of an earlier
        record."""
        raise self.lacks(Capability.EVENTS)

    def wait_event(self, stream: StreamHandle, event: EventHandle) -> None:
        """Later work on the stream happens after the event, as last recorded at the time of this call."""
        raise self.lacks(Capability.EVENTS)

    def query_event(self, event: EventHandle) -> bool:
        """True when the event is done.  Does not wait.  Raises asynchronous errors."""
        raise self.lacks(Capability.EVENTS)

    def synchronize_event(self, event: EventHandle) -> None:
        """Waits until the event is done, and raises asynchronous errors."""
        raise self.lacks(Capability.EVENTS)

    def elapsed(self, start: EventHandle, end: EventHandle) -> float:
        """Seconds between two done events with timing, on the device's clock (``events_timing``).

        `InvalidState` when either is not done; `InvalidHandle` when it has no timing or was never
        recorded."""
        raise self.lacks(Capability.EVENTS_TIMING)

    @abc.abstractmethod
    def quiesce(self) -> None:
        """Waits until what this object has asked of the device is done, whatever stream it came from; raises
        asynchronous errors.  Work of other contexts of the process need not be covered: see `settle`."""

    # ---- gates ----------------------------------------------------------------------------------

    def make_gate(self) -> GateHandle:
        """A new gate, closed (``gates``).  Raises `OutOfMemory` when the device has no more."""
        raise self.lacks(Capability.GATES)

    def wait_gate(self, stream: StreamHandle, gate: GateHandle) -> None:
        """Later work on the stream happens after `gate` was opened; once it is, nothing waits.  Returns at
        once.

        Any number of streams may wait.  `InvalidHandle` for an unknown stream, and a gate that is unknown or
        dropped."""
        raise self.lacks(Capability.GATES)

    def open_gate(self, gate: GateHandle) -> None:
        """Lets go all who wait at the gate, for good; opening it again does nothing.  Returns at once.

        `InvalidHandle` for an unknown gate, and one that was opened and dropped."""
        raise self.lacks(Capability.GATES)

    def drop_gate(self, gate: GateHandle) -> None:
        """No more waits come.  A closed gate still holds who waits, and can be opened; it goes when it is.

        Closing the device opens its gates.  A sticky error ends the waits at closed gates, and what is behind
        them does not happen.  `InvalidHandle` for a gate that is unknown or dropped."""
        raise self.lacks(Capability.GATES)

    def settle(self, timeout: float) -> bool:
        """Waits up to `timeout` seconds until nothing runs on the device or could begin by itself
        (``settle``); whether that is so.  0 only looks.

        Then every stream of every context is empty, or its next work waits at a closed gate, in a host
        function, or for a stream of which the same is true.  So, until a gate is opened, a host function
        returns or work is queued, device memory stays as it is.  Raises no errors of earlier work."""
        raise self.lacks(Capability.SETTLE)

    # ---- save and bring back --------------------------------------------------------------------

    def dump(self, ranges: Iterable[DeviceRange]) -> DeviceImage:
        """Saves the content of `ranges` (all inside the arena, live if tracked) after the device is quiet.

        The device is not changed.  Raises `InvalidState` without an arena, else as `copy_to_host`."""
        self.quiesce()
        saved = []
        for piece in ranges:
            content = bytearray(piece.size)
            self.copy_to_host(content, piece.address)
            known = Capability.CHECKSUM in self.capabilities
            digest = self.digest(piece.address, piece.size) if known else None
            saved.append(SavedRange(piece, bytes(content), digest))
        return DeviceImage(self.backend_name, self.require_arena(), tuple(saved))

    def restore(self, image: DeviceImage) -> None:
        """Brings the saved content back to the same addresses; marks the ranges live, if tracked.  Waits.

        The arena must be open, and hold the ranges (`InvalidArgument`).  An image of another backend, or a
        digest that does not agree afterwards, is `InvalidArgument` too; in the latter case the content is
        undefined."""
        if image.backend != self.backend_name:
            raise InvalidArgument(
                f"The image was dumped by {image.backend!r}, this device belongs to {self.backend_name!r}.",
                remedy="Restore on a device of the same backend.",
            )
        arena = self.require_arena()
        for saved in image.ranges:
            if saved.range.address < arena.base or saved.range.address + saved.range.size > arena.end:
                raise InvalidArgument(
                    f"The image holds {saved.range.size} bytes at {saved.range.address:#x}, "
                    f"outside the arena [{arena.base:#x}, {arena.end:#x}).",
                    remedy="Open the arena at the address and size that the image names.",
                )
        for saved in image.ranges:
            if Capability.RANGE_TRACKING in self.capabilities:
                self.mark_live(saved.range.address, -(-saved.range.size // 512) * 512)
            self.copy_to_device(saved.range.address, saved.content)
        self.quiesce()
        if Capability.CHECKSUM in self.capabilities:
            for saved in image.ranges:
                if (
                    saved.digest is not None
                    and self.digest(saved.range.address, saved.range.size) != saved.digest
                ):
                    raise InvalidArgument(
                        f"The content restored at {saved.range.address:#x} has not the digest of its dump.",
                        remedy="The image is damaged: restore from an older checkpoint.",
                    )

    @abc.abstractmethod
    def require_arena(self) -> Arena:
        """The open arena.  Raises `InvalidState` when none is open."""

    # ---- data path ------------------------------------------------------------------------------

    def native_table(self) -> int | None:
        """Address of this device's ``struct sg_hal_table`` (native.h), valid until `close`; None without
        the capability ``native_table``.  The core then builds one over these methods
        (`native_table.table_for`)."""
        return None

    # ---- for implementations --------------------------------------------------------------------

    def lacks(self, capability: Capability) -> Unsupported:
        """The error to raise when `capability` is missing."""
        return Unsupported(
            f"Backend {self.backend_name!r} does not have the capability {capability.value!r}."
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
