#include "check.h"

#include <stdatomic.h>

static CUdeviceptr word(void)
{
    CUdeviceptr p;
    OK(cuMemAlloc_v2(&p, 4096));
    OK(cuMemsetD8_v2(p, 0, 4096));
    OK(cuCtxSynchronize());
    return p;
}

static void release(CUdeviceptr flag, unsigned value) /* without a stream: from the host, as a mapped write */
{
    CUstream s;
    OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    OK(cuMemsetD32Async(flag, value, 1, s));
    OK(cuStreamSynchronize(s));
    OK(cuStreamDestroy_v2(s));
}

/* Holds `s` until release(flag, 1). */
static void hold(CUstream s, CUdeviceptr flag)
{
    unsigned value = 1;
    void *params[] = { &flag, &value };
    OK(cuLaunchKernel(function("spin_until"), 1, 1, 1, 32, 1, 1, 0, s, params, NULL));
}

CASE(work_of_a_stream_runs_in_order, "later work of a stream sees what earlier work did")
{
    CUstream s;
    unsigned got[64], *pinned;
    CUdeviceptr p = word();
    OK(cuStreamCreate(&s, 0));
    OK(cuMemHostAlloc((void **)&pinned, 4, 0));
    for (unsigned round = 0; round < 2000; round++) {
        OK(cuMemsetD32Async(p, round, 64, s));
        OK(cuMemcpyDtoDAsync_v2(p + 1024, p, 256, s));
        if (round % 100 != 0)
            continue;
        OK(cuMemcpyDtoHAsync_v2(pinned, p + 1024, 4, s));
        OK(cuMemcpyDtoHAsync_v2(got, p + 1024, sizeof got, s));
        OK(cuStreamSynchronize(s));
        CHECK(*pinned == round && got[63] == round);
    }
}

CASE(launches_return_before_the_work_is_done, "streams are asynchronous, and query tells")
{
    CUstream s;
    CUdeviceptr flag = word();
    OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    hold(s, flag);
    IS(CUDA_ERROR_NOT_READY, cuStreamQuery(s));
    release(flag, 1);
    OK(cuStreamSynchronize(s));
    OK(cuStreamQuery(s));
}

CASE(events_order_streams, "a stream waits for another's event, and only up to its record")
{
    CUstream a, b;
    CUevent e;
    CUdeviceptr flag = word(), p = word();
    unsigned got;
    OK(cuStreamCreate(&a, CU_STREAM_NON_BLOCKING));
    OK(cuStreamCreate(&b, CU_STREAM_NON_BLOCKING));
    OK(cuEventCreate(&e, 0));
    OK(cuEventQuery(e)); /* never recorded: complete */
    OK(cuStreamWaitEvent(b, e, 0));
    hold(a, flag);
    OK(cuMemsetD32Async(p, 7, 1, a));
    OK(cuEventRecord(e, a));
    IS(CUDA_ERROR_NOT_READY, cuEventQuery(e));
    OK(cuStreamWaitEvent(b, e, 0));
    OK(cuMemcpyDtoDAsync_v2(p + 4, p, 4, b));
    IS(CUDA_ERROR_NOT_READY, cuStreamQuery(b));
    release(flag, 1);
    OK(cuEventSynchronize(e));
    OK(cuStreamSynchronize(b));
    OK(cuMemcpyDtoH_v2(&got, p + 4, 4));
    CHECK(got == 7);
}

CASE(legacy_stream_waits_for_blocking_streams, "the NULL stream and blocking streams wait for each other")
{
    CUstream s, free_stream;
    CUdeviceptr flag = word(), p = word();
    unsigned got[2];
    OK(cuStreamCreate(&s, 0));
    OK(cuStreamCreate(&free_stream, CU_STREAM_NON_BLOCKING));
    hold(s, flag);
    OK(cuMemsetD32Async(p, 1, 1, s));
    OK(cuMemcpyDtoDAsync_v2(p + 4, p, 4, NULL)); /* after s */
    OK(cuMemsetD32Async(p, 2, 1, s));            /* after the NULL stream */
    IS(CUDA_ERROR_NOT_READY, cuStreamQuery(CU_STREAM_LEGACY));
    OK(cuMemsetD32Async(p + 8, 3, 1, free_stream));
    OK(cuStreamSynchronize(free_stream)); /* does not wait for the legacy stream */
    release(flag, 1);
    OK(cuStreamSynchronize(NULL));
    OK(cuCtxSynchronize());
    OK(cuMemcpyDtoH_v2(got, p, 8));
    CHECK(got[0] == 2 && got[1] == 1);
}

CASE(blocking_streams_wait_for_the_legacy_stream, "work in the NULL stream holds up later work of blocking streams")
{
    CUstream s;
    CUdeviceptr flag = word(), p = word();
    unsigned got;
    OK(cuStreamCreate(&s, 0));
    hold(NULL, flag);
    OK(cuMemsetD32Async(p, 1, 1, NULL));
    OK(cuMemcpyDtoDAsync_v2(p + 4, p, 4, s));
    IS(CUDA_ERROR_NOT_READY, cuStreamQuery(s));
    release(flag, 1);
    OK(cuStreamSynchronize(s));
    OK(cuMemcpyDtoH_v2(&got, p + 4, 4));
    CHECK(got == 1);
}

static void *own_stream(void *argument)
{
    CUdeviceptr p = *(CUdeviceptr *)argument;
    OK(cuCtxSetCurrent(context));
    OK(cuMemsetD32Async_ptsz(p, 9, 1, NULL));
    OK(cuStreamSynchronize(CU_STREAM_PER_THREAD));
    unsigned long long mine, legacy;
    OK(cuStreamGetId(CU_STREAM_PER_THREAD, &mine));
    OK(cuStreamGetId(CU_STREAM_LEGACY, &legacy));
    CHECK(mine != legacy);
    return (void *)(uintptr_t)mine;
}

CASE(each_thread_has_its_own_default_stream, "handle 2 and the _ptsz calls mean a stream per thread")
{
    CUdeviceptr p = word();
    pthread_t thread;
    void *theirs;
    unsigned long long mine, same;
    unsigned got;
    CHECK(pthread_create(&thread, NULL, own_stream, &p) == 0 && pthread_join(thread, &theirs) == 0);
    OK(cuStreamGetId(CU_STREAM_PER_THREAD, &mine));
    OK(cuStreamGetId_ptsz(NULL, &same));
    CHECK(mine == same && mine != (uintptr_t)theirs);
    OK(cuMemcpyDtoH_v2_ptds(&got, p, 4));
    CHECK(got == 9);
}

static atomic_int calls;
static CUresult inside;
static void count(void *user)
{
    CUdeviceptr p;
    inside = cuMemAlloc_v2(&p, 4);
    CHECK(atomic_fetch_add(&calls, 1) == (int)(uintptr_t)user);
}

static void called(CUstream s, CUresult status, void *user)
{
    (void)s;
    CHECK(status == *(CUresult *)user);
    atomic_fetch_add(&calls, 1);
}

CASE(host_functions_run_in_stream_order, "host functions and callbacks run in order, and may not call the device")
{
    CUstream s;
    CUresult expected = CUDA_SUCCESS;
    OK(cuStreamCreate(&s, 0));
    for (uintptr_t i = 0; i < 100; i++)
        OK(cuLaunchHostFunc(s, count, (void *)i));
    OK(cuStreamAddCallback(s, called, &expected, 0));
    OK(cuStreamSynchronize(s));
    CHECK(calls == 101);
    CHECK(inside == CUDA_ERROR_NOT_PERMITTED);
}

CASE(elapsed_time_needs_two_timed_records, "elapsed time is of the records; its documented errors")
{
    CUevent a, b, untimed;
    CUdeviceptr flag = word();
    float ms;
    OK(cuEventCreate(&a, 0));
    OK(cuEventCreate(&b, 0));
    OK(cuEventCreate(&untimed, CU_EVENT_DISABLE_TIMING));
    IS(CUDA_ERROR_INVALID_HANDLE, cuEventElapsedTime(&ms, a, b));
    OK(cuEventRecord(a, NULL));
    OK(cuEventRecord(untimed, NULL));
    IS(CUDA_ERROR_INVALID_HANDLE, cuEventElapsedTime(&ms, a, untimed));
    hold(NULL, flag);
    OK(cuEventRecord(b, NULL));
    IS(CUDA_ERROR_NOT_READY, cuEventElapsedTime_v2(&ms, a, b));
    release(flag, 1);
    OK(cuEventSynchronize(b));
    OK(cuEventElapsedTime_v2(&ms, a, b));
    CHECK(ms > 0);
    OK(cuEventElapsedTime(&ms, b, a));
    CHECK(ms < 0);
    OK(cuEventDestroy_v2(a));
    IS(CUDA_ERROR_INVALID_HANDLE, cuEventRecord(a, NULL));
}

CASE(destroyed_streams_finish_their_work, "destroying a stream or event with work pending is safe and loses nothing")
{
    CUdeviceptr flag = word(), p = word();
    unsigned got;
    CUstream s;
    CUevent e;
    OK(cuStreamCreate(&s, 0));
    OK(cuEventCreate(&e, 0));
    hold(s, flag);
    OK(cuMemsetD32Async(p, 5, 1, s));
    OK(cuEventRecord(e, s));
    OK(cuEventDestroy_v2(e));
    OK(cuStreamDestroy_v2(s));
    IS(CUDA_ERROR_INVALID_HANDLE, cuStreamSynchronize(s));
    release(flag, 1);
    OK(cuMemcpyDtoH_v2(&got, p, 4)); /* the NULL stream still waits for it */
    CHECK(got == 5);
    IS(CUDA_ERROR_INVALID_HANDLE, cuStreamQuery((CUstream)0x1234));
    IS(CUDA_ERROR_INVALID_HANDLE, cuStreamDestroy_v2(CU_STREAM_LEGACY));
}

CASE(streams_tell_their_properties, "flags, priority, context and device are those of creation")
{
    CUstream s;
    unsigned flags;
    int priority;
    CUcontext c;
    CUdevice d;
    OK(cuStreamCreateWithPriority(&s, CU_STREAM_NON_BLOCKING, -3));
    OK(cuStreamGetFlags(s, &flags));
    OK(cuStreamGetPriority(s, &priority));
    OK(cuStreamGetCtx(s, &c));
    OK(cuStreamGetDevice(s, &d));
    CHECK(flags == CU_STREAM_NON_BLOCKING && priority == -3 && c == context && d == 0);
    IS(CUDA_ERROR_INVALID_VALUE, cuStreamCreate(&s, 16));
    IS(CUDA_ERROR_INVALID_VALUE, cuStreamCreateWithPriority(&s, 2, 0));
    CUevent e;
    IS(CUDA_ERROR_INVALID_VALUE, cuEventCreate(&e, 8));
}

enum { THREADS = 8, ROUNDS = 200 };
static void *mixed(void *argument)
{
    unsigned id = (unsigned)(uintptr_t)argument;
    CUstream s;
    CUevent e;
    OK(cuCtxSetCurrent(context));
    OK(cuStreamCreate(&s, id % 2 ? CU_STREAM_NON_BLOCKING : 0));
    OK(cuEventCreate(&e, 0));
    for (unsigned round = 0; round < ROUNDS; round++) {
        CUdeviceptr p;
        unsigned got[256], value = id * 1000 + round;
        OK(cuMemAllocAsync(&p, sizeof got, s));
        OK(cuMemsetD32Async(p, value, 256, s));
        OK(cuEventRecord(e, s));
        OK(cuStreamWaitEvent(round % 3 ? s : NULL, e, 0));
        OK(cuMemcpyDtoHAsync_v2(got, p, sizeof got, s));
        OK(cuMemFreeAsync(p, s));
        OK(cuStreamSynchronize(s));
        for (int i = 0; i < 256; i++)
            CHECK(got[i] == value);
        if (round % 50 == 0) {
            OK(cuStreamDestroy_v2(s));
            OK(cuStreamCreate(&s, id % 2 ? CU_STREAM_NON_BLOCKING : 0));
        }
    }
    return NULL;
}

CASE(threads_do_not_disturb_each_other, "many threads with streams, events and pools of one context")
{
    pthread_t threads[THREADS];
    for (uintptr_t i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, mixed, (void *)i) == 0);
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
}
