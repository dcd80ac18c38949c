/* Primary contexts: one per device, shared by all who retain it, and kept until the last releases it. */
#include "device.h"

CUresult cuDevicePrimaryCtxRetain(CUcontext *pctx, CUdevice dev)
{
    SGF_ENTER_DEVICE(device, dev);
    if (pctx == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&device->lock);
    if (device->primary == NULL)
        result = sgf_context_new(device, device->primary_flags, 3020, true, &device->primary);
    if (result == CUDA_SUCCESS) {
        device->primary_count++;
        *pctx = device->primary;
    }
    pthread_mutex_unlock(&device->lock);
    return result;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice dev)
{
    SGF_ENTER_DEVICE(device, dev);
    struct CUctx_st *ended = NULL;
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&device->lock);
    if (device->primary == NULL || device->primary_count == 0) {
        result = CUDA_ERROR_INVALID_CONTEXT;
    } else if (--device->primary_count == 0) {
        ended = device->primary;
        device->primary = NULL;
    }
    pthread_mutex_unlock(&device->lock);
    if (ended != NULL)
        sgf_context_end(ended);
    return result;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice dev)
{
    return cuDevicePrimaryCtxRelease_v2(dev);
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice dev)
{
    SGF_ENTER_DEVICE(device, dev);
    pthread_mutex_lock(&device->lock);
    struct CUctx_st *ended = device->primary;
    device->primary = NULL;
    device->primary_count = 0;
    pthread_mutex_unlock(&device->lock);
    if (ended != NULL)
        sgf_context_end(ended);
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxReset(CUdevice dev)
{
    return cuDevicePrimaryCtxReset_v2(dev);
}

CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice dev, unsigned int flags)
{
    SGF_ENTER_DEVICE(device, dev);
    if ((flags & ~(unsigned)CU_CTX_FLAGS_MASK) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&device->lock);
    device->primary_flags = flags;
    pthread_mutex_unlock(&device->lock);
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxSetFlags(CUdevice dev, unsigned int flags)
{
    return cuDevicePrimaryCtxSetFlags_v2(dev, flags);
}

CUresult cuDevicePrimaryCtxGetState(CUdevice dev, unsigned int *flags, int *active)
{
    SGF_ENTER_DEVICE(device, dev);
    if (flags == NULL || active == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&device->lock);
    *flags = device->primary_flags;
    *active = device->primary != NULL;
    pthread_mutex_unlock(&device->lock);
    return CUDA_SUCCESS;
}
