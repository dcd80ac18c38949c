/* Sends and receives: each ordered pair of ranks is a sequence of its own, so that none waits for another.
 *
 * Both ranks here: the bytes are copied when both have arrived.  Else the sender's proxy offers them block by block, two
 * of which may be under way.  A send is complete when the receiver has all of it. */
#include <stdlib.h>

#include "parts.h"

#define PAIR_BLOCKS 64u /* that all pairs of one proxy may hold at once; who gets none waits for who has them */

static uint64_t least(uint64_t a, uint64_t b) { return a < b ? a : b; }

static struct sg_pair *make_pair(struct sg_communicator *c, uint32_t from, uint32_t to) {
    struct sg_pair *pair = calloc(1, sizeof *pair);
    if (pair == NULL) return NULL;
    *pair = (struct sg_pair){.next = c->pairs, .from = from, .to = to, .shared = &c->map.pairs[from * c->ranks + to],
                             .blocks = {-1, -1}};
    /* Not 0 when another proxy served it before: what both had announced is done then. */
    uint64_t sends = sg_load(&pair->shared->sends), receives = sg_load(&pair->shared->receives);
    pair->done = pair->announced_sends = pair->announced_receives = least(sends, receives);
    c->pairs = pair;
    return pair;
}

/* The pair, known to those of its ranks that are here. */
static struct sg_pair *pair_of(struct sg_communicator *c, uint32_t from, uint32_t to) {
    sg_member *sender = c->members[from], *receiver = c->members[to];
    struct sg_pair *pair = sender != NULL ? sender->sends[to] : receiver->receives[from];
    if (pair == NULL && sender != NULL && receiver != NULL) pair = receiver->receives[from];
    if (pair == NULL) pair = make_pair(c, from, to);
    if (pair == NULL) return NULL;
    pair->sender = sender;
    pair->receiver = receiver;
    if (sender != NULL) sender->sends[to] = pair;
    if (receiver != NULL) receiver->receives[from] = pair;
    return pair;
}

int sg_pair_add(struct sg_op *op) {
    sg_member *member = op->part->member;
    struct sg_communicator *c = member->communicator;
    int sends = op->issue.what.kind == SG_SEND;
    uint32_t from = sends ? member->rank : op->issue.what.root, to = sends ? op->issue.what.root : member->rank;
    struct sg_pair *pair = pair_of(c, from, to);
    if (pair == NULL) return -1;
    sg_queue_put(sends ? &pair->sends : &pair->receives, op);
    return 0;
}

/* ---- both here ------------------------------------------------------------------------------------------------------ */
static uint64_t bytes_of(const struct sg_described *what) { return what->count * sg_dtype_bytes(what->dtype); }

/* 1: they fit together. */
static int check(struct sg_communicator *c, const struct sg_pair *pair, const struct sg_described *sends, const struct sg_described *receives) {
    char one[96], other[96];
    if (bytes_of(sends) == bytes_of(receives)) return 1;
    sg_describe(sends, pair->done, one);
    sg_describe(receives, pair->done, other);
    sg_communicator_fail(c, SG_FAIL_USAGE, pair->to, "mismatch: rank %u to %u: %.60s, but rank %u: %.60s", pair->from, pair->to, one, pair->to,
                         other);
    return 0;
}

static void finish(struct sg_pair *pair, struct sg_queue *queue) {
    pair->at = 0;
    pair->running = 0;
    sg_op_finish(sg_queue_take(queue));
}

static int turn_local(struct sg_communicator *c, struct sg_pair *pair) {
    struct sg_op *send = pair->sends.first, *receive = pair->receives.first;
    if (send == NULL || receive == NULL) return 0;
    if (!pair->running && !check(c, pair, &send->issue.what, &receive->issue.what)) return 0;
    pair->running = 1;
    uint64_t all = bytes_of(&send->issue.what), until = least(all, pair->at + SG_TURN_BYTES);
    while (pair->at < until) {
        uint64_t some = least(until - pair->at, SG_PIECE_BYTES);
        uint8_t *piece = c->engine->pieces[0];
        if (sg_member_read(pair->sender, send->issue.send + pair->at, piece, some) != 0) return 1;
        sg_member_write(receive, receive->issue.receive + pair->at, piece, some);
        pair->at += some;
    }
    if (pair->at < all) return 1;
    finish(pair, &pair->sends);
    finish(pair, &pair->receives);
    pair->done++;
    return 1;
}

/* ---- one of them here ------------------------------------------------------------------------------------------------- */
static void ring(struct sg_communicator *c, uint32_t rank) {
    c->engine->transport.ring(c->engine->transport.state, c->proxies[c->places[rank]]);
}

/* Shows what has arrived. */
static int announce(struct sg_communicator *c, struct sg_pair *pair) {
    int sends = pair->sender != NULL;
    struct sg_queue *queue = sends ? &pair->sends : &pair->receives;
    uint64_t *announced = sends ? &pair->announced_sends : &pair->announced_receives;
    struct sg_described *ring_of = sends ? pair->shared->send_ring : pair->shared->receive_ring;
    struct sg_op *op = queue->first;
    int moved = 0;
    for (uint64_t i = pair->done; op != NULL && i < *announced; i++) op = op->next;
    for (; op != NULL && *announced < pair->done + SG_PAIR_RING; op = op->next) {
        ring_of[*announced % SG_PAIR_RING] = op->issue.what;
        sg_store(sends ? &pair->shared->sends : &pair->shared->receives, ++*announced);
        moved = 1;
    }
    if (moved) ring(c, sends ? pair->to : pair->from);
    return moved;
}

/* 1: the other side has arrived too, and does what fits. */
static int met(struct sg_communicator *c, struct sg_pair *pair) {
    int sends = pair->sender != NULL;
    if (pair->running) return 1;
    uint32_t other = sends ? pair->to : pair->from;
    uint32_t state = sg_load(&c->map.members[other].state);
    if (sg_load(sends ? &pair->shared->receives : &pair->shared->sends) <= pair->done) {
        if (state > SG_MEMBER_JOINED)
            sg_communicator_fail(c, SG_FAIL_REMOTE, other, "rank %u (global rank %u) %s before its %s %s rank %u", other,
                                 c->map.members[other].global_rank, sg_gone(state),
                                 sends ? "receive" : "send", sends ? "from" : "to", sends ? pair->from : pair->to);
        return 0;
    }
    struct sg_described s = pair->shared->send_ring[pair->done % SG_PAIR_RING], r = pair->shared->receive_ring[pair->done % SG_PAIR_RING];
    pair->running = check(c, pair, &s, &r);
    return pair->running;
}

static void release(struct sg_communicator *c, struct sg_pair *pair, uint32_t slot) {
    if (pair->blocks[slot] < 0) return;
    c->engine->transport.release(c->engine->transport.state, (uint32_t)pair->blocks[slot]);
    c->engine->pair_blocks--;
    pair->blocks[slot] = -1;
}

/* Offers the next block.  0: it cannot now. */
static int offer(struct sg_communicator *c, struct sg_pair *pair, const struct sg_op *send, uint64_t published) {
    uint64_t some = least(bytes_of(&send->issue.what) - pair->at, SG_BLOCK_BYTES);
    uint32_t slot = published & 1, block = 0;
    if (some != 0) {
        if (c->engine->pair_blocks >= PAIR_BLOCKS) return 0;
        uint8_t *out = sg_lane_reserve(c, &block);
        if (out == NULL) return 1;
        pair->blocks[slot] = block;
        c->engine->pair_blocks++;
        if (sg_member_read(pair->sender, send->issue.send + pair->at, out, some) != 0) return 1;
    }
    pair->at += some;
    sg_store(&pair->shared->offers[slot], some == 0 ? 0 : (uint64_t)(block + 1) << 32 | some);
    sg_store(&pair->shared->published, published + 1);
    ring(c, pair->to);
    return 1;
}

/* `at` beyond the end marks that the last block, which may be empty, was offered. */
static int turn_sender(struct sg_communicator *c, struct sg_pair *pair) {
    struct sg_op *send = pair->sends.first;
    uint64_t published = pair->shared->published, consumed = sg_load(&pair->shared->consumed);
    if (consumed == published) release(c, pair, (published + 1) & 1);
    if (consumed + 1 >= published) release(c, pair, published & 1);
    if (send == NULL || !met(c, pair)) return 0;
    uint64_t all = bytes_of(&send->issue.what);
    if (pair->at > all) {
        if (consumed != published) return 0;
        finish(pair, &pair->sends);
        pair->done++;
        return 1;
    }
    if (published - consumed > 1 || !offer(c, pair, send, published)) return 0;
    if (pair->at == all) pair->at++;
    return 1;
}

static int turn_receiver(struct sg_communicator *c, struct sg_pair *pair) {
    struct sg_op *receive = pair->receives.first;
    if (receive == NULL || !met(c, pair)) return 0;
    uint64_t consumed = pair->shared->consumed, all = bytes_of(&receive->issue.what);
    if (sg_load(&pair->shared->published) <= consumed) return 0;
    uint64_t offer = sg_load(&pair->shared->offers[consumed & 1]), some = least(all - pair->at, SG_BLOCK_BYTES);
    if (some != 0) {
        const struct sg_transport *transport = &c->engine->transport;
        const uint8_t *in = (uint32_t)offer != some || offer >> 32 == 0 ? NULL
                            : transport->peer(transport->state, c->proxies[c->places[pair->from]], (uint32_t)(offer >> 32) - 1, (uint32_t)some);
        if (in == NULL) {
            sg_communicator_fail(c, SG_FAIL_INTERNAL, UINT32_MAX, "rank %u offered %u bytes to rank %u where %llu were due", pair->from,
                                 (uint32_t)offer, pair->to, (unsigned long long)some);
            return 1;
        }
        sg_member_write(receive, receive->issue.receive + pair->at, in, some);
    }
    pair->at += some;
    sg_store(&pair->shared->consumed, consumed + 1);
    ring(c, pair->from);
    if (pair->at < all) return 1;
    finish(pair, &pair->receives);
    pair->done++;
    return 1;
}

/* ---- all ---------------------------------------------------------------------------------------------------------------- */
int sg_pairs_turn(struct sg_communicator *c) {
    int moved = 0;
    for (struct sg_pair *pair = c->pairs; pair != NULL; pair = pair->next) {
        if (sg_load(&c->map.roster->error) != 0) return 1;
        int both = c->places[pair->from] == c->places[pair->to];
        if (both) {
            uint32_t other = pair->sends.first != NULL ? pair->to : pair->from;
            if ((pair->sends.first == NULL) == (pair->receives.first == NULL)) moved |= turn_local(c, pair);
            else if (sg_load(&c->map.members[other].state) > SG_MEMBER_JOINED)
                sg_communicator_fail(c, SG_FAIL_REMOTE, other, "rank %u (global rank %u) ended before rank %u's operation with it", other,
                                     c->map.members[other].global_rank, other == pair->to ? pair->from : pair->to);
            continue;
        }
        moved |= announce(c, pair);
        moved |= pair->sender != NULL ? turn_sender(c, pair) : turn_receiver(c, pair);
    }
    return moved;
}

void sg_pairs_drop(struct sg_communicator *c) {
    for (struct sg_pair *pair = c->pairs; pair != NULL; pair = pair->next) {
        pair->sends.first = pair->receives.first = NULL;
        pair->running = 0;
        release(c, pair, 0);
        release(c, pair, 1);
    }
}
