/* Graphs on the proxy's side.  The driver holds them; here is kept which node has which handle. */
#include "handlers.h"

#define MAX_DEPENDENCIES 4096u
#define MAX_LISTED 500u

/* ---- handles of nodes ------------------------------------------------------------------------------------- */
static struct sg_graph *graph_of(struct sg_calls *calls, uint64_t handle, int make) /* lock held */
{
    struct sg_graph *graph = calls->graphs;
    while (graph && graph->handle != handle)
        graph = graph->next;
    if (!graph && make && (graph = calloc(1, sizeof *graph))) {
        graph->handle = handle;
        graph->next = calls->graphs;
        calls->graphs = graph;
    }
    return graph;
}

/* `message`: as it came, or NULL; kept for when the graph has to be made again. */
static int remember(sg_session *session, uint64_t graph_handle, uint64_t node, CUgraphNode physical, const uint8_t *message, uint32_t bytes)
{
    struct sg_calls *calls = sg_calls_of(session);
    int result = -1;
    if (!calls)
        return -1;
    pthread_mutex_lock(&calls->lock);
    struct sg_graph *graph = graph_of(calls, graph_handle, 1);
    if (graph && graph->count == graph->room) {
        uint32_t room = graph->room ? graph->room * 2 : 16;
        struct sg_node *grown = realloc(graph->nodes, room * sizeof *grown);
        if (grown) {
            graph->nodes = grown;
            graph->room = room;
        }
    }
    uint8_t *copy = message ? malloc(bytes) : NULL;
    if (graph && graph->count < graph->room && (copy || !message)) {
        if (copy)
            memcpy(copy, message, bytes);
        graph->nodes[graph->count++] = (struct sg_node){.handle = node, .physical = physical, .message = copy, .bytes = copy ? bytes : 0};
        result = 0;
    } else {
        free(copy);
    }
    pthread_mutex_unlock(&calls->lock);
    return result;
}

/* The handle of a node that the driver named; a new one for a node that a capture or a clone has made. */
uint64_t sg_node_handle(sg_session *session, uint64_t graph_handle, CUgraphNode physical)
{
    struct sg_calls *calls = sg_calls_of(session);
    uint64_t handle = 0;
    if (!calls || !physical)
        return 0;
    pthread_mutex_lock(&calls->lock);
    struct sg_graph *graph = graph_of(calls, graph_handle, 0);
    for (uint32_t i = 0; graph && i < graph->count && !handle; i++)
        if (graph->nodes[i].physical == physical && sg_handle_get(session, SG_KIND_GRAPH_NODE, graph->nodes[i].handle))
            handle = graph->nodes[i].handle;
    pthread_mutex_unlock(&calls->lock);
    if (!handle && (handle = sg_handle_put(session, SG_KIND_GRAPH_NODE, physical, graph_handle)))
        (void)remember(session, graph_handle, handle, physical, NULL, 0);
    return handle;
}

/* ---- what a node does ----------------------------------------------------------------------------------------- */
static int32_t read_kernel(sg_session *session, struct sg_graph_body *b, const uint8_t *body)
{
    const struct sg_wire_graph_node *w = &b->wire;
    CUfunction function = sg_function_get_physical(session, w->object);
    if (!function)
        return CUDA_ERROR_INVALID_HANDLE;
    if (w->param_bytes != w->body_bytes)
        return CUDA_ERROR_INVALID_VALUE;
    b->param_bytes = w->param_bytes;
    b->extra[0] = CU_LAUNCH_PARAM_BUFFER_POINTER;
    b->extra[1] = (void *)(uintptr_t)body;
    b->extra[2] = CU_LAUNCH_PARAM_BUFFER_SIZE;
    b->extra[3] = &b->param_bytes;
    b->extra[4] = CU_LAUNCH_PARAM_END;
    b->kernel = (CUDA_KERNEL_NODE_PARAMS){.gridDimX = w->grid[0], .gridDimY = w->grid[1], .gridDimZ = w->grid[2], .blockDimX = w->block[0],
                                          .blockDimY = w->block[1], .blockDimZ = w->block[2], .sharedMemBytes = w->shared, .extra = b->extra};
    if (SG_HANDLE_KIND(w->object) == SG_KIND_KERNEL)
        b->kernel.kern = (CUkernel)function;
    else
        b->kernel.func = function;
    return CUDA_SUCCESS;
}

static int32_t read_copy(sg_session *session, struct sg_graph_body *b, const uint8_t *body)
{
    struct sg_wire_copy copy;
    if (b->wire.body_bytes != sizeof copy)
        return CUDA_ERROR_INVALID_VALUE;
    memcpy(&copy, body, sizeof copy);
    copy.flags = 0;
    int32_t error = sg_copy_check(session, &copy);
    if (!error)
        sg_copy_fill(&b->copy, session, &copy, NULL);
    return error;
}

static int32_t read_fill(sg_session *session, struct sg_graph_body *b, const uint8_t *body)
{
    struct sg_wire_fill fill;
    if (b->wire.body_bytes != sizeof fill)
        return CUDA_ERROR_INVALID_VALUE;
    memcpy(&fill, body, sizeof fill);
    b->fill = (CUDA_MEMSET_NODE_PARAMS){.dst = fill.dst, .pitch = fill.pitch, .value = fill.value, .elementSize = fill.element, .width = fill.width,
                                        .height = fill.height};
    return sg_fill_check(session, &fill);
}

int32_t sg_graph_body_read(sg_session *session, const uint8_t *message, uint64_t bytes, struct sg_graph_body *out)
{
    memset(out, 0, sizeof *out);
    if (bytes < sizeof out->wire)
        return CUDA_ERROR_INVALID_VALUE;
    memcpy(&out->wire, message, sizeof out->wire);
    if (out->wire.body_bytes > bytes - sizeof out->wire)
        return CUDA_ERROR_INVALID_VALUE;
    const uint8_t *body = message + sizeof out->wire;
    switch (out->wire.type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: return read_kernel(session, out, body);
    case CU_GRAPH_NODE_TYPE_MEMCPY: return read_copy(session, out, body);
    case CU_GRAPH_NODE_TYPE_MEMSET: return read_fill(session, out, body);
    case CU_GRAPH_NODE_TYPE_EMPTY: return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_GRAPH: out->object = sg_handle_get(session, SG_KIND_GRAPH, out->wire.object); break;
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT: out->object = sg_handle_get(session, SG_KIND_EVENT, out->wire.object); break;
    default: return CUDA_ERROR_NOT_SUPPORTED;
    }
    return out->object ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

/* The nodes that a new one depends on. */
struct dependencies { CUgraphNode *nodes; uint64_t *handles; uint32_t count; };

static int32_t read_dependencies(sg_session *session, const struct sg_request *request, const struct sg_wire_graph_node *w, struct dependencies *d)
{
    uint64_t at = sizeof *w + (((uint64_t)w->body_bytes + 7) & ~7ull);
    *d = (struct dependencies){.count = w->dependency_count};
    if (d->count > MAX_DEPENDENCIES || (d->count && at + d->count * sizeof(uint64_t) > request->bytes))
        return CUDA_ERROR_INVALID_VALUE;
    d->nodes = malloc((d->count + 1) * sizeof *d->nodes);
    d->handles = malloc((d->count + 3) * sizeof *d->handles);
    if (!d->nodes || !d->handles)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (d->count)
        memcpy(d->handles, request->payload + at, d->count * sizeof(uint64_t));
    for (uint32_t i = 0; i < d->count; i++)
        if (!(d->nodes[i] = sg_handle_get(session, SG_KIND_GRAPH_NODE, d->handles[i])))
            return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

static CUcontext current_context(sg_session *session, const struct sg_request *request)
{
    return sg_handle_get(session, SG_KIND_CONTEXT, sg_session_context(session, request));
}

/* ---- adding and setting ------------------------------------------------------------------------------------------ */
CUresult sg_graph_body_add(sg_session *session, const struct sg_request *request, struct sg_graph_body *b, CUgraph graph,
                           const CUgraphNode *dependencies, size_t count, CUgraphNode *made)
{
    const struct sg_driver *driver = sg_session_driver(session);
    switch (b->wire.type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: return driver->cuGraphAddKernelNode_v2(made, graph, dependencies, count, &b->kernel);
    case CU_GRAPH_NODE_TYPE_MEMCPY:
        return driver->cuGraphAddMemcpyNode(made, graph, dependencies, count, &b->copy, current_context(session, request));
    case CU_GRAPH_NODE_TYPE_MEMSET:
        return driver->cuGraphAddMemsetNode(made, graph, dependencies, count, &b->fill, current_context(session, request));
    case CU_GRAPH_NODE_TYPE_EMPTY: return driver->cuGraphAddEmptyNode(made, graph, dependencies, count);
    case CU_GRAPH_NODE_TYPE_GRAPH: return driver->cuGraphAddChildGraphNode(made, graph, dependencies, count, b->object);
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD: return driver->cuGraphAddEventRecordNode(made, graph, dependencies, count, b->object);
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT: return driver->cuGraphAddEventWaitNode(made, graph, dependencies, count, b->object);
    default: return CUDA_ERROR_NOT_SUPPORTED;
    }
}

SG_HANDLER(graph_add)
{
    struct sg_graph_body b;
    struct dependencies d = {0};
    CUgraphNode made = NULL;
    int32_t error = sg_graph_body_read(session, request->payload, request->bytes, &b);
    CUgraph graph = error ? NULL : sg_handle_get(session, SG_KIND_GRAPH, b.wire.owner);
    if (!error && !graph)
        error = CUDA_ERROR_INVALID_VALUE;
    if (!error)
        error = read_dependencies(session, request, &b.wire, &d);
    if (!error)
        error = (int32_t)sg_graph_body_add(session, request, &b, graph, d.nodes, d.count, &made);
    uint64_t handle = error ? 0 : sg_handle_put(session, SG_KIND_GRAPH_NODE, made, b.wire.owner);
    if (!error && (!handle || remember(session, b.wire.owner, handle, made, request->payload, (uint32_t)sizeof b.wire + b.wire.body_bytes)))
        error = CUDA_ERROR_OUT_OF_MEMORY;
    if (!error) {
        d.handles[d.count++] = b.wire.owner;
        if (b.wire.object)
            d.handles[d.count++] = b.wire.object;
        sg_log_create(session, request, handle, d.handles, d.count);
        SG_REPLY(handle);
    }
    free(d.nodes);
    free(d.handles);
    return error;
}

/* The node does something else from now on. */
static void remember_body(sg_session *session, uint64_t node, const uint8_t *message, uint32_t bytes)
{
    struct sg_calls *calls = sg_calls_of(session);
    pthread_mutex_lock(&calls->lock);
    for (struct sg_graph *graph = calls->graphs; graph; graph = graph->next) {
        for (uint32_t i = 0; i < graph->count; i++) {
            uint8_t *copy = graph->nodes[i].handle == node ? malloc(bytes) : NULL;
            if (!copy)
                continue;
            memcpy(copy, message, bytes);
            free(graph->nodes[i].message);
            graph->nodes[i].message = copy;
            graph->nodes[i].bytes = bytes;
        }
    }
    pthread_mutex_unlock(&calls->lock);
}

SG_HANDLER(graph_set)
{
    const struct sg_driver *driver = sg_session_driver(session);
    struct sg_graph_body b;
    (void)answer;
    int32_t error = sg_graph_body_read(session, request->payload, request->bytes, &b);
    if (error)
        return error;
    CUgraphNode node = sg_handle_get(session, SG_KIND_GRAPH_NODE, b.wire.node);
    if (!node || !sg_calls_of(session))
        return CUDA_ERROR_INVALID_VALUE;
    switch (b.wire.type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: error = (int32_t)driver->cuGraphKernelNodeSetParams_v2(node, &b.kernel); break;
    case CU_GRAPH_NODE_TYPE_MEMCPY: error = (int32_t)driver->cuGraphMemcpyNodeSetParams(node, &b.copy); break;
    case CU_GRAPH_NODE_TYPE_MEMSET: error = (int32_t)driver->cuGraphMemsetNodeSetParams(node, &b.fill); break;
    default: error = CUDA_ERROR_NOT_SUPPORTED;
    }
    if (error)
        return error;
    remember_body(session, b.wire.node, request->payload, (uint32_t)sizeof b.wire + b.wire.body_bytes);
    sg_log_set(session, request, b.wire.node, SG_LOG_KEY(SG_OP_graph_set, 0));
    return CUDA_SUCCESS;
}

SG_HANDLER(graph_exec_set)
{
    const struct sg_driver *driver = sg_session_driver(session);
    struct sg_graph_body b;
    (void)answer;
    int32_t error = sg_graph_body_read(session, request->payload, request->bytes, &b);
    if (error)
        return error;
    CUgraphExec exec = sg_handle_get(session, SG_KIND_GRAPH_EXEC, b.wire.owner);
    CUgraphNode node = exec ? sg_exec_node(session, b.wire.owner, b.wire.node) : NULL;
    CUcontext context = current_context(session, request);
    if (!node)
        return CUDA_ERROR_INVALID_VALUE;
    switch (b.wire.type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: error = (int32_t)driver->cuGraphExecKernelNodeSetParams_v2(exec, node, &b.kernel); break;
    case CU_GRAPH_NODE_TYPE_MEMCPY: error = (int32_t)driver->cuGraphExecMemcpyNodeSetParams(exec, node, &b.copy, context); break;
    case CU_GRAPH_NODE_TYPE_MEMSET: error = (int32_t)driver->cuGraphExecMemsetNodeSetParams(exec, node, &b.fill, context); break;
    default: error = CUDA_ERROR_NOT_SUPPORTED;
    }
    if (!error)
        sg_log_set(session, request, b.wire.owner, SG_LOG_KEY(SG_OP_graph_exec_set, SG_HANDLE_INDEX(b.wire.node)));
    return error;
}

/* ---- graphs as wholes ----------------------------------------------------------------------------------------------- */
SG_HANDLER(graph_instantiate)
{
    const struct sg_driver *driver = sg_session_driver(session);
    struct sg_wire_graph_make wire;
    void *made = NULL;
    SG_READ(wire);
    CUgraph graph = sg_handle_get(session, SG_KIND_GRAPH, wire.graph);
    if (!graph || wire.what > SG_GRAPH_CLONE)
        return graph ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE;
    int clone = wire.what == SG_GRAPH_CLONE;
    CUresult error = clone ? driver->cuGraphClone((CUgraph *)&made, graph)
                           : driver->cuGraphInstantiateWithFlags((CUgraphExec *)&made, graph, wire.flags & CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY);
    if (error)
        return (int32_t)error;
    uint32_t kind = clone ? SG_KIND_GRAPH : SG_KIND_GRAPH_EXEC;
    uint64_t handle = sg_handle_put(session, kind, made, 0);
    if (!handle) {
        sg_handle_destroy_physical(driver, kind, made);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (!clone && sg_exec_note(session, handle, graph, wire.graph))
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (sg_recipe_log(session, request, handle, graph, wire.graph, wire.flags, clone ? SG_REBUILD_GRAPH : SG_REBUILD_EXEC))
        return CUDA_ERROR_OUT_OF_MEMORY;
    SG_REPLY(handle);
    return CUDA_SUCCESS;
}

SG_HANDLER(capture_end)
{
    struct sg_wire_handle wire;
    void *stream;
    CUgraph graph = NULL;
    SG_READ(wire);
    if (sg_stream_get(session, wire.handle, &stream))
        return CUDA_ERROR_INVALID_HANDLE;
    CUresult error = sg_session_driver(session)->cuStreamEndCapture(stream, &graph);
    if (error)
        return (int32_t)error;
    uint64_t handle = sg_handle_put(session, SG_KIND_GRAPH, graph, 0);
    if (!handle) {
        (void)sg_session_driver(session)->cuGraphDestroy(graph);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (sg_recipe_log(session, request, handle, graph, handle, 0, SG_REBUILD_GRAPH))
        return CUDA_ERROR_OUT_OF_MEMORY;
    SG_REPLY(handle);
    return CUDA_SUCCESS;
}

SG_HANDLER(cuGraphExecUpdate_v2)
{
    struct sg_wire_graph_update wire;
    SG_READ(wire);
    CUgraphExec exec = sg_handle_get(session, SG_KIND_GRAPH_EXEC, wire.exec);
    CUgraph graph = sg_handle_get(session, SG_KIND_GRAPH, wire.graph);
    if (!exec || !graph)
        return CUDA_ERROR_INVALID_HANDLE;
    CUgraphExecUpdateResultInfo info = {0};
    CUresult error = sg_session_driver(session)->cuGraphExecUpdate_v2(exec, graph, &info);
    if (error && error != CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE)
        return (int32_t)error;
    if (!error) { /* from now on it is made like the other graph, but set by the nodes of its own */
        sg_log_destroy(session, wire.exec);
        if (sg_recipe_log(session, request, wire.exec, graph, wire.graph, 0, SG_REBUILD_EXEC))
            return CUDA_ERROR_OUT_OF_MEMORY;
    }
    struct sg_reply_graph_update reply = {.node = sg_node_handle(session, wire.graph, info.errorNode), .result = (uint32_t)info.result};
    SG_REPLY(reply);
    return CUDA_SUCCESS;
}

static CUresult list(const struct sg_driver *driver, uint32_t what, void *owner, CUgraphNode *first, CUgraphNode *second, size_t *count)
{
    switch (what) {
    case SG_LIST_NODES: return driver->cuGraphGetNodes(owner, first, count);
    case SG_LIST_ROOTS: return driver->cuGraphGetRootNodes(owner, first, count);
    case SG_LIST_EDGES: return driver->cuGraphGetEdges_v2(owner, first, second, NULL, count);
    case SG_LIST_DEPENDENCIES: return driver->cuGraphNodeGetDependencies_v2(owner, first, NULL, count);
    case SG_LIST_DEPENDENTS: return driver->cuGraphNodeGetDependentNodes_v2(owner, first, NULL, count);
    default: return CUDA_ERROR_INVALID_VALUE;
    }
}

static uint64_t graph_of_node(sg_session *session, uint64_t node)
{
    struct sg_calls *calls = sg_calls_of(session);
    uint64_t found = 0;
    pthread_mutex_lock(&calls->lock);
    for (struct sg_graph *graph = calls->graphs; graph && !found; graph = graph->next)
        for (uint32_t i = 0; i < graph->count && !found; i++)
            if (graph->nodes[i].handle == node)
                found = graph->handle;
    pthread_mutex_unlock(&calls->lock);
    return found;
}

SG_HANDLER(graph_list)
{
    struct sg_wire_graph_list wire;
    CUgraphNode first[MAX_LISTED], second[MAX_LISTED];
    size_t count = MAX_LISTED, parts;
    SG_READ(wire);
    int of_node = wire.what >= SG_LIST_DEPENDENCIES;
    void *owner = sg_handle_get(session, of_node ? SG_KIND_GRAPH_NODE : SG_KIND_GRAPH, wire.owner);
    if (!owner || !sg_calls_of(session))
        return CUDA_ERROR_INVALID_HANDLE;
    size_t all = 0;
    CUresult error = list(sg_session_driver(session), wire.what, owner, NULL, NULL, &all);
    parts = wire.what == SG_LIST_EDGES ? 2 : 1;
    if (!error && all * parts > MAX_LISTED)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (!error && all)
        error = list(sg_session_driver(session), wire.what, owner, first, second, &count);
    if (error)
        return (int32_t)error;
    count = all ? count : 0;
    uint64_t graph = of_node ? graph_of_node(session, wire.owner) : wire.owner, reply[1 + MAX_LISTED] = {count};
    for (size_t i = 0; i < count; i++) {
        reply[1 + i * parts] = sg_node_handle(session, graph, first[i]);
        if (parts == 2)
            reply[2 + i * parts] = sg_node_handle(session, graph, second[i]);
    }
    answer->bytes = (uint32_t)((1 + count * parts) * sizeof(uint64_t));
    memcpy(answer->payload, reply, answer->bytes);
    return CUDA_SUCCESS;
}

SG_HANDLER(graph_edges)
{
    const struct sg_driver *driver = sg_session_driver(session);
    struct sg_wire_graph_edges wire;
    (void)answer;
    SG_READ(wire);
    CUgraph graph = sg_handle_get(session, SG_KIND_GRAPH, wire.graph);
    if (!graph)
        return CUDA_ERROR_INVALID_HANDLE;
    if (wire.what > SG_EDGES_REMOVE || wire.count > MAX_DEPENDENCIES || sizeof wire + wire.count * 16ull > request->bytes)
        return CUDA_ERROR_INVALID_VALUE;
    CUgraphNode *nodes = malloc(wire.count * 2 * sizeof *nodes + 1);
    if (!nodes)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult error = CUDA_SUCCESS;
    uint64_t key = wire.what;
    for (uint32_t i = 0; i < wire.count * 2 && !error; i++) {
        uint64_t handle;
        memcpy(&handle, request->payload + sizeof wire + i * 8, sizeof handle);
        key = key * 1099511628211ull + handle;
        if (!(nodes[i] = sg_handle_get(session, SG_KIND_GRAPH_NODE, handle)))
            error = CUDA_ERROR_INVALID_HANDLE;
    }
    if (!error)
        error = wire.what == SG_EDGES_ADD ? driver->cuGraphAddDependencies_v2(graph, nodes, nodes + wire.count, NULL, wire.count)
                                          : driver->cuGraphRemoveDependencies_v2(graph, nodes, nodes + wire.count, NULL, wire.count);
    if (!error)
        sg_log_set(session, request, wire.graph, SG_LOG_KEY(SG_OP_graph_edges, key & 0xffffffffffffull));
    free(nodes);
    return (int32_t)error;
}
