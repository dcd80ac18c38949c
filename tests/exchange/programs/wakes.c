/* wakes: each wait of the exchange, begun after what it waits for has happened.  Built with a SG_WAIT_MS of an hour: a
 * wake-up that is lost between the question and the wait is a hang. */
#include <stdio.h>
#include <stdlib.h>

#include "singularity_core/exchange/engine.h"

static sg_engine *engine;
static sg_party *parties[2];
static sg_member *members[2];
static char said[SG_SAID];

static int32_t read_memory(void *o, uint64_t at, void *out, uint64_t n) { (void)o, (void)at, (void)out, (void)n; return 0; }
static int32_t write_memory(void *o, uint64_t at, const void *in, uint64_t n) { (void)o, (void)at, (void)in, (void)n; return 0; }
static void open_gate(void *o, uint64_t gate) { (void)o, (void)gate; }
static void misses(void *o, int yes) { (void)o, (void)yes; }
static void failed(void *o, const char *what) { (void)o, (void)what; }

static void expect(int good, const char *what) {
    if (good) return;
    fprintf(stderr, "%s: %s\n", what, said);
    exit(1);
}

static void join(void) {
    static const uint8_t key[16] = {1};
    expect(sg_member_join(parties[0], key, 2, 0, &members[0], said) == 0, "first join");
    expect(sg_member_ready(members[0], said) == 0, "one of two is not all");
    expect(sg_member_join(parties[1], key, 2, 1, &members[1], said) == 0, "second join");
    sg_member_await(members[0], NULL);
    sg_member_awaited(members[0]);
    expect(sg_member_ready(members[0], said) == 1, "all have joined");
}

static void split(void) {
    struct sg_split splits[2];
    expect(sg_split_begin(members[0], 0, 0, &splits[0]) == 0, "first split");
    expect(sg_split_ready(members[0], &splits[0], said) == 0, "one of two has split");
    expect(sg_split_begin(members[1], 0, 0, &splits[1]) == 0, "second split");
    sg_member_await(members[0], &splits[0]);
    sg_member_awaited(members[0]);
    for (int i = 0; i < 2; i++) {
        expect(sg_split_ready(members[i], &splits[i], said) == 1, "both have split");
        sg_split_end(members[i]);
    }
}

static void held(void) {
    struct sg_board *board = sg_engine_board(engine);
    struct sg_issue issue = {members[0], {SG_ALL_REDUCE, SG_F32, SG_SUM, 0, 0}, 0, 0, 0};
    sg_group *group = sg_group_new(parties[0], &issue, 1, 1);
    sg_store(&board->cut, 1);
    expect(group != NULL && sg_group_issue(group, said) == 0, "the cut holds");
    sg_store(&board->cut, 0);
    sg_add(&board->ranks[0].wake, 1);
    sg_party_await(parties[0]);
    expect(sg_group_issue(group, said) == 1, "the cut lets go");
    sg_group_arrived(group);
}

int main(void) {
    char why[256];
    struct sg_engine_options options = {.proxy_count = 1, .calls = {read_memory, write_memory, open_gate, misses, failed}};
    engine = sg_engine_create(&options, why);
    for (uint32_t i = 0; i < 2; i++) expect((parties[i] = sg_party_begin(engine, NULL, i, 1)) != NULL, "party");
    join();
    split();
    held();
    for (int i = 0; i < 2; i++) sg_party_quit(parties[i]);
    for (int i = 0; i < 2; i++) sg_party_end(parties[i]);
    sg_engine_destroy(engine);
    puts("good");
    return 0;
}
