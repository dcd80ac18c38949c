/* Recipes: how to make a graph again when what it was made from may be gone.
 *
 * A replay log holds what is alive.  An executable graph outlives the graph that it was made from, and a
 * captured graph the calls that were captured.  So what is logged for them is a description of every node,
 * taken from the driver's graph at that moment: bodies as the rank sent them, or, for nodes that a capture
 * made, asked from the driver; dependencies always from the driver.  Replayed, it builds a graph again, and
 * for an executable graph keeps it (`hidden`), as the driver sets parameters by that graph's nodes. */
#include "handlers.h"
#include <stdio.h>

#define MAX_NODES (1u << 20)

struct text { uint8_t *data; size_t bytes, room; int failed; };

static void put(struct text *t, const void *data, size_t bytes)
{
    size_t padded = (bytes + 7) & ~(size_t)7;
    if (!t->failed && t->bytes + padded > t->room) {
        size_t room = (t->bytes + padded) * 2;
        uint8_t *grown = realloc(t->data, room);
        if (!grown) {
            t->failed = 1;
            return;
        }
        t->data = grown;
        t->room = room;
    }
    if (t->failed)
        return;
    memcpy(t->data + t->bytes, data, bytes);
    memset(t->data + t->bytes + bytes, 0, padded - bytes);
    t->bytes += padded;
}

/* ---- names of physical objects ----------------------------------------------------------------------------- */
int sg_function_name(sg_session *session, CUfunction physical, uint64_t handle)
{
    struct sg_calls *calls = sg_calls_of(session);
    int result = -1;
    if (!calls)
        return -1;
    pthread_mutex_lock(&calls->lock);
    uint32_t kept = 0;
    if (calls->function_count == calls->function_room) { /* before growing: drop those whose module is gone */
        for (uint32_t i = 0; i < calls->function_count; i++)
            if (sg_function_get_physical(session, calls->functions[i].handle))
                calls->functions[kept++] = calls->functions[i];
        calls->function_count = kept;
        uint32_t room = kept < 32 ? 64 : kept * 2;
        struct sg_named_function *grown = realloc(calls->functions, room * sizeof *grown);
        if (grown) {
            calls->functions = grown;
            calls->function_room = room;
        }
    }
    if (calls->function_count < calls->function_room) {
        calls->functions[calls->function_count++] = (struct sg_named_function){physical, handle};
        result = 0;
    }
    pthread_mutex_unlock(&calls->lock);
    return result;
}

static uint64_t name_of_function(sg_session *session, CUfunction physical)
{
    struct sg_calls *calls = sg_calls_of(session);
    uint64_t handle = 0;
    pthread_mutex_lock(&calls->lock);
    for (uint32_t i = calls->function_count; i-- > 0 && !handle;)
        if (calls->functions[i].physical == physical && sg_function_get_physical(session, calls->functions[i].handle) == physical)
            handle = calls->functions[i].handle;
    pthread_mutex_unlock(&calls->lock);
    return handle;
}

/* ---- what the driver says about a node ------------------------------------------------------------------------ */
static CUresult describe_kernel(sg_session *session, CUgraphNode node, struct text *out)
{
    const struct sg_driver *driver = sg_session_driver(session);
    CUDA_KERNEL_NODE_PARAMS p = {0};
    CUresult error = driver->cuGraphKernelNodeGetParams_v2(node, &p);
    CUfunction function = p.func ? p.func : (CUfunction)p.kern;
    uint64_t handle = error ? 0 : name_of_function(session, function);
    if (error || !handle)
        return error ? error : CUDA_ERROR_NOT_SUPPORTED;
    int is_kernel = SG_HANDLE_KIND(handle) == SG_KIND_KERNEL;
    uint8_t params[32768] = {0};
    size_t bytes = 0, offset, size;
    for (size_t i = 0; p.kernelParams; i++) {
        error = is_kernel ? driver->cuKernelGetParamInfo((CUkernel)function, i, &offset, &size) : driver->cuFuncGetParamInfo(function, i, &offset, &size);
        if (error == CUDA_ERROR_INVALID_VALUE)
            break;
        if (error || offset > sizeof params || size > sizeof params - offset)
            return error ? error : CUDA_ERROR_NOT_SUPPORTED;
        memcpy(params + offset, p.kernelParams[i], size);
        bytes = offset + size > bytes ? offset + size : bytes;
    }
    if (!p.kernelParams && p.extra && p.extra[0] == CU_LAUNCH_PARAM_BUFFER_POINTER && p.extra[2] == CU_LAUNCH_PARAM_BUFFER_SIZE) {
        memcpy(&bytes, p.extra[3], sizeof bytes);
        if (bytes > sizeof params)
            return CUDA_ERROR_NOT_SUPPORTED;
        memcpy(params, p.extra[1], bytes);
    }
    struct sg_wire_graph_node wire = {.object = handle, .type = CU_GRAPH_NODE_TYPE_KERNEL, .body_bytes = (uint32_t)bytes,
                                      .grid = {p.gridDimX, p.gridDimY, p.gridDimZ}, .block = {p.blockDimX, p.blockDimY, p.blockDimZ},
                                      .shared = p.sharedMemBytes, .param_bytes = (uint32_t)bytes};
    put(out, &wire, sizeof wire);
    put(out, params, bytes);
    return CUDA_SUCCESS;
}

static CUresult describe_copy(const struct sg_driver *driver, CUgraphNode node, struct text *out)
{
    CUDA_MEMCPY3D p = {0};
    CUresult error = driver->cuGraphMemcpyNodeGetParams(node, &p);
    if (error)
        return error;
    uint64_t src_slice = p.srcPitch * p.srcHeight, dst_slice = p.dstPitch * p.dstHeight;
    uint64_t src = p.srcMemoryType == CU_MEMORYTYPE_HOST ? (uint64_t)(uintptr_t)p.srcHost : p.srcDevice;
    uint64_t dst = p.dstMemoryType == CU_MEMORYTYPE_HOST ? (uint64_t)(uintptr_t)p.dstHost : p.dstDevice;
    struct sg_wire_copy copy = {.dst = dst + p.dstZ * dst_slice + p.dstY * p.dstPitch + p.dstXInBytes,
                                .src = src + p.srcZ * src_slice + p.srcY * p.srcPitch + p.srcXInBytes, .width = p.WidthInBytes,
                                .height = p.Height ? p.Height : 1, .depth = p.Depth ? p.Depth : 1, .dst_pitch = p.dstPitch, .src_pitch = p.srcPitch,
                                .dst_slice = dst_slice, .src_slice = src_slice};
    struct sg_wire_graph_node wire = {.type = CU_GRAPH_NODE_TYPE_MEMCPY, .body_bytes = sizeof copy};
    put(out, &wire, sizeof wire);
    put(out, &copy, sizeof copy);
    return CUDA_SUCCESS;
}

static CUresult describe(sg_session *session, CUgraphNode node, struct text *out)
{
    const struct sg_driver *driver = sg_session_driver(session);
    CUgraphNodeType type;
    CUresult error = driver->cuGraphNodeGetType(node, &type);
    if (error)
        return error;
    if (type == CU_GRAPH_NODE_TYPE_KERNEL)
        return describe_kernel(session, node, out);
    if (type == CU_GRAPH_NODE_TYPE_MEMCPY)
        return describe_copy(driver, node, out);
    struct sg_wire_graph_node wire = {.type = (uint32_t)type};
    if (type == CU_GRAPH_NODE_TYPE_MEMSET) {
        CUDA_MEMSET_NODE_PARAMS p = {0};
        if ((error = driver->cuGraphMemsetNodeGetParams(node, &p)))
            return error;
        struct sg_wire_fill fill = {.dst = p.dst, .pitch = p.pitch, .width = p.width, .height = p.height, .value = p.value, .element = p.elementSize};
        wire.body_bytes = sizeof fill;
        put(out, &wire, sizeof wire);
        put(out, &fill, sizeof fill);
        return CUDA_SUCCESS;
    }
    put(out, &wire, sizeof wire);
    return type == CU_GRAPH_NODE_TYPE_EMPTY ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
}

/* ---- writing a recipe --------------------------------------------------------------------------------------------- */
/* The message that the rank sent for this node: a copy, or NULL for a node that a capture or a clone has made. */
static uint8_t *message_of(struct sg_calls *calls, uint64_t graph_handle, CUgraphNode node, uint32_t *bytes, uint64_t *handle)
{
    uint8_t *copy = NULL;
    pthread_mutex_lock(&calls->lock);
    for (struct sg_graph *graph = calls->graphs; graph; graph = graph->next) {
        for (uint32_t i = 0; graph->handle == graph_handle && i < graph->count; i++) {
            struct sg_node *at = &graph->nodes[i];
            if (at->physical != node)
                continue;
            *handle = at->handle;
            if (at->message && (copy = malloc(at->bytes)))
                memcpy(copy, at->message, *bytes = at->bytes);
        }
    }
    pthread_mutex_unlock(&calls->lock);
    return copy;
}

static CUresult put_node(sg_session *session, struct text *out, uint64_t graph_handle, const CUgraphNode *nodes, size_t count, size_t at, struct text *needs)
{
    const struct sg_driver *driver = sg_session_driver(session);
    struct text message = {0};
    size_t depends = 0;
    CUresult error = driver->cuGraphNodeGetDependencies_v2(nodes[at], NULL, NULL, &depends);
    CUgraphNode *before = calloc(depends + 1, sizeof *before);
    uint32_t *indices = calloc(depends + 1, sizeof *indices), bytes = 0;
    struct sg_wire_recipe_node head = {.dependency_count = (uint32_t)depends};
    uint8_t *sent = message_of(sg_calls_of(session), graph_handle, nodes[at], &bytes, &head.handle);
    if (!error && (!before || !indices))
        error = CUDA_ERROR_OUT_OF_MEMORY;
    if (!error && depends)
        error = driver->cuGraphNodeGetDependencies_v2(nodes[at], before, NULL, &depends);
    for (size_t i = 0; !error && i < depends; i++)
        while (indices[i] < count && nodes[indices[i]] != before[i])
            indices[i]++;
    if (!error && sent)
        put(&message, sent, bytes);
    else if (!error)
        error = describe(session, nodes[at], &message);
    if (!error) {
        uint64_t object;
        memcpy(&object, message.data + offsetof(struct sg_wire_graph_node, object), sizeof object);
        if (object)
            put(needs, &object, sizeof object);
        head.message_bytes = (uint32_t)message.bytes;
        put(out, &head, sizeof head);
        put(out, indices, depends * sizeof *indices);
        put(out, message.data, message.bytes);
    }
    free(message.data);
    free(before);
    free(indices);
    free(sent);
    return error;
}

static CUresult nodes_of(const struct sg_driver *driver, CUgraph graph, CUgraphNode **nodes, size_t *count)
{
    *nodes = NULL;
    CUresult error = driver->cuGraphGetNodes(graph, NULL, count);
    if (error || *count > MAX_NODES)
        return error ? error : CUDA_ERROR_NOT_SUPPORTED;
    if (!(*nodes = calloc(*count + 1, sizeof **nodes)))
        return CUDA_ERROR_OUT_OF_MEMORY;
    return *count ? driver->cuGraphGetNodes(graph, *nodes, count) : CUDA_SUCCESS;
}

int sg_recipe_log(sg_session *session, const struct sg_request *request, uint64_t handle, CUgraph graph, uint64_t graph_handle, uint64_t flags, uint32_t what)
{
    static int said;
    struct text recipe = {0}, needs = {0};
    CUgraphNode *nodes;
    size_t count = 0;
    if (sg_session_replaying(session))
        return 0;
    CUresult error = nodes_of(sg_session_driver(session), graph, &nodes, &count);
    struct sg_wire_graph_rebuild head = {.flags = flags, .what = what, .count = (uint32_t)count};
    uint64_t context = sg_session_context(session, request);
    put(&recipe, &head, sizeof head);
    if (context)
        put(&needs, &context, sizeof context);
    for (size_t i = 0; !error && i < count; i++)
        error = put_node(session, &recipe, graph_handle, nodes, count, i, &needs);
    free(nodes);
    if (!error && !recipe.failed && !needs.failed) {
        struct sg_request logged = *request;
        logged.op = SG_OP_graph_rebuild;
        logged.payload = recipe.data;
        logged.bytes = (uint32_t)recipe.bytes;
        sg_log_create(session, &logged, handle, (const uint64_t *)needs.data, (uint32_t)(needs.bytes / 8));
    } else if (error && (sg_calls_of(session)->unrestorable = 1) && !__atomic_exchange_n(&said, 1, __ATOMIC_RELAXED)) {
        fprintf(stderr, "singularity: a graph holds a node that cannot be described (CUresult %d): the session runs on, but cannot be restored\n", (int)error);
    }
    int failed = recipe.failed || needs.failed;
    free(recipe.data);
    free(needs.data);
    return failed ? -1 : 0;
}

/* ---- executable graphs and the nodes that set them ------------------------------------------------------------------- */
static void free_exec(const struct sg_driver *driver, struct sg_exec *exec)
{
    if (exec->hidden)
        (void)driver->cuGraphDestroy(exec->hidden);
    free(exec->nodes);
    free(exec);
}

static void add_exec(sg_session *session, struct sg_exec *exec)
{
    struct sg_calls *calls = sg_calls_of(session);
    pthread_mutex_lock(&calls->lock);
    for (struct sg_exec **at = &calls->execs; *at;) { /* those that are gone go now */
        struct sg_exec *old = *at;
        if (sg_handle_get(session, SG_KIND_GRAPH_EXEC, old->handle)) {
            at = &old->next;
            continue;
        }
        *at = old->next;
        free_exec(sg_session_driver(session), old);
    }
    exec->next = calls->execs;
    calls->execs = exec;
    pthread_mutex_unlock(&calls->lock);
}

int sg_exec_note(sg_session *session, uint64_t handle, CUgraph graph, uint64_t graph_handle)
{
    CUgraphNode *nodes;
    size_t count = 0;
    if (!sg_calls_of(session))
        return -1;
    CUresult error = nodes_of(sg_session_driver(session), graph, &nodes, &count);
    struct sg_exec *exec = error ? NULL : calloc(1, sizeof *exec);
    if (exec)
        exec->nodes = calloc(count + 1, sizeof *exec->nodes);
    if (!exec || !exec->nodes) {
        free(nodes);
        free(exec);
        return -1;
    }
    exec->handle = handle;
    exec->count = (uint32_t)count;
    for (size_t i = 0; i < count; i++) {
        uint32_t bytes;
        uint64_t node = 0;
        free(message_of(sg_calls_of(session), graph_handle, nodes[i], &bytes, &node));
        exec->nodes[i] = (struct sg_node){.handle = node, .physical = nodes[i]};
    }
    free(nodes);
    add_exec(session, exec);
    return 0;
}

CUgraphNode sg_exec_node(sg_session *session, uint64_t handle, uint64_t node)
{
    struct sg_calls *calls = sg_calls_of(session);
    CUgraphNode found = NULL;
    if (!calls)
        return NULL;
    pthread_mutex_lock(&calls->lock);
    for (struct sg_exec *exec = calls->execs; exec && !found; exec = exec->next) {
        if (exec->handle != handle)
            continue;
        for (uint32_t i = 0; i < exec->count && !found; i++)
            if (exec->nodes[i].handle == node && (exec->hidden || sg_handle_get(session, SG_KIND_GRAPH_NODE, node)))
                found = exec->nodes[i].physical;
    }
    pthread_mutex_unlock(&calls->lock);
    /* A node that got its handle later, by being listed; the driver decides. */
    return found ? found : sg_handle_get(session, SG_KIND_GRAPH_NODE, node);
}

void sg_execs_free(sg_session *session)
{
    struct sg_calls *calls = *sg_session_state(session);
    while (calls->execs) {
        struct sg_exec *next = calls->execs->next;
        free_exec(sg_session_driver(session), calls->execs);
        calls->execs = next;
    }
}

/* ---- following a recipe -------------------------------------------------------------------------------------------------- */
static int32_t rebuild(sg_session *session, const struct sg_request *request, const struct sg_wire_graph_rebuild *head, CUgraph graph, struct sg_node *nodes,
                       struct text *edges)
{
    uint64_t at = sizeof *head;
    for (uint32_t i = 0; i < head->count; i++) {
        struct sg_wire_recipe_node node;
        struct sg_graph_body body;
        if (request->bytes - at < sizeof node)
            return CUDA_ERROR_INVALID_VALUE;
        memcpy(&node, request->payload + at, sizeof node);
        at += sizeof node;
        uint64_t index_bytes = (node.dependency_count * 4ull + 7) & ~7ull, message_bytes = (node.message_bytes + 7ull) & ~7ull;
        if (index_bytes > request->bytes - at || message_bytes > request->bytes - at - index_bytes)
            return CUDA_ERROR_INVALID_VALUE;
        int32_t error = sg_graph_body_read(session, request->payload + at + index_bytes, node.message_bytes, &body);
        if (!error)
            error = (int32_t)sg_graph_body_add(session, request, &body, graph, NULL, 0, &nodes[i].physical);
        if (error)
            return error;
        nodes[i].handle = node.handle;
        for (uint32_t j = 0; j < node.dependency_count; j++) {
            uint64_t edge[2] = {0, i};
            memcpy(&edge[0], request->payload + at + j * 4, 4);
            put(edges, edge, sizeof edge);
        }
        at += index_bytes + message_bytes;
    }
    return CUDA_SUCCESS;
}

/* After all nodes exist: a dependency may be younger than what depends on it. */
static int32_t connect(const struct sg_driver *driver, CUgraph graph, const struct sg_node *nodes, uint32_t count, const struct text *edges)
{
    for (size_t at = 0; at < edges->bytes; at += 16) {
        uint64_t edge[2];
        memcpy(edge, edges->data + at, sizeof edge);
        if (edge[0] >= count)
            return CUDA_ERROR_INVALID_VALUE;
        CUresult error = driver->cuGraphAddDependencies_v2(graph, &nodes[edge[0]].physical, &nodes[edge[1]].physical, NULL, 1);
        if (error)
            return (int32_t)error;
    }
    return edges->failed ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

SG_HANDLER(graph_rebuild)
{
    const struct sg_driver *driver = sg_session_driver(session);
    struct sg_wire_graph_rebuild head;
    CUgraph graph = NULL;
    CUgraphExec made = NULL;
    struct text edges = {0};
    (void)answer;
    SG_READ(head);
    if (!sg_session_replaying(session) || head.count > MAX_NODES || head.what > SG_REBUILD_EXEC || !sg_calls_of(session))
        return CUDA_ERROR_NOT_SUPPORTED;
    struct sg_exec *exec = calloc(1, sizeof *exec);
    if (exec)
        exec->nodes = calloc(head.count + 1u, sizeof *exec->nodes);
    int32_t error = exec && exec->nodes ? (int32_t)driver->cuGraphCreate(&graph, 0) : CUDA_ERROR_OUT_OF_MEMORY;
    if (!error)
        error = rebuild(session, request, &head, graph, exec->nodes, &edges);
    if (!error)
        error = connect(driver, graph, exec->nodes, head.count, &edges);
    free(edges.data);
    if (!error && head.what == SG_REBUILD_EXEC)
        error = (int32_t)driver->cuGraphInstantiateWithFlags(&made, graph, head.flags & CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY);
    if (!error) {
        uint64_t handle = made ? sg_handle_put(session, SG_KIND_GRAPH_EXEC, made, 0) : sg_handle_put(session, SG_KIND_GRAPH, graph, 0);
        error = handle ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
        if (handle && made) {
            *exec = (struct sg_exec){.handle = handle, .count = head.count, .nodes = exec->nodes, .hidden = graph};
            add_exec(session, exec);
            return CUDA_SUCCESS;
        }
    }
    if (error && made)
        (void)driver->cuGraphExecDestroy(made);
    if (error && graph)
        (void)driver->cuGraphDestroy(graph);
    if (exec)
        free(exec->nodes);
    free(exec);
    return error;
}
