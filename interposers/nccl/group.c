/* Groups: what a thread has called since ncclGroupStart, and what happens at its end.
 *
 * Operations go out as one message (several when there are many), so that the proxy sees the group as a whole.  A call
 * that is wrong is reported by itself and again by the group's end, which then starts nothing, as with NCCL. */
#include "communicator.h"
#include <stdlib.h>
#include <string.h>
#include "../../singularity_core/transport/layout.h"
#include "../generated/calls.h"

#define PER_MESSAGE 1024u
#define FEW 8u
_Static_assert(sizeof(struct sg_wire_communicator_submit) + PER_MESSAGE * sizeof(struct sg_operation) < SG_MAX_MESSAGE_LINES * SG_LINE - SG_LINE,
               "a full message fits into the ring's longest");

struct pending { struct sg_operation operation; int self; }; /* self: to or from the rank itself */
static __thread struct {
    int depth;
    ncclResult_t error;
    uint32_t count, room;
    uint64_t context;
    struct pending few[FEW], *many; /* many: once there are more than a few */
    struct sg_job *jobs, *last;
    int creations;
} group;

/* Parts of a group must follow each other in the ring. */
static pthread_mutex_t submitting = PTHREAD_MUTEX_INITIALIZER;

int sg_group_open(void) { return group.depth > 0; }

void sg_group_spoil(ncclResult_t result)
{
    if (group.depth > 0 && !group.error)
        group.error = result;
}

static ncclResult_t submit(const char *call, uint64_t context, const struct pending *all, uint32_t count)
{
    const struct sg_client_table *session = sg_session();
    pthread_mutex_lock(&submitting);
    for (uint32_t done = 0; done < count;) {
        uint32_t part = count - done < PER_MESSAGE ? count - done : PER_MESSAGE;
        struct sg_wire_communicator_submit head = {.count = part, .more = done + part < count};
        uint8_t *payload = session->begin(SG_OP_communicator_submit, context, (uint32_t)(sizeof head + part * sizeof(struct sg_operation)));
        if (!payload) {
            pthread_mutex_unlock(&submitting);
            return sg_lost(call);
        }
        memcpy(payload, &head, sizeof head);
        payload += sizeof head;
        for (uint32_t i = 0; i < part; i++, payload += sizeof(struct sg_operation))
            memcpy(payload, &all[done + i].operation, sizeof(struct sg_operation));
        session->post();
        done += part;
    }
    pthread_mutex_unlock(&submitting);
    return ncclSuccess;
}

/* A send to oneself completes only with its receive. */
static ncclResult_t check_self(const char *call, const struct pending *all, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        if (!all[i].self)
            continue;
        int64_t open = 0;
        for (uint32_t j = 0; j < count; j++)
            if (all[j].self && all[j].operation.communicator == all[i].operation.communicator)
                open += all[j].operation.kind == SG_SEND ? 1 : -1;
        if (open)
            return sg_fail(call, ncclInvalidUsage, "a send to the rank itself needs the matching receive in the same group");
    }
    return ncclSuccess;
}

ncclResult_t sg_group_operation(const char *call, struct sg_comm *comm, const struct sg_operation *operation)
{
    int self = operation->kind >= SG_SEND && operation->peer == (uint32_t)comm->rank;
    struct pending one = {*operation, self};
    if (group.depth == 0) {
        ncclResult_t result = self ? check_self(call, &one, 1) : ncclSuccess;
        return result ? result : submit(call, comm->context, &one, 1);
    }
    if (group.error) /* the group is lost already */
        return ncclSuccess;
    if (group.count && group.context != comm->context)
        return sg_fail(call, ncclInvalidUsage, "the communicators of one group were made in different contexts: use a group for each");
    group.context = comm->context;
    if (group.count == (group.many ? group.room : FEW)) {
        uint32_t room = group.count * 4;
        struct pending *many = realloc(group.many, room * sizeof *many);
        if (!many)
            return sg_fail(call, ncclSystemError, "out of memory");
        if (!group.many)
            memcpy(many, group.few, sizeof group.few);
        group.many = many;
        group.room = room;
    }
    (group.many ? group.many : group.few)[group.count++] = one;
    return ncclSuccess;
}

ncclResult_t sg_group_job(struct sg_job *job)
{
    if (job->comm)
        sg_comm_hold(job->comm);
    if (job->parent)
        sg_comm_hold(job->parent);
    if (group.depth == 0)
        return sg_jobs_run(job);
    if (group.jobs)
        group.last->next = job;
    else
        group.jobs = job;
    group.last = job;
    group.creations += job->kind != SG_JOB_END;
    return ncclSuccess;
}

ncclResult_t sg_ncclGroupStart(void)
{
    group.depth++;
    return ncclSuccess;
}

/* Empties the group; `jobs`: what it held of those. */
static void empty(struct sg_job **jobs)
{
    *jobs = group.jobs;
    free(group.many);
    memset(&group, 0, sizeof group);
}

ncclResult_t sg_ncclGroupEnd(void)
{
    static const char call[] = "ncclGroupEnd";
    struct sg_job *jobs;
    if (group.depth == 0)
        return sg_fail(call, ncclInvalidUsage, "there is no ncclGroupStart before it");
    if (group.depth > 1) {
        group.depth--;
        return ncclSuccess;
    }
    const struct pending *all = group.many ? group.many : group.few;
    if (!group.error && group.count && group.creations)
        (void)sg_fail(call, ncclInvalidUsage, "a group holds communications or creations of communicators, not both");
    if (!group.error && group.count)
        (void)check_self(call, all, group.count);
    if (!group.error && group.count)
        (void)submit(call, group.context, all, group.count); /* a failure spoils the group, which is still open */
    ncclResult_t error = group.error;
    empty(&jobs);
    if (!error)
        return sg_jobs_run(jobs);
    (void)sg_jobs_end(jobs);
    return error;
}

ncclResult_t sg_ncclGroupSimulateEnd(ncclSimInfo_t *simInfo)
{
    static _Atomic int said;
    struct sg_job *jobs;
    (void)simInfo;
    if (group.depth == 0)
        return sg_fail("ncclGroupSimulateEnd", ncclInvalidUsage, "there is no ncclGroupStart before it");
    empty(&jobs);
    (void)sg_jobs_end(jobs);
    return sg_refuse(&said, "ncclGroupSimulateEnd", "there is no model of what a group costs", "leave the call out");
}
