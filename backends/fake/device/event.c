/* Events: a point in a stream, and when it was passed. */
#include "device.h"

#include <stdlib.h>

/* Called by the stream's thread; a later record of the same event makes it void. */
void sgf_event_stamp(struct CUevent_st *event, uint64_t record)
{
    uint64_t now = sgf_now();
    pthread_mutex_lock(&event->lock);
    if (event->record == record) {
        event->stamp = now;
        event->stamped = true;
    }
    pthread_mutex_unlock(&event->lock);
}

uint64_t sgf_event_promise(struct CUevent_st *event, struct CUstream_st *stream)
{
    pthread_mutex_lock(&event->lock);
    uint64_t record = ++event->record;
    event->stream = stream;
    event->seq = UINT64_MAX; /* until promised: not passed */
    event->stamped = false;
    event->capture_id = 0;
    pthread_mutex_unlock(&event->lock);
    return record;
}

void sgf_event_promised(struct CUevent_st *event, uint64_t record, struct CUstream_st *stream, uint64_t seq)
{
    pthread_mutex_lock(&event->lock);
    if (event->record == record) {
        event->stream = stream;
        event->seq = seq;
    }
    pthread_mutex_unlock(&event->lock);
}

bool sgf_event_point(struct CUevent_st *event, struct CUstream_st **stream, uint64_t *seq)
{
    pthread_mutex_lock(&event->lock);
    *stream = event->stream;
    *seq = event->seq;
    pthread_mutex_unlock(&event->lock);
    return *stream != NULL && !sgf_seq_done(*stream, *seq);
}

CUresult cuEventCreate(CUevent *phEvent, unsigned int Flags)
{
    SGF_ENTER_CONTEXT(context);
    if (phEvent == NULL || (Flags & ~7u) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    if ((Flags & CU_EVENT_INTERPROCESS) != 0)
        return sgf_unsupported("cuEventCreate with CU_EVENT_INTERPROCESS");
    struct CUevent_st *event = sgf_new(SGF_EVENT);
    if (event == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (event->record == 0)
        pthread_mutex_init(&event->lock, NULL);
    event->record++; /* work that was left from the slot's last use does not stamp this event */
    event->context = context;
    event->flags = Flags;
    *phEvent = event;
    return CUDA_SUCCESS;
}

CUresult cuEventDestroy_v2(CUevent hEvent)
{
    SGF_ENTER();
    if (!sgf_valid(SGF_EVENT, hEvent))
        return CUDA_ERROR_INVALID_HANDLE;
    pthread_mutex_lock(&hEvent->lock);
    hEvent->record++;
    free(hEvent->nodes);
    hEvent->nodes = NULL;
    pthread_mutex_unlock(&hEvent->lock);
    sgf_delete(hEvent);
    return CUDA_SUCCESS;
}

CUresult cuEventDestroy(CUevent hEvent)
{
    return cuEventDestroy_v2(hEvent);
}

static CUresult record(struct CUctx_st *context, CUevent event, CUstream handle)
{
    struct CUstream_st *stream;
    CUresult result = sgf_stream_resolve(context, handle, &stream);
    if (result != CUDA_SUCCESS)
        return result;
    if (!sgf_valid(SGF_EVENT, event))
        return CUDA_ERROR_INVALID_HANDLE;
    if (event->context->device != stream->context->device)
        return CUDA_ERROR_INVALID_HANDLE;
    if (SGF_UNLIKELY(atomic_load(&stream->capture) != NULL))
        return sgf_capture_record(stream, event);
    pthread_mutex_lock(&event->lock);
    uint64_t number = ++event->record;
    event->capture_id = 0;
    event->stream = stream;
    event->stamped = false;
    if (sgf_stream_idle(stream)) { /* nothing to wait for: passed here and now */
        event->seq = 0;
        event->stamp = sgf_now();
        event->stamped = true;
    } else {
        struct sgf_work *work = sgf_work_new(SGF_WORK_RECORD, stream->context, 0);
        if (work == NULL) {
            result = CUDA_ERROR_OUT_OF_MEMORY;
        } else {
            work->u.record.event = event;
            work->u.record.record = number;
            result = sgf_stream_submit(stream, work, &event->seq);
        }
    }
    pthread_mutex_unlock(&event->lock);
    return result;
}

CUresult cuEventRecord(CUevent hEvent, CUstream hStream)
{
    SGF_ENTER_CONTEXT(context);
    return record(context, hEvent, hStream);
}

CUresult cuEventRecordWithFlags(CUevent hEvent, CUstream hStream, unsigned int flags)
{
    SGF_ENTER_CONTEXT(context);
    if ((flags & ~(unsigned)CU_EVENT_RECORD_EXTERNAL) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    return record(context, hEvent, hStream);
}

static CUresult may_wait(CUevent event)
{
    if (!sgf_valid(SGF_EVENT, event))
        return CUDA_ERROR_INVALID_HANDLE;
    CUresult result = sgf_context_check(event->context);
    return result == CUDA_SUCCESS && event->capture_id != 0 ? CUDA_ERROR_CAPTURED_EVENT : result;
}

CUresult cuEventQuery(CUevent hEvent)
{
    SGF_ENTER();
    struct CUstream_st *stream;
    uint64_t seq;
    CUresult result = may_wait(hEvent);
    if (result != CUDA_SUCCESS)
        return result;
    if (sgf_event_point(hEvent, &stream, &seq))
        return CUDA_ERROR_NOT_READY;
    return sgf_context_check(hEvent->context);
}

CUresult cuEventSynchronize(CUevent hEvent)
{
    SGF_ENTER();
    struct CUstream_st *stream;
    uint64_t seq;
    CUresult result = may_wait(hEvent);
    if (result != CUDA_SUCCESS)
        return result;
    if (sgf_event_point(hEvent, &stream, &seq))
        sgf_wait_seq(stream, seq);
    return sgf_context_check(hEvent->context);
}

static CUresult stamp_of(CUevent event, uint64_t *stamp)
{
    if (!sgf_valid(SGF_EVENT, event))
        return CUDA_ERROR_INVALID_HANDLE;
    struct CUstream_st *stream;
    uint64_t seq;
    bool pending = sgf_event_point(event, &stream, &seq);
    if (event->capture_id != 0)
        return CUDA_ERROR_CAPTURED_EVENT;
    if (stream == NULL || (event->flags & CU_EVENT_DISABLE_TIMING) != 0)
        return CUDA_ERROR_INVALID_HANDLE; /* never recorded, or keeps no time */
    if (pending)
        return CUDA_ERROR_NOT_READY;
    pthread_mutex_lock(&event->lock);
    *stamp = event->stamp;
    pthread_mutex_unlock(&event->lock);
    return CUDA_SUCCESS;
}

static CUresult elapsed(float *milliseconds, CUevent start, CUevent end)
{
    uint64_t from = 0, to = 0;
    if (milliseconds == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult first = stamp_of(start, &from), second = stamp_of(end, &to);
    if (first != CUDA_SUCCESS && first != CUDA_ERROR_NOT_READY)
        return first;
    if (second != CUDA_SUCCESS)
        return second;
    if (first != CUDA_SUCCESS)
        return first;
    *milliseconds = (float)((double)(int64_t)(to - from) * 1e-6);
    return sgf_context_check(end->context);
}

CUresult cuEventElapsedTime(float *pMilliseconds, CUevent hStart, CUevent hEnd)
{
    SGF_ENTER();
    return elapsed(pMilliseconds, hStart, hEnd);
}

CUresult cuEventElapsedTime_v2(float *pMilliseconds, CUevent hStart, CUevent hEnd)
{
    SGF_ENTER();
    return elapsed(pMilliseconds, hStart, hEnd);
}
