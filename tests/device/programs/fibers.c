/* Kernels in fiber mode: KERNEL_IMAGE is fibers.image. */
#include "check.h"

static CUdeviceptr array(size_t bytes)
{
    CUdeviceptr p;
    OK(cuMemAlloc_v2(&p, bytes));
    OK(cuMemsetD8_v2(p, 0, bytes));
    return p;
}

CASE(barriers_separate_rounds, "after a barrier every warp sees what all warps wrote before it")
{
    enum { THREADS = 1024, BLOCKS = 50 };
    static unsigned got[THREADS * BLOCKS];
    CUdeviceptr p = array(sizeof got);
    unsigned rounds = 20;
    void *params[] = { &p, &rounds };
    CUfunction f = function("reverse");
    for (int i = 0; i < 5; i++)
        OK(cuLaunchKernel(f, BLOCKS, 1, 1, THREADS, 1, 1, 0, NULL, params, NULL));
    OK(cuMemcpyDtoH_v2(got, p, sizeof got));
    for (unsigned i = 0; i < THREADS * BLOCKS; i++)
        CHECK(got[i] == THREADS - 1 - i % THREADS + rounds - 1);
}

CASE(barriers_reduce, "bar.red counts, ands and ors the predicates of all threads")
{
    unsigned got[12];
    CUdeviceptr p = array(sizeof got);
    void *params[] = { &p };
    OK(cuLaunchKernel(function("votes"), 1, 1, 1, 128, 1, 1, 0, NULL, params, NULL));
    OK(cuMemcpyDtoH_v2(got, p, sizeof got));
    for (int warp = 0; warp < 4; warp++)
        CHECK(got[3 * warp] == 8 && got[3 * warp + 1] == 0 && got[3 * warp + 2] == 1);
}

CASE(exited_warps_do_not_hold_up_others, "a barrier does not wait for threads that have exited")
{
    unsigned got[8];
    CUdeviceptr p = array(sizeof got);
    void *params[] = { &p };
    OK(cuLaunchKernel(function("leavers"), 1, 1, 1, 256, 1, 1, 0, NULL, params, NULL));
    OK(cuMemcpyDtoH_v2(got, p, sizeof got));
    for (int warp = 0; warp < 8; warp++)
        CHECK(got[warp] == (warp % 2 == 0));
}

CASE(arrive_does_not_wait, "bar.arrive counts for a barrier that only others wait at")
{
    unsigned got[2];
    CUdeviceptr p = array(sizeof got);
    void *params[] = { &p };
    OK(cuLaunchKernel(function("pipeline"), 1, 1, 1, 64, 1, 1, 0, NULL, params, NULL));
    OK(cuMemcpyDtoH_v2(got, p, sizeof got));
    CHECK(got[0] == 42 && got[1] == 42);
}

CASE(a_barrier_that_cannot_complete_is_an_error, "a deadlock at barriers ends the kernel instead of hanging")
{
    OK(cuLaunchKernel(function("stuck"), 1, 1, 1, 64, 1, 1, 0, NULL, NULL, NULL));
    IS(CUDA_ERROR_LAUNCH_TIMEOUT, cuCtxSynchronize());
}

CASE(cooperative_blocks_run_together, "all blocks of a cooperative launch are in flight at once")
{
    enum { BLOCKS = 24 };
    unsigned got[BLOCKS];
    CUdeviceptr arrived = array(4), out = array(sizeof got);
    void *params[] = { &arrived, &out };
    OK(cuLaunchCooperativeKernel(function("grid_sync"), BLOCKS, 1, 1, 128, 1, 1, 0, NULL, params));
    OK(cuMemcpyDtoH_v2(got, out, sizeof got));
    for (int i = 0; i < BLOCKS; i++)
        CHECK(got[i] == BLOCKS);
}

CASE(a_faulty_warp_ends_the_kernel, "a fault in one warp abandons all others, and the device works on")
{
    CUdeviceptr p = array(4096 * 4);
    unsigned rounds = 3, got;
    void *params[] = { &p, &rounds };
    CUcontext other;
    for (int i = 0; i < 20; i++) {
        OK(cuCtxCreate_v2(&other, 0, 0));
        module = NULL;
        OK(cuLaunchKernel(function("half_faulty"), 8, 1, 1, 128, 1, 1, 0, NULL, params, NULL));
        IS(CUDA_ERROR_ILLEGAL_ADDRESS, cuCtxSynchronize());
        OK(cuCtxDestroy_v2(other));
        module = NULL;
    }
    OK(cuLaunchKernel(function("reverse"), 1, 1, 1, 1024, 1, 1, 0, NULL, params, NULL));
    OK(cuMemcpyDtoH_v2(&got, p, 4));
    CHECK(got == 1025);
}
