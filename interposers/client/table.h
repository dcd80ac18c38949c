/* What our libnccl.so.2 uses of our libcuda.so.1: the session of the process.  Private: both are built together, and
 * `hash` (SG_CALLS_HASH) makes sure that they were. */
#ifndef SG_TABLE_H
#define SG_TABLE_H

#include <stdint.h>

struct sg_client_table {
    /* The thread's current context and the ordinal of its device; a thread without one gets device 0's primary
     * context, as with the runtime API.  CUresult. */
    int32_t (*context)(uint64_t *context, int *ordinal);
    int (*context_known)(uint64_t context);
    /* 0, or why no message can be sent now: a sticky error, SG_ERROR_LOST, CUDA_ERROR_NOT_INITIALIZED after fork. */
    int32_t (*enter)(void);
    /* Wire value of a stream of this process; the per-thread stream is that of the calling thread.  CUresult. */
    int32_t (*stream)(void *stream, uint64_t *wire);
    int (*captures)(uint64_t stream); /* whether that stream (wire value) captures */
    /* As in link.h; `context`: the handle that the message is sent for, or 0. */
    void *(*begin)(uint32_t op, uint64_t context, uint32_t bytes);
    void (*post)(void);
    int32_t (*call)(void *reply, uint32_t capacity, uint32_t *got);
    /* After begin or call found the session dead: says so on stderr (once), and gives the cause. */
    const char *(*lost)(const char *call);
    int (*reachable)(uint64_t address); /* device or page-locked memory */
    int32_t (*memory_alloc)(uint64_t *address, uint64_t bytes);
    int32_t (*memory_free)(uint64_t address);
    /* What device or page-locked memory holds after the earlier work of `stream`; waits for it.  CUresult. */
    int32_t (*read)(void *to, uint64_t address, uint64_t bytes, void *stream);
    const char *(*error_name)(int32_t error);
    const int *tracing; /* not 0: each call is to be traced, as in trace.h */
    void (*trace)(const char *call, const char *names, const char *codes, const uint64_t *values, int result, const char *result_name);
};

/* NULL when `hash` is another build's. */
typedef const struct sg_client_table *(*sg_client_table_function)(uint64_t hash);
#define SG_CLIENT_TABLE "singularity_client_table"

#endif
