/* Cases by name, and communicators for them. */
#ifndef CASES_H
#define CASES_H

#include <limits.h>
#include "fake.h"

struct test_case { const char *name; void (*run)(void); struct test_case *next; };
extern struct test_case *test_cases;
#define CASE(name, behaviour) \
    static void name(void); \
    __attribute__((constructor)) static void add_##name(void) \
    { static struct test_case c = { #name, name, NULL }; c.next = test_cases; test_cases = &c; } \
    static void name(void)

#define CONFIG_UNSET \
    {sizeof(ncclConfig_t), SG_NCCL_MAGIC, SG_NCCL_VERSION, INT_MIN, INT_MIN, INT_MIN, INT_MIN, NULL, INT_MIN, INT_MIN, NULL, INT_MIN, INT_MIN, \
     INT_MIN, INT_MIN, INT_MIN, INT_MIN, INT_MIN, INT_MIN, INT_MIN, INT_MIN, INT_MIN, INT_MIN, INT_MIN, INT_MIN, INT_MIN}

static inline ncclComm_t join(int ranks, int rank)
{
    ncclUniqueId id;
    ncclComm_t comm;
    OK(ncclGetUniqueId(&id));
    OK(ncclCommInitRank(&comm, ranks, id, rank));
    return comm;
}

/* A communicator that does not block; its join may be in progress. */
static inline ncclComm_t join_without_waiting(int ranks, int rank)
{
    ncclUniqueId id;
    ncclComm_t comm;
    ncclConfig_t config = CONFIG_UNSET;
    config.blocking = 0;
    OK(ncclGetUniqueId(&id));
    IS(ncclInProgress, ncclCommInitRankConfig(&comm, ranks, id, rank, &config));
    return comm;
}

static inline ncclResult_t poll_until_settled(ncclComm_t comm)
{
    ncclResult_t state = ncclInProgress;
    while (state == ncclInProgress)
        OK(ncclCommGetAsyncError(comm, &state));
    return state;
}

/* Operation `at` of the n-th submitted message. */
static inline const struct sg_operation *submitted(int n, uint32_t at)
{
    const struct message *m = fake_message(SG_OP_communicator_submit, n);
    const struct sg_wire_communicator_submit *head = (const void *)m->payload;
    CHECK(at < head->count);
    return (const struct sg_operation *)(head + 1) + at;
}

static inline const struct sg_wire_communicator_submit *submission(int n)
{
    return (const void *)fake_message(SG_OP_communicator_submit, n)->payload;
}

#endif
