/* The stream calls of the API. */
#include "device.h"

static CUresult create(const char *function, CUstream *out, unsigned flags, int priority)
{
    struct CUctx_st *context;
    CUresult result = sgf_enter_context(function, &context);
    if (result != CUDA_SUCCESS)
        return result;
    if (out == NULL || (flags & ~(unsigned)CU_STREAM_NON_BLOCKING) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    priority = priority > 0 ? 0 : priority < -5 ? -5 : priority; /* documented: clamped to the range */
    *out = sgf_stream_new(context, flags, priority);
    return *out == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

CUresult cuStreamCreate(CUstream *phStream, unsigned int Flags)
{
    return create(__func__, phStream, Flags, 0);
}

CUresult cuStreamCreateWithPriority(CUstream *phStream, unsigned int flags, int priority)
{
    return create(__func__, phStream, flags, priority);
}

CUresult cuStreamDestroy_v2(CUstream hStream)
{
    SGF_ENTER();
    if (!sgf_valid(SGF_STREAM, hStream) || hStream->legacy || hStream->per_thread || atomic_load(&hStream->destroyed))
        return CUDA_ERROR_INVALID_HANDLE;
    if (atomic_load(&hStream->capture) != NULL)
        sgf_capture_abandon(hStream);
    sgf_stream_release(hStream);
    return CUDA_SUCCESS;
}

CUresult cuStreamDestroy(CUstream hStream)
{
    return cuStreamDestroy_v2(hStream);
}

#define SGF_ENTER_STREAM(stream, handle) \
    SGF_ENTER_CONTEXT(context); \
    struct CUstream_st *stream; \
    do { CUresult found_ = sgf_stream_resolve(context, handle, &stream); if (found_ != 0) return found_; } while (0)

CUresult cuStreamQuery(CUstream hStream)
{
    SGF_ENTER_STREAM(stream, hStream);
    CUresult result = sgf_capture_forbids(stream->context, stream);
    if (result != CUDA_SUCCESS)
        return result;
    bool idle = sgf_seq_done(stream, atomic_load(&stream->submitted)) && (!stream->legacy || sgf_stream_idle(stream));
    result = sgf_context_check(stream->context);
    return result != CUDA_SUCCESS ? result : idle ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuStreamSynchronize(CUstream hStream)
{
    SGF_ENTER_STREAM(stream, hStream);
    CUresult result = sgf_capture_forbids(stream->context, stream);
    if (result != CUDA_SUCCESS)
        return result;
    sgf_wait_seq(stream, atomic_load(&stream->submitted));
    if (stream->legacy)
        sgf_stream_quiet(stream);
    return sgf_context_check(stream->context);
}

CUresult cuStreamWaitEvent(CUstream hStream, CUevent hEvent, unsigned int Flags)
{
    SGF_ENTER_STREAM(stream, hStream);
    struct CUstream_st *on;
    uint64_t seq;
    CUresult result;
    if ((Flags & ~(unsigned)CU_EVENT_WAIT_EXTERNAL) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (!sgf_valid(SGF_EVENT, hEvent))
        return CUDA_ERROR_INVALID_HANDLE;
    if (SGF_UNLIKELY(sgf_capture_wait(stream, hEvent, &result)))
        return result;
    if (!sgf_event_point(hEvent, &on, &seq) || on == stream)
        return CUDA_SUCCESS;
    struct sgf_work *work = sgf_work_new(SGF_WORK_WAIT, stream->context, 0);
    if (work == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    work->u.wait.stream = on;
    work->u.wait.seq = seq;
    work->u.wait.event = NULL;
    return sgf_stream_submit(stream, work, NULL);
}

CUresult cuCtxRecordEvent(CUcontext hCtx, CUevent hEvent)
{
    (void)hCtx, (void)hEvent;
    return sgf_unsupported(__func__);
}

CUresult cuCtxWaitEvent(CUcontext hCtx, CUevent hEvent)
{
    (void)hCtx, (void)hEvent;
    return sgf_unsupported(__func__);
}

static CUresult host_function(CUstream handle, CUhostFn fn, void *user)
{
    SGF_ENTER_STREAM(stream, handle);
    CUresult result;
    if (fn == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    struct sgf_work *work = sgf_work_new(SGF_WORK_HOST, stream->context, 0);
    if (work == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    work->u.host.fn = fn;
    work->u.host.user = user;
    if (SGF_UNLIKELY(sgf_capture_work(stream, work, &result)))
        return result;
    return sgf_stream_submit(stream, work, NULL);
}

CUresult cuLaunchHostFunc(CUstream hStream, CUhostFn fn, void *userData)
{
    return host_function(hStream, fn, userData);
}

CUresult cuLaunchHostFunc_v2(CUstream hStream, CUhostFn fn, void *userData, unsigned int syncMode)
{
    (void)syncMode; /* how the device waits for the host: there is only one way here */
    return host_function(hStream, fn, userData);
}

CUresult cuStreamAddCallback(CUstream hStream, CUstreamCallback callback, void *userData, unsigned int flags)
{
    SGF_ENTER_STREAM(stream, hStream);
    CUresult result = sgf_capture_forbids(stream->context, stream);
    if (result != CUDA_SUCCESS)
        return result;
    if (callback == NULL || flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    struct sgf_work *work = sgf_work_new(SGF_WORK_CALLBACK, stream->context, 0);
    if (work == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    work->u.callback.fn = callback;
    work->u.callback.user = userData;
    work->u.callback.said = hStream;
    return sgf_stream_submit(stream, work, NULL);
}

CUresult cuStreamGetPriority(CUstream hStream, int *priority)
{
    SGF_ENTER_STREAM(stream, hStream);
    if (priority == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *priority = stream->priority;
    return CUDA_SUCCESS;
}

CUresult cuStreamGetFlags(CUstream hStream, unsigned int *flags)
{
    SGF_ENTER_STREAM(stream, hStream);
    if (flags == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *flags = stream->flags;
    return CUDA_SUCCESS;
}

CUresult cuStreamGetId(CUstream hStream, unsigned long long *streamId)
{
    SGF_ENTER_STREAM(stream, hStream);
    if (streamId == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *streamId = stream->id;
    return CUDA_SUCCESS;
}

CUresult cuStreamGetCtx(CUstream hStream, CUcontext *pctx)
{
    SGF_ENTER_STREAM(stream, hStream);
    if (pctx == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *pctx = stream->context;
    return CUDA_SUCCESS;
}

CUresult cuStreamGetCtx_v2(CUstream hStream, CUcontext *pCtx, CUgreenCtx *pGreenCtx)
{
    if (pGreenCtx != NULL)
        *pGreenCtx = NULL;
    return cuStreamGetCtx(hStream, pCtx);
}

CUresult cuStreamGetDevice(CUstream hStream, CUdevice *device)
{
    SGF_ENTER_STREAM(stream, hStream);
    if (device == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *device = (CUdevice)(stream->context->device - sgf.devices);
    return CUDA_SUCCESS;
}

CUresult cuStreamAttachMemAsync(CUstream hStream, CUdeviceptr dptr, size_t length, unsigned int flags)
{
    (void)hStream, (void)dptr, (void)length, (void)flags;
    return sgf_unsupported(__func__); /* managed memory */
}
