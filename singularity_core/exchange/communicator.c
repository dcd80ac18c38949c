/* A communicator, as the engine sees it: announces what its members here have reached, and runs what all have reached. */
#include "parts.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- names ------------------------------------------------------------------------------------------------------ */
const char *sg_kind_name(uint32_t kind) {
    static const char *names[] = {"?", "all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all", "gather",
                                  "scatter", "send", "receive"};
    return kind <= SG_RECV ? names[kind] : names[0];
}

const char *sg_dtype_name(uint32_t dtype) {
    static const char *names[SG_DTYPES] = {"int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64",
                                           "bfloat16"};
    return dtype < SG_DTYPES ? names[dtype] : "?";
}

static int reduces(uint32_t kind) { return kind == SG_ALL_REDUCE || kind == SG_REDUCE || kind == SG_REDUCE_SCATTER; }
static int has_root(uint32_t kind) { return kind == SG_REDUCE || kind == SG_BROADCAST || kind == SG_GATHER || kind == SG_SCATTER; }

void sg_describe(const struct sg_described *what, uint64_t number, char out[96]) {
    static const char *reductions[] = {"sum", "prod", "max", "min", "avg", "premul sum"};
    char root[24] = "";
    if (has_root(what->kind)) snprintf(root, sizeof root, ", root %u", what->root);
    snprintf(out, 96, "%s %llu (%s%s%s, %llu elements%s)", sg_kind_name(what->kind), (unsigned long long)number,
             sg_dtype_name(what->dtype), reduces(what->kind) ? ", " : "",
             reduces(what->kind) && what->reduction <= SG_PREMUL_SUM ? reductions[what->reduction] : "",
             (unsigned long long)what->count, root);
}

/* ---- failing ------------------------------------------------------------------------------------------------------ */
void sg_communicator_ring(const struct sg_communicator *c) {
    const struct sg_transport *transport = &c->engine->transport;
    for (uint32_t place = 0; c->ready && place < c->place_count; place++)
        if (place != c->here) transport->ring(transport->state, c->proxies[place]);
}

void sg_communicator_fail(struct sg_communicator *c, uint32_t failure, uint32_t rank, const char *format, ...) {
    char said[SG_SAID];
    va_list list;
    va_start(list, format);
    vsnprintf(said, sizeof said, format, list);
    va_end(list);
    sg_roster_fail(c->map.roster, failure, rank, said);
    sg_communicator_ring(c);
    sg_engine_ring(c->engine); /* what is pending here fails in the next turn */
}

static void end_run(struct sg_communicator *c) {
    struct sg_run *run = &c->run;
    free(run->segments);
    free(run->first);
    free(run->local);
    if (run->own_block != NULL) c->engine->transport.release(c->engine->transport.state, run->own_index);
    memset(run, 0, sizeof *run);
}

int sg_communicator_aborted(const struct sg_communicator *c) {
    const struct sg_roster *roster = c->map.roster;
    return sg_load(&roster->error) == SG_FAIL_REMOTE && roster->failed_rank < c->ranks &&
           sg_load(&c->map.members[roster->failed_rank].state) == SG_MEMBER_ABORTED;
}

/* A peer has given the communicator up, which a program may survive: what is pending waits, without a result and without an
 * error of its context, until the rank aborts too.  So nobody computes on with what never came (decision 0007). */
static void strand(sg_member *member, const char *said) {
    const struct sg_exchange_calls *calls = &member->party->engine->options.calls;
    if (member->parts != NULL && !member->stranded) calls->strand(member->party->owner, said);
    member->stranded |= member->parts != NULL;
}

void sg_communicator_drop(struct sg_communicator *c) {
    const char *said = c->map.roster->said;
    int aborted = sg_communicator_aborted(c);
    end_run(c);
    sg_pairs_drop(c);
    sg_lane_release(c);
    for (uint32_t rank = 0; rank < c->ranks; rank++) {
        sg_member *member = c->members[rank];
        if (member == NULL) continue;
        member->collectives.first = NULL;
        member->unannounced = NULL;
        if (aborted) strand(member, said);
        while (!aborted && member->parts != NULL) sg_part_drop(member->parts, said);
    }
    if (!c->failed) sg_communicator_ring(c); /* it may be a rank of ours that broke it */
    c->failed = 1;
}

int32_t sg_member_read(sg_member *member, uint64_t address, void *out, uint64_t bytes) {
    if (bytes == 0) return 0;
    int32_t error = member->party->engine->options.calls.read(member->party->owner, address, out, bytes);
    if (error != 0)
        sg_communicator_fail(member->communicator, SG_FAIL_ARGUMENT, member->rank,
                             "rank %u: %llu bytes at %#llx cannot be read: no live memory of this rank (CUresult %d)", member->rank,
                             (unsigned long long)bytes, (unsigned long long)address, error);
    return error;
}

void sg_member_write(struct sg_op *op, uint64_t address, const void *in, uint64_t bytes) {
    sg_member *member = op->part->member;
    if (bytes == 0 || op->part->group->failed) return;
    int32_t error = member->party->engine->options.calls.write(member->party->owner, address, in, bytes);
    if (error != 0)
        sg_communicator_fail(member->communicator, SG_FAIL_ARGUMENT, member->rank,
                             "rank %u: %llu bytes at %#llx cannot be written: no live memory of this rank (CUresult %d)", member->rank,
                             (unsigned long long)bytes, (unsigned long long)address, error);
}

/* ---- once all have joined -------------------------------------------------------------------------------------------- */
static int find_places(struct sg_communicator *c) {
    for (uint32_t rank = 0; rank < c->ranks; rank++) {
        uint32_t proxy = c->map.members[rank].proxy, place = 0;
        if (proxy >= c->engine->options.proxy_count) return 0;
        while (place < c->place_count && c->proxies[place] != proxy) place++;
        if (place == c->place_count) c->proxies[c->place_count++] = proxy;
        if (proxy == c->engine->options.proxy_index) c->here = place;
        c->places[rank] = place;
    }
    return 1;
}

static int prepare(struct sg_communicator *c) {
    c->places = malloc(c->ranks * sizeof *c->places);
    c->program = malloc(2 * c->ranks * sizeof *c->program);
    if (c->places == NULL || c->program == NULL || !find_places(c)) {
        sg_communicator_fail(c, SG_FAIL_SYSTEM, UINT32_MAX, "device proxy %u has no memory for a communicator", c->engine->options.proxy_index);
        return 0;
    }
    c->program_steps = sg_tree_program(c->places, 0, c->ranks, 1, c->program);
    for (uint32_t i = 0; i < c->program_steps; i++) {
        uint32_t place = c->program[i].place;
        if (c->program[i].count != 0 && ++c->atom_count[place] > c->most_atoms) c->most_atoms = c->atom_count[place];
    }
    c->ready = 1;
    return 1;
}

/* ---- announcing -------------------------------------------------------------------------------------------------------- */
static int activate(sg_member *member) {
    struct sg_part *part = member->parts;
    if (part == NULL || part->active || sg_load(&part->group->waiting) != 0) return 0;
    part->active = 1;
    for (uint32_t i = 0; i < part->count; i++) {
        struct sg_op *op = &part->ops[i];
        if (sg_is_pairwise(op->issue.what.kind)) {
            if (sg_pair_add(op) == 0) continue;
            sg_communicator_fail(member->communicator, SG_FAIL_SYSTEM, UINT32_MAX, "no memory for a send or receive of rank %u", member->rank);
            return 1;
        }
        op->number = member->activated++;
        sg_queue_put(&member->collectives, op);
        if (member->unannounced == NULL) member->unannounced = op;
    }
    return 1;
}

static int announce(sg_member *member) {
    struct sg_communicator *c = member->communicator;
    struct sg_roster_member *mine = &c->map.members[member->rank];
    int moved = 0;
    while (member->unannounced != NULL && member->announced < c->number + SG_MEMBER_RING) {
        mine->ring[member->announced % SG_MEMBER_RING] = member->unannounced->issue.what;
        sg_store(&mine->arrived, ++member->announced);
        member->unannounced = member->unannounced->next;
        moved = 1;
    }
    return moved;
}

/* ---- running -------------------------------------------------------------------------------------------------------------- */
static int same(const struct sg_described *a, const struct sg_described *b) {
    if (a->kind != b->kind || (has_root(a->kind) && a->root != b->root)) return 0;
    if (reduces(a->kind)) return a->dtype == b->dtype && a->reduction == b->reduction && a->count == b->count;
    return a->count * sg_dtype_bytes(a->dtype) == b->count * sg_dtype_bytes(b->dtype); /* bytes are bytes */
}

/* 1: all have arrived at the next collective, and do the same. */
static int all_arrived(struct sg_communicator *c) {
    struct sg_described first = {0};
    char one[96], other[96];
    for (uint32_t rank = 0; rank < c->ranks; rank++) {
        struct sg_roster_member *member = &c->map.members[rank];
        uint32_t state = sg_load(&member->state); /* before `arrived`: who has left does not arrive any more */
        if (sg_load(&member->arrived) > c->number) continue;
        int waits = 0;
        for (uint32_t i = 0; i < c->ranks; i++) waits |= c->members[i] != NULL && c->members[i]->announced > c->number;
        if (state > SG_MEMBER_JOINED && waits)
            sg_communicator_fail(c, SG_FAIL_REMOTE, rank, "rank %u (global rank %u) %s before its collective %llu, for which others wait",
                                 rank, member->global_rank, sg_gone(state),
                                 (unsigned long long)c->number);
        return 0;
    }
    for (uint32_t rank = 0; rank < c->ranks; rank++) {
        struct sg_described what = c->map.members[rank].ring[c->number % SG_MEMBER_RING];
        if (rank == 0) first = what;
        if (same(&first, &what)) continue;
        sg_describe(&first, c->number, one);
        sg_describe(&what, c->number, other);
        sg_communicator_fail(c, SG_FAIL_USAGE, rank, "mismatch: rank 0 calls %.60s, rank %u %.60s", one, rank, other);
        return 0;
    }
    c->run.what = first;
    return 1;
}

static int has_work(const struct sg_communicator *c) {
    for (uint32_t rank = 0; rank < c->ranks; rank++)
        if (c->members[rank] != NULL && c->members[rank]->collectives.first != NULL) return 1;
    return 0;
}

static int begin_run(struct sg_communicator *c) {
    struct sg_run *run = &c->run;
    run->active = 1;
    run->bytes = sg_dtype_bytes(run->what.dtype);
    for (uint32_t rank = 0; rank < c->ranks; rank++) { /* every rank's own type, where only the bytes must agree */
        struct sg_op *op = sg_run_op(c, rank);
        if (op != NULL && op->number != c->number) return 0;
    }
    if (reduces(run->what.kind)) sg_reduction_begin(c);
    else return sg_movement_begin(c);
    return 1;
}

static void finish_run(struct sg_communicator *c) {
    end_run(c);
    c->number++;
    for (uint32_t rank = 0; rank < c->ranks; rank++)
        if (c->members[rank] != NULL) sg_op_finish(sg_queue_take(&c->members[rank]->collectives));
}

static int turn_run(struct sg_communicator *c) {
    if (!c->run.active) {
        if (!has_work(c) || !all_arrived(c)) return 0;
        if (!begin_run(c)) {
            sg_communicator_fail(c, SG_FAIL_SYSTEM, UINT32_MAX, "device proxy %u has no memory for a collective",
                                 c->engine->options.proxy_index);
            return 1;
        }
    }
    int result = reduces(c->run.what.kind) ? sg_reduction_turn(c) : sg_movement_turn(c);
    if (result >= 0) return result;
    if (sg_load(&c->map.roster->error) == 0) finish_run(c);
    return 1;
}

int sg_communicator_turn(struct sg_communicator *c) {
    int moved = 0;
    if (sg_load(&c->map.roster->error) != 0) {
        for (uint32_t rank = 0; rank < c->ranks; rank++) {
            const sg_member *member = c->members[rank];
            moved |= member != NULL && member->parts != NULL && !member->stranded;
        }
        if (moved || !c->failed) sg_communicator_drop(c);
        return moved;
    }
    if (!c->ready && (sg_load(&c->map.roster->joined) < c->ranks || !prepare(c))) return 0;
    for (uint32_t rank = 0; rank < c->ranks; rank++) {
        sg_member *member = c->members[rank];
        if (member != NULL) moved |= activate(member) | announce(member);
    }
    if (moved) sg_communicator_ring(c);
    sg_lane_tidy(c); /* many communicators that are idle must not hold all there are */
    return moved | turn_run(c) | sg_pairs_turn(c);
}

/* ---- end ------------------------------------------------------------------------------------------------------------------- */
void sg_member_detach(sg_member *member, int aborts) {
    struct sg_communicator *c = member->communicator;
    struct sg_roster_member *mine = &c->map.members[member->rank];
    int busy = member->parts != NULL;
    if (aborts) sg_store(&mine->state, SG_MEMBER_ABORTED); /* first: the failure means another thing then */
    if (busy)
        sg_communicator_fail(c, SG_FAIL_REMOTE, member->rank, "rank %u (global rank %u) %s in the middle of its operations", member->rank,
                             mine->global_rank, aborts ? "aborted" : "ended");
    member->collectives.first = NULL;
    while (member->parts != NULL) sg_part_drop(member->parts, NULL);
    c->members[member->rank] = NULL;
    if (busy) sg_communicator_drop(c);
    if (!aborts) sg_store(&mine->state, busy ? SG_MEMBER_DEAD : SG_MEMBER_LEFT);
    sg_communicator_ring(c);
    sg_roster_wake(c->map.roster);
    if (sg_add(&c->map.roster->left, 1) == c->ranks) sg_roster_remove(c->engine->directory, c->map.roster->key);
}

int sg_communicator_spent(const struct sg_communicator *c) {
    if (!c->ready || c->failed || sg_load(&c->map.roster->error) != 0) return 1;
    uint32_t me = c->engine->options.proxy_index;
    for (uint32_t place = 0; place < c->place_count; place++)
        if (place != c->here && sg_load(&c->engine->board->proxies[c->proxies[place]].state) == SG_PROXY_ALIVE &&
            sg_load(&c->map.lanes[c->proxies[place]].consumed[me]) < c->published)
            return 0;
    return 1;
}

void sg_communicator_free(struct sg_communicator *c) {
    end_run(c);
    sg_pairs_drop(c);
    while (c->pairs != NULL) {
        struct sg_pair *next = c->pairs->next;
        free(c->pairs);
        c->pairs = next;
    }
    sg_lane_release(c);
    sg_roster_close(&c->map);
    free(c->program);
    free(c->places);
    free(c->members);
    free(c);
}
