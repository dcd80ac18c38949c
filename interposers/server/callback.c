/* Host functions: the stream waits here while a thread of the rank calls the function (see client/stream.c). */
#include "handlers.h"

/* callback_lock is held. */
static void know(struct sg_calls *calls, struct sg_host_record *record)
{
    record->before_known = &calls->known;
    record->next_known = calls->known;
    if (record->next_known)
        record->next_known->before_known = &record->next_known;
    calls->known = record;
}

static void forget(struct sg_host_record *record)
{
    *record->before_known = record->next_known;
    if (record->next_known)
        record->next_known->before_known = record->before_known;
}

/* A context that fails drops what waits in its streams without calling it. */
void sg_host_records_free(sg_session *session)
{
    struct sg_calls *calls = sg_calls_of(session);
    const struct sg_hal_table *hal = sg_session_hal(session);
    for (struct sg_host_record *record = calls->known, *next; record; record = next) {
        next = record->next_known;
        if (record->gated)
            (void)hal->gate_open(hal->state, record->gate); /* dropped already: this frees it */
        free(record);
    }
    calls->known = NULL;
}

/* On a thread of the driver's, in stream order.  It makes no driver calls. */
static void CUDA_CB run_in_rank(void *argument)
{
    struct sg_host_record *record = argument;
    struct sg_calls *calls = record->calls;
    pthread_mutex_lock(&calls->callback_lock);
    record->id = ++calls->next_callback;
    record->next = NULL;
    *calls->waiting_end = record;
    calls->waiting_end = &record->next;
    pthread_cond_broadcast(&calls->callback_changed);
    while (!record->done && !calls->ended)
        pthread_cond_wait(&calls->callback_changed, &calls->callback_lock);
    struct sg_host_record **lists[] = {&calls->waiting, &calls->running};
    for (int i = 0; i < 2; i++) {
        for (struct sg_host_record **at = lists[i]; *at; at = &(*at)->next) {
            if (*at == record) {
                *at = record->next;
                break;
            }
        }
    }
    calls->waiting_end = &calls->waiting;
    while (*calls->waiting_end)
        calls->waiting_end = &(*calls->waiting_end)->next;
    forget(record);
    pthread_mutex_unlock(&calls->callback_lock);
    if (record->gated)
        sg_gate_open(record->session, record->gate);
    free(record);
}

/* What follows the function in its stream waits at a gate until the session is on the device: the rank may return
 * while another session is.  Takes `record`. */
static int32_t gated_call(sg_session *session, struct sg_host_record *record, void *stream)
{
    const struct sg_hal_table *hal = sg_session_hal(session);
    uint64_t gate = 0;
    int32_t error = sg_session_sliceable(session) ? hal->gate_make(hal->state, &gate) : 0;
    if (error) {
        free(record);
        return error;
    }
    int gated = gate != 0;
    record->gate = gate;
    record->gated = gated;
    struct sg_calls *calls = record->calls;
    pthread_mutex_lock(&calls->callback_lock);
    know(calls, record);
    pthread_mutex_unlock(&calls->callback_lock);
    pthread_mutex_lock(&calls->joint);
    int32_t launched = (int32_t)sg_session_driver(session)->cuLaunchHostFunc(stream, run_in_rank, record); /* gone soon */
    error = launched || !gated ? launched : hal->gate_wait(hal->state, gate, stream);
    pthread_mutex_unlock(&calls->joint);
    if (launched) {
        pthread_mutex_lock(&calls->callback_lock);
        forget(record);
        pthread_mutex_unlock(&calls->callback_lock);
        free(record);
        if (gated)
            hal->gate_open(hal->state, gate);
    }
    if (gated)
        hal->gate_drop(hal->state, gate);
    return error;
}

SG_HANDLER(host_call)
{
    struct sg_wire_host_call wire;
    void *stream;
    (void)answer;
    SG_READ(wire);
    struct sg_calls *calls = sg_calls_of(session);
    if (sg_stream_get(session, wire.stream, &stream))
        return CUDA_ERROR_INVALID_HANDLE;
    struct sg_host_record *record = calls ? calloc(1, sizeof *record) : NULL;
    if (!record)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *record = (struct sg_host_record){.session = session, .calls = calls, .stream = wire.stream, .function = wire.function, .user = wire.user,
                                      .is_callback = wire.is_callback};
    return gated_call(session, record, stream);
}

/* Blocks until there is a function to call, or the session ends. */
SG_HANDLER(callback_next)
{
    struct sg_calls *calls = sg_calls_of(session);
    (void)request;
    if (!calls)
        return CUDA_ERROR_OUT_OF_MEMORY;
    struct sg_reply_callback reply = {0};
    pthread_mutex_lock(&calls->callback_lock);
    while (!calls->waiting && !calls->ended)
        pthread_cond_wait(&calls->callback_changed, &calls->callback_lock);
    struct sg_host_record *record = calls->ended ? NULL : calls->waiting;
    if (record) {
        calls->waiting = record->next;
        if (!calls->waiting)
            calls->waiting_end = &calls->waiting;
        record->next = calls->running;
        calls->running = record;
        reply = (struct sg_reply_callback){record->id, record->stream, record->function, record->user, record->is_callback, CUDA_SUCCESS};
    }
    pthread_mutex_unlock(&calls->callback_lock);
    if (!record)
        return CUDA_ERROR_DEINITIALIZED;
    SG_REPLY(reply);
    return CUDA_SUCCESS;
}

SG_HANDLER(callback_done)
{
    struct sg_wire_callback_done wire;
    (void)answer;
    SG_READ(wire);
    struct sg_calls *calls = sg_calls_of(session);
    if (!calls)
        return CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_lock(&calls->callback_lock);
    for (struct sg_host_record *at = calls->running; at; at = at->next)
        if (at->id == wire.id)
            at->done = 1;
    pthread_cond_broadcast(&calls->callback_changed);
    pthread_mutex_unlock(&calls->callback_lock);
    return CUDA_SUCCESS;
}
