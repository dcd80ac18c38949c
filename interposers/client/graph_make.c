/* Graphs as wholes: instantiating, cloning, updating, listing, edges. */
#include "../wire.h"
#include "client.h"

#define MAX_EDGES 2048u

static CUresult make(const char *call, uint32_t what, uint32_t kind, uint64_t graph, uint64_t flags, uint64_t *handle)
{
    CUresult error = sg_enter();
    if (error)
        return error;
    if (!sg_handle_known(SG_KIND_GRAPH, graph))
        return CUDA_ERROR_INVALID_VALUE;
    struct sg_wire_graph_make *wire = sg_begin(SG_OP_graph_instantiate, sizeof *wire);
    if (!wire)
        return sg_lost(call);
    *wire = (struct sg_wire_graph_make){.graph = graph, .flags = flags, .what = what};
    error = sg_call(call, handle, sizeof *handle);
    if (error)
        return error;
    /* An executable graph remembers where it came from: its nodes' handles are the graph's. */
    void *origin = what == SG_GRAPH_INSTANTIATE ? (void *)(uintptr_t)graph : NULL;
    return sg_handle_note(kind, *handle, 0, origin) ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

static CUresult instantiate(const char *call, CUgraphExec *out, CUgraph graph, uint64_t flags)
{
    uint64_t handle;
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    if (flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH)
        return sg_declined(call, "launching graphs from the device is not supported", "launch them from the host");
    CUresult error = make(call, SG_GRAPH_INSTANTIATE, SG_KIND_GRAPH_EXEC, SG_VALUE(graph), flags & CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY, &handle);
    if (!error)
        *out = (CUgraphExec)(uintptr_t)handle;
    return error;
}

CUresult sg_hand_cuGraphInstantiateWithFlags(CUgraphExec *phGraphExec, CUgraph hGraph, unsigned long long flags)
{
    return instantiate("cuGraphInstantiate", phGraphExec, hGraph, flags);
}

CUresult sg_hand_cuGraphInstantiate_v2(CUgraphExec *phGraphExec, CUgraph hGraph, CUgraphNode *phErrorNode, char *logBuffer, size_t bufferSize)
{
    if (phErrorNode)
        *phErrorNode = NULL;
    if (logBuffer && bufferSize)
        logBuffer[0] = 0;
    return instantiate("cuGraphInstantiate", phGraphExec, hGraph, 0);
}

CUresult sg_hand_cuGraphInstantiate(CUgraphExec *phGraphExec, CUgraph hGraph, CUgraphNode *phErrorNode, char *logBuffer, size_t bufferSize)
{
    return sg_hand_cuGraphInstantiate_v2(phGraphExec, hGraph, phErrorNode, logBuffer, bufferSize);
}

CUresult sg_hand_cuGraphInstantiateWithParams(CUgraphExec *phGraphExec, CUgraph hGraph, CUDA_GRAPH_INSTANTIATE_PARAMS *instantiateParams)
{
    if (!instantiateParams)
        return CUDA_ERROR_INVALID_VALUE;
    instantiateParams->hErrNode_out = NULL;
    CUresult error = instantiate("cuGraphInstantiate", phGraphExec, hGraph, instantiateParams->flags);
    if (!error && instantiateParams->flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD)
        error = sg_send_cuGraphUpload(*phGraphExec, instantiateParams->hUploadStream);
    instantiateParams->result_out = error ? CUDA_GRAPH_INSTANTIATE_ERROR : CUDA_GRAPH_INSTANTIATE_SUCCESS;
    return error;
}

CUresult sg_hand_cuGraphClone(CUgraph *phGraphClone, CUgraph originalGraph)
{
    uint64_t handle;
    if (!phGraphClone)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult error = make("cuGraphClone", SG_GRAPH_CLONE, SG_KIND_GRAPH, SG_VALUE(originalGraph), 0, &handle);
    if (!error)
        *phGraphClone = (CUgraph)(uintptr_t)handle;
    return error;
}

CUresult sg_hand_cuGraphExecUpdate_v2(CUgraphExec hGraphExec, CUgraph hGraph, CUgraphExecUpdateResultInfo *resultInfo)
{
    CUresult error = sg_enter();
    if (error)
        return error;
    if (!sg_handle_known(SG_KIND_GRAPH_EXEC, SG_VALUE(hGraphExec)) || !sg_handle_known(SG_KIND_GRAPH, SG_VALUE(hGraph)))
        return CUDA_ERROR_INVALID_VALUE;
    if (!resultInfo)
        return CUDA_ERROR_INVALID_VALUE;
    struct sg_wire_graph_update *wire = sg_begin(SG_OP_cuGraphExecUpdate_v2, sizeof *wire);
    if (!wire)
        return sg_lost("cuGraphExecUpdate");
    *wire = (struct sg_wire_graph_update){SG_VALUE(hGraphExec), SG_VALUE(hGraph)};
    struct sg_reply_graph_update reply;
    error = sg_call("cuGraphExecUpdate", &reply, sizeof reply);
    if (error)
        return error;
    *resultInfo = (CUgraphExecUpdateResultInfo){.result = (CUgraphExecUpdateResult)reply.result, .errorNode = (CUgraphNode)(uintptr_t)reply.node};
    return reply.result == CU_GRAPH_EXEC_UPDATE_SUCCESS ? CUDA_SUCCESS : CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
}

CUresult sg_hand_cuGraphExecUpdate(CUgraphExec hGraphExec, CUgraph hGraph, CUgraphNode *hErrorNode_out, CUgraphExecUpdateResult *updateResult_out)
{
    CUgraphExecUpdateResultInfo info = {0};
    CUresult error = sg_hand_cuGraphExecUpdate_v2(hGraphExec, hGraph, &info);
    if (hErrorNode_out)
        *hErrorNode_out = info.errorNode;
    if (updateResult_out)
        *updateResult_out = info.result;
    return error;
}

/* ---- lists ----------------------------------------------------------------------------------------------- */
/* At most 500 handles come in one reply; a larger graph's lists are refused by name. */
static CUresult list(const char *call, uint32_t what, uint32_t kind, uint64_t owner, CUgraphNode *first, CUgraphNode *second, size_t *count)
{
    struct { uint64_t count, handles[504]; } reply;
    uint32_t got;
    CUresult error = sg_enter();
    if (error)
        return error;
    if (!count || !sg_handle_known(kind, owner))
        return CUDA_ERROR_INVALID_VALUE;
    struct sg_wire_graph_list *wire = sg_begin(SG_OP_graph_list, sizeof *wire);
    if (!wire)
        return sg_lost(call);
    *wire = (struct sg_wire_graph_list){.owner = owner, .what = what};
    error = sg_call_got(call, &reply, sizeof reply, &got);
    if (error == CUDA_ERROR_NOT_SUPPORTED)
        return sg_declined(call, "graphs of more than 500 nodes cannot be listed", "keep the nodes' handles from when they were added");
    uint64_t parts = what == SG_LIST_EDGES ? 2 : 1;
    if (error || got < sizeof reply.count || reply.count * parts > 504 || got < sizeof reply.count + reply.count * parts * sizeof(uint64_t))
        return error ? error : CUDA_ERROR_UNKNOWN;
    uint64_t graph = kind == SG_KIND_GRAPH ? owner : sg_handle_parent(owner);
    for (uint64_t i = 0; i < reply.count * parts; i++) /* nodes of a captured or cloned graph are new to us */
        if (!sg_handle_known(SG_KIND_GRAPH_NODE, reply.handles[i]))
            (void)sg_handle_note(SG_KIND_GRAPH_NODE, reply.handles[i], graph, NULL);
    if (!first) {
        *count = reply.count;
        return CUDA_SUCCESS;
    }
    for (uint64_t i = 0; i < *count; i++) {
        first[i] = i < reply.count ? (CUgraphNode)(uintptr_t)reply.handles[i * parts] : NULL;
        if (second)
            second[i] = i < reply.count ? (CUgraphNode)(uintptr_t)reply.handles[i * parts + 1] : NULL;
    }
    if (reply.count < *count)
        *count = reply.count;
    return CUDA_SUCCESS;
}

CUresult sg_hand_cuGraphGetNodes(CUgraph hGraph, CUgraphNode *nodes, size_t *numNodes)
{
    return list("cuGraphGetNodes", SG_LIST_NODES, SG_KIND_GRAPH, SG_VALUE(hGraph), nodes, NULL, numNodes);
}
CUresult sg_hand_cuGraphGetRootNodes(CUgraph hGraph, CUgraphNode *rootNodes, size_t *numRootNodes)
{
    return list("cuGraphGetRootNodes", SG_LIST_ROOTS, SG_KIND_GRAPH, SG_VALUE(hGraph), rootNodes, NULL, numRootNodes);
}
CUresult sg_hand_cuGraphGetEdges(CUgraph hGraph, CUgraphNode *from, CUgraphNode *to, size_t *numEdges)
{
    if (!from != !to)
        return CUDA_ERROR_INVALID_VALUE;
    return list("cuGraphGetEdges", SG_LIST_EDGES, SG_KIND_GRAPH, SG_VALUE(hGraph), from, to, numEdges);
}
CUresult sg_hand_cuGraphNodeGetDependencies(CUgraphNode hNode, CUgraphNode *dependencies, size_t *numDependencies)
{
    return list("cuGraphNodeGetDependencies", SG_LIST_DEPENDENCIES, SG_KIND_GRAPH_NODE, SG_VALUE(hNode), dependencies, NULL, numDependencies);
}
CUresult sg_hand_cuGraphNodeGetDependentNodes(CUgraphNode hNode, CUgraphNode *dependentNodes, size_t *numDependentNodes)
{
    return list("cuGraphNodeGetDependentNodes", SG_LIST_DEPENDENTS, SG_KIND_GRAPH_NODE, SG_VALUE(hNode), dependentNodes, NULL, numDependentNodes);
}

/* ---- edges ------------------------------------------------------------------------------------------------- */
static CUresult edges(const char *call, uint32_t what, CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t count)
{
    CUresult error = sg_enter();
    if (error)
        return error;
    if (!sg_handle_known(SG_KIND_GRAPH, SG_VALUE(graph)))
        return CUDA_ERROR_INVALID_VALUE;
    if (count > MAX_EDGES || (count && (!from || !to)))
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++)
        if (!sg_handle_known(SG_KIND_GRAPH_NODE, SG_VALUE(from[i])) || !sg_handle_known(SG_KIND_GRAPH_NODE, SG_VALUE(to[i])))
            return CUDA_ERROR_INVALID_VALUE;
    if (!count)
        return CUDA_SUCCESS;
    struct sg_wire_graph_edges *wire = sg_begin(SG_OP_graph_edges, (uint32_t)(sizeof *wire + count * 16));
    if (!wire)
        return sg_lost(call);
    *wire = (struct sg_wire_graph_edges){.graph = SG_VALUE(graph), .what = what, .count = (uint32_t)count};
    memcpy(wire + 1, from, count * 8);
    memcpy((uint8_t *)(wire + 1) + count * 8, to, count * 8);
    return sg_call(call, NULL, 0);
}

CUresult sg_hand_cuGraphAddDependencies(CUgraph hGraph, const CUgraphNode *from, const CUgraphNode *to, size_t numDependencies)
{
    return edges("cuGraphAddDependencies", SG_EDGES_ADD, hGraph, from, to, numDependencies);
}
CUresult sg_hand_cuGraphRemoveDependencies(CUgraph hGraph, const CUgraphNode *from, const CUgraphNode *to, size_t numDependencies)
{
    return edges("cuGraphRemoveDependencies", SG_EDGES_REMOVE, hGraph, from, to, numDependencies);
}
