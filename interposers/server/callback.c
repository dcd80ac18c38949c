/* Host functions: the stream waits here while a thread of the rank calls the function (see client/stream.c). */
#include "handlers.h"

static void know(struct sg_host_record *record)
{
    struct sg_calls *calls = record->calls;
    pthread_mutex_lock(&calls->records_lock);
    record->before = &calls->records;
    record->next = calls->records;
    if (record->next)
        record->next->before = &record->next;
    calls->records = record;
    pthread_mutex_unlock(&calls->records_lock);
}

static void forget(struct sg_host_record *record)
{
    pthread_mutex_lock(&record->calls->records_lock);
    *record->before = record->next;
    if (record->next)
        record->next->before = record->before;
    pthread_mutex_unlock(&record->calls->records_lock);
}

/* A context that fails drops what waits in its streams without calling it. */
void sg_host_records_free(sg_session *session)
{
    struct sg_calls *calls = sg_calls_of(session);
    const struct sg_hal_table *hal = sg_session_hal(session);
    for (struct sg_host_record *record = calls->records, *next; record; record = next) {
        next = record->next;
        if (record->gated)
            (void)hal->gate_open(hal->state, record->gate); /* dropped already: this frees it */
        sg_host_functions_due(session, -1);
        free(record);
    }
    calls->records = NULL;
}

/* On a thread of the driver's, in stream order.  It makes no driver calls. */
static void CUDA_CB run_in_rank(void *argument)
{
    struct sg_host_record *record = argument;
    sg_session *session = record->session;
    sg_host_function_call(session, &record->function);
    forget(record);
    if (record->gated)
        sg_gate_open(session, record->gate);
    sg_host_functions_due(session, -1);
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
    know(record);
    sg_host_functions_due(session, 1);
    pthread_mutex_lock(&calls->joint);
    int32_t launched = (int32_t)sg_session_driver(session)->cuLaunchHostFunc(stream, run_in_rank, record); /* gone soon */
    error = launched || !gated ? launched : hal->gate_wait(hal->state, gate, stream);
    pthread_mutex_unlock(&calls->joint);
    if (launched) {
        forget(record);
        free(record);
        sg_host_functions_due(session, -1);
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
    *record = (struct sg_host_record){.session = session, .calls = calls,
                                      .function = {wire.stream, wire.function, wire.user, wire.is_callback, CUDA_SUCCESS}};
    return gated_call(session, record, stream);
}
