/* Memory pools: names for the one arena, with counts of what was allocated under them.  Memory goes back to the arena when
 * it is freed, so a pool reserves nothing, and thresholds have no effect. */
#include <pthread.h>
#include "client.h"

#define POOLS 64
struct pool {
    int live;
    int reuse[3];
    uint64_t threshold;
    uint64_t used, high; /* guarded by `lock` */
};
static const struct pool fresh = {.live = 1, .reuse = {1, 1, 1}};
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct pool pools[POOLS] = {{.live = 1, .reuse = {1, 1, 1}}}; /* 0: the device's default pool */
static unsigned current;

static CUmemoryPool handle_of(unsigned index) { return (CUmemoryPool)(uintptr_t)SG_HANDLE(SG_KIND_POOL, 1, index + 1); }

static struct pool *find(CUmemoryPool handle)
{
    uint64_t index = SG_HANDLE_INDEX(SG_VALUE(handle)) - 1;
    if (SG_HANDLE_KIND(SG_VALUE(handle)) != SG_KIND_POOL || index >= POOLS || !pools[index].live)
        return NULL;
    return &pools[index];
}

unsigned sg_pool_current(void) { return current + 1; }
CUmemoryPool sg_pool_handle(unsigned pool) { return pool ? handle_of(pool - 1) : NULL; }

unsigned sg_pool_find(CUmemoryPool pool)
{
    const struct pool *found = find(pool);
    return found ? (unsigned)(found - pools) + 1 : 0;
}

void sg_pool_count(unsigned pool, int64_t bytes)
{
    if (!pool)
        return;
    struct pool *counted = &pools[pool - 1];
    pthread_mutex_lock(&lock);
    counted->used += (uint64_t)bytes;
    if (counted->used > counted->high)
        counted->high = counted->used;
    pthread_mutex_unlock(&lock);
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
        if (pools[i].live || pools[i].used) /* of a destroyed pool, memory may live on */
            continue;
        pools[i] = fresh;
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
    if (!found || !value)
        return CUDA_ERROR_INVALID_VALUE;
    switch (attr) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
        found->reuse[attr - CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES] = *(int *)value != 0;
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD: found->threshold = *(cuuint64_t *)value; return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH: /* what is used is what is reserved */
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
        if (*(cuuint64_t *)value)
            return CUDA_ERROR_INVALID_VALUE;
        pthread_mutex_lock(&lock);
        found->high = found->used;
        pthread_mutex_unlock(&lock);
        return CUDA_SUCCESS;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult sg_hand_cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void *value)
{
    struct pool *found = find(pool);
    if (!found || !value)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    uint64_t used = found->used, high = found->high;
    pthread_mutex_unlock(&lock);
    switch (attr) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
        *(int *)value = found->reuse[attr - CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES];
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD: *(cuuint64_t *)value = found->threshold; return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT: *(cuuint64_t *)value = used; return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH: *(cuuint64_t *)value = high; return CUDA_SUCCESS;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
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
