/* Address ranges that the rank may name: allocations, module globals, page-locked memory.
 * A sorted array: programs look up far more often than they allocate, and rarely hold more than
 * some thousand ranges. */
#include <pthread.h>
#include <stdlib.h>
#include "client.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct sg_range *ranges;
static size_t count, room;
static _Atomic uint64_t next_id = 1;

uint64_t sg_range_next_id(void) { return atomic_fetch_add(&next_id, 1); }

/* Index of the first range whose base is above `address`. */
static size_t above(uint64_t address)
{
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (ranges[middle].base <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static void remove_at(size_t at)
{
    count--;
    memmove(&ranges[at], &ranges[at + 1], (count - at) * sizeof *ranges);
}

int sg_range_add(const struct sg_range *range)
{
    pthread_mutex_lock(&lock);
    int result = -1;
    if (count == room) {
        size_t more = room ? room * 2 : 256;
        struct sg_range *grown = realloc(ranges, more * sizeof *grown);
        if (grown) {
            ranges = grown;
            room = more;
        }
    }
    if (count < room) {
        size_t at = above(range->base);
        if (at && ranges[at - 1].base == range->base) {
            ranges[at - 1] = *range; /* a module's global, asked for again */
        } else {
            memmove(&ranges[at + 1], &ranges[at], (count - at) * sizeof *ranges);
            ranges[at] = *range;
            count++;
        }
        result = 0;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

int sg_range_find(uint64_t address, struct sg_range *out)
{
    pthread_mutex_lock(&lock);
    size_t at = above(address);
    int found = at && address - ranges[at - 1].base < ranges[at - 1].bytes;
    if (found)
        *out = ranges[at - 1];
    pthread_mutex_unlock(&lock);
    return found;
}

int sg_range_covers(uint64_t address, uint64_t bytes)
{
    struct sg_range range;
    return sg_range_find(address, &range) && bytes <= range.bytes - (address - range.base);
}

int sg_range_take(uint64_t base, enum sg_range_kind kind, struct sg_range *out)
{
    pthread_mutex_lock(&lock);
    size_t at = above(base);
    int found = at && ranges[at - 1].base == base && ranges[at - 1].kind == kind;
    if (found) {
        *out = ranges[at - 1];
        remove_at(at - 1);
    }
    pthread_mutex_unlock(&lock);
    return found;
}

int sg_range_take_of(uint64_t owner, enum sg_range_kind kind, struct sg_range *out)
{
    int found = 0;
    pthread_mutex_lock(&lock);
    for (size_t i = count; i-- > 0 && !found;) {
        if (ranges[i].kind == kind && ranges[i].owner == owner) {
            *out = ranges[i];
            remove_at(i);
            found = 1;
        }
    }
    pthread_mutex_unlock(&lock);
    return found;
}

void sg_range_drop_globals(uint64_t handle)
{
    if (SG_HANDLE_KIND(handle) != SG_KIND_MODULE && SG_HANDLE_KIND(handle) != SG_KIND_LIBRARY)
        return;
    pthread_mutex_lock(&lock);
    for (size_t i = count; i-- > 0;)
        if (ranges[i].kind == SG_RANGE_GLOBAL && ranges[i].owner == handle)
            remove_at(i);
    pthread_mutex_unlock(&lock);
}
