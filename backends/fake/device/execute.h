/* What execute.c (scheduling), block_calls.c (calls out of generated code) and pool.c (threads) share. */
#ifndef SGF_EXECUTE_H
#define SGF_EXECUTE_H

#include "device.h"

#define SGF_BARRIERS 16

struct sgf_job { /* one run of a kernel */
    const struct sgf_launch *launch;
    const uint8_t *params;
    struct CUctx_st *context;
    uint64_t total, chunk;
    bool ordered, cooperative;
    _Atomic uint64_t next;
    _Atomic uint32_t helpers; /* pool threads inside */
    _Atomic int32_t error;    /* first; the others stop when they see it */
    uint64_t fault_address;
    struct sgf_job *following; /* in the pool's list */
};

struct sgf_fiber {
    struct sgf_fiber_context context;
    void *stack;
    struct sgf_executor *executor;
    struct sgf_block *block;
    uint32_t warp, result;
    uint64_t deadline;
    bool ended;
    struct sgf_fiber *next; /* in one of: ready, sleeping, a barrier's waiters, spare */
    struct sgf_fiber *next_active, *previous_active;
};

struct sgf_fiber_list { struct sgf_fiber *first, *last; };

struct sgf_barrier { uint32_t arrived, needed, popc, any, all; bool implicit; struct sgf_fiber_list waiting; };

struct sgf_block { /* a block in flight */
    struct sgf_env env; /* first: generated code hands it back */
    struct sgf_executor *executor;
    uint8_t *memory;
    size_t memory_bytes;
    uint32_t live_warps;
    struct sgf_barrier barriers[SGF_BARRIERS];
    struct sgf_block *next;
};

struct sgf_executor { /* one per thread that runs kernels */
    struct sgf_fiber_context base;
    struct sgf_job *job;
    struct sgf_fiber *current, *active;
    struct sgf_fiber_list ready, sleeping;
    struct sgf_fiber *spare;
    struct sgf_block *spare_blocks;
    uint64_t chunk_next, chunk_end;
    uint32_t blocks, idle_turns, index;
};

extern __thread struct sgf_executor *sgf_executor_here __attribute__((tls_model("initial-exec")));
void sgf_executor_run(struct sgf_job *job);
void sgf_executor_yield(struct sgf_executor *e); /* from a fiber: someone else's turn */
static inline void sgf_fiber_put(struct sgf_fiber_list *list, struct sgf_fiber *fiber)
{
    fiber->next = NULL;
    if (list->last != NULL)
        list->last->next = fiber;
    else
        list->first = fiber;
    list->last = fiber;
}
static inline struct sgf_fiber *sgf_fiber_get(struct sgf_fiber_list *list)
{
    struct sgf_fiber *fiber = list->first;
    if (fiber != NULL && (list->first = fiber->next) == NULL)
        list->last = NULL;
    return fiber;
}
void sgf_block_calls(struct sgf_env *env);       /* fills in the function pointers */
void sgf_block_warp_ended(struct sgf_block *block);
void sgf_pool_run(struct sgf_job *job);          /* runs it on this thread and the pool's */

#endif
