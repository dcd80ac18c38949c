/* The rank's end of a session.  See link.h for the contract and wait.h for how we wait.
 *
 * Nothing here is ever unmapped while the process lives: a daemon thread may still be inside a call
 * when the library is told to close at exit, and a crash at exit is worse than a few megabytes.
 * The windows at fixed addresses are reserved once per process and reused by a later session. */
#include "link.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "ring.h"

#define SHARED_SLOT (SG_REPLY_SLOTS - 1) /* for threads that found no slot of their own */
#define READY_MS 30000u

/* The producer lock, biased towards the thread that posts most: a lock instruction per message would cost
 * more than the message.  The owner takes it with plain stores; any other thread first revokes the bias
 * (with a barrier that the kernel puts into the owner), and from then on all use the mutex, until one
 * thread has had it many times in a row. */
struct producer_lock {
    pthread_mutex_t mutex;
    int can_bias;
    _Atomic uint64_t owner; /* thread that may take the short way; 0: none */
    _Atomic uint32_t held;  /* by the owner, the short way */
    /* what follows belongs to the holder */
    int short_way;          /* how it was taken */
    uint64_t last;          /* who had the mutex last, and how often in a row */
    uint32_t streak;
    int crowded, newcomer;  /* a second thread has come; it has it now, for the first time */
};
#define BIAS_AFTER 256u

struct sg_link {
    struct sg_door *door;
    struct sg_claim *claim;
    struct sg_session_page *page;
    struct sg_reply_slot *replies;
    uint8_t *staging, *pinned;
    int pinned_file;
    int proxy_visible; /* /proc shows the proxy to us (else it lives in another pid namespace) */
    _Atomic uint32_t closed;
    pthread_key_t slot_key;
    pthread_mutex_t shared_slot, bulk;
    struct producer_lock lock; /* from begin to post or call: guards what follows */
    int light;                 /* posts need no barrier, see wait.h ... */
    _Atomic uint32_t calls;    /* ... unless a call is in flight: then the proxy lends its lead without one */
    struct sg_producer producer;
    struct sg_message *open;
    struct sg_message head; /* of `open`: written to the ring as late as can be, see publish */
    struct sg_link *before; /* all links of this process, as none is ever freed */
};
static _Atomic(struct sg_link *) all_links;

/* ---- producer lock --------------------------------------------------------------------------------- */
static void lock_init(struct producer_lock *lock) {
    pthread_mutex_init(&lock->mutex, NULL);
    lock->can_bias = sg_membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) == 0;
}

__attribute__((noinline)) static void lock_take_long(struct producer_lock *lock, uint64_t me) {
    pthread_mutex_lock(&lock->mutex);
    if (atomic_load_explicit(&lock->owner, memory_order_relaxed) != 0) {
        atomic_store(&lock->owner, 0);
        sg_membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED);
        while (atomic_load_explicit(&lock->held, memory_order_acquire)) sched_yield();
        lock->streak = 0;
    }
    lock->streak = lock->last == me ? lock->streak + 1 : 0;
    if (lock->last != me && lock->last != 0 && !lock->crowded) lock->crowded = lock->newcomer = 1;
    lock->last = me;
    lock->short_way = 0;
}

static void lock_take(struct producer_lock *lock) {
    uint64_t me = (uint64_t)pthread_self();
    if (atomic_load_explicit(&lock->owner, memory_order_relaxed) == me) {
        atomic_store_explicit(&lock->held, 1, memory_order_relaxed);
        atomic_signal_fence(memory_order_seq_cst);
        if (atomic_load_explicit(&lock->owner, memory_order_acquire) == me) {
            lock->short_way = 1;
            return;
        }
        atomic_store_explicit(&lock->held, 0, memory_order_release);
    }
    lock_take_long(lock, me);
}

static void lock_release(struct producer_lock *lock) {
    if (lock->short_way) {
        atomic_store_explicit(&lock->held, 0, memory_order_release);
        return;
    }
    if (lock->streak >= BIAS_AFTER && lock->can_bias) atomic_store(&lock->owner, lock->last);
    pthread_mutex_unlock(&lock->mutex);
}

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
/* Field 22 of /proc/<pid>/stat, counted after the last ')': the name may hold anything.
 * 0: no such process, or only its remains, which wait for their parent. */
static uint64_t process_start(uint32_t pid) {
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%u/stat", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    ssize_t got = read(fd, text, sizeof text - 1);
    close(fd);
    if (got <= 0) return 0;
    text[got] = 0;
    char *at = strrchr(text, ')');
    for (int field = 2; at != NULL && field < 22; field++) at = strchr(at + 1, ' ');
    return at == NULL ? 0 : strtoull(at + 1, NULL, 10);
}

static int proxy_alive(const struct sg_door *door) {
    return process_start(door->proxy_pid) == door->proxy_start;
}

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
        claim->pid_start = process_start(claim->pid);
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
                   (link->proxy_visible && !proxy_alive(link->door));
        if (gone || sg_now_ns() > until) {
            snprintf(why, 128, gone ? "the device proxy is gone" : "the device proxy did not answer for 30 s");
            atomic_compare_exchange_strong(&link->claim->state, &state, SG_SLOT_FREE);
            return gone ? -EPIPE : -ETIMEDOUT;
        }
        sg_futex_wait(&link->claim->state, state, SG_WAIT_MS);
    }
}

static void release_slot(void *slot) { atomic_store(&((struct sg_reply_slot *)slot)->taken, 0); }

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
    link->proxy_visible = proxy_alive(link->door);
    int error = await_session(link, why);
    if (error != 0) return error;
    error = map_session(link, directory, window);
    if (error == 0) error = -pthread_key_create(&link->slot_key, release_slot);
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
    lock_init(&link->lock);
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

/* ---- state ----------------------------------------------------------------------------------------- */
uint32_t sg_link_dead(const sg_link *link) {
    if (atomic_load(&((struct sg_link *)link)->closed)) return SG_DEAD_CLOSED;
    uint32_t dead = atomic_load_explicit(&link->page->dead, memory_order_acquire);
    return dead != SG_DEAD_NO ? dead : atomic_load_explicit(&link->door->dead, memory_order_acquire);
}

/* As above, after a wait that timed out: looks in /proc too, for when nobody is left to write a word. */
static uint32_t dead_after_wait(struct sg_link *link) {
    uint32_t dead = sg_link_dead(link);
    if (dead == SG_DEAD_NO && link->proxy_visible && !proxy_alive(link->door)) {
        dead = SG_DEAD_PROXY;
        atomic_store(&link->page->dead, dead);
    }
    return dead;
}

uint32_t sg_link_async_error(const sg_link *link) {
    if (atomic_load(&((struct sg_link *)link)->closed)) return 0;
    return atomic_load_explicit(&link->page->async_error, memory_order_acquire);
}

uint32_t sg_link_async_take(sg_link *link) {
    uint32_t error = sg_link_async_error(link);
    if (error == 0 || sg_sticky(error)) return error;
    return atomic_compare_exchange_strong(&link->page->async_error, &error, 0) ? error : sg_link_async_error(link);
}

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

/* ---- messages --------------------------------------------------------------------------------------- */
/* The ring is full: waits until it is not.  NULL: the session died. */
__attribute__((noinline)) static struct sg_message *await_room(struct sg_link *link, uint32_t lines) {
    struct sg_patience patience = {0};
    struct sg_message *message;
    while ((message = sg_ring_reserve(&link->producer, lines)) == NULL) {
        if (sg_patience_left(&patience)) continue;
        sg_ring_wait_room(&link->producer);
        if (dead_after_wait(link) != SG_DEAD_NO) return NULL;
    }
    return message;
}

uint8_t *sg_link_begin(sg_link *link, uint32_t op, uint32_t context, uint32_t bytes) {
    uint32_t lines = sg_ring_lines(bytes);
    if (bytes > SG_MAX_PAYLOAD || sg_link_dead(link) != SG_DEAD_NO) return NULL;
    lock_take(&link->lock);
    struct sg_message *message = sg_ring_reserve(&link->producer, lines);
    if (message == NULL && (message = await_room(link, lines)) == NULL) {
        lock_release(&link->lock);
        return NULL;
    }
    struct sg_message *head = &link->head;
    head->op = op;
    head->lines = (uint16_t)lines;
    head->reply = SG_NO_REPLY;
    head->call = 0;
    head->bytes = bytes;
    head->context = context;
    link->open = message;
    return message->payload;
}

/* Ends a `begin`.  The proxy polls the line that the header goes to, and takes it away from us whenever it looks; so
 * all stores to it come at once.  A call raises `calls` before the lock is let go, and lowers it after its reply. */
static void publish(struct sg_link *link, int is_call) {
    int light = link->light && atomic_load_explicit(&link->calls, memory_order_acquire) == 0;
    link->head.flags = link->lock.crowded ? 0 : SG_MESSAGE_ALONE;
    memcpy(&link->open->op, &link->head.op, SG_HEADER_BYTES - offsetof(struct sg_message, op));
    sg_ring_publish(&link->producer, link->open, link->head.lines, light);
    if (is_call) atomic_fetch_add(&link->calls, 1);
    /* A call that said it was alone may be in flight, and the proxy need not tell us then that nobody polls. */
    if (link->lock.newcomer) {
        link->lock.newcomer = 0;
        sg_ring_bell(link->page, 1);
    }
    lock_release(&link->lock);
}

void sg_link_post(sg_link *link) { publish(link, 0); }

static struct sg_reply_slot *own_slot(struct sg_link *link) {
    struct sg_reply_slot *slot = pthread_getspecific(link->slot_key);
    if (slot != NULL) return slot;
    for (uint32_t i = 0; i < SHARED_SLOT; i++) {
        uint32_t free_slot = 0;
        if (atomic_load(&link->replies[i].taken) ||
            !atomic_compare_exchange_strong(&link->replies[i].taken, &free_slot, 1))
            continue;
        if (pthread_setspecific(link->slot_key, &link->replies[i]) == 0) return &link->replies[i];
        release_slot(&link->replies[i]);
        break;
    }
    return NULL;
}

/* Publishes the open message with a reply asked for; the slot to wait on.  `end_call` ends it. */
static struct sg_reply_slot *publish_call(struct sg_link *link, uint32_t *call) {
    struct sg_reply_slot *slot = own_slot(link);
    if (slot == NULL) {
        /* More threads than slots: they take turns on the last one.  The lock order is `lock` then
         * `shared_slot`; who holds the latter waits only for the proxy, never for `lock`. */
        slot = &link->replies[SHARED_SLOT];
        pthread_mutex_lock(&link->shared_slot);
    }
    *call = atomic_load_explicit(&slot->done, memory_order_relaxed) + 1;
    link->head.reply = (uint16_t)(slot - link->replies);
    link->head.call = *call;
    publish(link, 1);
    return slot;
}

static int32_t end_call(struct sg_link *link, struct sg_reply_slot *slot, int32_t status) {
    atomic_fetch_sub(&link->calls, 1);
    if (slot == &link->replies[SHARED_SLOT]) pthread_mutex_unlock(&link->shared_slot);
    return status;
}

static int answered(struct sg_reply_slot *slot, uint32_t call) {
    return atomic_load_explicit(&slot->done, memory_order_acquire) == call;
}

static int await_answer(struct sg_link *link, struct sg_reply_slot *slot, uint32_t call) {
    struct sg_patience patience = {0};
    while (!answered(slot, call)) {
        if (sg_patience_left(&patience)) continue;
        atomic_store(&slot->waiting, 1);
        uint32_t seen = atomic_load(&slot->done);
        if (seen != call) sg_futex_wait(&slot->done, seen, SG_WAIT_MS);
        atomic_store(&slot->waiting, 0);
        if (!answered(slot, call) && dead_after_wait(link) != SG_DEAD_NO) return -EPIPE;
    }
    return 0;
}

int32_t sg_link_call(sg_link *link, void *reply, uint32_t capacity, uint32_t *got) {
    uint32_t call;
    struct sg_reply_slot *slot = publish_call(link, &call);
    if (await_answer(link, slot, call) != 0) return end_call(link, slot, -EPIPE);
    uint32_t bytes = slot->bytes < SG_REPLY_PAYLOAD ? slot->bytes : SG_REPLY_PAYLOAD;
    if (reply != NULL && bytes != 0) memcpy(reply, slot->payload, bytes < capacity ? bytes : capacity);
    if (got != NULL) *got = bytes;
    return end_call(link, slot, slot->status);
}

/* ---- bulk -------------------------------------------------------------------------------------------- */
/* Chunk counters start at zero with each transfer: the bulk lock is held, so the previous transfer's reply
 * has come and the proxy touches them no more.  Each side wakes the other after every chunk: one system
 * call per 256 KiB is not measurable, and no flag can be lost. */
static struct sg_reply_slot *publish_bulk(struct sg_link *link, uint32_t *call) {
    atomic_store(&link->page->chunks_filled, 0);
    atomic_store(&link->page->chunks_drained, 0);
    return publish_call(link, call);
}

/* To staging, past our cache: lines that lie modified in it come to the proxy at 3 to 6 GB/s when the two CPUs share no
 * cache, while from memory they come at 10. */
static void copy_to_staging(uint8_t *to, const uint8_t *from, uint64_t bytes) {
    uint64_t done = 0;
#if defined(__SSE2__)
    for (; bytes - done >= SG_LINE; done += SG_LINE)
        for (uint64_t i = done; i < done + SG_LINE; i += 16)
            _mm_stream_si128((__m128i *)(to + i), _mm_loadu_si128((const __m128i *)(from + i)));
    _mm_sfence();
#endif
    memcpy(to + done, from + done, bytes - done);
}

/* In pieces that libc copies by vectors.  Larger ones it copies by `rep movsb`, which on Zen is half as fast to an address
 * that is no multiple of 64; and what malloc returns never is. */
static void copy_from_staging(uint8_t *to, const uint8_t *from, uint64_t bytes) {
    for (uint64_t done = 0, part; done < bytes; done += part) {
        part = bytes - done < 4096 ? bytes - done : 4096;
        memcpy(to + done, from + done, part);
    }
}

/* Waits until `word` has passed `count`.  1: yes; 0: the call has ended before; -EPIPE. */
static int await_chunk(struct sg_link *link, _Atomic uint32_t *word, uint32_t count, struct sg_reply_slot *slot,
                       uint32_t call) {
    struct sg_patience patience = {0};
    for (;;) {
        int ended = answered(slot, call); /* looked at first: what was filled before the end counts */
        uint32_t seen = atomic_load_explicit(word, memory_order_acquire);
        if ((int32_t)(seen - count) > 0) return 1;
        if (ended) return 0;
        if (sg_patience_left(&patience)) continue;
        sg_futex_wait(word, seen, SG_WAIT_MS);
        if (dead_after_wait(link) != SG_DEAD_NO) return -EPIPE;
    }
}

int32_t sg_link_call_send(sg_link *link, const void *data, uint64_t bytes) {
    struct sg_session_page *page = link->page;
    uint32_t call;
    struct sg_reply_slot *slot = publish_bulk(link, &call);
    for (uint64_t done = 0, i = 0; done < bytes; i++) {
        if (i >= SG_STAGING_CHUNKS) {
            int go = await_chunk(link, &page->chunks_drained, (uint32_t)i - SG_STAGING_CHUNKS, slot, call);
            if (go < 0) return end_call(link, slot, go);
            if (go == 0) break;
        }
        uint64_t part = bytes - done < SG_STAGING_CHUNK ? bytes - done : SG_STAGING_CHUNK;
        copy_to_staging(link->staging + (i % SG_STAGING_CHUNKS) * SG_STAGING_CHUNK, (const uint8_t *)data + done, part);
        atomic_store_explicit(&page->chunks_filled, (uint32_t)i + 1, memory_order_release);
        sg_futex_wake(&page->chunks_filled, 1);
        done += part;
    }
    int gone = await_answer(link, slot, call);
    return end_call(link, slot, gone != 0 ? gone : slot->status);
}

int32_t sg_link_call_receive(sg_link *link, void *data, uint64_t bytes) {
    struct sg_session_page *page = link->page;
    uint32_t call;
    struct sg_reply_slot *slot = publish_bulk(link, &call);
    for (uint64_t done = 0, i = 0; done < bytes; i++) {
        int go = await_chunk(link, &page->chunks_filled, (uint32_t)i, slot, call);
        if (go < 0) return end_call(link, slot, go);
        if (go == 0) break;
        uint64_t part = bytes - done < SG_STAGING_CHUNK ? bytes - done : SG_STAGING_CHUNK;
        copy_from_staging((uint8_t *)data + done, link->staging + (i % SG_STAGING_CHUNKS) * SG_STAGING_CHUNK, part);
        atomic_store_explicit(&page->chunks_drained, (uint32_t)i + 1, memory_order_release);
        sg_futex_wake(&page->chunks_drained, 1);
        done += part;
    }
    int gone = await_answer(link, slot, call);
    return end_call(link, slot, gone != 0 ? gone : slot->status);
}

void sg_link_bulk_lock(sg_link *link) { pthread_mutex_lock(&link->bulk); }
void sg_link_bulk_unlock(sg_link *link) { pthread_mutex_unlock(&link->bulk); }
