/* Executable graphs: instantiation, updates, launches.
 *
 * An executable graph owns a copy of its graph.  Updates replace the work of nodes in that copy; the next launch
 * makes a new plan (an array of shared work), so launches in flight keep the one they started with.  A plan runs its
 * nodes one after the other on the launching stream.  Event nodes cut it into parts, because events are points of
 * the stream. */
#include "graph.h"

#include <stdlib.h>
#include <string.h>

void sgf_plan_release(struct sgf_plan *plan)
{
    if (atomic_fetch_sub(&plan->references, 1) != 1)
        return;
    for (uint32_t i = 0; i < plan->count; i++)
        if (plan->work[i] != NULL)
            sgf_work_free(plan->work[i]);
    free(plan);
}

static void forget_plan(struct CUgraphExec_st *exec)
{
    if (exec->plan != NULL)
        sgf_plan_release(exec->plan);
    exec->plan = NULL;
}

static CUresult make_plan(struct CUgraphExec_st *exec)
{
    struct sgf_plan *plan = calloc(1, sizeof *plan + exec->order_count * sizeof plan->work[0]);
    if (plan == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    atomic_store(&plan->references, 1);
    plan->count = exec->order_count;
    for (uint32_t i = 0; i < exec->order_count; i++) {
        struct CUgraphNode_st *node = exec->order[i];
        if (node->work != NULL && !node->disabled) {
            sgf_work_keep(node->work);
            plan->work[i] = node->work;
        }
    }
    exec->plan = plan;
    return CUDA_SUCCESS;
}

static CUresult instantiate(CUgraph graph, unsigned long long flags, CUgraphExec *out)
{
    if (out == NULL || !sgf_valid(SGF_GRAPH, graph))
        return CUDA_ERROR_INVALID_VALUE;
    if ((flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH) != 0) {
        sgf_once("cuGraphInstantiate for launches from the device");
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    struct CUgraphExec_st *exec = sgf_new(SGF_GRAPH_EXEC);
    if (exec == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_lock(&sgf_graph_lock);
    CUresult result = sgf_graph_copy(graph, &exec->graph);
    if (result == CUDA_SUCCESS) {
        exec->graph->owned = true;
        exec->number = exec->graph->number;
        exec->flags = flags;
        result = sgf_graph_order(exec->graph, &exec->order, &exec->order_count);
        if (result != CUDA_SUCCESS)
            sgf_graph_free(exec->graph);
    }
    pthread_mutex_unlock(&sgf_graph_lock);
    if (result != CUDA_SUCCESS)
        sgf_delete(exec);
    else
        *out = exec;
    return result;
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *phGraphExec, CUgraph hGraph, unsigned long long flags)
{
    SGF_ENTER();
    return instantiate(hGraph, flags, phGraphExec);
}

CUresult cuGraphInstantiate_v2(CUgraphExec *phGraphExec, CUgraph hGraph, CUgraphNode *phErrorNode, char *logBuffer,
                               size_t bufferSize)
{
    SGF_ENTER();
    if (phErrorNode != NULL)
        *phErrorNode = NULL;
    if (logBuffer != NULL && bufferSize > 0)
        logBuffer[0] = 0;
    return instantiate(hGraph, 0, phGraphExec);
}

CUresult cuGraphInstantiate(CUgraphExec *phGraphExec, CUgraph hGraph, CUgraphNode *phErrorNode, char *logBuffer,
                            size_t bufferSize)
{
    return cuGraphInstantiate_v2(phGraphExec, hGraph, phErrorNode, logBuffer, bufferSize);
}

CUresult cuGraphInstantiateWithParams(CUgraphExec *phGraphExec, CUgraph hGraph, CUDA_GRAPH_INSTANTIATE_PARAMS *instantiateParams)
{
    SGF_ENTER();
    if (instantiateParams == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = instantiate(hGraph, instantiateParams->flags, phGraphExec);
    instantiateParams->hErrNode_out = NULL;
    instantiateParams->result_out = result == CUDA_SUCCESS ? CUDA_GRAPH_INSTANTIATE_SUCCESS : CUDA_GRAPH_INSTANTIATE_ERROR;
    return result;
}

CUresult cuGraphExecDestroy(CUgraphExec hGraphExec)
{
    SGF_ENTER();
    if (!sgf_valid(SGF_GRAPH_EXEC, hGraphExec))
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sgf_graph_lock);
    forget_plan(hGraphExec);
    sgf_graph_free(hGraphExec->graph);
    free(hGraphExec->order);
    sgf_delete(hGraphExec);
    pthread_mutex_unlock(&sgf_graph_lock);
    return CUDA_SUCCESS;
}

CUresult cuGraphExecGetFlags(CUgraphExec hGraphExec, cuuint64_t *flags)
{
    SGF_ENTER();
    if (flags == NULL || !sgf_valid(SGF_GRAPH_EXEC, hGraphExec))
        return CUDA_ERROR_INVALID_VALUE;
    *flags = hGraphExec->flags;
    return CUDA_SUCCESS;
}

CUresult cuGraphExecGetId(CUgraphExec hGraphExec, unsigned int *graphId)
{
    SGF_ENTER();
    if (graphId == NULL || !sgf_valid(SGF_GRAPH_EXEC, hGraphExec))
        return CUDA_ERROR_INVALID_VALUE;
    *graphId = hGraphExec->number;
    return CUDA_SUCCESS;
}

/* ---- launch ------------------------------------------------------------------------------------------------------- */
static CUresult submit_part(struct CUstream_st *stream, struct sgf_plan *plan, uint32_t from, uint32_t to)
{
    if (from == to)
        return CUDA_SUCCESS;
    struct sgf_work *work = sgf_work_new(SGF_WORK_PLAN, stream->context, 0);
    if (work == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    atomic_fetch_add(&plan->references, 1);
    work->u.part.plan = plan;
    work->u.part.from = from;
    work->u.part.to = to;
    return sgf_stream_submit(stream, work, NULL);
}

static CUresult submit_event(struct CUstream_st *stream, const struct CUgraphNode_st *node)
{
    struct CUevent_st *event = node->event;
    if (!sgf_valid(SGF_EVENT, event))
        return CUDA_ERROR_INVALID_HANDLE;
    bool record = node->type == CU_GRAPH_NODE_TYPE_EVENT_RECORD;
    struct sgf_work *work = sgf_work_new(record ? SGF_WORK_RECORD : SGF_WORK_WAIT, stream->context, 0);
    uint64_t seq;
    if (work == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (record) {
        uint64_t number = sgf_event_promise(event, stream);
        work->u.record.event = event;
        work->u.record.record = number;
        CUresult result = sgf_stream_submit(stream, work, &seq);
        sgf_event_promised(event, number, stream, result == CUDA_SUCCESS ? seq : 0);
        return result;
    }
    work->u.wait.event = NULL;
    if (!sgf_event_point(event, &work->u.wait.stream, &work->u.wait.seq)) {
        sgf_work_free(work);
        return CUDA_SUCCESS;
    }
    return sgf_stream_submit(stream, work, NULL);
}

static CUresult launch(struct CUgraphExec_st *exec, struct CUstream_st *stream)
{
    CUresult result = exec->plan == NULL ? make_plan(exec) : CUDA_SUCCESS;
    uint32_t from = 0;
    for (uint32_t i = 0; i < exec->order_count && result == CUDA_SUCCESS; i++) {
        struct CUgraphNode_st *node = exec->order[i];
        if (node->event == NULL || node->disabled)
            continue;
        result = submit_part(stream, exec->plan, from, i);
        if (result == CUDA_SUCCESS)
            result = submit_event(stream, node);
        from = i + 1;
    }
    return result != CUDA_SUCCESS ? result : submit_part(stream, exec->plan, from, exec->order_count);
}

CUresult cuGraphLaunch(CUgraphExec hGraph, CUstream hStream)
{
    SGF_ENTER_CONTEXT(context);
    struct CUstream_st *stream;
    CUresult result = sgf_stream_resolve(context, hStream, &stream);
    if (result != CUDA_SUCCESS)
        return result;
    if (!sgf_valid(SGF_GRAPH_EXEC, hGraph))
        return CUDA_ERROR_INVALID_VALUE;
    if ((result = sgf_capture_forbids(context, stream)) != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&sgf_graph_lock);
    result = launch(hGraph, stream);
    pthread_mutex_unlock(&sgf_graph_lock);
    return result;
}

CUresult cuGraphUpload(CUgraphExec hGraph, CUstream hStream)
{
    SGF_ENTER_CONTEXT(context);
    struct CUstream_st *stream;
    CUresult result = sgf_stream_resolve(context, hStream, &stream);
    if (result == CUDA_SUCCESS && !sgf_valid(SGF_GRAPH_EXEC, hGraph))
        result = CUDA_ERROR_INVALID_VALUE;
    return result; /* nothing to carry anywhere */
}

/* The copy's node for the original's.  Copies keep ids and order, so the first guess is usually right. */
static struct CUgraphNode_st *own_node(struct CUgraphExec_st *exec, const struct CUgraphNode_st *node)
{
    struct CUgraphNode_st *own = node->id < exec->order_count ? exec->order[node->id] : NULL;
    if (own == NULL || own->id != node->id || own->graph != exec->graph)
        own = sgf_graph_find(exec->graph, node->id);
    return own != NULL && own->type == node->type ? own : NULL;
}

/* ---- updates -------------------------------------------------------------------------------------------------------- */
static CUresult set(CUgraphExec exec, CUgraphNode node, const CUgraphNodeParams *p)
{
    if (!sgf_valid(SGF_GRAPH_EXEC, exec) || !sgf_valid(SGF_NODE, node))
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sgf_graph_lock);
    struct CUgraphNode_st *own = own_node(exec, node);
    CUresult result = own == NULL ? CUDA_ERROR_INVALID_VALUE : sgf_node_set(own, p);
    if (result == CUDA_SUCCESS)
        forget_plan(exec);
    pthread_mutex_unlock(&sgf_graph_lock);
    return result;
}

#define PARAMS(kind) CUgraphNodeParams p; memset(&p, 0, sizeof p); p.type = CU_GRAPH_NODE_TYPE_##kind

CUresult cuGraphExecKernelNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode, const CUDA_KERNEL_NODE_PARAMS_v1 *nodeParams)
{
    SGF_ENTER();
    CUgraphNodeParams p;
    return sgf_params_from_kernel(&p, nodeParams, sizeof *nodeParams) ? set(hGraphExec, hNode, &p) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec hGraphExec, CUgraphNode hNode, const CUDA_KERNEL_NODE_PARAMS *nodeParams)
{
    SGF_ENTER();
    CUgraphNodeParams p;
    return sgf_params_from_kernel(&p, nodeParams, sizeof *nodeParams) ? set(hGraphExec, hNode, &p) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphExecMemcpyNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode, const CUDA_MEMCPY3D *copyParams, CUcontext ctx)
{
    SGF_ENTER();
    CUgraphNodeParams p;
    return sgf_params_from_copy(&p, copyParams, ctx) ? set(hGraphExec, hNode, &p) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphExecMemsetNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode, const CUDA_MEMSET_NODE_PARAMS *memsetParams,
                                        CUcontext ctx)
{
    SGF_ENTER();
    CUgraphNodeParams p;
    return sgf_params_from_fill(&p, memsetParams, ctx) ? set(hGraphExec, hNode, &p) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphExecHostNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode, const CUDA_HOST_NODE_PARAMS *nodeParams)
{
    SGF_ENTER();
    CUgraphNodeParams p;
    return sgf_params_from_host(&p, nodeParams) ? set(hGraphExec, hNode, &p) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphExecEventRecordNodeSetEvent(CUgraphExec hGraphExec, CUgraphNode hNode, CUevent event)
{
    SGF_ENTER();
    PARAMS(EVENT_RECORD);
    p.eventRecord.event = event;
    return set(hGraphExec, hNode, &p);
}

CUresult cuGraphExecEventWaitNodeSetEvent(CUgraphExec hGraphExec, CUgraphNode hNode, CUevent event)
{
    SGF_ENTER();
    PARAMS(WAIT_EVENT);
    p.eventWait.event = event;
    return set(hGraphExec, hNode, &p);
}

CUresult cuGraphExecNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode, CUgraphNodeParams *nodeParams)
{
    SGF_ENTER();
    if (nodeParams == NULL || nodeParams->type == CU_GRAPH_NODE_TYPE_GRAPH)
        return CUDA_ERROR_INVALID_VALUE;
    return set(hGraphExec, hNode, nodeParams);
}

CUresult cuGraphNodeSetEnabled(CUgraphExec hGraphExec, CUgraphNode hNode, unsigned int isEnabled)
{
    SGF_ENTER();
    if (!sgf_valid(SGF_GRAPH_EXEC, hGraphExec) || !sgf_valid(SGF_NODE, hNode))
        return CUDA_ERROR_INVALID_VALUE;
    if (hNode->type != CU_GRAPH_NODE_TYPE_KERNEL && hNode->type != CU_GRAPH_NODE_TYPE_MEMSET &&
        hNode->type != CU_GRAPH_NODE_TYPE_MEMCPY)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sgf_graph_lock);
    struct CUgraphNode_st *own = own_node(hGraphExec, hNode);
    if (own != NULL) {
        own->disabled = isEnabled == 0;
        forget_plan(hGraphExec);
    }
    pthread_mutex_unlock(&sgf_graph_lock);
    return own == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult cuGraphNodeGetEnabled(CUgraphExec hGraphExec, CUgraphNode hNode, unsigned int *isEnabled)
{
    SGF_ENTER();
    if (!sgf_valid(SGF_GRAPH_EXEC, hGraphExec) || !sgf_valid(SGF_NODE, hNode) || isEnabled == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sgf_graph_lock);
    struct CUgraphNode_st *own = own_node(hGraphExec, hNode);
    if (own != NULL)
        *isEnabled = !own->disabled;
    pthread_mutex_unlock(&sgf_graph_lock);
    return own == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

/* Whether `with` has the shape of `own`; what differs first goes to *info. */
static bool same_shape(struct CUgraph_st *own, struct CUgraph_st *with, CUgraphExecUpdateResultInfo *info)
{
    struct CUgraphNode_st *a = own->first, *b = with->first;
    for (; a != NULL && b != NULL; a = a->next, b = b->next) {
        bool same = a->need_count == b->need_count;
        info->errorNode = b;
        info->result = CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED;
        if (a->type != b->type || (a->child != NULL && !same_shape(a->child, b->child, info)))
            return false;
        for (uint32_t i = 0; i < a->need_count && same; i++)
            same = a->needs[i]->mark == b->needs[i]->mark;
        info->result = CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
        if (!same)
            return false;
    }
    info->result = CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
    info->errorNode = NULL;
    return a == NULL && b == NULL;
}

static void number_nodes(struct CUgraph_st *graph)
{
    uint32_t number = 1;
    for (struct CUgraphNode_st *node = graph->first; node != NULL; node = node->next) {
        node->mark = number++;
        if (node->child != NULL)
            number_nodes(node->child);
    }
}

static void take_work(struct CUgraph_st *own, struct CUgraph_st *from)
{
    for (struct CUgraphNode_st *a = own->first, *b = from->first; a != NULL; a = a->next, b = b->next) {
        if (b->work != NULL) {
            sgf_work_keep(b->work);
            sgf_node_set_work(a, b->work);
        }
        a->event = b->event;
        a->id = b->id; /* later SetParams calls may name the new graph's nodes */
        if (a->child != NULL)
            take_work(a->child, b->child);
    }
}

CUresult cuGraphExecUpdate_v2(CUgraphExec hGraphExec, CUgraph hGraph, CUgraphExecUpdateResultInfo *resultInfo)
{
    SGF_ENTER();
    if (!sgf_valid(SGF_GRAPH_EXEC, hGraphExec) || !sgf_valid(SGF_GRAPH, hGraph) || resultInfo == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    memset(resultInfo, 0, sizeof *resultInfo);
    pthread_mutex_lock(&sgf_graph_lock);
    number_nodes(hGraphExec->graph);
    number_nodes(hGraph);
    bool same = same_shape(hGraphExec->graph, hGraph, resultInfo);
    if (same) {
        take_work(hGraphExec->graph, hGraph);
        forget_plan(hGraphExec);
        resultInfo->result = CU_GRAPH_EXEC_UPDATE_SUCCESS;
    }
    pthread_mutex_unlock(&sgf_graph_lock);
    return same ? CUDA_SUCCESS : CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
}

CUresult cuGraphExecUpdate(CUgraphExec hGraphExec, CUgraph hGraph, CUgraphNode *hErrorNode_out,
                           CUgraphExecUpdateResult *updateResult_out)
{
    CUgraphExecUpdateResultInfo info;
    memset(&info, 0, sizeof info);
    CUresult result = cuGraphExecUpdate_v2(hGraphExec, hGraph, &info);
    if (hErrorNode_out != NULL)
        *hErrorNode_out = info.errorNode;
    if (updateResult_out != NULL)
        *updateResult_out = info.result;
    return result;
}

CUresult cuGraphExecChildGraphNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode, CUgraph childGraph)
{
    SGF_ENTER();
    CUgraphExecUpdateResultInfo info;
    if (!sgf_valid(SGF_GRAPH_EXEC, hGraphExec) || !sgf_valid(SGF_NODE, hNode) || !sgf_valid(SGF_GRAPH, childGraph))
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sgf_graph_lock);
    struct CUgraphNode_st *own = own_node(hGraphExec, hNode);
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    if (own != NULL && own->child != NULL) {
        number_nodes(own->child);
        number_nodes(childGraph);
        result = same_shape(own->child, childGraph, &info) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
        if (result == CUDA_SUCCESS) {
            take_work(own->child, childGraph);
            forget_plan(hGraphExec);
        }
    }
    pthread_mutex_unlock(&sgf_graph_lock);
    return result;
}
