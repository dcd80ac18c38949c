/* What the hand-written handlers share.  Every field of a request is untrusted: lengths are checked before
 * use, handles are looked up, addresses must belong to the session. */
#ifndef SG_HANDLERS_H
#define SG_HANDLERS_H

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include "../../singularity_core/proxy/server.h"
#include "../../singularity_core/splicing/residency.h"
#include "../generated/driver.h"
#include "../wire.h"
#include "../wire_nccl.h"

#define SG_HANDLER(name) int32_t sg_serve_##name(sg_session *session, const struct sg_request *request, struct sg_answer *answer)
#define SG_LOG_KEY(op, key) (((uint64_t)(op) << 48) ^ (uint64_t)(key))
/* Copies the request's head into `wire`, or returns from the handler. */
#define SG_READ(wire) \
    do { if (request->bytes < sizeof(wire)) return CUDA_ERROR_INVALID_VALUE; memcpy(&(wire), request->payload, sizeof(wire)); } while (0)
#define SG_REPLY(reply) \
    do { memcpy(answer->payload, &(reply), sizeof(reply)); answer->bytes = sizeof(reply); } while (0)

/* The NUL-terminated text of `bytes` (NUL included) after the first `offset` bytes; NULL when it is not there. */
static inline const char *sg_text(const struct sg_request *request, size_t offset, uint32_t bytes)
{
    if (bytes == 0 || offset > request->bytes || bytes > request->bytes - offset)
        return NULL;
    const char *text = (const char *)request->payload + offset;
    return text[bytes - 1] == 0 ? text : NULL;
}

/* ---- state of a session (state.c) ------------------------------------------------------------------- */
struct sg_global { uint64_t address, bytes, owner; };
struct sg_stage { struct sg_stage *next; uint64_t id, bytes; uint8_t data[]; };
struct sg_pending_free { struct sg_pending_free *next; uint64_t address; CUevent event; };
struct sg_host_record { /* known until the function has run, or never will */
    struct sg_host_record *next, **before;
    sg_session *session;
    struct sg_calls *calls;
    struct sg_host_function function;
    uint64_t gate;
    int gated;
};
struct sg_node { uint64_t handle; CUgraphNode physical; uint8_t *message; uint32_t bytes; }; /* message: NULL when a capture made it */
struct sg_graph { struct sg_graph *next; uint64_t handle; uint32_t count, room; struct sg_node *nodes; };
/* Nodes by which an executable graph's parameters are set; after a replay those of a graph of its own, `hidden`. */
struct sg_exec { struct sg_exec *next; uint64_t handle; uint32_t count; struct sg_node *nodes; CUgraph hidden; };
struct sg_named_function { CUfunction physical; uint64_t handle; };

struct sg_calls {
    pthread_mutex_t lock;   /* everything but the records of host functions */
    struct sg_global *globals;
    uint32_t global_count, global_room;
    struct sg_stage *stages;
    struct sg_pending_free *frees, **frees_end;
    struct sg_graph *graphs;
    struct sg_exec *execs;
    struct sg_named_function *functions;
    uint32_t function_count, function_room;
    struct sg_operation *operations; /* of a group of collectives whose last message has not come */
    uint32_t operation_count;
    int unrestorable; /* some graph is not in the replay log */
    int too_many; /* the group was refused: the rest of it comes yet */
    pthread_mutex_t records_lock;
    struct sg_host_record *records;
    pthread_mutex_t joint; /* held while what belongs together (a host function and its gate) goes into streams, and by handlers
                              that are not the session's leader while they put work there: nothing may come in between */
};
struct sg_calls *sg_calls_of(sg_session *session); /* NULL: out of memory */

void sg_host_records_free(sg_session *session); /* of contexts that are gone: their functions are never called */
int sg_global_add(sg_session *session, uint64_t address, uint64_t bytes, uint64_t owner);

/* ---- memory and copies -------------------------------------------------------------------------------- */
enum { SG_AT_NOWHERE = 0, SG_AT_DEVICE, SG_AT_PINNED };
int sg_where(sg_session *session, uint64_t address, uint64_t bytes); /* SG_AT_*: all of it, and the session's */
/* Checks both sides; 0 when the copy touches only what is the session's.  A side in `flags` is not looked at. */
int32_t sg_copy_check(sg_session *session, const struct sg_wire_copy *c);
void sg_copy_fill(CUDA_MEMCPY3D *out, sg_session *session, const struct sg_wire_copy *c, const void *host);
int32_t sg_fill_check(sg_session *session, const struct sg_wire_fill *f);
void sg_frees_reap(sg_session *session, int all);
void sg_frees_forget(sg_session *session); /* their memory ends with the session, their events now */

/* ---- graphs ----------------------------------------------------------------------------------------------- */
struct sg_graph_body { /* what a node does: checked, and with real handles */
    struct sg_wire_graph_node wire;
    CUDA_KERNEL_NODE_PARAMS kernel;
    void *extra[5];
    size_t param_bytes;
    CUDA_MEMCPY3D copy;
    CUDA_MEMSET_NODE_PARAMS fill;
    void *object;
};
int32_t sg_graph_body_read(sg_session *session, const uint8_t *message, uint64_t bytes, struct sg_graph_body *out);
CUresult sg_graph_body_add(sg_session *session, const struct sg_request *request, struct sg_graph_body *b, CUgraph graph,
                           const CUgraphNode *dependencies, size_t count, CUgraphNode *made);
uint64_t sg_node_handle(sg_session *session, uint64_t graph, CUgraphNode physical); /* a new one when it has none yet */
/* Records that `handle` (of a graph or executable graph) was made like `graph` is now. */
int sg_recipe_log(sg_session *session, const struct sg_request *request, uint64_t handle, CUgraph graph, uint64_t graph_handle, uint64_t flags,
                  uint32_t what);
int sg_exec_note(sg_session *session, uint64_t exec, CUgraph graph, uint64_t graph_handle);
CUgraphNode sg_exec_node(sg_session *session, uint64_t exec, uint64_t node); /* NULL: not one of its nodes */
void sg_execs_free(sg_session *session);
int sg_function_name(sg_session *session, CUfunction physical, uint64_t handle);

/* Function behind a FUNCTION or KERNEL handle. */
static inline CUfunction sg_function_get_physical(sg_session *session, uint64_t handle)
{
    uint32_t kind = SG_HANDLE_KIND(handle);
    return kind == SG_KIND_FUNCTION || kind == SG_KIND_KERNEL ? sg_handle_get(session, kind, handle) : NULL;
}

#endif
