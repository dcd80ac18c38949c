/* Running kernels: blocks and warps as fibers of the threads that take part.
 *
 * Generated code never runs on a thread's own stack.  In block mode one fiber runs block after block and costs a switch
 * per kernel; only when a block pauses does the scheduler (on the thread's own stack) give other blocks a turn, or starts
 * one.  In fiber mode each warp of a block has a fiber, switched at barriers.  A fault abandons the fibers: they hold
 * nothing. */
#include "execute.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define STACK_BYTES (256u << 10)
#define RESIDENT 64u       /* blocks that one thread interleaves, unless the launch is cooperative */
#define IDLE_TURNS 64u     /* turns without progress before another block is started */
#define POOL_WORTH_NS 40000u

__thread struct sgf_executor *sgf_executor_here __attribute__((tls_model("initial-exec")));
static pthread_key_t executor_key;
static pthread_once_t executor_once = PTHREAD_ONCE_INIT;
static _Atomic uint32_t executor_count;

typedef void (*block_entry)(struct sgf_env *env, const uint8_t *params);
typedef void (*warp_entry)(struct sgf_env *env, const uint8_t *params, uint32_t warp);

static void free_executor(void *argument)
{
    struct sgf_executor *e = argument;
    struct sgf_fiber *fiber;
    struct sgf_block *block;
    while ((fiber = e->spare) != NULL) {
        e->spare = fiber->next;
        sgf_stack_free(fiber->stack, STACK_BYTES);
        free(fiber);
    }
    while ((block = e->spare_blocks) != NULL) {
        e->spare_blocks = block->next;
        free(block->memory);
        free(block);
    }
    sgf_executor_here = NULL;
    free(e);
}

static void make_key(void)
{
    pthread_key_create(&executor_key, free_executor);
}

static struct sgf_executor *executor(void)
{
    if (sgf_executor_here != NULL)
        return sgf_executor_here;
    pthread_once(&executor_once, make_key);
    struct sgf_executor *e = calloc(1, sizeof *e);
    if (e == NULL)
        return NULL;
    e->index = atomic_fetch_add(&executor_count, 1);
    sgf_fiber_adopt(&e->base);
    pthread_setspecific(executor_key, e);
    return sgf_executor_here = e;
}

bool sgf_in_kernel(void)
{
    return sgf_executor_here != NULL && sgf_executor_here->current != NULL;
}

void sgf_leave_kernel(CUresult error, uint64_t address)
{
    struct sgf_executor *e = sgf_executor_here;
    int32_t none = 0;
    if (atomic_compare_exchange_strong(&e->job->error, &none, (int32_t)error))
        e->job->fault_address = address;
    sgf_fiber_switch(&e->current->context, &e->base);
    abort(); /* an abandoned fiber is never resumed */
}

/* ---- blocks ---------------------------------------------------------------------------------------------- */
static bool next_index(struct sgf_executor *e, uint64_t *index)
{
    struct sgf_job *job = e->job;
    if (e->chunk_next == e->chunk_end) {
        if (atomic_load_explicit(&job->error, memory_order_relaxed) != 0 ||
            atomic_load_explicit(&job->next, memory_order_relaxed) >= job->total)
            return false;
        uint64_t first = atomic_fetch_add(&job->next, job->chunk);
        if (first >= job->total)
            return false;
        e->chunk_next = first;
        e->chunk_end = first + job->chunk < job->total ? first + job->chunk : job->total;
    }
    *index = e->chunk_next++;
    return true;
}

static bool more_blocks(const struct sgf_executor *e)
{
    return e->chunk_next != e->chunk_end || atomic_load_explicit(&e->job->next, memory_order_relaxed) < e->job->total;
}

static size_t up(size_t bytes)
{
    return (bytes + 127) & ~(size_t)127;
}

static struct sgf_block *new_block(struct sgf_executor *e)
{
    const struct sgf_launch *launch = e->job->launch;
    const struct sgf_variant *variant = launch->variant;
    uint32_t threads = launch->block[0] * launch->block[1] * launch->block[2], warps = (threads + SGF_WARP - 1) / SGF_WARP;
    size_t shared = up((size_t)variant->shared + launch->dynamic_shared), local_stride = ((size_t)variant->local + 15) & ~(size_t)15;
    size_t local = up(local_stride * warps * SGF_WARP), spill = up((size_t)variant->spill * (variant->fibers ? warps : 1));
    struct sgf_block *block = e->spare_blocks;
    if (block != NULL)
        e->spare_blocks = block->next;
    else if ((block = calloc(1, sizeof *block)) == NULL)
        return NULL;
    if (block->memory_bytes < shared + local + spill + 128) {
        free(block->memory);
        block->memory_bytes = shared + local + spill + 128;
        block->memory = aligned_alloc(128, block->memory_bytes);
        if (block->memory == NULL) {
            free(block);
            return NULL;
        }
    }
    block->executor = e;
    struct sgf_env *env = &block->env;
    env->lo = e->job->context->device->lo;
    env->hi = e->job->context->device->hi;
    env->shared = block->memory;
    env->shared_bytes = (uint64_t)variant->shared + launch->dynamic_shared;
    env->local = block->memory + shared;
    env->local_stride = local_stride;
    env->spill = block->memory + shared + local;
    env->globals = launch->globals;
    memcpy(env->grid, launch->grid, sizeof env->grid);
    memcpy(env->block, launch->block, sizeof env->block);
    env->dynamic_shared = launch->dynamic_shared;
    env->order_sensitive = e->job->ordered;
    env->smid = e->index % SGF_MULTIPROCESSORS;
    env->device = block;
    sgf_block_calls(env);
    e->blocks++;
    return block;
}

static void end_block(struct sgf_executor *e, struct sgf_block *block)
{
    block->next = e->spare_blocks;
    e->spare_blocks = block;
    e->blocks--;
    e->idle_turns = 0;
}

static void place(struct sgf_env *env, uint64_t index)
{
    env->ctaid[0] = (uint32_t)(index % env->grid[0]);
    index /= env->grid[0];
    env->ctaid[1] = (uint32_t)(index % env->grid[1]);
    env->ctaid[2] = (uint32_t)(index / env->grid[1]);
}

static void step(struct sgf_env *env)
{
    if (++env->ctaid[0] < env->grid[0])
        return;
    env->ctaid[0] = 0;
    if (++env->ctaid[1] < env->grid[1])
        return;
    env->ctaid[1] = 0;
    env->ctaid[2]++;
}

/* ---- fibers ------------------------------------------------------------------------------------------------ */
static _Noreturn void end_fiber(struct sgf_fiber *fiber)
{
    fiber->ended = true;
    sgf_fiber_switch(&fiber->context, &fiber->executor->base);
    abort();
}

static void run_blocks(void *argument)
{
    struct sgf_fiber *fiber = argument;
    struct sgf_executor *e = fiber->executor;
    struct sgf_env *env = &fiber->block->env;
    block_entry entry = (block_entry)e->job->launch->variant->entry;
    uint64_t index, last = UINT64_MAX - 1;
    sgf_fiber_entered();
    while (next_index(e, &index)) {
        if (index == last + 1)
            step(env);
        else
            place(env, index);
        last = index;
        entry(env, e->job->params);
        e->idle_turns = 0;
    }
    end_fiber(fiber);
}

static void run_warp(void *argument)
{
    struct sgf_fiber *fiber = argument;
    struct sgf_job *job = fiber->executor->job;
    sgf_fiber_entered();
    ((warp_entry)job->launch->variant->entry)(&fiber->block->env, job->params, fiber->warp);
    end_fiber(fiber);
}

static bool add_fiber(struct sgf_executor *e, struct sgf_block *block, uint32_t warp, void (*entry)(void *))
{
    struct sgf_fiber *fiber = e->spare;
    if (fiber != NULL) {
        e->spare = fiber->next;
    } else {
        fiber = calloc(1, sizeof *fiber);
        if (fiber == NULL || (fiber->stack = sgf_stack_new(STACK_BYTES)) == NULL) {
            free(fiber);
            return false;
        }
        fiber->executor = e;
    }
    fiber->block = block;
    fiber->warp = warp;
    fiber->ended = false;
    sgf_fiber_make(&fiber->context, fiber->stack, STACK_BYTES, entry, fiber);
    fiber->previous_active = NULL;
    fiber->next_active = e->active;
    if (e->active != NULL)
        e->active->previous_active = fiber;
    e->active = fiber;
    sgf_fiber_put(&e->ready, fiber);
    return true;
}

static void recycle(struct sgf_executor *e, struct sgf_fiber *fiber)
{
    if (fiber->previous_active != NULL)
        fiber->previous_active->next_active = fiber->next_active;
    else
        e->active = fiber->next_active;
    if (fiber->next_active != NULL)
        fiber->next_active->previous_active = fiber->previous_active;
    sgf_fiber_end(&fiber->context);
    fiber->next = e->spare;
    e->spare = fiber;
}

static bool start_block(struct sgf_executor *e)
{
    const struct sgf_launch *launch = e->job->launch;
    struct sgf_block *block = new_block(e);
    if (block == NULL)
        return false;
    if (!launch->variant->fibers)
        return add_fiber(e, block, 0, run_blocks);
    uint64_t index;
    if (!next_index(e, &index)) {
        end_block(e, block);
        return true;
    }
    place(&block->env, index);
    uint32_t threads = launch->block[0] * launch->block[1] * launch->block[2];
    block->live_warps = (threads + SGF_WARP - 1) / SGF_WARP;
    memset(block->barriers, 0, sizeof block->barriers);
    for (uint32_t warp = 0; warp < block->live_warps; warp++)
        if (!add_fiber(e, block, warp, run_warp))
            return false;
    return true;
}

void sgf_executor_yield(struct sgf_executor *e)
{
    struct sgf_fiber *from = e->current, *to = e->idle_turns < IDLE_TURNS ? sgf_fiber_get(&e->ready) : NULL;
    if (to == from)
        return;
    e->current = to;
    sgf_fiber_switch(&from->context, to != NULL ? &to->context : &e->base);
    e->current = from;
}

static void wake_sleepers(struct sgf_executor *e, bool may_sleep)
{
    uint64_t now = sgf_now(), earliest = UINT64_MAX;
    struct sgf_fiber_list still = { NULL, NULL };
    struct sgf_fiber *fiber;
    bool woken = false;
    while ((fiber = sgf_fiber_get(&e->sleeping)) != NULL) {
        if (fiber->deadline <= now) {
            sgf_fiber_put(&e->ready, fiber);
            woken = true;
        } else {
            earliest = fiber->deadline < earliest ? fiber->deadline : earliest;
            sgf_fiber_put(&still, fiber);
        }
    }
    e->sleeping = still;
    if (woken || !may_sleep || earliest == UINT64_MAX)
        return;
    uint64_t span = earliest - now < 10000000u ? earliest - now : 10000000u; /* another thread may have failed meanwhile */
    struct timespec t = { 0, (long)span };
    nanosleep(&t, NULL);
}

static bool may_start(const struct sgf_executor *e)
{
    if (!more_blocks(e) || e->blocks >= e->job->total)
        return false;
    if (e->blocks == 0 || e->job->cooperative)
        return true;
    bool stuck = e->idle_turns >= IDLE_TURNS;
    if (e->job->ordered)
        return stuck && e->blocks < RESIDENT * 16;
    return e->blocks < RESIDENT || (stuck && e->blocks < RESIDENT * 16);
}

static void abandon(struct sgf_executor *e)
{
    while (e->active != NULL) {
        struct sgf_fiber *fiber = e->active;
        if (fiber->block != NULL && !e->job->launch->variant->fibers)
            end_block(e, fiber->block);
        else if (fiber->block != NULL && --fiber->block->live_warps == 0)
            end_block(e, fiber->block);
        recycle(e, fiber);
    }
    e->ready = e->sleeping = (struct sgf_fiber_list){ NULL, NULL };
    e->blocks = 0;
}

static void after_turn(struct sgf_executor *e, struct sgf_fiber *fiber)
{
    if (!fiber->ended)
        return;
    if (!e->job->launch->variant->fibers) {
        end_block(e, fiber->block);
    } else {
        sgf_block_warp_ended(fiber->block);
        if (fiber->block->live_warps == 0)
            end_block(e, fiber->block);
    }
    recycle(e, fiber);
}

static void fail(struct sgf_job *job, CUresult error)
{
    int32_t none = 0;
    atomic_compare_exchange_strong(&job->error, &none, (int32_t)error);
}

/* Takes part in `job` until nothing is left for this thread to do. */
void sgf_executor_run(struct sgf_job *job)
{
    struct sgf_executor *e = executor();
    if (e == NULL) {
        fail(job, CUDA_ERROR_OUT_OF_MEMORY);
        return;
    }
    e->job = job;
    e->chunk_next = e->chunk_end = 0;
    e->idle_turns = 0;
    while (atomic_load_explicit(&job->error, memory_order_relaxed) == 0) {
        if (SGF_UNLIKELY(atomic_load_explicit(&job->context->abandoned, memory_order_relaxed))) {
            fail(job, CUDA_ERROR_CONTEXT_IS_DESTROYED);
            break;
        }
        if (e->sleeping.first != NULL)
            wake_sleepers(e, false);
        bool stuck = e->idle_turns >= IDLE_TURNS;
        if ((e->ready.first == NULL || stuck || job->cooperative) && may_start(e)) {
            e->idle_turns = 0;
            if (!start_block(e))
                fail(job, CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
            continue;
        }
        if (stuck) {
            sched_yield(); /* what it waits for may be in another thread's block */
            e->idle_turns = 0;
        }
        struct sgf_fiber *fiber = sgf_fiber_get(&e->ready);
        if (fiber != NULL) {
            e->current = fiber;
            sgf_fiber_switch(&e->base, &fiber->context);
            fiber = e->current != NULL ? e->current : fiber;
            e->current = NULL;
            after_turn(e, fiber);
        } else if (e->sleeping.first != NULL) {
            wake_sleepers(e, true);
        } else if (e->active != NULL) {
            fail(job, CUDA_ERROR_LAUNCH_TIMEOUT); /* every warp waits at a barrier that cannot complete */
        } else {
            break;
        }
    }
    abandon(e);
    e->job = NULL;
}

/* ---- kernels ------------------------------------------------------------------------------------------------- */
static const char *what(int32_t error)
{
    switch (error) {
    case CUDA_ERROR_ILLEGAL_ADDRESS: return "illegal address";
    case CUDA_ERROR_MISALIGNED_ADDRESS: return "misaligned address";
    case CUDA_ERROR_LAUNCH_TIMEOUT: return "barrier that cannot complete";
    case CUDA_ERROR_ASSERT: return "device-side assert";
    case CUDA_ERROR_LAUNCH_FAILED: return "trap";
    case CUDA_ERROR_CONTEXT_IS_DESTROYED: return "stopped, as its context is gone";
    case CUDA_ERROR_NOT_SUPPORTED: return "operation that the in-memory device does not support";
    default: return "failure";
    }
}

CUresult sgf_kernel_run(const struct sgf_launch *launch, const uint8_t *params, struct CUctx_st *context)
{
    struct sgf_variant *variant = (struct sgf_variant *)launch->variant;
    uint64_t threads = (uint64_t)launch->block[0] * launch->block[1] * launch->block[2];
    struct sgf_job job = { .launch = launch, .params = params, .context = context, .cooperative = launch->cooperative };
    CUresult injected;
    if (SGF_UNLIKELY(atomic_load(&sgf.injecting)) && sgf_injected_kernel(&injected))
        return injected;
    job.total = (uint64_t)launch->grid[0] * launch->grid[1] * launch->grid[2];
    job.ordered = launch->function->kernel->order_sensitive && !sgf.parallel_atomics;
    uint64_t mean = atomic_load_explicit(&variant->block_ns, memory_order_relaxed);
    bool small = mean == 0 ? job.total * threads < 8192 : mean * job.total < POOL_WORTH_NS;
    bool alone = job.total == 1 || job.ordered || job.cooperative || small || sgf.threads == 1;
    job.chunk = alone ? job.total : job.total / ((uint64_t)sgf.threads * 8) + 1;
    if (job.cooperative || launch->variant->fibers)
        job.chunk = alone ? job.total : 1;
    if (SGF_UNLIKELY(sgf.exclusive))
        pthread_mutex_lock(&context->device->kernels);
    uint64_t before = sgf_now();
    if (alone)
        sgf_executor_run(&job);
    else
        sgf_pool_run(&job);
    if (SGF_UNLIKELY(sgf.exclusive))
        pthread_mutex_unlock(&context->device->kernels);
    uint64_t each = (sgf_now() - before) * (alone ? 1 : (uint64_t)sgf.threads) / job.total + 1;
    atomic_store_explicit(&variant->block_ns, mean == 0 ? each : (mean * 7 + each) / 8 + 1, memory_order_relaxed);
    int32_t error = atomic_load(&job.error);
    if (error != 0)
        sgf_say("kernel %s: %s at 0x%llx (error %d, sticky for its context)", launch->function->name, what(error),
                (unsigned long long)job.fault_address, error);
    return (CUresult)error;
}
