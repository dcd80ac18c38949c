"""A rank's view of the CUDA driver API through ctypes, and NVRTC: just what the kernel cases need."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from ctypes import byref, c_char_p, c_float, c_int, c_size_t, c_uint, c_uint64, c_void_p
from typing import Any

import numpy as np

Dim = int | tuple[int, ...]


class DriverError(RuntimeError):
    """A driver call that failed: `.code` is the CUresult, `.call` the function."""

    def __init__(self, call: str, code: int, detail: str = "") -> None:
        super().__init__(f"{call} returned {code}{': ' + detail if detail else ''}")
        self.call, self.code = call, code


class Buffer:
    """Device memory that holds one array; freed with the device's context."""

    def __init__(self, device: Device, pointer: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.device, self.pointer, self.shape, self.dtype = device, pointer, shape, dtype

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape)) * self.dtype.itemsize

    def numpy(self) -> np.ndarray:
        out = np.empty(self.shape, self.dtype)
        self.device.call(
            "cuMemcpyDtoH_v2", c_void_p(out.ctypes.data), c_uint64(self.pointer), c_size_t(out.nbytes)
        )
        return out


class Module:
    """A loaded PTX module."""

    def __init__(self, device: Device, handle: c_void_p) -> None:
        self.device, self.handle = device, handle
        self._functions: dict[str, c_void_p] = {}

    def function(self, name: str) -> c_void_p:
        if name not in self._functions:
            found = c_void_p()
            self.device.call("cuModuleGetFunction", byref(found), self.handle, c_char_p(name.encode()))
            self._functions[name] = found
        return self._functions[name]

    def variable(self, name: str, dtype: Any, shape: tuple[int, ...]) -> Buffer:
        """A __device__ or __constant__ variable."""
        pointer, size = c_uint64(), c_size_t()
        self.device.call(
            "cuModuleGetGlobal_v2", byref(pointer), byref(size), self.handle, c_char_p(name.encode())
        )
        buffer = Buffer(self.device, pointer.value, shape, np.dtype(dtype))
        if size.value != buffer.nbytes:
            raise AssertionError(f"{name} has {size.value} bytes, not {buffer.nbytes}")
        return buffer

    def launch(
        self, name: str, grid: Dim, block: Dim, *arguments: Any, shared: int = 0, cooperative: bool = False
    ) -> None:
        values, pointers = _pack(arguments)
        sizes = [*_three(grid), *_three(block)]
        call = "cuLaunchCooperativeKernel" if cooperative else "cuLaunchKernel"
        tail: tuple[Any, ...] = () if cooperative else (None,)
        self.device.call(
            call, self.function(name), *(c_uint(s) for s in sizes), c_uint(shared), None, pointers, *tail
        )
        del values

    def run(self, name: str, grid: Dim, block: Dim, *arguments: Any, shared: int = 0) -> None:
        """Launches and waits, so that an execution error is this launch's."""
        self.launch(name, grid, block, *arguments, shared=shared)
        self.device.call("cuCtxSynchronize")

    def unload(self) -> None:
        self.device.call("cuModuleUnload", self.handle)


class Device:
    """Ordinal 0, with its own context."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL("libcuda.so.1")
        self.nvrtc = ctypes.CDLL(os.environ["NVRTC_PATH"])
        self.call("cuInit", c_uint(0))
        ordinal = c_int()
        self.call("cuDeviceGet", byref(ordinal), c_int(0))
        self.ordinal = ordinal
        self.context = c_void_p()
        self.call("cuCtxCreate_v2", byref(self.context), c_uint(0), ordinal)

    def call(self, name: str, *arguments: Any) -> None:
        code = getattr(self.library, name)(*arguments)
        if code != 0:
            raise DriverError(name, code)

    def attribute(self, number: int) -> int:
        value = c_int()
        self.call("cuDeviceGetAttribute", byref(value), c_int(number), self.ordinal)
        return value.value

    def compile(self, source: str, *options: str) -> bytes:
        """CUDA C++ to PTX; the vendor's own compiler."""
        program = c_void_p()
        rtc = self.nvrtc
        code = rtc.nvrtcCreateProgram(byref(program), source.encode(), b"case.cu", 0, None, None)
        flags = [
            "--gpu-architecture=compute_120",
            f"-I{os.environ.get('CUDA_PATH', '/usr/local/cuda')}/include",
            *options,
        ]
        raw = (c_char_p * len(flags))(*(flag.encode() for flag in flags))
        code = code or rtc.nvrtcCompileProgram(program, len(flags), raw)
        size = c_size_t()
        if code != 0:
            rtc.nvrtcGetProgramLogSize(program, byref(size))
            log = ctypes.create_string_buffer(size.value)
            rtc.nvrtcGetProgramLog(program, log)
            raise DriverError("nvrtcCompileProgram", code, log.value.decode())
        rtc.nvrtcGetPTXSize(program, byref(size))
        text = ctypes.create_string_buffer(size.value)
        rtc.nvrtcGetPTX(program, text)
        rtc.nvrtcDestroyProgram(byref(program))
        return text.value

    def load(self, ptx: bytes) -> Module:
        handle = c_void_p()
        self.call("cuModuleLoadData", byref(handle), c_char_p(ptx))
        return Module(self, handle)

    def build(self, source: str, *options: str) -> Module:
        return self.load(self.compile(source, *options))

    def put(self, array: np.ndarray) -> Buffer:
        array = np.ascontiguousarray(array)
        buffer = self.empty(array.shape, array.dtype)
        self.call(
            "cuMemcpyHtoD_v2", c_uint64(buffer.pointer), c_void_p(array.ctypes.data), c_size_t(array.nbytes)
        )
        return buffer

    def empty(self, shape: int | tuple[int, ...], dtype: Any) -> Buffer:
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        pointer = c_uint64()
        size = max(1, int(np.prod(shape)) * np.dtype(dtype).itemsize)
        self.call("cuMemAlloc_v2", byref(pointer), c_size_t(size))
        return Buffer(self, pointer.value, shape, np.dtype(dtype))

    def free(self, buffer: Buffer) -> None:
        self.call("cuMemFree_v2", c_uint64(buffer.pointer))

    def zeros(self, shape: int | tuple[int, ...], dtype: Any) -> Buffer:
        return self.put(np.zeros(shape, dtype))


def _three(size: Dim) -> tuple[int, int, int]:
    given = (size,) if isinstance(size, int) else tuple(size)
    return (*given, 1, 1, 1)[:3]  # type: ignore[return-value]


def _pack(arguments: Sequence[Any]) -> tuple[list[Any], Any]:
    values: list[Any] = []
    for argument in arguments:
        if isinstance(argument, Buffer):
            values.append(c_uint64(argument.pointer))
        elif isinstance(argument, np.generic):
            values.append(ctypes.create_string_buffer(argument.tobytes(), argument.itemsize))
        elif isinstance(argument, bool | int):
            values.append(c_int(argument))
        elif isinstance(argument, float):
            values.append(c_float(argument))
        else:
            values.append(argument)  # a ctypes object
    pointers = (c_void_p * max(1, len(values)))(*(ctypes.addressof(value) for value in values))
    return values, pointers


Case = Callable[[Device], None]
CASES: dict[str, Case] = {}


def case(function: Case) -> Case:
    """Registers a case; it raises AssertionError when the device's answer is not the oracle's."""
    if function.__name__ in CASES:
        raise ValueError(f"two cases named {function.__name__}")
    CASES[function.__name__] = function
    return function


def same(got: np.ndarray, expected: np.ndarray) -> None:
    """Bit-identical, except that all NaNs are one."""
    expected = np.asarray(expected)
    assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
    if got.dtype.kind == "f":
        unsigned = np.dtype(f"u{got.dtype.itemsize}")
        equal = (got.view(unsigned) == expected.view(unsigned)) | (np.isnan(got) & np.isnan(expected))
    else:
        equal = got == expected
    if not equal.all():
        where = np.argwhere(~equal)
        first = tuple(where[0])
        raise AssertionError(
            f"{len(where)} of {equal.size} differ; first at {tuple(map(int, first))}: "
            f"got {got[first]!r}, expected {expected[first]!r}"
        )


def close(got: np.ndarray, expected: np.ndarray, relative: float, absolute: float = 0.0) -> None:
    np.testing.assert_allclose(got, expected, rtol=relative, atol=absolute)
