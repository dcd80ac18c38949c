/* Communicators: their table, their beginning and end, and what can be asked of them. */
#include "communicator.h"
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "../../singularity_core/transport/layout.h"
#include "../generated/calls.h"
#include "../wire.h"

#define MOST 16384u

pthread_mutex_t sg_comm_lock = PTHREAD_MUTEX_INITIALIZER;
static struct sg_comm *_Atomic comms[MOST]; /* never freed, so that a late user finds an ended one, not other memory */

/* ---- the table --------------------------------------------------------------------------------------------- */
struct sg_comm *sg_comm_new(const char *call)
{
    struct sg_comm *c = NULL;
    pthread_mutex_lock(&sg_comm_lock);
    for (uint32_t i = 0; i < MOST && !c; i++) {
        struct sg_comm *slot = atomic_load(&comms[i]);
        if (slot ? slot->users != 0 : !(slot = calloc(1, sizeof *slot)))
            continue;
        if (!atomic_load(&comms[i]))
            pthread_mutex_init(&slot->lock, NULL);
        slot->generation++;
        slot->users = 1;
        slot->handle = 0;
        slot->said[0] = 0;
        atomic_store(&slot->finalized, 0);
        atomic_store(&slot->state, ncclInProgress);
        atomic_store(&slot->id, SG_HANDLE(SG_KIND_COMMUNICATOR, slot->generation, i + 1));
        atomic_store(&comms[i], slot);
        c = slot;
    }
    pthread_mutex_unlock(&sg_comm_lock);
    if (!c)
        (void)sg_fail(call, ncclSystemError, "more than %u communicators, or out of memory", MOST);
    return c;
}

void sg_comm_hold(struct sg_comm *c)
{
    pthread_mutex_lock(&sg_comm_lock);
    c->users++;
    pthread_mutex_unlock(&sg_comm_lock);
}

void sg_comm_release(struct sg_comm *c)
{
    pthread_mutex_lock(&sg_comm_lock);
    if (--c->users == 0) {
        free(c->factors);
        c->factors = NULL;
        c->factor_count = 0;
        for (struct sg_registration *r = c->registrations, *next; r; r = next) {
            next = r->next;
            free(r);
        }
        c->registrations = NULL;
    }
    pthread_mutex_unlock(&sg_comm_lock);
}

void sg_comm_end(struct sg_comm *c)
{
    if (atomic_exchange(&c->id, 0))
        sg_comm_release(c);
}

struct sg_comm *sg_comm_find(ncclComm_t comm)
{
    uint64_t id = (uint64_t)(uintptr_t)comm;
    uint32_t index = SG_HANDLE_INDEX(id) - 1;
    struct sg_comm *c = index < MOST ? atomic_load_explicit(&comms[index], memory_order_acquire) : NULL;
    return c && atomic_load_explicit(&c->id, memory_order_acquire) == id ? c : NULL;
}

ncclComm_t sg_comm_name(const struct sg_comm *c) { return (ncclComm_t)(uintptr_t)atomic_load(&c->id); }

static ncclResult_t find(const char *call, ncclComm_t comm, struct sg_comm **out)
{
    *out = sg_comm_find(comm);
    if (*out)
        return ncclSuccess;
    return sg_fail(call, ncclInvalidArgument, comm ? "no communicator: it was destroyed or aborted, or is none of this library" : "comm is NULL");
}

static ncclResult_t not_ready(const char *call, struct sg_comm *c, int state)
{
    if (state == ncclInProgress)
        return sg_fail(call, ncclInvalidArgument, "the communicator's last operation is in progress: poll ncclCommGetAsyncError until it is not ncclInProgress");
    pthread_mutex_lock(&sg_comm_lock);
    ncclResult_t result = sg_fail(call, (ncclResult_t)state, "the communicator has failed: %s", c->said);
    pthread_mutex_unlock(&sg_comm_lock);
    return result;
}

/* Asks the proxy what has become of the communicator; an error is its state from then on. */
static ncclResult_t learn(const char *call, struct sg_comm *c, uint64_t handle)
{
    struct sg_wire_handle wire = {handle};
    struct sg_reply_communicator_error reply = {0};
    ncclResult_t result = sg_send(call, SG_OP_communicator_error, 0, &wire, sizeof wire, &reply, sizeof reply);
    if (result || reply.result == ncclSuccess || reply.result == ncclInProgress)
        return result;
    pthread_mutex_lock(&sg_comm_lock);
    snprintf(c->said, sizeof c->said, "%.*s", (int)sizeof reply.said, reply.said);
    atomic_store(&c->state, reply.result > 0 && reply.result < ncclNumResults ? reply.result : ncclInternalError);
    pthread_mutex_unlock(&sg_comm_lock);
    return ncclSuccess;
}

ncclResult_t sg_comm_get(const char *call, ncclComm_t comm, struct sg_comm **out)
{
    ncclResult_t result = find(call, comm, out);
    if (result)
        return result;
    struct sg_comm *c = *out;
    int state = atomic_load_explicit(&c->state, memory_order_acquire);
    if (!state && !(result = sg_session_alive(call)))
        return ncclSuccess;
    if (!state && result == ncclUnhandledCudaError) { /* maybe because a collective has failed: that says more */
        (void)learn(call, c, c->handle);
        state = atomic_load(&c->state);
    }
    return state ? not_ready(call, c, state) : result;
}

/* ---- beginning ----------------------------------------------------------------------------------------------- */
struct setting { size_t offset; int least, most; const char *name; };

ncclResult_t sg_config_check(const char *call, const ncclConfig_t *config, int *blocking)
{
#define SETTING(name, least, most) {offsetof(ncclConfig_t, name), least, most, #name}
    static const struct setting settings[] = {
        SETTING(blocking, 0, 1), SETTING(cgaClusterSize, 0, 8), SETTING(minCTAs, 1, INT_MAX), SETTING(maxCTAs, 1, INT_MAX),
        SETTING(splitShare, 0, 1), SETTING(collnetEnable, 0, 1), SETTING(CTAPolicy, 0, 3), SETTING(shrinkShare, 0, 1),
        SETTING(nvlsCTAs, 1, INT_MAX), SETTING(nChannelsPerNetPeer, 1, INT_MAX), SETTING(nvlinkCentricSched, 0, 1)};
    if (!config)
        return ncclSuccess;
    if (config->magic != SG_NCCL_MAGIC || config->size < offsetof(ncclConfig_t, cgaClusterSize))
        return sg_fail(call, ncclInvalidArgument, "config was not initialised with NCCL_CONFIG_INITIALIZER");
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        const struct setting *s = &settings[i];
        int value;
        if (s->offset + sizeof value > config->size) /* of an older version of NCCL: it ends here */
            continue;
        memcpy(&value, (const char *)config + s->offset, sizeof value);
        if (value != INT_MIN && (value < s->least || value > s->most))
            return sg_fail(call, ncclInvalidArgument, "config.%s is %d, not in %d..%d", s->name, value, s->least, s->most);
    }
    if (config->size >= offsetof(ncclConfig_t, netName) && config->minCTAs != INT_MIN && config->maxCTAs != INT_MIN && config->minCTAs > config->maxCTAs)
        return sg_fail(call, ncclInvalidArgument, "config.minCTAs is %d, more than config.maxCTAs, %d", config->minCTAs, config->maxCTAs);
    if (config->blocking != INT_MIN)
        *blocking = config->blocking;
    return ncclSuccess;
}

static ncclResult_t begin(const char *call, ncclComm_t *out, int ranks, const uint8_t unique[16], int rank, int blocking)
{
    uint64_t context = 0;
    int ordinal = 0;
    int32_t error = sg_session()->context(&context, &ordinal);
    if (error)
        return error == CUDA_ERROR_DEVICE_UNAVAILABLE ? sg_lost(call) : sg_cuda_failed(call, error);
    struct sg_job *job = sg_job_new(call, SG_JOB_JOIN);
    struct sg_comm *c = job ? sg_comm_new(call) : NULL;
    if (!c) {
        free(job);
        return ncclSystemError;
    }
    c->context = context;
    c->ordinal = ordinal;
    c->ranks = ranks;
    c->rank = rank;
    c->blocking = job->blocking = blocking;
    memcpy(job->unique, unique, sizeof job->unique);
    job->comm = c;
    job->out = out;
    *out = sg_comm_name(c); /* before it runs: a failure sets it back */
    return sg_group_job(job);
}

static ncclResult_t init(const char *call, ncclComm_t *out, int ranks, const ncclUniqueId *id, int rank, const ncclConfig_t *config)
{
    uint8_t unique[16];
    int blocking = 1;
    ncclResult_t result = sg_session_enter(call);
    if (result)
        return result;
    if (!out)
        return sg_fail(call, ncclInvalidArgument, "comm is NULL");
    *out = NULL;
    if (ranks < 1 || rank < 0 || rank >= ranks)
        return sg_fail(call, ncclInvalidArgument, "rank %d of %d ranks does not exist", rank, ranks);
    if ((result = sg_unique_read(call, id, unique)) || (result = sg_config_check(call, config, &blocking)))
        return result;
    return begin(call, out, ranks, unique, rank, blocking);
}

ncclResult_t sg_ncclCommInitRank(ncclComm_t *comm, int nranks, ncclUniqueId commId, int rank)
{
    return init("ncclCommInitRank", comm, nranks, &commId, rank, NULL);
}

ncclResult_t sg_ncclCommInitRankConfig(ncclComm_t *comm, int nranks, ncclUniqueId commId, int rank, ncclConfig_t *config)
{
    return init("ncclCommInitRankConfig", comm, nranks, &commId, rank, config);
}

ncclResult_t sg_ncclCommInitRankScalable(ncclComm_t *newcomm, int nranks, int myrank, int nId, ncclUniqueId *commIds, ncclConfig_t *config)
{
    static const char call[] = "ncclCommInitRankScalable";
    if (nId < 1 || nId > nranks || !commIds)
        return sg_fail(call, ncclInvalidArgument, "%d unique ids for %d ranks", nId, nranks);
    return init(call, newcomm, nranks, &commIds[0], myrank, config);
}

ncclResult_t sg_ncclCommInitAll(ncclComm_t *comm, int ndev, const int *devlist)
{
    static const char call[] = "ncclCommInitAll";
    static _Atomic int said;
    ncclUniqueId id;
    uint64_t context;
    int ordinal;
    ncclResult_t result = sg_session_enter(call);
    if (result)
        return result;
    if (!comm || ndev < 1)
        return sg_fail(call, ncclInvalidArgument, "%s", comm ? "ndev is less than 1" : "comm is NULL");
    if (ndev > 1)
        return sg_refuse(&said, call, "a process opens one device here",
                         "run one rank per device (--nproc-per-node) and use ncclCommInitRank");
    int32_t error = sg_session()->context(&context, &ordinal);
    if (error)
        return sg_cuda_failed(call, error);
    if (devlist && devlist[0] != ordinal)
        return sg_fail(call, ncclInvalidArgument, "device %d is not the one that this process has opened, %d", devlist[0], ordinal);
    if ((result = sg_ncclGetUniqueId(&id)))
        return result;
    return init(call, comm, 1, &id, 0, NULL);
}

ncclResult_t sg_ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *newcomm, ncclConfig_t *config)
{
    static const char call[] = "ncclCommSplit";
    struct sg_comm *parent, *c = NULL;
    ncclResult_t result = sg_session_enter(call);
    if (result || (result = sg_comm_get(call, comm, &parent)))
        return result;
    if (!newcomm || color < -1)
        return sg_fail(call, ncclInvalidArgument, "%s", newcomm ? "color is negative and not NCCL_SPLIT_NOCOLOR" : "newcomm is NULL");
    int blocking = parent->blocking;
    if ((result = sg_config_check(call, config, &blocking)))
        return result;
    if (atomic_load(&parent->finalized))
        return sg_fail(call, ncclInvalidArgument, "the communicator was finalized");
    struct sg_job *job = sg_job_new(call, SG_JOB_SPLIT);
    *newcomm = NULL;
    if (!job || (color >= 0 && !(c = sg_comm_new(call)))) {
        free(job);
        return ncclSystemError;
    }
    if (c) {
        c->context = parent->context;
        c->ordinal = parent->ordinal;
        c->blocking = blocking;
        *newcomm = sg_comm_name(c);
    }
    job->comm = c;
    job->parent = parent;
    job->color = color;
    job->key = key;
    job->out = newcomm;
    job->blocking = parent->blocking;
    return sg_group_job(job);
}

/* ---- end --------------------------------------------------------------------------------------------------------- */
static ncclResult_t finish(const char *call, struct sg_comm *c, int how)
{
    struct sg_job *job = sg_job_new(call, SG_JOB_END);
    if (!job)
        return ncclSystemError;
    job->comm = c;
    job->how = how;
    if (how == SG_END_FINALIZE) {
        job->blocking = c->blocking;
        atomic_store(&c->finalized, 1);
        return sg_group_job(job);
    }
    sg_comm_hold(c); /* the program's hold goes with its name, at once: what follows must not find it */
    sg_comm_end(c);
    ncclResult_t result = sg_group_job(job);
    sg_comm_release(c);
    return result;
}

ncclResult_t sg_ncclCommFinalize(ncclComm_t comm)
{
    static const char call[] = "ncclCommFinalize";
    struct sg_comm *c;
    ncclResult_t result = sg_session_enter(call);
    if (result || (result = sg_comm_get(call, comm, &c)))
        return result;
    if (atomic_load(&c->finalized))
        return sg_fail(call, ncclInvalidArgument, "the communicator was finalized before");
    return finish(call, c, SG_END_FINALIZE);
}

ncclResult_t sg_ncclCommDestroy(ncclComm_t comm)
{
    static const char call[] = "ncclCommDestroy";
    struct sg_comm *c;
    ncclResult_t result = sg_session_enter(call);
    if (result || !comm || (result = find(call, comm, &c)))
        return result;
    int state = atomic_load(&c->state);
    if (state == ncclInProgress)
        return not_ready(call, c, state);
    return finish(call, c, state ? SG_END_ABORT : SG_END_DESTROY);
}

ncclResult_t sg_ncclCommAbort(ncclComm_t comm)
{
    static const char call[] = "ncclCommAbort";
    struct sg_comm *c;
    ncclResult_t result = sg_session_enter(call);
    if (result || !comm || (result = find(call, comm, &c)))
        return result;
    pthread_mutex_lock(&sg_comm_lock);
    int joining = atomic_load(&c->state) == ncclInProgress && !c->handle;
    uint64_t id = joining ? atomic_exchange(&c->id, 0) : 0; /* whoever joins finds it abandoned, and ends it */
    pthread_mutex_unlock(&sg_comm_lock);
    if (id)
        sg_comm_release(c);
    return joining ? ncclSuccess : finish(call, c, SG_END_ABORT);
}

/* ---- questions ------------------------------------------------------------------------------------------------- */
ncclResult_t sg_ncclCommCount(const ncclComm_t comm, int *count)
{
    struct sg_comm *c;
    ncclResult_t result = sg_session_enter("ncclCommCount");
    if (result || (result = sg_comm_get("ncclCommCount", comm, &c)))
        return result;
    if (!count)
        return sg_fail("ncclCommCount", ncclInvalidArgument, "count is NULL");
    *count = c->ranks;
    return ncclSuccess;
}

ncclResult_t sg_ncclCommCuDevice(const ncclComm_t comm, int *device)
{
    struct sg_comm *c;
    ncclResult_t result = sg_session_enter("ncclCommCuDevice");
    if (result || (result = sg_comm_get("ncclCommCuDevice", comm, &c)))
        return result;
    if (!device)
        return sg_fail("ncclCommCuDevice", ncclInvalidArgument, "device is NULL");
    *device = c->ordinal;
    return ncclSuccess;
}

ncclResult_t sg_ncclCommUserRank(const ncclComm_t comm, int *rank)
{
    struct sg_comm *c;
    ncclResult_t result = sg_session_enter("ncclCommUserRank");
    if (result || (result = sg_comm_get("ncclCommUserRank", comm, &c)))
        return result;
    if (!rank)
        return sg_fail("ncclCommUserRank", ncclInvalidArgument, "rank is NULL");
    *rank = c->rank;
    return ncclSuccess;
}

/* Sticky CUDA errors count as well, when the communicator knows no more: nothing on the device will succeed again. */
ncclResult_t sg_ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *asyncError)
{
    static const char call[] = "ncclCommGetAsyncError";
    struct sg_comm *c;
    ncclResult_t result = sg_session_enter(call);
    if (result || (result = find(call, comm, &c)))
        return result;
    if (!asyncError)
        return sg_fail(call, ncclInvalidArgument, "asyncError is NULL");
    pthread_mutex_lock(&sg_comm_lock); /* parent and child of a split change together */
    *asyncError = (ncclResult_t)atomic_load(&c->state);
    uint64_t handle = c->handle;
    pthread_mutex_unlock(&sg_comm_lock);
    if (*asyncError)
        return ncclSuccess;
    ncclResult_t alive = sg_session_alive(call);
    if (alive != ncclSystemError && (result = learn(call, c, handle)))
        return result;
    int state = atomic_load(&c->state);
    *asyncError = state ? (ncclResult_t)state : alive;
    return ncclSuccess;
}

ncclResult_t sg_ncclCommMemStats(ncclComm_t comm, ncclCommMemStat_t stat, uint64_t *value)
{
    static const char call[] = "ncclCommMemStats";
    struct sg_comm *c;
    ncclResult_t result = sg_session_enter(call);
    if (result || (result = sg_comm_get(call, comm, &c)))
        return result;
    if (!value || (unsigned)stat > ncclStatGpuMemTotal)
        return sg_fail(call, ncclInvalidArgument, "%s", value ? "there is no such statistic" : "value is NULL");
    *value = 0;
    return ncclSuccess;
}

/* ---- registered buffers ------------------------------------------------------------------------------------------- */
ncclResult_t sg_ncclCommRegister(const ncclComm_t comm, void *buff, size_t size, void **handle)
{
    static const char call[] = "ncclCommRegister";
    struct sg_comm *c;
    ncclResult_t result = sg_session_enter(call);
    if (result || (result = sg_comm_get(call, comm, &c)))
        return result;
    if (!handle || !buff || !size)
        return sg_fail(call, ncclInvalidArgument, "%s", handle ? "the buffer is empty" : "handle is NULL");
    struct sg_registration *made = malloc(sizeof *made);
    if (!made)
        return sg_fail(call, ncclSystemError, "out of memory");
    pthread_mutex_lock(&c->lock);
    made->next = c->registrations;
    c->registrations = made;
    pthread_mutex_unlock(&c->lock);
    *handle = made;
    return ncclSuccess;
}

ncclResult_t sg_ncclCommDeregister(const ncclComm_t comm, void *handle)
{
    static const char call[] = "ncclCommDeregister";
    struct sg_comm *c;
    ncclResult_t result = sg_session_enter(call);
    if (result || (result = find(call, comm, &c)))
        return result;
    pthread_mutex_lock(&c->lock);
    struct sg_registration **at = &c->registrations;
    while (*at && *at != handle)
        at = &(*at)->next;
    struct sg_registration *found = *at;
    if (found)
        *at = found->next;
    pthread_mutex_unlock(&c->lock);
    free(found);
    return found ? ncclSuccess : sg_fail(call, ncclInvalidArgument, "handle is not of a buffer that is registered with this communicator");
}
