/* Functions and kernels: attributes, parameters, occupancy. */
#include "device.h"

#include <string.h>

CUresult sgf_function_in(struct CUctx_st *context, CUfunction handle, struct CUfunc_st **out)
{
    if (SGF_UNLIKELY(!sgf_valid(SGF_FUNCTION, handle)))
        return CUDA_ERROR_INVALID_HANDLE;
    if (SGF_LIKELY(handle->module != NULL)) {
        *out = handle;
        return handle->module->context == context ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
    }
    CUmodule module;
    CUresult result = sgf_library_module(handle->library, context, &module);
    if (result == CUDA_SUCCESS)
        result = sgf_module_function(module, handle->name, out);
    if (result == CUDA_SUCCESS)
        (*out)->dynamic_limit = handle->dynamic_limit; /* attributes set on the kernel hold for its functions */
    return result;
}

static CUresult get_attribute(int *pi, CUfunction_attribute which, const struct CUfunc_st *f)
{
    const struct sgf_kernel *k = f->kernel;
    uint32_t most = k != NULL ? k->maxntid[0] * k->maxntid[1] * k->maxntid[2] : 0;
    if (pi == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    switch (which) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *pi = most != 0 ? (int)most : SGF_MAX_THREADS; break;
    case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES: *pi = k != NULL ? (int)k->shared : 0; break;
    case CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES: *pi = 0; break;
    case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES: *pi = k != NULL ? (int)k->local : 0; break;
    case CU_FUNC_ATTRIBUTE_NUM_REGS: *pi = k != NULL && k->registers != 0 ? (int)k->registers : 32; break;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION: *pi = f->image->target; break;
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION: *pi = 120; break;
    case CU_FUNC_ATTRIBUTE_CACHE_MODE_CA: *pi = 0; break;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: *pi = f->dynamic_limit; break;
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT: *pi = f->carveout; break;
    default:
        if ((unsigned)which >= CU_FUNC_ATTRIBUTE_MAX)
            return CUDA_ERROR_INVALID_VALUE;
        *pi = 0; /* clusters and node updates: not there */
    }
    return CUDA_SUCCESS;
}

static CUresult set_attribute(struct CUfunc_st *f, CUfunction_attribute which, int value)
{
    int room = SGF_SHARED_OPTIN - (f->kernel != NULL ? (int)f->kernel->shared : 0);
    switch (which) {
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
        if (value < 0 || value > room)
            return CUDA_ERROR_INVALID_VALUE;
        f->dynamic_limit = value;
        return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
        if (value < -1 || value > 100)
            return CUDA_ERROR_INVALID_VALUE;
        f->carveout = value;
        return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET:
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH:
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT:
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH:
    case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED:
        sgf_once("cuFuncSetAttribute for clusters");
        return CUDA_ERROR_NOT_SUPPORTED;
    case CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult cuFuncGetAttribute(int *pi, CUfunction_attribute attrib, CUfunction hfunc)
{
    SGF_ENTER();
    return sgf_valid(SGF_FUNCTION, hfunc) ? get_attribute(pi, attrib, hfunc) : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuFuncSetAttribute(CUfunction hfunc, CUfunction_attribute attrib, int value)
{
    SGF_ENTER();
    return sgf_valid(SGF_FUNCTION, hfunc) ? set_attribute(hfunc, attrib, value) : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuFuncSetCacheConfig(CUfunction hfunc, CUfunc_cache config)
{
    SGF_ENTER();
    if (!sgf_valid(SGF_FUNCTION, hfunc))
        return CUDA_ERROR_INVALID_HANDLE;
    hfunc->cache_config = config;
    return CUDA_SUCCESS;
}

CUresult cuFuncSetSharedMemConfig(CUfunction hfunc, CUsharedconfig config)
{
    SGF_ENTER();
    (void)config; /* a hint without effect, as on every current card */
    return sgf_valid(SGF_FUNCTION, hfunc) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuFuncGetModule(CUmodule *hmod, CUfunction hfunc)
{
    SGF_ENTER();
    if (hmod == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (!sgf_valid(SGF_FUNCTION, hfunc) || hfunc->module == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    *hmod = hfunc->module;
    return CUDA_SUCCESS;
}

static CUresult param_info(const struct CUfunc_st *f, size_t index, size_t *offset, size_t *size)
{
    if (f->kernel == NULL)
        return CUDA_ERROR_NO_BINARY_FOR_GPU;
    if (offset == NULL || index >= f->kernel->param_count)
        return CUDA_ERROR_INVALID_VALUE;
    *offset = f->kernel->params[index].offset;
    if (size != NULL)
        *size = f->kernel->params[index].size;
    return CUDA_SUCCESS;
}

CUresult cuFuncGetParamInfo(CUfunction func, size_t paramIndex, size_t *paramOffset, size_t *paramSize)
{
    SGF_ENTER();
    return sgf_valid(SGF_FUNCTION, func) ? param_info(func, paramIndex, paramOffset, paramSize) : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuKernelGetParamInfo(CUkernel kernel, size_t paramIndex, size_t *paramOffset, size_t *paramSize)
{
    return cuFuncGetParamInfo((CUfunction)kernel, paramIndex, paramOffset, paramSize);
}

CUresult cuFuncGetParamCount(CUfunction func, size_t *paramCount)
{
    SGF_ENTER();
    if (!sgf_valid(SGF_FUNCTION, func))
        return CUDA_ERROR_INVALID_HANDLE;
    if (paramCount == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (func->kernel == NULL)
        return CUDA_ERROR_NO_BINARY_FOR_GPU;
    *paramCount = func->kernel->param_count;
    return CUDA_SUCCESS;
}

CUresult cuKernelGetParamCount(CUkernel kernel, size_t *paramCount)
{
    return cuFuncGetParamCount((CUfunction)kernel, paramCount);
}

CUresult cuFuncGetName(const char **name, CUfunction hfunc)
{
    SGF_ENTER();
    if (!sgf_valid(SGF_FUNCTION, hfunc))
        return CUDA_ERROR_INVALID_HANDLE;
    if (name == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *name = hfunc->name;
    return CUDA_SUCCESS;
}

CUresult cuKernelGetName(const char **name, CUkernel hfunc)
{
    return cuFuncGetName(name, (CUfunction)hfunc);
}

CUresult cuFuncIsLoaded(CUfunctionLoadingState *state, CUfunction function)
{
    SGF_ENTER();
    if (!sgf_valid(SGF_FUNCTION, function))
        return CUDA_ERROR_INVALID_HANDLE;
    if (state == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *state = CU_FUNCTION_LOADING_STATE_LOADED;
    return CUDA_SUCCESS;
}

CUresult cuFuncLoad(CUfunction function)
{
    SGF_ENTER();
    return sgf_valid(SGF_FUNCTION, function) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuKernelGetFunction(CUfunction *pFunc, CUkernel kernel)
{
    SGF_ENTER_CONTEXT(context);
    struct CUfunc_st *f = (struct CUfunc_st *)kernel;
    if (pFunc == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (!sgf_valid(SGF_FUNCTION, f) || f->library == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    return sgf_function_in(context, f, pFunc);
}

CUresult cuKernelGetLibrary(CUlibrary *pLib, CUkernel kernel)
{
    SGF_ENTER();
    struct CUfunc_st *f = (struct CUfunc_st *)kernel;
    if (pLib == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (!sgf_valid(SGF_FUNCTION, f) || f->library == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    *pLib = f->library;
    return CUDA_SUCCESS;
}

CUresult cuKernelGetAttribute(int *pi, CUfunction_attribute attrib, CUkernel kernel, CUdevice dev)
{
    SGF_ENTER_DEVICE(device, dev);
    (void)device;
    return sgf_valid(SGF_FUNCTION, kernel) ? get_attribute(pi, attrib, (struct CUfunc_st *)kernel) : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuKernelSetAttribute(CUfunction_attribute attrib, int val, CUkernel kernel, CUdevice dev)
{
    SGF_ENTER_DEVICE(device, dev);
    (void)device;
    return sgf_valid(SGF_FUNCTION, kernel) ? set_attribute((struct CUfunc_st *)kernel, attrib, val) : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuKernelSetCacheConfig(CUkernel kernel, CUfunc_cache config, CUdevice dev)
{
    SGF_ENTER();
    (void)dev;
    return cuFuncSetCacheConfig((CUfunction)kernel, config);
}

/* ---- occupancy ------------------------------------------------------------------------------------------ */
int sgf_occupancy(const struct CUfunc_st *f, uint32_t threads, size_t dynamic_shared)
{
    uint32_t warps = (threads + SGF_WARP - 1) / SGF_WARP;
    uint32_t registers = f->kernel != NULL && f->kernel->registers != 0 ? f->kernel->registers : 32;
    size_t shared = (f->kernel != NULL ? f->kernel->shared : 0) + dynamic_shared + SGF_SHARED_RESERVED;
    int limit;
    uint64_t blocks = SGF_BLOCKS_PER_SM, by;
    get_attribute(&limit, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, f);
    if (threads == 0 || threads > (uint32_t)limit || dynamic_shared > (size_t)f->dynamic_limit || shared > SGF_SHARED_PER_SM)
        return 0; /* no launch of that kind would be taken */
    by = SGF_THREADS_PER_SM / (warps * SGF_WARP);
    blocks = by < blocks ? by : blocks;
    by = SGF_SHARED_PER_SM / shared;
    blocks = by < blocks ? by : blocks;
    by = SGF_REGISTERS / ((uint64_t)registers * warps * SGF_WARP);
    blocks = by < blocks ? by : blocks;
    return (int)blocks;
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *numBlocks, CUfunction func, int blockSize,
                                                              size_t dynamicSMemSize, unsigned int flags)
{
    SGF_ENTER();
    if (numBlocks == NULL || blockSize <= 0 || (flags & ~1u) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (!sgf_valid(SGF_FUNCTION, func))
        return CUDA_ERROR_INVALID_HANDLE;
    *numBlocks = sgf_occupancy(func, (uint32_t)blockSize, dynamicSMemSize);
    return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *numBlocks, CUfunction func, int blockSize, size_t dynamicSMemSize)
{
    return cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(numBlocks, func, blockSize, dynamicSMemSize, 0);
}

CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(int *minGridSize, int *blockSize, CUfunction func,
                                                   CUoccupancyB2DSize blockSizeToDynamicSMemSize, size_t dynamicSMemSize,
                                                   int blockSizeLimit, unsigned int flags)
{
    SGF_ENTER();
    int limit, best = 0, best_threads = 0;
    if (minGridSize == NULL || blockSize == NULL || (flags & ~1u) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (!sgf_valid(SGF_FUNCTION, func))
        return CUDA_ERROR_INVALID_HANDLE;
    get_attribute(&limit, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, func);
    if (blockSizeLimit > 0 && blockSizeLimit < limit)
        limit = blockSizeLimit;
    int start = limit >= (int)SGF_WARP ? limit / (int)SGF_WARP * (int)SGF_WARP : limit;
    for (int threads = start; threads > 0; threads -= (int)SGF_WARP) {
        size_t shared = blockSizeToDynamicSMemSize != NULL ? blockSizeToDynamicSMemSize(threads) : dynamicSMemSize;
        int blocks = sgf_occupancy(func, (uint32_t)threads, shared);
        if (blocks * threads > best * best_threads) {
            best = blocks;
            best_threads = threads;
        }
    }
    *blockSize = best_threads;
    *minGridSize = best * SGF_MULTIPROCESSORS;
    return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxPotentialBlockSize(int *minGridSize, int *blockSize, CUfunction func,
                                          CUoccupancyB2DSize blockSizeToDynamicSMemSize, size_t dynamicSMemSize,
                                          int blockSizeLimit)
{
    return cuOccupancyMaxPotentialBlockSizeWithFlags(minGridSize, blockSize, func, blockSizeToDynamicSMemSize, dynamicSMemSize,
                                                     blockSizeLimit, 0);
}

CUresult cuOccupancyAvailableDynamicSMemPerBlock(size_t *dynamicSmemSize, CUfunction func, int numBlocks, int blockSize)
{
    SGF_ENTER();
    if (dynamicSmemSize == NULL || numBlocks <= 0 || blockSize <= 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (!sgf_valid(SGF_FUNCTION, func))
        return CUDA_ERROR_INVALID_HANDLE;
    int shared = func->kernel != NULL ? (int)func->kernel->shared : 0;
    if (sgf_occupancy(func, (uint32_t)blockSize, 0) < numBlocks)
        return CUDA_ERROR_INVALID_VALUE;
    int room = SGF_SHARED_PER_SM / numBlocks - SGF_SHARED_RESERVED - shared;
    room = room > func->dynamic_limit ? func->dynamic_limit : room; /* cuFuncSetAttribute raises it */
    *dynamicSmemSize = room > 0 ? (size_t)room : 0;
    return CUDA_SUCCESS;
}
