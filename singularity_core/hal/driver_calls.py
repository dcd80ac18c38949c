"""A library with the CUDA driver ABI, called through cffi without a compiler.

Only documented entry points, declared by hand from the public interface's description.  Handles are pointers
that we never follow, so all of them are declared as `void *`.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from cffi import FFI

from .errors import HalError, Unavailable, Unsupported, error_from_code

CDEF = """
int cuInit(unsigned flags);
int cuDriverGetVersion(int *version);
int cuDeviceGetCount(int *count);
int cuDeviceGet(int *device, int ordinal);
int cuDeviceGetName(char *name, int length, int device);
int cuDeviceGetUuid_v2(unsigned char *uuid, int device);
int cuDeviceTotalMem_v2(size_t *bytes, int device);
int cuDeviceGetAttribute(int *value, int attribute, int device);
int cuGetErrorName(int error, const char **text);
int cuGetErrorString(int error, const char **text);

int cuCtxCreate_v2(void **context, unsigned flags, int device);
int cuCtxDestroy_v2(void *context);
int cuCtxPushCurrent_v2(void *context);
int cuCtxPopCurrent_v2(void **context);
int cuCtxSynchronize(void);
int cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes);

int cuMemAlloc_v2(uint64_t *address, size_t bytes);
int cuMemFree_v2(uint64_t address);
int cuMemHostRegister_v2(void *host, size_t bytes, unsigned flags);
int cuMemHostUnregister(void *host);
int cuMemcpyHtoDAsync_v2(uint64_t dst, const void *src, size_t bytes, void *stream);
int cuMemcpyDtoHAsync_v2(void *dst, uint64_t src, size_t bytes, void *stream);
int cuMemcpyDtoDAsync_v2(uint64_t dst, uint64_t src, size_t bytes, void *stream);
int cuMemcpyPeerAsync(uint64_t dst, void *dst_context, uint64_t src, void *src_context, size_t bytes,
                      void *stream);
int cuMemsetD8Async(uint64_t dst, unsigned char value, size_t count, void *stream);
int cuMemsetD16Async(uint64_t dst, unsigned short value, size_t count, void *stream);
int cuMemsetD32Async(uint64_t dst, unsigned value, size_t count, void *stream);

int cuStreamCreateWithPriority(void **stream, unsigned flags, int priority);
int cuStreamDestroy_v2(void *stream);
int cuStreamSynchronize(void *stream);
int cuStreamQuery(void *stream);
int cuStreamWaitEvent(void *stream, void *event, unsigned flags);
int cuEventCreate(void **event, unsigned flags);
int cuEventDestroy_v2(void *event);
int cuEventRecord(void *event, void *stream);
int cuEventQuery(void *event);
int cuEventSynchronize(void *event);
int cuEventElapsedTime(float *milliseconds, void *start, void *end);

int cuModuleLoadData(void **module, const void *image);
int cuModuleUnload(void *module);
int cuModuleGetFunction(void **function, void *module, const char *name);
int cuLaunchKernel(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                   unsigned block_y, unsigned block_z, unsigned shared_bytes, void *stream, void **parameters,
                   void **extra);

typedef struct { int type, id; } sg_location;
typedef struct {
    int type, requested_handle_types;
    sg_location location;
    void *win32;
    unsigned char compression, rdma;
    unsigned short usage;
    unsigned char reserved[4];
} sg_allocation;
typedef struct { sg_location location; int access; } sg_access;
int cuMemAddressReserve(uint64_t *address, size_t bytes, size_t alignment, uint64_t hint,
                        unsigned long long flags);
int cuMemAddressFree(uint64_t address, size_t bytes);
int cuMemCreate(unsigned long long *handle, size_t bytes, const sg_allocation *what,
                unsigned long long flags);
int cuMemRelease(unsigned long long handle);
int cuMemMap(uint64_t address, size_t bytes, size_t offset, unsigned long long handle,
             unsigned long long flags);
int cuMemUnmap(uint64_t address, size_t bytes);
int cuMemSetAccess(uint64_t address, size_t bytes, const sg_access *access, size_t count);
int cuMemGetAllocationGranularity(size_t *granularity, const sg_allocation *what, int option);

struct sg_hal_table {
    uint32_t struct_size, abi;
    void *state;
    int32_t (*arena_open)(void *state, uint64_t address, uint64_t bytes, uint64_t *actual);
    int32_t (*arena_close)(void *state);
    int32_t (*arena_limit)(void *state, uint64_t *bytes);
    int32_t (*range_live)(void *state, uint64_t address, uint64_t bytes);
    int32_t (*range_dead)(void *state, uint64_t address, uint64_t bytes);
    int32_t (*host_register)(void *state, void *host, uint64_t bytes);
    int32_t (*host_unregister)(void *state, void *host);
    int32_t (*digest)(void *state, uint64_t address, uint64_t bytes, uint8_t out[16]);
    int32_t (*quiesce)(void *state);
    int32_t (*copy_to_host)(void *state, void *host, uint64_t device, uint64_t bytes);
    int32_t (*copy_to_device)(void *state, uint64_t device, const void *host, uint64_t bytes);
    int32_t (*gate_make)(void *state, uint64_t *gate);
    int32_t (*gate_wait)(void *state, uint64_t gate, void *stream);
    int32_t (*gate_open)(void *state, uint64_t gate);
    int32_t (*gate_drop)(void *state, uint64_t gate);
    int32_t (*settle)(void *state, uint64_t timeout_ns);
    int32_t (*discard)(void *state);
    int32_t (*arena_file)(void *state, int32_t *file);
    int32_t (*arena_exchange)(void *state, int32_t file, int32_t *before);
};
int32_t sg_hal_open_table(int32_t ordinal, const struct sg_hal_table **table);
"""

NOT_READY = 600

# What to do, where the code alone does not tell: the first calls fail for reasons of the machine.
_REMEDIES = {
    3: "Report this: a call came before cuInit.",
    100: "Check that the machine has a device and that this process may see it (CUDA_VISIBLE_DEVICES).",
    803: "The kernel module and the driver library differ in version: reboot, or update both.",
    804: "The driver is older than its compatibility library: take that out of LD_LIBRARY_PATH.",
    999: "Check the driver's state on this machine (nvidia-smi, dmesg).",
}


@functools.cache
def declarations() -> FFI:
    """The declarations above, parsed once per process, when first needed: parsing takes some 50 ms."""
    ffi = FFI()
    ffi.cdef(CDEF)
    return ffi


class DriverLibrary:
    """One loaded library.  Loading it twice gives the same state: the dynamic loader knows it by its file."""

    def __init__(self, path: Path) -> None:
        """Loads it; does not initialise it.  `Unavailable` when the loader refuses."""
        self.path = path
        self.ffi: Any = declarations()
        try:
            self._library: Any = self.ffi.dlopen(str(path))
        except OSError as error:
            raise Unavailable(
                f"The driver library {path} does not load: {error}.",
                remedy="Reinstall the package or driver that it belongs to.",
            ) from error

    def has(self, name: str) -> bool:
        """Whether the library exports `name`."""
        return hasattr(self._library, name)

    def ask(self, name: str, *arguments: object) -> int:
        """Calls `name` and answers its code.  `Unsupported` when the library does not export it."""
        function = getattr(self._library, name, None)
        if function is None:
            raise Unsupported(
                f"The driver library {self.path} has no {name}.",
                remedy="Install a driver that has this call.",
            )
        return int(function(*arguments))

    def call(self, name: str, *arguments: object) -> None:
        """Calls `name`; raises what its code means."""
        code = self.ask(name, *arguments)
        if code:
            raise self.error(code, name)

    def error(self, code: int, name: str) -> HalError:
        """The exception for `code`, with the driver's own words for it."""
        text = self.ffi.new("const char **")
        words = []
        for describe in ("cuGetErrorName", "cuGetErrorString"):
            if self.has(describe) and not self.ask(describe, code, text) and text[0] != self.ffi.NULL:
                words.append(self.ffi.string(text[0]).decode(errors="replace"))
        return error_from_code(code, name, ": ".join(words), remedy=_REMEDIES.get(code))
