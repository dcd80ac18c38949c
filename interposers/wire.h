/* Messages that are no plain copy of one call's parameters; both sides include this.
 * Structs hold no padding that matters: every field is written by the sender. */
#ifndef SG_WIRE_H
#define SG_WIRE_H

#include <stdint.h>

struct sg_wire_hello { uint64_t hash; };
struct sg_wire_context_create { uint32_t flags, primary; };
struct sg_wire_handle { uint64_t handle; };
struct sg_wire_pinned_commit { uint64_t offset, bytes; uint32_t on, reserved; };
struct sg_wire_memory_alloc { uint64_t bytes, stream; uint32_t async, reserved; };
struct sg_wire_memory_free { uint64_t address, stream; };

/* A copy of `depth` slices of `height` rows of `width` bytes.  An address of 0 with the side's bit in `host`
 * means bytes that travel with the message: packed rows, after the struct or through staging. */
enum { SG_COPY_FROM_MESSAGE = 1, SG_COPY_TO_REPLY = 2, SG_COPY_SYNC = 4 };
struct sg_wire_copy {
    uint64_t dst, src, stream;
    uint64_t width, height, depth;                          /* bytes, rows, slices */
    uint64_t dst_pitch, src_pitch, dst_slice, src_slice;    /* bytes */
    uint32_t flags, reserved;
};
struct sg_wire_fill { uint64_t dst, pitch, width, height, stream; uint32_t value, element; }; /* width in elements */

struct sg_wire_launch { /* parameters follow, packed */
    uint64_t function, stream;
    uint32_t grid[3], block[3];
    uint32_t shared, param_bytes, attribute_bytes, reserved; /* attributes follow the parameters, 8-byte aligned */
};
/* One launch attribute: a CUlaunchAttribute whose event, if any, is a virtual handle. */

struct sg_wire_module_load { /* the image follows, when `inline_bytes` is set; else module_stage brought it before */
    uint64_t bytes, stage;   /* stage: number that the rank gave the staged image */
    uint32_t inline_bytes, option_count;
    uint32_t info_bytes, error_bytes;  /* of logs, as asked for */
    uint32_t options[16];
    uint64_t values[16];
};
struct sg_reply_module_load { uint64_t handle; uint32_t status, info_bytes, error_bytes, reserved; }; /* logs follow */

enum { SG_GET_FUNCTION = 0, SG_GET_KERNEL = 1, SG_GET_FUNCTION_OF_KERNEL = 2 };
struct sg_wire_function_get { uint64_t from; uint32_t how, name_bytes; }; /* name follows, with its NUL */
struct sg_reply_function_get { /* offset and size (u16 each) of every parameter follow */
    uint64_t handle, module;
    uint32_t param_count, param_bytes;
    int32_t attributes[16];
};
struct sg_wire_function_set { uint64_t function; int32_t attribute, value; };

struct sg_wire_global { uint64_t from, expected; uint32_t name_bytes, reserved; }; /* expected: 0, but in the log; name follows */
struct sg_reply_global { uint64_t address, bytes; };
struct sg_reply_memory_info { uint64_t free_bytes, total_bytes; };

/* Graph nodes: `type` is a CUgraphNodeType.  What follows depends on it: a kernel's parameters, a
 * sg_wire_copy, a sg_wire_fill, or nothing (`object`: child graph or event).  Then, 8-byte aligned, the
 * handles of `dependency_count` nodes. */
struct sg_wire_graph_node {
    uint64_t owner, node, object; /* graph, exec (or 0); node of a set; function, child graph or event */
    uint32_t type, dependency_count;
    uint32_t body_bytes, reserved;
    uint32_t grid[3], block[3], shared, param_bytes;
};
/* A graph or executable graph, made again from a description of all its nodes: only in the replay log, as what
 * it was made from (a capture, another graph) may be gone.  `count` records follow, each of whole 8 bytes:
 * struct sg_wire_recipe_node, the indices (u32) of the nodes it depends on, a sg_wire_graph_node with its body. */
enum { SG_REBUILD_GRAPH = 0, SG_REBUILD_EXEC = 1 };
struct sg_wire_graph_rebuild { uint64_t flags; uint32_t what, count; };
struct sg_wire_recipe_node { uint64_t handle; uint32_t message_bytes, dependency_count; };
enum { SG_GRAPH_INSTANTIATE = 0, SG_GRAPH_CLONE = 1 };
struct sg_wire_graph_make { uint64_t graph, flags; uint32_t what, reserved; };
enum { SG_LIST_NODES, SG_LIST_ROOTS, SG_LIST_EDGES, SG_LIST_DEPENDENCIES, SG_LIST_DEPENDENTS };
struct sg_wire_graph_list { uint64_t owner; uint32_t what, capacity; };
struct sg_reply_graph_list { uint64_t count; }; /* then `count` handles, or pairs of them for edges */
enum { SG_EDGES_ADD, SG_EDGES_REMOVE };
struct sg_wire_graph_edges { uint64_t graph; uint32_t what, count; }; /* then from[], to[] */
struct sg_wire_graph_update { uint64_t exec, graph; };
struct sg_reply_graph_update { uint64_t node; uint32_t result, reserved; };

struct sg_wire_host_call { uint64_t stream, function, user; uint32_t is_callback, reserved; };

#endif
