/* Graphs: one message per node; what a node holds is sent in the form that streams use. */
#include "../wire.h"
#include "client.h"
#include "copy.h"

#define MAX_DEPENDENCIES 4096u

/* What a node does, ready to be copied into a message. */
struct body {
    CUgraphNodeType type;
    uint64_t object; /* function, child graph, event */
    const struct sg_function *function;
    struct sg_packed params;
    uint32_t grid[3], block[3], shared;
    struct sg_wire_copy copy;
    struct sg_wire_fill fill;
};

static uint32_t body_bytes(const struct body *b)
{
    switch (b->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: return b->params.bytes;
    case CU_GRAPH_NODE_TYPE_MEMCPY: return sizeof b->copy;
    case CU_GRAPH_NODE_TYPE_MEMSET: return sizeof b->fill;
    default: return 0;
    }
}

static CUresult kernel_body(struct body *b, CUfunction function, const unsigned grid[3], const unsigned block[3], unsigned shared, void **params, void **extra)
{
    *b = (struct body){.type = CU_GRAPH_NODE_TYPE_KERNEL, .function = sg_function_find(function), .shared = shared};
    if (!b->function)
        return CUDA_ERROR_INVALID_HANDLE;
    b->object = b->function->handle;
    memcpy(b->grid, grid, sizeof b->grid);
    memcpy(b->block, block, sizeof b->block);
    CUresult error = sg_function_check(b->function, b->grid, b->block, shared);
    return error ? error : sg_params_find(b->function, params, extra, &b->params);
}

static CUresult kernel_params(struct body *b, const CUDA_KERNEL_NODE_PARAMS *p)
{
    if (!p)
        return CUDA_ERROR_INVALID_VALUE;
    CUfunction function = p->func ? p->func : (CUfunction)p->kern;
    return kernel_body(b, function, (const unsigned[]){p->gridDimX, p->gridDimY, p->gridDimZ},
                       (const unsigned[]){p->blockDimX, p->blockDimY, p->blockDimZ}, p->sharedMemBytes, p->kernelParams, p->extra);
}

static CUresult kernel_params_v1(struct body *b, const CUDA_KERNEL_NODE_PARAMS_v1 *p)
{
    if (!p)
        return CUDA_ERROR_INVALID_VALUE;
    return kernel_body(b, p->func, (const unsigned[]){p->gridDimX, p->gridDimY, p->gridDimZ},
                       (const unsigned[]){p->blockDimX, p->blockDimY, p->blockDimZ}, p->sharedMemBytes, p->kernelParams, p->extra);
}

static CUresult copy_params(const char *call, struct body *b, const CUDA_MEMCPY3D *p)
{
    *b = (struct body){.type = CU_GRAPH_NODE_TYPE_MEMCPY};
    CUresult error = sg_copy_describe(call, p, &b->copy);
    if (error)
        return error;
    struct sg_wire_copy *c = &b->copy;
    if (!c->width || !c->height || !c->depth)
        return CUDA_ERROR_INVALID_VALUE;
    if (sg_place_of(c->dst) == SG_PLACE_HOST || sg_place_of(c->src) == SG_PLACE_HOST)
        return sg_declined(call, "a graph node that copies pageable memory is not supported", "use cuMemHostAlloc");
    if (sg_copy_extent(c, c->dst_pitch, c->dst_slice) > SG_DEVICE_WINDOW || sg_copy_extent(c, c->src_pitch, c->src_slice) > SG_DEVICE_WINDOW)
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

static CUresult fill_params(struct body *b, const CUDA_MEMSET_NODE_PARAMS *p)
{
    *b = (struct body){.type = CU_GRAPH_NODE_TYPE_MEMSET};
    if (!p || !p->width || !p->height)
        return CUDA_ERROR_INVALID_VALUE;
    b->fill = (struct sg_wire_fill){.dst = p->dst, .pitch = p->pitch, .width = p->width, .height = p->height, .value = p->value, .element = p->elementSize};
    return sg_fill_check(&b->fill);
}

static CUresult object_params(struct body *b, CUgraphNodeType type, uint32_t kind, uint64_t object)
{
    *b = (struct body){.type = type, .object = object};
    return kind == SG_KIND_NONE || sg_handle_known(kind, object) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

static CUresult check_nodes(const CUgraphNode *nodes, size_t count)
{
    if (count > MAX_DEPENDENCIES || (count && !nodes))
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++)
        if (!sg_handle_known(SG_KIND_GRAPH_NODE, SG_VALUE(nodes[i])))
            return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

/* Begins a message: the node's description, its body, the dependencies. */
static int write_node(uint32_t op, const struct body *b, uint64_t owner, uint64_t node, const CUgraphNode *dependencies, size_t count)
{
    uint32_t bytes = body_bytes(b), room = (bytes + 7) & ~7u;
    struct sg_wire_graph_node *wire = sg_begin(op, (uint32_t)(sizeof *wire + room + count * sizeof(uint64_t)));
    if (!wire)
        return -1;
    *wire = (struct sg_wire_graph_node){.owner = owner, .node = node, .object = b->object, .type = (uint32_t)b->type,
                                        .dependency_count = (uint32_t)count, .body_bytes = bytes, .shared = b->shared, .param_bytes = b->params.bytes};
    memcpy(wire->grid, b->grid, sizeof wire->grid);
    memcpy(wire->block, b->block, sizeof wire->block);
    if (b->type == CU_GRAPH_NODE_TYPE_KERNEL)
        sg_params_copy(b->function, &b->params, wire + 1);
    else if (b->type == CU_GRAPH_NODE_TYPE_MEMCPY)
        memcpy(wire + 1, &b->copy, sizeof b->copy);
    else if (b->type == CU_GRAPH_NODE_TYPE_MEMSET)
        memcpy(wire + 1, &b->fill, sizeof b->fill);
    if (count)
        memcpy((uint8_t *)(wire + 1) + room, dependencies, count * sizeof(uint64_t));
    return 0;
}

static CUresult add(const char *call, CUgraphNode *out, CUgraph graph, const CUgraphNode *dependencies, size_t count, CUresult made, const struct body *b)
{
    CUresult error = sg_enter();
    if (error || made)
        return error ? error : made;
    if (!out || !sg_handle_known(SG_KIND_GRAPH, SG_VALUE(graph)))
        return CUDA_ERROR_INVALID_VALUE;
    if ((error = check_nodes(dependencies, count)))
        return error;
    if (write_node(SG_OP_graph_add, b, SG_VALUE(graph), 0, dependencies, count))
        return sg_lost(call);
    uint64_t node;
    error = sg_call(call, &node, sizeof node);
    if (error)
        return error;
    if (sg_handle_note(SG_KIND_GRAPH_NODE, node, SG_VALUE(graph), NULL))
        return CUDA_ERROR_OUT_OF_MEMORY;
    *out = (CUgraphNode)(uintptr_t)node;
    return CUDA_SUCCESS;
}

/* `owner` 0: the node in its graph; else its instance in that executable graph, fire and forget. */
static CUresult set(const char *call, uint64_t owner, CUgraphNode node, CUresult made, const struct body *b)
{
    CUresult error = sg_enter();
    if (error || made)
        return error ? error : made;
    if (!sg_handle_known(SG_KIND_GRAPH_NODE, SG_VALUE(node)) || (owner && !sg_handle_known(SG_KIND_GRAPH_EXEC, owner)))
        return CUDA_ERROR_INVALID_VALUE;
    /* An executable graph hangs on the graph it was made from only by what is noted here. */
    uint64_t graph = sg_handle_parent(SG_VALUE(node)), origin = owner ? (uint64_t)(uintptr_t)sg_handle_data(SG_KIND_GRAPH_EXEC, owner) : graph;
    if (write_node(owner ? SG_OP_graph_exec_set : SG_OP_graph_set, b, owner, SG_VALUE(node), NULL, 0))
        return sg_lost(call);
    if (!owner || origin != graph) /* a child graph's node, or a wrong one: the driver decides */
        return sg_call(call, NULL, 0);
    sg_post();
    return CUDA_SUCCESS;
}

#define ADD(function, ...) \
    CUresult sg_hand_##function(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies, size_t numDependencies __VA_ARGS__)
#define ADDED(name) add(name, phGraphNode, hGraph, dependencies, numDependencies, made, &b)

ADD(cuGraphAddKernelNode, , const CUDA_KERNEL_NODE_PARAMS_v1 *nodeParams)
{
    struct body b;
    CUresult made = kernel_params_v1(&b, nodeParams);
    return ADDED("cuGraphAddKernelNode");
}
ADD(cuGraphAddKernelNode_v2, , const CUDA_KERNEL_NODE_PARAMS *nodeParams)
{
    struct body b;
    CUresult made = kernel_params(&b, nodeParams);
    return ADDED("cuGraphAddKernelNode");
}
ADD(cuGraphAddMemcpyNode, , const CUDA_MEMCPY3D *copyParams, CUcontext ctx)
{
    struct body b;
    CUresult made = sg_handle_known(SG_KIND_CONTEXT, SG_VALUE(ctx)) ? copy_params("cuGraphAddMemcpyNode", &b, copyParams) : CUDA_ERROR_INVALID_CONTEXT;
    return ADDED("cuGraphAddMemcpyNode");
}
ADD(cuGraphAddMemsetNode, , const CUDA_MEMSET_NODE_PARAMS *memsetParams, CUcontext ctx)
{
    struct body b;
    CUresult made = sg_handle_known(SG_KIND_CONTEXT, SG_VALUE(ctx)) ? fill_params(&b, memsetParams) : CUDA_ERROR_INVALID_CONTEXT;
    return ADDED("cuGraphAddMemsetNode");
}
ADD(cuGraphAddEmptyNode, )
{
    struct body b;
    CUresult made = object_params(&b, CU_GRAPH_NODE_TYPE_EMPTY, SG_KIND_NONE, 0);
    return ADDED("cuGraphAddEmptyNode");
}
ADD(cuGraphAddChildGraphNode, , CUgraph childGraph)
{
    struct body b;
    CUresult made = object_params(&b, CU_GRAPH_NODE_TYPE_GRAPH, SG_KIND_GRAPH, SG_VALUE(childGraph));
    return ADDED("cuGraphAddChildGraphNode");
}
ADD(cuGraphAddEventRecordNode, , CUevent event)
{
    struct body b;
    CUresult made = object_params(&b, CU_GRAPH_NODE_TYPE_EVENT_RECORD, SG_KIND_EVENT, SG_VALUE(event));
    return ADDED("cuGraphAddEventRecordNode");
}
ADD(cuGraphAddEventWaitNode, , CUevent event)
{
    struct body b;
    CUresult made = object_params(&b, CU_GRAPH_NODE_TYPE_WAIT_EVENT, SG_KIND_EVENT, SG_VALUE(event));
    return ADDED("cuGraphAddEventWaitNode");
}

static CUresult generic_params(const char *call, struct body *b, const CUgraphNodeParams *p)
{
    if (!p)
        return CUDA_ERROR_INVALID_VALUE;
    switch ((int)p->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: {
        CUfunction function = p->kernel.func ? p->kernel.func : (CUfunction)p->kernel.kern;
        return kernel_body(b, function, (const unsigned[]){p->kernel.gridDimX, p->kernel.gridDimY, p->kernel.gridDimZ},
                           (const unsigned[]){p->kernel.blockDimX, p->kernel.blockDimY, p->kernel.blockDimZ}, p->kernel.sharedMemBytes,
                           p->kernel.kernelParams, p->kernel.extra);
    }
    case CU_GRAPH_NODE_TYPE_MEMCPY: return copy_params(call, b, &p->memcpy.copyParams);
    case CU_GRAPH_NODE_TYPE_MEMSET: {
        CUDA_MEMSET_NODE_PARAMS q = {.dst = p->memset.dst, .pitch = p->memset.pitch, .value = p->memset.value,
                                     .elementSize = p->memset.elementSize, .width = p->memset.width, .height = p->memset.height};
        return fill_params(b, &q);
    }
    case CU_GRAPH_NODE_TYPE_EMPTY: return object_params(b, p->type, SG_KIND_NONE, 0);
    case CU_GRAPH_NODE_TYPE_GRAPH: return object_params(b, p->type, SG_KIND_GRAPH, SG_VALUE(p->graph.graph));
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD: return object_params(b, p->type, SG_KIND_EVENT, SG_VALUE(p->eventRecord.event));
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT: return object_params(b, p->type, SG_KIND_EVENT, SG_VALUE(p->eventWait.event));
    default: return sg_declined(call, "this kind of graph node is not supported", "see reference-supported-calls.md");
    }
}

ADD(cuGraphAddNode, , CUgraphNodeParams *nodeParams)
{
    struct body b;
    CUresult made = generic_params("cuGraphAddNode", &b, nodeParams);
    return ADDED("cuGraphAddNode");
}

CUresult sg_hand_cuGraphAddNode_v2(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies, const CUgraphEdgeData *dependencyData,
                                   size_t numDependencies, CUgraphNodeParams *nodeParams)
{
    static const CUgraphEdgeData plain;
    for (size_t i = 0; dependencyData && i < numDependencies; i++)
        if (memcmp(&dependencyData[i], &plain, sizeof plain) != 0)
            return sg_declined("cuGraphAddNode", "programmatic edges are not supported", "use plain dependencies");
    return sg_hand_cuGraphAddNode(phGraphNode, hGraph, dependencies, numDependencies, nodeParams);
}

/* ---- changing nodes ---------------------------------------------------------------------------------------- */
CUresult sg_hand_cuGraphKernelNodeSetParams(CUgraphNode hNode, const CUDA_KERNEL_NODE_PARAMS_v1 *nodeParams)
{
    struct body b;
    CUresult made = kernel_params_v1(&b, nodeParams);
    return set("cuGraphKernelNodeSetParams", 0, hNode, made, &b);
}
CUresult sg_hand_cuGraphKernelNodeSetParams_v2(CUgraphNode hNode, const CUDA_KERNEL_NODE_PARAMS *nodeParams)
{
    struct body b;
    CUresult made = kernel_params(&b, nodeParams);
    return set("cuGraphKernelNodeSetParams", 0, hNode, made, &b);
}
CUresult sg_hand_cuGraphMemcpyNodeSetParams(CUgraphNode hNode, const CUDA_MEMCPY3D *nodeParams)
{
    struct body b;
    CUresult made = copy_params("cuGraphMemcpyNodeSetParams", &b, nodeParams);
    return set("cuGraphMemcpyNodeSetParams", 0, hNode, made, &b);
}
CUresult sg_hand_cuGraphMemsetNodeSetParams(CUgraphNode hNode, const CUDA_MEMSET_NODE_PARAMS *nodeParams)
{
    struct body b;
    CUresult made = fill_params(&b, nodeParams);
    return set("cuGraphMemsetNodeSetParams", 0, hNode, made, &b);
}
CUresult sg_hand_cuGraphExecKernelNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode, const CUDA_KERNEL_NODE_PARAMS_v1 *nodeParams)
{
    struct body b;
    CUresult made = kernel_params_v1(&b, nodeParams);
    return hGraphExec ? set("cuGraphExecKernelNodeSetParams", SG_VALUE(hGraphExec), hNode, made, &b) : CUDA_ERROR_INVALID_VALUE;
}
CUresult sg_hand_cuGraphExecKernelNodeSetParams_v2(CUgraphExec hGraphExec, CUgraphNode hNode, const CUDA_KERNEL_NODE_PARAMS *nodeParams)
{
    struct body b;
    CUresult made = kernel_params(&b, nodeParams);
    return hGraphExec ? set("cuGraphExecKernelNodeSetParams", SG_VALUE(hGraphExec), hNode, made, &b) : CUDA_ERROR_INVALID_VALUE;
}
CUresult sg_hand_cuGraphExecMemcpyNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode, const CUDA_MEMCPY3D *copyParams, CUcontext ctx)
{
    struct body b;
    CUresult made = sg_handle_known(SG_KIND_CONTEXT, SG_VALUE(ctx)) ? copy_params("cuGraphExecMemcpyNodeSetParams", &b, copyParams) : CUDA_ERROR_INVALID_CONTEXT;
    return hGraphExec ? set("cuGraphExecMemcpyNodeSetParams", SG_VALUE(hGraphExec), hNode, made, &b) : CUDA_ERROR_INVALID_VALUE;
}
CUresult sg_hand_cuGraphExecMemsetNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode, const CUDA_MEMSET_NODE_PARAMS *memsetParams, CUcontext ctx)
{
    struct body b;
    CUresult made = sg_handle_known(SG_KIND_CONTEXT, SG_VALUE(ctx)) ? fill_params(&b, memsetParams) : CUDA_ERROR_INVALID_CONTEXT;
    return hGraphExec ? set("cuGraphExecMemsetNodeSetParams", SG_VALUE(hGraphExec), hNode, made, &b) : CUDA_ERROR_INVALID_VALUE;
}
