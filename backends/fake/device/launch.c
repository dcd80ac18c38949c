/* Launches: the checks that CUDA makes in the call itself, and the work that carries parameters to the stream. */
#include "device.h"

#include <string.h>

static CUresult check_shape(const struct sgf_launch_request *r)
{
    const uint32_t *g = r->grid, *b = r->block;
    if (g[0] == 0 || g[1] == 0 || g[2] == 0 || b[0] == 0 || b[1] == 0 || b[2] == 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (g[0] > 2147483647u || g[1] > 65535 || g[2] > 65535)
        return CUDA_ERROR_INVALID_VALUE;
    if (b[0] > 1024 || b[1] > 1024 || b[2] > 64 || (uint64_t)b[0] * b[1] * b[2] > SGF_MAX_THREADS)
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

static CUresult check_limits(const struct sgf_launch_request *r, const struct CUfunc_st *f)
{
    const struct sgf_kernel *k = f->kernel;
    uint64_t threads = (uint64_t)r->block[0] * r->block[1] * r->block[2];
    uint64_t most = (uint64_t)k->maxntid[0] * k->maxntid[1] * k->maxntid[2];
    if (most != 0 && threads > most)
        return CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
    if (k->reqntid[0] != 0 && memcmp(k->reqntid, r->block, sizeof k->reqntid) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (k->registers * threads > SGF_REGISTERS)
        return CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
    if (r->shared > (uint32_t)f->dynamic_limit)
        return CUDA_ERROR_INVALID_VALUE; /* cuFuncSetAttribute raises the limit */
    if (r->cooperative) {
        uint64_t blocks = (uint64_t)r->grid[0] * r->grid[1] * r->grid[2];
        if (blocks > (uint64_t)SGF_MULTIPROCESSORS * (uint64_t)sgf_occupancy(f, (uint32_t)threads, r->shared))
            return CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
    }
    return CUDA_SUCCESS;
}

/* The packed buffer of `extra`; its size need not reach the last parameter's padding. */
static CUresult from_extra(void **extra, const struct sgf_kernel *k, uint8_t *to)
{
    const void *buffer = NULL;
    size_t size = 0;
    bool sized = false;
    for (size_t i = 0; extra[i] != CU_LAUNCH_PARAM_END; i += 2) {
        if (extra[i] == CU_LAUNCH_PARAM_BUFFER_POINTER) {
            buffer = extra[i + 1];
        } else if (extra[i] == CU_LAUNCH_PARAM_BUFFER_SIZE) {
            if (extra[i + 1] == NULL)
                return CUDA_ERROR_INVALID_VALUE;
            size = *(const size_t *)extra[i + 1];
            sized = true;
        } else {
            return CUDA_ERROR_INVALID_VALUE;
        }
    }
    if (!sized || (buffer == NULL && size != 0))
        return CUDA_ERROR_INVALID_VALUE;
    uint32_t needed = k->param_count == 0 ? 0 : k->params[k->param_count - 1].offset + k->params[k->param_count - 1].size;
    if (size < needed)
        return CUDA_ERROR_INVALID_VALUE;
    if (size != 0)
        memcpy(to, buffer, size < k->param_bytes ? size : k->param_bytes);
    return CUDA_SUCCESS;
}

static CUresult copy_params(const struct sgf_launch_request *r, const struct sgf_kernel *k, uint8_t *to)
{
    if (r->params != NULL && r->extra != NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (r->extra != NULL)
        return from_extra(r->extra, k, to);
    if (r->params == NULL)
        return k->param_count == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    for (uint32_t i = 0; i < k->param_count; i++) {
        const void *from = r->params[i];
        if (SGF_UNLIKELY(from == NULL))
            return CUDA_ERROR_INVALID_VALUE;
        if (k->params[i].size == 8)
            memcpy(to + k->params[i].offset, from, 8);
        else if (k->params[i].size == 4)
            memcpy(to + k->params[i].offset, from, 4);
        else
            memcpy(to + k->params[i].offset, from, k->params[i].size);
    }
    return CUDA_SUCCESS;
}

CUresult sgf_launch_prepare(struct CUctx_st *context, const struct sgf_launch_request *r, struct sgf_work **out)
{
    struct CUfunc_st *f;
    CUresult result = sgf_function_in(context, r->function, &f);
    if (SGF_UNLIKELY(result != CUDA_SUCCESS))
        return result;
    if (f->kernel == NULL) {
        sgf_say("kernel %s: its image holds no PTX, and the in-memory device executes nothing else; build with "
                "-gencode arch=compute_XX,code=compute_XX", f->name);
        return CUDA_ERROR_NO_BINARY_FOR_GPU;
    }
    const struct sgf_kernel *k = f->kernel;
    if ((result = check_shape(r)) != CUDA_SUCCESS || (result = check_limits(r, f)) != CUDA_SUCCESS)
        return result;
    const struct sgf_variant *variant;
    if ((result = sgf_image_variant(f->image, f->kernel, r->block, &variant)) != CUDA_SUCCESS)
        return result;
    if ((uint64_t)variant->shared + r->shared > SGF_SHARED_OPTIN)
        return CUDA_ERROR_INVALID_VALUE;
    struct sgf_work *work = sgf_work_new(SGF_WORK_KERNEL, context, (size_t)k->param_bytes + 64);
    if (work == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    memset(work->tail, 0, (size_t)k->param_bytes + 64);
    if ((result = copy_params(r, k, work->tail)) != CUDA_SUCCESS) {
        sgf_work_free(work);
        return result;
    }
    struct sgf_launch *l = &work->u.launch;
    *l = (struct sgf_launch){ .function = f, .variant = variant, .globals = f->module->globals,
                              .grid = { r->grid[0], r->grid[1], r->grid[2] }, .block = { r->block[0], r->block[1], r->block[2] },
                              .dynamic_shared = r->shared, .param_bytes = k->param_bytes, .cooperative = r->cooperative };
    *out = work;
    return CUDA_SUCCESS;
}

static CUresult launch(const char *function, const struct sgf_launch_request *r, CUstream handle)
{
    struct CUctx_st *context;
    struct CUstream_st *stream;
    struct sgf_work *work;
    CUresult result = sgf_enter_context(function, &context);
    if (result == CUDA_SUCCESS)
        result = sgf_stream_resolve(context, handle, &stream);
    if (result == CUDA_SUCCESS)
        result = sgf_launch_prepare(stream->context, r, &work);
    if (result != CUDA_SUCCESS)
        return result;
    if (SGF_UNLIKELY(sgf_capture_work(stream, work, &result)))
        return result;
    return sgf_stream_submit(stream, work, NULL);
}

CUresult cuLaunchKernel(CUfunction f, unsigned int gridDimX, unsigned int gridDimY, unsigned int gridDimZ,
                        unsigned int blockDimX, unsigned int blockDimY, unsigned int blockDimZ, unsigned int sharedMemBytes,
                        CUstream hStream, void **kernelParams, void **extra)
{
    struct sgf_launch_request r = { f, { gridDimX, gridDimY, gridDimZ }, { blockDimX, blockDimY, blockDimZ }, sharedMemBytes,
                                    kernelParams, extra, false };
    return launch(__func__, &r, hStream);
}

CUresult cuLaunchCooperativeKernel(CUfunction f, unsigned int gridDimX, unsigned int gridDimY, unsigned int gridDimZ,
                                   unsigned int blockDimX, unsigned int blockDimY, unsigned int blockDimZ,
                                   unsigned int sharedMemBytes, CUstream hStream, void **kernelParams)
{
    struct sgf_launch_request r = { f, { gridDimX, gridDimY, gridDimZ }, { blockDimX, blockDimY, blockDimZ }, sharedMemBytes,
                                    kernelParams, NULL, true };
    return launch(__func__, &r, hStream);
}

/* Attributes that only tune are accepted; those that would change what the kernel means are refused by name. */
static CUresult read_attribute(const CUlaunchAttribute *a, struct sgf_launch_request *r)
{
    switch (a->id) {
    case CU_LAUNCH_ATTRIBUTE_COOPERATIVE:
        r->cooperative = a->value.cooperative != 0;
        return CUDA_SUCCESS;
    case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
        if (a->value.clusterDim.x <= 1 && a->value.clusterDim.y <= 1 && a->value.clusterDim.z <= 1)
            return CUDA_SUCCESS;
        sgf_once("cuLaunchKernelEx with a thread block cluster");
        return CUDA_ERROR_NOT_SUPPORTED;
    case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT:
    case CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT:
    case CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE:
        sgf_once("cuLaunchKernelEx with an event or device-updatable node");
        return CUDA_ERROR_NOT_SUPPORTED;
    default:
        return (unsigned)a->id < CU_LAUNCH_ATTRIBUTE_MAX ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction f, void **kernelParams, void **extra)
{
    SGF_ENTER();
    if (config == NULL || (config->numAttrs != 0 && config->attrs == NULL))
        return CUDA_ERROR_INVALID_VALUE;
    struct sgf_launch_request r = { f, { config->gridDimX, config->gridDimY, config->gridDimZ },
                                    { config->blockDimX, config->blockDimY, config->blockDimZ }, config->sharedMemBytes,
                                    kernelParams, extra, false };
    for (unsigned i = 0; i < config->numAttrs; i++) {
        CUresult result = read_attribute(&config->attrs[i], &r);
        if (result != CUDA_SUCCESS)
            return result;
    }
    return launch("cuLaunchKernel", &r, config->hStream);
}
