"""A thin ctypes view of libcuda.so.1 for the programs in this folder; every call is checked unless asked."""

from __future__ import annotations

import ctypes as c
import struct
import sys
from collections.abc import Callable
from typing import Any

cuda = c.CDLL("libcuda.so.1")
Handle = c.c_void_p
Address = c.c_uint64

PTX = b"""
.version 8.0
.target sm_80
.address_size 64
.global .align 4 .u32 counter[4] = {1, 2, 3, 4};
.visible .entry scale(.param .u64 p, .param .u32 n, .param .f32 k)
{
  .reg .pred %q; .reg .u32 %i, %b, %t, %n; .reg .u64 %p, %o; .reg .f32 %v, %k;
  ld.param.u64 %p, [p]; ld.param.u32 %n, [n]; ld.param.f32 %k, [k];
  mov.u32 %b, %ctaid.x; mov.u32 %t, %ntid.x; mov.u32 %i, %tid.x;
  mad.lo.u32 %i, %b, %t, %i;
  setp.ge.u32 %q, %i, %n;
  @%q bra done;
  mul.wide.u32 %o, %i, 4; add.u64 %p, %p, %o;
  ld.global.f32 %v, [%p]; mul.f32 %v, %v, %k; st.global.f32 [%p], %v;
done:
  ret;
}
.visible .entry wild(.param .u64 p)
{
  .reg .u64 %p; .reg .u32 %v;
  ld.param.u64 %p, [p]; mov.u32 %v, 1; st.global.u32 [%p], %v;
  ret;
}
.visible .entry nothing()
{
  ret;
}
"""


def name_of(code: int) -> str:
    text = c.c_char_p()
    cuda.cuGetErrorName(code, c.byref(text))
    return (text.value or b"?").decode()


def call(function: str, *arguments: Any) -> int:
    """The call's status."""
    return int(getattr(cuda, function)(*arguments))


def check(function: str, *arguments: Any) -> None:
    code = call(function, *arguments)
    assert code == 0, f"{function} returned {code} {name_of(code)}"


def expect(code: int, function: str, *arguments: Any) -> None:
    found = call(function, *arguments)
    assert found == code, f"{function} returned {found} {name_of(found)}, not {code} {name_of(code)}"


def make(kind: Any, function: str, *arguments: Any) -> Any:
    """What a call stores through its first parameter."""
    out = kind()
    check(function, c.byref(out), *arguments)
    return out


def start() -> Any:
    """Initialises, and makes a context current."""
    check("cuInit", 0)
    return make(Handle, "cuCtxCreate_v2", 0, 0)


def function(name: str = "scale", ptx: bytes = PTX) -> Any:
    return make(Handle, "cuModuleGetFunction", make(Handle, "cuModuleLoadData", ptx), name.encode())


def pointers(*values: Any) -> Any:
    """kernelParams for ctypes values, which the caller keeps alive."""
    return (c.c_void_p * len(values))(*[c.cast(c.pointer(v), c.c_void_p) for v in values])


def launch(f: Any, *values: Any, grid: int = 1, block: int = 1, shared: int = 0, stream: Any = None) -> int:
    return call("cuLaunchKernel", f, grid, 1, 1, block, 1, 1, shared, stream, pointers(*values), None)


def allocate(count: int) -> Any:
    return make(Address, "cuMemAlloc_v2", c.c_size_t(count))


def upload(address: Any, data: bytes) -> None:
    check("cuMemcpyHtoD_v2", address, data, c.c_size_t(len(data)))


def download(address: Any, count: int) -> bytes:
    out = c.create_string_buffer(count)
    check("cuMemcpyDtoH_v2", out, address, c.c_size_t(count))
    return out.raw


def floats(*values: float) -> bytes:
    return struct.pack(f"{len(values)}f", *values)


def run_named(behaviours: dict[str, Any]) -> None:
    """Runs the function that argv[1] names, of a program's globals; "passed" when it returns."""
    behaviour: Callable[[], None] = behaviours[sys.argv[1]]
    behaviour()
    print("passed")


def _side(name: str, *, three: bool) -> list[tuple[str, Any]]:
    deep: list[tuple[str, Any]] = [("Z", c.c_size_t), ("LOD", c.c_size_t)] if three else []
    tall: list[tuple[str, Any]] = [("Height", c.c_size_t)] if three else []
    fields: list[tuple[str, Any]] = [
        ("XInBytes", c.c_size_t),
        ("Y", c.c_size_t),
        *deep,
        ("MemoryType", c.c_int),
        ("Host", c.c_void_p),
        ("Device", Address),
        ("Array", c.c_void_p),
        *([("reserved", c.c_void_p)] if three else []),
        ("Pitch", c.c_size_t),
        *tall,
    ]
    return [(name + field, kind) for field, kind in fields]


class Copy2D(c.Structure):
    """CUDA_MEMCPY2D"""

    _fields_ = [
        *_side("src", three=False),
        *_side("dst", three=False),
        ("WidthInBytes", c.c_size_t),
        ("Height", c.c_size_t),
    ]


class Copy3D(c.Structure):
    """CUDA_MEMCPY3D"""

    _fields_ = [
        *_side("src", three=True),
        *_side("dst", three=True),
        ("WidthInBytes", c.c_size_t),
        ("Height", c.c_size_t),
        ("Depth", c.c_size_t),
    ]
