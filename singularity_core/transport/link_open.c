/* How a rank comes to a session, and leaves it: the door, the claim, the files and the windows. */
#include "link_state.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#define READY_MS 30000u
static _Atomic(struct sg_link *) all_links;

/* ---- files and windows --------------------------------------------------------------------------- */
static void *map_file(const char *directory, const char *name, uint64_t bytes, int protection, int *file) {
    char path[4096];
    if (snprintf(path, sizeof path, "%s/%s", directory, name) >= (int)sizeof path) {
        errno = ENAMETOOLONG;
        return NULL;
    }
    int fd = open(path, (protection & PROT_WRITE ? O_RDWR : O_RDONLY) | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0) return NULL;
    struct stat status;
    void *at = NULL;
    if (fstat(fd, &status) == 0 && (uint64_t)status.st_size < bytes) {
        errno = EPROTO;
    } else if (file == NULL) {
        at = mmap(NULL, bytes, protection, MAP_SHARED | MAP_POPULATE, fd, 0); /* no page faults when it matters */
        if (at == MAP_FAILED) at = NULL;
    } else {
        *file = fd;
        return (void *)1;
    }
    int saved = errno;
    close(fd);
    errno = saved;
    return at;
}

/* Reserved by this process already?  Survives fork, as the reservations do. */
static _Atomic uint8_t reserved_pinned[SG_MAX_WINDOWS];
static _Atomic uint8_t reserved_device;

static int reserve(uint64_t address, uint64_t bytes, _Atomic uint8_t *mine) {
    if (atomic_load(mine)) return 0;
    void *at = mmap((void *)address, bytes, PROT_NONE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
    if (at == MAP_FAILED) return -errno;
    if (at != (void *)address) { /* a kernel before 4.17 takes the address as a hint */
        munmap(at, bytes);
        return -EEXIST;
    }
    atomic_store(mine, 1);
    return 0;
}

/* ---- the door ------------------------------------------------------------------------------------- */
static struct sg_door *map_door(const char *directory, int protection) {
    uint64_t until = sg_now_ns() + READY_MS * 1000000ull;
    struct sg_door *door = map_file(directory, "door", sizeof *door, protection, NULL);
    if (door == NULL) return NULL;
    while (!atomic_load((_Atomic uint32_t *)&door->ready) && sg_now_ns() < until) usleep(2000);
    int error = 0;
    if (!atomic_load((_Atomic uint32_t *)&door->ready)) error = ETIMEDOUT;
    else if (door->magic != SG_DOOR_MAGIC || door->protocol != SG_PROTOCOL) error = EPROTO;
    if (error == 0) return door;
    munmap(door, sizeof *door);
    errno = error;
    return NULL;
}

const struct sg_door *sg_door_map(const char *directory) { return map_door(directory, PROT_READ); }

static struct sg_claim *claim_slot(struct sg_door *door, uint32_t rank, uint32_t sub) {
    for (uint32_t i = 0; i < SG_DOOR_SLOTS; i++) {
        struct sg_claim *claim = &door->slots[i];
        uint32_t free_state = SG_SLOT_FREE;
        if (!atomic_compare_exchange_strong(&claim->state, &free_state, SG_SLOT_CLAIMING)) continue;
        claim->pid = (uint32_t)getpid();
        claim->pid_start = sg_process_start(claim->pid);
        claim->rank = rank;
        claim->sub = sub;
        uint32_t claiming = SG_SLOT_CLAIMING; /* the proxy takes a slot back from who dawdles for long */
        if (!atomic_compare_exchange_strong(&claim->state, &claiming, SG_SLOT_CLAIMED)) continue;
        atomic_fetch_add(&door->bell, 1);
        sg_futex_wake(&door->bell, INT_MAX);
        return claim;
    }
    return NULL;
}

/* 0: the session is open. */
static int await_session(struct sg_link *link, char why[128]) {
    uint64_t until = sg_now_ns() + READY_MS * 1000000ull;
    for (;;) {
        uint32_t state = atomic_load(&link->claim->state);
        if (state == SG_SLOT_OPEN) return 0;
        if (state == SG_SLOT_REFUSED) {
            snprintf(why, 128, "%.96s", link->claim->said);
            atomic_store(&link->claim->state, SG_SLOT_FREE);
            return -ECONNREFUSED;
        }
        int gone = state != SG_SLOT_CLAIMED || atomic_load(&link->door->dead) ||
                   (link->proxy_visible && !sg_proxy_alive(link->door));
        if (gone || sg_now_ns() > until) {
            snprintf(why, 128, gone ? "the device proxy is gone" : "the device proxy did not answer for 30 s");
            atomic_compare_exchange_strong(&link->claim->state, &state, SG_SLOT_FREE);
            return gone ? -EPIPE : -ETIMEDOUT;
        }
        sg_futex_wait(&link->claim->state, state, SG_WAIT_MS);
    }
}

static int map_session(struct sg_link *link, const char *directory, uint32_t window) {
    char name[32];
    uint32_t index = (uint32_t)(link->claim - link->door->slots);
    snprintf(name, sizeof name, "%u.session", index);
    uint8_t *at = map_file(directory, name, SG_SESSION_BYTES, PROT_READ | PROT_WRITE, NULL);
    if (at == NULL) return -errno;
    link->page = (struct sg_session_page *)at;
    if (link->page->magic != SG_SESSION_MAGIC || link->page->protocol != SG_PROTOCOL || link->page->window != window)
        return -EPROTO;
    link->replies = (struct sg_reply_slot *)(at + SG_REPLIES_OFFSET);
    link->staging = at + SG_STAGING_OFFSET;
    link->producer.page = link->page;
    link->producer.ring = at + SG_RING_OFFSET;
    link->producer.head = link->producer.tail = atomic_load(&link->page->head);
    link->light = link->page->barriers && sg_membarrier(MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED) == 0;
    snprintf(name, sizeof name, "%u.pinned", index);
    if (map_file(directory, name, SG_PINNED_WINDOW, PROT_READ | PROT_WRITE, &link->pinned_file) == NULL) return -errno;
    link->pinned = (uint8_t *)(SG_PINNED_BASE + window * SG_PINNED_WINDOW);
    return 0;
}

static int open_claimed(struct sg_link *link, const char *directory, uint32_t window, char why[128]) {
    link->proxy_visible = sg_proxy_alive(link->door);
    int error = await_session(link, why);
    if (error != 0) return error;
    error = map_session(link, directory, window);
    if (error == 0) error = -pthread_key_create(&link->slot_key, sg_slot_release);
    /* an earlier session of this process may have left pages in the window */
    if (error == 0 && mmap(link->pinned, SG_PINNED_WINDOW, PROT_NONE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED)
        error = -errno;
    if (error != 0) snprintf(why, 128, "cannot map the session's files: %s", strerror(-error));
    return error;
}

int sg_link_open(sg_link **out, const char *directory, uint32_t rank, uint32_t sub, char why[128]) {
    why[0] = 0;
    if (sub >= SG_WINDOWS_PER_RANK || rank >= SG_MAX_WINDOWS / SG_WINDOWS_PER_RANK) {
        snprintf(why, 128, "rank %u, child %u: only ranks below %u with %u windows each are supported", rank, sub,
                 SG_MAX_WINDOWS / SG_WINDOWS_PER_RANK, SG_WINDOWS_PER_RANK);
        return -EINVAL;
    }
    uint32_t window = rank * SG_WINDOWS_PER_RANK + sub;
    int error = reserve(SG_DEVICE_BASE, SG_DEVICE_WINDOW, &reserved_device);
    if (error == 0)
        error = reserve(SG_PINNED_BASE + window * SG_PINNED_WINDOW, SG_PINNED_WINDOW, &reserved_pinned[window]);
    if (error != 0) {
        snprintf(why, 128, "cannot reserve the address windows: %s", strerror(-error));
        return error;
    }
    struct sg_link *link = calloc(1, sizeof *link);
    if (link == NULL) return -ENOMEM;
    sg_lock_init(&link->lock);
    pthread_mutex_init(&link->bulk, NULL);
    pthread_mutex_init(&link->shared_slot, NULL);
    link->pinned_file = -1;
    link->door = map_door(directory, PROT_READ | PROT_WRITE);
    if (link->door == NULL) {
        error = -errno;
        snprintf(why, 128, "no device proxy serves %.70s: %s", directory, strerror(-error));
    } else if ((link->claim = claim_slot(link->door, rank, sub)) == NULL) {
        error = -EBUSY;
        snprintf(why, 128, "all %u sessions of this device proxy are taken", SG_DOOR_SLOTS);
    } else {
        error = open_claimed(link, directory, window, why);
        if (error != 0 && atomic_load(&link->claim->state) == SG_SLOT_OPEN) sg_link_close(link);
    }
    if (error == 0) {
        link->before = atomic_exchange(&all_links, link);
        *out = link;
    } else if (link->door != NULL) munmap(link->door, sizeof *link->door), free(link);
    else free(link);
    return error;
}

void sg_link_close(sg_link *link) {
    uint32_t open = SG_SLOT_OPEN;
    if (atomic_exchange(&link->closed, 1)) return;
    /* a session that the proxy ended is not ours any more: the slot may serve another rank */
    if (link->page != NULL && atomic_load(&link->page->dead) != SG_DEAD_NO) return;
    if (!atomic_compare_exchange_strong(&link->claim->state, &open, SG_SLOT_CLOSING)) return;
    atomic_fetch_add(&link->door->bell, 1);
    sg_futex_wake(&link->door->bell, INT_MAX);
}

void sg_link_abandon(sg_link *link) {
    atomic_store(&link->closed, 1);
    pthread_key_delete(link->slot_key); /* the forking thread's slot is the parent's */
    munmap(link->page, SG_SESSION_BYTES);
    munmap(link->door, sizeof *link->door);
    link->page = NULL;
    link->door = NULL;
    close(link->pinned_file);
}

/* ---- the page-locked window ----------------------------------------------------------------------- */
uint8_t *sg_link_pinned_base(const sg_link *link) { return link->pinned; }

int sg_link_pinned_commit(sg_link *link, uint64_t offset, uint64_t bytes, int on) {
    if (bytes == 0 || (offset | bytes) % 4096 != 0 || offset >= SG_PINNED_WINDOW || bytes > SG_PINNED_WINDOW - offset)
        return -EINVAL;
    void *at = on ? mmap(link->pinned + offset, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
                         link->pinned_file, (off_t)offset)
                  : mmap(link->pinned + offset, bytes, PROT_NONE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    return at == MAP_FAILED ? -errno : 0;
}
