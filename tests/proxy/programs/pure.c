/* What hypothesis drives of ring.h: both ends over one piece of memory, in one thread. */
#include <stdlib.h>

#include "pure.h"
#include "singularity_core/transport/ring.h"

struct pure_ring {
    struct sg_producer producer;
    uint64_t head;
    struct sg_message *copy;
};

struct pure_ring *pure_ring_new(void) {
    struct pure_ring *r = calloc(1, sizeof *r);
    uint8_t *memory = aligned_alloc(4096, SG_SESSION_BYTES);
    memset(memory, 0, SG_SESSION_BYTES);
    r->producer.page = (struct sg_session_page *)memory;
    r->producer.ring = memory + SG_RING_OFFSET;
    r->copy = aligned_alloc(SG_LINE, SG_MAX_MESSAGE_LINES * SG_LINE);
    return r;
}
void pure_ring_free(struct pure_ring *r) {
    free(r->producer.page);
    free(r->copy);
    free(r);
}
/* A message whose payload is `bytes` times `fill`. 0: no room. */
int pure_ring_push(struct pure_ring *r, uint32_t op, uint32_t bytes, uint8_t fill) {
    uint32_t lines = sg_ring_lines(bytes);
    struct sg_message *message = sg_ring_reserve(&r->producer, lines);
    if (message == NULL) return 0;
    message->op = op;
    message->lines = (uint16_t)lines;
    message->reply = SG_NO_REPLY;
    message->bytes = bytes;
    memset(message->payload, fill, bytes);
    sg_ring_publish(&r->producer, message, lines, 0);
    return 1;
}
/* 1: a message; 0: none; -1: malformed.  `same`: its payload is one byte over and over. */
int pure_ring_take(struct pure_ring *r, uint32_t *op, uint32_t *bytes, uint8_t *fill, int *same) {
    int got = sg_ring_take(r->producer.page, r->producer.ring, &r->head, r->copy);
    if (got != 1) return got;
    *op = r->copy->op;
    *bytes = r->copy->bytes;
    *fill = *bytes == 0 ? 0 : r->copy->payload[0];
    *same = 1;
    for (uint32_t i = 1; i < *bytes; i++)
        if (r->copy->payload[i] != *fill) *same = 0;
    return 1;
}
/* Overwrites bytes of the message that comes next, as a hostile rank does. */
void pure_ring_spoil(struct pure_ring *r, uint32_t at, const uint8_t *bytes, uint32_t count) {
    memcpy((uint8_t *)sg_ring_at(r->producer.ring, r->head) + at, bytes, count);
}
uint64_t pure_ring_used(struct pure_ring *r) { return r->producer.tail - r->head; }

/* ---- handles: counts what cascades destroy --------------------------------------------------------------- */
static void destroyed(void *argument, uint32_t kind, void *physical, void *context) {
    struct pure_destroyed *list = argument;
    (void)context;
    if (list->count < 256) {
        list->kind[list->count] = kind;
        list->physical[list->count] = (uint64_t)physical;
    }
    list->count++;
}
struct sg_handles *pure_handles_new(void) {
    struct sg_handles *handles = malloc(sizeof *handles);
    return sg_handles_open(handles) == 0 ? handles : NULL;
}
void pure_handles_free(struct sg_handles *handles) {
    sg_handles_close(handles);
    free(handles);
}
uint64_t pure_handles_put(struct sg_handles *h, uint32_t kind, uint64_t physical, uint64_t parent) {
    return sg_handles_put(h, kind, (void *)physical, NULL, parent);
}
int pure_handles_put_at(struct sg_handles *h, uint64_t handle, uint64_t physical, uint64_t parent) {
    return sg_handles_put_at(h, handle, (void *)physical, NULL, parent);
}
uint64_t pure_handles_get(struct sg_handles *h, uint32_t kind, uint64_t handle) {
    return (uint64_t)sg_handles_get(h, kind, handle);
}
uint64_t pure_handles_take(struct sg_handles *h, uint32_t kind, uint64_t handle, struct pure_destroyed *list) {
    return (uint64_t)sg_handles_take(h, kind, handle, destroyed, list);
}
void pure_handles_take_all(struct sg_handles *h, struct pure_destroyed *list) { sg_handles_take_all(h, destroyed, list); }
