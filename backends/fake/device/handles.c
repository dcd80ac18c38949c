/* Type-stable slabs: every object that has a CUDA handle.
 *
 * One reserved address range per kind, so that "is this a handle of ours?" needs no table: in range, on an
 * object boundary, alive.  Freed slots are reused first-in first-out, which keeps a stale handle stale for long. */
#include "device.h"

#include <string.h>
#include <sys/mman.h>

struct slab {
    _Atomic(uint8_t *) base;
    uint32_t stride, capacity, keep; /* bytes at the start that survive reuse */
    _Atomic uint32_t used;           /* slots handed out at least once */
    uint32_t first_free, last_free;  /* index + 1 */
    pthread_mutex_t lock;
};

#define SLAB(type, count, kept) { .stride = (sizeof(type) + 63u) & ~63u, .capacity = count, .keep = kept, \
                                  .lock = PTHREAD_MUTEX_INITIALIZER }

static struct slab slabs[SGF_KINDS] = {
    [SGF_CONTEXT] = SLAB(struct CUctx_st, 4096, sizeof(struct sgf_object)),
    [SGF_STREAM] = SLAB(struct CUstream_st, 1u << 17, offsetof(struct CUstream_st, sleeping)),
    [SGF_EVENT] = SLAB(struct CUevent_st, 1u << 21, offsetof(struct CUevent_st, context)),
    [SGF_MODULE] = SLAB(struct CUmod_st, 1u << 17, sizeof(struct sgf_object)),
    [SGF_FUNCTION] = SLAB(struct CUfunc_st, 1u << 21, sizeof(struct sgf_object)),
    [SGF_LIBRARY] = SLAB(struct CUlib_st, 1u << 16, sizeof(struct sgf_object)),
    [SGF_GRAPH] = SLAB(struct { uint8_t space[256]; }, 1u << 17, sizeof(struct sgf_object)),
    [SGF_NODE] = SLAB(struct { uint8_t space[192]; }, 1u << 22, sizeof(struct sgf_object)),
    [SGF_GRAPH_EXEC] = SLAB(struct { uint8_t space[192]; }, 1u << 17, sizeof(struct sgf_object)),
    [SGF_POOL] = SLAB(struct { uint8_t space[256]; }, 4096, sizeof(struct sgf_object)),
    [SGF_GATE] = SLAB(struct sgf_gate, 1u << 20, offsetof(struct sgf_gate, dropped)),
};

static bool slab_open(struct slab *slab)
{
    void *at = mmap(NULL, (size_t)slab->stride * slab->capacity, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED)
        return false;
    atomic_store_explicit(&slab->base, at, memory_order_release);
    return true;
}

static struct sgf_object *slot(struct slab *slab, uint32_t index)
{
    return (struct sgf_object *)(atomic_load_explicit(&slab->base, memory_order_relaxed) + (size_t)index * slab->stride);
}

void *sgf_new(enum sgf_kind kind)
{
    struct slab *slab = &slabs[kind];
    struct sgf_object *object = NULL;
    pthread_mutex_lock(&slab->lock);
    uint32_t used = atomic_load_explicit(&slab->used, memory_order_relaxed);
    if (atomic_load_explicit(&slab->base, memory_order_relaxed) == NULL && !slab_open(slab)) {
        pthread_mutex_unlock(&slab->lock);
        return NULL;
    }
    /* Keep some freed slots aside, so that a handle does not come back at once. */
    if (slab->first_free != 0 && (used >= slab->capacity || used >= 64)) {
        object = slot(slab, slab->first_free - 1);
        slab->first_free = object->next_free;
        if (slab->first_free == 0)
            slab->last_free = 0;
    } else if (used < slab->capacity) {
        object = slot(slab, used);
        object->index = used;
        atomic_store_explicit(&slab->used, used + 1, memory_order_release);
    }
    pthread_mutex_unlock(&slab->lock);
    if (object == NULL)
        return NULL;
    memset((uint8_t *)object + slab->keep, 0, slab->stride - slab->keep);
    object->next_free = 0;
    atomic_store_explicit(&object->live, 1u + kind, memory_order_release);
    return object;
}

void sgf_delete(void *handle)
{
    struct sgf_object *object = handle;
    uint32_t kind = atomic_exchange_explicit(&object->live, 0, memory_order_acq_rel);
    if (kind == 0)
        return;
    struct slab *slab = &slabs[kind - 1];
    pthread_mutex_lock(&slab->lock);
    object->next_free = 0;
    if (slab->last_free != 0)
        slot(slab, slab->last_free - 1)->next_free = object->index + 1;
    else
        slab->first_free = object->index + 1;
    slab->last_free = object->index + 1;
    pthread_mutex_unlock(&slab->lock);
}

bool sgf_valid(enum sgf_kind kind, const void *handle)
{
    struct slab *slab = &slabs[kind];
    const uint8_t *base = atomic_load_explicit(&slab->base, memory_order_acquire);
    if (SGF_UNLIKELY(base == NULL || (const uint8_t *)handle < base))
        return false;
    size_t offset = (size_t)((const uint8_t *)handle - base);
    if (SGF_UNLIKELY(offset >= (size_t)slab->stride * atomic_load_explicit(&slab->used, memory_order_acquire) ||
                     offset % slab->stride != 0))
        return false;
    return atomic_load_explicit(&((const struct sgf_object *)handle)->live, memory_order_acquire) == 1u + kind;
}

uint32_t sgf_slots(enum sgf_kind kind)
{
    return atomic_load_explicit(&slabs[kind].used, memory_order_acquire);
}

void *sgf_slot(enum sgf_kind kind, uint32_t index)
{
    struct sgf_object *object = slot(&slabs[kind], index);
    return atomic_load_explicit(&object->live, memory_order_acquire) == 1u + kind ? object : NULL;
}
