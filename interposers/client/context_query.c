/* What is known of a context without asking the proxy. */
#include "client.h"

static CUresult current(struct sg_context **out)
{
    CUresult error = sg_enter();
    *out = error ? NULL : sg_context_current();
    return error ? error : *out ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

/* NULL means the current one. */
static CUresult given(CUcontext ctx, struct sg_context **out)
{
    if (!ctx)
        return current(out);
    if (atomic_load(&sg_client.state) != SG_READY)
        return CUDA_ERROR_NOT_INITIALIZED;
    *out = sg_handle_data(SG_KIND_CONTEXT, SG_VALUE(ctx));
    return *out ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult sg_hand_cuCtxGetDevice_v2(CUdevice *device, CUcontext ctx)
{
    struct sg_context *context;
    CUresult error = given(ctx, &context);
    if (error)
        return error;
    if (!device)
        return CUDA_ERROR_INVALID_VALUE;
    *device = context->ordinal;
    return CUDA_SUCCESS;
}

CUresult sg_hand_cuCtxGetDevice(CUdevice *device) { return sg_hand_cuCtxGetDevice_v2(device, NULL); }

CUresult sg_hand_cuCtxGetApiVersion(CUcontext ctx, unsigned int *version)
{
    struct sg_context *context;
    CUresult error = given(ctx, &context);
    if (error)
        return error;
    if (!version)
        return CUDA_ERROR_INVALID_VALUE;
    *version = context->version;
    return CUDA_SUCCESS;
}

CUresult sg_hand_cuCtxGetFlags(unsigned int *flags)
{
    struct sg_context *context;
    CUresult error = current(&context);
    if (error)
        return error;
    if (!flags)
        return CUDA_ERROR_INVALID_VALUE;
    *flags = context->flags;
    return CUDA_SUCCESS;
}

CUresult sg_hand_cuCtxSetFlags(unsigned int flags)
{
    struct sg_context *context;
    CUresult error = current(&context);
    if (error)
        return error;
    if (flags & ~(unsigned)CU_CTX_FLAGS_MASK)
        return CUDA_ERROR_INVALID_VALUE;
    context->flags = flags; /* how to wait is the transport's choice */
    return CUDA_SUCCESS;
}

CUresult sg_hand_cuCtxGetId(CUcontext ctx, unsigned long long *ctxId)
{
    struct sg_context *context;
    CUresult error = given(ctx, &context);
    if (error)
        return error;
    if (!ctxId)
        return CUDA_ERROR_INVALID_VALUE;
    *ctxId = context->id;
    return CUDA_SUCCESS;
}

CUresult sg_hand_cuCtxGetStreamPriorityRange(int *leastPriority, int *greatestPriority)
{
    CUresult error = sg_enter();
    if (error)
        return error;
    int supported = 0;
    (void)sg_hand_cuDeviceGetAttribute(&supported, CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED, sg_client.ordinal);
    if (leastPriority)
        *leastPriority = 0;
    if (greatestPriority)
        *greatestPriority = supported ? -5 : 0; /* the proxy's driver clamps what it does not have */
    return CUDA_SUCCESS;
}

CUresult sg_hand_cuCtxGetCacheConfig(CUfunc_cache *pconfig)
{
    struct sg_context *context;
    CUresult error = current(&context);
    if (error)
        return error;
    if (!pconfig)
        return CUDA_ERROR_INVALID_VALUE;
    *pconfig = context->cache;
    return CUDA_SUCCESS;
}

CUresult sg_hand_cuCtxSetCacheConfig(CUfunc_cache config)
{
    struct sg_context *context;
    CUresult error = current(&context);
    if (!error)
        context->cache = config; /* a preference, which current devices do not look at */
    return error;
}

CUresult sg_hand_cuCtxGetSharedMemConfig(CUsharedconfig *pConfig)
{
    CUresult error = sg_enter();
    if (error)
        return error;
    if (!pConfig)
        return CUDA_ERROR_INVALID_VALUE;
    *pConfig = CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE;
    return CUDA_SUCCESS;
}

CUresult sg_hand_cuCtxSetSharedMemConfig(CUsharedconfig config)
{
    (void)config;
    return sg_enter();
}

CUresult sg_hand_cuCtxResetPersistingL2Cache(void) { return sg_enter(); }

/* A rank has one device, so the only peer it could name is itself. */
CUresult sg_hand_cuCtxEnablePeerAccess(CUcontext peerContext, unsigned int Flags)
{
    CUresult error = sg_enter();
    if (error)
        return error;
    if (Flags)
        return CUDA_ERROR_INVALID_VALUE;
    return sg_handle_known(SG_KIND_CONTEXT, SG_VALUE(peerContext)) ? CUDA_ERROR_PEER_ACCESS_UNSUPPORTED
                                                                   : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult sg_hand_cuCtxDisablePeerAccess(CUcontext peerContext)
{
    CUresult error = sg_enter();
    if (error)
        return error;
    return sg_handle_known(SG_KIND_CONTEXT, SG_VALUE(peerContext)) ? CUDA_ERROR_PEER_ACCESS_NOT_ENABLED
                                                                   : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult sg_hand_cuCtxAttach(CUcontext *pctx, unsigned int flags)
{
    CUresult error = sg_enter();
    if (error)
        return error;
    if (!pctx || flags)
        return CUDA_ERROR_INVALID_VALUE;
    *pctx = (CUcontext)(uintptr_t)sg_self.current;
    return CUDA_SUCCESS;
}

CUresult sg_hand_cuCtxDetach(CUcontext ctx)
{
    (void)ctx;
    return sg_declined("cuCtxDetach", "deprecated and not supported", "call cuCtxDestroy or cuDevicePrimaryCtxRelease");
}
