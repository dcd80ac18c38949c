/* The handlers' state of one session, its end, and the calls about contexts. */
#include "handlers.h"
#include <stdio.h>

struct sg_calls *sg_calls_of(sg_session *session)
{
    static pthread_mutex_t making = PTHREAD_MUTEX_INITIALIZER;
    void **slot = sg_session_state(session);
    struct sg_calls *calls = __atomic_load_n(slot, __ATOMIC_ACQUIRE);
    if (calls)
        return calls;
    pthread_mutex_lock(&making);
    calls = *slot;
    if (!calls && (calls = calloc(1, sizeof *calls))) {
        pthread_mutex_init(&calls->lock, NULL);
        pthread_mutex_init(&calls->records_lock, NULL);
        pthread_mutex_init(&calls->joint, NULL);
        calls->frees_end = &calls->frees;
        __atomic_store_n(slot, calls, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&making);
    return calls;
}

void sg_calls_session_quit(sg_session *session) { sg_host_functions_quit(session); }

void sg_calls_contexts_end(sg_session *session)
{
    if (__atomic_load_n(sg_session_state(session), __ATOMIC_ACQUIRE))
        sg_frees_forget(session);
}

static void free_graph(struct sg_graph *graph)
{
    for (uint32_t i = 0; i < graph->count; i++)
        free(graph->nodes[i].message);
    free(graph->nodes);
    free(graph);
}

void sg_calls_session_end(sg_session *session)
{
    struct sg_calls *calls = *sg_session_state(session);
    if (!calls)
        return;
    sg_host_records_free(session);
    while (calls->stages) {
        struct sg_stage *next = calls->stages->next;
        free(calls->stages);
        calls->stages = next;
    }
    while (calls->graphs) {
        struct sg_graph *next = calls->graphs->next;
        free_graph(calls->graphs);
        calls->graphs = next;
    }
    sg_execs_free(session);
    free(calls->operations);
    free(calls->functions);
    free(calls->globals);
    pthread_mutex_destroy(&calls->joint);
    pthread_mutex_destroy(&calls->records_lock);
    pthread_mutex_destroy(&calls->lock);
    free(calls);
    *sg_session_state(session) = NULL;
}

/* ---- module globals: device memory that is not the arena's ----------------------------------------------- */
int sg_global_add(sg_session *session, uint64_t address, uint64_t bytes, uint64_t owner)
{
    struct sg_calls *calls = sg_calls_of(session);
    int result = -1;
    if (!calls)
        return -1;
    pthread_mutex_lock(&calls->lock);
    for (uint32_t i = calls->global_count; i-- > 0 && result;) {
        struct sg_global *at = &calls->globals[i];
        if (!sg_handle_get(session, SG_HANDLE_KIND(at->owner), at->owner))
            *at = calls->globals[--calls->global_count]; /* its module is gone */
        else if (at->address == address && at->owner == owner)
            result = 0;
    }
    if (result && calls->global_count == calls->global_room) {
        uint32_t room = calls->global_room ? calls->global_room * 2 : 16;
        struct sg_global *grown = realloc(calls->globals, room * sizeof *grown);
        if (grown) {
            calls->globals = grown;
            calls->global_room = room;
        }
    }
    if (result && calls->global_count < calls->global_room) {
        calls->globals[calls->global_count++] = (struct sg_global){address, bytes, owner};
        result = 0;
    }
    pthread_mutex_unlock(&calls->lock);
    return result;
}

/* ---- the session and its contexts -------------------------------------------------------------------------- */
SG_HANDLER(hello)
{
    struct sg_wire_hello wire;
    (void)session, (void)answer;
    SG_READ(wire);
    return wire.hash == SG_CALLS_HASH ? CUDA_SUCCESS : CUDA_ERROR_SYSTEM_DRIVER_MISMATCH;
}

SG_HANDLER(context_create)
{
    struct sg_wire_context_create wire;
    SG_READ(wire);
    const struct sg_driver *driver = sg_session_driver(session);
    CUcontext context = NULL, popped;
    /* A primary context is one of the session's own, too: another rank's fault must not reach it. */
    CUresult error = driver->cuCtxCreate_v2(&context, wire.flags & CU_CTX_FLAGS_MASK, sg_session_device(session));
    if (error)
        return (int32_t)error;
    (void)driver->cuCtxPopCurrent_v2(&popped); /* which context is current is the worker's business */
    uint64_t handle = sg_handle_put(session, SG_KIND_CONTEXT, context, 0);
    if (!handle) {
        (void)driver->cuCtxDestroy_v2(context);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    sg_log_create(session, request, handle, NULL, 0);
    SG_REPLY(handle);
    return CUDA_SUCCESS;
}

SG_HANDLER(context_destroy)
{
    struct sg_wire_handle wire;
    (void)answer;
    SG_READ(wire);
    if (!sg_handle_get(session, SG_KIND_CONTEXT, wire.handle))
        return CUDA_ERROR_INVALID_CONTEXT;
    sg_frees_reap(session, 1);
    void *context = sg_handle_take(session, SG_KIND_CONTEXT, wire.handle); /* and all that lives in it */
    sg_log_destroy(session, wire.handle);
    return context ? (int32_t)sg_session_driver(session)->cuCtxDestroy_v2(context) : CUDA_ERROR_INVALID_CONTEXT;
}
