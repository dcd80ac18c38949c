/* Contexts: a stack per thread, kept here; the proxy only hears of their beginning and end.
 *
 * A primary context is a context of this session's own in the proxy, so that a fault of one rank
 * stays with it. */
#include <pthread.h>
#include <stdlib.h>
#include "../wire.h"
#include "client.h"

#define STACK 64
struct own_stream { uint64_t context, stream; };
struct sg_thread_rest {
    uint64_t stack[STACK];
    uint32_t depth;
    uint32_t streams;
    struct own_stream own[16]; /* this thread's default stream, per context */
    CUstreamCaptureMode capture_mode;
};

static pthread_mutex_t primary_lock = PTHREAD_MUTEX_INITIALIZER;
static struct { uint64_t handle; unsigned count, flags; } primary; /* of the one open device */
static _Atomic uint64_t next_id = 1;
static pthread_key_t thread_key;
static pthread_once_t thread_once = PTHREAD_ONCE_INIT;

/* ---- per thread --------------------------------------------------------------------------------- */
static void thread_end(void *argument)
{
    struct sg_thread_rest *rest = argument;
    for (uint32_t i = 0; i < rest->streams; i++)
        if (sg_handle_known(SG_KIND_STREAM, rest->own[i].stream))
            (void)sg_send_cuStreamDestroy_v2((CUstream)(uintptr_t)rest->own[i].stream);
    sg_self.rest = NULL;
    free(rest);
}

static void make_key(void) { (void)pthread_key_create(&thread_key, thread_end); }

static struct sg_thread_rest *rest_of_thread(void)
{
    if (SG_LIKELY(sg_self.rest != NULL))
        return sg_self.rest;
    pthread_once(&thread_once, make_key);
    struct sg_thread_rest *rest = calloc(1, sizeof *rest);
    if (rest && pthread_setspecific(thread_key, rest)) {
        free(rest);
        rest = NULL;
    }
    return sg_self.rest = rest;
}

void sg_thread_refresh(void)
{
    struct sg_thread_rest *rest = sg_self.rest;
    sg_self.current = rest && rest->depth ? rest->stack[rest->depth - 1] : 0;
    sg_self.context = 0; /* the next call looks the handle up */
    if (sg_self.current && !sg_self.in_host && sg_handle_known(SG_KIND_CONTEXT, sg_self.current)) {
        sg_self.epoch = atomic_load(&sg_client.epoch);
        sg_self.context = SG_HANDLE_INDEX(sg_self.current);
    }
}

static CUresult push(uint64_t handle)
{
    struct sg_thread_rest *rest = rest_of_thread();
    if (!rest || rest->depth == STACK)
        return CUDA_ERROR_OUT_OF_MEMORY;
    rest->stack[rest->depth++] = handle;
    sg_thread_refresh();
    return CUDA_SUCCESS;
}

struct sg_context *sg_context_current(void) { return sg_handle_data(SG_KIND_CONTEXT, sg_self.current); }

CUresult sg_hand_cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
    struct sg_thread_rest *rest = rest_of_thread();
    if (!mode || !rest)
        return CUDA_ERROR_INVALID_VALUE;
    CUstreamCaptureMode old = rest->capture_mode;
    rest->capture_mode = *mode;
    *mode = old;
    return CUDA_SUCCESS;
}

/* ---- streams on the wire ----------------------------------------------------------------------------- */
static CUresult own_stream(uint64_t *wire)
{
    struct sg_thread_rest *rest = rest_of_thread();
    if (!rest)
        return CUDA_ERROR_OUT_OF_MEMORY;
    for (uint32_t i = 0; i < rest->streams; i++) {
        if (rest->own[i].context == sg_self.current) {
            *wire = rest->own[i].stream;
            return CUDA_SUCCESS;
        }
    }
    CUstream stream;
    CUresult error = sg_send_cuStreamCreate(&stream, CU_STREAM_DEFAULT);
    if (error)
        return error;
    uint32_t at = rest->streams < 16 ? rest->streams++ : 0;
    rest->own[at] = (struct own_stream){sg_self.current, SG_VALUE(stream)};
    *wire = SG_VALUE(stream);
    return CUDA_SUCCESS;
}

CUresult sg_stream_wire(CUstream stream, uint64_t *wire)
{
    uint64_t handle = SG_VALUE(stream);
    *wire = handle;
    if (handle <= 1)
        return CUDA_SUCCESS;
    if (handle == 2)
        return own_stream(wire);
    return sg_handle_known(SG_KIND_STREAM, handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult sg_hand_cuStreamGetCtx(CUstream hStream, CUcontext *pctx)
{
    uint64_t wire;
    CUresult error = sg_enter();
    if (error || (error = sg_stream_wire(hStream, &wire)))
        return error;
    if (!pctx)
        return CUDA_ERROR_INVALID_VALUE;
    *pctx = (CUcontext)(uintptr_t)(wire > 2 ? sg_handle_parent(wire) : sg_self.current);
    return CUDA_SUCCESS;
}

CUresult sg_hand_cuStreamGetDevice(CUstream hStream, CUdevice *device)
{
    CUcontext context;
    CUresult error = sg_hand_cuStreamGetCtx(hStream, &context);
    return error ? error : sg_hand_cuCtxGetDevice_v2(device, context);
}

/* ---- beginning and end ---------------------------------------------------------------------------------- */
static CUresult make(int ordinal, unsigned flags, unsigned version, int is_primary, uint64_t *handle)
{
    CUresult error = sg_open(ordinal);
    if (error || (error = sg_enter_bare()))
        return error;
    struct sg_context *context = calloc(1, sizeof *context);
    if (!context)
        return CUDA_ERROR_OUT_OF_MEMORY;
    struct sg_wire_context_create *wire = sg_begin(SG_OP_context_create, sizeof *wire);
    if (!wire) {
        free(context);
        return sg_lost("cuCtxCreate");
    }
    wire->flags = flags;
    wire->primary = (uint32_t)is_primary;
    error = sg_call("cuCtxCreate", handle, sizeof *handle);
    if (error) {
        free(context);
        return error;
    }
    *context = (struct sg_context){.handle = *handle, .id = atomic_fetch_add(&next_id, 1), .flags = flags,
                                   .version = version, .ordinal = ordinal, .primary = is_primary};
    return sg_handle_note(SG_KIND_CONTEXT, *handle, 0, context) ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

/* Memory ends with the context it was allocated in; which that is, only the client knows. */
static void release_memory(uint64_t handle, const char *call)
{
    struct sg_range range;
    uint32_t before = sg_self.context;
    sg_self.context = SG_HANDLE_INDEX(handle); /* what follows is said in that context */
    while (sg_range_take_of(handle, SG_RANGE_DEVICE, &range))
        (void)sg_memory_release(call, &range);
    sg_self.context = before;
}

static CUresult end(uint64_t handle, const char *call)
{
    struct sg_range range;
    CUresult error = sg_enter_bare();
    if (!error)
        release_memory(handle, call);
    struct sg_wire_handle *wire = error == SG_ERROR_LOST ? NULL : sg_begin(SG_OP_context_destroy, sizeof *wire);
    if (wire) {
        wire->handle = handle;
        error = sg_call(call, NULL, 0);
    } else {
        error = sg_lost(call);
    }
    sg_handle_forget(SG_KIND_CONTEXT, handle);
    while (sg_range_take_of(handle, SG_RANGE_PINNED, &range))
        sg_pinned_release(&range);
    atomic_fetch_add(&sg_client.epoch, 1);
    return error;
}

static CUresult create(CUcontext *out, unsigned flags, CUdevice dev, unsigned version)
{
    if (atomic_load(&sg_client.state) != SG_READY)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (!out || flags & ~(unsigned)CU_CTX_FLAGS_MASK)
        return CUDA_ERROR_INVALID_VALUE;
    if (!sg_visible(dev))
        return CUDA_ERROR_INVALID_DEVICE;
    uint64_t handle;
    CUresult error = make(dev, flags, version, 0, &handle);
    if (error || (error = push(handle)))
        return error;
    *out = (CUcontext)(uintptr_t)handle;
    return CUDA_SUCCESS;
}

CUresult sg_hand_cuCtxCreate_v2(CUcontext *pctx, unsigned int flags, CUdevice dev) { return create(pctx, flags, dev, 3020); }

CUresult sg_hand_cuCtxCreate_v3(CUcontext *pctx, CUexecAffinityParam *paramsArray, int numParams, unsigned int flags, CUdevice dev)
{
    if (paramsArray || numParams)
        return sg_declined("cuCtxCreate_v3", "execution affinity is not supported", "pass no parameters");
    return create(pctx, flags, dev, 3020);
}

CUresult sg_hand_cuCtxCreate_v4(CUcontext *pctx, CUctxCreateParams *ctxCreateParams, unsigned int flags, CUdevice dev)
{
    if (ctxCreateParams && (ctxCreateParams->numExecAffinityParams || ctxCreateParams->cigParams))
        return sg_declined("cuCtxCreate_v4", "execution affinity and graphics are not supported", "pass no parameters");
    return create(pctx, flags, dev, 3020);
}

CUresult sg_hand_cuCtxDestroy_v2(CUcontext ctx)
{
    struct sg_context *context = sg_handle_data(SG_KIND_CONTEXT, SG_VALUE(ctx));
    if (!context || context->primary)
        return CUDA_ERROR_INVALID_CONTEXT;
    CUresult error = end(SG_VALUE(ctx), "cuCtxDestroy");
    if (sg_self.rest && sg_self.current == SG_VALUE(ctx)) {
        sg_self.rest->depth--;
        sg_thread_refresh();
    }
    return error;
}

CUresult sg_hand_cuDevicePrimaryCtxRetain(CUcontext *pctx, CUdevice dev)
{
    if (atomic_load(&sg_client.state) != SG_READY)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (!pctx)
        return CUDA_ERROR_INVALID_VALUE;
    if (!sg_visible(dev))
        return CUDA_ERROR_INVALID_DEVICE;
    CUresult error = sg_open(dev);
    if (error)
        return error;
    pthread_mutex_lock(&primary_lock);
    if (!primary.handle || !sg_handle_known(SG_KIND_CONTEXT, primary.handle))
        error = make(dev, primary.flags, 3020, 1, &primary.handle);
    if (!error) {
        primary.count++;
        *pctx = (CUcontext)(uintptr_t)primary.handle;
    }
    pthread_mutex_unlock(&primary_lock);
    return error;
}

static CUresult primary_end(CUdevice dev, int all, const char *call)
{
    if (atomic_load(&sg_client.state) != SG_READY)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (!sg_visible(dev))
        return CUDA_ERROR_INVALID_DEVICE;
    CUresult error = CUDA_SUCCESS;
    pthread_mutex_lock(&primary_lock);
    if (!all && (!primary.count || dev != sg_client.ordinal)) {
        error = CUDA_ERROR_INVALID_CONTEXT;
    } else if (primary.handle && dev == sg_client.ordinal && (all || primary.count == 1)) {
        error = end(primary.handle, call);
        primary.handle = 0;
    }
    if (!error && primary.count && dev == sg_client.ordinal)
        primary.count--;
    pthread_mutex_unlock(&primary_lock);
    return error;
}

CUresult sg_hand_cuDevicePrimaryCtxRelease_v2(CUdevice dev) { return primary_end(dev, 0, "cuDevicePrimaryCtxRelease"); }
CUresult sg_hand_cuDevicePrimaryCtxReset_v2(CUdevice dev) { return primary_end(dev, 1, "cuDevicePrimaryCtxReset"); }

CUresult sg_hand_cuDevicePrimaryCtxGetState(CUdevice dev, unsigned int *flags, int *active)
{
    if (atomic_load(&sg_client.state) != SG_READY)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (!sg_visible(dev) || !flags || !active)
        return sg_visible(dev) ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_DEVICE;
    pthread_mutex_lock(&primary_lock);
    *active = dev == sg_client.ordinal && primary.handle != 0;
    *flags = primary.flags;
    pthread_mutex_unlock(&primary_lock);
    return CUDA_SUCCESS;
}

CUresult sg_hand_cuDevicePrimaryCtxSetFlags_v2(CUdevice dev, unsigned int flags)
{
    if (!sg_visible(dev))
        return CUDA_ERROR_INVALID_DEVICE;
    if (flags & ~(unsigned)CU_CTX_FLAGS_MASK)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&primary_lock);
    primary.flags = flags;
    pthread_mutex_unlock(&primary_lock);
    return CUDA_SUCCESS;
}

/* ---- the current context ------------------------------------------------------------------------------------ */
CUresult sg_hand_cuCtxSetCurrent(CUcontext ctx)
{
    uint64_t handle = SG_VALUE(ctx);
    if (SG_LIKELY(handle && handle == sg_self.current && sg_self.context &&
                  sg_self.epoch == atomic_load_explicit(&sg_client.epoch, memory_order_relaxed)))
        return CUDA_SUCCESS;
    if (atomic_load(&sg_client.state) != SG_READY)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (handle && !sg_handle_known(SG_KIND_CONTEXT, handle))
        return CUDA_ERROR_INVALID_CONTEXT;
    struct sg_thread_rest *rest = rest_of_thread();
    if (!rest)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (!handle && rest->depth)
        rest->depth--;
    else if (handle && rest->depth)
        rest->stack[rest->depth - 1] = handle;
    else if (handle)
        rest->stack[rest->depth++] = handle;
    sg_thread_refresh();
    return CUDA_SUCCESS;
}

CUresult sg_hand_cuCtxGetCurrent(CUcontext *pctx)
{
    if (atomic_load(&sg_client.state) != SG_READY)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (!pctx)
        return CUDA_ERROR_INVALID_VALUE;
    *pctx = (CUcontext)(uintptr_t)sg_self.current;
    return CUDA_SUCCESS;
}

CUresult sg_hand_cuCtxPushCurrent_v2(CUcontext ctx)
{
    if (atomic_load(&sg_client.state) != SG_READY)
        return CUDA_ERROR_NOT_INITIALIZED;
    return sg_handle_known(SG_KIND_CONTEXT, SG_VALUE(ctx)) ? push(SG_VALUE(ctx)) : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult sg_hand_cuCtxPopCurrent_v2(CUcontext *pctx)
{
    if (atomic_load(&sg_client.state) != SG_READY)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (!sg_self.rest || !sg_self.rest->depth)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (pctx)
        *pctx = (CUcontext)(uintptr_t)sg_self.current;
    sg_self.rest->depth--;
    sg_thread_refresh();
    return CUDA_SUCCESS;
}

CUresult sg_hand_cuCtxSynchronize_v2(CUcontext ctx)
{
    uint64_t before = sg_self.current;
    if (ctx && SG_VALUE(ctx) != before) {
        CUresult error = sg_hand_cuCtxPushCurrent_v2(ctx);
        if (!error) {
            error = sg_send_cuCtxSynchronize();
            (void)sg_hand_cuCtxPopCurrent_v2(NULL);
        }
        return error;
    }
    return sg_send_cuCtxSynchronize();
}
