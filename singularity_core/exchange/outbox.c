/* Blocks in sparse files of /dev/shm, which peers map read-only. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "../transport/wait.h"
#include "transport.h"

#define OUTBOX_BYTES ((uint64_t)SG_BLOCKS * SG_BLOCK_BYTES)
#define KEPT 4u /* released blocks that keep their pages: faulting them in again costs more than the copy */

struct outbox {
    struct sg_board *board;
    char directory[3840];
    uint32_t index, count;
    int file;
    uint8_t *base;
    uint8_t *peers[SG_EXCHANGE_PROXIES];
    uint32_t kept[KEPT], kept_count;
    uint32_t empty[SG_BLOCKS], empty_count;
};

static void path_of(const struct outbox *box, uint32_t proxy, char path[4096]) {
    snprintf(path, 4096, "%s/o-%u", box->directory, proxy);
}

static uint8_t *reserve(void *state, uint32_t *block) {
    struct outbox *box = state;
    if (box->base == NULL) return NULL;
    if (box->kept_count != 0) {
        *block = box->kept[--box->kept_count];
    } else {
        if (box->empty_count == 0) return NULL;
        *block = box->empty[box->empty_count - 1];
        if (posix_fallocate(box->file, (off_t)*block * SG_BLOCK_BYTES, SG_BLOCK_BYTES) != 0) return NULL;
        box->empty_count--;
    }
    return box->base + (uint64_t)*block * SG_BLOCK_BYTES;
}

static void release(void *state, uint32_t block) {
    struct outbox *box = state;
    if (box->kept_count < KEPT) {
        box->kept[box->kept_count++] = block;
        return;
    }
    fallocate(box->file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)block * SG_BLOCK_BYTES, SG_BLOCK_BYTES);
    box->empty[box->empty_count++] = block;
}

static const uint8_t *peer(void *state, uint32_t proxy, uint32_t block, uint32_t bytes) {
    struct outbox *box = state;
    if (proxy >= box->count || block >= SG_BLOCKS || bytes > SG_BLOCK_BYTES) return NULL;
    if (box->peers[proxy] == NULL) {
        char path[4096];
        path_of(box, proxy, path);
        int fd = open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
        if (fd < 0) return NULL;
        /* its owner made it in its full size before it offered anything */
        off_t size = lseek(fd, 0, SEEK_END);
        void *at = size == (off_t)OUTBOX_BYTES ? mmap(NULL, OUTBOX_BYTES, PROT_READ, MAP_SHARED, fd, 0) : MAP_FAILED;
        close(fd);
        if (at == MAP_FAILED) return NULL;
        box->peers[proxy] = at;
    }
    return box->peers[proxy] + (uint64_t)block * SG_BLOCK_BYTES;
}

static void ring(void *state, uint32_t proxy) {
    struct outbox *box = state;
    struct sg_board_proxy *who = &box->board->proxies[proxy];
    sg_add(&who->bell, 1);
    if (sg_load(&who->sleeping)) sg_futex_wake((_Atomic uint32_t *)&who->bell, INT_MAX);
}

static int make_file(struct outbox *box) {
    char path[4096];
    path_of(box, box->index, path);
    unlink(path); /* of a predecessor that was killed */
    box->file = open(path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (box->file < 0 || ftruncate(box->file, (off_t)OUTBOX_BYTES) != 0) return -errno;
    void *at = mmap(NULL, OUTBOX_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, box->file, 0);
    if (at == MAP_FAILED) return -errno;
    box->base = at;
    for (uint32_t i = 0; i < SG_BLOCKS; i++) box->empty[i] = SG_BLOCKS - 1 - i;
    box->empty_count = SG_BLOCKS;
    return 0;
}

int sg_outbox_open(struct sg_transport *out, struct sg_board *board, const char *directory, uint32_t index, uint32_t count) {
    struct outbox *box = calloc(1, sizeof *box);
    if (box == NULL) return -ENOMEM;
    box->board = board;
    box->index = index;
    box->count = count;
    box->file = -1;
    *out = (struct sg_transport){box, reserve, release, peer, ring};
    if (directory == NULL) return 0;
    int error = snprintf(box->directory, sizeof box->directory, "%s", directory) >= (int)sizeof box->directory ? -ENAMETOOLONG
                                                                                                             : make_file(box);
    if (error != 0) sg_outbox_close(out);
    return error;
}

void sg_outbox_close(struct sg_transport *transport) {
    struct outbox *box = transport->state;
    char path[4096];
    if (box == NULL) return;
    for (uint32_t i = 0; i < SG_EXCHANGE_PROXIES; i++)
        if (box->peers[i] != NULL) munmap(box->peers[i], OUTBOX_BYTES);
    if (box->base != NULL) munmap(box->base, OUTBOX_BYTES);
    if (box->file >= 0) {
        path_of(box, box->index, path);
        unlink(path);
        close(box->file);
    }
    free(box);
    transport->state = NULL;
}
