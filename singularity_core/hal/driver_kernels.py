"""The HAL's own kernels on a device behind the driver ABI: loading, launching, and the scratch memory they
need.

The scratch is a few megabytes of the device's memory outside the arena, taken when the device is opened, so
that a digest or a reduction never fails for want of memory."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

from .digest import finish, word_sums
from .driver_calls import DriverLibrary
from .types import DType, ReduceOp

_BLOCK = 128
_FOLD = 128  # threads of the digest's second step, whose sums the host adds
_PAIR = 16
_MASK = (1 << 64) - 1
_SCRATCH = 4 << 20


@dataclass(frozen=True)
class Reduction:
    """What `Device.reduce_tree` does to each element; arguments were checked."""

    dtype: DType
    op: ReduceOp
    leaves: int
    premultiply: float = 1.0
    divisor: int | None = None
    """For AVERAGE; None: the number of leaves."""

    @property
    def module(self) -> str:
        """Name of the PTX file."""
        return f"reduce_{self.dtype.value}"

    @property
    def kernel(self) -> str:
        """Name of the kernel in it; an average is a sum with a divisor."""
        return f"sg_reduce_{'sum' if self.op is ReduceOp.AVERAGE else self.op.value}"

    @property
    def scales(self) -> tuple[float, float]:
        """Factor of each leaf and divisor of the root, as the kernel takes them."""
        if self.op is not ReduceOp.AVERAGE:
            return self.premultiply, 1
        return self.premultiply, self.leaves if self.divisor is None else self.divisor


class DriverKernels:
    """The kernels of one context, which the caller makes current around every call but the constructor's."""

    def __init__(self, library: DriverLibrary, multiprocessors: int) -> None:
        self._library, self._ffi = library, library.ffi
        self._blocks = min(1024, max(16, 8 * multiprocessors))
        self._functions: dict[tuple[str, str], Any] = {}
        self._modules: dict[str, Any] = {}
        self._lock = threading.Lock()
        self.scratch = 0
        self.scratch_size = _SCRATCH
        self.scratch_lock = threading.Lock()
        """Held while the scratch is in use, up to the synchronisation that ends the use."""

    def prepare(self) -> None:
        """Takes the scratch.  `OutOfMemory` when the device has not that much."""
        out = self._ffi.new("uint64_t *")
        self._library.call("cuMemAlloc_v2", out, self.scratch_size)
        self.scratch = int(out[0])

    def close(self) -> None:
        """Frees scratch and modules."""
        self._library.ask("cuMemFree_v2", self.scratch)
        for module in self._modules.values():
            self._library.ask("cuModuleUnload", module)
        self._modules.clear()
        self._functions.clear()

    def _function(self, module_name: str, name: str) -> Any:
        with self._lock:
            if (module_name, name) not in self._functions:
                if module_name not in self._modules:
                    self._modules[module_name] = self._load(module_name)
                function = self._ffi.new("void **")
                self._library.call("cuModuleGetFunction", function, self._modules[module_name], name.encode())
                self._functions[module_name, name] = function[0]
            return self._functions[module_name, name]

    def _load(self, module_name: str) -> Any:
        text = resources.files(f"{__package__}.kernels").joinpath(f"{module_name}.ptx").read_bytes()
        module = self._ffi.new("void **")
        self._library.call("cuModuleLoadData", module, self._ffi.new("char[]", text))
        return module[0]

    def _launch(
        self, function: Any, blocks: int, threads: int, stream: Any, parameters: Sequence[Any]
    ) -> None:
        pointers = self._ffi.new("void *[]", [self._ffi.cast("void *", p) for p in parameters])
        null = self._ffi.NULL
        shape = (blocks, 1, 1, threads, 1, 1)
        self._library.call("cuLaunchKernel", function, *shape, 0, stream, pointers, null)

    # ---- reductions -------------------------------------------------------------------------------

    def reduce(self, how: Reduction, dst: int, sources: Sequence[int], count: int, stream: Any) -> None:
        """`Device.reduce_tree`.

        The kernel takes leaves at equal distances.  Sources that do not lie so are first copied together in
        scratch, a piece at a time, and then the call waits."""
        strides = {b - a for a, b in itertools.pairwise(sources)} or {0}
        if len(strides) == 1:
            self.reduce_strided(how, dst, sources[0], strides.pop(), count, stream)
            return
        element = how.dtype.size
        with self.scratch_lock:
            piece = self.scratch_size // len(sources) // 256 * 256
            for at in range(0, count * element, piece):
                size = min(piece, count * element - at)
                for index, source in enumerate(sources):
                    leaf = self.scratch + index * piece
                    self._library.call("cuMemcpyDtoDAsync_v2", leaf, source + at, size, stream)
                self.reduce_strided(how, dst + at, self.scratch, piece, size // element, stream)
            self._library.call("cuStreamSynchronize", stream)

    def reduce_strided(
        self, how: Reduction, dst: int, base: int, stride: int, count: int, stream: Any
    ) -> None:
        """Leaf k begins at base + k * stride, which may be negative; returns before it is done."""
        kinds = {DType.F64: "double *", DType.I64: "long long *", DType.U64: "unsigned long long *"}
        kind = kinds.get(how.dtype, "float *" if how.dtype.floating else "int *")
        words = (dst, base, stride & _MASK, count)
        parameters = [self._ffi.new("uint64_t *", word) for word in words]
        parameters.append(self._ffi.new("uint32_t *", how.leaves))
        parameters += [self._ffi.new(kind, s if how.dtype.floating else 1) for s in how.scales]
        blocks = min(self._blocks, -(-count // _BLOCK))
        self._launch(self._function(how.module, how.kernel), blocks, _BLOCK, stream, parameters)

    # ---- digest -----------------------------------------------------------------------------------

    def digest(self, address: int, size: int) -> bytes:
        """The content digest (digest.py) of device memory; waits."""
        ffi, null = self._ffi, self._ffi.NULL
        words = size // 8
        blocks = max(1, min(self._blocks, -(-words // _BLOCK)))
        tail = ffi.new("char[]", 8)
        sums = ffi.new("uint64_t[]", 2 * _FOLD)
        with self.scratch_lock:
            partials = self.scratch
            result = partials + self._blocks * _BLOCK * _PAIR
            first = [ffi.new("uint64_t *", word) for word in (address, words, partials)]
            self._launch(self._function("digest", "sg_digest_words"), blocks, _BLOCK, null, first)
            second = [ffi.new("uint64_t *", word) for word in (partials, blocks * _BLOCK, result)]
            self._launch(self._function("digest", "sg_digest_fold"), 1, _FOLD, null, second)
            self._library.call("cuMemcpyDtoHAsync_v2", sums, result, 2 * _FOLD * 8, null)
            if size % 8:
                self._library.call("cuMemcpyDtoHAsync_v2", tail, address + words * 8, size % 8, null)
            self._library.call("cuCtxSynchronize")
        pairs = list(sums)
        a, b = sum(pairs[::2]), sum(pairs[1::2])
        if size % 8:
            more = word_sums(bytes(ffi.buffer(tail, size % 8)), first=words)
            a, b = a + more[0], b + more[1]
        return finish((a & _MASK, b & _MASK), size)
