/* Device memory: allocated by the proxy's arena, remembered here. */
#include "../wire.h"
#include "client.h"

#define PITCH 512u

static CUresult allocate(const char *call, CUdeviceptr *out, uint64_t bytes, uint64_t stream, unsigned pool)
{
    if (!out || !bytes)
        return CUDA_ERROR_INVALID_VALUE;
    struct sg_wire_memory_alloc *wire = sg_begin(SG_OP_memory_alloc, sizeof *wire);
    if (!wire)
        return sg_lost(call);
    *wire = (struct sg_wire_memory_alloc){.bytes = bytes, .stream = stream, .async = pool != 0};
    uint64_t address;
    CUresult error = sg_call(call, &address, sizeof address);
    if (error)
        return error;
    struct sg_range range = {.base = address, .bytes = bytes, .id = sg_range_next_id(), .owner = sg_self.current,
                             .kind = SG_RANGE_DEVICE, .flags = pool};
    if (sg_range_add(&range))
        return CUDA_ERROR_OUT_OF_MEMORY;
    sg_pool_count(pool, (int64_t)bytes);
    *out = address;
    return CUDA_SUCCESS;
}

CUresult sg_hand_cuMemAlloc_v2(CUdeviceptr *dptr, size_t bytesize)
{
    CUresult error = sg_enter();
    return error ? error : allocate("cuMemAlloc", dptr, bytesize, 0, 0);
}

CUresult sg_hand_cuMemAllocPitch_v2(CUdeviceptr *dptr, size_t *pPitch, size_t WidthInBytes, size_t Height, unsigned int ElementSizeBytes)
{
    CUresult error = sg_enter();
    if (error)
        return error;
    if (!pPitch || !WidthInBytes || !Height || WidthInBytes > SG_DEVICE_WINDOW || Height > SG_DEVICE_WINDOW / (WidthInBytes + PITCH) ||
        (ElementSizeBytes != 4 && ElementSizeBytes != 8 && ElementSizeBytes != 16))
        return CUDA_ERROR_INVALID_VALUE;
    size_t pitch = (WidthInBytes + PITCH - 1) / PITCH * PITCH;
    error = allocate("cuMemAllocPitch", dptr, pitch * Height, 0, 0);
    if (!error)
        *pPitch = pitch;
    return error;
}

static CUresult allocate_from(const char *call, CUdeviceptr *dptr, size_t bytesize, unsigned pool, CUstream hStream)
{
    uint64_t stream;
    CUresult error = sg_enter();
    if (error || (error = sg_stream_wire(hStream, &stream)))
        return error;
    if (atomic_load_explicit(&sg_client.captures, memory_order_relaxed))
        return sg_refuse(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, call, "allocation in a captured graph is not supported",
                         "allocate before the capture begins");
    return pool ? allocate(call, dptr, bytesize, stream, pool) : CUDA_ERROR_INVALID_VALUE;
}

CUresult sg_hand_cuMemAllocAsync(CUdeviceptr *dptr, size_t bytesize, CUstream hStream)
{
    return allocate_from("cuMemAllocAsync", dptr, bytesize, sg_pool_current(), hStream);
}

CUresult sg_hand_cuMemAllocFromPoolAsync(CUdeviceptr *dptr, size_t bytesize, CUmemoryPool pool, CUstream hStream)
{
    return allocate_from("cuMemAllocFromPoolAsync", dptr, bytesize, sg_pool_find(pool), hStream);
}

CUresult sg_memory_release(const char *call, const struct sg_range *range)
{
    sg_pool_count(range->flags, -(int64_t)range->bytes);
    struct sg_wire_memory_free *wire = sg_begin(SG_OP_memory_free, sizeof *wire);
    if (!wire)
        return sg_lost(call);
    *wire = (struct sg_wire_memory_free){.address = range->base};
    return sg_call(call, NULL, 0);
}

CUresult sg_hand_cuMemFree_v2(CUdeviceptr dptr)
{
    CUresult error = sg_enter();
    if (error || !dptr)
        return error;
    struct sg_range range;
    if (!sg_range_take(dptr, SG_RANGE_DEVICE, &range))
        return CUDA_ERROR_INVALID_VALUE;
    return sg_memory_release("cuMemFree", &range);
}

CUresult sg_hand_cuMemFreeAsync(CUdeviceptr dptr, CUstream hStream)
{
    uint64_t stream;
    CUresult error = sg_enter();
    if (error || (error = sg_stream_wire(hStream, &stream)))
        return error;
    struct sg_range range;
    if (!sg_range_take(dptr, SG_RANGE_DEVICE, &range))
        return CUDA_ERROR_INVALID_VALUE;
    sg_pool_count(range.flags, -(int64_t)range.bytes);
    struct sg_wire_memory_free *wire = sg_begin(SG_OP_memory_free_async, sizeof *wire);
    if (!wire)
        return sg_lost("cuMemFreeAsync");
    *wire = (struct sg_wire_memory_free){.address = dptr, .stream = stream};
    sg_post();
    return CUDA_SUCCESS;
}

CUresult sg_hand_cuMemGetInfo_v2(size_t *free, size_t *total)
{
    CUresult error = sg_enter();
    if (error)
        return error;
    if (!sg_begin(SG_OP_cuMemGetInfo_v2, 0))
        return sg_lost("cuMemGetInfo");
    struct sg_reply_memory_info reply;
    error = sg_call("cuMemGetInfo", &reply, sizeof reply);
    if (error)
        return error;
    if (free)
        *free = reply.free_bytes;
    if (total)
        *total = reply.total_bytes;
    return CUDA_SUCCESS;
}

CUresult sg_hand_cuMemGetAddressRange_v2(CUdeviceptr *pbase, size_t *psize, CUdeviceptr dptr)
{
    struct sg_range range;
    CUresult error = sg_enter();
    if (error)
        return error;
    if (!sg_range_find(dptr, &range))
        return CUDA_ERROR_NOT_FOUND;
    if (pbase)
        *pbase = range.base;
    if (psize)
        *psize = range.bytes;
    return CUDA_SUCCESS;
}

/* ---- attributes of pointers ------------------------------------------------------------------------ */
static CUresult pointer_attribute(void *data, CUpointer_attribute attribute, CUdeviceptr ptr, const struct sg_range *range)
{
    int pinned = range->kind == SG_RANGE_PINNED;
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT: *(CUcontext *)data = (CUcontext)(uintptr_t)range->owner; return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE: *(unsigned *)data = pinned ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE; return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: *(CUdeviceptr *)data = ptr; return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        *(void **)data = pinned ? (void *)(uintptr_t)ptr : NULL;
        return pinned ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS: *(unsigned *)data = 0; return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID: *(unsigned long long *)data = range->id; return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED: *(unsigned char *)data = 0; return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: *(int *)data = sg_client.ordinal; return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE: *(unsigned char *)data = 0; return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: *(CUdeviceptr *)data = range->base; return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE: *(size_t *)data = range->bytes; return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MAPPED: *(unsigned char *)data = 1; return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES: *(unsigned long long *)data = 0; return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE: *(unsigned char *)data = 0; return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS: *(unsigned *)data = CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE; return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE: *(CUmemoryPool *)data = pinned ? NULL : sg_pool_handle(range->flags); return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE: *(size_t *)data = range->bytes; return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR: *(CUdeviceptr *)data = range->base; return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID: *(unsigned long long *)data = range->id; return CUDA_SUCCESS;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult sg_hand_cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr ptr)
{
    struct sg_range range;
    CUresult error = sg_enter_bare();
    if (error)
        return error;
    if (!data || !sg_range_find(ptr, &range))
        return CUDA_ERROR_INVALID_VALUE;
    return pointer_attribute(data, attribute, ptr, &range);
}

/* Unlike the single query, an unknown pointer is no error: its attributes are zero. */
CUresult sg_hand_cuPointerGetAttributes(unsigned int numAttributes, CUpointer_attribute *attributes, void **data, CUdeviceptr ptr)
{
    struct sg_range range = {0};
    CUresult error = sg_enter_bare();
    if (error)
        return error;
    if (!attributes || !data)
        return CUDA_ERROR_INVALID_VALUE;
    int found = sg_range_find(ptr, &range);
    for (unsigned i = 0; i < numAttributes; i++) {
        if (!data[i])
            return CUDA_ERROR_INVALID_VALUE;
        if (found) {
            error = pointer_attribute(data[i], attributes[i], ptr, &range);
            if (error && attributes[i] != CU_POINTER_ATTRIBUTE_HOST_POINTER)
                return error;
            continue;
        }
        uint64_t zero = 0;
        int number = attributes[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL ? -2 : 0;
        switch (attributes[i]) {
        case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
        case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
        case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: memcpy(data[i], &number, sizeof number); break;
        case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        case CU_POINTER_ATTRIBUTE_MAPPED:
        case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
        case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE: memcpy(data[i], &zero, 1); break;
        default: memcpy(data[i], &zero, sizeof zero); break;
        }
    }
    return CUDA_SUCCESS;
}

CUresult sg_hand_cuPointerSetAttribute(const void *value, CUpointer_attribute attribute, CUdeviceptr ptr)
{
    struct sg_range range;
    CUresult error = sg_enter_bare();
    if (error)
        return error;
    if (!value || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS || !sg_range_find(ptr, &range))
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS; /* copies that the attribute would make synchronous are ordered like all others */
}
