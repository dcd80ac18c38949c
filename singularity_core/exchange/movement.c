/* Collectives that only move bytes.
 *
 * Each is a list of segments of one length: from a rank's contribution to one rank's result, or to everyone's.  What a proxy
 * has to offer is the concatenation of the segments that start at it and end elsewhere, cut into blocks.  Everyone knows
 * everyone's list, so a block needs no description: its place in the sequence says what it holds. */
#include "parts.h"

#include <stdlib.h>

enum { LOCAL, OFFER, TAKE };

static uint64_t least(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* ---- addresses ------------------------------------------------------------------------------------------------- */
static uint64_t source(const struct sg_communicator *c, const struct sg_op *op, struct sg_segment segment) {
    int by_destination = c->run.what.kind == SG_SCATTER || c->run.what.kind == SG_ALL_TO_ALL;
    return op->issue.send + (by_destination ? segment.to * c->run.length : 0);
}

static uint64_t destination(const struct sg_communicator *c, const struct sg_op *op, struct sg_segment segment) {
    int in_place = c->run.what.kind == SG_BROADCAST || c->run.what.kind == SG_SCATTER;
    return op->issue.receive + (in_place ? 0 : segment.from * c->run.length);
}

/* Bytes of a segment to all of its destinations that are here. */
static void deliver(struct sg_communicator *c, struct sg_segment segment, uint64_t offset, const void *bytes, uint64_t count) {
    uint32_t first = segment.to == SG_EVERYONE ? 0 : segment.to, end = segment.to == SG_EVERYONE ? c->ranks : segment.to + 1;
    for (uint32_t rank = first; rank < end; rank++) {
        struct sg_op *op = sg_run_op(c, rank);
        if (op == NULL) continue;
        uint64_t to = destination(c, op, segment);
        struct sg_op *sender = sg_run_op(c, segment.from);
        if (rank == segment.from && to == source(c, sender, segment)) continue; /* in place */
        sg_member_write(op, to + offset, bytes, count);
    }
}

/* ---- segments ---------------------------------------------------------------------------------------------------- */
static int ends_elsewhere(const struct sg_communicator *c, struct sg_segment segment) {
    if (segment.to == SG_EVERYONE) return c->place_count > 1;
    return c->places[segment.to] != c->places[segment.from];
}

static uint32_t segments_of(const struct sg_communicator *c, uint32_t from, struct sg_segment *out) {
    uint32_t root = c->run.what.root, count = 0;
    switch (c->run.what.kind) {
    case SG_BROADCAST:
        if (from == root) out[count++] = (struct sg_segment){from, SG_EVERYONE};
        break;
    case SG_ALL_GATHER: out[count++] = (struct sg_segment){from, SG_EVERYONE}; break;
    case SG_GATHER: out[count++] = (struct sg_segment){from, root}; break;
    default: /* scatter, all to all */
        for (uint32_t to = 0; to < c->ranks && (c->run.what.kind == SG_ALL_TO_ALL || from == root); to++)
            out[count++] = (struct sg_segment){from, to};
    }
    return count;
}

/* Lists the segments of all places that end elsewhere, and those that start and end here. */
static int list_segments(struct sg_communicator *c) {
    struct sg_run *run = &c->run;
    uint64_t most = run->what.kind == SG_ALL_TO_ALL ? (uint64_t)c->ranks * c->ranks : c->ranks;
    run->segments = malloc(most * sizeof *run->segments);
    run->local = malloc(most * sizeof *run->local);
    run->first = malloc((c->place_count + 1) * sizeof *run->first);
    struct sg_segment *some = malloc(c->ranks * sizeof *some);
    uint32_t used = 0;
    int good = run->segments != NULL && run->local != NULL && run->first != NULL && some != NULL;
    for (uint32_t place = 0; good && place < c->place_count; place++) {
        run->first[place] = used;
        for (uint32_t from = 0; from < c->ranks; from++) {
            uint32_t count = c->places[from] == place ? segments_of(c, from, some) : 0;
            for (uint32_t i = 0; i < count; i++) {
                if (ends_elsewhere(c, some[i])) run->segments[used++] = some[i];
                else if (place == c->here) run->local[run->local_count++] = some[i];
            }
        }
    }
    if (good) run->first[c->place_count] = used;
    free(some);
    return good;
}

static uint64_t stream_bytes(const struct sg_communicator *c, uint32_t place) {
    return (c->run.first[place + 1] - c->run.first[place]) * c->run.length;
}

int sg_movement_begin(struct sg_communicator *c) {
    struct sg_run *run = &c->run;
    run->length = run->what.count * run->bytes;
    run->steps = c->place_count > 1;
    run->phase = LOCAL;
    if (!list_segments(c)) return 0;
    if (run->length == 0) run->local_count = 0;
    for (uint32_t place = 0; place < c->place_count; place++) {
        uint64_t steps = (stream_bytes(c, place) + SG_BLOCK_BYTES - 1) / SG_BLOCK_BYTES;
        if (steps > run->steps) run->steps = steps;
    }
    return 1;
}

/* ---- moving ------------------------------------------------------------------------------------------------------- */
/* The part of a place's stream that block `step` holds, piece by piece within segments. */
struct cursor { uint64_t at, end; };
static struct cursor block_of(const struct sg_communicator *c, uint32_t place, uint64_t step) {
    uint64_t all = stream_bytes(c, place), at = least(step * SG_BLOCK_BYTES, all);
    return (struct cursor){at, least(at + SG_BLOCK_BYTES, all)};
}

static struct sg_segment piece_at(const struct sg_communicator *c, uint32_t place, struct cursor *cursor, uint64_t *offset, uint64_t *bytes) {
    uint64_t index = cursor->at / c->run.length;
    *offset = cursor->at - index * c->run.length;
    *bytes = least(c->run.length - *offset, cursor->end - cursor->at);
    cursor->at += *bytes;
    return c->run.segments[c->run.first[place] + index];
}

static int move_local(struct sg_communicator *c) {
    struct sg_run *run = &c->run;
    uint8_t *piece = c->engine->pieces[0];
    for (uint64_t moved = 0; moved < SG_TURN_BYTES && run->local_at < run->local_count;) {
        struct sg_segment segment = run->local[run->local_at];
        uint64_t some = least(run->length - run->local_offset, SG_PIECE_BYTES);
        struct sg_op *op = sg_run_op(c, segment.from);
        if (sg_member_read(op->part->member, source(c, op, segment) + run->local_offset, piece, some) != 0) return -1;
        deliver(c, segment, run->local_offset, piece, some);
        moved += some;
        run->local_offset += some;
        if (run->local_offset == run->length) run->local_at++, run->local_offset = 0;
    }
    if (run->local_at == run->local_count) run->phase = OFFER;
    return 1;
}

static int offer(struct sg_communicator *c) {
    struct sg_run *run = &c->run;
    struct cursor cursor = block_of(c, c->here, run->step);
    uint32_t block = 0, bytes = (uint32_t)(cursor.end - cursor.at);
    if (!sg_lane_free(c)) return 0;
    uint8_t *out = NULL;
    if (bytes != 0 && (out = sg_lane_reserve(c, &block)) == NULL) return -1;
    while (cursor.at < cursor.end) {
        uint64_t offset, some;
        struct sg_segment segment = piece_at(c, c->here, &cursor, &offset, &some);
        struct sg_op *op = sg_run_op(c, segment.from);
        if (sg_member_read(op->part->member, source(c, op, segment) + offset, out, some) != 0) {
            c->engine->transport.release(c->engine->transport.state, block);
            return -1;
        }
        deliver(c, segment, offset, out, some);
        out += some;
    }
    sg_lane_offer(c, bytes != 0 ? (int64_t)block : -1, bytes);
    run->phase = TAKE;
    return 1;
}

static int take(struct sg_communicator *c) {
    struct sg_run *run = &c->run;
    uint64_t number = c->published - 1;
    if (!sg_lane_offered(c, number)) return 0;
    for (uint32_t place = 0; place < c->place_count; place++) {
        struct cursor cursor = block_of(c, place, run->step);
        if (place == c->here || cursor.at == cursor.end) continue;
        const uint8_t *in = sg_lane_bytes(c, place, number, cursor.end - cursor.at);
        if (in == NULL) return -1;
        while (cursor.at < cursor.end) {
            uint64_t offset, some;
            struct sg_segment segment = piece_at(c, place, &cursor, &offset, &some);
            deliver(c, segment, offset, in, some);
            in += some;
        }
    }
    sg_lane_consumed(c, number);
    run->step++;
    run->phase = OFFER;
    return 1;
}

int sg_movement_turn(struct sg_communicator *c) {
    struct sg_run *run = &c->run;
    if (run->phase == LOCAL) return move_local(c);
    if (run->step == run->steps) return -1;
    return run->phase == OFFER ? offer(c) : take(c);
}
