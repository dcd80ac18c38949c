/* Offers of one proxy to the others of a communicator.
 *
 * All proxies of a communicator run the same collectives in the same order, so they make the same number of offers:
 * offer n of each belongs together, and some are empty.  Two may be under way.  A block is released when all
 * others have done with it; that never waits for an operation of a rank, only for engines. */
#include "parts.h"

static struct sg_roster_lane *lane_of(const struct sg_communicator *c, uint32_t place) { return &c->map.lanes[c->proxies[place]]; }

static void release(struct sg_communicator *c, uint32_t slot) {
    if (c->blocks[slot] >= 0) c->engine->transport.release(c->engine->transport.state, (uint32_t)c->blocks[slot]);
    c->blocks[slot] = -1;
}

/* 1: all others have done with our offer `number`. */
static int is_taken(const struct sg_communicator *c, uint64_t number) {
    for (uint32_t place = 0; place < c->place_count; place++)
        if (place != c->here && sg_load(&lane_of(c, place)->consumed[c->proxies[c->here]]) <= number) return 0;
    return 1;
}

int sg_lane_free(struct sg_communicator *c) {
    if (c->published >= 2 && !is_taken(c, c->published - 2)) return 0;
    release(c, c->published & 1);
    return 1;
}

void sg_lane_tidy(struct sg_communicator *c) {
    for (uint64_t number = c->published > 2 ? c->published - 2 : 0; number < c->published; number++)
        if (c->blocks[number & 1] >= 0 && is_taken(c, number)) release(c, number & 1);
}

uint8_t *sg_lane_reserve(struct sg_communicator *c, uint32_t *block) {
    uint8_t *at = c->engine->transport.reserve(c->engine->transport.state, block);
    if (at == NULL)
        sg_communicator_fail(c, SG_FAIL_SYSTEM, UINT32_MAX, "no shared memory for %u bytes of a collective: make /dev/shm larger",
                             SG_BLOCK_BYTES);
    return at;
}

void sg_lane_offer(struct sg_communicator *c, int64_t block, uint32_t bytes) {
    struct sg_roster_lane *mine = lane_of(c, c->here);
    uint32_t slot = c->published & 1;
    c->blocks[slot] = block;
    sg_store(&mine->offers[slot], block < 0 ? 0 : (uint64_t)(block + 1) << 32 | bytes);
    sg_store(&mine->published, ++c->published);
    sg_communicator_ring(c);
}

int sg_lane_offered(const struct sg_communicator *c, uint64_t number) {
    for (uint32_t place = 0; place < c->place_count; place++)
        if (place != c->here && sg_load(&lane_of(c, place)->published) <= number) return 0;
    return 1;
}

const uint8_t *sg_lane_bytes(struct sg_communicator *c, uint32_t place, uint64_t number, uint64_t bytes) {
    uint64_t offer = sg_load(&lane_of(c, place)->offers[number & 1]);
    const uint8_t *at = NULL;
    if (offer >> 32 != 0 && (uint32_t)offer == bytes)
        at = c->engine->transport.peer(c->engine->transport.state, c->proxies[place], (uint32_t)(offer >> 32) - 1, (uint32_t)bytes);
    if (at == NULL)
        sg_communicator_fail(c, SG_FAIL_INTERNAL, UINT32_MAX, "device proxy %u offered %u bytes where %llu were due", c->proxies[place],
                             (uint32_t)offer, (unsigned long long)bytes);
    return at;
}

void sg_lane_consumed(struct sg_communicator *c, uint64_t number) {
    for (uint32_t place = 0; place < c->place_count; place++)
        if (place != c->here) sg_store(&lane_of(c, c->here)->consumed[c->proxies[place]], number + 1);
    sg_communicator_ring(c);
}

void sg_lane_release(struct sg_communicator *c) {
    release(c, 0);
    release(c, 1);
}
