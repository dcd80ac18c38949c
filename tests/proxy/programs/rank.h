/* What the rank programs share: checks that name the line, and calls with words as payload. */
#ifndef RANK_H
#define RANK_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "singularity_core/transport/link.h"
#include "stub.h"

#define CHECK(condition)                                                                       \
    do {                                                                                       \
        if (!(condition)) {                                                                    \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);            \
            exit(1);                                                                           \
        }                                                                                      \
    } while (0)

static inline uint32_t words_begin(sg_link *link, uint32_t op, uint32_t context, const uint64_t *words, uint32_t count) {
    uint8_t *payload = sg_link_begin(link, op, context, count * 8);
    if (payload == NULL) return 0;
    if (count != 0) memcpy(payload, words, count * 8);
    return 1;
}
#define BEGIN(link, op, context, ...)                                                                    \
    words_begin(link, op, context, (const uint64_t[]){0, ##__VA_ARGS__} + 1,                              \
                sizeof((const uint64_t[]){0, ##__VA_ARGS__}) / 8 - 1)
/* The status of a call without answer. */
#define CALL(link, op, context, ...) (BEGIN(link, op, context, ##__VA_ARGS__) ? sg_link_call(link, NULL, 0, NULL) : -EPIPE)
#define POST(link, op, context, ...) (BEGIN(link, op, context, ##__VA_ARGS__) ? (sg_link_post(link), 0) : -EPIPE)

/* A call that answers one word. */
static inline uint64_t ask(sg_link *link, uint32_t op, uint32_t context, const uint64_t *words, uint32_t count) {
    uint64_t answer = 0;
    uint32_t got = 0;
    CHECK(words_begin(link, op, context, words, count));
    CHECK(sg_link_call(link, &answer, sizeof answer, &got) == 0);
    CHECK(got >= 8);
    return answer;
}
#define ASK(link, op, context, ...)                                                        \
    ask(link, op, context, (const uint64_t[]){0, ##__VA_ARGS__} + 1,                        \
        sizeof((const uint64_t[]){0, ##__VA_ARGS__}) / 8 - 1)

static inline sg_link *open_link(const char *directory, uint32_t rank, uint32_t sub) {
    char why[128];
    sg_link *link;
    int error = sg_link_open(&link, directory, rank, sub, why);
    if (error != 0) {
        fprintf(stderr, "rank %u: no session: %s (%s)\n", rank, strerror(-error), why);
        exit(3);
    }
    return link;
}

#endif
