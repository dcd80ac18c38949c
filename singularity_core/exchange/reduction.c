/* Collectives that reduce.
 *
 * The elements are worked on tile by tile, so that memory stays bounded.  For each tile a proxy offers its partials (tree.h) of
 * the elements that others compute, and computes its own share from its partials and theirs:
 *   EVERYONE  a small all-reduce: everyone computes everything, so that one exchange suffices
 *   SHARES    a large one: each computes one share, then offers the results (all-gather)
 *   ONE       what one place needs: a reduce, or one block of a reduce-scatter
 * Who computes does not change the bits: all follow the tree.  Results are written only to elements whose
 * contributions were read before, by everyone here: so in place works. */
#include "parts.h"

#include <string.h>

enum { EVERYONE, SHARES, ONE };
enum { OFFER_PARTIALS, COMPUTE, OFFER_RESULTS, TAKE_RESULTS };
#define SMALL_BYTES (64u << 10)

struct range { uint64_t at, end; }; /* of elements */

static uint64_t least(uint64_t a, uint64_t b) { return a < b ? a : b; }
static uint64_t length(struct range r) { return r.end - r.at; }

/* ---- shares ------------------------------------------------------------------------------------------------------- */
/* The rank whose place alone needs the tile (mode ONE). */
static uint32_t owner(const struct sg_communicator *c) {
    if (c->run.what.kind == SG_REDUCE) return c->run.what.root;
    return c->run.what.count == 0 ? 0 : (uint32_t)(c->run.tile / c->run.what.count);
}

/* What `place` computes of the tile. */
static struct range share(const struct sg_communicator *c, uint32_t place) {
    const struct sg_run *run = &c->run;
    uint64_t all = run->tile_end - run->tile;
    if (run->mode == EVERYONE) return (struct range){run->tile, run->tile_end};
    if (run->mode == ONE) return (struct range){run->tile, c->places[owner(c)] == place ? run->tile_end : run->tile};
    return (struct range){run->tile + all * place / c->place_count, run->tile + all * (place + 1) / c->place_count};
}

/* What `place` does not offer: it computes that alone. */
static struct range kept(const struct sg_communicator *c, uint32_t place) {
    return c->run.mode == EVERYONE ? (struct range){c->run.tile_end, c->run.tile_end} : share(c, place);
}

static uint64_t offered(const struct sg_communicator *c, uint32_t place) {
    return c->run.tile_end - c->run.tile - length(kept(c, place));
}

/* Where element `at` of atom `index` lies in what `place` offers. */
static uint64_t offset_of(const struct sg_communicator *c, uint32_t place, uint32_t index, uint64_t at) {
    struct range own = kept(c, place);
    uint64_t within = at - c->run.tile - (at >= own.end ? length(own) : 0);
    return (index * offered(c, place) + within) * c->run.acc_bytes;
}

static uint64_t partial_bytes(const struct sg_communicator *c, uint32_t place) {
    return c->atom_count[place] * offered(c, place) * c->run.acc_bytes;
}

/* ---- arithmetic ---------------------------------------------------------------------------------------------------- */
/* One rank's contribution to elements at .. at + count, in the accumulation type. */
static int load_leaf(struct sg_communicator *c, uint32_t rank, uint64_t at, uint64_t count, void *out) {
    const struct sg_run *run = &c->run;
    struct sg_op *op = sg_run_op(c, rank);
    int direct = run->accumulator == run->what.dtype && run->what.reduction != SG_PREMUL_SUM;
    void *raw = direct ? out : c->engine->pieces[SG_TREE_STACK];
    if (sg_member_read(op->part->member, op->issue.send + at * run->bytes, raw, count * run->bytes) != 0) return -1;
    if (!direct) sg_reduce_load(run->what.dtype, run->what.reduction, op->issue.scalar, out, raw, count);
    return 0;
}

/* The partial of a subtree whose leaves are all here.  `base`: pieces below it are in use. */
static int join_leaves(struct sg_communicator *c, uint32_t first, uint32_t leaves, uint64_t at, uint64_t count, uint8_t *out, uint32_t base) {
    if (leaves == 1) return load_leaf(c, first, at, count, out);
    uint32_t left = 1;
    while (left * 2 < leaves) left *= 2;
    if (join_leaves(c, first, left, at, count, out, base) != 0) return -1;
    uint8_t *right = c->engine->pieces[base];
    if (join_leaves(c, first + left, leaves - left, at, count, right, base + 1) != 0) return -1;
    sg_reduce_join(c->run.accumulator, c->run.what.reduction, out, right, count);
    return 0;
}

/* The whole tree over elements at .. at + count, into pieces[0]. */
static int join_all(struct sg_communicator *c, uint64_t number, uint64_t at, uint64_t count) {
    uint32_t top = 0;
    for (uint32_t i = 0; i < c->program_steps; i++) {
        const struct sg_tree_step *step = &c->program[i];
        if (step->count == 0) {
            top--;
            sg_reduce_join(c->run.accumulator, c->run.what.reduction, c->engine->pieces[top - 1], c->engine->pieces[top], count);
            continue;
        }
        uint8_t *out = c->engine->pieces[top++];
        if (step->place == c->here) {
            if (join_leaves(c, step->first, step->count, at, count, out, top) != 0) return -1;
        } else {
            const uint8_t *in = sg_lane_bytes(c, step->place, number, partial_bytes(c, step->place));
            if (in == NULL) return -1;
            memcpy(out, in + offset_of(c, step->place, step->index, at), count * c->run.acc_bytes);
        }
    }
    return 0;
}

/* Finished elements to all ranks here that are to have them. */
static void deliver(struct sg_communicator *c, uint64_t at, uint64_t count, const void *bytes) {
    const struct sg_run *run = &c->run;
    uint32_t only = run->mode == ONE ? owner(c) : UINT32_MAX;
    uint64_t start = run->what.kind == SG_REDUCE_SCATTER ? (uint64_t)only * run->what.count : 0;
    for (uint32_t rank = 0; rank < c->ranks; rank++) {
        struct sg_op *op = sg_run_op(c, rank);
        if (op == NULL || (only != UINT32_MAX && only != rank)) continue;
        sg_member_write(op, op->issue.receive + (at - start) * run->bytes, bytes, count * run->bytes);
    }
}

/* ---- phases --------------------------------------------------------------------------------------------------------- */
static int next_tile(struct sg_communicator *c) {
    struct sg_run *run = &c->run;
    run->tile = run->tile_end;
    if (run->tile >= run->elements) return 0;
    uint64_t end = run->elements;
    if (run->what.kind == SG_REDUCE_SCATTER) end = (run->tile / run->what.count + 1) * run->what.count;
    run->tile_end = least(run->tile + run->tile_most, end);
    run->phase = c->place_count > 1 ? OFFER_PARTIALS : COMPUTE;
    return 1;
}

void sg_reduction_begin(struct sg_communicator *c) {
    struct sg_run *run = &c->run;
    run->accumulator = sg_dtype_accumulator(run->what.dtype);
    run->acc_bytes = sg_dtype_bytes(run->accumulator);
    run->elements = run->what.count * (run->what.kind == SG_REDUCE_SCATTER ? c->ranks : 1);
    run->mode = run->what.kind != SG_ALL_REDUCE                                      ? ONE
                : run->what.count * run->bytes <= SMALL_BYTES || c->place_count == 1 ? EVERYONE
                                                                                     : SHARES;
    run->tile_most = SG_BLOCK_BYTES / run->acc_bytes / c->most_atoms; /* elements of a tile */
    run->own_block = NULL;
    run->tile = run->tile_end = 0;
    if (!next_tile(c)) { /* nothing to reduce, but all must have come: one empty offer */
        run->phase = c->place_count > 1 ? OFFER_PARTIALS : COMPUTE;
    }
}

static int offer_partials(struct sg_communicator *c) {
    struct sg_run *run = &c->run;
    struct range own = kept(c, c->here), parts[2] = {{run->tile, own.at}, {own.end, run->tile_end}};
    uint64_t bytes = partial_bytes(c, c->here), piece = SG_PIECE_BYTES / run->acc_bytes;
    uint32_t block = 0;
    uint8_t *out = NULL;
    if (!sg_lane_free(c)) return 0;
    if (bytes != 0 && (out = sg_lane_reserve(c, &block)) == NULL) return -1;
    for (uint32_t i = 0; bytes != 0 && i < c->program_steps; i++) {
        const struct sg_tree_step *step = &c->program[i];
        if (step->count == 0 || step->place != c->here) continue;
        for (int part = 0; part < 2; part++)
            for (uint64_t at = parts[part].at; at < parts[part].end; at += piece) {
                uint64_t some = least(piece, parts[part].end - at);
                if (join_leaves(c, step->first, step->count, at, some, out, 0) != 0) {
                    c->engine->transport.release(c->engine->transport.state, block);
                    return -1;
                }
                out += some * run->acc_bytes;
            }
    }
    sg_lane_offer(c, bytes != 0 ? (int64_t)block : -1, (uint32_t)bytes);
    run->phase = COMPUTE;
    return 1;
}

static int compute(struct sg_communicator *c) {
    struct sg_run *run = &c->run;
    struct range mine = share(c, c->here);
    uint64_t number = c->published - 1, piece = SG_PIECE_BYTES / run->acc_bytes, done = 0;
    int shares = run->mode == SHARES && length(mine) != 0;
    if (c->place_count > 1 && !sg_lane_offered(c, number)) return 0;
    if (shares && (run->own_block = sg_lane_reserve(c, &run->own_index)) == NULL) return -1;
    for (uint64_t at = mine.at; at < mine.end; at += piece) {
        uint64_t some = least(piece, mine.end - at);
        uint8_t *out = run->own_block != NULL ? run->own_block + done : c->engine->pieces[SG_TREE_STACK + 1];
        if (join_all(c, number, at, some) != 0) return -1;
        sg_reduce_finish(run->what.dtype, run->what.reduction, c->ranks, out, c->engine->pieces[0], some);
        deliver(c, at, some, out);
        done += some * run->bytes;
    }
    run->own_bytes = done;
    if (c->place_count > 1) sg_lane_consumed(c, number);
    if (run->mode == SHARES) run->phase = OFFER_RESULTS;
    else if (!next_tile(c)) return -1;
    return 1;
}

static int offer_results(struct sg_communicator *c) {
    struct sg_run *run = &c->run;
    if (!sg_lane_free(c)) return 0;
    sg_lane_offer(c, run->own_block != NULL ? (int64_t)run->own_index : -1, (uint32_t)run->own_bytes);
    run->own_block = NULL; /* the lane's now */
    run->phase = TAKE_RESULTS;
    return 1;
}

static int take_results(struct sg_communicator *c) {
    struct sg_run *run = &c->run;
    uint64_t number = c->published - 1;
    if (!sg_lane_offered(c, number)) return 0;
    for (uint32_t place = 0; place < c->place_count; place++) {
        struct range theirs = share(c, place);
        if (place == c->here || length(theirs) == 0) continue;
        const uint8_t *in = sg_lane_bytes(c, place, number, length(theirs) * run->bytes);
        if (in == NULL) return -1;
        deliver(c, theirs.at, length(theirs), in);
    }
    sg_lane_consumed(c, number);
    return next_tile(c) ? 1 : -1;
}

int sg_reduction_turn(struct sg_communicator *c) {
    switch (c->run.phase) {
    case OFFER_PARTIALS: return offer_partials(c);
    case COMPUTE: return compute(c);
    case OFFER_RESULTS: return offer_results(c);
    default: return take_results(c);
    }
}
