/* What a rank waits for: for the board, and for the slicer. */
#include <string.h>

#include "../transport/wait.h"
#include "parts.h"

/* engine->lock is held. */
void sg_party_show(sg_party *party) {
    uint32_t state = party->quit ? SG_RANK_ENDED : party->held ? SG_RANK_HELD : party->joining ? SG_RANK_JOINING
                     : party->state == SG_RANK_BLOCKED ? SG_RANK_BLOCKED : SG_RANK_RUNNING;
    if (sg_load(&party->status->state) == state) return;
    sg_store(&party->status->since_ns, sg_now_ns());
    sg_store(&party->status->state, state);
}

struct missing { uint32_t count, ranks[SG_BOARD_MISSING]; int local; };

static void miss(const struct sg_communicator *c, uint32_t rank, const sg_party *party, struct missing *out) {
    const sg_member *here = c->members[rank];
    if (here != NULL && here->party == party) return;
    if (out->count < SG_BOARD_MISSING) out->ranks[out->count] = c->map.members[rank].global_rank;
    out->count++;
    out->local |= here != NULL;
}

/* Who has not come to the member's oldest pending operation; that operation, or NULL. */
static const struct sg_op *look(const sg_member *member, struct missing *out) {
    const struct sg_communicator *c = member->communicator;
    const struct sg_part *part = member->parts;
    *out = (struct missing){0};
    if (!c->ready || part == NULL || !part->active) return NULL;
    if (member->collectives.first != NULL) {
        uint64_t number = member->collectives.first->number;
        for (uint32_t rank = 0; rank < c->ranks; rank++)
            if (sg_load(&c->map.members[rank].arrived) <= number) miss(c, rank, member->party, out);
        if (out->count != 0) return member->collectives.first;
    }
    for (uint32_t i = 0; i < part->count; i++) {
        const struct sg_op *op = &part->ops[i];
        if (op->finished || !sg_is_pairwise(op->issue.what.kind)) continue;
        int sends = op->issue.what.kind == SG_SEND;
        const struct sg_pair *pair = sends ? member->sends[op->issue.what.root] : member->receives[op->issue.what.root];
        if (pair == NULL) continue; /* there was no memory for it, and the communicator fails */
        int both = c->places[pair->from] == c->places[pair->to];
        int there = both ? (sends ? pair->receives.first : pair->sends.first) != NULL
                         : sg_load(sends ? &pair->shared->receives : &pair->shared->sends) > pair->done;
        if (!there) miss(c, op->issue.what.root, member->party, out);
        if (out->count != 0) return op;
    }
    return NULL;
}

static void show_blocked(sg_party *party, const sg_member *member, const struct sg_op *op, const struct missing *missing) {
    struct sg_board_rank *status = party->status;
    if (party->held || party->joining) return; /* those words say something else now */
    memcpy(status->waits_key, member->communicator->map.roster->key, 16);
    sg_store(&status->waits_number, op->number);
    sg_store(&status->waits_kind, op->issue.what.kind);
    for (uint32_t i = 0; i < missing->count && i < SG_BOARD_MISSING; i++) sg_store(&status->missing[i], missing->ranks[i]);
    sg_store(&status->missing_count, missing->count);
}

/* engine->lock is held. */
static void refresh(sg_party *party, int only_misses) {
    int misses = 0, blocked = 0;
    for (const sg_member *member = party->members; member != NULL && !party->quit; member = member->next_of_party) {
        struct missing missing;
        if (member->communicator == NULL || member->communicator->members[member->rank] != member) continue;
        const struct sg_op *op = look(member, &missing);
        if (op == NULL) continue;
        misses |= missing.local;
        if (!blocked && !only_misses) show_blocked(party, member, op, &missing);
        blocked = 1;
    }
    if (!party->quit && misses != party->misses) {
        party->misses = misses;
        party->engine->options.calls.misses(party->owner, misses);
    }
    if (only_misses) return;
    party->state = blocked ? SG_RANK_BLOCKED : SG_RANK_RUNNING;
    sg_party_show(party);
}

void sg_party_refresh(sg_party *party, int only_misses) {
    pthread_mutex_lock(&party->engine->lock);
    refresh(party, only_misses);
    pthread_mutex_unlock(&party->engine->lock);
}

void sg_status_refresh(sg_engine *engine) {
    pthread_mutex_lock(&engine->lock);
    for (sg_party *party = engine->parties; party != NULL; party = party->next) refresh(party, 0);
    pthread_mutex_unlock(&engine->lock);
}
