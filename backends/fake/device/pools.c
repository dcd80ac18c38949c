/* Memory pools.  Allocation happens at once (which every order allows), a free when the stream reaches it; memory goes
 * back to the device then, so a pool keeps counts but reserves nothing. */
#include "device.h"

#include <string.h>

struct CUmemPoolHandle_st {
    struct sgf_object object;
    struct sgf_device *device;
    bool is_default;
    _Atomic uint64_t used, used_high;
    uint64_t threshold;
    int reuse[3];
};

static CUresult pool_new(struct sgf_device *device, bool is_default, CUmemoryPool *out)
{
    struct CUmemPoolHandle_st *pool = sgf_new(SGF_POOL);
    if (pool == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    pool->device = device;
    pool->is_default = is_default;
    pool->reuse[0] = pool->reuse[1] = pool->reuse[2] = 1;
    *out = pool;
    return CUDA_SUCCESS;
}

static CUresult pool_of(CUdevice ordinal, bool current, CUmemoryPool *out)
{
    struct sgf_device *device;
    CUresult result = sgf_device_at(ordinal, &device);
    if (result != CUDA_SUCCESS)
        return result;
    if (out == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&device->lock);
    if (device->default_pool == NULL && (result = pool_new(device, true, &device->default_pool)) == CUDA_SUCCESS &&
        device->current_pool == NULL)
        device->current_pool = device->default_pool;
    if (result == CUDA_SUCCESS)
        *out = current ? device->current_pool : device->default_pool;
    pthread_mutex_unlock(&device->lock);
    return result;
}

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool_out, CUdevice dev)
{
    SGF_ENTER();
    return pool_of(dev, false, pool_out);
}

CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice dev)
{
    SGF_ENTER();
    return pool_of(dev, true, pool);
}

CUresult cuDeviceSetMemPool(CUdevice dev, CUmemoryPool pool)
{
    SGF_ENTER();
    CUmemoryPool before;
    CUresult result = pool_of(dev, true, &before);
    if (result != CUDA_SUCCESS)
        return result;
    if (!sgf_valid(SGF_POOL, pool) || pool->device != &sgf.devices[dev])
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&pool->device->lock);
    pool->device->current_pool = pool;
    pthread_mutex_unlock(&pool->device->lock);
    return CUDA_SUCCESS;
}

CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *poolProps)
{
    SGF_ENTER();
    if (pool == NULL || poolProps == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (poolProps->allocType != CU_MEM_ALLOCATION_TYPE_PINNED || poolProps->location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
        poolProps->handleTypes != CU_MEM_HANDLE_TYPE_NONE)
        return sgf_unsupported("cuMemPoolCreate for host, managed or exported memory");
    if (poolProps->location.id < 0 || poolProps->location.id >= sgf.device_count)
        return CUDA_ERROR_INVALID_DEVICE;
    return pool_new(&sgf.devices[poolProps->location.id], false, pool);
}

CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
    SGF_ENTER();
    if (!sgf_valid(SGF_POOL, pool) || pool->is_default)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&pool->device->lock);
    if (pool->device->current_pool == pool)
        pool->device->current_pool = pool->device->default_pool;
    pthread_mutex_unlock(&pool->device->lock);
    sgf_delete(pool);
    return CUDA_SUCCESS;
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t minBytesToKeep)
{
    SGF_ENTER();
    (void)minBytesToKeep;
    return sgf_valid(SGF_POOL, pool) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void *value)
{
    SGF_ENTER();
    if (!sgf_valid(SGF_POOL, pool) || value == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    switch (attr) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
        pool->reuse[attr - CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES] = *(int *)value != 0;
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
        pool->threshold = *(cuuint64_t *)value;
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH: /* what is used is what is reserved */
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
        if (*(cuuint64_t *)value != 0)
            return CUDA_ERROR_INVALID_VALUE;
        atomic_store(&pool->used_high, atomic_load(&pool->used));
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void *value)
{
    SGF_ENTER();
    if (!sgf_valid(SGF_POOL, pool) || value == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    switch (attr) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
        *(int *)value = pool->reuse[attr - CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES];
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD: *(cuuint64_t *)value = pool->threshold; return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT: *(cuuint64_t *)value = atomic_load(&pool->used); return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH: *(cuuint64_t *)value = atomic_load(&pool->used_high); return CUDA_SUCCESS;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *map, size_t count)
{
    SGF_ENTER();
    if (!sgf_valid(SGF_POOL, pool) || (map == NULL && count != 0))
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS; /* peers reach all device memory once their contexts enable it */
}

CUresult cuMemPoolGetAccess(CUmemAccess_flags *flags, CUmemoryPool memPool, CUmemLocation *location)
{
    SGF_ENTER();
    if (flags == NULL || location == NULL || !sgf_valid(SGF_POOL, memPool))
        return CUDA_ERROR_INVALID_VALUE;
    bool own = location->type == CU_MEM_LOCATION_TYPE_DEVICE && location->id == (int)(memPool->device - sgf.devices);
    *flags = own ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE;
    return CUDA_SUCCESS;
}

static void count(struct CUmemPoolHandle_st *pool, uint64_t bytes)
{
    uint64_t now = atomic_fetch_add(&pool->used, bytes) + bytes, high = atomic_load(&pool->used_high);
    while (now > high && !atomic_compare_exchange_weak(&pool->used_high, &high, now)) {
    }
}

void sgf_pool_returned(struct CUmemPoolHandle_st *pool, uint64_t bytes)
{
    if (pool != NULL && sgf_valid(SGF_POOL, pool))
        atomic_fetch_sub(&pool->used, bytes);
}

static CUresult allocate(struct CUstream_st *stream, struct CUmemPoolHandle_st *pool, size_t bytes, CUdeviceptr *out)
{
    uint64_t address;
    if (out == NULL || bytes == 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (atomic_load(&stream->capture) != NULL)
        return sgf_unsupported("cuMemAllocAsync during stream capture");
    CUresult result = sgf_zone_alloc(pool->device->heap, bytes, stream->context->id, 0, &address);
    if (result == CUDA_ERROR_OUT_OF_MEMORY) { /* frees may be under way */
        sgf_device_drain(pool->device);
        result = sgf_zone_alloc(pool->device->heap, bytes, stream->context->id, 0, &address);
    }
    if (result != CUDA_SUCCESS)
        return result;
    sgf_zone_set_pool(pool->device->heap, address, pool);
    count(pool, bytes);
    *out = address;
    return CUDA_SUCCESS;
}

CUresult cuMemAllocAsync(CUdeviceptr *dptr, size_t bytesize, CUstream hStream)
{
    SGF_ENTER_CONTEXT(context);
    struct CUstream_st *stream;
    CUmemoryPool pool;
    CUresult result = sgf_stream_resolve(context, hStream, &stream);
    if (result == CUDA_SUCCESS)
        result = pool_of((CUdevice)(stream->context->device - sgf.devices), true, &pool);
    return result != CUDA_SUCCESS ? result : allocate(stream, pool, bytesize, dptr);
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr *dptr, size_t bytesize, CUmemoryPool pool, CUstream hStream)
{
    SGF_ENTER_CONTEXT(context);
    struct CUstream_st *stream;
    CUresult result = sgf_stream_resolve(context, hStream, &stream);
    if (result == CUDA_SUCCESS && !sgf_valid(SGF_POOL, pool))
        result = CUDA_ERROR_INVALID_VALUE;
    return result != CUDA_SUCCESS ? result : allocate(stream, pool, bytesize, dptr);
}

CUresult cuMemFreeAsync(CUdeviceptr dptr, CUstream hStream)
{
    SGF_ENTER_CONTEXT(context);
    struct CUstream_st *stream;
    struct sgf_extent extent;
    CUresult result = sgf_stream_resolve(context, hStream, &stream);
    if (result != CUDA_SUCCESS)
        return result;
    struct sgf_device *device = sgf_device_of(dptr);
    if (device == NULL || !sgf_zone_find(device->heap, dptr, &extent) || extent.base != dptr)
        return CUDA_ERROR_INVALID_VALUE;
    if (atomic_load(&stream->capture) != NULL)
        return sgf_unsupported("cuMemFreeAsync during stream capture");
    struct sgf_work *work = sgf_work_new(SGF_WORK_FREE, stream->context, 0);
    if (work == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    work->u.release.address = dptr;
    work->u.release.zone = device->heap;
    sgf_pool_returned(extent.pool, extent.bytes); /* now, though the memory stays until the stream is there */
    sgf_zone_set_pool(device->heap, dptr, NULL);
    return sgf_stream_submit(stream, work, NULL);
}
