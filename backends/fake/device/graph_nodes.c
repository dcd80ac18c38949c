/* The calls that add graph nodes, read them and change them. */
#include "graph.h"

#include <string.h>

static CUresult add(CUgraphNode *out, CUgraph graph, const CUgraphNode *needs, size_t count, const CUgraphNodeParams *p)
{
    CUgraphNode node;
    if (!sgf_valid(SGF_GRAPH, graph) || out == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sgf_graph_lock);
    CUresult result = sgf_graph_add(graph, p->type, needs, count, &node);
    if (result == CUDA_SUCCESS && (result = sgf_node_set(node, p)) != CUDA_SUCCESS)
        sgf_graph_remove(node);
    pthread_mutex_unlock(&sgf_graph_lock);
    if (result == CUDA_SUCCESS)
        *out = node;
    return result;
}

static CUresult get(CUgraphNode node, CUgraphNodeType type, CUgraphNodeParams *p)
{
    if (!sgf_valid(SGF_NODE, node) || node->type != type)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sgf_graph_lock);
    CUresult result = sgf_node_get(node, p);
    pthread_mutex_unlock(&sgf_graph_lock);
    return result;
}

static CUresult set(CUgraphNode node, const CUgraphNodeParams *p)
{
    if (!sgf_valid(SGF_NODE, node))
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sgf_graph_lock);
    CUresult result = sgf_node_set(node, p);
    pthread_mutex_unlock(&sgf_graph_lock);
    return result;
}

/* ---- each call fills in the general parameters ---------------------------------------------------------------------- */
#define PARAMS(kind) CUgraphNodeParams p; memset(&p, 0, sizeof p); p.type = CU_GRAPH_NODE_TYPE_##kind

CUresult cuGraphAddKernelNode(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies, size_t numDependencies,
                              const CUDA_KERNEL_NODE_PARAMS_v1 *nodeParams)
{
    SGF_ENTER();
    CUgraphNodeParams p;
    if (!sgf_params_from_kernel(&p, nodeParams, sizeof *nodeParams))
        return CUDA_ERROR_INVALID_VALUE;
    return add(phGraphNode, hGraph, dependencies, numDependencies, &p);
}

CUresult cuGraphAddKernelNode_v2(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
                                 size_t numDependencies, const CUDA_KERNEL_NODE_PARAMS *nodeParams)
{
    SGF_ENTER();
    CUgraphNodeParams p;
    if (!sgf_params_from_kernel(&p, nodeParams, sizeof *nodeParams))
        return CUDA_ERROR_INVALID_VALUE;
    return add(phGraphNode, hGraph, dependencies, numDependencies, &p);
}

CUresult cuGraphKernelNodeGetParams(CUgraphNode hNode, CUDA_KERNEL_NODE_PARAMS_v1 *nodeParams)
{
    SGF_ENTER();
    CUgraphNodeParams p;
    CUresult result = nodeParams == NULL ? CUDA_ERROR_INVALID_VALUE : get(hNode, CU_GRAPH_NODE_TYPE_KERNEL, &p);
    if (result == CUDA_SUCCESS)
        memcpy(nodeParams, &p.kernel, sizeof *nodeParams);
    return result;
}

CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode hNode, CUDA_KERNEL_NODE_PARAMS *nodeParams)
{
    SGF_ENTER();
    CUgraphNodeParams p;
    CUresult result = nodeParams == NULL ? CUDA_ERROR_INVALID_VALUE : get(hNode, CU_GRAPH_NODE_TYPE_KERNEL, &p);
    if (result == CUDA_SUCCESS)
        memcpy(nodeParams, &p.kernel, sizeof *nodeParams);
    return result;
}

CUresult cuGraphKernelNodeSetParams(CUgraphNode hNode, const CUDA_KERNEL_NODE_PARAMS_v1 *nodeParams)
{
    SGF_ENTER();
    CUgraphNodeParams p;
    return sgf_params_from_kernel(&p, nodeParams, sizeof *nodeParams) ? set(hNode, &p) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphKernelNodeSetParams_v2(CUgraphNode hNode, const CUDA_KERNEL_NODE_PARAMS *nodeParams)
{
    SGF_ENTER();
    CUgraphNodeParams p;
    return sgf_params_from_kernel(&p, nodeParams, sizeof *nodeParams) ? set(hNode, &p) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphAddMemcpyNode(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies, size_t numDependencies,
                              const CUDA_MEMCPY3D *copyParams, CUcontext ctx)
{
    SGF_ENTER();
    CUgraphNodeParams p;
    if (!sgf_params_from_copy(&p, copyParams, ctx))
        return CUDA_ERROR_INVALID_VALUE;
    return add(phGraphNode, hGraph, dependencies, numDependencies, &p);
}

CUresult cuGraphMemcpyNodeGetParams(CUgraphNode hNode, CUDA_MEMCPY3D *nodeParams)
{
    SGF_ENTER();
    CUgraphNodeParams p;
    CUresult result = nodeParams == NULL ? CUDA_ERROR_INVALID_VALUE : get(hNode, CU_GRAPH_NODE_TYPE_MEMCPY, &p);
    if (result == CUDA_SUCCESS)
        *nodeParams = p.memcpy.copyParams;
    return result;
}

CUresult cuGraphMemcpyNodeSetParams(CUgraphNode hNode, const CUDA_MEMCPY3D *nodeParams)
{
    SGF_ENTER();
    CUgraphNodeParams p;
    return sgf_params_from_copy(&p, nodeParams, NULL) ? set(hNode, &p) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphAddMemsetNode(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies, size_t numDependencies,
                              const CUDA_MEMSET_NODE_PARAMS *memsetParams, CUcontext ctx)
{
    SGF_ENTER();
    CUgraphNodeParams p;
    if (!sgf_params_from_fill(&p, memsetParams, ctx))
        return CUDA_ERROR_INVALID_VALUE;
    return add(phGraphNode, hGraph, dependencies, numDependencies, &p);
}

CUresult cuGraphMemsetNodeGetParams(CUgraphNode hNode, CUDA_MEMSET_NODE_PARAMS *nodeParams)
{
    SGF_ENTER();
    CUgraphNodeParams p;
    CUresult result = nodeParams == NULL ? CUDA_ERROR_INVALID_VALUE : get(hNode, CU_GRAPH_NODE_TYPE_MEMSET, &p);
    if (result == CUDA_SUCCESS)
        *nodeParams = (CUDA_MEMSET_NODE_PARAMS){ p.memset.dst, p.memset.pitch, p.memset.value, p.memset.elementSize,
                                                 p.memset.width, p.memset.height };
    return result;
}

CUresult cuGraphMemsetNodeSetParams(CUgraphNode hNode, const CUDA_MEMSET_NODE_PARAMS *nodeParams)
{
    SGF_ENTER();
    CUgraphNodeParams p;
    return sgf_params_from_fill(&p, nodeParams, NULL) ? set(hNode, &p) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphAddHostNode(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies, size_t numDependencies,
                            const CUDA_HOST_NODE_PARAMS *nodeParams)
{
    SGF_ENTER();
    CUgraphNodeParams p;
    if (!sgf_params_from_host(&p, nodeParams))
        return CUDA_ERROR_INVALID_VALUE;
    return add(phGraphNode, hGraph, dependencies, numDependencies, &p);
}

CUresult cuGraphHostNodeGetParams(CUgraphNode hNode, CUDA_HOST_NODE_PARAMS *nodeParams)
{
    SGF_ENTER();
    CUgraphNodeParams p;
    CUresult result = nodeParams == NULL ? CUDA_ERROR_INVALID_VALUE : get(hNode, CU_GRAPH_NODE_TYPE_HOST, &p);
    if (result == CUDA_SUCCESS)
        *nodeParams = (CUDA_HOST_NODE_PARAMS){ p.host.fn, p.host.userData };
    return result;
}

CUresult cuGraphHostNodeSetParams(CUgraphNode hNode, const CUDA_HOST_NODE_PARAMS *nodeParams)
{
    SGF_ENTER();
    CUgraphNodeParams p;
    return sgf_params_from_host(&p, nodeParams) ? set(hNode, &p) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphAddChildGraphNode(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
                                  size_t numDependencies, CUgraph childGraph)
{
    SGF_ENTER();
    PARAMS(GRAPH);
    p.graph.graph = childGraph;
    return add(phGraphNode, hGraph, dependencies, numDependencies, &p);
}

CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode hNode, CUgraph *phGraph)
{
    SGF_ENTER();
    CUgraphNodeParams p;
    CUresult result = phGraph == NULL ? CUDA_ERROR_INVALID_VALUE : get(hNode, CU_GRAPH_NODE_TYPE_GRAPH, &p);
    if (result == CUDA_SUCCESS)
        *phGraph = p.graph.graph;
    return result;
}

CUresult cuGraphAddEmptyNode(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies, size_t numDependencies)
{
    SGF_ENTER();
    PARAMS(EMPTY);
    return add(phGraphNode, hGraph, dependencies, numDependencies, &p);
}

CUresult cuGraphAddEventRecordNode(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
                                   size_t numDependencies, CUevent event)
{
    SGF_ENTER();
    PARAMS(EVENT_RECORD);
    p.eventRecord.event = event;
    return add(phGraphNode, hGraph, dependencies, numDependencies, &p);
}

CUresult cuGraphAddEventWaitNode(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
                                 size_t numDependencies, CUevent event)
{
    SGF_ENTER();
    PARAMS(WAIT_EVENT);
    p.eventWait.event = event;
    return add(phGraphNode, hGraph, dependencies, numDependencies, &p);
}

static CUresult event_of(CUgraphNode node, CUgraphNodeType type, CUevent *out)
{
    if (out == NULL || !sgf_valid(SGF_NODE, node) || node->type != type)
        return CUDA_ERROR_INVALID_VALUE;
    *out = node->event;
    return CUDA_SUCCESS;
}

CUresult cuGraphEventRecordNodeGetEvent(CUgraphNode hNode, CUevent *event_out)
{
    SGF_ENTER();
    return event_of(hNode, CU_GRAPH_NODE_TYPE_EVENT_RECORD, event_out);
}

CUresult cuGraphEventWaitNodeGetEvent(CUgraphNode hNode, CUevent *event_out)
{
    SGF_ENTER();
    return event_of(hNode, CU_GRAPH_NODE_TYPE_WAIT_EVENT, event_out);
}

CUresult cuGraphEventRecordNodeSetEvent(CUgraphNode hNode, CUevent event)
{
    SGF_ENTER();
    PARAMS(EVENT_RECORD);
    p.eventRecord.event = event;
    return set(hNode, &p);
}

CUresult cuGraphEventWaitNodeSetEvent(CUgraphNode hNode, CUevent event)
{
    SGF_ENTER();
    PARAMS(WAIT_EVENT);
    p.eventWait.event = event;
    return set(hNode, &p);
}

CUresult cuGraphAddNode(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies, size_t numDependencies,
                        CUgraphNodeParams *nodeParams)
{
    SGF_ENTER();
    return nodeParams == NULL ? CUDA_ERROR_INVALID_VALUE : add(phGraphNode, hGraph, dependencies, numDependencies, nodeParams);
}

CUresult cuGraphAddNode_v2(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
                           const CUgraphEdgeData *dependencyData, size_t numDependencies, CUgraphNodeParams *nodeParams)
{
    (void)dependencyData; /* every edge waits for full completion, which satisfies each kind */
    return cuGraphAddNode(phGraphNode, hGraph, dependencies, numDependencies, nodeParams);
}

CUresult cuGraphNodeSetParams(CUgraphNode hNode, CUgraphNodeParams *nodeParams)
{
    SGF_ENTER();
    return nodeParams == NULL ? CUDA_ERROR_INVALID_VALUE : set(hNode, nodeParams);
}

CUresult cuGraphNodeGetParams(CUgraphNode hNode, CUgraphNodeParams *nodeParams)
{
    SGF_ENTER();
    if (nodeParams == NULL || !sgf_valid(SGF_NODE, hNode))
        return CUDA_ERROR_INVALID_VALUE;
    return get(hNode, hNode->type, nodeParams);
}
