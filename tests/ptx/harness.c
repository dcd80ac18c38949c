/* Calls a kernel's object for every block of a grid, in index order, on one thread.  A fault ends the grid. */
#include <setjmp.h>
#include <stddef.h>

#include "backends/fake/device/kernel_abi.h"

static jmp_buf leave;
static uint32_t fault_code;
static uint64_t fault_address;

static void fault(struct sgf_env *env, uint32_t what, uint64_t address)
{
    (void)env;
    fault_code = what;
    fault_address = address;
    longjmp(leave, 1);
}

static int within(uint64_t address, uint32_t bytes, const void *start, uint64_t size)
{
    uint64_t offset = address - (uint64_t)(uintptr_t)start;
    return size >= bytes && offset <= size - bytes;
}

static void outside(struct sgf_env *env, uint64_t address, uint32_t bytes, uint32_t kind)
{
    (void)kind;
    uint64_t threads = (uint64_t)env->block[0] * env->block[1] * env->block[2];
    if (!within(address, bytes, env->shared, env->shared_bytes) &&
        !within(address, bytes, env->local, threads * env->local_stride))
        fault(env, SGF_FAULT_ADDRESS, address);
}

static uint64_t clock_stub(struct sgf_env *env, uint32_t which)
{
    (void)env;
    return 1000 + which;
}

static void pause_stub(struct sgf_env *env, uint64_t nanoseconds)
{
    (void)env;
    (void)nanoseconds;
}

typedef void (*block_kernel)(struct sgf_env *, const uint8_t *);

uint32_t run_grid(block_kernel kernel, struct sgf_env *env, const uint8_t *params, uint64_t *address)
{
    env->fault = fault;
    env->outside = outside;
    env->clock = clock_stub;
    env->pause = pause_stub;
    if (setjmp(leave)) {
        *address = fault_address;
        return fault_code;
    }
    for (uint32_t z = 0; z < env->grid[2]; ++z)
        for (uint32_t y = 0; y < env->grid[1]; ++y)
            for (uint32_t x = 0; x < env->grid[0]; ++x) {
                env->ctaid[0] = x;
                env->ctaid[1] = y;
                env->ctaid[2] = z;
                kernel(env, params);
            }
    return 0;
}
