/* Settling: when the device counts as at rest.  And how long simulated kernels take. */
#include "gates.h"

#include <sched.h>
#include <time.h>

static void *release_later(void *index)
{
    OK(cuCtxSetCurrent(context));
    CHECK(settle(SECOND / 50) == CUDA_ERROR_NOT_READY);
    release((unsigned)(uintptr_t)index);
    return NULL;
}

CASE(settle_waits_for_kernels, "a kernel that runs is not settled; settle returns when it ends")
{
    begin();
    CUstream s = stream();
    pthread_t thread;
    CHECK(settle(0) == 0);
    spin(0, s);
    CHECK(settle(0) == CUDA_ERROR_NOT_READY);
    CHECK(pthread_create(&thread, NULL, release_later, (void *)0) == 0);
    CHECK(settle(LONG) == 0);
    OK(cuStreamQuery(s));
    pthread_join(thread, NULL);
}

CASE(what_an_open_gate_lets_go_is_not_settled, "from the opening on, the stream could begin by itself")
{
    begin();
    CUstream s = stream();
    for (unsigned i = 0; i < 100; i++) {
        uint64_t g = gate();
        at(g, s);
        spin(i, s);
        CHECK(settle(LONG) == 0);
        open_gate(g);
        drop(g);
        CHECK(settle(0) == CUDA_ERROR_NOT_READY);
        release(i);
        CHECK(settle(LONG) == 0);
        OK(cuStreamQuery(s));
    }
}

CASE(waiting_for_a_resting_stream_is_rest, "streams behind events, the default stream and a host that copies rest with what they wait for")
{
    begin();
    CUstream a = stream(), b = stream(), blocking;
    CUevent event;
    uint64_t g = gate(), h = gate();
    OK(cuStreamCreate(&blocking, 0));
    OK(cuEventCreate(&event, 0));
    at(g, a);
    OK(cuEventRecord(event, a));
    OK(cuStreamWaitEvent(b, event, 0));
    set(0, 1, b);
    at(h, NULL);
    set(1, 1, blocking);
    set(2, 1, CU_STREAM_PER_THREAD);
    CHECK(settle(LONG) == 0 && word(0) == 0 && word(1) == 0 && word(2) == 0);
    spin(3, b);
    open_gate(g);
    CHECK(settle(SECOND / 100) == CUDA_ERROR_NOT_READY);
    release(3);
    CHECK(settle(LONG) == 0 && word(0) == 1 && word(1) == 0);
    open_gate(h);
    CHECK(settle(LONG) == 0 && word(1) == 1 && word(2) == 1);
}

static _Atomic unsigned copied;
static CUstream copy_stream;

static void *copy_back(void *unused)
{
    unsigned got = 7;
    (void)unused;
    OK(cuCtxSetCurrent(context));
    atomic_store(&copied, 1);
    OK(cuMemcpyDtoHAsync_v2(&got, memory, 4, copy_stream)); /* pageable: waits */
    atomic_store(&copied, 2 + got);
    return NULL;
}

CASE(a_copy_that_waits_for_its_turn_rests, "a thread in a blocking copy behind a gate is at rest, and begins only after it")
{
    begin();
    uint64_t g = gate();
    pthread_t thread;
    copy_stream = stream();
    at(g, copy_stream);
    set(0, 40, copy_stream);
    CHECK(pthread_create(&thread, NULL, copy_back, NULL) == 0);
    while (atomic_load(&copied) == 0)
        sched_yield();
    for (int i = 0; i < 200; i++)
        CHECK(settle(LONG) == 0);
    CHECK(atomic_load(&copied) == 1);
    open_gate(g);
    pthread_join(thread, NULL);
    CHECK(atomic_load(&copied) == 42);
    CHECK(settle(LONG) == 0);
    IS(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoHAsync_v2((void *)8, memory, 4, copy_stream));
    set(0, 41, copy_stream);
    IS(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoHAsync_v2((void *)8, memory, 4, copy_stream));
    OK(cuStreamSynchronize(copy_stream)); /* and that error stays in the call */
}

CASE(a_host_function_is_rest, "settle does not wait for host functions, in streams and graphs, but for what they let go")
{
    begin();
    CUstream s = stream();
    CUgraph graph;
    CUgraphExec exec;
    for (int round = 0; round < 2; round++) {
        atomic_store(&host_may_return, 0);
        atomic_store(&host_came, 0);
        if (round == 1)
            OK(cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_RELAXED));
        OK(cuLaunchHostFunc(s, wait_in_host, NULL));
        spin((unsigned)round, s);
        if (round == 1) {
            OK(cuStreamEndCapture(s, &graph));
            OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
            OK(cuGraphLaunch(exec, s));
        }
        while (atomic_load(&host_came) == 0)
            usleep(500);
        CHECK(settle(LONG) == 0);
        atomic_store(&host_may_return, 1);
        while (settle(0) == 0) /* it may still be about to return */
            usleep(500);
        release((unsigned)round);
        CHECK(settle(LONG) == 0);
        OK(cuStreamQuery(s));
    }
}

static uint64_t gate_of_host;
static _Atomic int host_may_open, host_opened;

static void open_in_host(void *unused)
{
    (void)unused;
    atomic_store(&host_came, 1);
    while (atomic_load(&host_may_open) == 0)
        usleep(500);
    open_gate(gate_of_host);
    atomic_store(&host_opened, 1);
    while (atomic_load(&host_may_return) == 0)
        usleep(500);
}

CASE(a_gate_opened_in_a_host_function_is_not_settled, "a host function that opened the gate behind it lets its stream go, though it has not returned")
{
    begin();
    CUstream s = stream();
    for (unsigned round = 0; round < 2; round++) {
        uint64_t before = gate();
        gate_of_host = gate();
        atomic_store(&host_came, 0);
        atomic_store(&host_may_open, 0);
        atomic_store(&host_opened, 0);
        atomic_store(&host_may_return, 0);
        if (round == 1)
            at(before, s); /* then function and gate are taken from the queue together */
        OK(cuLaunchHostFunc(s, open_in_host, NULL));
        for (; round == 0 && atomic_load(&host_came) == 0;)
            usleep(500);
        at(gate_of_host, s);
        set(round, 1, s);
        open_gate(before);
        while (atomic_load(&host_came) == 0)
            usleep(500);
        CHECK(settle(LONG) == 0 && word(round) == 0);
        atomic_store(&host_may_open, 1);
        while (atomic_load(&host_opened) == 0)
            usleep(500);
        CHECK(settle(0) == CUDA_ERROR_NOT_READY);
        atomic_store(&host_may_return, 1);
        CHECK(settle(LONG) == 0 && word(round) == 1);
        OK(cuStreamQuery(s));
    }
}

CASE(settle_covers_all_contexts, "work of other contexts, of their default streams and of destroyed streams counts")
{
    begin();
    CUcontext other;
    OK(cuCtxCreate_v2(&other, 0, 0));
    module = NULL;
    CUstream streams[] = { NULL, CU_STREAM_PER_THREAD, stream() };
    for (unsigned i = 0; i < 3; i++) {
        spin(i, streams[i]);
        if (i == 2)
            OK(cuStreamDestroy_v2(streams[i]));
        CHECK(settle(SECOND / 200) == CUDA_ERROR_NOT_READY);
        OK(cuCtxPushCurrent_v2(context));
        release(i);
        OK(cuCtxPopCurrent_v2(NULL));
        CHECK(settle(LONG) == 0 && t->quiesce(t->state) == 0);
    }
}

/* Random programs of four streams, gates and events.  Whenever settle says so, nothing moves until a gate opens;
 * at the end everything has run, in order. */
CASE(settled_devices_stay_still, "after settle, memory does not change until a gate opens or work is submitted")
{
    begin();
    enum { STREAMS = 4, ROUNDS = 400 };
    CUstream s[STREAMS];
    CUevent event;
    uint64_t closed[64];
    unsigned count = 0, seed = 12345, last[STREAMS] = { 0 };
    OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    for (int i = 0; i < STREAMS; i++)
        s[i] = stream();
    for (unsigned round = 0; round < ROUNDS; round++) {
        for (int k = 0; k < 6; k++) {
            seed = seed * 1103515245u + 12345u;
            unsigned i = seed >> 16 & 3, what = seed >> 20 & 7;
            if (what == 0 && count < 64)
                at(closed[count++] = gate(), s[i]);
            else if (what == 1) {
                OK(cuEventRecord(event, s[i]));
                OK(cuStreamWaitEvent(s[(i + 1) % STREAMS], event, 0));
            } else
                set(i, ++last[i], s[i]);
        }
        CHECK(settle(LONG) == 0);
        unsigned before[STREAMS];
        for (unsigned i = 0; i < STREAMS; i++)
            before[i] = word(i);
        sched_yield();
        for (unsigned i = 0; i < STREAMS; i++)
            CHECK(word(i) == before[i]);
        for (unsigned opened = seed >> 24 & 3; opened > 0 && count > 0; opened--) {
            uint64_t g = closed[--count];
            open_gate(g);
            drop(g);
        }
    }
    while (count > 0)
        open_gate(closed[--count]);
    CHECK(settle(LONG) == 0);
    OK(cuCtxSynchronize());
    for (unsigned i = 0; i < STREAMS; i++)
        CHECK(word(i) == last[i]);
}

CASE(cold_exclusive_kernels_take_turns, "SINGULARITY_FAKE_EXCLUSIVE: simulated time of two streams adds up")
{
    enum { NANOSECONDS = 20000000 };
    setenv("SINGULARITY_FAKE_EXCLUSIVE", "1", 1);
    OK(cuInit(0));
    OK(cuCtxCreate_v2(&context, 0, 0));
    begin();
    uint64_t sleep = NANOSECONDS;
    struct timespec from, to;
    void *params[] = { &memory, &sleep };
    CUfunction sleepy = function("sleepy");
    clock_gettime(CLOCK_MONOTONIC, &from);
    for (int i = 0; i < 2; i++)
        OK(cuLaunchKernel(sleepy, 1, 1, 1, 1, 1, 1, 0, stream(), params, NULL));
    OK(cuCtxSynchronize());
    clock_gettime(CLOCK_MONOTONIC, &to);
    /* A bound from below: no load of the machine can break it. */
    CHECK((to.tv_sec - from.tv_sec) * 1000000000ll + (to.tv_nsec - from.tv_nsec) >= 2 * NANOSECONDS);
}
