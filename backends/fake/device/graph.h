/* Graphs: what graph.c (structure), graph_nodes.c (calls), graph_params.c, graph_exec.c (launching) and
 * capture.c share.
 *
 * A node's work is an immutable, counted `sgf_work`: graphs, clones, executable graphs and launches in flight share it,
 * and setting parameters replaces it.  All structure is guarded by one lock, sgf_graph_lock. */
#ifndef SGF_GRAPH_H
#define SGF_GRAPH_H

#include "device.h"

struct CUgraphNode_st {
    struct sgf_object object;
    CUgraphNodeType type;
    uint32_t id; /* within its graph; clones keep it */
    struct CUgraph_st *graph;
    struct sgf_work *work;     /* kernel, memcpy, memset, host; NULL for others */
    struct CUgraph_st *child;  /* owned */
    struct CUevent_st *event;
    struct CUgraphNode_st **needs;
    uint32_t need_count, mark;
    bool disabled; /* in an executable graph */
    void **pointers; /* what cuGraphKernelNodeGetParams hands out */
    struct CUgraphNode_st *next, *previous;
};
struct CUgraph_st {
    struct sgf_object object;
    struct CUgraphNode_st *first, *last;
    uint32_t count, next_id, number;
    bool owned; /* by a child node or an executable graph */
};
struct CUgraphExec_st {
    struct sgf_object object;
    struct CUgraph_st *graph;       /* its own copy */
    struct CUgraphNode_st **order;  /* flattened, every node after what it needs */
    uint32_t order_count, number;
    unsigned long long flags;
    struct sgf_plan *plan;          /* NULL: to be made at the next launch */
};
_Static_assert(sizeof(struct CUgraph_st) <= 256 && sizeof(struct CUgraphNode_st) <= 192 &&
               sizeof(struct CUgraphExec_st) <= 192, "the slabs of handles.c hold them");

extern pthread_mutex_t sgf_graph_lock;
/* The caller holds the lock for all of these. */
CUresult sgf_graph_new(struct CUgraph_st **out);
void sgf_graph_free(struct CUgraph_st *graph);
CUresult sgf_graph_copy(const struct CUgraph_st *from, struct CUgraph_st **out);
CUresult sgf_graph_add(struct CUgraph_st *graph, CUgraphNodeType type, const CUgraphNode *needs, size_t count, CUgraphNode *out);
CUresult sgf_graph_need(struct CUgraphNode_st *node, struct CUgraphNode_st *on);
struct CUgraphNode_st *sgf_graph_find(struct CUgraph_st *graph, uint32_t id);
CUresult sgf_graph_order(struct CUgraph_st *graph, struct CUgraphNode_st ***order, uint32_t *count);
void sgf_graph_remove(struct CUgraphNode_st *node);
/* Sets the work of `node` from parameters of its type, and tells them. */
CUresult sgf_node_set(struct CUgraphNode_st *node, const CUgraphNodeParams *params);
CUresult sgf_node_get(struct CUgraphNode_st *node, CUgraphNodeParams *params);
void sgf_node_set_work(struct CUgraphNode_st *node, struct sgf_work *work);
void sgf_work_keep(struct sgf_work *work);
/* The older calls have a structure per type of node.  False: there is none.  No lock is needed. */
bool sgf_params_from_kernel(CUgraphNodeParams *p, const void *old, size_t bytes);
bool sgf_params_from_copy(CUgraphNodeParams *p, const CUDA_MEMCPY3D *old, CUcontext context);
bool sgf_params_from_fill(CUgraphNodeParams *p, const CUDA_MEMSET_NODE_PARAMS *old, CUcontext context);
bool sgf_params_from_host(CUgraphNodeParams *p, const CUDA_HOST_NODE_PARAMS *old);

#endif
