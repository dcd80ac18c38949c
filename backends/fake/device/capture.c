/* Stream capture: calls on a capturing stream become nodes of a graph.
 *
 * Each capturing stream has "tips", the nodes that its next node needs.  Events recorded in it carry tips to other
 * streams, which thereby join the capture.  `active` lets everybody else pass with one load. */
#include "graph.h"

#include <stdlib.h>
#include <string.h>

struct sgf_capture {
    struct sgf_capture *next;
    uint64_t id;
    struct CUgraph_st *graph;
    bool graph_given; /* cuStreamBeginCaptureToGraph: the graph is the caller's */
    CUstreamCaptureMode mode;
    pthread_t thread;
    struct CUstream_st *origin;
    bool invalid;
};

static _Atomic uint32_t active;
static struct sgf_capture *captures;
static uint64_t next_id = 1;

static CUresult set_tips(struct CUstream_st *stream, struct CUgraphNode_st *const *nodes, size_t count)
{
    struct CUgraphNode_st **copy = malloc((count + 1) * sizeof *copy);
    if (copy == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (count != 0)
        memcpy(copy, nodes, count * sizeof *copy);
    free(stream->tips);
    stream->tips = copy;
    stream->tip_count = (uint32_t)count;
    return CUDA_SUCCESS;
}

static CUresult add_tips(struct CUstream_st *stream, struct CUgraphNode_st *const *nodes, size_t count)
{
    struct CUgraphNode_st **all = malloc((stream->tip_count + count + 1) * sizeof *all);
    size_t used = 0;
    if (all == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    for (size_t i = 0; i < stream->tip_count + count; i++) {
        struct CUgraphNode_st *node = i < stream->tip_count ? stream->tips[i] : nodes[i - stream->tip_count];
        bool there = false;
        for (size_t k = 0; k < used; k++)
            there = there || all[k] == node;
        if (!there)
            all[used++] = node;
    }
    free(stream->tips);
    stream->tips = all;
    stream->tip_count = (uint32_t)used;
    return CUDA_SUCCESS;
}

static void leave(struct CUstream_st *stream)
{
    free(stream->tips);
    stream->tips = NULL;
    stream->tip_count = 0;
    atomic_store(&stream->capture, NULL);
}

/* All streams of all contexts that take part in `capture`. */
static struct CUstream_st *member(struct sgf_capture *capture, uint32_t *at)
{
    while (*at < sgf_slots(SGF_STREAM)) {
        struct CUstream_st *stream = sgf_slot(SGF_STREAM, (*at)++);
        if (stream != NULL && atomic_load(&stream->capture) == capture)
            return stream;
    }
    return NULL;
}

static void end(struct sgf_capture *capture)
{
    struct sgf_capture **at = &captures;
    while (*at != capture)
        at = &(*at)->next;
    *at = capture->next;
    uint32_t slot = 0;
    struct CUstream_st *stream;
    while ((stream = member(capture, &slot)) != NULL)
        leave(stream);
    atomic_fetch_sub(&active, 1);
    free(capture);
}

static CUgraphNodeType type_of(const struct sgf_work *work)
{
    switch (work->kind) {
    case SGF_WORK_KERNEL: return CU_GRAPH_NODE_TYPE_KERNEL;
    case SGF_WORK_COPY: return CU_GRAPH_NODE_TYPE_MEMCPY;
    case SGF_WORK_FILL: return CU_GRAPH_NODE_TYPE_MEMSET;
    case SGF_WORK_HOST: return CU_GRAPH_NODE_TYPE_HOST;
    default: return CU_GRAPH_NODE_TYPE_EMPTY;
    }
}

/* A legacy stream must not be used while a blocking stream of its context captures. */
static bool implicit(struct CUctx_st *context)
{
    bool found = false;
    uint32_t slot;
    for (struct sgf_capture *c = captures; c != NULL; c = c->next) {
        struct CUstream_st *stream;
        slot = 0;
        while ((stream = member(c, &slot)) != NULL)
            if (stream->context == context && (stream->flags & CU_STREAM_NON_BLOCKING) == 0) {
                c->invalid = true;
                found = true;
            }
    }
    return found;
}

static CUresult take(struct CUstream_st *stream, struct sgf_capture *capture, struct sgf_work *work)
{
    CUgraphNode node;
    if (capture->invalid)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    CUresult result = sgf_graph_add(capture->graph, type_of(work), stream->tips, stream->tip_count, &node);
    if (result != CUDA_SUCCESS)
        return result;
    work->references = 1;
    node->work = work;
    return set_tips(stream, &node, 1);
}

bool sgf_capture_work(struct CUstream_st *stream, struct sgf_work *work, CUresult *result)
{
    if (SGF_LIKELY(atomic_load_explicit(&active, memory_order_acquire) == 0))
        return false;
    pthread_mutex_lock(&sgf_graph_lock);
    struct sgf_capture *capture = atomic_load(&stream->capture);
    bool taken = true;
    *result = CUDA_SUCCESS;
    if (capture != NULL)
        *result = take(stream, capture, work);
    else if (stream->legacy && implicit(stream->context))
        *result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    else
        taken = false;
    pthread_mutex_unlock(&sgf_graph_lock);
    if (taken && *result != CUDA_SUCCESS && work->references == 0)
        sgf_work_free(work);
    return taken;
}

CUresult sgf_capture_record(struct CUstream_st *stream, CUevent event)
{
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&sgf_graph_lock);
    struct sgf_capture *capture = atomic_load(&stream->capture);
    struct CUgraphNode_st **nodes = malloc((stream->tip_count + 1) * sizeof *nodes);
    if (capture == NULL || capture->invalid) {
        result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    } else if (nodes == NULL) {
        result = CUDA_ERROR_OUT_OF_MEMORY;
    } else {
        if (stream->tip_count != 0)
            memcpy(nodes, stream->tips, stream->tip_count * sizeof *nodes);
        pthread_mutex_lock(&event->lock);
        struct CUgraphNode_st **old = event->nodes;
        event->nodes = nodes;
        event->node_count = stream->tip_count;
        event->capture_id = capture->id;
        event->record++;
        pthread_mutex_unlock(&event->lock);
        nodes = old;
    }
    free(nodes);
    pthread_mutex_unlock(&sgf_graph_lock);
    return result;
}

static struct sgf_capture *by_id(uint64_t id)
{
    struct sgf_capture *capture = captures;
    while (capture != NULL && capture->id != id)
        capture = capture->next;
    return capture;
}

static CUresult join(struct CUstream_st *stream, CUevent event)
{
    struct sgf_capture *here = atomic_load(&stream->capture), *there = by_id(event->capture_id);
    if (event->capture_id == 0) {
        here->invalid = true;
        return CUDA_ERROR_STREAM_CAPTURE_ISOLATION; /* a capture must not wait for what lies outside it */
    }
    if (there == NULL)
        return CUDA_ERROR_CAPTURED_EVENT;
    if (here != NULL && here != there) {
        here->invalid = there->invalid = true;
        return CUDA_ERROR_STREAM_CAPTURE_MERGE;
    }
    if (there->invalid)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (stream->legacy)
        return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    if (here == NULL) {
        atomic_store(&stream->capture, there);
        return set_tips(stream, event->nodes, event->node_count);
    }
    return add_tips(stream, event->nodes, event->node_count);
}

bool sgf_capture_wait(struct CUstream_st *stream, CUevent event, CUresult *result)
{
    if (SGF_LIKELY(atomic_load_explicit(&active, memory_order_acquire) == 0 && event->capture_id == 0))
        return false;
    pthread_mutex_lock(&sgf_graph_lock);
    bool ours = event->capture_id != 0 || atomic_load(&stream->capture) != NULL;
    if (ours)
        *result = join(stream, event);
    pthread_mutex_unlock(&sgf_graph_lock);
    return ours;
}

CUresult sgf_capture_forbids(struct CUctx_st *context, struct CUstream_st *stream)
{
    CUresult result = CUDA_SUCCESS;
    if (SGF_LIKELY(atomic_load_explicit(&active, memory_order_acquire) == 0))
        return CUDA_SUCCESS;
    pthread_mutex_lock(&sgf_graph_lock);
    if (stream == NULL) {
        for (struct sgf_capture *c = captures; c != NULL; c = c->next)
            if (c->origin->context == context) {
                c->invalid = true;
                result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
            }
    } else if (atomic_load(&stream->capture) != NULL) {
        atomic_load(&stream->capture)->invalid = true;
        result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    } else if (stream->legacy && implicit(context)) {
        result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
    pthread_mutex_unlock(&sgf_graph_lock);
    return result;
}

CUresult sgf_capture_unsafe(void)
{
    CUresult result = CUDA_SUCCESS;
    if (SGF_LIKELY(atomic_load_explicit(&active, memory_order_acquire) == 0))
        return CUDA_SUCCESS;
    struct sgf_thread *thread = sgf_thread();
    CUstreamCaptureMode mode = thread->capture_mode_set ? thread->capture_mode : CU_STREAM_CAPTURE_MODE_GLOBAL;
    if (mode == CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_SUCCESS;
    pthread_mutex_lock(&sgf_graph_lock);
    for (struct sgf_capture *c = captures; c != NULL; c = c->next) {
        bool mine = pthread_equal(c->thread, pthread_self()) && c->mode != CU_STREAM_CAPTURE_MODE_RELAXED;
        bool global = c->mode == CU_STREAM_CAPTURE_MODE_GLOBAL && mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
        if (mine || global) {
            c->invalid = true;
            result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        }
    }
    pthread_mutex_unlock(&sgf_graph_lock);
    return result;
}

void sgf_capture_abandon(struct CUstream_st *stream)
{
    pthread_mutex_lock(&sgf_graph_lock);
    struct sgf_capture *capture = atomic_load(&stream->capture);
    if (capture != NULL && capture->origin == stream) {
        if (!capture->graph_given)
            sgf_graph_free(capture->graph);
        end(capture);
    } else if (capture != NULL) {
        capture->invalid = true;
        leave(stream);
    }
    pthread_mutex_unlock(&sgf_graph_lock);
}

/* ---- calls ------------------------------------------------------------------------------------------------------------ */
#define SGF_ENTER_STREAM(stream, handle) \
    SGF_ENTER_CONTEXT(context); \
    struct CUstream_st *stream; \
    do { CUresult found_ = sgf_stream_resolve(context, handle, &stream); if (found_ != 0) return found_; } while (0)

static CUresult begin(struct CUstream_st *stream, CUstreamCaptureMode mode, CUgraph graph, const CUgraphNode *needs, size_t count)
{
    if ((unsigned)mode > CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_ERROR_INVALID_VALUE;
    if (stream->legacy)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (atomic_load(&stream->capture) != NULL)
        return CUDA_ERROR_ILLEGAL_STATE;
    struct sgf_capture *capture = calloc(1, sizeof *capture);
    if (capture == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = graph != NULL ? CUDA_SUCCESS : sgf_graph_new(&capture->graph);
    if (result == CUDA_SUCCESS)
        result = set_tips(stream, needs, count);
    if (result != CUDA_SUCCESS) {
        free(capture);
        return result;
    }
    if (graph != NULL)
        capture->graph = graph;
    capture->graph_given = graph != NULL;
    capture->id = next_id++;
    capture->mode = mode;
    capture->thread = pthread_self();
    capture->origin = stream;
    capture->next = captures;
    captures = capture;
    atomic_store(&stream->capture, capture);
    atomic_fetch_add(&active, 1);
    return CUDA_SUCCESS;
}

CUresult cuStreamBeginCapture_v2(CUstream hStream, CUstreamCaptureMode mode)
{
    SGF_ENTER_STREAM(stream, hStream);
    pthread_mutex_lock(&sgf_graph_lock);
    CUresult result = begin(stream, mode, NULL, NULL, 0);
    pthread_mutex_unlock(&sgf_graph_lock);
    return result;
}

CUresult cuStreamBeginCapture(CUstream hStream)
{
    return cuStreamBeginCapture_v2(hStream, CU_STREAM_CAPTURE_MODE_GLOBAL);
}

CUresult cuStreamBeginCaptureToGraph(CUstream hStream, CUgraph hGraph, const CUgraphNode *dependencies,
                                     const CUgraphEdgeData *dependencyData, size_t numDependencies, CUstreamCaptureMode mode)
{
    SGF_ENTER_STREAM(stream, hStream);
    (void)dependencyData;
    if (!sgf_valid(SGF_GRAPH, hGraph) || (numDependencies != 0 && dependencies == NULL))
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < numDependencies; i++)
        if (!sgf_valid(SGF_NODE, dependencies[i]) || dependencies[i]->graph != hGraph)
            return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sgf_graph_lock);
    CUresult result = begin(stream, mode, hGraph, dependencies, numDependencies);
    pthread_mutex_unlock(&sgf_graph_lock);
    return result;
}

static void mark_before(struct CUgraphNode_st *node)
{
    if (node->mark == UINT32_MAX)
        return;
    node->mark = UINT32_MAX;
    for (uint32_t i = 0; i < node->need_count; i++)
        mark_before(node->needs[i]);
}

/* Every stream that joined must have been waited for by the origin. */
static bool joined(struct sgf_capture *capture)
{
    uint32_t slot = 0;
    struct CUstream_st *stream;
    for (struct CUgraphNode_st *node = capture->graph->first; node != NULL; node = node->next)
        node->mark = 0;
    for (uint32_t i = 0; i < capture->origin->tip_count; i++)
        mark_before(capture->origin->tips[i]);
    while ((stream = member(capture, &slot)) != NULL)
        for (uint32_t i = 0; i < stream->tip_count; i++)
            if (stream->tips[i]->mark != UINT32_MAX)
                return false;
    return true;
}

static CUresult finish(struct CUstream_st *stream, CUgraph *out)
{
    struct sgf_capture *capture = atomic_load(&stream->capture);
    if (capture == NULL)
        return CUDA_ERROR_ILLEGAL_STATE;
    if (capture->origin != stream)
        return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && !pthread_equal(capture->thread, pthread_self()))
        return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    CUresult result = capture->invalid ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
                      : joined(capture) ? CUDA_SUCCESS
                                        : CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
    if (result == CUDA_SUCCESS)
        *out = capture->graph;
    else if (!capture->graph_given)
        sgf_graph_free(capture->graph);
    end(capture);
    return result;
}

CUresult cuStreamEndCapture(CUstream hStream, CUgraph *phGraph)
{
    SGF_ENTER_STREAM(stream, hStream);
    if (phGraph == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *phGraph = NULL;
    pthread_mutex_lock(&sgf_graph_lock);
    CUresult result = finish(stream, phGraph);
    pthread_mutex_unlock(&sgf_graph_lock);
    return result;
}

static CUresult info(CUstream handle, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
                     const CUgraphNode **tips, size_t *count)
{
    SGF_ENTER_STREAM(stream, handle);
    if (status == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sgf_graph_lock);
    struct sgf_capture *capture = atomic_load(&stream->capture);
    CUresult result = capture == NULL && stream->legacy && atomic_load(&active) != 0 && implicit(stream->context)
                          ? CUDA_ERROR_STREAM_CAPTURE_IMPLICIT : CUDA_SUCCESS;
    *status = capture == NULL  ? CU_STREAM_CAPTURE_STATUS_NONE
              : capture->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                 : CU_STREAM_CAPTURE_STATUS_ACTIVE;
    if (*status == CU_STREAM_CAPTURE_STATUS_ACTIVE) {
        if (id != NULL)
            *id = capture->id;
        if (graph != NULL)
            *graph = capture->graph;
        if (tips != NULL)
            *tips = stream->tips;
        if (count != NULL)
            *count = stream->tip_count;
    }
    pthread_mutex_unlock(&sgf_graph_lock);
    return result;
}

CUresult cuStreamIsCapturing(CUstream hStream, CUstreamCaptureStatus *captureStatus)
{
    return info(hStream, captureStatus, NULL, NULL, NULL, NULL);
}

CUresult cuStreamGetCaptureInfo(CUstream hStream, CUstreamCaptureStatus *captureStatus_out, cuuint64_t *id_out)
{
    return info(hStream, captureStatus_out, id_out, NULL, NULL, NULL);
}

CUresult cuStreamGetCaptureInfo_v2(CUstream hStream, CUstreamCaptureStatus *captureStatus_out, cuuint64_t *id_out,
                                   CUgraph *graph_out, const CUgraphNode **dependencies_out, size_t *numDependencies_out)
{
    return info(hStream, captureStatus_out, id_out, graph_out, dependencies_out, numDependencies_out);
}

CUresult cuStreamGetCaptureInfo_v3(CUstream hStream, CUstreamCaptureStatus *captureStatus_out, cuuint64_t *id_out,
                                   CUgraph *graph_out, const CUgraphNode **dependencies_out,
                                   const CUgraphEdgeData **edgeData_out, size_t *numDependencies_out)
{
    if (edgeData_out != NULL)
        *edgeData_out = NULL; /* documented: NULL when all edges are plain */
    return info(hStream, captureStatus_out, id_out, graph_out, dependencies_out, numDependencies_out);
}

CUresult cuStreamUpdateCaptureDependencies(CUstream hStream, CUgraphNode *dependencies, size_t numDependencies,
                                           unsigned int flags)
{
    SGF_ENTER_STREAM(stream, hStream);
    if (flags > CU_STREAM_SET_CAPTURE_DEPENDENCIES || (numDependencies != 0 && dependencies == NULL))
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sgf_graph_lock);
    struct sgf_capture *capture = atomic_load(&stream->capture);
    CUresult result = capture == NULL ? CUDA_ERROR_ILLEGAL_STATE : CUDA_SUCCESS;
    for (size_t i = 0; i < numDependencies && result == CUDA_SUCCESS; i++)
        if (!sgf_valid(SGF_NODE, dependencies[i]) || dependencies[i]->graph != capture->graph)
            result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        result = flags == CU_STREAM_SET_CAPTURE_DEPENDENCIES ? set_tips(stream, dependencies, numDependencies)
                                                             : add_tips(stream, dependencies, numDependencies);
    pthread_mutex_unlock(&sgf_graph_lock);
    return result;
}

CUresult cuStreamUpdateCaptureDependencies_v2(CUstream hStream, CUgraphNode *dependencies, const CUgraphEdgeData *dependencyData,
                                              size_t numDependencies, unsigned int flags)
{
    (void)dependencyData;
    return cuStreamUpdateCaptureDependencies(hStream, dependencies, numDependencies, flags);
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
    SGF_ENTER();
    struct sgf_thread *thread = sgf_thread();
    if (mode == NULL || (unsigned)*mode > CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_ERROR_INVALID_VALUE;
    CUstreamCaptureMode before = thread->capture_mode_set ? thread->capture_mode : CU_STREAM_CAPTURE_MODE_GLOBAL;
    thread->capture_mode = *mode;
    thread->capture_mode_set = true;
    *mode = before;
    return CUDA_SUCCESS;
}
