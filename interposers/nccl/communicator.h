/* Inside the rank's libnccl.so.2: communicators, groups, and what is said when something is wrong.
 *
 * A call checks what can be checked here, then posts (operations) or waits (creation and end of communicators) through
 * the session of the process's libcuda.so.1, table.h.  What the program holds as ncclComm_t is no pointer but a number
 * with a generation, so that a communicator that has ended is recognised. */
#ifndef SG_NCCL_COMMUNICATOR_H
#define SG_NCCL_COMMUNICATOR_H

#include <pthread.h>
#include <stdatomic.h>
#include "../client/table.h"
#include "../generated/nccl_hooks.h"
#include "../wire_nccl.h"

#define SG_TEXT_BYTES 192

/* ---- communicators (communicator.c) ---------------------------------------------------------------------- */
struct sg_factor { ncclDataType_t dtype; ncclScalarResidence_t residence; uint64_t bits; int used; }; /* bits: the scalar, or its address */
struct sg_registration { struct sg_registration *next; };

struct sg_comm {
    _Atomic uint64_t id;      /* what the program holds; 0: ended, or not made yet */
    _Atomic int state;        /* ncclResult_t of all calls: ncclSuccess, ncclInProgress, or what has failed */
    _Atomic int finalized;    /* no operation may follow */
    uint64_t handle, context; /* the proxy's handle; the context that it was made in */
    int ordinal, ranks, rank, blocking;
    uint32_t generation, users; /* users of the slot: the program, and jobs that run; guarded by sg_comm_lock */
    char said[SG_TEXT_BYTES]; /* why `state` is an error; guarded by sg_comm_lock */
    pthread_mutex_t lock;      /* guards what follows */
    struct sg_factor *factors; /* operator ncclNumOps + i */
    int factor_count;
    struct sg_registration *registrations;
};
extern pthread_mutex_t sg_comm_lock; /* guards states that change together, and the table */

struct sg_comm *sg_comm_new(const char *call); /* in progress, without a handle; NULL: too many */
void sg_comm_end(struct sg_comm *comm);        /* for the program, at once */
void sg_comm_hold(struct sg_comm *comm);
void sg_comm_release(struct sg_comm *comm);
struct sg_comm *sg_comm_find(ncclComm_t comm); /* NULL: none, or one that has ended */
ncclComm_t sg_comm_name(const struct sg_comm *comm);
/* The communicator, when operations may be called on it; else the error of `call`. */
ncclResult_t sg_comm_get(const char *call, ncclComm_t comm, struct sg_comm **out);
ncclResult_t sg_config_check(const char *call, const ncclConfig_t *config, int *blocking); /* NULL: leaves `blocking` */

/* The number in `reduction` and `scalar` of a sum, a product, ..., or an operator that the communicator has made. */
ncclResult_t sg_operator_get(const char *call, struct sg_comm *comm, int op, ncclDataType_t dtype, cudaStream_t stream,
                             struct sg_operation *out);

/* ---- groups, and what waits (group.c, jobs.c) ---------------------------------------------------------------- */
enum sg_job_kind { SG_JOB_JOIN, SG_JOB_SPLIT, SG_JOB_END };
struct sg_job { /* a creation or an end: one call that waits in the proxy */
    struct sg_job *next;
    const char *call;
    struct sg_comm *comm;   /* that is made, or ends; NULL: a split without a color */
    struct sg_comm *parent; /* of a split */
    ncclComm_t *out;        /* the program's variable; not touched by a job that nobody waits for */
    enum sg_job_kind kind;
    int blocking, color, key, how;
    uint8_t unique[16];
    uint64_t handle; /* of what was made */
    ncclResult_t result;
    char said[SG_TEXT_BYTES];
    pthread_t thread;
};
/* Runs the jobs, those of one parent in order, all others side by side; waits for those that block.  Frees them. */
ncclResult_t sg_jobs_run(struct sg_job *jobs);
ncclResult_t sg_jobs_end(struct sg_job *jobs); /* of a group that has failed: runs only the ends */
struct sg_job *sg_job_new(const char *call, enum sg_job_kind kind);
ncclResult_t sg_group_job(struct sg_job *job); /* runs it, or keeps it for the end of the group */
ncclResult_t sg_group_operation(const char *call, struct sg_comm *comm, const struct sg_operation *operation);
int sg_group_open(void);
void sg_group_spoil(ncclResult_t result); /* the open group, if any, fails with that */

/* ---- session and words (library.c) ------------------------------------------------------------------------------ */
const struct sg_client_table *sg_session(void); /* once sg_session_enter has succeeded */
ncclResult_t sg_session_enter(const char *call); /* finds the session's library */
ncclResult_t sg_session_alive(const char *call); /* and nothing has happened to the session */
/* One message and its reply; `reply_bytes` must come. */
ncclResult_t sg_send(const char *call, uint32_t op, uint64_t context, const void *wire, uint32_t bytes, void *reply, uint32_t reply_bytes);
ncclResult_t sg_lost(const char *call);
ncclResult_t sg_cuda_failed(const char *call, int32_t error);
/* Sets the last error, spoils an open group, returns `result`. */
ncclResult_t sg_fail(const char *call, ncclResult_t result, const char *format, ...) __attribute__((format(printf, 3, 4)));
const char *sg_last_error(void); /* of this thread */
/* Traces a call when that is on (SINGULARITY_TRACE); codes: a letter per parameter, see client/trace.c. */
void sg_trace_call(const char *call, const char *names, const char *codes, const uint64_t *values, ncclResult_t result);
static inline uint64_t sg_trace_bits(const void *at, size_t bytes)
{
    uint64_t bits = 0;
    __builtin_memcpy(&bits, at, bytes < sizeof bits ? bytes : sizeof bits);
    return bits;
}
extern _Atomic int sg_trace_on;
ncclResult_t sg_unique_read(const char *call, const ncclUniqueId *id, uint8_t unique[16]);
ncclResult_t sg_refuse(_Atomic int *said, const char *call, const char *reason, const char *remedy);

#endif
