"""Makes one of everything that a replay log makes again, then waits; argument `empty`: only a session."""

from __future__ import annotations

import ctypes as c
import sys

from driver import PTX, Address, Handle, allocate, call, check, launch, make, pointers, start
from graphs import KernelNode, add

if sys.argv[1] == "empty":
    check("cuInit", 0)
    assert call("cuLibraryLoadData", c.byref(Handle()), b"nonsense", None, None, 0, None, None, 0) != 0
else:
    context = start()
    module = make(Handle, "cuModuleLoadData", PTX + b"// " + b"x" * 200_000 + b"\n")
    f = make(Handle, "cuModuleGetFunction", module, b"scale")
    check("cuFuncSetAttribute", f, 8, 60000)
    check("cuModuleGetGlobal_v2", c.byref(Address()), c.byref(c.c_size_t()), module, b"counter")
    library = make(Handle, "cuLibraryLoadData", PTX, None, None, 0, None, None, 0)
    kernel = make(Handle, "cuLibraryGetKernel", library, b"scale")
    of_kernel = make(Handle, "cuKernelGetFunction", kernel)
    keep, gone = allocate(1 << 20), allocate(1 << 20)
    last = allocate(4096)
    check("cuMemFree_v2", gone)
    host = make(c.c_void_p, "cuMemHostAlloc", c.c_size_t(5 << 20), 0)
    stream, event = make(Handle, "cuStreamCreate", 1), make(Handle, "cuEventCreate", 2)
    check("cuStreamDestroy_v2", make(Handle, "cuStreamCreate", 0))
    check("cuCtxSetLimit", 0, c.c_size_t(4096))
    graph = make(Handle, "cuGraphCreate", 0)
    values = (Address(last.value), c.c_uint32(4), c.c_float(2))
    array = pointers(*values)
    one = (c.c_uint * 3)(1, 1, 1)
    params = KernelNode(f, one, one, 0, c.cast(array, c.c_void_p))
    first = add(graph, "cuGraphAddKernelNode_v2", [], c.byref(params))
    second = add(graph, "cuGraphAddKernelNode", [first], c.byref(params))
    kept = make(Handle, "cuGraphInstantiateWithFlags", graph, c.c_ulonglong(0))
    values[2].value = 3
    check("cuGraphExecKernelNodeSetParams", kept, second, c.byref(params))
    other = make(Handle, "cuGraphCreate", 0)
    add(other, "cuGraphAddKernelNode_v2", [add(other, "cuGraphAddEmptyNode", [])], c.byref(params))
    orphan = make(Handle, "cuGraphInstantiateWithFlags", other, c.c_ulonglong(0))
    check("cuGraphDestroy", other)
    check("cuStreamBeginCapture_v2", stream, 0)
    assert launch(f, last, c.c_uint32(4), c.c_float(2), block=4, stream=stream) == 0
    check("cuMemcpyDtoDAsync_v2", keep, last, c.c_size_t(16), stream)
    check("cuMemsetD32Async", last, 7, c.c_size_t(4), stream)
    captured = Handle()
    check("cuStreamEndCapture", stream, c.byref(captured))
    of_captured = make(Handle, "cuGraphInstantiateWithFlags", captured, c.c_ulonglong(0))
    check("cuCtxSynchronize")
print("made", flush=True)
sys.stdin.readline()
