/* Memory pools: names for the one arena.  Attributes are kept, thresholds have no effect. */
#include <pthread.h>
#include "client.h"

#define POOLS 64
#define ATTRIBUTES 16
struct pool { int live; uint64_t attributes[ATTRIBUTES]; };
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct pool pools[POOLS] = {{.live = 1}}; /* 0: the device's default pool */
static unsigned current;

static CUmemoryPool handle_of(unsigned index) { return (CUmemoryPool)(uintptr_t)SG_HANDLE(SG_KIND_POOL, 1, index + 1); }

static struct pool *find(CUmemoryPool handle)
{
    uint64_t index = SG_HANDLE_INDEX(SG_VALUE(handle)) - 1;
    if (SG_HANDLE_KIND(SG_VALUE(handle)) != SG_KIND_POOL || index >= POOLS || !pools[index].live)
        return NULL;
    return &pools[index];
}

static CUresult ready(CUdevice dev)
{
    CUresult error = sg_enter_bare();
    return error ? error : sg_visible(dev) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult sg_hand_cuDeviceGetDefaultMemPool(CUmemoryPool *pool_out, CUdevice dev)
{
    CUresult error = ready(dev);
    if (error || !pool_out)
        return error ? error : CUDA_ERROR_INVALID_VALUE;
    *pool_out = handle_of(0);
    return CUDA_SUCCESS;
}

CUresult sg_hand_cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice dev)
{
    CUresult error = ready(dev);
    if (error || !pool)
        return error ? error : CUDA_ERROR_INVALID_VALUE;
    *pool = handle_of(current);
    return CUDA_SUCCESS;
}

CUresult sg_hand_cuDeviceSetMemPool(CUdevice dev, CUmemoryPool pool)
{
    CUresult error = ready(dev);
    if (error)
        return error;
    if (!find(pool))
        return CUDA_ERROR_INVALID_VALUE;
    current = SG_HANDLE_INDEX(SG_VALUE(pool)) - 1;
    return CUDA_SUCCESS;
}

static CUresult device_location(const CUmemLocation *location, CUdevice *dev)
{
    if (!location || location->type != CU_MEM_LOCATION_TYPE_DEVICE)
        return location ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE;
    *dev = location->id;
    return CUDA_SUCCESS;
}

CUresult sg_hand_cuMemGetDefaultMemPool(CUmemoryPool *pool_out, CUmemLocation *location, CUmemAllocationType type)
{
    CUdevice dev;
    (void)type;
    CUresult error = device_location(location, &dev);
    return error ? error : sg_hand_cuDeviceGetDefaultMemPool(pool_out, dev);
}

CUresult sg_hand_cuMemGetMemPool(CUmemoryPool *pool, CUmemLocation *location, CUmemAllocationType type)
{
    CUdevice dev;
    (void)type;
    CUresult error = device_location(location, &dev);
    return error ? error : sg_hand_cuDeviceGetMemPool(pool, dev);
}

CUresult sg_hand_cuMemSetMemPool(CUmemLocation *location, CUmemAllocationType type, CUmemoryPool pool)
{
    CUdevice dev;
    (void)type;
    CUresult error = device_location(location, &dev);
    return error ? error : sg_hand_cuDeviceSetMemPool(dev, pool);
}

CUresult sg_hand_cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *poolProps)
{
    CUresult error = sg_enter_bare();
    if (error)
        return error;
    if (!pool || !poolProps || poolProps->allocType != CU_MEM_ALLOCATION_TYPE_PINNED)
        return CUDA_ERROR_INVALID_VALUE;
    if (poolProps->location.type != CU_MEM_LOCATION_TYPE_DEVICE || poolProps->handleTypes != CU_MEM_HANDLE_TYPE_NONE)
        return sg_declined("cuMemPoolCreate", "only pools of device memory that is not shared are supported", "use CU_MEM_LOCATION_TYPE_DEVICE");
    pthread_mutex_lock(&lock);
    error = CUDA_ERROR_OUT_OF_MEMORY;
    for (unsigned i = 1; i < POOLS && error; i++) {
        if (pools[i].live)
            continue;
        pools[i] = (struct pool){.live = 1};
        *pool = handle_of(i);
        error = CUDA_SUCCESS;
    }
    pthread_mutex_unlock(&lock);
    return error;
}

CUresult sg_hand_cuMemPoolDestroy(CUmemoryPool pool)
{
    struct pool *found = find(pool);
    if (!found || found == &pools[0])
        return CUDA_ERROR_INVALID_VALUE;
    found->live = 0;
    if (found == &pools[current])
        current = 0;
    return CUDA_SUCCESS;
}

CUresult sg_hand_cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void *value)
{
    struct pool *found = find(pool);
    if (!found || !value || (unsigned)attr == 0 || (unsigned)attr >= ATTRIBUTES)
        return CUDA_ERROR_INVALID_VALUE;
    if ((unsigned)attr <= CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES) {
        int flag;
        memcpy(&flag, value, sizeof flag);
        found->attributes[attr] = (uint64_t)flag;
    } else {
        memcpy(&found->attributes[attr], value, sizeof found->attributes[attr]);
    }
    return CUDA_SUCCESS;
}

CUresult sg_hand_cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void *value)
{
    struct pool *found = find(pool);
    if (!found || !value || (unsigned)attr == 0 || (unsigned)attr >= ATTRIBUTES)
        return CUDA_ERROR_INVALID_VALUE;
    if ((unsigned)attr <= CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES) {
        int flag = (int)found->attributes[attr];
        memcpy(value, &flag, sizeof flag);
    } else {
        memcpy(value, &found->attributes[attr], sizeof found->attributes[attr]);
    }
    return CUDA_SUCCESS;
}

CUresult sg_hand_cuMemPoolTrimTo(CUmemoryPool pool, size_t minBytesToKeep)
{
    (void)minBytesToKeep;
    return find(pool) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult sg_hand_cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *map, size_t count)
{
    if (!find(pool) || (count && !map))
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++)
        if (map[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE || map[i].location.id != sg_client.ordinal)
            return CUDA_ERROR_INVALID_DEVICE;
    return CUDA_SUCCESS;
}

CUresult sg_hand_cuMemPoolGetAccess(CUmemAccess_flags *flags, CUmemoryPool memPool, CUmemLocation *location)
{
    if (!flags || !location || !find(memPool))
        return CUDA_ERROR_INVALID_VALUE;
    int own = location->type == CU_MEM_LOCATION_TYPE_DEVICE && location->id == sg_client.ordinal;
    *flags = own ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE;
    return CUDA_SUCCESS;
}

CUresult sg_hand_cuMemAllocFromPoolAsync(CUdeviceptr *dptr, size_t bytesize, CUmemoryPool pool, CUstream hStream)
{
    return find(pool) ? sg_hand_cuMemAllocAsync(dptr, bytesize, hStream) : CUDA_ERROR_INVALID_VALUE;
}
