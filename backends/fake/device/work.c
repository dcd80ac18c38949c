/* Pieces of work: what a stream's thread carries out, one after the other. */
#include "device.h"

#include <stdlib.h>
#include <string.h>

struct sgf_work *sgf_work_new(enum sgf_work_kind kind, struct CUctx_st *context, size_t tail)
{
    struct sgf_work *work = malloc(sizeof *work + tail);
    if (SGF_UNLIKELY(work == NULL))
        return NULL;
    work->next = NULL;
    work->seq = 0;
    work->kind = kind;
    work->references = 0;
    work->context = context;
    return work;
}

void sgf_work_free(struct sgf_work *work)
{
    /* A stream's own work has no count; a graph's is shared with clones and launches. */
    if (__atomic_load_n(&work->references, __ATOMIC_ACQUIRE) != 0 && __atomic_sub_fetch(&work->references, 1, __ATOMIC_ACQ_REL) != 0)
        return;
    if (work->kind == SGF_WORK_PLAN)
        sgf_plan_release(work->u.part.plan);
    free(work);
}

/* A plain copy whose ends may be anywhere in the process: whatever faults is an error, not a crash. */
CUresult sgf_copy_run(const struct sgf_copy *c)
{
    bool solid = c->dst_pitch == c->width && c->src_pitch == c->width &&
                 (c->slices <= 1 || (c->dst_slice == c->width * c->rows && c->src_slice == c->width * c->rows));
    if (c->rows * c->slices <= 1 || solid)
        return sgf_guarded_copy((void *)(uintptr_t)c->dst, (const void *)(uintptr_t)c->src, c->width * c->rows * c->slices);
    for (uint64_t z = 0; z < c->slices; z++)
        for (uint64_t y = 0; y < c->rows; y++) {
            CUresult result = sgf_guarded_copy((void *)(uintptr_t)(c->dst + z * c->dst_slice + y * c->dst_pitch),
                                               (const void *)(uintptr_t)(c->src + z * c->src_slice + y * c->src_pitch),
                                               c->width);
            if (result != CUDA_SUCCESS)
                return result;
        }
    return CUDA_SUCCESS;
}

CUresult sgf_fill_run(const struct sgf_fill *f)
{
    for (uint64_t y = 0; y < f->rows; y++) {
        CUresult result = sgf_guarded_fill((void *)(uintptr_t)(f->dst + y * f->pitch), f->value, f->element, f->width);
        if (result != CUDA_SUCCESS)
            return result;
    }
    return CUDA_SUCCESS;
}

static void call_host(struct sgf_work *work, struct CUstream_st *stream)
{
    struct sgf_thread *thread = sgf_thread();
    const struct sgf_work *next = work->next;
    bool gated = next != NULL && next->kind == SGF_WORK_GATE;
    atomic_store(&stream->gate, gated ? next->u.gate.gate : NULL);
    sgf_park(stream, SGF_IN_HOST, gated ? next->u.gate.number : 0);
    thread->in_callback = true;
    if (work->kind == SGF_WORK_HOST)
        work->u.host.fn(work->u.host.user);
    else
        work->u.callback.fn(work->u.callback.said, (CUresult)atomic_load(&work->context->error), work->u.callback.user);
    thread->in_callback = false;
    sgf_unpark(stream);
}

static void wait_behind(struct CUstream_st *stream, struct CUstream_st *on, uint64_t seq)
{
    if (on == stream || sgf_seq_done(on, seq))
        return;
    atomic_store(&stream->ahead, on);
    sgf_park(stream, SGF_BEHIND, seq);
    sgf_wait_seq(on, seq);
    sgf_unpark(stream);
}

static CUresult run_plan(struct sgf_plan *plan, uint32_t from, uint32_t to, struct CUstream_st *stream)
{
    for (uint32_t i = from; i < to; i++) {
        if (plan->work[i] == NULL) /* an empty or disabled node */
            continue;
        CUresult result = sgf_work_run(plan->work[i], stream);
        if (result != CUDA_SUCCESS)
            return result;
    }
    return CUDA_SUCCESS;
}

CUresult sgf_work_run(struct sgf_work *work, struct CUstream_st *stream)
{
    bool failed = atomic_load_explicit(&work->context->error, memory_order_acquire) != 0;
    switch ((enum sgf_work_kind)work->kind) {
    case SGF_WORK_WAIT: {
        struct CUstream_st *on = work->u.wait.stream;
        uint64_t seq = work->u.wait.seq;
        if (work->u.wait.event != NULL && !sgf_event_point(work->u.wait.event, &on, &seq))
            return CUDA_SUCCESS;
        wait_behind(stream, on, seq);
        return CUDA_SUCCESS;
    }
    case SGF_WORK_RECORD:
        sgf_event_stamp(work->u.record.event, work->u.record.record);
        return CUDA_SUCCESS;
    case SGF_WORK_FREE:
        sgf_zone_free(work->u.release.zone, work->u.release.address);
        return CUDA_SUCCESS;
    case SGF_WORK_CALLBACK:
        call_host(work, stream);
        return CUDA_SUCCESS;
    case SGF_WORK_EMPTY:
        return CUDA_SUCCESS;
    case SGF_WORK_PLAN:
        return run_plan(work->u.part.plan, work->u.part.from, work->u.part.to, stream);
    case SGF_WORK_KERNEL:
        return failed ? CUDA_SUCCESS : sgf_kernel_run(&work->u.launch, work->tail, work->context);
    case SGF_WORK_COPY:
        return failed ? CUDA_SUCCESS : sgf_copy_run(&work->u.copy);
    case SGF_WORK_FILL:
        return failed ? CUDA_SUCCESS : sgf_fill_run(&work->u.fill);
    case SGF_WORK_HOST:
        if (!failed) /* documented: host functions are not run after an error */
            call_host(work, stream);
        return CUDA_SUCCESS;
    case SGF_WORK_TOLD_COPY:
        *work->u.told_copy.told = failed ? CUDA_SUCCESS : sgf_copy_run(&work->u.told_copy.copy);
        return CUDA_SUCCESS;
    case SGF_WORK_GATE:
        return failed ? CUDA_SUCCESS : sgf_gate_pass(stream, work->u.gate.gate, work->u.gate.number);
    }
    return CUDA_ERROR_UNKNOWN;
}
