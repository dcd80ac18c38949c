/* A stand-in for the client of the driver API: records messages, answers as it is told. */
#ifndef FAKE_H
#define FAKE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "interposers/generated/calls.h"
#include "interposers/generated/nccl_api.h"
#include "interposers/wire_nccl.h"

#define CHECK(condition) \
    do { if (!(condition)) { fprintf(stderr, "%s:%d: %s (last error: %s)\n", __FILE__, __LINE__, #condition, ncclGetLastError(NULL)); exit(1); } } while (0)
#define IS(expected, call) \
    do { ncclResult_t got_ = (call); if (got_ != (expected)) { \
        fprintf(stderr, "%s:%d: %s gave %d, not %s: %s\n", __FILE__, __LINE__, #call, (int)got_, #expected, ncclGetLastError(NULL)); exit(1); } } while (0)
#define OK(call) IS(ncclSuccess, call)

struct message { uint32_t op, bytes; uint64_t context; bool waits; _Alignas(8) uint8_t payload[]; };

struct fake {
    int32_t enter, stream, call_status; /* what these return */
    bool dead, captures;
    bool hold_joins;       /* joins wait until fake_release */
    uint64_t context;
    int32_t join_result, split_result, error_result;
    uint32_t split_ranks, split_rank;
    char traced[256];      /* the last call */
};
extern struct fake fake;
int fake_count(uint32_t op);                       /* messages of that op so far */
const struct message *fake_message(uint32_t op, int n); /* the n-th; waits until it has come */
void fake_release(void);                           /* lets joins go on, now and later */

#define DEVICE(offset) ((void *)(uintptr_t)(0x200000000000ull + (offset)))
#define HOST ((void *)(uintptr_t)0x1000)

#endif
