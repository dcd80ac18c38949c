/* Groups: operations that a rank issues together, and that complete together. */
#include <stdlib.h>
#include <string.h>

#include "../barrier/cut.h"
#include "../transport/wait.h"
#include "parts.h"

/* ---- making -------------------------------------------------------------------------------------------------------- */
static uint32_t part_of(const sg_group *group, const sg_member *member) {
    uint32_t i = 0;
    while (i < group->part_count && group->parts[i].member != member) i++;
    return i;
}

/* Sorts the operations by communicator, in their order. */
static void sort_ops(sg_group *group, const struct sg_issue *issues) {
    struct sg_op *at = group->ops;
    for (uint32_t i = 0; i < group->count; i++) {
        uint32_t part = part_of(group, issues[i].member);
        if (part == group->part_count) group->parts[group->part_count++] = (struct sg_part){.group = group, .member = issues[i].member};
        group->parts[part].count++;
    }
    for (uint32_t i = 0; i < group->part_count; i++) {
        struct sg_part *part = &group->parts[i];
        part->ops = at;
        at += part->count;
    }
    for (uint32_t i = 0; i < group->count; i++) {
        struct sg_part *part = &group->parts[part_of(group, issues[i].member)];
        part->ops[part->unfinished++] = (struct sg_op){.part = part, .issue = issues[i]};
    }
}

void sg_party_launched(sg_party *party, uint64_t launches) { party->launches = launches; }

sg_group *sg_group_new(sg_party *party, const struct sg_issue *issues, uint32_t count, uint64_t gate) {
    sg_group *group = calloc(1, sizeof *group);
    if (group == NULL) return NULL;
    *group = (sg_group){.party = party, .gate = gate, .waiting = 1, .count = count};
    group->ops = calloc(count, sizeof *group->ops);
    group->parts = calloc(count, sizeof *group->parts);
    if (group->ops == NULL || group->parts == NULL) {
        sg_group_free(group);
        return NULL;
    }
    sort_ops(group, issues);
    group->unfinished = group->part_count;
    return group;
}

void sg_group_free(sg_group *group) {
    free(group->ops);
    free(group->parts);
    free(group);
}

/* ---- clocks ---------------------------------------------------------------------------------------------------------- */
static struct sg_roster_pair *pair_of(const struct sg_op *op, int *sends) {
    const sg_member *member = op->part->member;
    uint32_t peer = op->issue.what.root, ranks = member->communicator->ranks;
    *sends = op->issue.what.kind == SG_SEND;
    return &member->communicator->map.pairs[*sends ? member->rank * ranks + peer : peer * ranks + member->rank];
}

/* Shows what the group is about to issue, or no longer; engine->lock is held. */
static void want(sg_group *group, int wanted) {
    for (uint32_t i = 0; i < group->count; i++) {
        struct sg_op *op = &group->ops[i];
        sg_member *member = op->part->member;
        if (member->communicator == NULL) continue; /* it has left meanwhile: nobody reads what it wants */
        if (sg_is_pairwise(op->issue.what.kind)) {
            int sends;
            struct sg_roster_pair *pair = pair_of(op, &sends);
            uint32_t *wants = sends ? &pair->send_wants : &pair->receive_wants;
            sg_store(wants, wanted ? *wants + 1 : 0);
        } else {
            uint32_t *wants = &member->communicator->map.members[member->rank].wants;
            sg_store(wants, wanted ? *wants + 1 : 0);
        }
    }
}

static void note_tempo(sg_member *member, const struct sg_described *what) {
    uint64_t launches = member->party->launches;
    uint32_t mark = (uint32_t)(what->count ^ what->count >> 32) * 31 + (what->kind << 16 | what->dtype << 8 | what->reduction) + what->root * 131;
    sg_tempo_note(&member->tempo, mark, (uint32_t)(launches - member->launches), sg_now_ns());
    member->launches = launches;
    struct sg_tempo_beat beat = sg_tempo_beat(&member->tempo);
    struct sg_roster_member *shown = &member->communicator->map.members[member->rank];
    sg_store(&shown->end, beat.end);
    sg_store(&shown->work, beat.work);
    sg_store(&shown->period_ns, beat.ns);
    sg_store(&shown->period, beat.period);
}

static void tick(sg_group *group) {
    for (uint32_t i = 0; i < group->count; i++) {
        struct sg_op *op = &group->ops[i];
        sg_member *member = op->part->member;
        if (sg_is_pairwise(op->issue.what.kind)) {
            int sends;
            struct sg_roster_pair *pair = pair_of(op, &sends);
            sg_add(sends ? &pair->send_clock : &pair->receive_clock, 1);
        } else {
            note_tempo(member, &op->issue.what);
            sg_store(&member->communicator->map.members[member->rank].clock, ++member->clock);
        }
    }
    struct sg_board_rank *status = group->party->status;
    sg_store(&status->issued, status->issued + group->count);
}

/* One channel, as the cut sees it.  A channel that has no target yet holds who would pass it. */
static int beyond(uint64_t clock, uint64_t target, uint32_t wants, int *behind) {
    struct sg_cut_standing standing = {clock, target == SG_NO_TARGET ? clock : target, wants, 0};
    *behind |= standing.clock < standing.target;
    return !sg_cut_may_issue(&standing, 1);
}

/* 1: nothing holds the rank, given what it wants.  All channels of the rank count: who is behind on one may pass others. */
static int may_issue(const sg_party *party) {
    int behind = 0, passes = 0;
    for (const sg_member *member = party->members; member != NULL; member = member->next_of_party) {
        const struct sg_communicator *c = member->communicator;
        if (c == NULL) continue;
        const struct sg_roster_member *mine = &c->map.members[member->rank];
        passes |= beyond(member->clock, sg_load(&c->map.roster->target), mine->wants, &behind);
        for (uint32_t peer = 0; member->used != NULL && peer < c->ranks; peer++) {
            const struct sg_roster_pair *out = &c->map.pairs[member->rank * c->ranks + peer], *in = &c->map.pairs[peer * c->ranks + member->rank];
            if (member->used[peer] & 1) passes |= beyond(sg_load(&out->send_clock), sg_load(&out->target), out->send_wants, &behind);
            if (member->used[peer] & 2) passes |= beyond(sg_load(&in->receive_clock), sg_load(&in->target), in->receive_wants, &behind);
        }
    }
    return behind || !passes;
}

/* ---- issuing ---------------------------------------------------------------------------------------------------------- */
/* Pairs get their memory, and are remembered for the cut. */
static int use_pairs(sg_group *group) {
    for (uint32_t i = 0; i < group->count; i++) {
        struct sg_op *op = &group->ops[i];
        sg_member *member = op->part->member;
        struct sg_communicator *c = member->communicator;
        int sends = op->issue.what.kind == SG_SEND;
        uint32_t peer = op->issue.what.root;
        if (!sg_is_pairwise(op->issue.what.kind) || member->used[peer] & (sends ? 1 : 2)) continue;
        int error = sends ? sg_roster_back_pair(&c->map, member->rank, peer) : sg_roster_back_pair(&c->map, peer, member->rank);
        if (error == 0 && c->map.pairs != NULL) member->used[peer] |= sends ? 1 : 2;
        if (error != 0) return -SG_FAIL_SYSTEM;
    }
    return 0;
}

static int check(sg_group *group, char said[SG_SAID]) {
    if (group->party->quit) return -SG_FAIL_REMOTE;
    for (uint32_t i = 0; i < group->part_count; i++) {
        sg_member *member = group->parts[i].member;
        if (member->gone || member->communicator == NULL) return -SG_FAIL_ARGUMENT;
        struct sg_roster *roster = member->communicator->map.roster;
        uint32_t error = sg_load(&roster->error);
        if (error == 0 || sg_communicator_aborted(member->communicator)) continue; /* aborted: it waits with the others */
        memcpy(said, roster->said, SG_SAID);
        said[SG_SAID - 1] = 0;
        return -(int)error;
    }
    return use_pairs(group);
}

static void show_held(sg_group *group, int held) {
    sg_party *party = group->party;
    const struct sg_communicator *c = group->parts[0].member->communicator;
    party->held = held;
    if (held) {
        memcpy(party->status->waits_key, c->map.roster->key, 16);
        sg_store(&party->status->waits_kind, group->ops[0].issue.what.kind);
    }
    sg_party_show(party);
}

static void issue(sg_group *group) {
    sg_party *party = group->party;
    tick(group);
    for (uint32_t i = 0; i < group->part_count; i++) sg_add(&group->parts[i].member->busy, 1);
    group->before = &party->groups;
    group->next = party->groups;
    if (group->next != NULL) group->next->before = &group->next;
    party->groups = group;
    sg_engine_post(party->engine, &group->request, SG_REQUEST_GROUP, group);
}

/* 1: the cut lets the group go.  What a held rank wants is on the board until it goes. */
static int pass(sg_group *group) {
    int held = group->party->held, goes = 1;
    if (sg_load(&group->party->engine->board->cut) != 0) {
        if (!held) want(group, 1);
        held = 1;
        goes = may_issue(group->party);
    }
    if (goes && held) want(group, 0);
    return goes;
}

int sg_group_issue(sg_group *group, char said[SG_SAID]) {
    sg_party *party = group->party;
    sg_engine *engine = party->engine;
    said[0] = 0;
    pthread_mutex_lock(&engine->lock);
    party->seen = sg_load(&party->status->wake); /* before the decision: what changes it after that ends `await` */
    int result = check(group, said);
    if (result < 0 && party->held) want(group, 0); /* it was held, and will not be issued */
    if (result == 0) {
        /* The agent sets `cut`, waits until nobody is issuing, and reads the clocks: so none of them moves unseen. */
        sg_store(&party->status->issuing, 1);
        result = pass(group);
        if (result) issue(group);
        sg_store(&party->status->issuing, 0);
    }
    if (party->held != (result == 0)) show_held(group, result == 0);
    pthread_mutex_unlock(&engine->lock);
    if (result == 1) sg_engine_ring(engine);
    return result;
}

void sg_party_await(sg_party *party) { sg_futex_wait((_Atomic uint32_t *)&party->status->wake, party->seen, SG_WAIT_MS); }

void sg_group_expect(sg_group *group) { sg_add(&group->waiting, 1); }

void sg_group_arrived(sg_group *group) {
    sg_engine *engine = group->party->engine;
    if (sg_add(&group->waiting, (uint32_t)-1) == 0) sg_engine_ring(engine); /* the group may be gone already */
}

/* ---- the engine's side --------------------------------------------------------------------------------------------------- */
void sg_group_link(sg_group *group) {
    for (uint32_t i = 0; i < group->part_count; i++) {
        sg_member *member = group->parts[i].member;
        group->parts[i].next = NULL;
        if (member->parts == NULL) member->parts_end = &member->parts;
        *member->parts_end = &group->parts[i];
        member->parts_end = &group->parts[i].next;
    }
}

static void unlink_group(sg_group *group) {
    sg_engine *engine = group->party->engine;
    pthread_mutex_lock(&engine->lock);
    *group->before = group->next;
    if (group->next != NULL) group->next->before = group->before;
    pthread_mutex_unlock(&engine->lock);
}

static void open_gate(sg_group *group) {
    sg_party *party = group->party;
    if (group->opened) return;
    group->opened = 1;
    sg_store(&party->status->completed, party->status->completed + group->count);
    sg_party_refresh(party, 1);
    party->engine->options.calls.open(party->owner, group->gate);
}

/* The part is its member's first. */
static void end_part(struct sg_part *part) {
    sg_group *group = part->group;
    sg_engine *engine = group->party->engine;
    part->member->parts = part->next;
    if (sg_add(&part->member->busy, (uint32_t)-1) == 0) {
        pthread_mutex_lock(&engine->lock);
        pthread_cond_broadcast(&engine->changed);
        pthread_mutex_unlock(&engine->lock);
    }
    if (--group->unfinished != 0) return;
    open_gate(group);
    if (sg_load(&group->waiting) != 0) {
        group->later = engine->retired;
        engine->retired = group;
        return;
    }
    unlink_group(group);
    sg_group_free(group);
}

void sg_op_finish(struct sg_op *op) {
    op->finished = 1;
    if (--op->part->unfinished == 0) end_part(op->part);
}

void sg_part_drop(struct sg_part *part, const char *said) {
    sg_group *group = part->group;
    sg_party *party = group->party;
    if (!group->failed && said != NULL) party->engine->options.calls.fail(party->owner, said);
    group->failed = 1;
    open_gate(group); /* what waits for it must come back, also when other parts go on */
    end_part(part);
}

void sg_engine_sweep(sg_engine *engine, const sg_party *ended) {
    for (sg_group **at = &engine->retired; *at != NULL;) {
        sg_group *group = *at;
        if (sg_load(&group->waiting) != 0 && group->party != ended) {
            at = &group->later;
            continue;
        }
        *at = group->later;
        unlink_group(group);
        sg_group_free(group);
    }
}
