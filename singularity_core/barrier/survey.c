/* One look reads everything twice, and counts only when nothing differed: clocks only grow, and a rank that is deciding
 * says so (`issuing`), so what is equal twice was true at once. */
#include "survey.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../proxy/server.h"
#include "../transport/process_start.h"
#include "../transport/wait.h"
#include "tempo.h"

enum { TRIES = 50 };

struct place {          /* of a channel on the board */
    uint64_t *target, seen; /* and what was last read or written there */
    const struct sg_roster_map *map; /* a communicator's own channel; else NULL */
    uint64_t weight;        /* see weigh */
};

enum { NAME_BYTES = 35 }; /* c-, 32 hexadecimal digits, NUL */
struct found { char name[NAME_BYTES]; struct sg_roster_map map; };

struct sg_survey {
    char *directory;
    struct sg_board *board;
    struct found *rosters; /* by name: a job may have hundreds, and each look meets the names of all */
    uint32_t roster_count, roster_room;
    struct sg_cut cut;
    struct place *places;
    uint32_t member_room, channel_room;
    int error; /* of the look under way */
};

static void *grow(void *array, uint32_t *room, uint32_t wanted, size_t size) {
    if (wanted <= *room) return array;
    uint32_t more = *room * 2 > wanted ? *room * 2 : wanted + 16;
    void *grown = realloc(array, more * size);
    if (grown != NULL) *room = more;
    return grown;
}

/* ---- which communicators there are ------------------------------------------------------------------------------ */
/* Where the name is, or would be. */
static uint32_t place_of(const struct sg_survey *s, const char *name, int *known) {
    uint32_t low = 0, high = s->roster_count;
    *known = 0;
    while (low < high && !*known) {
        uint32_t middle = (low + high) / 2;
        int order = strncmp(s->rosters[middle].name, name, NAME_BYTES);
        *known = order == 0;
        if (order < 0) low = middle + 1;
        else high = middle;
    }
    return high;
}

static int is_over(const struct sg_roster *roster) { return sg_load(&roster->left) >= roster->ranks || sg_load(&roster->error) != 0; }

static void drop_ended(struct sg_survey *s) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < s->roster_count; i++) {
        struct sg_roster_map *map = &s->rosters[i].map;
        if (sg_load(&map->roster->left) < map->roster->ranks) s->rosters[kept++] = s->rosters[i];
        else sg_roster_close(map);
    }
    s->roster_count = kept;
}

static int add_roster(struct sg_survey *s, const char *name) {
    struct sg_roster_map map;
    int known;
    uint32_t at = place_of(s, name, &known);
    if (known) return 0;
    struct found *grown = grow(s->rosters, &s->roster_room, s->roster_count + 1, sizeof *grown);
    if (grown == NULL) return -ENOMEM;
    s->rosters = grown;
    int error = sg_roster_look(s->directory, name, &map);
    if (error != 0) return error == -ENOENT ? 0 : error; /* it may have been removed meanwhile */
    memmove(&grown[at + 1], &grown[at], (s->roster_count++ - at) * sizeof *grown);
    grown[at].map = map;
    snprintf(grown[at].name, NAME_BYTES, "%s", name);
    return 0;
}

static int find_rosters(struct sg_survey *s) {
    drop_ended(s);
    DIR *folder = opendir(s->directory);
    int error = folder == NULL ? -errno : 0;
    for (struct dirent *entry; error == 0 && (entry = readdir(folder)) != NULL;)
        if (strncmp(entry->d_name, "c-", 2) == 0 && strlen(entry->d_name) < NAME_BYTES) error = add_roster(s, entry->d_name);
    if (folder != NULL) closedir(folder);
    return error;
}

/* ---- one look -------------------------------------------------------------------------------------------------- */
static void add_member(struct sg_survey *s, uint32_t rank, uint64_t clock, uint32_t wants) {
    struct sg_cut_member *grown = grow(s->cut.members, &s->member_room, s->cut.member_count + 1, sizeof *grown);
    if (grown == NULL) {
        s->error = -ENOMEM;
        return;
    }
    s->cut.members = grown;
    s->cut.members[s->cut.member_count++] = (struct sg_cut_member){s->cut.channel_count - 1, rank, clock, wants, 0};
}

static void add_channel(struct sg_survey *s, uint64_t *target, const struct sg_roster_map *map) {
    uint32_t room = s->channel_room;
    struct sg_cut_channel *channels = grow(s->cut.channels, &room, s->cut.channel_count + 1, sizeof *channels);
    if (channels != NULL) s->cut.channels = channels;
    struct place *places = grow(s->places, &s->channel_room, s->cut.channel_count + 1, sizeof *places);
    if (places != NULL) s->places = places;
    if (channels == NULL || places == NULL) {
        s->error = -ENOMEM;
        return;
    }
    uint64_t seen = sg_load(target);
    /* One that has come meanwhile has no target yet: its members' clocks will be it. */
    s->cut.channels[s->cut.channel_count] = (struct sg_cut_channel){seen == SG_NO_TARGET ? 0 : seen, 0};
    s->places[s->cut.channel_count++] = (struct place){target, seen, map, 0};
}

static int takes_part(const struct sg_roster_member *member) {
    return sg_load(&member->state) == SG_MEMBER_JOINED && sg_load(&member->global_rank) < SG_BOARD_RANKS;
}

static uint32_t wants_of(const struct sg_survey *s, uint32_t rank, const uint32_t *wants) {
    return sg_load(&s->board->ranks[rank].state) == SG_RANK_HELD ? sg_load(wants) : 0;
}

static void read_pair(void *argument, const struct sg_roster_map *map, uint32_t from, uint32_t to) {
    struct sg_survey *s = argument;
    if (s->error != 0) return;
    struct sg_roster_pair *pair = &map->pairs[from * map->roster->ranks + to];
    const struct sg_roster_member *sender = &map->members[from], *receiver = &map->members[to];
    uint64_t sent = sg_load(&pair->send_clock), received = sg_load(&pair->receive_clock);
    uint32_t would_send = sg_load(&pair->send_wants), would_receive = sg_load(&pair->receive_wants);
    if ((sent | received | would_send | would_receive) == 0 || !takes_part(sender) || !takes_part(receiver)) return;
    add_channel(s, &pair->target, NULL);
    if (s->error == 0) add_member(s, sender->global_rank, sent, wants_of(s, sender->global_rank, &pair->send_wants));
    if (s->error == 0) add_member(s, receiver->global_rank, received, wants_of(s, receiver->global_rank, &pair->receive_wants));
}

static void read_roster(struct sg_survey *s, const struct sg_roster_map *map) {
    add_channel(s, &map->roster->target, map);
    for (uint32_t i = 0; i < map->roster->ranks && s->error == 0; i++) {
        const struct sg_roster_member *member = &map->members[i];
        if (takes_part(member))
            add_member(s, member->global_rank, sg_load(&member->clock), wants_of(s, member->global_rank, &member->wants));
    }
    if (s->error == 0) sg_roster_each_pair(map, read_pair, s);
}

/* A rank whose proxy died while it decided for it would be deciding for ever. */
static int lives(const struct sg_board *board, uint32_t proxy) {
    if (proxy >= SG_EXCHANGE_PROXIES) return 0;
    const struct sg_board_proxy *who = &board->proxies[proxy];
    return sg_load(&who->state) == SG_PROXY_ALIVE && sg_process_start(who->pid) == who->start;
}

/* 1: no rank is just deciding. */
static int read_ranks(struct sg_survey *s) {
    int calm = 1;
    for (uint32_t rank = 0; rank < SG_BOARD_RANKS; rank++) {
        const struct sg_board_rank *at = &s->board->ranks[rank];
        uint32_t state = sg_load(&at->state);
        s->cut.ranks[rank].flags = state == SG_RANK_HELD ? SG_CUT_HELD : state == SG_RANK_JOINING ? SG_CUT_JOINING : 0;
        if (sg_load(&at->issuing) && lives(s->board, at->proxy)) calm = 0;
    }
    return calm;
}

static int read_all(struct sg_survey *s) {
    s->cut.member_count = s->cut.channel_count = 0;
    int calm = read_ranks(s);
    for (uint32_t i = 0; i < s->roster_count && s->error == 0; i++)
        if (!is_over(s->rosters[i].map.roster)) read_roster(s, &s->rosters[i].map);
    return calm;
}

static uint64_t print_of(const struct sg_cut *cut) { /* equal when two readings are */
    uint64_t print = 14695981039346656037ull;
    for (uint32_t i = 0; i < cut->member_count; i++) {
        const struct sg_cut_member *m = &cut->members[i];
        print = (print ^ m->clock) * 1099511628211ull + m->rank;
        print = (print ^ m->wants) * 1099511628211ull + m->channel;
    }
    for (uint32_t i = 0; i < cut->rank_count; i++) print = (print ^ cut->ranks[i].flags) * 1099511628211ull;
    return print;
}

int sg_survey_look(struct sg_survey *s) {
    s->error = find_rosters(s);
    uint64_t before = 0;
    for (int try = 0; try < TRIES && s->error == 0; try++) {
        int calm = read_all(s);
        uint64_t print = print_of(&s->cut);
        if (calm && try > 0 && print == before) return 0;
        before = calm ? print : before + 1;
    }
    return s->error != 0 ? s->error : -EAGAIN;
}

/* ---- where mini-batches end --------------------------------------------------------------------------------------- */
/* How much the communicator looks like the data-parallel one of its ranks; 0: its members do not agree on a rhythm.  Ranks
 * that share a device are replicas of each other (placement, and section 5.4 of the paper); else the longest stretch of
 * launches tells. */
static uint64_t weigh(const struct sg_roster_map *map) {
    const struct sg_roster_member *first = &map->members[0];
    uint32_t period = sg_load(&first->period), end = sg_load(&first->end), work = sg_load(&first->work);
    uint64_t shared = 0, proxies = 0;
    for (uint32_t i = 0; i < map->roster->ranks; i++) {
        const struct sg_roster_member *member = &map->members[i];
        if (period == 0 || !takes_part(member) || sg_load(&member->period) != period || sg_load(&member->end) != end) return 0;
        uint64_t proxy = 1ull << sg_load(&member->proxy) % SG_EXCHANGE_PROXIES;
        shared |= (proxies & proxy) != 0;
        proxies |= proxy;
        if (sg_load(&member->work) < work) work = sg_load(&member->work);
    }
    return shared << 33 | (uint64_t)work << 1 | 1;
}

uint64_t sg_survey_align(struct sg_survey *s) {
    struct sg_cut *cut = &s->cut;
    uint64_t *best = calloc(SG_BOARD_RANKS, sizeof *best), longest = 0; /* of each rank's communicators */
    for (uint32_t i = 0; i < cut->channel_count; i++) {
        const struct sg_roster_map *map = s->places[i].map;
        s->places[i].weight = map == NULL || map->roster->ranks < 2 ? 0 : weigh(map);
        cut->channels[i].aligned = 0;
    }
    for (uint32_t i = 0; best != NULL && i < cut->member_count; i++) {
        uint64_t weight = s->places[cut->members[i].channel].weight, *most = &best[cut->members[i].rank];
        if (weight > *most) *most = weight;
    }
    for (uint32_t i = 0; best != NULL && i < cut->member_count; i++) {
        const struct sg_cut_member *at = &cut->members[i];
        const struct place *place = &s->places[at->channel];
        if (place->weight == 0 || place->weight != best[at->rank]) continue;
        const struct sg_roster_member *member = &place->map->members[0];
        uint64_t ns = sg_load(&member->period_ns), from = cut->channels[at->channel].target;
        if (at->clock > from) from = at->clock; /* it went on until the target was published */
        uint64_t next = sg_tempo_next(from, sg_load(&member->period), sg_load(&member->end));
        if (next > cut->channels[at->channel].aligned) cut->channels[at->channel].aligned = next;
        if (ns > longest) longest = ns;
    }
    free(best);
    return 2 * longest;
}

/* ---- telling the proxies ----------------------------------------------------------------------------------------- */
static void wake_ranks(struct sg_survey *s) {
    for (uint32_t rank = 0; rank < SG_BOARD_RANKS; rank++) {
        struct sg_board_rank *at = &s->board->ranks[rank];
        if (sg_load(&at->state) == SG_RANK_ABSENT) continue;
        sg_add(&at->wake, 1);
        sg_futex_wake((_Atomic uint32_t *)&at->wake, INT_MAX);
    }
}

void sg_survey_publish(struct sg_survey *s) {
    int changed = 0;
    for (uint32_t i = 0; i < s->cut.channel_count; i++) {
        if (s->places[i].seen == s->cut.channels[i].target) continue;
        sg_store(s->places[i].target, s->cut.channels[i].target);
        s->places[i].seen = s->cut.channels[i].target;
        changed = 1;
    }
    if (changed) wake_ranks(s);
}

static void forget_target(void *unused, const struct sg_roster_map *map, uint32_t from, uint32_t to) {
    (void)unused;
    sg_store(&map->pairs[from * map->roster->ranks + to].target, SG_NO_TARGET);
}

void sg_survey_number(struct sg_survey *s, uint32_t number) {
    sg_store(&s->board->cut, number);
    if (number == 0)
        for (uint32_t i = 0; i < s->roster_count; i++) {
            sg_store(&s->rosters[i].map.roster->target, SG_NO_TARGET);
            sg_roster_each_pair(&s->rosters[i].map, forget_target, NULL);
        }
    wake_ranks(s);
}

void sg_survey_freeze(struct sg_survey *s, int on) {
    uint32_t now = sg_load(&s->board->freeze);
    if ((now & 1) != (on != 0)) sg_store(&s->board->freeze, now + 1);
    sg_futex_wake((_Atomic uint32_t *)&s->board->freeze, INT_MAX);
}

int sg_survey_restless(const struct sg_survey *s) {
    for (uint32_t i = 0; i < s->board->proxy_count; i++) {
        const struct sg_board_proxy *proxy = &s->board->proxies[i];
        if (sg_load(&proxy->state) == SG_PROXY_ALIVE && !sg_load(&proxy->rests)) return (int)i;
    }
    return -1;
}

int sg_survey_frozen(const struct sg_survey *s) {
    uint32_t wanted = sg_load(&s->board->freeze);
    for (uint32_t i = 0; i < s->board->proxy_count; i++) {
        const struct sg_board_proxy *proxy = &s->board->proxies[i];
        if (sg_load(&proxy->state) == SG_PROXY_ALIVE && sg_load(&proxy->frozen) != wanted) return 0;
    }
    return 1;
}

void sg_survey_hand_over(struct sg_survey *s) {
    sg_store(&s->board->refusing, 0);
    sg_store(&s->board->hand, sg_load(&s->board->freeze));
    sg_futex_wake((_Atomic uint32_t *)&s->board->freeze, INT_MAX);
}

int sg_survey_handed(const struct sg_survey *s, char why[SG_SAID]) {
    uint32_t wanted = sg_load(&s->board->hand);
    int all = 1;
    if (sg_load(&s->board->refused) == wanted) {
        memcpy(why, s->board->said, SG_SAID);
        why[SG_SAID - 1] = 0;
        return -1;
    }
    for (uint32_t i = 0; i < s->board->proxy_count; i++) {
        const struct sg_board_proxy *proxy = &s->board->proxies[i];
        if (sg_load(&proxy->state) == SG_PROXY_ALIVE && sg_load(&proxy->handed) != wanted) all = 0;
    }
    return all;
}

int sg_survey_rank(const struct sg_survey *s, uint32_t rank, struct sg_survey_rank *out) {
    if (rank >= SG_BOARD_RANKS) return 0;
    const struct sg_board_rank *at = &s->board->ranks[rank];
    uint32_t op = sg_load(&at->last_op), missing = sg_load(&at->missing_count);
    *out = (struct sg_survey_rank){.state = sg_load(&at->state), .behind = s->cut.ranks[rank].behind, .proxy = at->proxy, .pid = at->pid,
                                   .operation = at->waits_kind, .missing_count = missing, .since_ns = sg_load(&at->since_ns),
                                   .number = at->waits_number, .call = op < sg_op_count ? sg_ops[op].name : "?"};
    for (uint32_t i = 0; i < 8; i++) out->missing[i] = at->missing[i];
    memcpy(&out->communicator, at->waits_key, sizeof out->communicator);
    return out->state != SG_RANK_ABSENT && out->state != SG_RANK_ENDED;
}

/* ---- life -------------------------------------------------------------------------------------------------------- */
struct sg_survey *sg_survey_open(const char *directory, uint32_t proxy_count, char why[256]) {
    struct sg_survey *s = calloc(1, sizeof *s);
    if (s != NULL) {
        s->directory = strdup(directory);
        s->cut.ranks = calloc(SG_BOARD_RANKS, sizeof *s->cut.ranks);
        s->cut.rank_count = SG_BOARD_RANKS;
    }
    if (s == NULL || s->directory == NULL || s->cut.ranks == NULL) snprintf(why, 256, "out of memory");
    else s->board = sg_board_open(directory, proxy_count, why);
    if (s != NULL && s->board != NULL) return s;
    sg_survey_close(s);
    return NULL;
}

void sg_survey_close(struct sg_survey *s) {
    if (s == NULL) return;
    for (uint32_t i = 0; i < s->roster_count; i++) sg_roster_close(&s->rosters[i].map);
    sg_board_close(s->board);
    free(s->rosters);
    free(s->places);
    free(s->cut.members);
    free(s->cut.channels);
    free(s->cut.ranks);
    free(s->directory);
    free(s);
}

struct sg_cut *sg_survey_cut(struct sg_survey *s) { return &s->cut; }
