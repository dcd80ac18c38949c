/* Device and page-locked memory: allocation, information, pointer attributes. */
#include "device.h"

#include <string.h>

enum sgf_place sgf_place_of(uint64_t address, uint64_t bytes)
{
    struct sgf_extent extent;
    struct sgf_device *device = sgf_device_of(address);
    if (address + bytes < address)
        return SGF_NOWHERE;
    if (device != NULL) {
        if (sgf_zone_find(device->heap, address, &extent))
            return bytes <= extent.base + extent.bytes - address ? SGF_ON_DEVICE : SGF_NOWHERE;
        return sgf_arena_live(device, address, bytes) ? SGF_ON_DEVICE : SGF_NOWHERE;
    }
    if (address >= sgf.pinned_lo && address < sgf.pinned_hi)
        return sgf_zone_find(sgf.pinned, address, &extent) && bytes <= extent.base + extent.bytes - address ? SGF_PINNED
                                                                                                        : SGF_NOWHERE;
    return sgf_host_registered(address, bytes) ? SGF_PINNED : SGF_NOWHERE;
}

CUresult cuMemAlloc_v2(CUdeviceptr *dptr, size_t bytesize)
{
    SGF_ENTER_CONTEXT(context);
    CUresult result = sgf_capture_unsafe();
    if (result != CUDA_SUCCESS)
        return result;
    if (dptr == NULL || bytesize == 0)
        return CUDA_ERROR_INVALID_VALUE;
    uint64_t address;
    result = sgf_zone_alloc(context->device->heap, bytesize, context->id, 0, &address);
    if (result == CUDA_SUCCESS)
        *dptr = address;
    return result;
}

CUresult cuMemAllocPitch_v2(CUdeviceptr *dptr, size_t *pPitch, size_t WidthInBytes, size_t Height,
                            unsigned int ElementSizeBytes)
{
    SGF_ENTER_CONTEXT(context);
    if (dptr == NULL || pPitch == NULL || WidthInBytes == 0 || Height == 0 ||
        (ElementSizeBytes != 4 && ElementSizeBytes != 8 && ElementSizeBytes != 16) || WidthInBytes > 2147483647)
        return CUDA_ERROR_INVALID_VALUE;
    uint64_t pitch = (WidthInBytes + 511) & ~511ull, address;
    if (Height > UINT64_MAX / pitch)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = sgf_zone_alloc(context->device->heap, pitch * Height, context->id, 0, &address);
    if (result == CUDA_SUCCESS) {
        *dptr = address;
        *pPitch = pitch;
    }
    return result;
}

CUresult cuMemFree_v2(CUdeviceptr dptr)
{
    SGF_ENTER_CONTEXT(context);
    (void)context;
    struct sgf_extent extent;
    struct sgf_device *device = sgf_device_of(dptr);
    if (dptr == 0)
        return CUDA_SUCCESS;
    CUresult result = sgf_capture_unsafe();
    if (result != CUDA_SUCCESS)
        return result;
    if (device == NULL || !sgf_zone_find(device->heap, dptr, &extent) || extent.base != dptr)
        return CUDA_ERROR_INVALID_VALUE;
    sgf_device_drain(device); /* earlier work may use it; a free of asynchronous memory waits too */
    return sgf_zone_free(device->heap, dptr);
}

CUresult cuMemGetInfo_v2(size_t *free, size_t *total)
{
    SGF_ENTER_CONTEXT(context);
    uint64_t used, capacity;
    sgf_zone_info(context->device->heap, &used, &capacity);
    if (free != NULL)
        *free = capacity - used;
    if (total != NULL)
        *total = capacity;
    return CUDA_SUCCESS;
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr *pbase, size_t *psize, CUdeviceptr dptr)
{
    SGF_ENTER_CONTEXT(context);
    (void)context;
    struct sgf_extent extent;
    struct sgf_device *device = sgf_device_of(dptr);
    bool found = device != NULL ? sgf_zone_find(device->heap, dptr, &extent) : sgf_zone_find(sgf.pinned, dptr, &extent);
    if (!found)
        return CUDA_ERROR_NOT_FOUND;
    if (pbase != NULL)
        *pbase = extent.base;
    if (psize != NULL)
        *psize = extent.bytes;
    return CUDA_SUCCESS;
}

static CUresult host_alloc(const char *function, void **pp, size_t bytes, unsigned flags)
{
    struct CUctx_st *context;
    CUresult result = sgf_enter_context(function, &context);
    if (result != CUDA_SUCCESS)
        return result;
    if (pp == NULL || bytes == 0 ||
        (flags & ~(unsigned)(CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED)) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    uint64_t address;
    result = sgf_zone_alloc(sgf.pinned, bytes, context->id, flags | CU_MEMHOSTALLOC_DEVICEMAP, &address);
    if (result == CUDA_SUCCESS)
        *pp = (void *)(uintptr_t)address;
    return result;
}

CUresult cuMemHostAlloc(void **pp, size_t bytesize, unsigned int Flags)
{
    return host_alloc(__func__, pp, bytesize, Flags);
}

CUresult cuMemAllocHost_v2(void **pp, size_t bytesize)
{
    return host_alloc(__func__, pp, bytesize, 0);
}

CUresult cuMemFreeHost(void *p)
{
    SGF_ENTER_CONTEXT(context);
    struct sgf_extent extent;
    (void)context;
    if (p == NULL)
        return CUDA_SUCCESS;
    if (!sgf_zone_find(sgf.pinned, (uintptr_t)p, &extent) || extent.base != (uintptr_t)p)
        return CUDA_ERROR_INVALID_VALUE;
    for (int i = 0; i < sgf.device_count; i++)
        sgf_device_drain(&sgf.devices[i]);
    return sgf_zone_free(sgf.pinned, (uintptr_t)p);
}

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *pdptr, void *p, unsigned int Flags)
{
    SGF_ENTER_CONTEXT(context);
    (void)context;
    if (pdptr == NULL || Flags != 0 || sgf_place_of((uintptr_t)p, 1) != SGF_PINNED)
        return CUDA_ERROR_INVALID_VALUE;
    *pdptr = (uintptr_t)p;
    return CUDA_SUCCESS;
}

CUresult cuMemHostGetFlags(unsigned int *pFlags, void *p)
{
    SGF_ENTER_CONTEXT(context);
    (void)context;
    struct sgf_extent extent;
    if (pFlags == NULL || !sgf_zone_find(sgf.pinned, (uintptr_t)p, &extent))
        return CUDA_ERROR_INVALID_VALUE;
    *pFlags = extent.flags;
    return CUDA_SUCCESS;
}

/* ---- pointer attributes ------------------------------------------------------------------------------ */
struct pointer {
    enum sgf_place place;
    struct sgf_extent extent;
    struct sgf_device *device;
};

static void look(CUdeviceptr address, struct pointer *p)
{
    memset(p, 0, sizeof *p);
    p->device = sgf_device_of(address);
    p->place = sgf_place_of(address, 1);
    if (p->place == SGF_ON_DEVICE && !sgf_zone_find(p->device->heap, address, &p->extent))
        p->extent = (struct sgf_extent){ .base = address & ~(uint64_t)(SGF_UNIT - 1), .bytes = SGF_UNIT };
    if (p->place == SGF_PINNED && !sgf_zone_find(sgf.pinned, address, &p->extent))
        p->extent = (struct sgf_extent){ .base = address, .bytes = 1 };
    if (p->place == SGF_PINNED)
        p->device = &sgf.devices[0];
}

static CUcontext context_by_id(uint32_t id)
{
    for (uint32_t i = 0; i < sgf_slots(SGF_CONTEXT); i++) {
        struct CUctx_st *context = sgf_slot(SGF_CONTEXT, i);
        if (context != NULL && context->id == id)
            return context;
    }
    return NULL;
}

static CUresult attribute(void *data, CUpointer_attribute which, const struct pointer *p, CUdeviceptr address)
{
    bool on_device = p->place == SGF_ON_DEVICE;
    switch (which) {
    case CU_POINTER_ATTRIBUTE_CONTEXT: *(CUcontext *)data = context_by_id(p->extent.owner); break;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        *(unsigned *)data = on_device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
        break;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: *(CUdeviceptr *)data = address; break;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        if (on_device)
            return CUDA_ERROR_INVALID_VALUE;
        *(void **)data = (void *)(uintptr_t)address;
        break;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS: *(unsigned *)data = 0; break;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID: *(unsigned long long *)data = p->extent.id; break;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED: *(bool *)data = false; break;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: *(int *)data = (int)(p->device - sgf.devices); break;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE: *(bool *)data = false; break;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: *(CUdeviceptr *)data = p->extent.base; break;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE: *(size_t *)data = p->extent.bytes; break;
    case CU_POINTER_ATTRIBUTE_MAPPED: *(bool *)data = true; break;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES: *(unsigned long long *)data = 0; break;
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE: *(bool *)data = false; break;
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS: *(unsigned *)data = CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE; break;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE: *(CUmemoryPool *)data = p->extent.pool; break;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

CUresult cuPointerGetAttribute(void *data, CUpointer_attribute attribute_, CUdeviceptr ptr)
{
    SGF_ENTER_CONTEXT(context);
    (void)context;
    struct pointer p;
    if (data == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    look(ptr, &p);
    return p.place == SGF_NOWHERE ? CUDA_ERROR_INVALID_VALUE : attribute(data, attribute_, &p, ptr);
}

static size_t attribute_size(CUpointer_attribute which)
{
    switch (which) {
    case CU_POINTER_ATTRIBUTE_CONTEXT: case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: case CU_POINTER_ATTRIBUTE_HOST_POINTER:
    case CU_POINTER_ATTRIBUTE_BUFFER_ID: case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES: case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE: return 8;
    /* Documented as "a boolean": a byte fits into whatever a program takes that for, more might not. */
    case CU_POINTER_ATTRIBUTE_IS_MANAGED: case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    case CU_POINTER_ATTRIBUTE_MAPPED: case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE: return 1;
    default: return 4;
    }
}

/* Documented: an address that is no allocation of ours is not an error here, its attributes are zero. */
CUresult cuPointerGetAttributes(unsigned int numAttributes, CUpointer_attribute *attributes, void **data, CUdeviceptr ptr)
{
    SGF_ENTER_CONTEXT(context);
    (void)context;
    struct pointer p;
    if (numAttributes == 0 || attributes == NULL || data == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    look(ptr, &p);
    for (unsigned i = 0; i < numAttributes; i++) {
        if (data[i] == NULL || attributes[i] < CU_POINTER_ATTRIBUTE_CONTEXT ||
            attributes[i] > CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE)
            return CUDA_ERROR_INVALID_VALUE;
        memset(data[i], 0, attribute_size(attributes[i]));
        if (p.place == SGF_NOWHERE) {
            if (attributes[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)
                *(int *)data[i] = CU_DEVICE_INVALID;
        } else {
            attribute(data[i], attributes[i], &p, ptr);
        }
    }
    return CUDA_SUCCESS;
}

CUresult cuPointerSetAttribute(const void *value, CUpointer_attribute attribute_, CUdeviceptr ptr)
{
    SGF_ENTER_CONTEXT(context);
    (void)context;
    /* Copies are synchronous wherever CUDA lets them be, so there is nothing to switch on. */
    if (value == NULL || attribute_ != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS || sgf_place_of(ptr, 1) != SGF_ON_DEVICE)
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}
