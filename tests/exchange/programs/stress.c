/* stress DIRECTORY ENGINES RANKS ROUNDS SEED: engines with their threads, and a thread per rank that computes with all others.
 *
 * For the sanitizers: the same calls as those of a proxy's handlers, from as many threads.  All ranks draw from one sequence
 * of random numbers, so they agree on what comes next.  In the end one rank goes away in the middle, and the others must be told.
 * Exits with 1 when a result is wrong. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "singularity_core/exchange/engine.h"

#define ENGINES_MOST 4u
#define RANKS_MOST 8u
#define COUNT_MOST 700001u

struct rank {
    uint32_t number;
    sg_engine *engine;
    sg_party *party;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t opened, failures, gates; /* gates open in any order; each once */
    uint32_t *in, *out;
};

static sg_engine *engines[ENGINES_MOST];
static struct rank ranks[RANKS_MOST];
static uint32_t rank_count, rounds, seed;
static pthread_barrier_t all_done;

static void fail(const struct rank *r, const char *what) {
    fprintf(stderr, "rank %u: %s\n", r->number, what);
    exit(1);
}

static int32_t read_memory(void *owner, uint64_t address, void *out, uint64_t bytes) {
    (void)owner;
    memcpy(out, (void *)address, bytes);
    return 0;
}
static int32_t write_memory(void *owner, uint64_t address, const void *in, uint64_t bytes) {
    (void)owner;
    memcpy((void *)address, in, bytes);
    return 0;
}
static void open_gate(void *owner, uint64_t gate) {
    struct rank *r = owner;
    (void)gate;
    pthread_mutex_lock(&r->lock);
    r->opened++;
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
}
static void misses(void *owner, int yes) { (void)owner, (void)yes; }
static void failed(void *owner, const char *said) {
    struct rank *r = owner;
    (void)said;
    pthread_mutex_lock(&r->lock);
    r->failures++;
    pthread_mutex_unlock(&r->lock);
}

/* Issues a group and waits for it: 1, or 0 when it was refused. */
static int run(struct rank *r, const struct sg_issue *issues, uint32_t count) {
    char said[SG_SAID];
    sg_group *group = sg_group_new(r->party, issues, count, ++r->gates);
    if (sg_group_issue(group, said) < 0) {
        sg_group_free(group);
        r->gates--;
        return 0;
    }
    sg_group_expect(group);
    sg_group_arrived(group);
    sg_group_arrived(group);
    pthread_mutex_lock(&r->lock);
    while (r->opened < r->gates) pthread_cond_wait(&r->changed, &r->lock);
    pthread_mutex_unlock(&r->lock);
    return 1;
}

static sg_member *join(struct rank *r, const uint8_t key[16], uint32_t count, uint32_t rank) {
    char said[SG_SAID];
    sg_member *member;
    int ready;
    if (sg_member_join(r->party, key, count, rank, &member, said) != 0) fail(r, said);
    while ((ready = sg_member_ready(member, said)) == 0) sg_member_await(member, NULL);
    sg_member_awaited(member);
    if (ready < 0) fail(r, said);
    return member;
}

static uint32_t draw(uint64_t *state) {
    *state = *state * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(*state >> 33);
}

static struct sg_issue issue(sg_member *member, uint32_t kind, uint32_t root, uint64_t count, const void *send, void *receive) {
    return (struct sg_issue){member, {kind, SG_U32, SG_SUM, root, count}, (uint64_t)send, (uint64_t)receive, 0};
}

static void check(const struct rank *r, uint64_t at, uint32_t expected, const char *what) {
    if (r->out[at] != expected) fail(r, what);
}

/* What all ranks of the communicator do together. */
static void step(struct rank *r, sg_member *member, uint32_t what, uint32_t count) {
    uint32_t n = sg_member_ranks(member), me = sg_member_rank(member), last = count == 0 ? 0 : count - 1, sum = 0;
    for (uint32_t i = 0; i < count; i++) r->in[i] = i + me;
    for (uint32_t i = 0; i < n; i++) sum += last + i;
    struct sg_issue issues[2] = {issue(member, SG_ALL_REDUCE, 0, count, r->in, r->out)};
    switch (what % 4) {
    case 0:
        if (!run(r, issues, 1)) fail(r, "all_reduce was refused");
        if (count) check(r, last, sum, "all_reduce");
        break;
    case 1:
        issues[0] = issue(member, SG_ALL_GATHER, 0, count / n, r->in, r->out);
        if (!run(r, issues, 1)) fail(r, "all_gather was refused");
        if (count / n) check(r, (uint64_t)(n - 1) * (count / n), n - 1, "all_gather");
        break;
    case 2:
        issues[0] = issue(member, SG_SEND, (me + 1) % n, count, r->in, NULL);
        issues[1] = issue(member, SG_RECV, (me + n - 1) % n, count, NULL, r->out);
        if (!run(r, issues, 2)) fail(r, "send was refused");
        if (count) check(r, last, last + (me + n - 1) % n, "receive");
        break;
    default:
        issues[0] = issue(member, SG_BROADCAST, count % n, count, r->in, r->out);
        issues[1] = issue(member, SG_REDUCE_SCATTER, 0, count / n, r->in, r->out + COUNT_MOST);
        if (!run(r, issues, 2)) fail(r, "broadcast was refused");
        if (count) check(r, last, last + count % n, "broadcast");
    }
}

static void split_and_leave(struct rank *r, sg_member *parent) {
    char said[SG_SAID];
    struct sg_split split;
    int ready;
    if (sg_split_begin(parent, (int32_t)(r->number % 2), -(int32_t)r->number, &split) != 0) fail(r, "split");
    while ((ready = sg_split_ready(parent, &split, said)) == 0) sg_member_await(parent, &split);
    sg_member_awaited(parent);
    sg_split_end(parent);
    if (ready < 0) fail(r, said);
    sg_member *half = join(r, split.key, split.ranks, split.rank);
    step(r, half, 0, 1000);
    sg_member_leave(half, 0);
}

static void *rank_main(void *argument) {
    static const uint32_t counts[] = {0, 1, 1000, 20000, COUNT_MOST};
    struct rank *r = argument;
    uint64_t state = seed;
    char said[SG_SAID];
    sg_member *world = join(r, (const uint8_t *)"the whole world!", rank_count, r->number);
    for (uint32_t i = 0; i < rounds; i++) {
        uint32_t what = draw(&state), count = counts[draw(&state) % 5];
        if (what % 16 == 0) split_and_leave(r, world);
        else step(r, world, what / 16, count);
    }
    pthread_barrier_wait(&all_done); /* else who goes away would break what another has yet to finish */
    if (r->number == 0 && rank_count > 1) { /* goes away while the others go on */
        struct sg_issue last = issue(world, SG_ALL_REDUCE, 0, COUNT_MOST, r->in, r->out);
        sg_group *group = sg_group_new(r->party, &last, 1, ++r->gates);
        if (sg_group_issue(group, said) != 1) fail(r, said);
        sg_party_quit(r->party); /* with a group that never arrives */
        if (r->opened != r->gates) fail(r, "a gate is closed");
        return NULL;
    }
    for (int more = 1; more && rank_count > 1;) {
        struct sg_issue next = issue(world, SG_ALL_REDUCE, 0, COUNT_MOST, r->in, r->out);
        more = run(r, &next, 1);
    }
    if (rank_count > 1 && sg_member_error(world, said) != SG_FAIL_REMOTE) fail(r, "no error when a rank went away");
    sg_party_quit(r->party);
    return NULL;
}

int main(int argc, char **argv) {
    pthread_t threads[RANKS_MOST];
    char why[256];
    if (argc != 6) return 2;
    uint32_t engine_count = (uint32_t)atoi(argv[2]);
    rank_count = (uint32_t)atoi(argv[3]), rounds = (uint32_t)atoi(argv[4]), seed = (uint32_t)atoi(argv[5]);
    if (engine_count == 0 || engine_count > ENGINES_MOST || rank_count == 0 || rank_count > RANKS_MOST) return 2;
    for (uint32_t i = 0; i < engine_count; i++) {
        struct sg_engine_options options = {argv[1], i, engine_count, {read_memory, write_memory, open_gate, misses, failed, failed}};
        engines[i] = sg_engine_create(&options, why);
        if (engines[i] == NULL || sg_engine_start(engines[i]) != 0) return fprintf(stderr, "%s\n", why), 1;
    }
    for (uint32_t i = 0; i < rank_count; i++) {
        struct rank *r = &ranks[i];
        *r = (struct rank){.number = i, .engine = engines[i % engine_count]};
        pthread_mutex_init(&r->lock, NULL);
        pthread_cond_init(&r->changed, NULL);
        r->in = calloc(COUNT_MOST, sizeof *r->in);
        r->out = calloc(2 * COUNT_MOST, sizeof *r->out);
        r->party = sg_party_begin(r->engine, r, i, (uint32_t)getpid());
    }
    pthread_barrier_init(&all_done, NULL, rank_count);
    for (uint32_t i = 0; i < rank_count; i++) pthread_create(&threads[i], NULL, rank_main, &ranks[i]);
    for (uint32_t i = 0; i < rank_count; i++) pthread_join(threads[i], NULL);
    for (uint32_t i = 0; i < rank_count; i++) sg_party_end(ranks[i].party), free(ranks[i].in), free(ranks[i].out);
    for (uint32_t i = 0; i < engine_count; i++) sg_engine_destroy(engines[i]);
    puts("good");
    return 0;
}
