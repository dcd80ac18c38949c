/* Parties and members: how sessions come, meet in communicators, and go. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../transport/wait.h"
#include "parts.h"

/* ---- parties ------------------------------------------------------------------------------------------------------- */
sg_party *sg_party_begin(sg_engine *engine, void *owner, uint32_t global_rank, uint32_t pid) {
    sg_party *party = calloc(1, sizeof *party);
    if (party == NULL || global_rank >= SG_BOARD_RANKS) {
        free(party);
        return NULL;
    }
    party->engine = engine;
    party->owner = owner;
    party->rank = global_rank;
    party->status = &engine->board->ranks[global_rank];
    party->state = SG_RANK_ABSENT;
    pthread_mutex_lock(&engine->lock);
    party->status->proxy = engine->options.proxy_index;
    party->status->pid = pid;
    party->before = &engine->parties;
    party->next = engine->parties;
    if (party->next != NULL) party->next->before = &party->next;
    engine->parties = party;
    sg_party_show(party);
    pthread_mutex_unlock(&engine->lock);
    return party;
}

/* Until nobody uses the member, nor begins to; engine->lock is held. */
static void close_member(sg_member *member) {
    sg_store(&member->gone, 1);
    if (member->communicator != NULL) sg_roster_wake(member->communicator->map.roster);
    while (member->users != 0) pthread_cond_wait(&member->party->engine->changed, &member->party->engine->lock);
}

void sg_party_quit(sg_party *party) {
    sg_engine *engine = party->engine;
    pthread_mutex_lock(&engine->lock);
    int first = !party->quit;
    sg_store(&party->quit, 1);
    sg_add(&party->status->wake, 1);
    sg_futex_wake((_Atomic uint32_t *)&party->status->wake, INT_MAX);
    pthread_cond_broadcast(&engine->changed);
    for (sg_member *member = party->members; member != NULL; member = member->next_of_party) close_member(member);
    pthread_mutex_unlock(&engine->lock);
    if (first) sg_engine_call(engine, &party->request, SG_REQUEST_QUIT, party, 0);
}

void sg_party_end(sg_party *party) {
    sg_engine *engine = party->engine;
    sg_engine_call(engine, &party->request, SG_REQUEST_END, party, 0);
    pthread_mutex_lock(&engine->lock);
    *party->before = party->next;
    if (party->next != NULL) party->next->before = party->before;
    party->joining = party->held = 0;
    sg_party_show(party);
    pthread_mutex_unlock(&engine->lock);
    while (party->members != NULL) {
        sg_member *next = party->members->next_of_party;
        sg_member_free(party->members);
        party->members = next;
    }
    free(party);
}

struct sg_board_rank *sg_party_status(sg_party *party) { return party->status; }

/* ---- members --------------------------------------------------------------------------------------------------------- */
int sg_member_hold(sg_member *member) {
    sg_engine *engine = member->party->engine;
    pthread_mutex_lock(&engine->lock);
    int there = !member->gone && member->communicator != NULL;
    member->users += (uint32_t)there;
    pthread_mutex_unlock(&engine->lock);
    return there;
}

void sg_member_let_go(sg_member *member) {
    sg_engine *engine = member->party->engine;
    pthread_mutex_lock(&engine->lock);
    if (--member->users == 0) pthread_cond_broadcast(&engine->changed);
    pthread_mutex_unlock(&engine->lock);
}

void sg_member_free(sg_member *member) {
    pthread_mutex_destroy(&member->splitting);
    free(member->used);
    free(member->sends);
    free(member->receives);
    free(member);
}

static struct sg_communicator *find(sg_engine *engine, const uint8_t key[16]) {
    struct sg_communicator *c = engine->communicators;
    while (c != NULL && (c->locals == 0 || memcmp(c->map.roster->key, key, 16) != 0)) c = c->next;
    return c;
}

/* The communicator with one more member here; engine->lock is held. */
static int open_communicator(sg_engine *engine, const uint8_t key[16], uint32_t ranks, struct sg_communicator **out) {
    struct sg_communicator *c = find(engine, key);
    if (c != NULL) {
        if (c->ranks != ranks) return -EINVAL;
        c->locals++;
        *out = c;
        return 0;
    }
    c = calloc(1, sizeof *c);
    if (c == NULL) return -ENOMEM;
    *c = (struct sg_communicator){.engine = engine, .ranks = ranks, .locals = 1, .blocks = {-1, -1}};
    c->members = calloc(ranks, sizeof(sg_member *));
    int error = c->members == NULL ? -ENOMEM : sg_roster_open(engine->directory, key, ranks, &c->map);
    if (error != 0) {
        free(c->members);
        free(c);
        return error;
    }
    c->next = engine->communicators;
    engine->communicators = c;
    *out = c;
    return 0;
}

static sg_member *make_member(sg_party *party, uint32_t ranks, uint32_t rank) {
    sg_member *member = calloc(1, sizeof *member);
    if (member == NULL) return NULL;
    member->party = party;
    member->rank = rank;
    member->ranks = ranks;
    pthread_mutex_init(&member->splitting, NULL);
    member->used = calloc(ranks, 1);
    member->sends = calloc(ranks, sizeof(struct sg_pair *));
    member->receives = calloc(ranks, sizeof(struct sg_pair *));
    if (member->used != NULL && member->sends != NULL && member->receives != NULL) return member;
    sg_member_free(member);
    return NULL;
}

/* Takes the rank's place on the roster; engine->lock is held. */
static int take_place(sg_member *member, struct sg_communicator *c) {
    struct sg_roster_member *mine = &c->map.members[member->rank];
    if (!sg_roster_claim(mine, c->engine->options.proxy_index)) return 0;
    mine->global_rank = member->party->rank;
    member->communicator = c;
    member->next_of_party = member->party->members;
    member->party->members = member;
    sg_engine_post(c->engine, &member->request, SG_REQUEST_MEMBER, member);
    sg_store(&mine->state, SG_MEMBER_JOINED);
    sg_add(&c->map.roster->joined, 1);
    return 1;
}

static void note_pair(void *argument, const struct sg_roster_map *map, uint32_t from, uint32_t to) {
    sg_member *member = argument;
    const struct sg_roster_pair *pair = &map->pairs[(uint64_t)from * map->roster->ranks + to];
    if (from == member->rank && sg_load(&pair->send_clock) != 0) member->used[to] |= 1;
    if (to == member->rank && sg_load(&pair->receive_clock) != 0) member->used[from] |= 2;
}

/* Takes over the rank's place on the roster, which is this proxy's already; engine->lock is held. */
static int resume_place(sg_member *member, struct sg_communicator *c) {
    const struct sg_roster_member *mine = &c->map.members[member->rank];
    if (sg_load(&mine->state) != SG_MEMBER_JOINED || mine->proxy != c->engine->options.proxy_index || mine->global_rank != member->party->rank)
        return 0;
    for (const sg_member *other = member->party->members; other != NULL; other = other->next_of_party)
        if (other->communicator == c && other->rank == member->rank) return 0;
    member->clock = mine->clock;
    member->splits = mine->splits;
    member->activated = member->announced = mine->arrived;
    member->launches = member->party->launches;
    member->resumes = 1;
    sg_roster_each_pair(&c->map, note_pair, member);
    member->communicator = c;
    member->next_of_party = member->party->members;
    member->party->members = member;
    sg_engine_post(c->engine, &member->request, SG_REQUEST_MEMBER, member);
    return 1;
}

static int come(sg_party *party, const uint8_t key[16], uint32_t ranks, uint32_t rank, int (*take)(sg_member *, struct sg_communicator *),
                sg_member **out, char said[SG_SAID]) {
    sg_engine *engine = party->engine;
    struct sg_communicator *c = NULL;
    if (ranks == 0 || ranks > SG_BOARD_RANKS || rank >= ranks) {
        snprintf(said, SG_SAID, "rank %u of %u: a communicator has 1 to %u ranks", rank, ranks, SG_BOARD_RANKS);
        return SG_FAIL_ARGUMENT;
    }
    sg_member *member = make_member(party, ranks, rank);
    pthread_mutex_lock(&engine->lock);
    int error = member == NULL ? -ENOMEM : party->quit ? -ESHUTDOWN : open_communicator(engine, key, ranks, &c);
    int taken = error == 0 && !take(member, c);
    if (taken) c->locals--;
    pthread_mutex_unlock(&engine->lock);
    if (error == 0 && !taken) {
        sg_roster_wake(c->map.roster);
        sg_engine_ring(engine);
        *out = member;
        return SG_FAIL_NONE;
    }
    if (member != NULL) sg_member_free(member);
    if (taken) snprintf(said, SG_SAID, "rank %u of %u has joined this communicator already", rank, ranks);
    else if (error == -EINVAL) snprintf(said, SG_SAID, "rank %u says that there are %u ranks, another said otherwise", rank, ranks);
    else snprintf(said, SG_SAID, "no communicator for rank %u of %u: %s", rank, ranks, strerror(-error));
    return taken || error == -EINVAL ? SG_FAIL_ARGUMENT : SG_FAIL_SYSTEM;
}

int sg_member_join(sg_party *party, const uint8_t key[16], uint32_t ranks, uint32_t rank, sg_member **out, char said[SG_SAID]) {
    return come(party, key, ranks, rank, take_place, out, said);
}

int sg_member_resume(sg_party *party, const uint8_t key[16], uint32_t ranks, uint32_t rank, sg_member **out, char said[SG_SAID]) {
    return come(party, key, ranks, rank, resume_place, out, said);
}

/* The error of a communicator, or of who waits in it: 0: none. */
static int error_of(const sg_member *member, char said[SG_SAID]) {
    const struct sg_roster *roster = member->communicator->map.roster;
    uint32_t error = sg_load(&roster->error);
    if (sg_load(&member->party->quit)) {
        snprintf(said, SG_SAID, "the session ends");
        return SG_FAIL_REMOTE;
    }
    if (error != 0) {
        memcpy(said, roster->said, SG_SAID);
        said[SG_SAID - 1] = 0;
    }
    return (int)error;
}

/* Some member that will never come, or `ranks`. */
static uint32_t lost(const struct sg_communicator *c) {
    uint32_t rank = 0;
    while (rank < c->ranks && sg_load(&c->map.members[rank].state) <= SG_MEMBER_JOINED) rank++;
    return rank;
}

int sg_member_ready(sg_member *member, char said[SG_SAID]) {
    if (!sg_member_hold(member)) {
        snprintf(said, SG_SAID, "the communicator was aborted or the session ends");
        return -SG_FAIL_REMOTE;
    }
    struct sg_communicator *c = member->communicator;
    int result = -error_of(member, said);
    if (result == 0) result = sg_load(&c->map.roster->joined) >= c->ranks;
    uint32_t rank = result == 0 ? lost(c) : c->ranks;
    if (rank < c->ranks) {
        snprintf(said, SG_SAID, "rank %u (global rank %u) ended before all had joined", rank, c->map.members[rank].global_rank);
        result = -SG_FAIL_REMOTE;
    }
    sg_member_let_go(member);
    return result;
}

void sg_member_leave(sg_member *member, int aborts) {
    sg_engine *engine = member->party->engine;
    pthread_mutex_lock(&engine->lock);
    int first = !member->gone && member->communicator != NULL;
    close_member(member);
    pthread_mutex_unlock(&engine->lock);
    struct sg_request_item item;
    if (first) sg_engine_call(engine, &item, SG_REQUEST_LEAVE, member, (uint32_t)aborts);
}

int sg_member_busy(sg_member *member) { return sg_load(&member->busy) != 0; }

void sg_member_await_idle(sg_member *member) {
    sg_engine *engine = member->party->engine;
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += SG_WAIT_MS * 1000000l;
    if (until.tv_nsec >= 1000000000) until.tv_sec++, until.tv_nsec -= 1000000000;
    pthread_mutex_lock(&engine->lock);
    if (sg_member_busy(member)) pthread_cond_timedwait(&engine->changed, &engine->lock, &until);
    pthread_mutex_unlock(&engine->lock);
}

int sg_member_error(sg_member *member, char said[SG_SAID]) {
    said[0] = 0;
    if (!sg_member_hold(member)) return SG_FAIL_ARGUMENT;
    int error = error_of(member, said);
    sg_member_let_go(member);
    return error;
}

void sg_member_break(sg_member *member, int failure, const char *said) {
    if (!sg_member_hold(member)) return;
    sg_roster_fail(member->communicator->map.roster, (uint32_t)failure, member->rank, said);
    sg_engine_ring(member->party->engine);
    sg_member_let_go(member);
}

/* No lock: they do not change while the member is there. */
uint32_t sg_member_ranks(const sg_member *member) { return member->ranks; }
uint32_t sg_member_rank(const sg_member *member) { return member->rank; }

/* ---- waiting for others ------------------------------------------------------------------------------------------------ */
static void show_joining(sg_member *member, int splits, uint64_t number) {
    sg_party *party = member->party;
    struct sg_board_rank *status = party->status;
    const struct sg_communicator *c = member->communicator;
    uint32_t missing = 0;
    for (uint32_t rank = 0; rank < c->ranks; rank++) {
        const struct sg_roster_member *other = &c->map.members[rank];
        int there = splits ? sg_load(&other->splits) >= number : sg_load(&other->state) >= SG_MEMBER_JOINED;
        if (there) continue;
        if (missing < SG_BOARD_MISSING) sg_store(&status->missing[missing], splits ? other->global_rank : rank);
        missing++;
    }
    sg_store(&status->missing_count, missing);
    sg_store(&status->waits_kind, 0);
    memcpy(status->waits_key, c->map.roster->key, 16);
}

void sg_member_await(sg_member *member, const struct sg_split *split) {
    sg_engine *engine = member->party->engine;
    struct sg_split found;
    if (!sg_member_hold(member)) return;
    struct sg_roster *roster = member->communicator->map.roster;
    uint32_t seen = sg_load(&roster->wake);
    pthread_mutex_lock(&engine->lock);
    member->party->joining = 1;
    show_joining(member, split != NULL, member->splits);
    sg_party_show(member->party);
    pthread_mutex_unlock(&engine->lock);
    char said[SG_SAID];
    if (split != NULL) found = *split;
    int ready = split != NULL ? sg_split_ready(member, &found, said) : sg_member_ready(member, said);
    if (ready == 0) sg_futex_wait((_Atomic uint32_t *)&roster->wake, seen, SG_WAIT_MS);
    sg_member_let_go(member);
}

void sg_member_awaited(sg_member *member) {
    sg_engine *engine = member->party->engine;
    pthread_mutex_lock(&engine->lock);
    member->party->joining = 0;
    sg_party_show(member->party);
    pthread_mutex_unlock(&engine->lock);
}

/* ---- split ------------------------------------------------------------------------------------------------------------ */
/* A place for the colour and key of one split is used again two splits later: by then everyone has read it, because each
 * begins the next one only when it has read all of this one. */
int sg_split_begin(sg_member *member, int32_t colour, int32_t key, struct sg_split *out) {
    pthread_mutex_lock(&member->splitting);
    if (!sg_member_hold(member)) {
        pthread_mutex_unlock(&member->splitting);
        return SG_FAIL_REMOTE;
    }
    struct sg_communicator *c = member->communicator;
    struct sg_roster_member *mine = &c->map.members[member->rank];
    uint64_t number = member->splits++;
    mine->split[number & 1][0] = colour;
    mine->split[number & 1][1] = key;
    sg_store(&mine->splits, number + 1);
    sg_roster_wake(c->map.roster);
    *out = (struct sg_split){.number = number};
    return 0;
}

static uint64_t mix(uint64_t value) { /* the finaliser of splitmix64 */
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ull;
    value = (value ^ (value >> 27)) * 0x94d049bb133111ebull;
    return value ^ (value >> 31);
}

static void derive_key(const uint8_t parent[16], uint64_t number, int32_t colour, uint8_t out[16]) {
    uint64_t words[2];
    memcpy(words, parent, 16);
    uint64_t first = mix(words[0] + mix(number + 1)) ^ mix((uint32_t)colour + words[1]);
    uint64_t second = mix(words[1] ^ mix(first + number)) + mix(words[0] ^ ((uint64_t)(uint32_t)colour << 32));
    memcpy(out, &first, 8);
    memcpy(out + 8, &second, 8);
}

int sg_split_ready(sg_member *member, struct sg_split *split, char said[SG_SAID]) {
    struct sg_communicator *c = member->communicator; /* held since begin */
    int error = error_of(member, said);
    if (error == 0 && sg_load(&member->gone)) error = SG_FAIL_REMOTE;
    if (error != 0) return -error;
    for (uint32_t rank = 0; rank < c->ranks; rank++) {
        uint32_t state = sg_load(&c->map.members[rank].state);
        if (sg_load(&c->map.members[rank].splits) > split->number) continue;
        if (state <= SG_MEMBER_JOINED) return 0;
        snprintf(said, SG_SAID, "rank %u (global rank %u) ended before it split the communicator", rank, c->map.members[rank].global_rank);
        return -SG_FAIL_REMOTE;
    }
    const int32_t *mine = c->map.members[member->rank].split[split->number & 1];
    split->ranks = split->rank = 0;
    for (uint32_t rank = 0; rank < c->ranks && mine[0] >= 0; rank++) {
        const int32_t *other = c->map.members[rank].split[split->number & 1];
        if (other[0] != mine[0]) continue;
        split->ranks++;
        split->rank += other[1] < mine[1] || (other[1] == mine[1] && rank < member->rank);
    }
    derive_key(c->map.roster->key, split->number, mine[0], split->key);
    return 1;
}

void sg_split_end(sg_member *member) {
    sg_member_let_go(member);
    pthread_mutex_unlock(&member->splitting);
}
