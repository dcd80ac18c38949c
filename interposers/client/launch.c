/* Launches: the hot path.  Everything that CUDA reports from the call is checked here; then one message. */
#include "../wire.h"
#include "client.h"

/* The first launch of a function in a block shape waits: that is when a driver prepares its code, and may refuse it. */
static uint64_t shape_of(const uint32_t block[3]) { return (uint64_t)block[0] << 32 | block[1] << 16 | block[2]; }

static int accepted_before(struct sg_function *f, uint64_t shape)
{
    for (int i = 0; i < SG_ACCEPTED_SHAPES; i++)
        if (SG_LIKELY(atomic_load_explicit(&f->accepted[i], memory_order_relaxed) == shape))
            return 1;
    return 0;
}

static void accept_shape(struct sg_function *f, uint64_t shape)
{
    for (int i = SG_ACCEPTED_SHAPES - 1; i > 0; i--)
        atomic_store_explicit(&f->accepted[i], atomic_load_explicit(&f->accepted[i - 1], memory_order_relaxed), memory_order_relaxed);
    atomic_store_explicit(&f->accepted[0], shape, memory_order_relaxed);
}

static CUresult launch(const char *call, struct sg_wire_launch *head, struct sg_function *f, CUstream stream, void **params, void **extra,
                       const CUlaunchAttribute *attributes, uint32_t attribute_count)
{
    struct sg_packed packed;
    CUresult error = sg_stream_wire(stream, &head->stream);
    if (SG_UNLIKELY(error != CUDA_SUCCESS || (error = sg_function_check(f, head->grid, head->block, head->shared)) != CUDA_SUCCESS ||
                    (error = sg_params_find(f, params, extra, &packed)) != CUDA_SUCCESS))
        return error;
    uint32_t param_room = (packed.bytes + 7) & ~7u, attribute_bytes = attribute_count * (uint32_t)sizeof *attributes;
    head->function = f->handle;
    head->param_bytes = packed.bytes;
    head->attribute_bytes = attribute_bytes;
    uint8_t *wire = sg_begin(SG_OP_launch, (uint32_t)sizeof *head + (attribute_bytes ? param_room : packed.bytes) + attribute_bytes);
    if (SG_UNLIKELY(!wire))
        return sg_lost(call);
    memcpy(wire, head, sizeof *head);
    sg_params_copy(f, &packed, wire + sizeof *head);
    if (attribute_bytes)
        memcpy(wire + sizeof *head + param_room, attributes, attribute_bytes);
    /* While a stream captures, or with attributes that the driver may refuse, a launch can fail from the call; else
     * nothing is left that could. */
    int judged = attribute_count > 1 || (attribute_count == 1 && attributes[0].id != CU_LAUNCH_ATTRIBUTE_COOPERATIVE);
    uint64_t shape = shape_of(head->block);
    int accepted = accepted_before(f, shape);
    if (SG_UNLIKELY(atomic_load_explicit(&sg_client.captures, memory_order_relaxed) != 0 || f->opaque || judged || !accepted)) {
        error = sg_call(call, NULL, 0);
        if (!error && !accepted && !judged)
            accept_shape(f, shape);
        return error;
    }
    sg_post();
    return CUDA_SUCCESS;
}

CUresult sg_hand_cuLaunchKernel(CUfunction f, unsigned int gridDimX, unsigned int gridDimY, unsigned int gridDimZ, unsigned int blockDimX,
                                unsigned int blockDimY, unsigned int blockDimZ, unsigned int sharedMemBytes, CUstream hStream,
                                void **kernelParams, void **extra)
{
    CUresult error = sg_enter();
    if (SG_UNLIKELY(error != CUDA_SUCCESS))
        return error;
    struct sg_function *function = sg_function_find(f);
    if (SG_UNLIKELY(!function))
        return CUDA_ERROR_INVALID_HANDLE;
    struct sg_wire_launch head = {.grid = {gridDimX, gridDimY, gridDimZ}, .block = {blockDimX, blockDimY, blockDimZ}, .shared = sharedMemBytes};
    return launch("cuLaunchKernel", &head, function, hStream, kernelParams, extra, NULL, 0);
}

CUresult sg_hand_cuLaunchCooperativeKernel(CUfunction f, unsigned int gridDimX, unsigned int gridDimY, unsigned int gridDimZ, unsigned int blockDimX,
                                           unsigned int blockDimY, unsigned int blockDimZ, unsigned int sharedMemBytes, CUstream hStream,
                                           void **kernelParams)
{
    CUlaunchAttribute attribute = {.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE};
    attribute.value.cooperative = 1;
    CUresult error = sg_enter();
    if (error)
        return error;
    struct sg_function *function = sg_function_find(f);
    if (!function)
        return CUDA_ERROR_INVALID_HANDLE;
    struct sg_wire_launch head = {.grid = {gridDimX, gridDimY, gridDimZ}, .block = {blockDimX, blockDimY, blockDimZ}, .shared = sharedMemBytes};
    int per_sm;
    error = sg_hand_cuOccupancyMaxActiveBlocksPerMultiprocessor(&per_sm, f, (int)(blockDimX * blockDimY * blockDimZ), sharedMemBytes);
    int count = sg_device(sg_client.ordinal)->attributes[CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT];
    if (!error && (uint64_t)gridDimX * gridDimY * gridDimZ > (uint64_t)per_sm * (uint64_t)count)
        return CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
    return launch("cuLaunchCooperativeKernel", &head, function, hStream, kernelParams, NULL, &attribute, 1);
}

/* Attributes whose value is plain numbers; those with events or nodes are refused by name. */
static int plain_attribute(CUlaunchAttributeID id)
{
    switch ((int)id) {
    case CU_LAUNCH_ATTRIBUTE_IGNORE:
    case CU_LAUNCH_ATTRIBUTE_COOPERATIVE:
    case CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY:
    case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
    case CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
    case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION:
    case CU_LAUNCH_ATTRIBUTE_PRIORITY:
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP:
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN:
        return 1;
    default:
        return 0;
    }
}

CUresult sg_hand_cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction f, void **kernelParams, void **extra)
{
    CUresult error = sg_enter();
    if (error)
        return error;
    struct sg_function *function = sg_function_find(f);
    if (!config || !function)
        return config ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
    if (config->numAttrs > 32 || (config->numAttrs && !config->attrs))
        return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < config->numAttrs; i++)
        if (!plain_attribute(config->attrs[i].id))
            return sg_declined("cuLaunchKernelEx", "a launch attribute with an event, a node or a policy window is not supported",
                               "record an event after the launch instead");
    struct sg_wire_launch head = {.grid = {config->gridDimX, config->gridDimY, config->gridDimZ},
                                  .block = {config->blockDimX, config->blockDimY, config->blockDimZ}, .shared = config->sharedMemBytes};
    return launch("cuLaunchKernelEx", &head, function, config->hStream, kernelParams, extra, config->attrs, config->numAttrs);
}

/* ---- occupancy, from the device's and the function's attributes ------------------------------------------------- */
static int blocks_per_multiprocessor(const struct sg_function *f, int threads, size_t dynamic)
{
    const int32_t *device = sg_device(sg_client.ordinal)->attributes;
    int warp = device[CU_DEVICE_ATTRIBUTE_WARP_SIZE] > 0 ? device[CU_DEVICE_ATTRIBUTE_WARP_SIZE] : 32;
    int rounded = (threads + warp - 1) / warp * warp;
    int most = device[CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR] / rounded;
    int limit = device[CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR];
    if (limit > 0 && limit < most)
        most = limit;
    int registers = f->attributes[CU_FUNC_ATTRIBUTE_NUM_REGS], file = device[CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR];
    if (registers > 0 && file > 0) {
        int per_warp = (registers * warp + 255) / 256 * 256; /* allocated in units of 256 */
        int fit = file / (per_warp * (rounded / warp));
        most = fit < most ? fit : most;
    }
    uint64_t shared = (uint64_t)f->attributes[CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES] + dynamic +
                      (uint64_t)device[CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK];
    uint64_t room = (uint64_t)device[CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR];
    if (shared > 0 && room / shared < (uint64_t)most)
        most = (int)(room / shared);
    return most;
}

CUresult sg_hand_cuOccupancyMaxActiveBlocksPerMultiprocessor(int *numBlocks, CUfunction func, int blockSize, size_t dynamicSMemSize)
{
    const struct sg_function *f = sg_function_find(func);
    CUresult error = sg_enter();
    if (error)
        return error;
    if (!f || !numBlocks || blockSize <= 0)
        return f ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE;
    int allowed = blockSize <= f->attributes[CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK] &&
                  dynamicSMemSize <= (size_t)f->attributes[CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES];
    *numBlocks = allowed ? blocks_per_multiprocessor(f, blockSize, dynamicSMemSize) : 0;
    return CUDA_SUCCESS;
}

CUresult sg_hand_cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *numBlocks, CUfunction func, int blockSize, size_t dynamicSMemSize,
                                                                      unsigned int flags)
{
    if (flags & ~(unsigned)CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE)
        return CUDA_ERROR_INVALID_VALUE;
    return sg_hand_cuOccupancyMaxActiveBlocksPerMultiprocessor(numBlocks, func, blockSize, dynamicSMemSize);
}

CUresult sg_hand_cuOccupancyMaxPotentialBlockSize(int *minGridSize, int *blockSize, CUfunction func,
                                                  CUoccupancyB2DSize blockSizeToDynamicSMemSize, size_t dynamicSMemSize, int blockSizeLimit)
{
    const struct sg_function *f = sg_function_find(func);
    CUresult error = sg_enter();
    if (error)
        return error;
    if (!f || !minGridSize || !blockSize)
        return f ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE;
    const int32_t *device = sg_device(sg_client.ordinal)->attributes;
    int most = f->attributes[CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK], best = 0, best_blocks = 0;
    if (blockSizeLimit > 0 && blockSizeLimit < most)
        most = blockSizeLimit;
    for (int size = most; size > 0; size = size % 32 ? size - size % 32 : size - 32) {
        size_t dynamic = blockSizeToDynamicSMemSize ? blockSizeToDynamicSMemSize(size) : dynamicSMemSize;
        int blocks = 0;
        (void)sg_hand_cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, func, size, dynamic);
        if (blocks * size > best_blocks * best) {
            best = size;
            best_blocks = blocks;
        }
    }
    *blockSize = best;
    *minGridSize = best_blocks * device[CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT];
    return CUDA_SUCCESS;
}

CUresult sg_hand_cuOccupancyMaxPotentialBlockSizeWithFlags(int *minGridSize, int *blockSize, CUfunction func,
                                                           CUoccupancyB2DSize blockSizeToDynamicSMemSize, size_t dynamicSMemSize,
                                                           int blockSizeLimit, unsigned int flags)
{
    if (flags & ~(unsigned)CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE)
        return CUDA_ERROR_INVALID_VALUE;
    return sg_hand_cuOccupancyMaxPotentialBlockSize(minGridSize, blockSize, func, blockSizeToDynamicSMemSize, dynamicSMemSize, blockSizeLimit);
}

CUresult sg_hand_cuOccupancyAvailableDynamicSMemPerBlock(size_t *dynamicSmemSize, CUfunction func, int numBlocks, int blockSize)
{
    const struct sg_function *f = sg_function_find(func);
    CUresult error = sg_enter();
    if (error)
        return error;
    if (!f || !dynamicSmemSize || numBlocks <= 0 || blockSize <= 0)
        return f ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE;
    int fit;
    error = sg_hand_cuOccupancyMaxActiveBlocksPerMultiprocessor(&fit, func, blockSize, 0);
    if (error || fit < numBlocks)
        return error ? error : CUDA_ERROR_INVALID_VALUE;
    const int32_t *device = sg_device(sg_client.ordinal)->attributes;
    int64_t room = device[CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR] / numBlocks -
                   device[CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK] - f->attributes[CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES];
    int64_t most = f->attributes[CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES];
    room = room < most ? room : most;
    *dynamicSmemSize = room > 0 ? (size_t)room : 0;
    return CUDA_SUCCESS;
}
