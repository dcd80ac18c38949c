"""Behaviours of the driver API, one function each; argv[1] names the one to run.

Oracles: struct, bytes, CUDA's rules.
"""

from __future__ import annotations

import ctypes as c
import os
import struct
import threading

from driver import (
    PTX,
    Address,
    Copy2D,
    Handle,
    allocate,
    call,
    check,
    cuda,
    download,
    expect,
    floats,
    function,
    launch,
    make,
    pointers,
    run_named,
    start,
    upload,
)


def kernel_parameters() -> None:
    start()
    f, p = function(), allocate(16)
    upload(p, floats(1, 2, 3, 4))
    assert launch(f, p, c.c_uint32(3), c.c_float(2), block=4) == 0
    assert download(p, 16) == floats(2, 4, 6, 4)
    packed = struct.pack("=QIf", p.value, 4, 0.5)
    size = c.c_size_t(len(packed))
    buffer = c.create_string_buffer(packed, len(packed))
    extra = (c.c_void_p * 5)(1, c.cast(buffer, c.c_void_p), 2, c.cast(c.pointer(size), c.c_void_p), 0)
    check("cuLaunchKernel", f, 1, 1, 1, 4, 1, 1, 0, None, None, extra)
    assert download(p, 16) == floats(1, 2, 3, 2)


def launch_errors() -> None:
    start()
    f, p = function(), allocate(16)
    n, k = c.c_uint32(4), c.c_float(1)
    assert launch(f, p, n, k, grid=0) == 1
    assert launch(f, p, n, k, block=2048) == 1
    assert launch(f, p, n, k, shared=1 << 30) == 1
    assert launch(f, p, n, k, stream=Handle(12345)) == 400
    assert launch(Handle(0xDEADBEEF), p, n, k) == 400
    expect(1, "cuLaunchKernel", f, 1, 1, 1, 1, 1, 1, 0, None, None, None)
    assert launch(f, p, n, k) == 0  # none of these is sticky
    check("cuCtxSynchronize")


def sticky_error() -> None:
    start()
    f = function("wild")
    assert launch(f, Address(0)) == 0
    expect(700, "cuCtxSynchronize")
    expect(700, "cuCtxSynchronize")
    assert call("cuMemAlloc_v2", c.byref(Address()), c.c_size_t(16)) == 700


def wrong_handles() -> None:
    start()
    for value in (3, 0xDEADBEEF, 0x2000100000001, 0xFFFFFFFFFFFFFFFF, 0x0007000100100000):
        bad = Handle(value)
        expect(400, "cuStreamSynchronize", bad)
        expect(400, "cuEventRecord", bad, None)
        expect(400, "cuEventDestroy_v2", bad)
        expect(400, "cuModuleUnload", bad)
        expect(1, "cuGraphLaunch", bad, None)
        expect(400, "cuFuncSetCacheConfig", bad, 0)
        expect(201, "cuCtxSetCurrent", bad)
        expect(201, "cuCtxDestroy_v2", bad)
    stream = make(Handle, "cuStreamCreate", 0)
    check("cuStreamDestroy_v2", stream)
    expect(400, "cuStreamSynchronize", stream)
    second = make(Handle, "cuStreamCreate", 0)
    assert second.value != stream.value  # the index may be used again, the handle is not
    expect(400, "cuStreamSynchronize", stream)
    check("cuStreamSynchronize", second)


def memory_sizes() -> None:
    start()
    for count in (1, 3, 511, 4064, 4065, 65535, 65537, 262144, 262145, 3 << 20):
        data = bytes(i * 37 & 255 for i in range(256)) * (count // 256 + 1)
        p = allocate(count)
        upload(p, data[:count])
        assert download(p, count) == data[:count], count
        check("cuMemFree_v2", p)
    expect(1, "cuMemFree_v2", p)
    expect(1, "cuMemFree_v2", Address(0x1234))
    check("cuMemFree_v2", Address(0))
    expect(2, "cuMemAlloc_v2", c.byref(Address()), c.c_size_t(1 << 45))
    expect(1, "cuMemcpyHtoD_v2", Address(4096), b"x", c.c_size_t(1))
    q = allocate(16)
    expect(1, "cuMemsetD8_v2", q, 1, c.c_size_t(1 << 30))
    assert download(q, 4) is not None


def fills() -> None:
    start()
    p = allocate(256)
    check("cuMemsetD8_v2", p, 1, c.c_size_t(256))
    check("cuMemsetD16_v2", p, 0x203, c.c_size_t(4))
    check("cuMemsetD32_v2", Address(p.value + 8), 0x04050607, c.c_size_t(1))
    check("cuMemsetD2D8_v2", Address(p.value + 128), c.c_size_t(32), 9, c.c_size_t(3), c.c_size_t(2))
    expect(1, "cuMemsetD32_v2", Address(p.value + 1), 0, c.c_size_t(1))
    wanted = bytearray(b"\x01" * 256)
    wanted[:8] = b"\x03\x02" * 4
    wanted[8:12] = b"\x07\x06\x05\x04"
    wanted[128:131] = wanted[160:163] = b"\x09" * 3
    assert download(p, 256) == bytes(wanted)


def pitched_copies() -> None:
    start()
    for width, rows, pitch in ((3, 4, 7), (300, 400, 512)):
        p = allocate(pitch * rows)
        check("cuMemsetD8_v2", p, 0, c.c_size_t(pitch * rows))
        host = bytes(i * 11 & 255 for i in range(width * rows))
        source = c.create_string_buffer(host, len(host))
        down = Copy2D(
            srcMemoryType=1,
            srcHost=c.addressof(source),
            srcPitch=width,
            dstMemoryType=2,
            dstDevice=p.value,
            dstPitch=pitch,
            WidthInBytes=width,
            Height=rows,
        )
        check("cuMemcpy2D_v2", c.byref(down))
        wanted = b"".join(host[i * width : (i + 1) * width] + bytes(pitch - width) for i in range(rows))
        assert download(p, pitch * rows) == wanted
        back = c.create_string_buffer(b"\xee" * (pitch * rows), pitch * rows)
        up = Copy2D(
            srcMemoryType=2,
            srcDevice=p.value,
            srcPitch=pitch,
            dstMemoryType=1,
            dstHost=c.addressof(back),
            dstPitch=pitch,
            WidthInBytes=width,
            Height=rows,
        )
        check("cuMemcpy2D_v2", c.byref(up))
        gap = b"\xee" * (pitch - width)
        assert back.raw == b"".join(host[i * width : (i + 1) * width] + gap for i in range(rows))
    expect(1, "cuMemcpy2D_v2", None)


def page_locked() -> None:
    start()
    count = 1 << 20
    p, f = allocate(count), function()
    host = make(c.c_void_p, "cuMemHostAlloc", c.c_size_t(count), 0)
    c.memmove(host, floats(*range(1024)), 4096)
    check("cuMemcpyHtoDAsync_v2", p, host, c.c_size_t(4096), None)
    assert launch(f, p, c.c_uint32(1024), c.c_float(3), grid=8, block=128) == 0
    check("cuMemcpyDtoHAsync_v2", host, p, c.c_size_t(4096), None)
    check("cuCtxSynchronize")
    assert c.string_at(host, 4096) == floats(*(3 * i for i in range(1024)))
    assert launch(f, Address(host.value), c.c_uint32(4), c.c_float(2), block=4) == 0  # kernels reach it, too
    check("cuCtxSynchronize")
    assert c.string_at(host, 16) == floats(0, 6, 12, 18)
    device = make(Address, "cuMemHostGetDevicePointer_v2", host, 0)
    assert device.value == host.value
    assert make(c.c_uint, "cuPointerGetAttribute", 2, Address(host.value)).value == 1
    assert make(c.c_uint, "cuPointerGetAttribute", 2, p).value == 2
    expect(1, "cuPointerGetAttribute", c.byref(c.c_uint()), 2, Address(c.addressof(host)))
    check("cuMemFreeHost", host)
    expect(1, "cuMemFreeHost", host)
    for size in (1, 100, 4096, 5000, 9 << 20, 3, 1 << 20):  # freed pieces are used again
        first = make(c.c_void_p, "cuMemHostAlloc", c.c_size_t(size), 0)
        c.memset(first, 5, size)
        second = make(c.c_void_p, "cuMemAllocHost_v2", c.c_size_t(size))
        c.memset(second, 6, size)
        assert c.string_at(first, size) == b"\x05" * size
        check("cuMemFreeHost", first)
        check("cuMemFreeHost", second)


def streams_and_events() -> None:
    start()
    f, p = function(), allocate(16)
    upload(p, floats(1, 1, 1, 1))
    a, b = make(Handle, "cuStreamCreate", 1), make(Handle, "cuStreamCreateWithPriority", 1, 0)
    first, second = make(Handle, "cuEventCreate", 0), make(Handle, "cuEventCreate", 0)
    check("cuEventRecord", first, a)
    for _ in range(10):
        assert launch(f, p, c.c_uint32(4), c.c_float(2), block=4, stream=a) == 0
    check("cuEventRecord", second, a)
    check("cuStreamWaitEvent", b, second, 0)
    assert launch(f, p, c.c_uint32(4), c.c_float(0.5), block=4, stream=b) == 0
    check("cuStreamSynchronize", b)
    assert download(p, 16) == floats(512, 512, 512, 512)
    check("cuEventQuery", second)
    check("cuEventSynchronize", second)
    assert make(c.c_float, "cuEventElapsedTime", first, second).value >= 0
    plain = make(Handle, "cuEventCreate", 2)
    check("cuEventRecord", plain, a)
    expect(400, "cuEventElapsedTime", c.byref(c.c_float()), first, plain)
    for stream in (None, Handle(1), Handle(2)):
        check("cuStreamQuery", stream) if stream is None else check("cuStreamSynchronize", stream)
    for thing in (first, second, plain):
        check("cuEventDestroy_v2", thing)
    for stream in (a, b):
        check("cuStreamDestroy_v2", stream)


def per_thread_streams() -> None:
    context = start()
    f, p = function(), allocate(64)
    upload(p, floats(*[1] * 16))
    failures = []

    def work(i: int) -> None:
        try:
            check("cuCtxSetCurrent", context)
            at = Address(p.value + 4 * i)
            for _ in range(50):
                code = cuda.cuLaunchKernel_ptsz(
                    f, 1, 1, 1, 1, 1, 1, 0, None, pointers(at, c.c_uint32(1), c.c_float(1.0625)), None
                )
                assert code == 0, code
            check("cuStreamSynchronize_ptsz", None)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures
    value = 1.0
    for _ in range(50):
        value = struct.unpack("f", struct.pack("f", value * 1.0625))[0]
    assert download(p, 32) == floats(*[value] * 8)


def one_threads_wait_does_not_stop_another() -> None:
    context = start()
    gate, seen = threading.Event(), []
    stream = make(Handle, "cuStreamCreate", 1)
    callback = c.CFUNCTYPE(None, c.c_void_p)(lambda user: (seen.append(user), gate.wait(60), None)[2])
    check("cuLaunchHostFunc", stream, callback, c.c_void_p(77))

    def wait() -> None:
        check("cuCtxSetCurrent", context)
        check("cuStreamSynchronize", stream)
        seen.append(-1)

    thread = threading.Thread(target=wait)
    thread.start()
    p = allocate(16)  # answered while the other thread waits for the host function
    upload(p, bytes(16))
    expect(600, "cuStreamQuery", stream)
    assert -1 not in seen
    gate.set()
    thread.join()
    assert seen == [77, -1]


def contexts() -> None:
    check("cuInit", 0)
    expect(201, "cuMemAlloc_v2", c.byref(Address()), c.c_size_t(16))
    first = make(Handle, "cuCtxCreate_v2", 0, 0)
    second = make(Handle, "cuCtxCreate_v2", 0, 0)
    assert make(Handle, "cuCtxGetCurrent").value == second.value
    stream = make(Handle, "cuStreamCreate", 0)
    popped = make(Handle, "cuCtxPopCurrent_v2")
    assert popped.value == second.value
    assert make(Handle, "cuCtxGetCurrent").value == first.value
    check("cuCtxDestroy_v2", second)
    expect(400, "cuStreamSynchronize", stream)  # it went with its context
    check("cuCtxSynchronize")
    check("cuCtxDestroy_v2", first)
    expect(201, "cuCtxSynchronize")
    assert make(Handle, "cuCtxGetCurrent").value is None
    primary = make(Handle, "cuDevicePrimaryCtxRetain", 0)
    again = make(Handle, "cuDevicePrimaryCtxRetain", 0)
    assert primary.value == again.value
    check("cuCtxSetCurrent", primary)
    p = allocate(16)
    upload(p, bytes(16))
    check("cuDevicePrimaryCtxRelease_v2", 0)
    check("cuCtxSynchronize")
    check("cuDevicePrimaryCtxRelease_v2", 0)
    expect(201, "cuDevicePrimaryCtxRelease_v2", 0)


def devices() -> None:
    count = c.c_int()
    expect(3, "cuDeviceGetCount", c.byref(count))
    check("cuInit", 0)
    check("cuDeviceGetCount", c.byref(count))
    assert count.value == int(os.environ.get("EXPECT_DEVICES", "1"))
    expect(101, "cuDeviceGet", c.byref(c.c_int()), count.value)
    assert make(c.c_int, "cuDeviceGetAttribute", 75, 0).value == 12
    assert make(c.c_int, "cuDeviceGetAttribute", 83, 0).value == 0  # managed memory is not claimed
    assert make(c.c_int, "cuDriverGetVersion").value == 13050
    total = make(c.c_size_t, "cuDeviceTotalMem_v2", 0)
    assert total.value > 0
    name = c.create_string_buffer(100)
    check("cuDeviceGetName", name, 100, 0)
    assert name.value


def entry_points() -> None:
    check("cuInit", 0)
    get, status = cuda.cuGetProcAddress_v2, c.c_int()

    def find(symbol: bytes, version: int, flags: int = 0) -> int:
        out = c.c_void_p()
        assert get(symbol, c.byref(out), version, c.c_uint64(flags), c.byref(status)) == 0
        return out.value or 0

    def address(symbol: str) -> int:
        return c.cast(getattr(cuda, symbol), c.c_void_p).value or 0

    assert find(b"cuMemAlloc", 13000) == address("cuMemAlloc_v2")
    assert find(b"cuMemAlloc", 3000) == address("cuMemAlloc")
    assert find(b"cuCtxCreate", 12040) == address("cuCtxCreate_v3")
    assert find(b"cuCtxCreate", 13000) == address("cuCtxCreate_v4")
    assert find(b"cuLaunchKernel", 12000, 2) == address("cuLaunchKernel_ptsz")
    assert find(b"cuMemcpyHtoD", 12000, 2) == address("cuMemcpyHtoD_v2_ptds")
    assert find(b"cuInit", 12000, 2) == address("cuInit")
    assert (find(b"cuNoSuchCall", 13000), status.value) == (0, 1)
    assert (find(b"cuLaunchKernelEx", 11000), status.value) == (0, 2)
    assert cuda.cuGetExportTable(c.byref(c.c_void_p()), c.create_string_buffer(16)) == 500


def modules() -> None:
    start()
    module = make(Handle, "cuModuleLoadData", PTX)
    f = make(Handle, "cuModuleGetFunction", module, b"scale")
    assert make(Handle, "cuModuleGetFunction", module, b"scale").value == f.value
    expect(500, "cuModuleGetFunction", c.byref(Handle()), module, b"absent")
    address, size = Address(), c.c_size_t()
    check("cuModuleGetGlobal_v2", c.byref(address), c.byref(size), module, b"counter")
    assert size.value == 16
    assert download(address, 16) == struct.pack("4I", 1, 2, 3, 4)
    upload(address, struct.pack("4I", 5, 6, 7, 8))
    assert download(address, 16) == struct.pack("4I", 5, 6, 7, 8)
    expect(500, "cuModuleGetGlobal_v2", c.byref(address), c.byref(size), module, b"absent")
    offset, width = c.c_size_t(), c.c_size_t()
    check("cuFuncGetParamInfo", f, c.c_size_t(2), c.byref(offset), c.byref(width))
    assert (offset.value, width.value) == (12, 4)
    expect(1, "cuFuncGetParamInfo", f, c.c_size_t(3), c.byref(offset), c.byref(width))
    check("cuFuncSetAttribute", f, 8, 60000)
    assert make(c.c_int, "cuFuncGetAttribute", 8, f).value == 60000
    expect(1, "cuFuncSetAttribute", f, 8, 1 << 29)
    assert make(c.c_int, "cuOccupancyMaxActiveBlocksPerMultiprocessor", f, 128, c.c_size_t(0)).value > 0
    check("cuModuleUnload", module)
    assert launch(f, Address(0), c.c_uint32(0), c.c_float(0)) == 400
    code = call("cuModuleLoadData", c.byref(Handle()), b".version 8.0\n.target sm_80\nnonsense\n")
    assert code == 218, code
    library = make(Handle, "cuLibraryLoadData", PTX, None, None, 0, None, None, 0)
    kernel = make(Handle, "cuLibraryGetKernel", library, b"scale")
    p = allocate(16)
    upload(p, floats(1, 2, 3, 4))
    assert launch(kernel, p, c.c_uint32(4), c.c_float(2), block=4) == 0
    g = make(Handle, "cuKernelGetFunction", kernel)
    assert launch(g, p, c.c_uint32(4), c.c_float(2), block=4) == 0
    assert download(p, 16) == floats(4, 8, 12, 16)
    check("cuLibraryUnload", library)


def large_module() -> None:
    start()
    f = function("scale", PTX + b"// " + b"x" * 300_000 + b"\n")
    p = allocate(4)
    upload(p, floats(2))
    assert launch(f, p, c.c_uint32(1), c.c_float(2)) == 0
    assert download(p, 4) == floats(4)


def pools() -> None:
    start()
    f, stream = function(), make(Handle, "cuStreamCreate", 1)
    pool = make(Handle, "cuDeviceGetDefaultMemPool", 0)
    threshold = c.c_uint64(1 << 40)
    check("cuMemPoolSetAttribute", pool, 4, c.byref(threshold))
    out = c.c_uint64()
    check("cuMemPoolGetAttribute", pool, 4, c.byref(out))
    assert out.value == 1 << 40
    for _ in range(20):
        p = make(Address, "cuMemAllocAsync", c.c_size_t(64 << 20), stream)
        check("cuMemsetD8Async", p, 1, c.c_size_t(16), stream)
        check("cuMemFreeAsync", p, stream)
    p = make(Address, "cuMemAllocFromPoolAsync", c.c_size_t(16), pool, stream)
    check("cuMemsetD32Async", p, 0x3F800000, c.c_size_t(4), stream)
    assert launch(f, p, c.c_uint32(4), c.c_float(2), block=4, stream=stream) == 0
    check("cuStreamSynchronize", stream)
    assert download(p, 16) == floats(2, 2, 2, 2)


def not_interposed() -> None:
    start()
    expect(801, "cuMemAllocManaged", c.byref(Address()), c.c_size_t(16), 1)
    expect(801, "cuMemAllocManaged", c.byref(Address()), c.c_size_t(16), 1)
    expect(801, "cuCoredumpGetAttribute", 1, None, None)


def forked_child() -> None:
    start()
    child = os.fork()
    if child == 0:
        codes = {
            call("cuInit", 0),
            call("cuCtxSynchronize"),
            call("cuMemAlloc_v2", c.byref(Address()), c.c_size_t(16)),
        }
        os._exit(0 if codes == {3} else 1)
    assert os.waitpid(child, 0)[1] == 0
    check("cuCtxSynchronize")
    p = allocate(16)
    upload(p, bytes(16))


def child_before_init() -> None:
    child = os.fork()
    if child == 0:
        start()
        p = allocate(4)
        upload(p, b"abcd")
        os._exit(0 if download(p, 4) == b"abcd" else 1)
    start()
    p = allocate(4)
    upload(p, b"wxyz")
    assert os.waitpid(child, 0)[1] == 0
    assert download(p, 4) == b"wxyz"


run_named(globals())
