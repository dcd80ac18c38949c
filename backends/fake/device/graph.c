/* The structure of graphs: nodes, edges, copies, order. */
#include "graph.h"

#include <stdlib.h>
#include <string.h>

pthread_mutex_t sgf_graph_lock = PTHREAD_MUTEX_INITIALIZER;
static uint32_t next_number = 1;

void sgf_work_keep(struct sgf_work *work)
{
    __atomic_add_fetch(&work->references, 1, __ATOMIC_RELAXED);
}

void sgf_node_set_work(struct CUgraphNode_st *node, struct sgf_work *work)
{
    if (node->work != NULL)
        sgf_work_free(node->work);
    free(node->pointers);
    node->pointers = NULL;
    node->work = work;
}

CUresult sgf_graph_new(struct CUgraph_st **out)
{
    struct CUgraph_st *graph = sgf_new(SGF_GRAPH);
    if (graph == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    graph->number = next_number++;
    *out = graph;
    return CUDA_SUCCESS;
}

static void free_node(struct CUgraphNode_st *node)
{
    sgf_node_set_work(node, NULL);
    if (node->child != NULL)
        sgf_graph_free(node->child);
    free(node->needs);
    sgf_delete(node);
}

void sgf_graph_free(struct CUgraph_st *graph)
{
    struct CUgraphNode_st *node = graph->first;
    while (node != NULL) {
        struct CUgraphNode_st *next = node->next;
        free_node(node);
        node = next;
    }
    sgf_delete(graph);
}

CUresult sgf_graph_need(struct CUgraphNode_st *node, struct CUgraphNode_st *on)
{
    for (uint32_t i = 0; i < node->need_count; i++)
        if (node->needs[i] == on)
            return CUDA_ERROR_INVALID_VALUE; /* documented: an edge that exists is an error */
    struct CUgraphNode_st **needs = realloc(node->needs, (node->need_count + 1) * sizeof *needs);
    if (needs == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    node->needs = needs;
    needs[node->need_count++] = on;
    return CUDA_SUCCESS;
}

CUresult sgf_graph_add(struct CUgraph_st *graph, CUgraphNodeType type, const CUgraphNode *needs, size_t count, CUgraphNode *out)
{
    if (out == NULL || (count != 0 && needs == NULL))
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++)
        if (!sgf_valid(SGF_NODE, needs[i]) || needs[i]->graph != graph)
            return CUDA_ERROR_INVALID_VALUE;
    struct CUgraphNode_st *node = sgf_new(SGF_NODE);
    if (node == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    node->type = type;
    node->graph = graph;
    node->id = graph->next_id;
    for (size_t i = 0; i < count; i++) {
        CUresult result = sgf_graph_need(node, needs[i]);
        if (result != CUDA_SUCCESS) {
            free_node(node);
            return result;
        }
    }
    graph->next_id++;
    node->previous = graph->last;
    if (graph->last != NULL)
        graph->last->next = node;
    else
        graph->first = node;
    graph->last = node;
    graph->count++;
    *out = node;
    return CUDA_SUCCESS;
}

void sgf_graph_remove(struct CUgraphNode_st *node)
{
    struct CUgraph_st *graph = node->graph;
    for (struct CUgraphNode_st *other = graph->first; other != NULL; other = other->next)
        for (uint32_t i = 0; i < other->need_count; i++)
            if (other->needs[i] == node)
                other->needs[i--] = other->needs[--other->need_count];
    if (node->previous != NULL)
        node->previous->next = node->next;
    else
        graph->first = node->next;
    if (node->next != NULL)
        node->next->previous = node->previous;
    else
        graph->last = node->previous;
    graph->count--;
    free_node(node);
}

struct CUgraphNode_st *sgf_graph_find(struct CUgraph_st *graph, uint32_t id)
{
    for (struct CUgraphNode_st *node = graph->first; node != NULL; node = node->next)
        if (node->id == id)
            return node;
    return NULL;
}

static CUresult copy_node(struct CUgraph_st *to, const struct CUgraphNode_st *node, struct CUgraphNode_st **by_id)
{
    CUgraphNode made;
    to->next_id = node->id;
    CUresult result = sgf_graph_add(to, node->type, NULL, 0, &made);
    if (result != CUDA_SUCCESS)
        return result;
    by_id[node->id] = made;
    made->event = node->event;
    made->disabled = node->disabled;
    if (node->work != NULL) {
        sgf_work_keep(node->work);
        made->work = node->work;
    }
    if (node->child != NULL) {
        result = sgf_graph_copy(node->child, &made->child);
        if (result == CUDA_SUCCESS)
            made->child->owned = true;
    }
    return result;
}

CUresult sgf_graph_copy(const struct CUgraph_st *from, struct CUgraph_st **out)
{
    struct CUgraph_st *to;
    CUresult result = sgf_graph_new(&to);
    if (result != CUDA_SUCCESS)
        return result;
    struct CUgraphNode_st **by_id = calloc(from->next_id + 1u, sizeof *by_id);
    if (by_id == NULL)
        result = CUDA_ERROR_OUT_OF_MEMORY;
    for (const struct CUgraphNode_st *node = from->first; node != NULL && result == CUDA_SUCCESS; node = node->next)
        result = copy_node(to, node, by_id);
    for (const struct CUgraphNode_st *node = from->first; node != NULL && result == CUDA_SUCCESS; node = node->next)
        for (uint32_t i = 0; i < node->need_count && result == CUDA_SUCCESS; i++)
            result = sgf_graph_need(by_id[node->id], by_id[node->needs[i]->id]);
    free(by_id);
    to->next_id = from->next_id;
    if (result != CUDA_SUCCESS)
        sgf_graph_free(to);
    else
        *out = to;
    return result;
}

/* ---- order: nodes as they were added, but never before what they need -------------------------------------------- */
struct sorted { struct CUgraphNode_st **nodes; uint32_t count, room; };

static CUresult put(struct sorted *s, struct CUgraphNode_st *node)
{
    if (s->count == s->room) {
        uint32_t room = s->room == 0 ? 64 : s->room * 2;
        struct CUgraphNode_st **nodes = realloc(s->nodes, room * sizeof *nodes);
        if (nodes == NULL)
            return CUDA_ERROR_OUT_OF_MEMORY;
        s->nodes = nodes;
        s->room = room;
    }
    s->nodes[s->count++] = node;
    return CUDA_SUCCESS;
}

static CUresult sort(struct sorted *s, struct CUgraph_st *graph)
{
    uint32_t left = graph->count;
    for (struct CUgraphNode_st *node = graph->first; node != NULL; node = node->next)
        node->mark = 0;
    while (left > 0) { /* one pass when nodes were added in order, as captures and most programs do */
        uint32_t before = left;
        for (struct CUgraphNode_st *node = graph->first; node != NULL; node = node->next) {
            bool ready = node->mark == 0;
            for (uint32_t i = 0; i < node->need_count && ready; i++)
                ready = node->needs[i]->mark != 0;
            if (!ready)
                continue;
            node->mark = 1;
            left--;
            CUresult result = node->child != NULL ? sort(s, node->child) : put(s, node);
            if (result != CUDA_SUCCESS)
                return result;
        }
        if (left == before)
            return CUDA_ERROR_INVALID_VALUE; /* a cycle */
    }
    return CUDA_SUCCESS;
}

CUresult sgf_graph_order(struct CUgraph_st *graph, struct CUgraphNode_st ***order, uint32_t *count)
{
    struct sorted s = { NULL, 0, 0 };
    CUresult result = sort(&s, graph);
    if (result != CUDA_SUCCESS) {
        free(s.nodes);
        return result;
    }
    *order = s.nodes;
    *count = s.count;
    return CUDA_SUCCESS;
}

/* ---- calls ------------------------------------------------------------------------------------------------------------ */
#define LOCKED(expression) \
    do { pthread_mutex_lock(&sgf_graph_lock); CUresult result_ = (expression); pthread_mutex_unlock(&sgf_graph_lock); \
         return result_; } while (0)
#define NEED_GRAPH(graph) do { if (!sgf_valid(SGF_GRAPH, graph)) return CUDA_ERROR_INVALID_VALUE; } while (0)
#define NEED_NODE(node) do { if (!sgf_valid(SGF_NODE, node)) return CUDA_ERROR_INVALID_VALUE; } while (0)

CUresult cuGraphCreate(CUgraph *phGraph, unsigned int flags)
{
    SGF_ENTER();
    if (phGraph == NULL || flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    LOCKED(sgf_graph_new(phGraph));
}

CUresult cuGraphDestroy(CUgraph hGraph)
{
    SGF_ENTER();
    NEED_GRAPH(hGraph);
    if (hGraph->owned)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sgf_graph_lock);
    sgf_graph_free(hGraph);
    pthread_mutex_unlock(&sgf_graph_lock);
    return CUDA_SUCCESS;
}

CUresult cuGraphClone(CUgraph *phGraphClone, CUgraph originalGraph)
{
    SGF_ENTER();
    NEED_GRAPH(originalGraph);
    if (phGraphClone == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    LOCKED(sgf_graph_copy(originalGraph, phGraphClone));
}

CUresult cuGraphNodeFindInClone(CUgraphNode *phNode, CUgraphNode hOriginalNode, CUgraph hClonedGraph)
{
    SGF_ENTER();
    NEED_GRAPH(hClonedGraph);
    NEED_NODE(hOriginalNode);
    if (phNode == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sgf_graph_lock);
    *phNode = sgf_graph_find(hClonedGraph, hOriginalNode->id);
    pthread_mutex_unlock(&sgf_graph_lock);
    return *phNode == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult cuGraphNodeGetType(CUgraphNode hNode, CUgraphNodeType *type)
{
    SGF_ENTER();
    NEED_NODE(hNode);
    if (type == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *type = hNode->type;
    return CUDA_SUCCESS;
}

CUresult cuGraphNodeGetContainingGraph(CUgraphNode hNode, CUgraph *phGraph)
{
    SGF_ENTER();
    NEED_NODE(hNode);
    if (phGraph == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *phGraph = hNode->graph;
    return CUDA_SUCCESS;
}

CUresult cuGraphNodeGetLocalId(CUgraphNode hNode, unsigned int *nodeId)
{
    SGF_ENTER();
    NEED_NODE(hNode);
    if (nodeId == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *nodeId = hNode->id;
    return CUDA_SUCCESS;
}

CUresult cuGraphGetId(CUgraph hGraph, unsigned int *graphId)
{
    SGF_ENTER();
    NEED_GRAPH(hGraph);
    if (graphId == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *graphId = hGraph->number;
    return CUDA_SUCCESS;
}

/* The convention of all listing calls: without an array, the count; with one, as many as fit, the rest NULL. */
static CUresult list_nodes(CUgraph graph, CUgraphNode *nodes, size_t *count, bool roots)
{
    size_t found = 0;
    for (struct CUgraphNode_st *node = graph->first; node != NULL; node = node->next) {
        if (roots && node->need_count != 0)
            continue;
        if (nodes != NULL && found == *count)
            break;
        if (nodes != NULL)
            nodes[found] = node;
        found++;
    }
    for (size_t i = found; nodes != NULL && i < *count; i++)
        nodes[i] = NULL;
    *count = found;
    return CUDA_SUCCESS;
}

CUresult cuGraphGetNodes(CUgraph hGraph, CUgraphNode *nodes, size_t *numNodes)
{
    SGF_ENTER();
    NEED_GRAPH(hGraph);
    if (numNodes == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    LOCKED(list_nodes(hGraph, nodes, numNodes, false));
}

CUresult cuGraphGetRootNodes(CUgraph hGraph, CUgraphNode *rootNodes, size_t *numRootNodes)
{
    SGF_ENTER();
    NEED_GRAPH(hGraph);
    if (numRootNodes == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    LOCKED(list_nodes(hGraph, rootNodes, numRootNodes, true));
}

static CUresult list_edges(CUgraph graph, CUgraphNode *from, CUgraphNode *to, CUgraphEdgeData *data, size_t *count)
{
    size_t found = 0;
    bool full = false;
    for (struct CUgraphNode_st *node = graph->first; node != NULL && !full; node = node->next)
        for (uint32_t i = 0; i < node->need_count && !full; i++) {
            full = from != NULL && found == *count;
            if (full)
                break;
            if (from != NULL) {
                from[found] = node->needs[i];
                to[found] = node;
            }
            if (from != NULL && data != NULL)
                memset(&data[found], 0, sizeof data[found]);
            found++;
        }
    *count = found;
    return CUDA_SUCCESS;
}

CUresult cuGraphGetEdges_v2(CUgraph hGraph, CUgraphNode *from, CUgraphNode *to, CUgraphEdgeData *edgeData, size_t *numEdges)
{
    SGF_ENTER();
    NEED_GRAPH(hGraph);
    if (numEdges == NULL || (from == NULL) != (to == NULL))
        return CUDA_ERROR_INVALID_VALUE;
    LOCKED(list_edges(hGraph, from, to, edgeData, numEdges));
}

CUresult cuGraphGetEdges(CUgraph hGraph, CUgraphNode *from, CUgraphNode *to, size_t *numEdges)
{
    return cuGraphGetEdges_v2(hGraph, from, to, NULL, numEdges);
}

static CUresult neighbours(CUgraphNode node, CUgraphNode *out, CUgraphEdgeData *data, size_t *count, bool dependents)
{
    size_t found = 0, room = out != NULL ? *count : SIZE_MAX;
    for (uint32_t i = 0; !dependents && i < node->need_count && found < room; i++, found++)
        if (out != NULL)
            out[found] = node->needs[i];
    for (struct CUgraphNode_st *other = node->graph->first; dependents && other != NULL; other = other->next)
        for (uint32_t i = 0; i < other->need_count && found < room; i++)
            if (other->needs[i] == node) {
                if (out != NULL)
                    out[found] = other;
                found++;
            }
    if (out != NULL && data != NULL)
        memset(data, 0, found * sizeof *data);
    for (size_t i = found; out != NULL && i < *count; i++)
        out[i] = NULL;
    *count = found;
    return CUDA_SUCCESS;
}

CUresult cuGraphNodeGetDependencies_v2(CUgraphNode hNode, CUgraphNode *dependencies, CUgraphEdgeData *edgeData,
                                       size_t *numDependencies)
{
    SGF_ENTER();
    NEED_NODE(hNode);
    if (numDependencies == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    LOCKED(neighbours(hNode, dependencies, edgeData, numDependencies, false));
}

CUresult cuGraphNodeGetDependencies(CUgraphNode hNode, CUgraphNode *dependencies, size_t *numDependencies)
{
    return cuGraphNodeGetDependencies_v2(hNode, dependencies, NULL, numDependencies);
}

CUresult cuGraphNodeGetDependentNodes_v2(CUgraphNode hNode, CUgraphNode *dependentNodes, CUgraphEdgeData *edgeData,
                                         size_t *numDependentNodes)
{
    SGF_ENTER();
    NEED_NODE(hNode);
    if (numDependentNodes == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    LOCKED(neighbours(hNode, dependentNodes, edgeData, numDependentNodes, true));
}

CUresult cuGraphNodeGetDependentNodes(CUgraphNode hNode, CUgraphNode *dependentNodes, size_t *numDependentNodes)
{
    return cuGraphNodeGetDependentNodes_v2(hNode, dependentNodes, NULL, numDependentNodes);
}

static CUresult edit_edges(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t count, bool add)
{
    for (size_t n = 0; n < count; n++) {
        if (!sgf_valid(SGF_NODE, from[n]) || !sgf_valid(SGF_NODE, to[n]) || from[n]->graph != graph || to[n]->graph != graph ||
            from[n] == to[n])
            return CUDA_ERROR_INVALID_VALUE;
        uint32_t at = 0;
        while (at < to[n]->need_count && to[n]->needs[at] != from[n])
            at++;
        if (add) {
            CUresult result = sgf_graph_need(to[n], from[n]);
            if (result != CUDA_SUCCESS)
                return result;
        } else {
            if (at == to[n]->need_count)
                return CUDA_ERROR_INVALID_VALUE;
            to[n]->needs[at] = to[n]->needs[--to[n]->need_count];
        }
    }
    return CUDA_SUCCESS;
}

CUresult cuGraphAddDependencies(CUgraph hGraph, const CUgraphNode *from, const CUgraphNode *to, size_t numDependencies)
{
    SGF_ENTER();
    NEED_GRAPH(hGraph);
    if (numDependencies != 0 && (from == NULL || to == NULL))
        return CUDA_ERROR_INVALID_VALUE;
    LOCKED(edit_edges(hGraph, from, to, numDependencies, true));
}

CUresult cuGraphAddDependencies_v2(CUgraph hGraph, const CUgraphNode *from, const CUgraphNode *to,
                                   const CUgraphEdgeData *edgeData, size_t numDependencies)
{
    (void)edgeData; /* every edge waits for full completion, which satisfies each kind */
    return cuGraphAddDependencies(hGraph, from, to, numDependencies);
}

CUresult cuGraphRemoveDependencies(CUgraph hGraph, const CUgraphNode *from, const CUgraphNode *to, size_t numDependencies)
{
    SGF_ENTER();
    NEED_GRAPH(hGraph);
    if (numDependencies != 0 && (from == NULL || to == NULL))
        return CUDA_ERROR_INVALID_VALUE;
    LOCKED(edit_edges(hGraph, from, to, numDependencies, false));
}

CUresult cuGraphRemoveDependencies_v2(CUgraph hGraph, const CUgraphNode *from, const CUgraphNode *to,
                                      const CUgraphEdgeData *edgeData, size_t numDependencies)
{
    (void)edgeData;
    return cuGraphRemoveDependencies(hGraph, from, to, numDependencies);
}

CUresult cuGraphDestroyNode(CUgraphNode hNode)
{
    SGF_ENTER();
    NEED_NODE(hNode);
    pthread_mutex_lock(&sgf_graph_lock);
    sgf_graph_remove(hNode);
    pthread_mutex_unlock(&sgf_graph_lock);
    return CUDA_SUCCESS;
}
