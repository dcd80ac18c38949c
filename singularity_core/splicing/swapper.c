/* Ranges that are live in both sessions stay live on the device: replicas have the same addresses, and giving pages
 * back only to take them again would cost more than the copies. */
#include "swapper.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "../proxy/session.h"

#define PAGE 4096ull
#define TRIM_BYTES (64ull << 20)

static uint64_t span(const sg_session *s) { return s->server->arena_bytes; }

/* Takes the descriptor, also when it fails. */
static int map_image(sg_session *s, int file) {
    void *at = mmap(NULL, span(s), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
    if (at == MAP_FAILED) {
        int error = -errno;
        close(file);
        return error;
    }
    s->image.host = at;
    s->image.file = file;
    return 0;
}

static uint8_t *host_of(sg_session *s) {
    if (s->image.host != NULL) return s->image.host;
    int file = memfd_create("singularity image", MFD_CLOEXEC);
    if (file < 0) return NULL;
    if (ftruncate(file, (off_t)span(s)) != 0) close(file);
    else map_image(s, file);
    return s->image.host;
}

uint8_t *sg_image_at(sg_session *s, uint64_t address) {
    uint8_t *host = host_of(s);
    return host == NULL ? NULL : host + (address - SG_DEVICE_BASE);
}

/* Whole pages of [from, to) go back to the machine. */
static void drop_pages(sg_session *s, uint64_t from, uint64_t to) {
    uint64_t first = (from - SG_DEVICE_BASE + PAGE - 1) & ~(PAGE - 1), end = (to - SG_DEVICE_BASE) & ~(PAGE - 1);
    if (first < end) fallocate(s->image.file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)first, (off_t)(end - first));
}

int sg_image_zero(sg_session *s, uint64_t address, uint64_t bytes) {
    uint8_t *at = sg_image_at(s, address);
    if (at == NULL) return -1;
    uint64_t end = address + bytes, first = (address + PAGE - 1) & ~(PAGE - 1), last = end & ~(PAGE - 1);
    if (first >= last) {
        memset(at, 0, bytes);
        return 0;
    }
    drop_pages(s, first, last); /* SG_DEVICE_BASE is a multiple of any page */
    memset(at, 0, first - address);
    memset(sg_image_at(s, last), 0, end - last);
    return 0;
}

void sg_image_close(sg_session *s) {
    if (s->image.host == NULL) return;
    munmap(s->image.host, span(s));
    close(s->image.file);
    s->image.host = NULL;
}

static void drop_gaps(sg_session *s) {
    struct sg_arena_block block;
    uint64_t at = SG_DEVICE_BASE;
    for (uint64_t from = at; sg_arena_next(s->arena, from, &block) == SG_ARENA_OK; from = at = block.address + block.bytes)
        drop_pages(s, at, block.address);
    drop_pages(s, at, SG_DEVICE_BASE + span(s));
    s->image.freed = 0;
}

static void trim(sg_session *s, uint64_t live) {
    if (s->image.host != NULL && s->image.freed >= TRIM_BYTES && s->image.freed >= live / 2) drop_gaps(s);
}

static int32_t copy_run(sg_session *s, int to_host, const struct sg_arena_block *run) {
    const struct sg_hal_table *hal = s->server->hal;
    uint8_t *host = run->bytes == 0 ? NULL : sg_image_at(s, run->address);
    if (run->bytes == 0) return 0;
    if (host == NULL) return SG_CUDA_OUT_OF_MEMORY;
    return to_host ? hal->copy_to_host(hal->state, host, run->address, run->bytes)
                   : hal->copy_to_device(hal->state, run->address, host, run->bytes);
}

/* All live blocks, one way or the other; neighbours in one piece. */
static int32_t copy_all(sg_session *s, int to_host, uint64_t *bytes) {
    struct sg_arena_block block, run = {0};
    int32_t error = 0;
    for (uint64_t at = SG_DEVICE_BASE; error == 0 && sg_arena_next(s->arena, at, &block) == SG_ARENA_OK;) {
        at = block.address + block.bytes;
        *bytes += block.bytes;
        if (run.address + run.bytes == block.address) {
            run.bytes += block.bytes;
            continue;
        }
        error = copy_run(s, to_host, &run);
        run = block;
    }
    return error != 0 ? error : copy_run(s, to_host, &run);
}

/* Calls range_live or range_dead for what is live in `a` and not in `b` (NULL: has nothing). */
static int32_t mark_difference(sg_session *a, const sg_session *b, int live) {
    const struct sg_hal_table *hal = a->server->hal;
    int32_t (*mark)(void *, uint64_t, uint64_t) = live ? hal->range_live : hal->range_dead;
    struct sg_arena_block block, other;
    uint64_t from = 0, to = 0;
    int32_t error = 0, each = 0;
    for (uint64_t next = SG_DEVICE_BASE; sg_arena_next(a->arena, next, &block) == SG_ARENA_OK; next = block.address + block.bytes) {
        for (uint64_t at = block.address, end = at + block.bytes, stop; at < end; at = stop) {
            stop = end;
            if (b != NULL && sg_arena_find(b->arena, at, &other) == SG_ARENA_OK) {
                stop = other.address + other.bytes < end ? other.address + other.bytes : end;
                continue;
            }
            if (b != NULL && sg_arena_next(b->arena, at, &other) == SG_ARENA_OK && other.address < end) stop = other.address;
            if (at != to) {
                if (to != from) each = mark(hal->state, from, to - from);
                if (error == 0) error = each;
                from = at;
            }
            to = stop;
        }
    }
    if (to != from) each = mark(hal->state, from, to - from);
    return error != 0 ? error : each;
}

/* Where the device's content is a file already, nothing is copied. */
int32_t sg_image_write(sg_session *s, char path[64]) {
    const struct sg_hal_table *hal = s->server->hal;
    uint64_t bytes = 0;
    int32_t error = 0, file = -1;
    if (!sg_device_resident(s) || !SG_HAL_HAS(hal, arena_file) || hal->arena_file(hal->state, &file) != 0) {
        if (host_of(s) == NULL) return SG_CUDA_OUT_OF_MEMORY;
        file = s->image.file;
        if (sg_device_resident(s)) error = copy_all(s, 1, &bytes);
    }
    snprintf(path, 64, "/proc/%d/fd/%d", (int)getpid(), file);
    return error;
}

int sg_image_adopt(sg_session *s, const char *path) {
    struct stat status;
    int file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0) return -errno;
    if (fstat(file, &status) == 0 && S_ISREG(status.st_mode) && (uint64_t)status.st_size == span(s)) {
        int error = map_image(s, file);
        s->image.handed = error == 0;
        return error;
    }
    close(file);
    return -EPROTO;
}

/* What came from another proxy becomes the content of the device as it is, and what the device had becomes the image of `out`: pages
 * that exist are worth more than those that a copy would need.  Later switches copy, as on any device.  0: it cannot be. */
static int exchange(sg_session *out, sg_session *in) {
    const struct sg_hal_table *hal = in->server->hal;
    int32_t file;
    void *at = NULL;
    if (!in->image.handed || !SG_HAL_HAS(hal, arena_file) || !SG_HAL_HAS(hal, arena_exchange) || !SG_HAL_HAS(hal, range_live) ||
        hal->arena_file(hal->state, &file) != 0)
        return 0;
    if (out != NULL && (at = mmap(NULL, span(out), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0)) == MAP_FAILED) return 0;
    drop_gaps(in); /* a block that begins to live on the device starts as zeroes */
    if (hal->arena_exchange(hal->state, in->image.file, &file) != 0) {
        if (at != NULL) munmap(at, span(out));
        return 0;
    }
    munmap(in->image.host, span(in));
    in->image = (struct sg_image){0};
    if (out == NULL) {
        close(file);
        return 1;
    }
    sg_image_close(out);
    out->image = (struct sg_image){.host = at, .file = file};
    return 1;
}

struct sg_swap sg_swap(sg_session *out, sg_session *in) {
    struct sg_swap result = {0};
    const struct sg_hal_table *hal = in->server->hal;
    int tracks = SG_HAL_HAS(hal, range_live) && SG_HAL_HAS(hal, range_dead);
    if (exchange(out, in)) {
        result.in_error = mark_difference(in, NULL, 1);
        return result;
    }
    in->image.handed = 0;
    if (out != NULL) {
        result.out_error = copy_all(out, 1, &result.out_bytes);
        if (result.out_error == 0) trim(out, result.out_bytes);
        if (tracks) mark_difference(out, in, 0);
    }
    if (tracks) result.in_error = mark_difference(in, out, 1);
    if (result.in_error == 0) result.in_error = copy_all(in, 0, &result.in_bytes);
    return result;
}
