/* The memory interceptor: device memory comes from an arena, not from the driver, so that the proxy knows every live
 * byte, and can give the same addresses again after a restore.  Each session has an allocator of its own over all of
 * the device's arena: sessions that share the device see all of it, each with its own content (splicing/residency.h).
 * Page-locked memory is a window per session, at the same address in rank and proxy. */
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>

#include "../proxy/session.h"

#define PAGE 4096u
#define ARENA_ALIGN (2ull << 20)
#define SLACK (512ull << 20)

/* ---- the arena -------------------------------------------------------------------------------------------- */
int sg_memory_open(sg_server *server, uint64_t bytes, char why[256]) {
    const struct sg_hal_table *hal = server->hal;
    uint64_t limit = 0, actual = 0;
    int32_t error = hal->arena_limit(hal->state, &limit);
    if (error == 0 && limit > SG_DEVICE_WINDOW) limit = SG_DEVICE_WINDOW;
    /* what is not the arena's is the driver's: module globals, local memory, code */
    uint64_t slack = limit / 16 < SLACK ? limit / 16 : SLACK;
    uint64_t want = (bytes == 0 || bytes > SG_DEVICE_WINDOW ? limit - slack : bytes) & ~(ARENA_ALIGN - 1);
    if (error != 0 || want == 0 || want > limit) {
        snprintf(why, 256, "no arena of %llu bytes on device %d: the device can back %llu now (CUresult %d)",
                 (unsigned long long)bytes, server->device, (unsigned long long)limit, error);
        return -1;
    }
    error = hal->arena_open(hal->state, SG_DEVICE_BASE, want, &actual);
    if (error != 0 || actual != SG_DEVICE_BASE) {
        snprintf(why, 256, "device %d cannot back %llu bytes at %#llx (CUresult %d, got %#llx)", server->device,
                 (unsigned long long)want, SG_DEVICE_BASE, error, (unsigned long long)actual);
        if (error == 0) hal->arena_close(hal->state);
        return -1;
    }
    server->described.total_bytes = server->arena_bytes = want;
    return 0;
}

void sg_memory_close(sg_server *server) {
    if (server->arena_bytes != 0) server->hal->arena_close(server->hal->state);
    server->arena_bytes = 0;
}

int sg_memory_begin(sg_session *s) {
    s->arena = sg_arena_create(SG_DEVICE_BASE, s->server->arena_bytes);
    return s->arena == NULL ? -ENOMEM : 0;
}

/* `size`: as the arena rounded it. */
static void account(sg_session *s, uint64_t size, int gained) {
    sg_count(s, SG_COUNT_LIVE_BYTES, gained ? size : -size);
    atomic_fetch_add(&s->server->live_bytes, gained ? size : -size);
}

/* What all sessions of a shared device hold must fit into host memory, but for the one that is resident. */
static int within_limit(sg_session *s, uint64_t bytes) {
    sg_server *server = s->server;
    uint64_t live = atomic_load(&server->live_bytes);
    if (!sg_device_shared(s) || (live <= server->swap_limit && bytes <= server->swap_limit - live)) return 1;
    if (s->limit_said++ == 0)
        fprintf(stderr, "singularity: rank %u: no memory for %llu bytes: the ranks on device %d hold %llu, and together they may hold "
                        "%llu while they share it; raise --swap-limit, or use more devices\n", s->rank, (unsigned long long)bytes,
                server->device, (unsigned long long)live, (unsigned long long)server->swap_limit);
    return 0;
}

/* The session is pinned, and its arena locked. */
static int32_t begin_to_live(sg_session *s, const struct sg_arena_block *block, int resident) {
    const struct sg_hal_table *hal = s->server->hal;
    if (!resident && sg_session_replaying(s)) return 0; /* its content exists */
    if (!resident) return sg_image_zero(s, block->address, block->bytes) == 0 ? 0 : SG_CUDA_OUT_OF_MEMORY;
    return SG_HAL_HAS(hal, range_live) ? hal->range_live(hal->state, block->address, block->bytes) : 0;
}

int32_t sg_memory_alloc(sg_session *s, uint64_t bytes, uint64_t *address) {
    struct sg_arena_block block;
    uint64_t wanted;
    int32_t error = SG_CUDA_SUCCESS;
    if (bytes == 0) return SG_CUDA_INVALID_VALUE;
    int given = sg_given(0, &wanted);
    if (!within_limit(s, bytes)) return SG_CUDA_OUT_OF_MEMORY;
    int resident = sg_device_pin(s);
    pthread_mutex_lock(&s->arena_lock);
    int result = given ? sg_arena_alloc_at(s->arena, *address = wanted, bytes, s->id)
                       : sg_arena_alloc(s->arena, bytes, SG_ARENA_LOW, s->id, address);
    if (result == SG_ARENA_OK) {
        sg_arena_find(s->arena, *address, &block);
        error = begin_to_live(s, &block, resident);
        if (error != 0) sg_arena_free(s->arena, block.address);
    } else {
        error = SG_CUDA_OUT_OF_MEMORY;
    }
    pthread_mutex_unlock(&s->arena_lock);
    sg_device_unpin(s);
    if (error != 0) return error;
    account(s, block.bytes, 1);
    sg_made(*address);
    return SG_CUDA_SUCCESS;
}

/* The arena is locked.  Dead for the device first: nobody may get the range while the device thinks it live. */
static void free_block(sg_session *s, const struct sg_arena_block *block, int resident) {
    const struct sg_hal_table *hal = s->server->hal;
    if (resident && SG_HAL_HAS(hal, range_dead)) hal->range_dead(hal->state, block->address, block->bytes);
    sg_arena_free(s->arena, block->address);
    s->image.freed += block->bytes;
    account(s, block->bytes, 0);
}

int32_t sg_memory_free(sg_session *s, uint64_t address) {
    struct sg_arena_block block;
    int resident = sg_device_pin(s);
    pthread_mutex_lock(&s->arena_lock);
    int good = sg_arena_find(s->arena, address, &block) == SG_ARENA_OK && block.address == address;
    if (good) free_block(s, &block, resident);
    pthread_mutex_unlock(&s->arena_lock);
    sg_device_unpin(s);
    return good ? SG_CUDA_SUCCESS : SG_CUDA_INVALID_VALUE;
}

int32_t sg_memory_range(sg_session *s, uint64_t address, uint64_t *base, uint64_t *bytes) {
    struct sg_arena_block block;
    pthread_mutex_lock(&s->arena_lock);
    int good = sg_arena_find(s->arena, address, &block) == SG_ARENA_OK;
    pthread_mutex_unlock(&s->arena_lock);
    if (!good) return SG_CUDA_INVALID_VALUE;
    *base = block.address;
    *bytes = block.bytes;
    return SG_CUDA_SUCCESS;
}

int32_t sg_memory_owned(sg_session *s, uint64_t address, uint64_t bytes) {
    uint64_t base, size;
    if (bytes == 0) return SG_CUDA_SUCCESS;
    if (sg_memory_range(s, address, &base, &size) != SG_CUDA_SUCCESS) return SG_CUDA_INVALID_VALUE;
    return bytes <= size - (address - base) ? SG_CUDA_SUCCESS : SG_CUDA_INVALID_VALUE;
}

void sg_memory_info(sg_session *s, uint64_t *free_bytes, uint64_t *total_bytes) {
    pthread_mutex_lock(&s->arena_lock);
    *free_bytes = sg_arena_free_bytes(s->arena);
    *total_bytes = sg_arena_bytes(s->arena);
    pthread_mutex_unlock(&s->arena_lock);
}

void sg_memory_end(sg_session *s) {
    struct sg_arena_block block;
    int resident = sg_device_resident(s);
    pthread_mutex_lock(&s->arena_lock);
    while (sg_arena_next(s->arena, 0, &block) == SG_ARENA_OK) free_block(s, &block, resident);
    pthread_mutex_unlock(&s->arena_lock);
}

/* ---- the page-locked window ------------------------------------------------------------------------------- */
/* What is committed is kept in an arena over the window: same questions, same answers. */
int sg_pinned_open(sg_session *s) {
    uint64_t base = SG_PINNED_BASE + s->window * SG_PINNED_WINDOW;
    void *at = mmap((void *)base, SG_PINNED_WINDOW, PROT_NONE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
    if (at == MAP_FAILED) return -errno;
    if (at != (void *)base) {
        munmap(at, SG_PINNED_WINDOW);
        return -EEXIST;
    }
    s->pinned = at;
    s->committed = sg_arena_create(base, SG_PINNED_WINDOW);
    return s->committed == NULL ? -ENOMEM : sg_fault_guard(at, SG_PINNED_WINDOW, &s->faulted);
}

static void hide(uint64_t address, uint64_t bytes) {
    mmap((void *)address, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

static int32_t commit(sg_session *s, uint64_t address, uint64_t bytes) {
    const struct sg_hal_table *hal = s->server->hal;
    off_t offset = (off_t)(address - (uint64_t)s->pinned);
    if (sg_arena_alloc_at(s->committed, address, bytes, 1) != SG_ARENA_OK) return SG_CUDA_INVALID_VALUE;
    int32_t error = posix_fallocate(s->pinned_file, offset, (off_t)bytes) == 0 ? 0 : SG_CUDA_OUT_OF_MEMORY;
    if (error == 0 && mmap((void *)address, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, s->pinned_file,
                           offset) == MAP_FAILED)
        error = SG_CUDA_OUT_OF_MEMORY;
    if (error == 0) error = hal->host_register(hal->state, (void *)address, bytes);
    if (error == 0) return SG_CUDA_SUCCESS;
    hide(address, bytes);
    sg_arena_free(s->committed, address);
    return error;
}

static void uncommit(sg_session *s, const struct sg_arena_block *block) {
    const struct sg_hal_table *hal = s->server->hal;
    hal->host_unregister(hal->state, (void *)block->address);
    hide(block->address, block->bytes);
    /* gives the memory back to the machine, and zeroes it for the next owner; unless another proxy still has the session */
    if (!s->resumes) fallocate(s->pinned_file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)(block->address - (uint64_t)s->pinned),
              (off_t)block->bytes);
    sg_arena_free(s->committed, block->address);
}

int32_t sg_pinned_commit(sg_session *s, uint64_t offset, uint64_t bytes, int on) {
    struct sg_arena_block block;
    int32_t error = SG_CUDA_INVALID_VALUE;
    if (bytes == 0 || (offset | bytes) % PAGE != 0 || offset >= SG_PINNED_WINDOW || bytes > SG_PINNED_WINDOW - offset)
        return SG_CUDA_INVALID_VALUE;
    uint64_t address = (uint64_t)s->pinned + offset;
    pthread_mutex_lock(&s->pinned_lock);
    if (on) {
        error = commit(s, address, bytes);
    } else if (sg_arena_find(s->committed, address, &block) == SG_ARENA_OK && block.address == address &&
               block.bytes == bytes) {
        uncommit(s, &block);
        error = SG_CUDA_SUCCESS;
    }
    pthread_mutex_unlock(&s->pinned_lock);
    return error;
}

/* The lock is held.  Neighbouring commitments count as one. */
static int is_committed(const sg_session *s, uint64_t host, uint64_t bytes) {
    struct sg_arena_block block = {0};
    uint64_t at = host, end = host + bytes;
    int good = end >= host && host >= (uint64_t)s->pinned;
    while (good && (at == host || at < end)) {
        good = sg_arena_find(s->committed, at, &block) == SG_ARENA_OK;
        at = block.address + block.bytes;
    }
    return good;
}

int32_t sg_pinned_owned(sg_session *s, uint64_t host, uint64_t bytes) {
    pthread_mutex_lock(&s->pinned_lock);
    int good = is_committed(s, host, bytes);
    pthread_mutex_unlock(&s->pinned_lock);
    return good ? SG_CUDA_SUCCESS : SG_CUDA_INVALID_VALUE;
}

int32_t sg_pinned_copy(sg_session *s, uint64_t pinned, void *host, uint64_t bytes, int write) {
    pthread_mutex_lock(&s->pinned_lock);
    int good = is_committed(s, pinned, bytes);
    if (good) memcpy(write ? (void *)pinned : host, write ? host : (void *)pinned, bytes);
    pthread_mutex_unlock(&s->pinned_lock);
    return good ? SG_CUDA_SUCCESS : SG_CUDA_INVALID_VALUE;
}

void sg_pinned_end(sg_session *s) {
    struct sg_arena_block block;
    if (s->pinned == NULL) return;
    pthread_mutex_lock(&s->pinned_lock);
    while (s->committed != NULL && sg_arena_next(s->committed, 0, &block) == SG_ARENA_OK) uncommit(s, &block);
    pthread_mutex_unlock(&s->pinned_lock);
    sg_fault_forget(s->pinned);
    munmap(s->pinned, SG_PINNED_WINDOW);
    sg_arena_destroy(s->committed);
    s->committed = NULL;
    s->pinned = NULL;
}
