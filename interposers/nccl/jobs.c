/* Creations and ends of communicators: calls that wait in the proxy until other ranks have made theirs.
 *
 * Those of a group run side by side, each in a thread of its own, because the ranks may list them in different
 * orders; splits of one parent keep their order, which is how the ranks match them.  A communicator that does not
 * block is ncclInProgress until its thread is through. */
#include "communicator.h"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "../generated/calls.h"
#include "../wire.h"

struct sg_job *sg_job_new(const char *call, enum sg_job_kind kind)
{
    struct sg_job *job = calloc(1, sizeof *job);
    if (!job) {
        (void)sg_fail(call, ncclSystemError, "out of memory");
        return NULL;
    }
    job->call = call;
    job->kind = kind;
    job->blocking = 1;
    return job;
}

/* ---- one job ---------------------------------------------------------------------------------------------- */
static ncclResult_t answered(const struct sg_job *job, int32_t result, const char *said, size_t room)
{
    if (result == ncclSuccess)
        return ncclSuccess;
    if (result < 0 || result >= ncclNumResults || result == ncclInProgress)
        result = ncclInternalError;
    return sg_fail(job->call, (ncclResult_t)result, "%.*s", (int)room, said[0] ? said : "refused by the device proxy");
}

static ncclResult_t join(struct sg_job *job, const struct sg_comm *c)
{
    struct sg_wire_communicator_join wire = {.ranks = (uint32_t)c->ranks, .rank = (uint32_t)c->rank};
    struct sg_reply_communicator_join reply = {0};
    memcpy(wire.key, job->unique, sizeof wire.key);
    ncclResult_t result = sg_send(job->call, SG_OP_communicator_join, c->context, &wire, sizeof wire, &reply, sizeof reply);
    if (!result)
        result = answered(job, reply.result, reply.said, sizeof reply.said);
    job->handle = reply.handle;
    return result;
}

static ncclResult_t split(struct sg_job *job, struct sg_comm *c)
{
    struct sg_wire_communicator_split wire = {job->parent->handle, c ? job->color : -1, job->key};
    struct sg_reply_communicator_split reply = {0};
    ncclResult_t result = sg_send(job->call, SG_OP_communicator_split, job->parent->context, &wire, sizeof wire, &reply, sizeof reply);
    if (!result)
        result = answered(job, reply.result, reply.said, sizeof reply.said);
    if (!result && c) {
        job->handle = reply.handle;
        c->ranks = (int)reply.ranks;
        c->rank = (int)reply.rank;
    }
    return result;
}

static ncclResult_t end(const char *call, uint64_t handle, int how)
{
    struct sg_wire_communicator_end wire = {.handle = handle, .how = (uint32_t)how};
    return handle ? sg_send(call, SG_OP_communicator_end, 0, &wire, sizeof wire, NULL, 0) : ncclSuccess;
}

/* sg_comm_lock held. */
static void settle(struct sg_comm *c, const struct sg_job *job)
{
    if (job->result)
        memcpy(c->said, job->said, sizeof c->said);
    atomic_store(&c->state, job->result);
}

static void end_creation(struct sg_job *job, struct sg_comm *c)
{
    pthread_mutex_lock(&sg_comm_lock);
    if (!job->blocking && job->parent)
        settle(job->parent, job);
    if (c) {
        c->handle = job->handle;
        settle(c, job);
    }
    int abandoned = c && !atomic_load(&c->id); /* aborted meanwhile: nobody waits for it any more */
    pthread_mutex_unlock(&sg_comm_lock);
    if (abandoned)
        (void)end(job->call, job->handle, SG_END_ABORT);
    else if (job->result && job->blocking && c)
        sg_comm_end(c);
    if (job->result && job->blocking && job->out)
        *job->out = NULL;
}

static void run(struct sg_job *job)
{
    struct sg_comm *c = job->comm;
    job->result = job->kind == SG_JOB_JOIN ? join(job, c) : job->kind == SG_JOB_SPLIT ? split(job, c) : end(job->call, c->handle, job->how);
    if (job->result)
        snprintf(job->said, sizeof job->said, "%.*s", SG_TEXT_BYTES - 1, sg_last_error());
    if (job->kind != SG_JOB_END) {
        end_creation(job, c);
    } else if (job->how == SG_END_FINALIZE) {
        pthread_mutex_lock(&sg_comm_lock);
        settle(c, job);
        pthread_mutex_unlock(&sg_comm_lock);
    }
}

/* ---- several ------------------------------------------------------------------------------------------------ */
static void free_lane(struct sg_job *lane)
{
    while (lane) {
        struct sg_job *next = lane->next;
        if (lane->comm)
            sg_comm_release(lane->comm);
        if (lane->parent)
            sg_comm_release(lane->parent);
        free(lane);
        lane = next;
    }
}

static void *run_lane(void *argument)
{
    struct sg_job *lane = argument;
    int detached = !lane->blocking;
    for (struct sg_job *job = lane; job; job = job->next)
        run(job);
    if (detached)
        free_lane(lane);
    return NULL;
}

/* Undoes what the calls have shown to the program already. */
static void drop_creations(struct sg_job *jobs)
{
    for (struct sg_job *job = jobs; job; job = job->next) {
        if (job->kind == SG_JOB_END)
            continue;
        if (job->comm)
            sg_comm_end(job->comm);
        if (job->out)
            *job->out = NULL;
    }
}

static void mark_in_progress(struct sg_job *lane)
{
    for (struct sg_job *job = lane; job; job = job->next) {
        if (job->parent)
            atomic_store(&job->parent->state, ncclInProgress);
        if (job->comm)
            atomic_store(&job->comm->state, ncclInProgress);
    }
}

/* A thread that takes none of the program's signals. */
static int start(struct sg_job *lane)
{
    sigset_t all, before;
    pthread_t thread;
    int blocking = lane->blocking; /* a detached lane frees itself */
    if (!blocking)
        mark_in_progress(lane);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&thread, NULL, run_lane, lane);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!error && blocking)
        lane->thread = thread;
    else if (!error)
        pthread_detach(thread);
    return error;
}

static void fail_lane(struct sg_job *lane, int error)
{
    for (struct sg_job *job = lane; job; job = job->next) {
        job->blocking = 1; /* it is over already */
        job->result = sg_fail(job->call, ncclSystemError, "cannot start a thread: %s", strerror(error));
        snprintf(job->said, sizeof job->said, "%.*s", SG_TEXT_BYTES - 1, sg_last_error());
        if (job->parent)
            atomic_store(&job->parent->state, ncclSuccess);
        else if (job->kind == SG_JOB_END && job->how == SG_END_FINALIZE)
            atomic_store(&job->comm->state, job->result);
    }
    drop_creations(lane);
}

/* Takes the jobs that must follow the first one out of `*jobs`. */
static struct sg_job *take_lane(struct sg_job **jobs)
{
    struct sg_job *lane = *jobs, *last = lane, **from = jobs;
    *jobs = lane->next;
    last->next = NULL;
    while (lane->parent && *from) {
        struct sg_job *job = *from;
        if (job->parent != lane->parent) {
            from = &job->next;
            continue;
        }
        *from = job->next;
        job->next = NULL;
        last = last->next = job;
    }
    return lane;
}

static ncclResult_t wait_lane(struct sg_job *lane, int joined)
{
    ncclResult_t result = ncclSuccess;
    if (joined)
        pthread_join(lane->thread, NULL);
    for (struct sg_job *job = lane; job; job = job->next) {
        if (job->result && !result)
            result = sg_fail(job->call, job->result, "%s", job->said + strlen(job->call) + 2);
    }
    free_lane(lane);
    return result;
}

#define LANES 256
ncclResult_t sg_jobs_run(struct sg_job *jobs)
{
    struct sg_job *waited[LANES];
    int count = 0, in_progress = 0;
    ncclResult_t result = ncclSuccess;
    while (jobs) {
        struct sg_job *lane = take_lane(&jobs);
        int error = 0, detached = !lane->blocking;
        if (lane->blocking && ((!jobs && !count) || count == LANES)) { /* the only one, or too many: here and now */
            (void)run_lane(lane);
        } else if ((error = start(lane)) != 0) {
            fail_lane(lane, error);
        } else if (detached) {
            in_progress = 1;
            continue;
        } else {
            waited[count++] = lane;
            continue;
        }
        ncclResult_t ended = wait_lane(lane, 0);
        result = result ? result : ended;
    }
    for (int i = 0; i < count; i++) {
        ncclResult_t ended = wait_lane(waited[i], 1);
        result = result ? result : ended;
    }
    return result ? result : in_progress ? ncclInProgress : ncclSuccess;
}

ncclResult_t sg_jobs_end(struct sg_job *jobs)
{
    struct sg_job *creations = NULL, *ends = NULL, **next_creation = &creations, **next_end = &ends;
    for (; jobs; jobs = jobs->next) {
        struct sg_job ***next = jobs->kind == SG_JOB_END ? &next_end : &next_creation;
        **next = jobs;
        *next = &jobs->next;
    }
    *next_creation = *next_end = NULL;
    drop_creations(creations);
    free_lane(creations);
    return sg_jobs_run(ends);
}
