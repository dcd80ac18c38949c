/* What generated code calls: the function pointers of struct sgf_env. */
#include "execute.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

static void outside(struct sgf_env *env, uint64_t address, uint32_t bytes, uint32_t kind)
{
    (void)kind;
    if (bytes != 0 && (bytes & (bytes - 1)) == 0 && address % bytes != 0)
        sgf_leave_kernel(CUDA_ERROR_MISALIGNED_ADDRESS, address);
    if (address >= env->lo && address <= env->hi - bytes)
        return; /* dead pages raise SIGSEGV by themselves */
    if (address >= sgf.pinned_lo && address <= sgf.pinned_hi - bytes)
        return;
    uint64_t shared = (uint64_t)(uintptr_t)env->shared, local = (uint64_t)(uintptr_t)env->local;
    uint64_t threads = (uint64_t)env->block[0] * env->block[1] * env->block[2];
    if (address >= shared && address - shared < env->shared_bytes && bytes <= env->shared_bytes - (address - shared))
        return;
    if (address >= local && address - local < threads * env->local_stride)
        return;
    if (sgf_host_registered(address, bytes))
        return;
    struct sgf_device *device = sgf_device_of(address);
    struct CUctx_st *context = ((struct sgf_block *)env->device)->executor->job->context;
    if (device != NULL && (atomic_load(&context->peers) & (1u << (device - sgf.devices))) != 0)
        return;
    sgf_leave_kernel(CUDA_ERROR_ILLEGAL_ADDRESS, address);
}

static void fault(struct sgf_env *env, uint32_t what, uint64_t address)
{
    (void)env;
    sgf_leave_kernel((CUresult)what, address);
}

/* ---- barriers: counted in warps, as a warp is one fiber ------------------------------------------------------ */
static void complete(struct sgf_block *block, struct sgf_barrier *b)
{
    struct sgf_executor *e = block->executor;
    struct sgf_fiber *fiber;
    while ((fiber = sgf_fiber_get(&b->waiting)) != NULL) {
        uint32_t op = fiber->result;
        fiber->result = op == 2 ? b->popc : op == 3 ? b->all : op == 4 ? b->any : 0;
        if (fiber != e->current)
            sgf_fiber_put(&e->ready, fiber);
    }
    *b = (struct sgf_barrier){ .all = 1 };
    e->idle_turns = 0;
}

static uint32_t barrier(struct sgf_env *env, uint32_t warp, uint32_t id, uint32_t expected, uint32_t mask, uint32_t op,
                        uint32_t predicate)
{
    struct sgf_block *block = env->device;
    struct sgf_executor *e = block->executor;
    struct sgf_barrier *b = &block->barriers[id % SGF_BARRIERS];
    (void)warp;
    if (b->arrived == 0) {
        b->all = 1;
        b->implicit = expected == 0;
    }
    b->arrived++;
    b->needed = expected == 0 ? block->live_warps : (expected + SGF_WARP - 1) / SGF_WARP;
    b->popc += (uint32_t)__builtin_popcount(mask & predicate);
    b->any |= (mask & predicate) != 0;
    b->all &= (mask & ~predicate) == 0;
    bool ready = b->arrived >= b->needed;
    if (op == 1) { /* arrive: counts, does not wait */
        if (ready)
            complete(block, b);
        return 0;
    }
    struct sgf_fiber *fiber = e->current;
    fiber->result = op;
    sgf_fiber_put(&b->waiting, fiber);
    if (ready)
        complete(block, b);
    else
        sgf_executor_yield(e);
    return fiber->result;
}

/* Threads that have exited count as arrived. */
void sgf_block_warp_ended(struct sgf_block *block)
{
    block->live_warps--;
    for (int i = 0; i < SGF_BARRIERS; i++) {
        struct sgf_barrier *b = &block->barriers[i];
        if (b->arrived != 0 && b->implicit && b->arrived >= block->live_warps)
            complete(block, b);
    }
}

static void pause_block(struct sgf_env *env, uint64_t nanoseconds)
{
    struct sgf_executor *e = ((struct sgf_block *)env->device)->executor;
    struct sgf_fiber *fiber = e->current;
    e->idle_turns++;
    if (nanoseconds == 0) {
        sgf_fiber_put(&e->ready, fiber);
    } else {
        fiber->deadline = sgf_now() + nanoseconds;
        sgf_fiber_put(&e->sleeping, fiber);
    }
    /* Through the scheduler: it looks at errors, sleepers and blocks that wait to start. */
    e->current = fiber;
    sgf_fiber_switch(&fiber->context, &e->base);
    e->current = fiber;
}

static uint64_t clock_of(struct sgf_env *env, uint32_t which)
{
    (void)env;
    struct timespec t;
    clock_gettime(which == 2 ? CLOCK_REALTIME : CLOCK_MONOTONIC, &t); /* the device's clock runs at 1 GHz */
    uint64_t now = (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
    return which == 0 ? (uint32_t)now : now;
}

/* ---- printf ---------------------------------------------------------------------------------------------------- */
struct out { char text[4096]; size_t used; };

static void put(struct out *o, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void put(struct out *o, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    int n = vsnprintf(o->text + o->used, sizeof o->text - o->used, format, arguments);
    va_end(arguments);
    if (n > 0)
        o->used = o->used + (size_t)n < sizeof o->text ? o->used + (size_t)n : sizeof o->text - 1;
}

/* Arguments lie one after the other, each aligned to its own size, as the vprintf of CUDA takes them. */
static uint64_t argument(const uint8_t **at, size_t size)
{
    uint64_t value = 0;
    *at = (const uint8_t *)(((uintptr_t)*at + size - 1) & ~(uintptr_t)(size - 1));
    memcpy(&value, *at, size);
    *at += size;
    return value;
}

static const char *conversion(struct out *o, const char *at, const uint8_t **arguments)
{
    char spec[32];
    size_t n = 0;
    bool wide = false;
    spec[n++] = *at++;
    while (n < sizeof spec - 4 && *at != 0 && strchr("-+ #0123456789.*lhzjt", *at) != NULL) {
        if (*at == '*')
            n += (size_t)snprintf(spec + n, sizeof spec - n - 4, "%d", (int)argument(arguments, 4));
        else if (strchr("lzjt", *at) != NULL)
            wide = true;
        else if (*at != 'h')
            spec[n++] = *at;
        at++;
    }
    char kind = *at;
    if (kind == 0)
        return at;
    if (strchr("diouxX", kind) != NULL) {
        uint64_t value = argument(arguments, wide ? 8 : 4);
        if (!wide && (kind == 'd' || kind == 'i'))
            value = (uint64_t)(int64_t)(int32_t)value;
        spec[n++] = 'l';
        spec[n++] = 'l';
        spec[n++] = kind;
        spec[n] = 0;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
        put(o, spec, (unsigned long long)value);
    } else if (strchr("eEfFgGaA", kind) != NULL) {
        uint64_t bits = argument(arguments, 8);
        double value;
        memcpy(&value, &bits, 8);
        spec[n++] = kind;
        spec[n] = 0;
        put(o, spec, value);
    } else if (kind == 'c') {
        put(o, "%c", (int)argument(arguments, 4));
    } else if (kind == 's') {
        const char *text = (const char *)(uintptr_t)argument(arguments, 8);
        spec[n++] = 's';
        spec[n] = 0;
        put(o, spec, text);
#pragma GCC diagnostic pop
    } else if (kind == 'p') {
        put(o, "0x%llx", (unsigned long long)argument(arguments, 8));
    } else {
        put(o, "%c", kind);
    }
    return at + 1;
}

static int32_t print(struct sgf_env *env, uint64_t format, uint64_t arguments)
{
    struct out o;
    int32_t count = 0;
    (void)env;
    o.used = 0;
    const char *at = (const char *)(uintptr_t)format;
    const uint8_t *next = (const uint8_t *)(uintptr_t)arguments;
    while (*at != 0 && o.used + 64 < sizeof o.text) { /* a bad address faults here, before any lock is taken */
        if (*at != '%') {
            o.text[o.used++] = *at++;
        } else if (at[1] == '%') {
            o.text[o.used++] = '%';
            at += 2;
        } else {
            at = conversion(&o, at, &next);
            count++;
        }
    }
    fwrite(o.text, 1, o.used, stdout);
    return count;
}

void sgf_block_calls(struct sgf_env *env)
{
    env->outside = outside;
    env->fault = fault;
    env->barrier = barrier;
    env->pause = pause_block;
    env->clock = clock_of;
    env->print = print;
}
