/* The slow side of the memory checks that generated code makes (kernel_abi.h).
 *
 * The check in front of an access is conservative: it takes all lanes as active, and a group of accesses as one range.
 * When it fails, these look again, lane by lane and access by access.  They are here rather than in every object because
 * compiling them was a third of what a small kernel costs. */
#include "kernel_abi.h"

static void look(struct sgf_env *env, uint64_t address, uint64_t access)
{
    uint32_t bytes = access & SGF_ACCESS_BYTES, kind = access >> SGF_ACCESS_KIND_SHIFT & 3;
    uint64_t space = access & SGF_ACCESS_SPACE, low = bytes - 1;
    if (space == SGF_ACCESS_GLOBAL) {
        if ((address & low) != 0)
            env->fault(env, SGF_FAULT_MISALIGNED, address);
        if (address < env->lo || address > env->hi - bytes)
            env->outside(env, address, bytes, kind);
        return;
    }
    uint64_t size = space == SGF_ACCESS_SHARED ? env->shared_bytes : access >> SGF_ACCESS_LOCAL_SHIFT;
    if (size < bytes || address > size - bytes)
        env->fault(env, SGF_FAULT_ADDRESS, address);
    if ((address & low) != 0)
        env->fault(env, SGF_FAULT_MISALIGNED, address);
}

/* How many accesses `access` stands for, and how many bytes they are apart. */
static uint32_t accesses(uint64_t access, uint64_t *step)
{
    *step = (access >> SGF_ACCESS_STEP_SHIFT & 255) * (access & SGF_ACCESS_BYTES);
    return (access >> SGF_ACCESS_MORE_SHIFT & 255) + 1;
}

void sgf_rt_look_at_lanes(struct sgf_env *env, const uint64_t *bases, uint32_t mask, int64_t offset, uint64_t access)
{
    uint64_t step, at = (uint64_t)offset;
    for (uint32_t left = accesses(access, &step); left != 0; left--, at += step)
        for (uint32_t lanes = mask; lanes != 0; lanes &= lanes - 1)
            look(env, bases[__builtin_ctz(lanes)] + at, access);
}

void sgf_rt_look(struct sgf_env *env, uint64_t base, uint32_t mask, int64_t stride, int64_t offset, uint64_t access)
{
    uint64_t step, at = (uint64_t)offset;
    for (uint32_t left = accesses(access, &step); left != 0; left--, at += step)
        for (uint32_t lanes = mask; lanes != 0; lanes &= lanes - 1) {
            uint64_t start = base + (uint64_t)stride * (uint32_t)__builtin_ctz(lanes);
            if ((access & SGF_ACCESS_NARROW) != 0)
                start = (uint64_t)(int64_t)(int32_t)(uint32_t)start;
            look(env, start + at, access);
        }
}
