#include "board.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../transport/wait.h"

#define PATH_BYTES 4096

/* ---- files that appear whole ---------------------------------------------------------------------------------- */
typedef void (*filler)(void *base, const void *argument);

static int map_file(int fd, uint64_t bytes, void **out) {
    *out = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return *out == MAP_FAILED ? -errno : 0;
}

/* `backed` bytes at the start get memory now: a full /dev/shm must be an error here, not a SIGBUS later. */
static int make_file(const char *directory, const char *path, uint64_t bytes, uint64_t backed, filler fill, const void *argument) {
    static uint32_t last;
    char draft[PATH_BYTES];
    void *base;
    if (snprintf(draft, sizeof draft, "%s/t-%d-%u", directory, (int)getpid(), sg_add(&last, 1)) >= PATH_BYTES) return -ENAMETOOLONG;
    int fd = open(draft, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0) return -errno;
    int error = ftruncate(fd, (off_t)bytes) == 0 ? -posix_fallocate(fd, 0, (off_t)backed) : -errno;
    if (error == 0) error = map_file(fd, bytes, &base);
    if (error == 0) {
        fill(base, argument);
        munmap(base, bytes);
        if (link(draft, path) != 0 && errno != EEXIST) error = -errno;
    }
    unlink(draft);
    close(fd);
    return error;
}

/* Opens an existing file of ours: its descriptor or -errno. */
static int open_file(const char *path, uint64_t *bytes) {
    struct stat status;
    int fd = open(path, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) return -errno;
    if (fstat(fd, &status) == 0 && S_ISREG(status.st_mode) && status.st_uid == geteuid()) {
        *bytes = (uint64_t)status.st_size;
        return fd;
    }
    close(fd);
    return -EPERM;
}

static int make_memory(uint64_t bytes, filler fill, const void *argument, void **out) {
    *out = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (*out == MAP_FAILED) return -errno;
    fill(*out, argument);
    return 0;
}

/* ---- board ------------------------------------------------------------------------------------------------------- */
static void fill_board(void *base, const void *argument) {
    struct sg_board *board = base;
    board->magic = SG_BOARD_MAGIC;
    board->version = SG_BOARD_VERSION;
    board->proxy_count = *(const uint32_t *)argument;
}

static int open_board(const char *directory, uint32_t proxy_count, void **out) {
    char path[PATH_BYTES];
    uint64_t bytes;
    if (snprintf(path, sizeof path, "%s/board", directory) >= PATH_BYTES) return -ENAMETOOLONG;
    int fd = open_file(path, &bytes);
    if (fd == -ENOENT) {
        int error = make_file(directory, path, sizeof(struct sg_board), sizeof(struct sg_board), fill_board, &proxy_count);
        fd = error != 0 ? error : open_file(path, &bytes);
    }
    if (fd < 0) return fd;
    int error = bytes == sizeof(struct sg_board) ? map_file(fd, bytes, out) : -EPROTO;
    close(fd);
    if (error != 0) return error;
    const struct sg_board *board = *out;
    if (board->magic == SG_BOARD_MAGIC && board->version == SG_BOARD_VERSION && board->proxy_count == proxy_count) return 0;
    munmap(*out, bytes);
    return -EPROTO;
}

struct sg_board *sg_board_open(const char *directory, uint32_t proxy_count, char why[256]) {
    void *base = NULL;
    int error = proxy_count == 0 || proxy_count > SG_EXCHANGE_PROXIES ? -ERANGE
                : directory == NULL ? make_memory(sizeof(struct sg_board), fill_board, &proxy_count, &base)
                                    : open_board(directory, proxy_count, &base);
    if (error == 0) return base;
    snprintf(why, 256, error == -EPROTO ? "%.180s/board is of another version or number of proxies"
                       : error == -ERANGE ? "one job has 1 to 64 proxies" : "cannot open the board in %.180s: %s",
             directory == NULL ? "memory" : directory, strerror(-error));
    return NULL;
}

void sg_board_close(struct sg_board *board) {
    if (board != NULL) munmap(board, sizeof *board);
}

/* ---- rosters ------------------------------------------------------------------------------------------------------ */
struct roster_form { const uint8_t *key; uint32_t ranks; };

static uint64_t whole_lines(uint64_t bytes) { return (bytes + 63) & ~63ull; }
static uint64_t lanes_offset(uint32_t ranks) { return whole_lines(sizeof(struct sg_roster) + ranks * sizeof(struct sg_roster_member)); }
static uint64_t pairs_offset(uint32_t ranks) {
    return (lanes_offset(ranks) + SG_EXCHANGE_PROXIES * sizeof(struct sg_roster_lane) + 4095) & ~4095ull;
}
static uint64_t roster_bytes(uint32_t ranks) { return pairs_offset(ranks) + (uint64_t)ranks * ranks * sizeof(struct sg_roster_pair); }

static void fill_roster(void *base, const void *argument) {
    const struct roster_form *form = argument;
    struct sg_roster *roster = base;
    roster->magic = SG_ROSTER_MAGIC;
    roster->version = SG_BOARD_VERSION;
    roster->ranks = form->ranks;
    roster->target = SG_NO_TARGET;
    memcpy(roster->key, form->key, sizeof roster->key);
}

static void place(struct sg_roster_map *map, void *base, uint32_t ranks, int file) {
    uint8_t *at = base;
    map->roster = base;
    map->members = (struct sg_roster_member *)(at + sizeof(struct sg_roster));
    map->lanes = (struct sg_roster_lane *)(at + lanes_offset(ranks));
    map->pairs = (struct sg_roster_pair *)(at + pairs_offset(ranks));
    map->bytes = roster_bytes(ranks);
    map->file = file;
}

/* An existing file, whose size must be what its head says. */
static int map_roster(const char *path, struct sg_roster_map *out) {
    uint64_t bytes;
    void *base;
    int fd = open_file(path, &bytes);
    if (fd < 0) return fd;
    int error = bytes < sizeof(struct sg_roster) ? -EPROTO : map_file(fd, bytes, &base);
    if (error == 0) {
        const struct sg_roster *roster = base;
        uint32_t ranks = roster->ranks;
        if (roster->magic != SG_ROSTER_MAGIC || roster->version != SG_BOARD_VERSION || ranks == 0 || ranks > SG_BOARD_RANKS ||
            bytes != roster_bytes(ranks)) {
            munmap(base, bytes);
            error = -EPROTO;
        } else {
            place(out, base, ranks, fd);
        }
    }
    if (error != 0) close(fd);
    return error;
}

static int roster_path(char path[PATH_BYTES], const char *directory, const uint8_t key[16]) {
    int used = snprintf(path, PATH_BYTES, "%s/c-", directory);
    if (used + 33 > PATH_BYTES) return -ENAMETOOLONG;
    for (int i = 0; i < 16; i++) used += snprintf(path + used, (size_t)(PATH_BYTES - used), "%02x", key[i]);
    return 0;
}

int sg_roster_open(const char *directory, const uint8_t key[16], uint32_t ranks, struct sg_roster_map *out) {
    struct roster_form form = {key, ranks};
    char path[PATH_BYTES];
    void *base;
    if (ranks == 0 || ranks > SG_BOARD_RANKS) return -ERANGE;
    if (directory == NULL) {
        int error = make_memory(roster_bytes(ranks), fill_roster, &form, &base);
        if (error == 0) place(out, base, ranks, -1);
        return error;
    }
    int error = roster_path(path, directory, key);
    if (error == 0) error = map_roster(path, out);
    if (error == -ENOENT) {
        error = make_file(directory, path, roster_bytes(ranks), pairs_offset(ranks), fill_roster, &form);
        if (error == 0) error = map_roster(path, out);
    }
    if (error != 0 || out->roster->ranks == ranks) return error;
    sg_roster_close(out);
    return -EINVAL;
}

int sg_roster_look(const char *directory, const char *name, struct sg_roster_map *out) {
    char path[PATH_BYTES];
    if (strncmp(name, "c-", 2) != 0 || strchr(name, '/') != NULL) return -EINVAL;
    if (snprintf(path, sizeof path, "%s/%s", directory, name) >= PATH_BYTES) return -ENAMETOOLONG;
    return map_roster(path, out);
}

void sg_roster_close(struct sg_roster_map *map) {
    if (map->roster == NULL) return;
    munmap(map->roster, map->bytes);
    if (map->file >= 0) close(map->file);
    map->roster = NULL;
}

void sg_roster_remove(const char *directory, const uint8_t key[16]) {
    char path[PATH_BYTES];
    if (directory != NULL && roster_path(path, directory, key) == 0) unlink(path);
}

int sg_roster_back_pair(const struct sg_roster_map *map, uint32_t from, uint32_t to) {
    const struct sg_roster_pair *pair = &map->pairs[from * map->roster->ranks + to];
    if (map->file < 0) return 0;
    return -posix_fallocate(map->file, (off_t)((const uint8_t *)pair - (const uint8_t *)map->roster), sizeof *pair);
}

int sg_roster_claim(struct sg_roster_member *member, uint32_t proxy) {
    struct sg_roster_member mine = {.state = SG_MEMBER_JOINING, .proxy = proxy};
    uint64_t absent = SG_MEMBER_ABSENT;
    return __atomic_compare_exchange_n(&member->place, &absent, mine.place, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

void sg_roster_wake(struct sg_roster *roster) {
    sg_add(&roster->wake, 1);
    sg_futex_wake((_Atomic uint32_t *)&roster->wake, INT_MAX);
}

void sg_roster_fail(struct sg_roster *roster, uint32_t error, uint32_t rank, const char *said) {
    uint32_t nobody = 0;
    if (!__atomic_compare_exchange_n(&roster->failing, &nobody, 1, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) return;
    roster->failed_rank = rank;
    snprintf(roster->said, sizeof roster->said, "%s", said);
    sg_store(&roster->error, error);
    sg_roster_wake(roster);
}
