#include "check.h"

#include <signal.h>
#include <setjmp.h>
#include <sys/mman.h>

static CUresult poke(uint64_t address, unsigned bytes)
{
    unsigned value = 0xdead;
    void *params[] = { &address, &value, &bytes };
    CUcontext own;
    OK(cuCtxCreate_v2(&own, 0, 0));
    module = NULL;
    OK(cuLaunchKernel(function("poke"), 1, 1, 1, 32, 1, 1, 0, NULL, params, NULL));
    CUresult result = cuCtxSynchronize();
    CUdeviceptr p;
    IS(result, cuMemAlloc_v2(&p, 4)); /* sticky */
    IS(result, cuStreamSynchronize(NULL));
    OK(cuCtxDestroy_v2(own));
    module = NULL;
    OK(cuMemAlloc_v2(&p, 4)); /* the other context is well */
    OK(cuMemFree_v2(p));
    return result;
}

/* The first fault of a process, in its only context. */
static void fault(CUresult expected, uint64_t address)
{
    unsigned value = 0xdead, bytes = 4;
    void *params[] = { &address, &value, &bytes };
    CUdeviceptr p;
    OK(cuLaunchKernel(function("poke"), 1, 1, 1, 32, 1, 1, 0, NULL, params, NULL));
    IS(expected, cuCtxSynchronize());
    IS(expected, cuMemAlloc_v2(&p, 4)); /* sticky */
    IS(expected, cuStreamSynchronize(NULL));
}

CASE(null_is_reported, "NULL is an illegal address") { fault(CUDA_ERROR_ILLEGAL_ADDRESS, 0); }
CASE(misalignment_is_reported, "an address that is no multiple of the size is its own error")
{
    CUdeviceptr p;
    OK(cuMemAlloc_v2(&p, 4096));
    fault(CUDA_ERROR_MISALIGNED_ADDRESS, p + 2);
}

CASE(freed_memory_is_reported, "what was freed is an illegal address")
{
    CUdeviceptr p;
    OK(cuMemAlloc_v2(&p, 32u << 20));
    OK(cuMemFree_v2(p));
    fault(CUDA_ERROR_ILLEGAL_ADDRESS, p + (16u << 20)); /* the module's variables may lie at its start */
}

CASE(heap_of_the_process_is_reported, "memory of malloc is an illegal address, and stays as it is")
{
    unsigned *heap = calloc(1024, 4);
    fault(CUDA_ERROR_ILLEGAL_ADDRESS, (uintptr_t)heap & ~15ull);
    for (int i = 0; i < 1024; i++)
        CHECK(heap[i] == 0);
    free(heap);
}

CASE(code_of_the_driver_is_reported, "the library's own code is an illegal address")
{
    fault(CUDA_ERROR_ILLEGAL_ADDRESS, (uintptr_t)&cuInit & ~15ull);
}

CASE(the_end_of_the_address_space_is_reported, "the last bytes that there could be are an illegal address")
{
    fault(CUDA_ERROR_ILLEGAL_ADDRESS, 0xfffffffffffffff0ull);
}

CASE(foreign_addresses_are_reported, "NULL, freed, out of bounds, host heap, stack and code are illegal addresses")
{
    CUdeviceptr p, freed;
    unsigned *heap = calloc(1024, 4), on_stack = 0;
    OK(cuMemAlloc_v2(&p, 4096));
    OK(cuMemAlloc_v2(&freed, 32u << 20));
    OK(cuMemFree_v2(freed));
    freed += 16u << 20; /* the module's variables will lie at its start */
    IS(CUDA_SUCCESS, poke(p, 4));
    IS(CUDA_ERROR_ILLEGAL_ADDRESS, poke(0, 4));
    IS(CUDA_ERROR_ILLEGAL_ADDRESS, poke(freed, 4));
    IS(CUDA_ERROR_ILLEGAL_ADDRESS, poke(p + (1ull << 30), 4));
    IS(CUDA_ERROR_ILLEGAL_ADDRESS, poke((uintptr_t)heap, 4));
    IS(CUDA_ERROR_ILLEGAL_ADDRESS, poke((uintptr_t)&on_stack, 4));
    IS(CUDA_ERROR_ILLEGAL_ADDRESS, poke((uintptr_t)&cuInit & ~15ull, 4));
    IS(CUDA_ERROR_ILLEGAL_ADDRESS, poke(0xfffffffffffffff0ull, 4));
    IS(CUDA_ERROR_MISALIGNED_ADDRESS, poke(p + 2, 4));
    CHECK(heap[0] == 0 && on_stack == 0);
    free(heap);
}

CASE(many_faults_leave_no_trace, "a thousand faults, and the device works as at first")
{
    CUdeviceptr p;
    unsigned got;
    OK(cuMemAlloc_v2(&p, 4096));
    for (int i = 0; i < 1000; i++)
        IS(CUDA_ERROR_ILLEGAL_ADDRESS, poke(p + (uint64_t)(i % 7 + 1) * 1000000 / 4 * 4, 4));
    IS(CUDA_SUCCESS, poke(p, 4));
    OK(cuMemcpyDtoH_v2(&got, p, 4));
    CHECK(got == 0xdead);
}

CASE(unchecked_accesses_are_caught_too, "generated code that faults without a check does not end the process")
{
    uint64_t address = 64;
    void *params[] = { &address };
    OK(cuLaunchKernel(function("wild"), 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
    IS(CUDA_ERROR_ILLEGAL_ADDRESS, cuCtxSynchronize());
}

CASE(page_locked_memory_is_not_illegal, "kernels reach cuMemHostAlloc memory until it is freed")
{
    unsigned *pinned;
    OK(cuMemHostAlloc((void **)&pinned, 4096, 0));
    IS(CUDA_SUCCESS, poke((uintptr_t)pinned + 8, 4));
    CHECK(pinned[2] == 0xdead);
    OK(cuMemFreeHost(pinned));
    IS(CUDA_ERROR_ILLEGAL_ADDRESS, poke((uintptr_t)pinned, 4));
}

CASE(traps_have_their_codes, "trap, assert and unsupported operations end the kernel with their own errors")
{
    CUresult codes[] = { CUDA_ERROR_LAUNCH_FAILED, CUDA_ERROR_ASSERT, CUDA_ERROR_NOT_SUPPORTED };
    for (int i = 0; i < 3; i++) {
        CUcontext own;
        unsigned code = codes[i];
        void *params[] = { &code };
        OK(cuCtxCreate_v2(&own, 0, 0));
        module = NULL;
        OK(cuLaunchKernel(function("trap"), 1000, 1, 1, 32, 1, 1, 0, NULL, params, NULL));
        IS(codes[i], cuCtxSynchronize());
        OK(cuCtxDestroy_v2(own));
    }
}

CASE(work_after_a_fault_is_not_done, "after a fault, later work of the context is skipped and its streams end")
{
    CUdeviceptr p;
    CUstream s;
    CUevent e;
    uint64_t bad = 16;
    unsigned value = 1, bytes = 4;
    void *params[] = { &bad, &value, &bytes };
    OK(cuMemAlloc_v2(&p, 4));
    OK(cuStreamCreate(&s, 0));
    OK(cuEventCreate(&e, 0));
    OK(cuLaunchKernel(function("poke"), 1, 1, 1, 32, 1, 1, 0, s, params, NULL));
    IS(CUDA_ERROR_ILLEGAL_ADDRESS, cuCtxSynchronize());
    IS(CUDA_ERROR_ILLEGAL_ADDRESS, cuMemsetD32Async(p, 1, 1, s));
    IS(CUDA_ERROR_ILLEGAL_ADDRESS, cuEventRecord(e, s));
    IS(CUDA_ERROR_ILLEGAL_ADDRESS, cuEventQuery(e));
    OK(cuStreamDestroy_v2(s));
    OK(cuEventDestroy_v2(e));
    OK(cuCtxDestroy_v2(context));
    OK(cuCtxCreate_v2(&context, 0, 0));
    OK(cuMemAlloc_v2(&p, 4));
}

CASE(shared_memory_has_bounds, "a generic access beyond the block's shared memory is an illegal address")
{
    CUdeviceptr p;
    int beyond = 1;
    OK(cuMemAlloc_v2(&p, 4));
    void *params[] = { &p, &beyond };
    OK(cuLaunchKernel(function("shared_sum"), 1, 1, 1, 32, 1, 1, 0, NULL, params, NULL));
    IS(CUDA_ERROR_ILLEGAL_ADDRESS, cuCtxSynchronize());
}

static sigjmp_buf back;
static volatile sig_atomic_t theirs;
static void their_handler(int number)
{
    theirs = number;
    siglongjmp(back, 1);
}

static volatile int *volatile bad_address = (volatile int *)16;
static void own_fault(void)
{
    theirs = 0;
    if (sigsetjmp(back, 1) == 0)
        *bad_address = 1;
    CHECK(theirs == SIGSEGV);
}

CASE(cold_the_application_keeps_its_handler, "faults that are not the device's reach the handler of the application")
{
    signal(SIGSEGV, their_handler);
    OK(cuInit(0));
    OK(cuCtxCreate_v2(&context, 0, 0));
    IS(CUDA_ERROR_ILLEGAL_ADDRESS, poke(0, 4));
    own_fault();
    IS(CUDA_ERROR_ILLEGAL_ADDRESS, poke(0, 4));
}

CASE(a_handler_installed_later_is_chained, "a handler that the application installs after us is not lost, and neither are we")
{
    IS(CUDA_ERROR_ILLEGAL_ADDRESS, poke(0, 4));
    signal(SIGSEGV, their_handler);
    CUdeviceptr p; /* a dead page: found by the signal, not by a check */
    OK(cuMemAlloc_v2(&p, 32u << 20));
    OK(cuMemFree_v2(p));
    IS(CUDA_ERROR_ILLEGAL_ADDRESS, poke(p + (16u << 20), 4));
    own_fault();
}
