"""Waits for a stream that a host function holds up, while the proxy is killed; then calls on."""

from __future__ import annotations

import ctypes as c
import threading

from driver import Address, Handle, allocate, call, check, expect, function, launch, make, start

start()
p, f = allocate(1 << 20), function()
stream = make(Handle, "cuStreamCreate", 1)
gate = threading.Event()
hold = c.CFUNCTYPE(None, c.c_void_p)(lambda user: gate.wait(60) and None)
check("cuLaunchHostFunc", stream, hold, None)
print("waiting", flush=True)
expect(46, "cuStreamSynchronize", stream)
gate.set()
expect(46, "cuCtxSynchronize")
expect(46, "cuMemAlloc_v2", c.byref(Address()), c.c_size_t(16))
expect(46, "cuMemcpyHtoD_v2", p, b"abcd", c.c_size_t(4))
expect(46, "cuMemcpyDtoH_v2", c.create_string_buffer(1 << 20), p, c.c_size_t(1 << 20))
expect(46, "cuEventCreate", c.byref(Handle()), 0)
expect(46, "cuMemGetAddressRange_v2", c.byref(Address()), c.byref(c.c_size_t()), p)
expect(46, "cuMemFree_v2", p)
assert launch(f, p, c.c_uint32(1), c.c_float(1)) == 46
assert call("cuCtxSynchronize") == 46
print("passed", flush=True)
