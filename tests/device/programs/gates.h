/* What the cases on gates and on settling share: short names for the table's calls, and work that takes its time. */
#ifndef GATES_H
#define GATES_H

#include "check.h"

#include <stdatomic.h>

#include "singularity_core/hal/native.h"

#define SECOND 1000000000ull
#define LONG (120 * SECOND) /* ends with the test's own limit */

static const struct sg_hal_table *t;
static CUdeviceptr memory; /* one zeroed MiB */

static inline uint64_t gate(void)
{
    uint64_t made;
    CHECK(t->gate_make(t->state, &made) == 0);
    return made;
}

static inline void at(uint64_t g, CUstream s) { CHECK(t->gate_wait(t->state, g, s) == 0); }
static inline void open_gate(uint64_t g) { CHECK(t->gate_open(t->state, g) == 0); }
static inline void drop(uint64_t g) { CHECK(t->gate_drop(t->state, g) == 0); }
static inline int settle(uint64_t timeout) { return t->settle(t->state, timeout); }

static inline CUstream stream(void)
{
    CUstream s;
    OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    return s;
}

static inline void begin(void)
{
    CHECK(sg_hal_open_table(0, &t) == 0);
    CHECK(t->struct_size == sizeof *t);
    OK(cuMemAlloc_v2(&memory, 1 << 20));
    OK(cuMemsetD8_v2(memory, 0, 1 << 20));
    OK(cuCtxSynchronize());
}

static inline unsigned word(unsigned index) /* of settled memory */
{
    return ((volatile unsigned *)(uintptr_t)memory)[index];
}

static inline void set(unsigned index, unsigned value, CUstream s) { OK(cuMemsetD32Async(memory + 4 * index, value, 1, s)); }

/* A kernel that runs until word `index` is 1. */
static inline void spin(unsigned index, CUstream s)
{
    CUdeviceptr flag = memory + 4 * index;
    unsigned value = 1;
    void *params[] = { &flag, &value };
    OK(cuLaunchKernel(function("spin_until"), 1, 1, 1, 32, 1, 1, 0, s, params, NULL));
}

static inline void release(unsigned index)
{
    CUstream s = stream();
    set(index, 1, s);
    OK(cuStreamSynchronize(s));
    OK(cuStreamDestroy_v2(s));
}

static _Atomic int host_may_return, host_came;

static inline void wait_in_host(void *unused)
{
    (void)unused;
    atomic_store(&host_came, 1);
    while (atomic_load(&host_may_return) == 0)
        usleep(500);
}

#endif
