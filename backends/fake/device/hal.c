/* The HAL's native function table for this device (singularity_core/hal/native.h). */
#include "device.h"

#include "../../../singularity_core/hal/digest.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define ALL_UNITS 0xffu /* the eight 512-byte units of a page */

static bool in_arena(struct sgf_device *d, uint64_t address, uint64_t bytes)
{
    uint64_t base = atomic_load(&d->arena.base), size = atomic_load(&d->arena.bytes);
    return size != 0 && address >= base && address - base <= size && bytes <= size - (address - base);
}

static uint8_t units_of(uint64_t page_start, uint64_t from, uint64_t to)
{
    uint64_t first = from > page_start ? (from - page_start) / SGF_UNIT : 0;
    uint64_t end = to < page_start + SGF_PAGE ? (to - page_start + SGF_UNIT - 1) / SGF_UNIT : SGF_PAGE / SGF_UNIT;
    return (uint8_t)((ALL_UNITS << first) & (ALL_UNITS >> (SGF_PAGE / SGF_UNIT - end)));
}

bool sgf_arena_live(struct sgf_device *d, uint64_t address, uint64_t bytes)
{
    bool live = false;
    pthread_mutex_lock(&d->arena.lock);
    if (in_arena(d, address, bytes) && bytes != 0) {
        uint64_t base = atomic_load(&d->arena.base), to = address + bytes;
        live = true;
        for (uint64_t page = address & ~(uint64_t)(SGF_PAGE - 1); page < to && live; page += SGF_PAGE) {
            uint8_t wanted = units_of(page, address, to);
            live = (d->arena.live[(page - base) / SGF_PAGE] & wanted) == wanted;
        }
    }
    pthread_mutex_unlock(&d->arena.lock);
    return live;
}

/* Maps a file as the arena's content, all of it dead. */
static bool place_file(uint64_t address, uint64_t bytes, int file)
{
    return mmap((void *)(uintptr_t)address, bytes, PROT_NONE, MAP_SHARED | MAP_NORESERVE | MAP_FIXED, file, 0) != MAP_FAILED;
}

/* No content any more, nor any right to it. */
static void take_away(uint64_t address, uint64_t bytes)
{
    if (mmap((void *)(uintptr_t)address, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED)
        sgf_say("arena: cannot give back %llu bytes (%s)", (unsigned long long)bytes, strerror(errno));
}

static CUresult back_arena(struct sgf_device *d, uint64_t address, uint64_t bytes)
{
    int file = memfd_create("singularity arena", MFD_CLOEXEC);
    uint8_t *live = mmap(NULL, bytes / SGF_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (file >= 0 && live != MAP_FAILED && ftruncate(file, (off_t)bytes) == 0 && place_file(address, bytes, file)) {
        d->arena.live = live;
        d->arena.file = file;
        return CUDA_SUCCESS;
    }
    if (live != MAP_FAILED)
        munmap(live, bytes / SGF_PAGE);
    if (file >= 0)
        close(file);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

static int32_t arena_open(void *state, uint64_t address, uint64_t bytes, uint64_t *actual)
{
    struct sgf_device *d = state;
    if (actual == NULL || bytes == 0 || bytes % SGF_PAGE != 0 || address % SGF_PAGE != 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (address == 0)
        address = d->lo;
    if (address < d->lo || bytes > SGF_HEAP_OFFSET || address - d->lo > SGF_HEAP_OFFSET - bytes)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&d->arena.lock);
    CUresult result = CUDA_ERROR_ALREADY_MAPPED;
    if (atomic_load(&d->arena.bytes) == 0) {
        result = sgf_zone_charge(d->heap, bytes);
        if (result == CUDA_SUCCESS && (result = back_arena(d, address, bytes)) != CUDA_SUCCESS)
            sgf_zone_uncharge(d->heap, bytes);
        if (result == CUDA_SUCCESS) {
            atomic_store(&d->arena.base, address);
            atomic_store(&d->arena.bytes, bytes);
            *actual = address;
        }
    }
    pthread_mutex_unlock(&d->arena.lock);
    return (int32_t)result;
}

static int32_t arena_close(void *state)
{
    struct sgf_device *d = state;
    int32_t result = CUDA_ERROR_INVALID_VALUE;
    sgf_gates_void(d);
    sgf_device_drain(d);
    pthread_mutex_lock(&d->arena.lock);
    uint64_t bytes = atomic_load(&d->arena.bytes);
    if (bytes != 0) {
        take_away(atomic_load(&d->arena.base), bytes);
        munmap(d->arena.live, bytes / SGF_PAGE);
        close(d->arena.file);
        d->arena.live = NULL;
        atomic_store(&d->arena.bytes, 0);
        sgf_zone_uncharge(d->heap, bytes);
        result = CUDA_SUCCESS;
    }
    pthread_mutex_unlock(&d->arena.lock);
    return result;
}

static int32_t arena_file(void *state, int32_t *file)
{
    struct sgf_device *d = state;
    pthread_mutex_lock(&d->arena.lock);
    int32_t result = file != NULL && atomic_load(&d->arena.bytes) != 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        *file = d->arena.file;
    pthread_mutex_unlock(&d->arena.lock);
    return result;
}

static int32_t arena_exchange(void *state, int32_t file, int32_t *before)
{
    struct sgf_device *d = state;
    struct stat status;
    int32_t result = CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&d->arena.lock);
    uint64_t bytes = atomic_load(&d->arena.bytes);
    if (before != NULL && bytes != 0 && fstat(file, &status) == 0 && (uint64_t)status.st_size == bytes)
        result = place_file(atomic_load(&d->arena.base), bytes, file) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    if (result == CUDA_SUCCESS) {
        *before = d->arena.file;
        d->arena.file = file;
        madvise(d->arena.live, bytes / SGF_PAGE, MADV_DONTNEED); /* zeroes: all is dead */
    }
    pthread_mutex_unlock(&d->arena.lock);
    return result;
}

static int32_t arena_limit(void *state, uint64_t *bytes)
{
    struct sgf_device *d = state;
    uint64_t used, capacity;
    if (bytes == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    sgf_zone_info(d->heap, &used, &capacity);
    *bytes = (capacity - used) & ~(uint64_t)(SGF_PAGE - 1);
    return CUDA_SUCCESS;
}

/* Dead memory loses its content: the next owner sees zeroes. */
static bool make_dead(struct sgf_device *d, uint64_t address, uint64_t bytes)
{
    off_t offset = (off_t)(address - atomic_load(&d->arena.base));
    return mprotect((void *)(uintptr_t)address, bytes, PROT_NONE) == 0 &&
           fallocate(d->arena.file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, (off_t)bytes) == 0;
}

/* Pages [first, end) become accessible or dead, one system call per run. */
static int32_t set_range(struct sgf_device *d, uint64_t address, uint64_t bytes, bool live)
{
    if (bytes == 0 || address % SGF_UNIT != 0 || bytes % SGF_UNIT != 0)
        return CUDA_ERROR_INVALID_VALUE;
    int32_t result = CUDA_SUCCESS;
    pthread_mutex_lock(&d->arena.lock);
    if (!in_arena(d, address, bytes)) {
        pthread_mutex_unlock(&d->arena.lock);
        return CUDA_ERROR_INVALID_VALUE;
    }
    uint64_t base = atomic_load(&d->arena.base), to = address + bytes, run = 0, run_end = 0;
    for (uint64_t page = address & ~(uint64_t)(SGF_PAGE - 1);; page += SGF_PAGE) {
        bool changes = false;
        if (page < to) {
            uint8_t *units = &d->arena.live[(page - base) / SGF_PAGE], wanted = units_of(page, address, to);
            uint8_t after = live ? *units | wanted : *units & (uint8_t)~wanted;
            changes = (*units == 0) != (after == 0);
            *units = after;
        }
        if (changes && run_end == page && run_end != 0) {
            run_end = page + SGF_PAGE;
        } else {
            if (run_end != 0 && (live ? mprotect((void *)(uintptr_t)run, run_end - run, PROT_READ | PROT_WRITE) != 0
                                      : !make_dead(d, run, run_end - run))) {
                sgf_say("arena: cannot change %llu bytes (%s); raise vm.max_map_count", (unsigned long long)(run_end - run),
                        strerror(errno));
                result = CUDA_ERROR_OUT_OF_MEMORY;
            }
            run = changes ? page : 0;
            run_end = changes ? page + SGF_PAGE : 0;
        }
        if (page >= to)
            break;
    }
    pthread_mutex_unlock(&d->arena.lock);
    return result;
}

static int32_t range_live(void *state, uint64_t address, uint64_t bytes)
{
    return set_range(state, address, bytes, true);
}

static int32_t range_dead(void *state, uint64_t address, uint64_t bytes)
{
    return set_range(state, address, bytes, false);
}

static int32_t host_register(void *state, void *host, uint64_t bytes)
{
    (void)state;
    return (int32_t)sgf_host_register((uintptr_t)host, bytes);
}

/* Waits for nothing: other ranks of the device may stand at gates.  Work that still uses it gets an illegal address. */
static int32_t host_unregister(void *state, void *host)
{
    (void)state;
    return (int32_t)sgf_host_unregister((uintptr_t)host);
}

/* ---- digest: the HAL's (digest.h), through a buffer: pages may die under us, and that must stay an error ---- */
static CUresult digest_bytes(const uint8_t *data, uint64_t bytes, uint8_t out[16])
{
    uint64_t sum[2] = {0, 0}, words[512] = {0}, first = 0;
    for (uint64_t left = bytes; left > 0;) {
        uint64_t part = left < sizeof words ? left : sizeof words;
        if (sgf_guarded_copy(words, data, part) != CUDA_SUCCESS)
            return CUDA_ERROR_ILLEGAL_ADDRESS;
        sg_digest_words(sum, words, first, part / 8);
        first += part / 8;
        data += part;
        left -= part;
        if (left == 0) {
            sg_digest_finish(sum, bytes, (const uint8_t *)words + part / 8 * 8, out);
            return CUDA_SUCCESS;
        }
    }
    sg_digest_finish(sum, 0, NULL, out);
    return CUDA_SUCCESS;
}

static int32_t digest(void *state, uint64_t address, uint64_t bytes, uint8_t out[16])
{
    struct sgf_device *d = state;
    if (out == NULL || sgf_device_of(address) != d || (bytes != 0 && sgf_place_of(address, bytes) != SGF_ON_DEVICE))
        return CUDA_ERROR_INVALID_VALUE;
    return (int32_t)digest_bytes((const uint8_t *)(uintptr_t)address, bytes, out);
}

static int32_t quiesce(void *state)
{
    sgf_device_drain(state);
    return CUDA_SUCCESS;
}

static int32_t copy_to_host(void *state, void *host, uint64_t device, uint64_t bytes)
{
    if (bytes == 0)
        return CUDA_SUCCESS;
    if (host == NULL || !sgf_arena_live(state, device, bytes))
        return CUDA_ERROR_INVALID_VALUE;
    return (int32_t)sgf_guarded_copy(host, (const void *)(uintptr_t)device, bytes);
}

static int32_t copy_to_device(void *state, uint64_t device, const void *host, uint64_t bytes)
{
    if (bytes == 0)
        return CUDA_SUCCESS;
    if (host == NULL || !sgf_arena_live(state, device, bytes))
        return CUDA_ERROR_INVALID_VALUE;
    return (int32_t)sgf_guarded_copy((void *)(uintptr_t)device, host, bytes);
}

static int32_t discard(void *state)
{
    struct sgf_thread *thread = sgf_thread();
    struct CUctx_st *context = thread->depth == 0 ? NULL : thread->stack[thread->depth - 1];
    if (!sgf_valid(SGF_CONTEXT, context) || context->device != state)
        return CUDA_ERROR_INVALID_CONTEXT;
    sgf_context_fail(context, CUDA_ERROR_CONTEXT_IS_DESTROYED);
    return CUDA_SUCCESS;
}

/* The table of device `ordinal` (as cuDeviceGet counts), or NULL: no such device, or it cannot be initialised. */
SGF_EXPORT const struct sg_hal_table *sgf_hal_table(int ordinal);
SGF_EXPORT int32_t sg_hal_open_table(int32_t ordinal, const struct sg_hal_table **table);
SGF_EXPORT const struct sg_hal_table *sgf_hal_table(int ordinal)
{
    if (sgf_initialise() != CUDA_SUCCESS || ordinal < 0 || ordinal >= sgf.device_count)
        return NULL;
    struct sgf_device *d = &sgf.devices[ordinal];
    pthread_mutex_lock(&d->lock);
    d->hal = (struct sg_hal_table){
        .struct_size = sizeof d->hal, .abi = SG_HAL_ABI, .state = d, .arena_open = arena_open, .arena_close = arena_close,
        .arena_limit = arena_limit, .range_live = range_live, .range_dead = range_dead, .host_register = host_register,
        .host_unregister = host_unregister, .digest = digest, .quiesce = quiesce,
        .copy_to_host = copy_to_host, .copy_to_device = copy_to_device, .gate_make = sgf_gate_make, .gate_wait = sgf_gate_wait,
        .gate_open = sgf_gate_open, .gate_drop = sgf_gate_drop, .settle = sgf_settle, .discard = discard,
        .arena_file = arena_file, .arena_exchange = arena_exchange,
    };
    pthread_mutex_unlock(&d->lock);
    return &d->hal;
}

/* The same under the name that native.h gives it. */
SGF_EXPORT int32_t sg_hal_open_table(int32_t ordinal, const struct sg_hal_table **table)
{
    CUresult ready = sgf_initialise();
    if (ready != CUDA_SUCCESS)
        return (int32_t)ready;
    const struct sg_hal_table *found = sgf_hal_table(ordinal);
    if (table == NULL || found == NULL)
        return table == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_DEVICE;
    *table = found;
    return CUDA_SUCCESS;
}
