/* What a rank says through its session, and what it hears: state, messages, bulk data.  See link.h for the contract
 * and wait.h for how we wait. */
#include "link_state.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#define SHARED_SLOT (SG_REPLY_SLOTS - 1) /* for threads that found no slot of their own */

/* ---- state ----------------------------------------------------------------------------------------- */
uint32_t sg_link_dead(const sg_link *link) {
    if (atomic_load(&((struct sg_link *)link)->closed)) return SG_DEAD_CLOSED;
    uint32_t dead = atomic_load_explicit(&link->page->dead, memory_order_acquire);
    return dead != SG_DEAD_NO ? dead : atomic_load_explicit(&link->door->dead, memory_order_acquire);
}

/* As above, after a wait that timed out: looks in /proc too, for when nobody is left to write a word. */
static uint32_t dead_after_wait(struct sg_link *link) {
    uint32_t dead = sg_link_dead(link);
    if (dead == SG_DEAD_NO && link->proxy_visible && !sg_proxy_alive(link->door)) {
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
    sg_lock_take(&link->lock);
    struct sg_message *message = sg_ring_reserve(&link->producer, lines);
    if (message == NULL && (message = await_room(link, lines)) == NULL) {
        sg_lock_release(&link->lock);
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

#define FAR_MESSAGES 64u /* so many take the proxy about as long as it takes to sleep and to be woken */

/* A call on its way.  far: its answer comes after many messages, so to poll for it would only take a CPU from who works on them. */
struct sg_pending { struct sg_reply_slot *slot; uint32_t call; int far; };

/* Ends a `begin`.  The proxy polls the line that the header goes to, and takes it away from us whenever it looks; so
 * all stores to it come at once.  A call raises `calls` before the lock is let go, and lowers it after its reply.
 * Returns how many messages were posted before it since the last call. */
static uint32_t publish(struct sg_link *link, int is_call) {
    int light = link->light && atomic_load_explicit(&link->calls, memory_order_acquire) == 0;
    link->head.flags = link->lock.crowded ? 0 : SG_MESSAGE_ALONE;
    memcpy(&link->open->op, &link->head.op, SG_HEADER_BYTES - offsetof(struct sg_message, op));
    sg_ring_publish(&link->producer, link->open, link->head.lines, light);
    if (is_call) atomic_fetch_add(&link->calls, 1);
    uint32_t posted = link->posted;
    link->posted = is_call ? 0 : posted + 1;
    /* A call that said it was alone may be in flight, and the proxy need not tell us then that nobody polls. */
    if (link->lock.newcomer) {
        link->lock.newcomer = 0;
        sg_ring_bell(link->page, 1);
    }
    sg_lock_release(&link->lock);
    return posted;
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
        sg_slot_release(&link->replies[i]);
        break;
    }
    return NULL;
}

/* Publishes the open message with a reply asked for.  `end_call` ends it. */
static struct sg_pending publish_call(struct sg_link *link) {
    struct sg_pending pending = {.slot = own_slot(link)};
    if (pending.slot == NULL) {
        /* More threads than slots: they take turns on the last one.  The lock order is `lock` then
         * `shared_slot`; who holds the latter waits only for the proxy, never for `lock`. */
        pending.slot = &link->replies[SHARED_SLOT];
        pthread_mutex_lock(&link->shared_slot);
    }
    pending.call = atomic_load_explicit(&pending.slot->done, memory_order_relaxed) + 1;
    link->head.reply = (uint16_t)(pending.slot - link->replies);
    link->head.call = pending.call;
    pending.far = publish(link, 1) >= FAR_MESSAGES;
    return pending;
}

static int32_t end_call(struct sg_link *link, const struct sg_pending *pending, int32_t status) {
    atomic_fetch_sub(&link->calls, 1);
    if (pending->slot == &link->replies[SHARED_SLOT]) pthread_mutex_unlock(&link->shared_slot);
    return status;
}

static int answered(const struct sg_pending *pending) {
    return atomic_load_explicit(&pending->slot->done, memory_order_acquire) == pending->call;
}

static int await_answer(struct sg_link *link, const struct sg_pending *pending) {
    struct sg_reply_slot *slot = pending->slot;
    struct sg_patience patience = {0};
    for (int polls = !pending->far; !answered(pending); polls = 1) {
        if (polls && sg_patience_left(&patience)) continue;
        atomic_store(&slot->waiting, 1);
        uint32_t seen = atomic_load(&slot->done);
        if (seen != pending->call) sg_futex_wait(&slot->done, seen, SG_WAIT_MS);
        atomic_store(&slot->waiting, 0);
        if (!answered(pending) && dead_after_wait(link) != SG_DEAD_NO) return -EPIPE;
    }
    return 0;
}

int32_t sg_link_call(sg_link *link, void *reply, uint32_t capacity, uint32_t *got) {
    struct sg_pending pending = publish_call(link);
    if (await_answer(link, &pending) != 0) return end_call(link, &pending, -EPIPE);
    const struct sg_reply_slot *slot = pending.slot;
    uint32_t bytes = slot->bytes < SG_REPLY_PAYLOAD ? slot->bytes : SG_REPLY_PAYLOAD;
    if (reply != NULL && bytes != 0) memcpy(reply, slot->payload, bytes < capacity ? bytes : capacity);
    if (got != NULL) *got = bytes;
    return end_call(link, &pending, slot->status);
}

/* ---- bulk -------------------------------------------------------------------------------------------- */
/* Chunk counters start at zero with each transfer: the bulk lock is held, so the previous transfer's reply
 * has come and the proxy touches them no more.  Each side wakes the other after every chunk: one system
 * call per 256 KiB is not measurable, and no flag can be lost. */
static struct sg_pending publish_bulk(struct sg_link *link) {
    atomic_store(&link->page->chunks_filled, 0);
    atomic_store(&link->page->chunks_drained, 0);
    return publish_call(link);
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
static int await_chunk(struct sg_link *link, _Atomic uint32_t *word, uint32_t count, const struct sg_pending *pending) {
    struct sg_patience patience = {0};
    for (;;) {
        int ended = answered(pending); /* looked at first: what was filled before the end counts */
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
    struct sg_pending pending = publish_bulk(link);
    for (uint64_t done = 0, i = 0; done < bytes; i++) {
        if (i >= SG_STAGING_CHUNKS) {
            int go = await_chunk(link, &page->chunks_drained, (uint32_t)i - SG_STAGING_CHUNKS, &pending);
            if (go < 0) return end_call(link, &pending, go);
            if (go == 0) break;
        }
        uint64_t part = bytes - done < SG_STAGING_CHUNK ? bytes - done : SG_STAGING_CHUNK;
        copy_to_staging(link->staging + (i % SG_STAGING_CHUNKS) * SG_STAGING_CHUNK, (const uint8_t *)data + done, part);
        atomic_store_explicit(&page->chunks_filled, (uint32_t)i + 1, memory_order_release);
        sg_futex_wake(&page->chunks_filled, 1);
        done += part;
    }
    int gone = await_answer(link, &pending);
    return end_call(link, &pending, gone != 0 ? gone : pending.slot->status);
}

int32_t sg_link_call_receive(sg_link *link, void *data, uint64_t bytes) {
    struct sg_session_page *page = link->page;
    struct sg_pending pending = publish_bulk(link);
    for (uint64_t done = 0, i = 0; done < bytes; i++) {
        int go = await_chunk(link, &page->chunks_filled, (uint32_t)i, &pending);
        if (go < 0) return end_call(link, &pending, go);
        if (go == 0) break;
        uint64_t part = bytes - done < SG_STAGING_CHUNK ? bytes - done : SG_STAGING_CHUNK;
        copy_from_staging((uint8_t *)data + done, link->staging + (i % SG_STAGING_CHUNKS) * SG_STAGING_CHUNK, part);
        atomic_store_explicit(&page->chunks_drained, (uint32_t)i + 1, memory_order_release);
        sg_futex_wake(&page->chunks_drained, 1);
        done += part;
    }
    int gone = await_answer(link, &pending);
    return end_call(link, &pending, gone != 0 ? gone : pending.slot->status);
}

void sg_link_bulk_lock(sg_link *link) { pthread_mutex_lock(&link->bulk); }
void sg_link_bulk_unlock(sg_link *link) { pthread_mutex_unlock(&link->bulk); }

/* ---- host functions ---------------------------------------------------------------------------------- */
int sg_link_host_next(sg_link *link, struct sg_host_function *out) {
    struct sg_session_page *page = link->page;
    struct sg_patience patience = {0};
    uint32_t offered, called = atomic_load_explicit(&page->host_called, memory_order_relaxed);
    while ((offered = atomic_load(&page->host_offered)) == called) {
        if (sg_patience_left(&patience)) continue;
        sg_futex_wait(&page->host_offered, offered, SG_WAIT_MS);
        if (dead_after_wait(link) != SG_DEAD_NO) return -EPIPE;
    }
    *out = page->host;
    return 0;
}

void sg_link_host_returned(sg_link *link) {
    atomic_fetch_add(&link->page->host_called, 1);
    sg_futex_wake(&link->page->host_called, 1);
}
