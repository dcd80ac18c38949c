/* Gates: what they hold, and what releases it. */
#include "gates.h"

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
