/* The in-memory device without its native table, but with the driver's virtual memory management: what a vendor's
 * library offers.  It lets the code for such libraries run where there is no such device.
 *
 * One reservation per device at a time; physical memory is counted, and mapping opens the device's arena. */
#include <stdint.h>
#include <stdlib.h>

#include "singularity_core/hal/native.h"

#define EXPORT __attribute__((visibility("default")))
#define GRANULARITY (2ull << 20)
enum { OK = 0, INVALID = 1, NO_MEMORY = 2, NOT_SUPPORTED = 801 };

const struct sg_hal_table *sgf_hal_table(int ordinal);

struct location { int type, id; };
struct allocation { int type, handle_types; struct location location; void *win32; unsigned char rest[8]; };
struct access { struct location location; int flags; };

static struct reservation { uint64_t base, bytes, mapped; int device; } reservations[8];
static struct physical { uint64_t bytes; int device, live, mapped; } physical[4096];

/* What is taken and not given back; tests read it. */
EXPORT int shim_leaks(void);
int shim_leaks(void)
{
    int leaks = 0;
    for (int i = 0; i < 8; i++)
        leaks += reservations[i].bytes != 0;
    for (int i = 0; i < 4096; i++)
        leaks += physical[i].live;
    return leaks;
}

/* Fails the nth cuMemCreate from now on; 0: none. */
EXPORT void shim_fail_create(int nth);
static int fail_create;
void shim_fail_create(int nth) { fail_create = nth; }

EXPORT int32_t sg_hal_open_table(int32_t ordinal, const struct sg_hal_table **table)
{
    (void)ordinal, (void)table;
    return NOT_SUPPORTED;
}

EXPORT int cuMemGetAllocationGranularity(size_t *granularity, const struct allocation *what, int option);
int cuMemGetAllocationGranularity(size_t *granularity, const struct allocation *what, int option)
{
    (void)option;
    *granularity = GRANULARITY;
    return what->type == 1 && what->location.type == 1 ? OK : INVALID;
}

EXPORT int cuMemAddressReserve(uint64_t *address, size_t bytes, size_t alignment, uint64_t hint, uint64_t flags);
int cuMemAddressReserve(uint64_t *address, size_t bytes, size_t alignment, uint64_t hint, uint64_t flags)
{
    if (bytes == 0 || bytes % GRANULARITY != 0 || alignment != 0 || flags != 0)
        return INVALID;
    for (int i = 0; i < 8; i++)
        if (reservations[i].bytes == 0) {
            /* As a driver does, another address than the hint when that does not suit. */
            uint64_t start = hint >= 0x200000000000ull && hint % GRANULARITY == 0 ? hint : 0x200000000000ull;
            if (hint == 0 && i == 1)
                start = 0x210000000000ull; /* the second device's window */
            reservations[i] = (struct reservation){start, bytes, 0, -1};
            *address = start;
            return OK;
        }
    return NO_MEMORY;
}

static struct reservation *find(uint64_t address)
{
    for (int i = 0; i < 8; i++)
        if (reservations[i].bytes != 0 && address >= reservations[i].base &&
            address < reservations[i].base + reservations[i].bytes)
            return &reservations[i];
    return NULL;
}

EXPORT int cuMemAddressFree(uint64_t address, size_t bytes);
int cuMemAddressFree(uint64_t address, size_t bytes)
{
    struct reservation *r = find(address);
    if (r == NULL || r->base != address || r->bytes != bytes || r->mapped != 0)
        return INVALID;
    r->bytes = 0;
    return OK;
}

EXPORT int cuMemCreate(uint64_t *handle, size_t bytes, const struct allocation *what, uint64_t flags);
int cuMemCreate(uint64_t *handle, size_t bytes, const struct allocation *what, uint64_t flags)
{
    uint64_t limit = 0;
    const struct sg_hal_table *table = sgf_hal_table(what->location.id);
    if (table == NULL || bytes == 0 || bytes % GRANULARITY != 0 || flags != 0)
        return INVALID;
    table->arena_limit(table->state, &limit);
    for (int i = 0; i < 4096; i++)
        bytes += physical[i].live && physical[i].device == what->location.id ? physical[i].bytes : 0;
    if (bytes > limit || (fail_create != 0 && --fail_create == 0))
        return NO_MEMORY;
    for (int i = 0; i < 4096; i++)
        bytes -= physical[i].live && physical[i].device == what->location.id ? physical[i].bytes : 0;
    for (int i = 0; i < 4096; i++)
        if (!physical[i].live) {
            physical[i] = (struct physical){bytes, what->location.id, 1, 0};
            *handle = (uint64_t)i + 1;
            return OK;
        }
    return NO_MEMORY;
}

EXPORT int cuMemRelease(uint64_t handle);
int cuMemRelease(uint64_t handle)
{
    if (handle == 0 || handle > 4096 || !physical[handle - 1].live)
        return INVALID;
    physical[handle - 1].live = 0;
    return OK;
}

EXPORT int cuMemMap(uint64_t address, size_t bytes, size_t offset, uint64_t handle, uint64_t flags);
int cuMemMap(uint64_t address, size_t bytes, size_t offset, uint64_t handle, uint64_t flags)
{
    struct reservation *r = find(address);
    if (r == NULL || offset != 0 || flags != 0 || handle == 0 || handle > 4096 || physical[handle - 1].bytes != bytes)
        return INVALID;
    r->mapped += bytes;
    r->device = physical[handle - 1].device;
    return OK;
}

EXPORT int cuMemSetAccess(uint64_t address, size_t bytes, const struct access *access, size_t count);
int cuMemSetAccess(uint64_t address, size_t bytes, const struct access *access, size_t count)
{
    struct reservation *r = find(address);
    if (r == NULL || r->mapped != bytes || count != 1 || access->flags != 3 || access->location.id != r->device)
        return INVALID;
    const struct sg_hal_table *table = sgf_hal_table(r->device);
    uint64_t actual;
    int error = table->arena_open(table->state, address, bytes, &actual);
    return error != OK ? error : table->range_live(table->state, address, bytes);
}

EXPORT int cuMemUnmap(uint64_t address, size_t bytes);
int cuMemUnmap(uint64_t address, size_t bytes)
{
    struct reservation *r = find(address);
    if (r == NULL || r->mapped < bytes)
        return INVALID;
    const struct sg_hal_table *table = sgf_hal_table(r->device);
    r->mapped -= bytes;
    if (r->mapped == 0)
        table->arena_close(table->state);
    return OK;
}
