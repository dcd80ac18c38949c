#include "check.h"

static CUdeviceptr array(size_t bytes)
{
    CUdeviceptr p;
    OK(cuMemAlloc_v2(&p, bytes));
    OK(cuMemsetD8_v2(p, 0, bytes));
    return p;
}

static void launch(CUfunction f, unsigned grid, unsigned block, void **params)
{
    OK(cuLaunchKernel(f, grid, 1, 1, block, 1, 1, 0, NULL, params, NULL));
}

CASE(saxpy_agrees_with_a_loop, "a kernel over many blocks computes what the host computes; params and extra alike")
{
    enum { N = 100003 };
    static float x[N], y[N], got[N];
    CUdeviceptr dx = array(sizeof x), dy = array(sizeof y);
    struct { CUdeviceptr x, y; float a; int n; } packed = { dx, dy, 0.5f, N };
    size_t size = sizeof packed;
    void *params[] = { &packed.x, &packed.y, &packed.a, &packed.n };
    void *extra[] = { CU_LAUNCH_PARAM_BUFFER_POINTER, &packed, CU_LAUNCH_PARAM_BUFFER_SIZE, &size, CU_LAUNCH_PARAM_END };
    for (int i = 0; i < N; i++) {
        x[i] = (float)(i % 1000);
        y[i] = (float)(i % 77);
    }
    OK(cuMemcpyHtoD_v2(dx, x, sizeof x));
    OK(cuMemcpyHtoD_v2(dy, y, sizeof y));
    CUfunction f = function("saxpy");
    for (int round = 0; round < 20; round++) {
        OK(cuLaunchKernel(f, (N + 255) / 256, 1, 1, 256, 1, 1, 0, NULL, round % 2 ? params : NULL, round % 2 ? NULL : extra));
        for (int i = 0; i < N; i++)
            y[i] += 0.5f * x[i];
    }
    memset(&packed, 0xff, sizeof packed); /* parameters were taken by the calls */
    OK(cuMemcpyDtoH_v2(got, dy, sizeof got));
    CHECK(memcmp(got, y, sizeof y) == 0);
}

CASE(every_block_runs_once, "each block index of a three-dimensional grid runs exactly once, on all threads")
{
    enum { X = 37, Y = 11, Z = 7 };
    static unsigned got[X * Y * Z];
    CUdeviceptr p = array(sizeof got);
    void *params[] = { &p };
    CUfunction f = function("count_blocks");
    for (int round = 0; round < 50; round++)
        OK(cuLaunchKernel(f, X, Y, Z, 32, 1, 1, 0, NULL, params, NULL));
    OK(cuMemcpyDtoH_v2(got, p, sizeof got));
    for (int i = 0; i < X * Y * Z; i++)
        CHECK(got[i] == 50);
}

CASE(order_sensitive_kernels_run_in_index_order, "what depends on the order of blocks is the same every time")
{
    enum { N = 20000 };
    static unsigned got[N];
    CUdeviceptr at = array(4), list = array(sizeof got);
    void *params[] = { &at, &list };
    launch(function("append"), N, 256, params);
    OK(cuMemcpyDtoH_v2(got, list, sizeof got));
    for (unsigned i = 0; i < N; i++)
        CHECK(got[i] == i);
}

CASE(launch_limits_are_errors_of_the_call, "bad shapes, parameters and shared sizes are refused by the launch")
{
    CUdeviceptr p = array(64);
    void *params[] = { &p, &p }, *none[] = { NULL };
    size_t size = 4;
    void *extra[] = { CU_LAUNCH_PARAM_BUFFER_POINTER, &p, CU_LAUNCH_PARAM_BUFFER_SIZE, &size, CU_LAUNCH_PARAM_END };
    CUfunction f = function("count_blocks");
    IS(CUDA_ERROR_INVALID_VALUE, cuLaunchKernel(f, 0, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
    IS(CUDA_ERROR_INVALID_VALUE, cuLaunchKernel(f, 1, 65536, 1, 1, 1, 1, 0, NULL, params, NULL));
    IS(CUDA_ERROR_INVALID_VALUE, cuLaunchKernel(f, 1, 1, 1, 1025, 1, 1, 0, NULL, params, NULL));
    IS(CUDA_ERROR_INVALID_VALUE, cuLaunchKernel(f, 1, 1, 1, 32, 33, 1, 0, NULL, params, NULL));
    IS(CUDA_ERROR_INVALID_VALUE, cuLaunchKernel(f, 1, 1, 1, 1, 1, 65, 0, NULL, params, NULL));
    IS(CUDA_ERROR_INVALID_VALUE, cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    IS(CUDA_ERROR_INVALID_VALUE, cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, NULL, none, NULL));
    IS(CUDA_ERROR_INVALID_VALUE, cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, extra));
    IS(CUDA_ERROR_INVALID_VALUE, cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, NULL, params, extra));
    IS(CUDA_ERROR_INVALID_VALUE, cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 49153, NULL, params, NULL));
    IS(CUDA_ERROR_INVALID_HANDLE, cuLaunchKernel((CUfunction)&p, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
    IS(CUDA_ERROR_INVALID_HANDLE, cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, (CUstream)&p, params, NULL));
    IS(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, cuLaunchKernel(function("limited"), 1, 1, 1, 65, 1, 1, 0, NULL, NULL, NULL));
    IS(CUDA_ERROR_INVALID_VALUE, cuLaunchKernel(function("required"), 1, 1, 1, 64, 1, 1, 0, NULL, NULL, NULL));
    OK(cuLaunchKernel(function("required"), 1, 1, 1, 32, 2, 1, 0, NULL, NULL, NULL));
    IS(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, cuLaunchKernel(function("hungry"), 1, 1, 1, 1024, 1, 1, 0, NULL, NULL, NULL));
    OK(cuCtxSynchronize());
}

CASE(shared_memory_can_be_raised, "dynamic shared memory beyond 48 KiB needs the attribute, and has its limit")
{
    CUdeviceptr p = array(4);
    int zero = 0, value;
    unsigned got;
    void *params[] = { &p, &zero };
    CUfunction f = function("shared_sum");
    IS(CUDA_ERROR_INVALID_VALUE, cuLaunchKernel(f, 1, 1, 1, 32, 1, 1, 60000, NULL, params, NULL));
    IS(CUDA_ERROR_INVALID_VALUE, cuFuncSetAttribute(f, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 101376));
    OK(cuFuncSetAttribute(f, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 60000));
    OK(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, f));
    CHECK(value == 60000);
    OK(cuLaunchKernel(f, 1, 1, 1, 32, 1, 1, 60000, NULL, params, NULL));
    OK(cuMemcpyDtoH_v2(&got, p, 4));
    unsigned n = (60000 + 256) / 4;
    CHECK(got == n * (n - 1) / 2);
}

CASE(parameters_are_described, "parameter offsets and sizes, names and attributes of a function")
{
    size_t offset, size, count;
    const char *name;
    int value;
    CUmodule of;
    CUfunction f = function("saxpy");
    OK(cuFuncGetParamCount(f, &count));
    CHECK(count == 4);
    OK(cuFuncGetParamInfo(f, 3, &offset, &size));
    CHECK(offset == 20 && size == 4);
    IS(CUDA_ERROR_INVALID_VALUE, cuFuncGetParamInfo(f, 4, &offset, &size));
    OK(cuFuncGetName(&name, f));
    CHECK(strcmp(name, "saxpy") == 0);
    OK(cuFuncGetModule(&of, f));
    CHECK(of == module);
    OK(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, function("limited")));
    CHECK(value == 64);
    CUdeviceptr p = array(8);
    uint64_t big[4] = { 1, 20, 300, 4000 }, got;
    big[0] = p;
    void *params[] = { big };
    launch(function("block_of"), 1, 1, params);
    OK(cuMemcpyDtoH_v2(&got, p, 8));
    CHECK(got == 4320);
}

CASE(module_variables_are_initialised, "globals have their initial values, pointers among them are fixed up")
{
    CUdeviceptr p = array(24), table;
    size_t bytes;
    uint64_t got[3], value = 77;
    void *params[] = { &p };
    launch(function("use_global"), 1, 1, params);
    OK(cuMemcpyDtoH_v2(got, p, sizeof got));
    CHECK(got[0] == 0x0807060504030201ull && got[1] == 16 && got[2] == 0x8877665544332211ull);
    OK(cuModuleGetGlobal_v2(&table, &bytes, module, "table"));
    CHECK(bytes == 32);
    OK(cuMemcpyHtoD_v2(table, &value, 8));
    launch(function("use_global"), 1, 1, params);
    OK(cuMemcpyDtoH_v2(got, p, sizeof got));
    CHECK(got[0] == 77);
    IS(CUDA_ERROR_NOT_FOUND, cuModuleGetGlobal_v2(&table, &bytes, module, "nothing"));
    CUfunction f;
    IS(CUDA_ERROR_NOT_FOUND, cuModuleGetFunction(&f, module, "nothing"));
}

CASE(sleeping_blocks_share_a_thread, "blocks that sleep let others run: time on the device overlaps, as on many cores")
{
    enum { BLOCKS = 32 };
    CUdeviceptr p = array(BLOCKS * 8);
    uint64_t ns = 20000000, got[BLOCKS];
    void *params[] = { &p, &ns };
    CUevent a, b;
    float ms;
    OK(cuEventCreate(&a, 0));
    OK(cuEventCreate(&b, 0));
    CUfunction f = function("sleepy");
    OK(cuEventRecord(a, NULL));
    launch(f, BLOCKS, 32, params);
    OK(cuEventRecord(b, NULL));
    OK(cuMemcpyDtoH_v2(got, p, sizeof got));
    for (int i = 0; i < BLOCKS; i++)
        CHECK(got[i] >= ns);
    OK(cuEventElapsedTime(&ms, a, b));
    CHECK(ms >= 20 && ms < BLOCKS * 20); /* less than one after the other */
}

CASE(blocks_may_wait_for_later_blocks, "a spin wait for a block that has not started yet makes it start")
{
    CUdeviceptr p = array(16 * 4);
    unsigned got[16];
    void *params[] = { &p };
    launch(function("neighbours"), 16, 32, params);
    OK(cuMemcpyDtoH_v2(got, p, sizeof got));
    for (int i = 0; i < 16; i++)
        CHECK(got[i] == 1);
}

CASE(libraries_and_kernels, "a library's kernel launches directly and through its function; both name the same")
{
    CUlibrary library;
    CUkernel k;
    CUfunction f;
    CUmodule m;
    unsigned n, got;
    void *text = text_of(getenv("KERNEL_IMAGE"));
    OK(cuLibraryLoadData(&library, text, NULL, NULL, 0, NULL, NULL, 0));
    OK(cuLibraryGetKernel(&k, library, "count_blocks"));
    OK(cuLibraryGetKernelCount(&n, library));
    CHECK(n == 19);
    OK(cuKernelGetFunction(&f, k));
    OK(cuLibraryGetModule(&m, library));
    CUdeviceptr p = array(4);
    void *params[] = { &p };
    launch((CUfunction)k, 1, 32, params);
    launch(f, 1, 32, params);
    OK(cuMemcpyDtoH_v2(&got, p, 4));
    CHECK(got == 2);
    IS(CUDA_ERROR_INVALID_HANDLE, cuModuleUnload(m));
    OK(cuLibraryUnload(library));
    IS(CUDA_ERROR_INVALID_HANDLE, cuLaunchKernel((CUfunction)k, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
    IS(CUDA_ERROR_INVALID_HANDLE, cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
    free(text);
}

CASE(launch_attributes, "cooperative by attribute is cooperative; clusters are refused by name")
{
    CUdeviceptr p = array(4);
    void *params[] = { &p };
    CUlaunchAttribute a[2] = { { .id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE, .value.cooperative = 1 },
                               { .id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, .value.clusterDim = { 2, 1, 1 } } };
    CUlaunchConfig c = { .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 32, .blockDimY = 1, .blockDimZ = 1, .attrs = a,
                         .numAttrs = 1 };
    OK(cuLaunchKernelEx(&c, function("count_blocks"), params, NULL));
    c.numAttrs = 2;
    IS(CUDA_ERROR_NOT_SUPPORTED, cuLaunchKernelEx(&c, function("count_blocks"), params, NULL));
    IS(CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE,
       cuLaunchCooperativeKernel(function("count_blocks"), 100000, 1, 1, 1024, 1, 1, 0, NULL, params));
}

CASE(occupancy_follows_the_limits, "occupancy counts threads, shared memory and registers of a multiprocessor")
{
    int blocks, grid, block;
    size_t room;
    OK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, function("saxpy"), 1024, 0));
    CHECK(blocks == 1);
    OK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, function("saxpy"), 256, 0));
    CHECK(blocks == 6);
    OK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, function("saxpy"), 32, 40000));
    CHECK(blocks == 2);
    OK(cuOccupancyMaxPotentialBlockSize(&grid, &block, function("saxpy"), NULL, 0, 0));
    CHECK(block == 768 && grid == 2 * 16);
    OK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, function("saxpy"), 32, 50000));
    CHECK(blocks == 0); /* no launch may ask for as much, before it is allowed to */
    OK(cuOccupancyAvailableDynamicSMemPerBlock(&room, function("saxpy"), 1, 256));
    CHECK(room == 49152);
    OK(cuFuncSetAttribute(function("saxpy"), CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 101376));
    OK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, function("saxpy"), 32, 50000));
    CHECK(blocks == 2);
    OK(cuOccupancyAvailableDynamicSMemPerBlock(&room, function("saxpy"), 1, 256));
    CHECK(room == 101376);
    IS(CUDA_ERROR_INVALID_VALUE, cuOccupancyAvailableDynamicSMemPerBlock(&room, function("saxpy"), 7, 256));
    OK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, function("limited"), 65, 0));
    CHECK(blocks == 0);
}

CASE(printf_formats_its_arguments, "what a kernel prints appears on standard output")
{
    CUdeviceptr p = array(8);
    void *params[] = { &p };
    launch(function("say"), 1, 1, params);
    OK(cuCtxSynchronize());
}
