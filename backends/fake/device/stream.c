/* Streams: an ordered queue each, worked off by a thread that starts with the first work.
 *
 * Work in a stream is numbered; "everything before this point is done" is `completed >= number`, which events,
 * cross-stream waits and synchronisation all use.  A wait is itself work in the waiting stream.  Waits only ever
 * name work submitted earlier, so they cannot form a cycle. */
#include "device.h"

#include <errno.h>
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define WORKER_SPINS 400 /* about 15 us: a launch that follows closely finds its worker awake */
#define WAITER_SPINS 150

static _Atomic uint64_t next_stream_id = 3; /* 0, 1 and 2 are the default streams' */

struct sgf_own_stream { /* the per-thread default streams of this thread */
    struct sgf_own_stream *next;
    struct CUctx_st *context;
    uint32_t context_id;
    struct CUstream_st *stream;
};

void sgf_futex_wait(_Atomic uint32_t *word, uint32_t value, uint64_t nanoseconds)
{
    struct timespec limit = { (time_t)(nanoseconds / 1000000000u), (long)(nanoseconds % 1000000000u) };
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, nanoseconds != 0 ? &limit : NULL, NULL, 0);
}

void sgf_futex_wake(_Atomic uint32_t *word, int count)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, count, NULL, NULL, 0);
}

uint64_t sgf_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static inline void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#else
    atomic_signal_fence(memory_order_seq_cst);
#endif
}

/* False when it is not done at the time `until` (0: waits for ever). */
static bool wait_until(struct CUstream_st *stream, uint64_t seq, uint64_t until)
{
    for (int i = 0; i < WAITER_SPINS; i++) {
        if (sgf_seq_done(stream, seq))
            return true;
        relax();
    }
    uint64_t done, now = 0;
    atomic_fetch_add(&stream->waiters, 1);
    while ((done = atomic_load(&stream->completed)) < seq && (until == 0 || (now = sgf_now()) < until))
        sgf_futex_wait((_Atomic uint32_t *)&stream->completed, (uint32_t)done, until == 0 ? 0 : until - now);
    atomic_fetch_sub(&stream->waiters, 1);
    return done >= seq;
}

void sgf_wait_seq(struct CUstream_st *stream, uint64_t seq)
{
    wait_until(stream, seq, 0);
}

static void complete(struct CUstream_st *stream, uint64_t seq)
{
    atomic_store(&stream->completed, seq);
    if (atomic_load(&stream->waiters) != 0)
        sgf_futex_wake((_Atomic uint32_t *)&stream->completed, INT32_MAX);
    if (SGF_UNLIKELY(atomic_load(&sgf_settlers) != 0) && atomic_load(&stream->submitted) == seq)
        sgf_settle_ring();
}

static void finish(struct CUstream_st *stream)
{
    pthread_mutex_destroy(&stream->lock);
    sgf_delete(stream);
}

/* The next batch of work, or NULL when the stream was destroyed. */
static struct sgf_work *next_batch(struct CUstream_st *stream)
{
    for (int spins = 0;; spins++) {
        if (spins >= WORKER_SPINS || atomic_load_explicit(&stream->submitted, memory_order_relaxed) !=
                                         atomic_load_explicit(&stream->completed, memory_order_relaxed)) {
            pthread_mutex_lock(&stream->lock);
            struct sgf_work *batch = stream->head;
            stream->head = stream->tail = NULL;
            bool ended = batch == NULL && atomic_load(&stream->destroyed);
            if (batch == NULL && !ended)
                atomic_store(&stream->sleeping, 1);
            pthread_mutex_unlock(&stream->lock);
            if (batch != NULL || ended)
                return batch;
            while (atomic_load(&stream->sleeping) != 0)
                sgf_futex_wait(&stream->sleeping, 1, 0);
            spins = 0;
        }
        for (int i = 0; i < 8; i++)
            relax();
        if (spins % 64 == 63)
            sched_yield();
    }
}

static void *worker(void *argument)
{
    struct CUstream_st *stream = argument;
    struct sgf_work *work;
    sgf_fault_thread();
    while ((work = next_batch(stream)) != NULL) {
        while (work != NULL) {
            struct sgf_work *next = work->next;
            uint64_t seq = work->seq;
            CUresult result = sgf_work_run(work, stream);
            if (result != CUDA_SUCCESS)
                sgf_context_fail(work->context, result);
            sgf_work_free(work);
            complete(stream, seq);
            work = next;
        }
    }
    finish(stream);
    return NULL;
}

static bool start_worker(struct CUstream_st *stream)
{
    pthread_t thread;
    pthread_attr_t attributes;
    sigset_t all, before;
    sigfillset(&all); /* the application's signals are not for our threads */
    sigdelset(&all, SIGSEGV);
    sigdelset(&all, SIGBUS);
    sigdelset(&all, SIGFPE);
    sigdelset(&all, SIGILL);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    int failed = pthread_create(&thread, &attributes, worker, stream);
    pthread_attr_destroy(&attributes);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    stream->threaded = failed == 0;
    return stream->threaded;
}

/* Puts work at the end of the queue, without regard to other streams. */
static CUresult append(struct CUstream_st *stream, struct sgf_work *work, uint64_t *seq)
{
    pthread_mutex_lock(&stream->lock);
    if (SGF_UNLIKELY(!stream->threaded) && !start_worker(stream)) {
        pthread_mutex_unlock(&stream->lock);
        sgf_work_free(work);
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    work->next = NULL;
    work->seq = atomic_load_explicit(&stream->submitted, memory_order_relaxed) + 1;
    if (seq != NULL)
        *seq = work->seq;
    if (stream->tail != NULL) {
        stream->tail->next = work;
    } else {
        stream->head = work;
        if (work->kind == SGF_WORK_GATE) {
            atomic_store(&stream->queued_gate, work->u.gate.gate);
            atomic_store(&stream->queued_point, work->u.gate.number);
            atomic_store(&stream->queued_seq, work->seq);
        }
    }
    stream->tail = work;
    atomic_store_explicit(&stream->submitted, work->seq, memory_order_release);
    bool asleep = atomic_load_explicit(&stream->sleeping, memory_order_relaxed) != 0;
    if (asleep)
        atomic_store(&stream->sleeping, 0);
    pthread_mutex_unlock(&stream->lock);
    if (asleep)
        sgf_futex_wake(&stream->sleeping, 1);
    return CUDA_SUCCESS;
}

static CUresult append_wait(struct CUstream_st *stream, struct CUstream_st *on, uint64_t seq)
{
    struct sgf_work *wait = sgf_work_new(SGF_WORK_WAIT, stream->context, 0);
    if (wait == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    wait->u.wait.stream = on;
    wait->u.wait.seq = seq;
    wait->u.wait.event = NULL;
    return append(stream, wait, NULL);
}

static bool busy(struct CUstream_st *stream, uint64_t *seq)
{
    *seq = atomic_load_explicit(&stream->submitted, memory_order_acquire);
    return !sgf_seq_done(stream, *seq);
}

static bool blocking(const struct CUstream_st *stream)
{
    return !stream->legacy && (stream->flags & CU_STREAM_NON_BLOCKING) == 0;
}

/* Legacy default stream: its work waits for all blocking streams, and theirs for it. */
static CUresult order(struct CUstream_st *stream)
{
    struct CUctx_st *context = stream->context;
    CUresult result = CUDA_SUCCESS;
    uint64_t seq;
    if (!stream->legacy) {
        struct CUstream_st *legacy = atomic_load_explicit(&context->legacy, memory_order_relaxed);
        if (!blocking(stream) || !busy(legacy, &seq) || seq == stream->legacy_seen)
            return CUDA_SUCCESS;
        stream->legacy_seen = seq;
        return append_wait(stream, legacy, seq);
    }
    if (atomic_load_explicit(&context->blocking_streams, memory_order_acquire) == 0)
        return CUDA_SUCCESS;
    pthread_mutex_lock(&context->lock);
    for (struct CUstream_st *other = context->streams; other != NULL && result == CUDA_SUCCESS; other = other->next)
        if (blocking(other) && busy(other, &seq))
            result = append_wait(stream, other, seq);
    pthread_mutex_unlock(&context->lock);
    return result;
}

CUresult sgf_stream_submit(struct CUstream_st *stream, struct sgf_work *work, uint64_t *seq_or_null)
{
    CUresult result = order(stream);
    if (SGF_UNLIKELY(result != CUDA_SUCCESS)) {
        sgf_work_free(work);
        return result;
    }
    return append(stream, work, seq_or_null);
}

/* Calls `each` for all streams that new work in `stream` would wait for; stops when it returns false. */
static bool all_before(struct CUstream_st *stream, bool wait)
{
    struct CUctx_st *context = stream->context;
    uint64_t seq;
    if (busy(stream, &seq)) {
        if (!wait)
            return false;
        sgf_wait_seq(stream, seq);
    }
    if (!stream->legacy) {
        struct CUstream_st *legacy = atomic_load_explicit(&context->legacy, memory_order_relaxed);
        if (blocking(stream) && busy(legacy, &seq)) {
            if (!wait)
                return false;
            sgf_wait_seq(legacy, seq);
        }
        return true;
    }
    if (atomic_load_explicit(&context->blocking_streams, memory_order_acquire) == 0)
        return true;
    for (;;) {
        struct CUstream_st *found = NULL;
        pthread_mutex_lock(&context->lock);
        for (struct CUstream_st *other = context->streams; other != NULL && found == NULL; other = other->next)
            if (blocking(other) && busy(other, &seq))
                found = other;
        pthread_mutex_unlock(&context->lock);
        if (found == NULL || !wait)
            return found == NULL;
        sgf_wait_seq(found, seq);
    }
}

bool sgf_stream_idle(struct CUstream_st *stream)
{
    return all_before(stream, false);
}

void sgf_stream_quiet(struct CUstream_st *stream)
{
    all_before(stream, true);
}

CUresult sgf_context_drain(struct CUctx_st *context)
{
    struct point { struct CUstream_st *stream; uint64_t seq; } few[32], *points = few;
    size_t count = 0, room = 32;
    pthread_mutex_lock(&context->lock);
    for (struct CUstream_st *s = context->streams; s != NULL; s = s->next) {
        uint64_t seq;
        if (!busy(s, &seq))
            continue;
        if (count == room) {
            struct point *more = malloc(2 * room * sizeof *more);
            if (more == NULL)
                break; /* the rest is waited for one by one below */
            for (size_t i = 0; i < count; i++)
                more[i] = points[i];
            if (points != few)
                free(points);
            points = more;
            room *= 2;
        }
        points[count++] = (struct point){ s, seq };
    }
    pthread_mutex_unlock(&context->lock);
    for (size_t i = 0; i < count; i++)
        sgf_wait_seq(points[i].stream, points[i].seq);
    if (points != few)
        free(points);
    return (CUresult)atomic_load(&context->error);
}

/* Whether all is done, at the time `until` at the latest (0: in the end), that is submitted in the streams of
 * `context`, or of all of device `ordinal`.  Over the slots, because destroyed streams are in no list.  `submitted`
 * is read before the owner: then it is no later owner's. */
static bool outwait(const struct CUctx_st *context, uint32_t ordinal, uint64_t until)
{
    for (uint32_t i = 0; i < sgf_slots(SGF_STREAM); i++) {
        struct CUstream_st *stream = sgf_slot(SGF_STREAM, i);
        if (stream == NULL)
            continue;
        uint64_t seq = atomic_load(&stream->submitted);
        if (context != NULL ? atomic_load(&stream->home) != context : atomic_load(&stream->ordinal) != ordinal)
            continue;
        if (!sgf_seq_done(stream, seq) && !wait_until(stream, seq, until))
            return false;
    }
    return true;
}

bool sgf_context_outwait(const struct CUctx_st *context, uint64_t nanoseconds)
{
    return outwait(context, 0, nanoseconds == 0 ? 0 : sgf_now() + nanoseconds);
}

bool sgf_context_idle(const struct CUctx_st *context)
{
    return outwait(context, 0, 1);
}

void sgf_device_drain(struct sgf_device *device)
{
    outwait(NULL, (uint32_t)(device - sgf.devices), 0);
}

struct CUstream_st *sgf_stream_new(struct CUctx_st *context, unsigned flags, int priority)
{
    struct CUstream_st *stream = sgf_new(SGF_STREAM);
    if (stream == NULL)
        return NULL;
    pthread_mutex_init(&stream->lock, NULL);
    stream->context = context;
    atomic_store(&stream->home, context);
    atomic_store(&stream->ordinal, (uint32_t)(context->device - sgf.devices));
    stream->flags = flags;
    stream->priority = priority;
    stream->id = atomic_fetch_add(&next_stream_id, 1);
    pthread_mutex_lock(&context->lock);
    stream->next = context->streams;
    if (stream->next != NULL)
        stream->next->previous = stream;
    context->streams = stream;
    if ((flags & CU_STREAM_NON_BLOCKING) == 0)
        atomic_fetch_add(&context->blocking_streams, 1);
    pthread_mutex_unlock(&context->lock);
    return stream;
}

void sgf_stream_release(struct CUstream_st *stream)
{
    struct CUctx_st *context = stream->context;
    uint64_t seq;
    /* A blocking stream's work must stay visible to the legacy stream until it is done. */
    if (blocking(stream) && busy(stream, &seq))
        append_wait(atomic_load(&context->legacy), stream, seq);
    pthread_mutex_lock(&context->lock);
    if (stream->previous != NULL)
        stream->previous->next = stream->next;
    else
        context->streams = stream->next;
    if (stream->next != NULL)
        stream->next->previous = stream->previous;
    if (blocking(stream))
        atomic_fetch_sub(&context->blocking_streams, 1);
    pthread_mutex_unlock(&context->lock);
    pthread_mutex_lock(&stream->lock);
    bool threaded = stream->threaded;
    atomic_store(&stream->destroyed, true);
    bool asleep = atomic_exchange(&stream->sleeping, 0) != 0;
    pthread_mutex_unlock(&stream->lock);
    if (asleep)
        sgf_futex_wake(&stream->sleeping, 1);
    if (!threaded)
        finish(stream);
}

static void end_thread(void *argument)
{
    struct sgf_thread *thread = argument;
    struct sgf_own_stream *own;
    while ((own = thread->own_streams) != NULL) {
        thread->own_streams = own->next;
        if (atomic_load(&sgf.state) == SGF_READY && sgf_valid(SGF_CONTEXT, own->context) &&
            own->context->id == own->context_id && sgf_valid(SGF_STREAM, own->stream))
            sgf_stream_release(own->stream);
        free(own);
    }
    sgf_thread_here = NULL;
    free(thread);
}

static pthread_key_t thread_key;
static pthread_once_t thread_once = PTHREAD_ONCE_INIT;

static void make_thread_key(void)
{
    pthread_key_create(&thread_key, end_thread);
}

struct sgf_thread *sgf_thread_slow(void)
{
    pthread_once(&thread_once, make_thread_key);
    struct sgf_thread *thread = calloc(1, sizeof *thread);
    if (thread == NULL)
        abort(); /* a few hundred bytes: the process cannot go on anyhow */
    pthread_setspecific(thread_key, thread);
    return sgf_thread_here = thread;
}

static struct CUstream_st *own_stream(struct CUctx_st *context)
{
    struct sgf_thread *thread = sgf_thread();
    for (struct sgf_own_stream *own = thread->own_streams; own != NULL; own = own->next)
        if (own->context == context && own->context_id == context->id)
            return own->stream;
    struct sgf_own_stream *own = malloc(sizeof *own);
    struct CUstream_st *stream = own == NULL ? NULL : sgf_stream_new(context, 0, 0);
    if (stream == NULL) {
        free(own);
        return NULL;
    }
    stream->per_thread = true;
    *own = (struct sgf_own_stream){ thread->own_streams, context, context->id, stream };
    thread->own_streams = own;
    return stream;
}

void sgf_own_streams_forget(struct CUctx_st *context)
{
    (void)context; /* entries of other threads name a context id that never comes back */
}

CUresult sgf_stream_resolve(struct CUctx_st *context, CUstream handle, struct CUstream_st **out)
{
    if (handle == NULL)
        handle = SGF_UNLIKELY(sgf_thread()->per_thread_default) ? CU_STREAM_PER_THREAD : CU_STREAM_LEGACY;
    if (handle == CU_STREAM_LEGACY) {
        *out = atomic_load_explicit(&context->legacy, memory_order_relaxed);
        return CUDA_SUCCESS;
    }
    if (handle == CU_STREAM_PER_THREAD) {
        *out = own_stream(context);
        return *out == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
    }
    if (SGF_UNLIKELY(!sgf_valid(SGF_STREAM, handle) || atomic_load(&handle->destroyed)))
        return CUDA_ERROR_INVALID_HANDLE;
    *out = handle;
    if (SGF_UNLIKELY(handle->context != context))
        return sgf_context_check(handle->context);
    return CUDA_SUCCESS;
}
