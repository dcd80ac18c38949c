/* Page-locked memory: pieces of the session's window, which the proxy maps at the same address, so that
 * copies name addresses and move no bytes through the ring.
 *
 * First fit over a sorted list of free extents.  The window is committed (mapped on both sides) upwards, in
 * large steps, and stays so: programs allocate such memory in waves. */
#include <pthread.h>
#include <stdlib.h>
#include "../wire.h"
#include "client.h"

#define STEP (4ull << 20)

struct extent { uint64_t offset, bytes; };
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct extent *extents;
static size_t count, room;
static uint64_t committed; /* [0, committed) is mapped on both sides */
static uint64_t fresh;     /* [fresh, SG_PINNED_WINDOW) has never been given out */

static uint64_t aligned(uint64_t bytes) { return bytes >= 4096 ? (bytes + 4095) & ~4095ull : (bytes + 511) & ~511ull; }

/* Lock held.  SG_PINNED_WINDOW: no room. */
static uint64_t take(uint64_t bytes)
{
    uint64_t alignment = bytes >= 4096 ? 4096 : 512;
    for (size_t i = 0; i < count; i++) {
        uint64_t start = (extents[i].offset + alignment - 1) & ~(alignment - 1);
        if (start + bytes > extents[i].offset + extents[i].bytes)
            continue;
        uint64_t before = start - extents[i].offset, after = extents[i].bytes - before - bytes;
        if (before && after && count == room)
            continue; /* would need an extent more than there is room for */
        extents[i].bytes = before;
        size_t at = i;
        if (before)
            at++;
        else
            memmove(&extents[i], &extents[i + 1], (--count - i) * sizeof *extents);
        if (after) {
            memmove(&extents[at + 1], &extents[at], (count - at) * sizeof *extents);
            extents[at] = (struct extent){start + bytes, after};
            count++;
        }
        return start;
    }
    uint64_t start = (fresh + alignment - 1) & ~(alignment - 1);
    if (bytes > SG_PINNED_WINDOW || start > SG_PINNED_WINDOW - bytes)
        return SG_PINNED_WINDOW;
    fresh = start + bytes; /* the few bytes before an alignment are lost */
    return start;
}

/* Lock held. */
static void give(uint64_t offset, uint64_t bytes)
{
    if (count + 1 >= room) {
        size_t more = room ? room * 2 : 64;
        struct extent *grown = realloc(extents, more * sizeof *grown);
        if (!grown)
            return; /* lost until the process ends */
        extents = grown;
        room = more;
    }
    size_t at = 0;
    while (at < count && extents[at].offset < offset)
        at++;
    if (at && extents[at - 1].offset + extents[at - 1].bytes == offset) {
        extents[--at].bytes += bytes;
    } else {
        memmove(&extents[at + 1], &extents[at], (count - at) * sizeof *extents);
        extents[at] = (struct extent){offset, bytes};
        count++;
    }
    if (at + 1 < count && extents[at].offset + extents[at].bytes == extents[at + 1].offset) {
        extents[at].bytes += extents[at + 1].bytes;
        memmove(&extents[at + 1], &extents[at + 2], (--count - at - 1) * sizeof *extents);
    }
}

/* Lock held: the one place that sends with a lock, as a second thread must not use pages before they are there. */
static CUresult commit(uint64_t end)
{
    if (end <= committed)
        return CUDA_SUCCESS;
    uint64_t target = (end + STEP - 1) & ~(STEP - 1), bytes = target - committed;
    sg_link *link = atomic_load(&sg_client.link);
    if (sg_link_pinned_commit(link, committed, bytes, 1))
        return CUDA_ERROR_OUT_OF_MEMORY;
    struct sg_wire_pinned_commit *wire = sg_begin(SG_OP_pinned_commit, sizeof *wire);
    if (!wire)
        return sg_lost("cuMemHostAlloc");
    *wire = (struct sg_wire_pinned_commit){.offset = committed, .bytes = bytes, .on = 1};
    CUresult error = sg_call("cuMemHostAlloc", NULL, 0);
    if (error)
        (void)sg_link_pinned_commit(link, committed, bytes, 0);
    else
        committed = target;
    return error;
}

CUresult sg_hand_cuMemHostAlloc(void **pp, size_t bytesize, unsigned int Flags)
{
    CUresult error = sg_enter();
    if (error)
        return error;
    unsigned known = CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED;
    if (!pp || !bytesize || Flags & ~known)
        return CUDA_ERROR_INVALID_VALUE;
    if (bytesize > SG_PINNED_WINDOW)
        return CUDA_ERROR_OUT_OF_MEMORY;
    uint64_t bytes = aligned(bytesize);
    pthread_mutex_lock(&lock);
    uint64_t offset = take(bytes);
    error = offset == SG_PINNED_WINDOW ? CUDA_ERROR_OUT_OF_MEMORY : commit(offset + bytes);
    if (error && offset != SG_PINNED_WINDOW)
        give(offset, bytes);
    pthread_mutex_unlock(&lock);
    if (error)
        return error;
    struct sg_range range = {.base = sg_client.pinned_base + offset, .bytes = bytesize, .id = sg_range_next_id(),
                             .owner = sg_self.current, .kind = SG_RANGE_PINNED, .flags = Flags | CU_MEMHOSTALLOC_DEVICEMAP};
    if (sg_range_add(&range))
        return CUDA_ERROR_OUT_OF_MEMORY;
    *pp = (void *)(uintptr_t)range.base;
    return CUDA_SUCCESS;
}

CUresult sg_hand_cuMemAllocHost_v2(void **pp, size_t bytesize) { return sg_hand_cuMemHostAlloc(pp, bytesize, 0); }

CUresult sg_hand_cuMemFreeHost(void *p)
{
    CUresult error = sg_enter();
    if (error || !p)
        return error;
    struct sg_range range;
    if (!sg_range_take((uint64_t)(uintptr_t)p, SG_RANGE_PINNED, &range))
        return CUDA_ERROR_INVALID_VALUE;
    error = sg_send_cuCtxSynchronize(); /* copies that name these pages may be under way */
    sg_pinned_release(&range);
    return error;
}

void sg_pinned_release(const struct sg_range *range)
{
    pthread_mutex_lock(&lock);
    give(range->base - sg_client.pinned_base, aligned(range->bytes));
    pthread_mutex_unlock(&lock);
}

static CUresult find(const void *p, struct sg_range *range)
{
    CUresult error = sg_enter();
    if (error)
        return error;
    if (!sg_range_find((uint64_t)(uintptr_t)p, range) || range->kind != SG_RANGE_PINNED)
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

CUresult sg_hand_cuMemHostGetDevicePointer_v2(CUdeviceptr *pdptr, void *p, unsigned int Flags)
{
    struct sg_range range;
    CUresult error = find(p, &range);
    if (error)
        return error;
    if (!pdptr || Flags)
        return CUDA_ERROR_INVALID_VALUE;
    *pdptr = (CUdeviceptr)(uintptr_t)p;
    return CUDA_SUCCESS;
}

CUresult sg_hand_cuMemHostGetFlags(unsigned int *pFlags, void *p)
{
    struct sg_range range;
    CUresult error = find(p, &range);
    if (error)
        return error;
    if (!pFlags)
        return CUDA_ERROR_INVALID_VALUE;
    *pFlags = range.flags;
    return CUDA_SUCCESS;
}
