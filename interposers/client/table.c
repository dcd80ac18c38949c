/* The session of the process, for our libnccl.so.2 (table.h). */
#include "table.h"
#include "client.h"
#include "copy.h"
#include "names.h"
#include "trace.h"

static int32_t table_context(uint64_t *context, int *ordinal)
{
    CUcontext primary;
    CUresult error = sg_initialise();
    if (!error && (error = sg_enter()) == CUDA_ERROR_INVALID_CONTEXT && !sg_self.current &&
        !(error = sg_hand_cuDevicePrimaryCtxRetain(&primary, 0)))
        error = sg_hand_cuCtxSetCurrent(primary);
    const struct sg_context *current = error ? NULL : sg_context_current();
    if (!current)
        return (int32_t)(error ? error : CUDA_ERROR_INVALID_CONTEXT);
    *context = current->handle;
    *ordinal = current->ordinal;
    return CUDA_SUCCESS;
}

static int table_context_known(uint64_t context) { return sg_handle_known(SG_KIND_CONTEXT, context); }

/* Errors that are reported once are left to CUDA's own calls: nobody asks NCCL for them. */
static int32_t table_enter(void)
{
    if (atomic_load_explicit(&sg_client.state, memory_order_acquire) != SG_READY)
        return CUDA_ERROR_NOT_INITIALIZED;
    sg_link *link = atomic_load_explicit(&sg_client.link, memory_order_acquire);
    if (!link)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (sg_link_dead(link))
        return SG_ERROR_LOST;
    uint32_t error = sg_link_async_error(link);
    return sg_sticky(error) ? (int32_t)error : CUDA_SUCCESS;
}

/* The per-thread stream is made in the current context. */
static int32_t table_stream(void *stream, uint64_t *wire)
{
    uint64_t context;
    int ordinal;
    int32_t error = (CUstream)stream == CU_STREAM_PER_THREAD ? table_context(&context, &ordinal) : 0;
    return error ? error : (int32_t)sg_stream_wire(stream, wire);
}

static void *table_begin(uint32_t op, uint64_t context, uint32_t bytes)
{
    sg_link *link = atomic_load_explicit(&sg_client.link, memory_order_acquire);
    return link ? sg_link_begin(link, op, SG_HANDLE_INDEX(context), bytes) : NULL;
}

static int32_t table_call(void *reply, uint32_t capacity, uint32_t *got)
{
    return sg_link_call(atomic_load_explicit(&sg_client.link, memory_order_relaxed), reply, capacity, got);
}

static const char *table_lost(const char *call)
{
    switch (sg_lost(call)) {
    case SG_ERROR_LOST: return sg_lost_cause();
    case CUDA_ERROR_NOT_INITIALIZED: return "a child of fork cannot use its parent's device: start it with exec, or fork before cuInit";
    default: return "no device is open";
    }
}

static int table_reachable(uint64_t address) { return sg_is_device(address) || sg_is_pinned(address); }

static int32_t table_memory_alloc(uint64_t *address, uint64_t bytes)
{
    CUdeviceptr at = 0;
    int ordinal;
    int32_t error = table_context(address, &ordinal);
    if (!error)
        error = (int32_t)sg_hand_cuMemAlloc_v2(&at, bytes);
    *address = at;
    return error;
}

static int32_t table_memory_free(uint64_t address) { return (int32_t)sg_hand_cuMemFree_v2(address); }

static int32_t table_read(void *to, uint64_t address, uint64_t bytes, void *stream)
{
    uint64_t context;
    int ordinal;
    int32_t error = table_context(&context, &ordinal);
    if (!error)
        error = (int32_t)sg_hand_cuMemcpyAsync((CUdeviceptr)(uintptr_t)to, address, bytes, stream);
    return error ? error : (int32_t)sg_send_cuStreamSynchronize(stream);
}

static const struct sg_client_table table = {
    .context = table_context, .context_known = table_context_known, .enter = table_enter, .stream = table_stream,
    .captures = sg_stream_captures, .begin = table_begin, .post = sg_post, .call = table_call, .lost = table_lost,
    .reachable = table_reachable, .memory_alloc = table_memory_alloc, .memory_free = table_memory_free, .read = table_read,
    .error_name = sg_error_name, .tracing = &sg_trace_on, .trace = sg_trace_line,
};

SG_EXPORT const struct sg_client_table *singularity_client_table(uint64_t hash);
SG_EXPORT const struct sg_client_table *singularity_client_table(uint64_t hash) { return hash == SG_CALLS_HASH ? &table : NULL; }
