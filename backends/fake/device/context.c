/* Contexts: the current stack of each thread, settings, sticky errors. */
#include "device.h"

#include <stdlib.h>
#include <string.h>

__thread struct sgf_thread *sgf_thread_here __attribute__((tls_model("initial-exec")));
static _Atomic uint32_t next_context_id = 1;

CUresult sgf_context_check(struct CUctx_st *context)
{
    if (SGF_UNLIKELY(!sgf_valid(SGF_CONTEXT, context)))
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    return (CUresult)atomic_load_explicit(&context->error, memory_order_acquire);
}

CUresult sgf_enter_context(const char *function, struct CUctx_st **out)
{
    CUresult result = sgf_enter(function);
    if (SGF_UNLIKELY(result != CUDA_SUCCESS))
        return result;
    struct sgf_thread *thread = sgf_thread();
    if (SGF_UNLIKELY(thread->in_callback))
        return CUDA_ERROR_NOT_PERMITTED; /* a host callback must make no device calls */
    if (SGF_UNLIKELY(thread->depth == 0 || thread->stack[thread->depth - 1] == NULL))
        return CUDA_ERROR_INVALID_CONTEXT;
    *out = thread->stack[thread->depth - 1];
    return sgf_context_check(*out);
}

void sgf_context_fail(struct CUctx_st *context, CUresult error)
{
    int32_t none = 0;
    if (atomic_compare_exchange_strong(&context->error, &none, (int32_t)error))
        sgf_gates_release(context);
}

CUresult sgf_context_new(struct sgf_device *device, unsigned flags, unsigned version, bool primary, CUcontext *out)
{
    struct CUctx_st *context = sgf_new(SGF_CONTEXT);
    if (context == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    context->device = device;
    context->flags = flags;
    context->version = version;
    context->primary = primary;
    context->id = atomic_fetch_add(&next_context_id, 1);
    context->limits[CU_LIMIT_STACK_SIZE] = 1024;
    context->limits[CU_LIMIT_PRINTF_FIFO_SIZE] = 1u << 20;
    context->limits[CU_LIMIT_MALLOC_HEAP_SIZE] = 8u << 20;
    context->limits[CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH] = 2;
    context->limits[CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT] = 2048;
    context->limits[CU_LIMIT_MAX_L2_FETCH_GRANULARITY] = 64;
    pthread_mutex_init(&context->lock, NULL);
    struct CUstream_st *legacy = sgf_stream_new(context, 0, 0);
    if (legacy == NULL) {
        sgf_delete(context);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    legacy->legacy = true;
    atomic_fetch_sub(&context->blocking_streams, 1);
    atomic_store(&context->legacy, legacy);
    *out = context;
    return CUDA_SUCCESS;
}

#define LAST_WORK_NS 2000000000u

/* Nobody can see what its kernels still do, so those that go on and on are stopped. */
void sgf_context_end(struct CUctx_st *context)
{
    atomic_store(&context->ending, true);
    sgf_gates_release(context);
    if (!sgf_context_outwait(context, LAST_WORK_NS)) {
        atomic_store(&context->abandoned, true);
        sgf_context_outwait(context, 0);
    }
    struct CUmod_st *module;
    while ((module = context->modules) != NULL)
        sgf_module_destroy(module);
    pthread_mutex_lock(&context->lock);
    struct CUstream_st *stream = context->streams;
    pthread_mutex_unlock(&context->lock);
    while (stream != NULL) {
        sgf_stream_release(stream);
        pthread_mutex_lock(&context->lock);
        stream = context->streams;
        pthread_mutex_unlock(&context->lock);
    }
    for (int i = 0; i < sgf.device_count; i++)
        sgf_zone_free_owned(sgf.devices[i].heap, context->id);
    sgf_zone_free_owned(sgf.pinned, context->id);
    sgf_own_streams_forget(context);
    sgf_delete(context);
}

static CUresult push(struct CUctx_st *context)
{
    struct sgf_thread *thread = sgf_thread();
    if (thread->depth >= sizeof thread->stack / sizeof thread->stack[0])
        return CUDA_ERROR_OUT_OF_MEMORY;
    thread->stack[thread->depth++] = context;
    return CUDA_SUCCESS;
}

static CUresult create(const char *function, CUcontext *out, unsigned flags, CUdevice ordinal, unsigned version)
{
    CUresult result = sgf_enter(function);
    struct sgf_device *device;
    if (result != CUDA_SUCCESS)
        return result;
    if (out == NULL || (flags & ~(unsigned)CU_CTX_FLAGS_MASK) != 0 || (flags & CU_CTX_SCHED_MASK) == 3)
        return CUDA_ERROR_INVALID_VALUE;
    if ((result = sgf_device_at(ordinal, &device)) != CUDA_SUCCESS)
        return result;
    if ((result = sgf_context_new(device, flags, version, false, out)) != CUDA_SUCCESS)
        return result;
    return push(*out);
}

CUresult cuCtxCreate_v2(CUcontext *pctx, unsigned int flags, CUdevice dev)
{
    return create(__func__, pctx, flags, dev, 3020);
}

CUresult cuCtxCreate(CUcontext *pctx, unsigned int flags, CUdevice dev)
{
    return create(__func__, pctx, flags, dev, 3010);
}

CUresult cuCtxCreate_v3(CUcontext *pctx, CUexecAffinityParam *paramsArray, int numParams, unsigned int flags, CUdevice dev)
{
    if (paramsArray != NULL || numParams != 0)
        return sgf_unsupported("cuCtxCreate_v3 with an execution affinity");
    return create(__func__, pctx, flags, dev, 3020);
}

CUresult cuCtxCreate_v4(CUcontext *pctx, CUctxCreateParams *ctxCreateParams, unsigned int flags, CUdevice dev)
{
    if (ctxCreateParams != NULL && (ctxCreateParams->numExecAffinityParams != 0 || ctxCreateParams->cigParams != NULL))
        return sgf_unsupported("cuCtxCreate_v4 with creation parameters");
    return create(__func__, pctx, flags, dev, 3020);
}

CUresult cuCtxDestroy_v2(CUcontext ctx)
{
    SGF_ENTER();
    if (!sgf_valid(SGF_CONTEXT, ctx))
        return CUDA_ERROR_INVALID_CONTEXT;
    if (ctx->primary)
        return CUDA_ERROR_INVALID_CONTEXT; /* cuDevicePrimaryCtxRelease is its way out */
    struct sgf_thread *thread = sgf_thread();
    if (thread->depth > 0 && thread->stack[thread->depth - 1] == ctx)
        thread->depth--;
    sgf_context_end(ctx);
    return CUDA_SUCCESS;
}

CUresult cuCtxDestroy(CUcontext ctx)
{
    return cuCtxDestroy_v2(ctx);
}

CUresult cuCtxPushCurrent_v2(CUcontext ctx)
{
    SGF_ENTER();
    if (!sgf_valid(SGF_CONTEXT, ctx))
        return CUDA_ERROR_INVALID_CONTEXT;
    return push(ctx);
}

CUresult cuCtxPushCurrent(CUcontext ctx)
{
    return cuCtxPushCurrent_v2(ctx);
}

CUresult cuCtxPopCurrent_v2(CUcontext *pctx)
{
    SGF_ENTER();
    struct sgf_thread *thread = sgf_thread();
    if (thread->depth == 0)
        return CUDA_ERROR_INVALID_CONTEXT;
    struct CUctx_st *context = thread->stack[--thread->depth];
    if (pctx != NULL)
        *pctx = context;
    return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent(CUcontext *pctx)
{
    return cuCtxPopCurrent_v2(pctx);
}

CUresult cuCtxSetCurrent(CUcontext ctx)
{
    SGF_ENTER();
    struct sgf_thread *thread = sgf_thread();
    if (ctx == NULL) {
        if (thread->depth > 0)
            thread->depth--;
        return CUDA_SUCCESS;
    }
    if (!sgf_valid(SGF_CONTEXT, ctx))
        return CUDA_ERROR_INVALID_CONTEXT;
    if (thread->depth == 0)
        return push(ctx);
    thread->stack[thread->depth - 1] = ctx;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *pctx)
{
    SGF_ENTER();
    if (pctx == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    struct sgf_thread *thread = sgf_thread();
    *pctx = thread->depth == 0 ? NULL : thread->stack[thread->depth - 1];
    return CUDA_SUCCESS;
}

static CUresult named_or_current(CUcontext ctx, struct CUctx_st **out)
{
    struct sgf_thread *thread = sgf_thread();
    if (ctx == NULL)
        ctx = thread->depth == 0 ? NULL : thread->stack[thread->depth - 1];
    if (ctx == NULL)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!sgf_valid(SGF_CONTEXT, ctx))
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    *out = ctx;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice_v2(CUdevice *device, CUcontext ctx)
{
    SGF_ENTER();
    struct CUctx_st *context;
    CUresult result = named_or_current(ctx, &context);
    if (result != CUDA_SUCCESS)
        return result;
    if (device == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *device = (CUdevice)(context->device - sgf.devices);
    return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice *device)
{
    return cuCtxGetDevice_v2(device, NULL);
}

CUresult cuCtxGetFlags(unsigned int *flags)
{
    SGF_ENTER_CONTEXT(context);
    if (flags == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *flags = context->primary ? context->device->primary_flags : context->flags;
    return CUDA_SUCCESS;
}

CUresult cuCtxSetFlags(unsigned int flags)
{
    SGF_ENTER_CONTEXT(context);
    if ((flags & ~(unsigned)CU_CTX_FLAGS_MASK) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    context->flags = flags;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetId(CUcontext ctx, unsigned long long *ctxId)
{
    SGF_ENTER();
    struct CUctx_st *context;
    CUresult result = named_or_current(ctx, &context);
    if (result != CUDA_SUCCESS)
        return result;
    if (ctxId == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *ctxId = context->id;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetApiVersion(CUcontext ctx, unsigned int *version)
{
    SGF_ENTER();
    struct CUctx_st *context;
    CUresult result = named_or_current(ctx, &context);
    if (result != CUDA_SUCCESS)
        return result;
    if (version == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *version = context->version;
    return CUDA_SUCCESS;
}

CUresult cuCtxSynchronize(void)
{
    SGF_ENTER_CONTEXT(context);
    CUresult result = sgf_capture_forbids(context, NULL);
    return result != CUDA_SUCCESS ? result : sgf_context_drain(context);
}

CUresult cuCtxSynchronize_v2(CUcontext ctx)
{
    SGF_ENTER();
    struct CUctx_st *context;
    CUresult result = named_or_current(ctx, &context);
    if (result == CUDA_SUCCESS)
        result = sgf_context_check(context);
    if (result == CUDA_SUCCESS)
        result = sgf_capture_forbids(context, NULL);
    return result != CUDA_SUCCESS ? result : sgf_context_drain(context);
}

CUresult cuCtxSetLimit(CUlimit limit, size_t value)
{
    SGF_ENTER_CONTEXT(context);
    if ((unsigned)limit >= CU_LIMIT_MAX)
        return CUDA_ERROR_INVALID_VALUE;
    if (limit > CU_LIMIT_PERSISTING_L2_CACHE_SIZE)
        return CUDA_ERROR_UNSUPPORTED_LIMIT;
    context->limits[limit] = value;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetLimit(size_t *pvalue, CUlimit limit)
{
    SGF_ENTER_CONTEXT(context);
    if (pvalue == NULL || (unsigned)limit >= CU_LIMIT_MAX)
        return CUDA_ERROR_INVALID_VALUE;
    if (limit > CU_LIMIT_PERSISTING_L2_CACHE_SIZE)
        return CUDA_ERROR_UNSUPPORTED_LIMIT;
    *pvalue = context->limits[limit];
    return CUDA_SUCCESS;
}

CUresult cuCtxGetCacheConfig(CUfunc_cache *pconfig)
{
    SGF_ENTER_CONTEXT(context);
    if (pconfig == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *pconfig = context->cache_config;
    return CUDA_SUCCESS;
}

CUresult cuCtxSetCacheConfig(CUfunc_cache config)
{
    SGF_ENTER_CONTEXT(context);
    context->cache_config = config;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetSharedMemConfig(CUsharedconfig *pConfig)
{
    SGF_ENTER_CONTEXT(context);
    if (pConfig == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *pConfig = CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE;
    return CUDA_SUCCESS;
}

CUresult cuCtxSetSharedMemConfig(CUsharedconfig config)
{
    SGF_ENTER_CONTEXT(context);
    context->shared_config = config; /* a hint without effect, as on every current card */
    return CUDA_SUCCESS;
}

CUresult cuCtxGetStreamPriorityRange(int *leastPriority, int *greatestPriority)
{
    SGF_ENTER_CONTEXT(context);
    (void)context;
    if (leastPriority != NULL)
        *leastPriority = 0;
    if (greatestPriority != NULL)
        *greatestPriority = -5;
    return CUDA_SUCCESS;
}

CUresult cuCtxResetPersistingL2Cache(void)
{
    SGF_ENTER_CONTEXT(context);
    (void)context;
    return CUDA_SUCCESS;
}

CUresult cuCtxEnablePeerAccess(CUcontext peerContext, unsigned int Flags)
{
    SGF_ENTER_CONTEXT(context);
    if (Flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (!sgf_valid(SGF_CONTEXT, peerContext))
        return CUDA_ERROR_INVALID_CONTEXT;
    if (peerContext->device == context->device)
        return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
    uint32_t bit = 1u << (peerContext->device - sgf.devices);
    if ((atomic_fetch_or(&context->peers, bit) & bit) != 0)
        return CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
    return CUDA_SUCCESS;
}

CUresult cuCtxDisablePeerAccess(CUcontext peerContext)
{
    SGF_ENTER_CONTEXT(context);
    if (!sgf_valid(SGF_CONTEXT, peerContext))
        return CUDA_ERROR_INVALID_CONTEXT;
    uint32_t bit = 1u << (peerContext->device - sgf.devices);
    if ((atomic_fetch_and(&context->peers, ~bit) & bit) == 0)
        return CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
    return CUDA_SUCCESS;
}
