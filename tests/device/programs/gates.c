/* Gates, settling, and the copies that are ordered with nothing. */
#include "check.h"

#include <sched.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <time.h>

#include "singularity_core/hal/native.h"

#define SECOND 1000000000ull
#define LONG (120 * SECOND) /* ends with the test's own limit */

static const struct sg_hal_table *t;
static CUdeviceptr memory; /* one zeroed MiB */

static uint64_t gate(void)
{
    uint64_t made;
    CHECK(t->gate_make(t->state, &made) == 0);
    return made;
}

static void at(uint64_t g, CUstream s) { CHECK(t->gate_wait(t->state, g, s) == 0); }
static void open_gate(uint64_t g) { CHECK(t->gate_open(t->state, g) == 0); }
static void drop(uint64_t g) { CHECK(t->gate_drop(t->state, g) == 0); }
static int settle(uint64_t timeout) { return t->settle(t->state, timeout); }

static CUstream stream(void)
{
    CUstream s;
    OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    return s;
}

static void begin(void)
{
    CHECK(sg_hal_open_table(0, &t) == 0);
    CHECK(t->struct_size == sizeof *t);
    OK(cuMemAlloc_v2(&memory, 1 << 20));
    OK(cuMemsetD8_v2(memory, 0, 1 << 20));
    OK(cuCtxSynchronize());
}

static unsigned word(unsigned index) /* of settled memory */
{
    return ((volatile unsigned *)(uintptr_t)memory)[index];
}

static void set(unsigned index, unsigned value, CUstream s) { OK(cuMemsetD32Async(memory + 4 * index, value, 1, s)); }

/* A kernel that runs until word `index` is 1. */
static void spin(unsigned index, CUstream s)
{
    CUdeviceptr flag = memory + 4 * index;
    unsigned value = 1;
    void *params[] = { &flag, &value };
    OK(cuLaunchKernel(function("spin_until"), 1, 1, 1, 32, 1, 1, 0, s, params, NULL));
}

static void release(unsigned index)
{
    CUstream s = stream();
    set(index, 1, s);
    OK(cuStreamSynchronize(s));
    OK(cuStreamDestroy_v2(s));
}

CASE(a_gate_holds_what_follows, "work behind a gate waits in every stream until it opens, and settle does not wait for it")
{
    begin();
    CUstream a = stream(), b = stream();
    CUevent behind;
    uint64_t g = gate();
    OK(cuEventCreate(&behind, 0));
    set(0, 1, a);
    at(g, a);
    at(g, b);
    set(0, 2, a);
    set(1, 3, b);
    OK(cuEventRecord(behind, b));
    CHECK(settle(LONG) == 0);
    CHECK(word(0) == 1 && word(1) == 0);
    IS(CUDA_ERROR_NOT_READY, cuStreamQuery(a));
    IS(CUDA_ERROR_NOT_READY, cuEventQuery(behind));
    open_gate(g);
    OK(cuStreamSynchronize(a));
    OK(cuEventSynchronize(behind));
    CHECK(word(0) == 2 && word(1) == 3);
    drop(g);
    CHECK(t->gate_drop(t->state, g) == CUDA_ERROR_INVALID_HANDLE);
    CHECK(t->gate_open(t->state, g) == CUDA_ERROR_INVALID_HANDLE);
}

CASE(an_open_gate_stops_nobody, "a wait after the opening waits for nothing")
{
    begin();
    CUstream s = stream();
    uint64_t g = gate();
    open_gate(g);
    open_gate(g);
    at(g, s);
    OK(cuStreamSynchronize(s));
    set(0, 1, s);
    OK(cuStreamSynchronize(s));
    CHECK(word(0) == 1);
}

CASE(a_dropped_gate_still_opens, "drop ends new waits only; the gate goes when it is open")
{
    begin();
    CUstream s = stream();
    uint64_t g = gate();
    at(g, s);
    set(0, 1, s);
    drop(g);
    CHECK(t->gate_wait(t->state, g, s) == CUDA_ERROR_INVALID_HANDLE);
    CHECK(settle(LONG) == 0 && word(0) == 0);
    open_gate(g);
    OK(cuStreamSynchronize(s));
    CHECK(word(0) == 1);
    CHECK(t->gate_open(t->state, g) == CUDA_ERROR_INVALID_HANDLE);
    for (int i = 0; i < 500; i++) { /* slots come back: a new gate is closed, whatever its slot held before */
        uint64_t again = gate();
        at(again, s);
        set(1, (unsigned)i, s);
        IS(CUDA_ERROR_NOT_READY, cuStreamQuery(s));
        open_gate(again);
        drop(again);
        OK(cuStreamSynchronize(s));
    }
}

CASE(gates_refuse_what_they_cannot_do, "invented gates, streams and captures are refused with a code")
{
    begin();
    CUstream s = stream();
    uint64_t g = gate();
    CUgraph graph;
    CHECK(t->gate_make(t->state, NULL) == CUDA_ERROR_INVALID_VALUE);
    CHECK(t->gate_wait(t->state, g + 8, s) == CUDA_ERROR_INVALID_HANDLE);
    CHECK(t->gate_wait(t->state, 0, s) == CUDA_ERROR_INVALID_HANDLE);
    CHECK(t->gate_wait(t->state, g, (void *)0x1000) == CUDA_ERROR_INVALID_HANDLE);
    OK(cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_RELAXED));
    CHECK(t->gate_wait(t->state, g, s) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    OK(cuStreamEndCapture(s, &graph));
    OK(cuCtxSetCurrent(NULL));
    CHECK(t->gate_wait(t->state, g, s) == CUDA_ERROR_INVALID_CONTEXT);
}

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

static _Atomic int host_may_return, host_came;

static void wait_in_host(void *unused)
{
    (void)unused;
    atomic_store(&host_came, 1);
    while (atomic_load(&host_may_return) == 0)
        usleep(500);
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

CASE(ending_a_context_releases_its_gates, "a context that is destroyed does not hang at a gate, and what is behind it does not run")
{
    begin();
    CUcontext other;
    uint64_t g = gate();
    OK(cuCtxCreate_v2(&other, 0, 0));
    CUstream a = stream(), b = stream();
    at(g, a);
    set(0, 1, a);
    at(g, b);
    set(1, 1, b);
    OK(cuStreamDestroy_v2(b));
    at(g, NULL);
    OK(cuCtxDestroy_v2(other));
    CHECK(settle(LONG) == 0 && word(0) == 0 && word(1) == 0);
    OK(cuCtxSynchronize());
    CUstream s = stream();
    at(g, s); /* the gate itself is as it was */
    set(2, 1, s);
    CHECK(settle(LONG) == 0 && word(2) == 0);
    open_gate(g);
    OK(cuStreamSynchronize(s));
    CHECK(word(2) == 1);
}

CASE(a_failed_context_releases_its_gates, "a sticky error ends the wait at a gate, in whatever stream it came up")
{
    begin();
    CUstream a = stream(), b = stream();
    uint64_t g = gate(), nowhere = memory + (1u << 30);
    unsigned value = 1, bytes = 4;
    void *params[] = { &nowhere, &value, &bytes };
    at(g, a);
    set(0, 1, a);
    CHECK(settle(LONG) == 0);
    OK(cuLaunchKernel(function("poke"), 1, 1, 1, 32, 1, 1, 0, b, params, NULL));
    IS(CUDA_ERROR_ILLEGAL_ADDRESS, cuCtxSynchronize());
    CHECK(word(0) == 0);
    CHECK(settle(LONG) == 0);
}

CASE(closing_the_arena_releases_gates, "the arena closes although streams wait at gates; their contexts are failed")
{
    begin();
    uint64_t base;
    CUstream a = stream(), b = stream();
    CUevent event;
    uint64_t g = gate();
    CHECK(t->arena_open(t->state, 0, 1 << 20, &base) == 0);
    OK(cuEventCreate(&event, 0));
    at(g, a);
    OK(cuEventRecord(event, a));
    OK(cuStreamWaitEvent(b, event, 0));
    at(gate(), b);
    set(0, 1, b);
    CHECK(t->arena_close(t->state) == 0);
    IS(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuCtxSynchronize());
    CHECK(word(0) == 0);
}

CASE(discarding_gives_up_the_queue, "what a discarded context has queued does not happen, whatever it waits for; others go on")
{
    begin();
    CUcontext other;
    CUstream ours = stream();
    uint64_t g = gate();
    OK(cuCtxCreate_v2(&other, 0, 0));
    module = NULL;
    CUstream running = stream(), waiting = stream(), hosted = stream();
    atomic_store(&host_may_return, 0);
    atomic_store(&host_came, 0);
    spin(0, running);
    set(1, 1, running);
    at(g, waiting);
    set(2, 1, waiting);
    OK(cuLaunchHostFunc(hosted, wait_in_host, NULL));
    set(3, 1, hosted);
    while (atomic_load(&host_came) == 0)
        usleep(500);
    CHECK(t->discard(t->state) == 0 && t->discard(t->state) == 0);
    IS(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuMemsetD32Async(memory, 1, 1, running));
    atomic_store(&host_may_return, 1);
    OK(cuCtxPushCurrent_v2(context));
    at(g, ours);
    set(4, 1, ours);
    release(0);
    CHECK(settle(LONG) == 0);
    CHECK(word(0) == 1 && word(1) == 0 && word(2) == 0 && word(3) == 0 && word(4) == 0);
    open_gate(g);
    OK(cuStreamSynchronize(ours));
    CHECK(word(4) == 1);
    OK(cuCtxDestroy_v2(other));
    OK(cuCtxPopCurrent_v2(NULL));
    CHECK(t->discard(t->state) == CUDA_ERROR_INVALID_CONTEXT); /* current, but gone */
    OK(cuCtxPopCurrent_v2(NULL));
    OK(cuCtxPopCurrent_v2(NULL));
    CHECK(t->discard(t->state) == CUDA_ERROR_INVALID_CONTEXT);
}

CASE(copies_are_of_live_memory, "copy_to_host and copy_to_device need live arena memory, and a bad host address is an error")
{
    begin();
    static char host[8192], back[8192];
    uint64_t base;
    for (unsigned i = 0; i < sizeof host; i++)
        host[i] = (char)(i * 7 + 1);
    CHECK(t->arena_open(t->state, 0, 1 << 20, &base) == 0);
    CHECK(t->copy_to_device(t->state, base + 512, host, 512) == CUDA_ERROR_INVALID_VALUE);
    CHECK(t->range_live(t->state, base + 512, sizeof host) == 0);
    CHECK(t->copy_to_device(t->state, base + 512, host, sizeof host) == 0);
    CHECK(t->copy_to_device(t->state, base + 512, host, sizeof host + 1) == CUDA_ERROR_INVALID_VALUE);
    CHECK(t->copy_to_host(t->state, back, base + 512, sizeof host) == 0);
    CHECK(memcmp(host, back, sizeof host) == 0);
    CHECK(t->copy_to_host(t->state, back + 1, base + 513, 3) == 0 && back[1] == host[1]);
    CHECK(t->copy_to_host(t->state, back, base, 512) == CUDA_ERROR_INVALID_VALUE);
    CHECK(t->copy_to_host(t->state, back, memory, 4) == CUDA_ERROR_INVALID_VALUE);
    CHECK(t->copy_to_host(t->state, back, UINT64_MAX - 3, 16) == CUDA_ERROR_INVALID_VALUE);
    CHECK(t->copy_to_host(t->state, NULL, base + 512, 0) == 0);
    CHECK(t->copy_to_host(t->state, NULL, base + 512, 4) == CUDA_ERROR_INVALID_VALUE);
    void *hole = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(t->copy_to_host(t->state, hole, base + 512, 64) == CUDA_ERROR_ILLEGAL_ADDRESS);
    CHECK(t->copy_to_device(t->state, base + 512, hole, 64) == CUDA_ERROR_ILLEGAL_ADDRESS);
    OK(cuCtxSynchronize());
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
