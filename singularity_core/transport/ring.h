/* The ring itself: one ordered queue of messages of whole lines, many producers under one lock, one
 * consumer at a time.
 *
 * The sequence number lies *in* the message, so that a burst of posts moves no shared index between
 * the two CPUs' caches: the consumer polls the line where the next message must appear.  What makes
 * that safe:
 *   - the line after a message is free, and its seq word is zeroed, before the message is published;
 *     so the word that the consumer polls never holds stale payload;
 *   - a message is contiguous; one that does not fit before the ring's end is preceded by a PAD;
 *   - the consumer (the proxy) trusts nothing: it copies the header, puts a compiler barrier after the
 *     copy, checks the copy, then copies the rest, and uses only copies. */
#ifndef SG_RING_H
#define SG_RING_H

#include <stddef.h>
#include <string.h>

#include "layout.h"
#include "wait.h"

#define SG_HEADER_BYTES 32u
#define SG_MAX_PAYLOAD (SG_MAX_MESSAGE_LINES * SG_LINE - SG_HEADER_BYTES)
_Static_assert(offsetof(struct sg_message, payload) == SG_HEADER_BYTES, "payload follows the header");

static inline uint32_t sg_ring_lines(uint32_t bytes) { return (SG_HEADER_BYTES + bytes + SG_LINE - 1) / SG_LINE; }

static inline struct sg_message *sg_ring_at(uint8_t *ring, uint64_t line) {
    return (struct sg_message *)(ring + (line % SG_RING_LINES) * SG_LINE);
}

/* ---- producer (rank); its owner holds the producer lock --------------------------------------- */
struct sg_producer {
    struct sg_session_page *page;
    uint8_t *ring;
    uint64_t tail; /* next line to write */
    uint64_t head; /* as last seen: reading the shared word only when the ring looks full */
    uint32_t rung; /* the consumer's sleep that was ended last: waking takes it longer than many posts take us */
};

static inline void sg_ring_zero_seq(uint8_t *ring, uint64_t line) {
    atomic_store_explicit(&sg_ring_at(ring, line)->seq, 0, memory_order_relaxed);
}

/* Where the next message goes, contiguous; NULL: no room now. */
static inline struct sg_message *sg_ring_reserve(struct sg_producer *p, uint32_t lines) {
    uint32_t left = SG_RING_LINES - (uint32_t)(p->tail % SG_RING_LINES);
    uint32_t pad = left < lines ? left : 0;
    uint64_t need = p->tail + pad + lines + 1; /* 1: the line whose seq gets zeroed */
    if (need - p->head > SG_RING_LINES) {
        p->head = atomic_load_explicit(&p->page->head, memory_order_acquire);
        if (need - p->head > SG_RING_LINES) return NULL;
    }
    if (pad != 0) {
        struct sg_message *message = sg_ring_at(p->ring, p->tail);
        message->op = SG_OP_PAD;
        message->lines = (uint16_t)pad;
        message->reply = SG_NO_REPLY;
        message->call = message->bytes = message->context = message->flags = 0;
        sg_ring_zero_seq(p->ring, p->tail + pad);
        atomic_store_explicit(&message->seq, p->tail + 1, memory_order_release);
        p->tail += pad;
    }
    return sg_ring_at(p->ring, p->tail);
}

/* Sleeps until the consumer has moved, or 50 ms have passed. */
static inline void sg_ring_wait_room(struct sg_producer *p) {
    struct sg_session_page *page = p->page;
    uint32_t seen = atomic_load(&page->room);
    atomic_store(&page->full, 1);
    if (atomic_load(&page->head) == p->head) sg_futex_wait(&page->room, seen, SG_WAIT_MS);
    atomic_store(&page->full, 0);
}

static inline void sg_ring_bell(struct sg_session_page *page, int threads) {
    atomic_fetch_add(&page->doorbell, 1);
    sg_futex_wake(&page->doorbell, threads);
}

/* `light`: the proxy makes the stores of ranks visible before it sleeps (see wait.h). */
static inline void sg_ring_publish(struct sg_producer *p, struct sg_message *message, uint32_t lines, int light) {
    sg_ring_zero_seq(p->ring, p->tail + lines);
    if (light) {
        atomic_store_explicit(&message->seq, p->tail + 1, memory_order_release);
        atomic_signal_fence(memory_order_seq_cst);
    } else {
        atomic_store(&message->seq, p->tail + 1);
    }
    p->tail += lines;
    uint32_t sleep = atomic_load(&p->page->sleeping);
    if (sleep != 0 && sleep != p->rung) {
        p->rung = sleep;
        sg_ring_bell(p->page, 1);
    }
}

/* ---- consumer (proxy); the caller holds the lead ------------------------------------------------ */
static inline int sg_ring_ready(uint8_t *ring, uint64_t head) {
    return atomic_load(&sg_ring_at(ring, head)->seq) == head + 1;
}

/* The call of the next message, without taking it: a hint, which the rank can still change.  0: there is none. */
static inline int sg_ring_peek(uint8_t *ring, uint64_t head, uint32_t *op) {
    struct sg_message *shared = sg_ring_at(ring, head);
    if (atomic_load_explicit(&shared->seq, memory_order_acquire) != head + 1) return 0;
    *op = __atomic_load_n(&shared->op, __ATOMIC_RELAXED);
    if (*op != SG_OP_PAD) return 1;
    head += SG_RING_LINES - head % SG_RING_LINES;
    shared = sg_ring_at(ring, head);
    if (atomic_load_explicit(&shared->seq, memory_order_acquire) != head + 1) return 0;
    *op = __atomic_load_n(&shared->op, __ATOMIC_RELAXED);
    return 1;
}

/* Copies the next message into `copy` (SG_MAX_MESSAGE_LINES lines, 64-byte aligned), and moves `head` behind it.
 * 1: a message; 0: none; -1: the rank broke the protocol.  PADs are skipped. */
static inline int sg_ring_read(uint8_t *ring, uint64_t *head, struct sg_message *copy) {
    for (int pads = 0;; pads++) {
        struct sg_message *shared = sg_ring_at(ring, *head);
        if (atomic_load_explicit(&shared->seq, memory_order_acquire) != *head + 1) return 0;
        memcpy((uint8_t *)copy + 8, (uint8_t *)shared + 8, SG_LINE - 8);
        __asm__ volatile("" ::: "memory"); /* no second fetch of what is checked below */
        uint32_t lines = copy->lines, left = SG_RING_LINES - (uint32_t)(*head % SG_RING_LINES);
        if (lines == 0 || lines > SG_MAX_MESSAGE_LINES || lines > left) return -1;
        int pad = copy->op == SG_OP_PAD;
        if (pad && pads != 0) return -1; /* no producer pads twice; and this loop ends */
        if (pad ? lines != left : sg_ring_lines(copy->bytes) != lines || copy->bytes > SG_MAX_PAYLOAD) return -1;
        if (!pad && lines > 1) {
            memcpy((uint8_t *)copy + SG_LINE, (uint8_t *)shared + SG_LINE, SG_HEADER_BYTES + copy->bytes - SG_LINE);
            __asm__ volatile("" ::: "memory");
        }
        *head += lines;
        if (!pad) return 1;
    }
}

/* As above, and frees the lines. */
static inline int sg_ring_take(struct sg_session_page *page, uint8_t *ring, uint64_t *head, struct sg_message *copy) {
    uint64_t before = *head;
    int got = sg_ring_read(ring, head, copy);
    if (*head != before) atomic_store_explicit(&page->head, *head, memory_order_release);
    return got;
}

/* Wakes a producer that found the ring full.  To be called from time to time while draining, and always
 * before the consumer stops: not per message, because it needs a full barrier. */
static inline void sg_ring_offer_room(struct sg_session_page *page, uint64_t head) {
    atomic_store(&page->head, head);
    if (atomic_load(&page->full)) {
        atomic_fetch_add(&page->room, 1);
        sg_futex_wake(&page->room, INT_MAX);
    }
}

#endif
