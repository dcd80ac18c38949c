/* Gates: a point that streams wait at until somebody opens it (native.h).
 *
 * The waiting stream's own thread sleeps on the gate's bell.  Slots are never unmapped and their numbers only grow, so
 * a thread that wakes late still reads the right answer although the gate is gone or its slot is used again. */
#include "device.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* who drops, opens and frees: never held for long */

static void ring(struct sgf_gate *gate)
{
    atomic_fetch_add(&gate->bell, 1);
    if (atomic_load(&gate->waiters) != 0)
        sgf_futex_wake(&gate->bell, INT32_MAX);
}

static struct sgf_gate *gate_of(uint64_t handle)
{
    struct sgf_gate *gate = (struct sgf_gate *)(uintptr_t)handle;
    return sgf_valid(SGF_GATE, gate) ? gate : NULL;
}

int32_t sgf_gate_make(void *state, uint64_t *out)
{
    (void)state;
    if (out == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    struct sgf_gate *gate = sgf_new(SGF_GATE);
    if (gate == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    atomic_fetch_add(&gate->number, 1);
    *out = (uintptr_t)gate;
    return CUDA_SUCCESS;
}

int32_t sgf_gate_wait(void *state, uint64_t handle, void *stream_handle)
{
    struct sgf_device *device = state;
    struct CUctx_st *context;
    struct CUstream_st *stream;
    CUresult result = sgf_enter_context(__func__, &context);
    if (result == CUDA_SUCCESS)
        result = sgf_stream_resolve(context, stream_handle, &stream);
    if (result != CUDA_SUCCESS)
        return (int32_t)result;
    if (stream->context->device != device)
        return CUDA_ERROR_INVALID_HANDLE;
    if (atomic_load(&stream->capture) != NULL)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED; /* a graph runs many times, a gate opens once */
    pthread_mutex_lock(&lock);
    struct sgf_gate *gate = gate_of(handle);
    bool known = gate != NULL && !gate->dropped;
    uint64_t number = known ? atomic_load(&gate->number) : 0;
    pthread_mutex_unlock(&lock);
    if (!known)
        return CUDA_ERROR_INVALID_HANDLE;
    /* An open gate, too, goes into a stream with work: in front of it may stand the host function that opened it and has
     * not returned, and only by this work does `settle` know that what follows is let go. */
    if (sgf_gate_is_open(gate, number) && sgf_seq_done(stream, atomic_load(&stream->submitted)))
        return CUDA_SUCCESS;
    struct sgf_work *work = sgf_work_new(SGF_WORK_GATE, stream->context, 0);
    if (work == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    work->u.gate.gate = gate;
    work->u.gate.number = number;
    return (int32_t)sgf_stream_submit(stream, work, NULL);
}

int32_t sgf_gate_open(void *state, uint64_t handle)
{
    (void)state;
    pthread_mutex_lock(&lock);
    struct sgf_gate *gate = gate_of(handle);
    if (gate != NULL) {
        atomic_store(&gate->opened, atomic_load(&gate->number));
        if (gate->dropped)
            sgf_delete(gate);
    }
    pthread_mutex_unlock(&lock);
    if (gate == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    ring(gate);
    return CUDA_SUCCESS;
}

int32_t sgf_gate_drop(void *state, uint64_t handle)
{
    (void)state;
    pthread_mutex_lock(&lock);
    struct sgf_gate *gate = gate_of(handle);
    bool known = gate != NULL && !gate->dropped;
    if (known) {
        gate->dropped = true;
        if (sgf_gate_is_open(gate, atomic_load(&gate->number)))
            sgf_delete(gate);
    }
    pthread_mutex_unlock(&lock);
    return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult sgf_gate_pass(struct CUstream_st *stream, struct sgf_gate *gate, uint64_t number)
{
    struct CUctx_st *context = stream->context;
    CUresult result = CUDA_SUCCESS;
    if (sgf_gate_is_open(gate, number))
        return CUDA_SUCCESS;
    atomic_store(&stream->gate, gate);
    sgf_park(stream, SGF_AT_GATE, number);
    atomic_fetch_add(&gate->waiters, 1);
    for (;;) {
        uint32_t heard = atomic_load(&gate->bell);
        if (sgf_gate_is_open(gate, number) || atomic_load(&context->error) != 0)
            break;
        if (atomic_load(&context->ending)) {
            result = CUDA_ERROR_CONTEXT_IS_DESTROYED; /* makes the context skip what is behind the gate */
            break;
        }
        sgf_futex_wait(&gate->bell, heard, 0);
    }
    atomic_fetch_sub(&gate->waiters, 1);
    sgf_unpark(stream);
    return result;
}

/* The caller has stored why.  A stream that parks after we looked sees that before it sleeps. */
void sgf_gates_release(struct CUctx_st *context)
{
    for (uint32_t i = 0; i < sgf_slots(SGF_STREAM); i++) {
        struct CUstream_st *stream = sgf_slot(SGF_STREAM, i);
        if (stream != NULL && atomic_load(&stream->home) == context && (atomic_load(&stream->phase) & 3) == SGF_AT_GATE)
            ring(atomic_load(&stream->gate));
    }
}

void sgf_gates_void(struct sgf_device *device)
{
    bool more = true;
    while (more && sgf_settle(device, UINT64_MAX) == CUDA_SUCCESS) {
        more = false;
        for (uint32_t i = 0; i < sgf_slots(SGF_STREAM); i++) {
            struct CUstream_st *stream = sgf_slot(SGF_STREAM, i);
            if (stream == NULL || atomic_load(&stream->ordinal) != (uint32_t)(device - sgf.devices) ||
                (atomic_load(&stream->phase) & 3) != SGF_AT_GATE)
                continue;
            sgf_context_fail(atomic_load(&stream->home), CUDA_ERROR_CONTEXT_IS_DESTROYED);
            more = true;
        }
    }
}
