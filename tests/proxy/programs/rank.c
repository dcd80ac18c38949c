/* rank DIRECTORY RANK SCENARIO...: one rank process; exits 0 when all was as it should be. */
#include "rank.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static sg_link *link_;
static uint32_t rank_;
static const char *directory_;

static void scenario_echo(void) {
    uint8_t sent[5000], got[5000];
    for (uint32_t bytes = 0; bytes <= 4064; bytes += 1 + bytes / 3) {
        for (uint32_t i = 0; i < bytes; i++) sent[i] = (uint8_t)(i * 7 + bytes);
        uint8_t *payload = sg_link_begin(link_, OP_ECHO, 0, bytes);
        uint32_t count = 9999;
        CHECK(payload != NULL);
        memcpy(payload, sent, bytes);
        CHECK(sg_link_call(link_, got, sizeof got, &count) == 0);
        CHECK(count == bytes && memcmp(sent, got, bytes) == 0);
    }
}

/* More than a ring's worth of posts of all sizes, in order: the wrap, PADs and a full ring. */
static void scenario_posts(void) {
    uint64_t expected = ASK(link_, OP_SUM_READ, 0);
    for (uint32_t i = 0; i < 200000; i++) {
        uint32_t bytes = i % 1000 == 0 ? 100000 + i % 31000 : 8 + i % 300;
        uint8_t *payload = sg_link_begin(link_, OP_SUM, 0, bytes);
        CHECK(payload != NULL);
        memset(payload, 0xff, bytes);
        uint64_t value = i;
        memcpy(payload, &value, 8);
        expected += value;
        sg_link_post(link_);
    }
    CHECK(ASK(link_, OP_SUM_READ, 0) == expected);
    CHECK(sg_link_async_error(link_) == 0);
}

static void *thread_calls(void *argument) {
    uint64_t me = (uint64_t)argument;
    for (uint64_t i = 0; i < 100; i++) {
        CHECK(POST(link_, OP_SUM, 0, 1) == 0);
        CHECK(ASK(link_, OP_ECHO, 0, me << 32 | i) == (me << 32 | i));
    }
    return NULL;
}

/* More threads than reply slots in all, in waves: slots are given back, and answers go to who asked. */
static void scenario_threads(void) {
    pthread_t threads[40];
    uint64_t before = ASK(link_, OP_SUM_READ, 0);
    for (int wave = 0; wave < 10; wave++) {
        for (uint64_t i = 0; i < 40; i++) CHECK(pthread_create(&threads[i], NULL, thread_calls, (void *)i) == 0);
        for (int i = 0; i < 40; i++) pthread_join(threads[i], NULL);
    }
    CHECK(ASK(link_, OP_SUM_READ, 0) == before + 10 * 40 * 100);
}

static void *thread_waits_at_gate(void *argument) {
    (void)argument;
    CHECK(CALL(link_, OP_GATE_WAIT, 0) == 0);
    return NULL;
}

/* Threads that block in the proxy do not keep their siblings from being served. */
static void scenario_blocking(void) {
    pthread_t threads[20];
    for (int i = 0; i < 20; i++) CHECK(pthread_create(&threads[i], NULL, thread_waits_at_gate, NULL) == 0);
    for (uint64_t i = 0; i < 200; i++) CHECK(ASK(link_, OP_ECHO, 0, i) == i);
    CHECK(CALL(link_, OP_GATE_OPEN, 0) == 0);
    for (int i = 0; i < 20; i++) pthread_join(threads[i], NULL);
    scenario_posts();
}

/* A blocking call of a single-threaded rank, and messages right after. */
static void scenario_handover(void) {
    CHECK(CALL(link_, OP_GATE_OPEN, 0) == 0);
    for (uint64_t i = 0; i < 2000; i++) {
        CHECK(CALL(link_, OP_GATE_WAIT, 0) == 0);
        CHECK(POST(link_, OP_SUM, 0, 1) == 0);
    }
    CHECK(ASK(link_, OP_SUM_READ, 0) == 2000);
}

static void scenario_bulk(void) {
    const uint64_t sizes[] = {1, 4095, 262144, 262145, 524288, 2097152, 2097153, 9000001};
    uint8_t *sent = malloc(9000001), *got = malloc(9000001);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        uint64_t bytes = sizes[i], address = ASK(link_, OP_ALLOC, 0, bytes);
        for (uint64_t j = 0; j < bytes; j++) sent[j] = (uint8_t)(j * 31 + i + (j >> 13));
        memset(got, 0, bytes);
        sg_link_bulk_lock(link_);
        CHECK(BEGIN(link_, OP_WRITE, 0, address, bytes));
        CHECK(sg_link_call_send(link_, sent, bytes) == 0);
        CHECK(BEGIN(link_, OP_READ, 0, address, bytes));
        CHECK(sg_link_call_receive(link_, got, bytes) == 0);
        /* the proxy refuses before, or in the middle of, a transfer: both sides come back */
        CHECK(BEGIN(link_, OP_WRITE, 0, address, bytes + 4096));
        CHECK(sg_link_call_send(link_, sent, bytes) == 1);
        CHECK(BEGIN(link_, OP_READ, 0, address + 1, bytes + 4096));
        CHECK(sg_link_call_receive(link_, got + 0, bytes) == 1);
        sg_link_bulk_unlock(link_);
        CHECK(memcmp(sent, got, bytes) == 0);
        CHECK(CALL(link_, OP_FREE, 0, address) == 0);
        CHECK(CALL(link_, OP_FREE, 0, address) == 1);
    }
    free(sent);
    free(got);
}

static void scenario_handles(void) {
    uint64_t first = ASK(link_, OP_CONTEXT_CREATE, 0), second = ASK(link_, OP_CONTEXT_CREATE, 0);
    uint32_t a = SG_HANDLE_INDEX(first), b = SG_HANDLE_INDEX(second);
    CHECK(first != second && SG_HANDLE_KIND(first) == SG_KIND_CONTEXT);
    CHECK(ASK(link_, OP_CONTEXT_IS, a) != ASK(link_, OP_CONTEXT_IS, b));
    CHECK(ASK(link_, OP_CONTEXT_IS, a) != 0 && ASK(link_, OP_CONTEXT_IS, 0) == 0);
    CHECK(CALL(link_, OP_CONTEXT_IS, 77) == 709);

    uint64_t stream = SG_HANDLE(SG_KIND_STREAM, 1, 5);
    CHECK(CALL(link_, OP_STREAM_CREATE, a, stream) == 0);
    CHECK(CALL(link_, OP_STREAM_CREATE, a, stream) == 400);
    CHECK(CALL(link_, OP_STREAM_CREATE, a, SG_HANDLE(SG_KIND_STREAM, 1, SG_CLIENT_HANDLES)) == 400);
    CHECK(CALL(link_, OP_STREAM_CREATE, a, SG_HANDLE(SG_KIND_STREAM, 1, 0)) == 400);
    CHECK(CALL(link_, OP_STREAM_DESTROY, a, SG_HANDLE(SG_KIND_STREAM, 2, 5)) == 400);
    CHECK(CALL(link_, OP_STREAM_DESTROY, a, stream) == 0);
    CHECK(CALL(link_, OP_STREAM_DESTROY, a, stream) == 400);

    uint64_t made[4] = {0}, count = 3;
    uint32_t got;
    CHECK(words_begin(link_, OP_MODULE_CREATE, b, &count, 1));
    CHECK(sg_link_call(link_, made, sizeof made, &got) == 0 && got == 32);
    CHECK(CALL(link_, OP_FUNCTION_SET, b, made[2], 1, 42) == 0);
    CHECK(ASK(link_, OP_FUNCTION_GET, b, made[2]) == 42);
    CHECK(CALL(link_, OP_FUNCTION_SET, b, made[0], 1, 42) == 400); /* a module is no function */
    CHECK(CALL(link_, OP_CONTEXT_DESTROY, a, second) == 0);        /* takes module and functions along */
    CHECK(CALL(link_, OP_FUNCTION_GET, 0, made[2]) == 400);
    CHECK(CALL(link_, OP_MODULE_DESTROY, a, made[0]) == 400);
    CHECK(CALL(link_, OP_CONTEXT_IS, b) == 709);
    CHECK(CALL(link_, OP_CONTEXT_DESTROY, a, first) == 0);
    uint64_t live[4];
    CHECK(BEGIN(link_, OP_LIVE, 0));
    CHECK(sg_link_call(link_, live, sizeof live, &got) == 0);
    CHECK(live[3] == 0); /* nothing was destroyed under a foreign context */
}

static void scenario_pinned(void) {
    uint64_t host = (uint64_t)sg_link_pinned_base(link_);
    CHECK(CALL(link_, OP_PIN_ADD, 0, host, 1) == 1);
    CHECK(CALL(link_, OP_PIN, 0, 8192, 8192, 1) == 0);
    CHECK(CALL(link_, OP_PIN, 0, 12288, 4096, 1) == 1); /* taken */
    CHECK(CALL(link_, OP_PIN, 0, 16384, 4096, 1) == 0);
    CHECK(sg_link_pinned_commit(link_, 8192, 12288, 1) == 0);
    memset((void *)(host + 8192), 41, 12288);
    CHECK(CALL(link_, OP_PIN_ADD, 0, host + 8192, 12288) == 0); /* across two neighbours */
    for (int i = 0; i < 12288; i++) CHECK(((uint8_t *)host)[8192 + i] == 42);
    CHECK(CALL(link_, OP_PIN_ADD, 0, host + 8192, 12289) == 1);
    CHECK(CALL(link_, OP_PIN, 0, 8192, 4096, 0) == 1); /* not as it was committed */
    CHECK(CALL(link_, OP_PIN, 0, 8192, 8192, 0) == 0);
    CHECK(CALL(link_, OP_PIN_ADD, 0, host + 8192, 1) == 1);
    CHECK(CALL(link_, OP_PIN, 0, SG_PINNED_WINDOW, 4096, 1) == 1);
    CHECK(CALL(link_, OP_PIN, 0, SG_PINNED_WINDOW - 4096, 8192, 1) == 1);
    CHECK(CALL(link_, OP_PIN, 0, 100, 4096, 1) == 1);
}

static _Atomic int withdrawing;
static void *thread_views(void *argument) {
    (void)argument;
    for (int i = 0; i < 8; i++) CHECK(CALL(link_, OP_VIEW, 0, (uint64_t)sg_link_pinned_base(link_), 1 << 20, 100) == 0);
    withdrawing = 0;
    return NULL;
}

/* Page-locked memory comes and goes while the proxy reads and writes it on the rank's behalf. */
static void scenario_withdraw(void) {
    pthread_t thread;
    withdrawing = 1;
    CHECK(pthread_create(&thread, NULL, thread_views, NULL) == 0);
    while (withdrawing) {
        CHECK(CALL(link_, OP_PIN, 0, 0, 1 << 20, 1) == 0);
        CHECK(CALL(link_, OP_PIN, 0, 0, 1 << 20, 0) == 0);
    }
    pthread_join(thread, NULL);
}

/* Leaves everything behind that a session can own. */
static void scenario_litter(void) {
    uint64_t context = ASK(link_, OP_CONTEXT_CREATE, 0);
    uint32_t c = SG_HANDLE_INDEX(context);
    for (uint32_t i = 1; i < 50; i++) CHECK(POST(link_, OP_STREAM_CREATE, c, SG_HANDLE(SG_KIND_STREAM, 1, i)) == 0);
    ASK(link_, OP_MODULE_CREATE, c, 10);
    for (int i = 0; i < 20; i++) ASK(link_, OP_ALLOC, 0, 100000);
    CHECK(CALL(link_, OP_PIN, 0, 0, 65536, 1) == 0);
}

/* Nothing of the others is left. */
static void check_driver(int contexts_too) {
    int64_t live[4];
    uint32_t got;
    CHECK(BEGIN(link_, OP_LIVE, 0));
    CHECK(sg_link_call(link_, live, sizeof live, &got) == 0);
    printf("objects %lld, registered %lld, bytes %lld, destroyed under a foreign context %lld\n", (long long)live[0],
           (long long)live[1], (long long)live[2], (long long)live[3]);
    CHECK(live[0] == 0 && live[1] == 0 && live[2] == 0 && (live[3] == 0 || !contexts_too));
}
static void scenario_clean(void) { check_driver(1); }
static void scenario_empty(void) { check_driver(0); }

static void scenario_errors(void) {
    CHECK(CALL(link_, OP_FAIL, 0, 1) == 1 && sg_link_async_error(link_) == 0);
    CHECK(POST(link_, OP_FAIL, 0, 7) == 0 && POST(link_, OP_FAIL, 0, 8) == 0);
    CHECK(CALL(link_, OP_NOTHING, 0) == 0);
    CHECK(sg_link_async_error(link_) == 7); /* the first one */
}

static void scenario_sticky(void) {
    CHECK(CALL(link_, OP_FAIL, 0, 700) == 700 && sg_link_async_error(link_) == 700);
}

static void scenario_unknown(void) {
    CHECK(CALL(link_, OP_COUNT + 5, 0) == -EPIPE);
    CHECK(sg_link_dead(link_) == SG_DEAD_PROTOCOL);
    CHECK(sg_link_begin(link_, OP_NOTHING, 0, 0) == NULL);
}

/* A call that blocks needs a thread that waits for it, also while the rank is alone on its device. */
static void scenario_unawaited(void) {
    CHECK(POST(link_, OP_GATE_WAIT, 0) == 0);
    CHECK(CALL(link_, OP_NOTHING, 0) == -EPIPE);
    CHECK(sg_link_dead(link_) == SG_DEAD_PROTOCOL);
}

static void scenario_truncate(void) {
    char path[4200];
    const struct sg_door *door = sg_door_map(directory_);
    uint32_t slot = 0;
    while (door->slots[slot].pid != (uint32_t)getpid()) slot++;
    snprintf(path, sizeof path, "%s/%u.session", directory_, slot);
    CHECK(truncate(path, 0) == 0);
    sleep(60); /* our own mapping is gone too: to be killed */
}

static void scenario_hang(void) {
    uint64_t context = ASK(link_, OP_CONTEXT_CREATE, 0);
    scenario_litter();
    puts("hanging");
    fflush(stdout);
    CALL(link_, OP_HANG, SG_HANDLE_INDEX(context));
    exit(7);
}

/* Serves until the proxy goes away: a rank that waits must notice. */
static void scenario_until_death(void) {
    puts("waiting");
    fflush(stdout);
    CHECK(CALL(link_, OP_GATE_WAIT, 0) == -EPIPE);
    CHECK(sg_link_dead(link_) == SG_DEAD_PROXY);
}

static void scenario_fork(void) {
    pid_t child = fork();
    if (child == 0) {
        sg_link *mine = link_;
        sg_link_abandon(mine);
        CHECK(sg_link_begin(mine, OP_NOTHING, 0, 0) == NULL && sg_link_dead(mine) != SG_DEAD_NO);
        link_ = open_link(directory_, rank_, 1);
        scenario_echo();
        _exit(0);
    }
    scenario_echo();
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    scenario_posts();
}

/* Another session for the same rank. */
static void renew(void) {
    sg_link_close(link_);
    CHECK(sg_link_begin(link_, OP_NOTHING, 0, 0) == NULL);
    char why[128];
    for (int tries = 0; sg_link_open(&link_, directory_, rank_, 0, why) != 0; tries++) {
        CHECK(tries < 1000);
        usleep(5000);
    }
}

static void scenario_reopen(void) {
    for (int i = 0; i < 20; i++) {
        CHECK(CALL(link_, OP_PIN, 0, 0, 4096, 1) == 0);
        CHECK(sg_link_pinned_commit(link_, 0, 4096, 1) == 0);
        *sg_link_pinned_base(link_) = 1;
        renew();
    }
}

static void *thread_opens_gate(void *argument) {
    for (volatile uintptr_t left = (uintptr_t)argument; left > 0; left--) continue;
    CHECK(POST(link_, OP_GATE_OPEN, 0) == 0);
    return NULL;
}

/* The second thread that uses a session comes before, while or after the first blocks in the proxy: it is served. */
static void scenario_newcomer(void) {
    for (uintptr_t i = 0; i < 150; i++) {
        pthread_t thread;
        CHECK(ASK(link_, OP_ECHO, 0, i) == i);
        CHECK(pthread_create(&thread, NULL, thread_opens_gate, (void *)(i % 30 * 2000)) == 0);
        CHECK(CALL(link_, OP_GATE_WAIT, 0) == 0);
        pthread_join(thread, NULL);
        renew();
    }
}

static void scenario_twice(void) {
    char why[128];
    sg_link *other;
    CHECK(sg_link_open(&other, directory_, rank_, 0, why) == -ECONNREFUSED);
    printf("refused: %s\n", why);
    CHECK(sg_link_open(&other, directory_, 5000, 0, why) == -EINVAL);
    CHECK(sg_link_open(&other, "/nonexistent", 1, 1, why) == -ENOENT);
    scenario_echo();
}

/* Makes objects of every sort, some of which are gone again, and says what is left: "kind name value" lines. */
static void scenario_objects(void) {
    uint64_t gone = ASK(link_, OP_CONTEXT_CREATE, 0), context = ASK(link_, OP_CONTEXT_CREATE, 0);
    uint32_t c = SG_HANDLE_INDEX(context);
    CHECK(CALL(link_, OP_CONTEXT_DESTROY, 0, gone) == 0);
    uint64_t reused = ASK(link_, OP_CONTEXT_CREATE, 0);
    printf("context %llu 0\ncontext %llu 0\n", (unsigned long long)context, (unsigned long long)reused);
    for (uint32_t i = 1; i < 20; i++) {
        uint64_t stream = SG_HANDLE(SG_KIND_STREAM, i, i);
        CHECK(CALL(link_, OP_STREAM_CREATE, c, stream) == 0);
        if (i % 3 == 0) CHECK(CALL(link_, OP_STREAM_DESTROY, c, stream) == 0);
        else printf("stream %llu 0\n", (unsigned long long)stream);
    }
    for (uint64_t i = 0; i < 12; i++) {
        uint64_t made[8], count = i % 5 + 1;
        CHECK(words_begin(link_, OP_MODULE_CREATE, c, &count, 1));
        CHECK(sg_link_call(link_, made, sizeof made, NULL) == 0);
        for (uint64_t j = 1; j <= count; j++)
            for (uint64_t k = 0; k < 3; k++) CHECK(CALL(link_, OP_FUNCTION_SET, c, made[j], 1, i * 100 + j * 10 + k) == 0);
        if (i % 4 == 1) CHECK(CALL(link_, OP_MODULE_DESTROY, c, made[0]) == 0);
        else for (uint64_t j = 1; j <= count; j++)
            printf("function %llu %llu\n", (unsigned long long)made[j], (unsigned long long)(i * 100 + j * 10 + 2));
    }
    for (uint64_t i = 0; i < 30; i++) {
        uint64_t address = ASK(link_, OP_ALLOC, 0, 1000 * (i + 1));
        if (i % 3 == 1) CHECK(CALL(link_, OP_FREE, 0, address) == 0);
        else printf("address %llu 0\n", (unsigned long long)address);
    }
    puts("end 0 0");
    fflush(stdout);
    getchar(); /* until the log has been taken */
}

/* Checks what `objects` printed, read from stdin, after a replay. */
static void scenario_verify(void) {
    char kind[16];
    unsigned long long name, value;
    uint32_t c = 0;
    puts("ready");
    fflush(stdout);
    while (scanf("%15s %llu %llu", kind, &name, &value) == 3 && strcmp(kind, "end") != 0) {
        if (strcmp(kind, "context") == 0) {
            CHECK(CALL(link_, OP_CONTEXT_IS, SG_HANDLE_INDEX(name)) == 0);
            if (c == 0) c = SG_HANDLE_INDEX(name);
        }
        if (strcmp(kind, "stream") == 0) CHECK(CALL(link_, OP_STREAM_DESTROY, c, name) == 0);
        if (strcmp(kind, "function") == 0) CHECK(ASK(link_, OP_FUNCTION_GET, 0, name) == value);
        if (strcmp(kind, "address") == 0) CHECK(CALL(link_, OP_FREE, 0, name) == 0);
    }
    uint64_t fresh = ASK(link_, OP_CONTEXT_CREATE, 0); /* new objects do not collide with replayed ones */
    CHECK(CALL(link_, OP_CONTEXT_DESTROY, 0, fresh) == 0);
}

static const struct { const char *name; void (*run)(void); } scenarios[] = {
    {"echo", scenario_echo},         {"posts", scenario_posts},       {"threads", scenario_threads},
    {"blocking", scenario_blocking}, {"handover", scenario_handover}, {"bulk", scenario_bulk},
    {"handles", scenario_handles},   {"pinned", scenario_pinned},     {"litter", scenario_litter},
    {"clean", scenario_clean},       {"errors", scenario_errors},     {"sticky", scenario_sticky},
    {"unknown", scenario_unknown},   {"truncate", scenario_truncate}, {"hang", scenario_hang},
    {"until-death", scenario_until_death}, {"fork", scenario_fork},   {"reopen", scenario_reopen},
    {"twice", scenario_twice},       {"objects", scenario_objects},   {"verify", scenario_verify},
    {"empty", scenario_empty},       {"newcomer", scenario_newcomer},
    {"withdraw", scenario_withdraw}, {"unawaited", scenario_unawaited},
};

int main(int argc, char **argv) {
    if (argc < 4) return 2;
    directory_ = argv[1];
    rank_ = (uint32_t)atoi(argv[2]);
    link_ = open_link(directory_, rank_, 0);
    for (int i = 3; i < argc; i++) {
        size_t j = 0;
        while (j < sizeof scenarios / sizeof *scenarios && strcmp(scenarios[j].name, argv[i]) != 0) j++;
        if (j == sizeof scenarios / sizeof *scenarios) return 2;
        scenarios[j].run();
    }
    if (getenv("RANK_NO_CLOSE") == NULL) sg_link_close(link_);
    return 0;
}
