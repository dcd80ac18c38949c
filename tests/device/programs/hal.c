/* The HAL's native table of the in-memory device. */
#include "check.h"

#include <sys/mman.h>

#include "singularity_core/hal/digest.h"
#include "singularity_core/hal/native.h"

static const struct sg_hal_table *table(void)
{
    const struct sg_hal_table *t;
    CHECK(sg_hal_open_table(0, &t) == 0 && t->abi == SG_HAL_ABI);
    return t;
}

static CUresult poke(uint64_t address)
{
    unsigned value = 77, bytes = 4;
    void *params[] = { &address, &value, &bytes };
    CUcontext own;
    OK(cuCtxCreate_v2(&own, 0, 0));
    module = NULL;
    OK(cuLaunchKernel(function("poke"), 1, 1, 1, 32, 1, 1, 0, NULL, params, NULL));
    CUresult result = cuCtxSynchronize();
    OK(cuCtxDestroy_v2(own));
    return result;
}

CASE(the_arena_tracks_liveness, "only live ranges of the arena are memory; the rest faults and is refused")
{
    const struct sg_hal_table *t = table();
    uint64_t base, limit, size = 64u << 20;
    unsigned got;
    CHECK(t->arena_limit(t->state, &limit) == 0 && limit == 256u << 20);
    CHECK(t->arena_open(t->state, 0, size, &base) == 0);
    CHECK(t->arena_open(t->state, 0, size, &base) != 0);
    CHECK(t->arena_limit(t->state, &limit) == 0 && limit == 192u << 20);
    IS(CUDA_ERROR_INVALID_VALUE, cuMemsetD8_v2(base, 0, 4));
    CHECK(t->range_live(t->state, base + 8192 + 512, 512) == 0);
    OK(cuMemsetD8_v2(base + 8192 + 512, 1, 512));
    IS(CUDA_ERROR_INVALID_VALUE, cuMemsetD8_v2(base + 8192 + 512, 1, 513));
    IS(CUDA_ERROR_INVALID_VALUE, cuMemsetD8_v2(base + 8192, 1, 4));
    CHECK(t->range_live(t->state, base + 12288, 10u << 20) == 0);
    IS(CUDA_SUCCESS, poke(base + 12288 + 400000));
    IS(CUDA_ERROR_ILLEGAL_ADDRESS, poke(base + 12288 + (10u << 20)));
    IS(CUDA_ERROR_ILLEGAL_ADDRESS, poke(base));
    CHECK(t->range_dead(t->state, base + 12288, 10u << 20) == 0);
    IS(CUDA_ERROR_ILLEGAL_ADDRESS, poke(base + 12288 + 400000));
    CHECK(t->range_live(t->state, base + 12288, 10u << 20) == 0);
    OK(cuMemcpyDtoH_v2(&got, base + 12288 + 400000, 4));
    CHECK(got == 0); /* dead memory forgets */
    CHECK(t->range_live(t->state, base + size, 512) != 0 && t->range_live(t->state, base + 1, 512) != 0);
    CHECK(t->arena_close(t->state) == 0);
    IS(CUDA_ERROR_ILLEGAL_ADDRESS, poke(base + 8192 + 512));
    uint64_t at = base + (1u << 20), actual;
    CHECK(t->arena_open(t->state, at, size, &actual) == 0 && actual == at);
}

CASE(digests_are_of_the_content, "the digest is digest.h's, of what earlier work left")
{
    const struct sg_hal_table *t = table();
    static unsigned char host[100003];
    uint8_t got[16], want[16];
    CUdeviceptr p;
    for (size_t i = 0; i < sizeof host; i++)
        host[i] = (unsigned char)(i * i / 7);
    OK(cuMemAlloc_v2(&p, sizeof host));
    OK(cuMemcpyHtoD_v2(p, host, sizeof host));
    size_t sizes[] = { 0, 1, 8, 4095, 4096, 4097, sizeof host };
    for (int i = 0; i < 7; i++) {
        CHECK(t->digest(t->state, p, sizes[i], got) == 0);
        sg_digest(host, sizes[i], want);
        CHECK(memcmp(got, want, 16) == 0);
    }
    OK(cuMemFree_v2(p));
    CHECK(t->digest(t->state, p, 8, got) != 0);
}

CASE(registered_host_memory_is_the_devices, "host_register makes host memory reachable at its address until it ends")
{
    const struct sg_hal_table *t = table();
    unsigned *m = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(m != MAP_FAILED);
    IS(CUDA_ERROR_ILLEGAL_ADDRESS, poke((uintptr_t)m));
    CHECK(t->host_register(t->state, m, 1 << 20) == 0);
    CHECK(t->host_register(t->state, m + 1, 4096) != 0);
    IS(CUDA_SUCCESS, poke((uintptr_t)(m + 5)));
    CHECK(m[5] == 77);
    IS(CUDA_ERROR_ILLEGAL_ADDRESS, poke((uintptr_t)m + (1 << 20)));
    CHECK(t->host_unregister(t->state, m) == 0);
    IS(CUDA_ERROR_ILLEGAL_ADDRESS, poke((uintptr_t)m));
    CHECK(t->host_unregister(t->state, m) != 0);
}

CASE(sparse_files_fault_cleanly, "a page beyond the end of a registered file's content is an error, not a signal")
{
    const struct sg_hal_table *t = table();
    char name[] = "/tmp/sgf-test-XXXXXX";
    int fd = mkstemp(name);
    CHECK(fd >= 0 && unlink(name) == 0 && ftruncate(fd, 4096) == 0);
    char *m = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(m != MAP_FAILED && t->host_register(t->state, m, 1 << 20) == 0);
    IS(CUDA_SUCCESS, poke((uintptr_t)m));
    IS(CUDA_ERROR_ILLEGAL_ADDRESS, poke((uintptr_t)m + 65536));
}

CASE(quiesce_waits_for_everything, "quiesce returns when no stream of any context has work left")
{
    const struct sg_hal_table *t = table();
    CUcontext other;
    CUstream s;
    CUdeviceptr p;
    unsigned got;
    OK(cuCtxCreate_v2(&other, 0, 0));
    OK(cuMemAlloc_v2(&p, 1 << 20));
    OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    for (unsigned i = 0; i <= 300; i++)
        OK(cuMemsetD32Async(p, i, 1 << 18, s));
    CHECK(t->quiesce(t->state) == 0);
    OK(cuStreamQuery(s));
    OK(cuMemcpyDtoH_v2(&got, p, 4));
    CHECK(got == 300);
}

CASE(copies_are_of_live_memory, "copy_to_host and copy_to_device need live arena memory, and a bad host address is an error")
{
    const struct sg_hal_table *t = table();
    CUdeviceptr memory;
    static char host[8192], back[8192];
    uint64_t base;
    OK(cuMemAlloc_v2(&memory, 512));
    for (unsigned i = 0; i < sizeof host; i++)
        host[i] = (char)(i * 7 + 1);
    CHECK(t->arena_open(t->state, 0, 1 << 20, &base) == 0);
    CHECK(t->copy_to_device(t->state, base + 512, host, 512) == CUDA_ERROR_INVALID_VALUE);
    CHECK(t->range_live(t->state, base + 512, sizeof host) == 0);
    CHECK(t->copy_to_device(t->state, base + 512, host, sizeof host) == 0);
    CHECK(t->copy_to_device(t->state, base + 512, host, sizeof host + 1) == CUDA_ERROR_INVALID_VALUE);
    CHECK(t->copy_to_host(t->state, back, base + 512, sizeof host) == 0);
    CHECK(memcmp(host, back, sizeof host) == 0);
    CHECK(t->copy_to_host(t->state, back + 1, base + 513, 3) == 0 && back[1] == host[1]);
    CHECK(t->copy_to_host(t->state, back, base, 512) == CUDA_ERROR_INVALID_VALUE);
    CHECK(t->copy_to_host(t->state, back, memory, 4) == CUDA_ERROR_INVALID_VALUE);
    CHECK(t->copy_to_host(t->state, back, UINT64_MAX - 3, 16) == CUDA_ERROR_INVALID_VALUE);
    CHECK(t->copy_to_host(t->state, NULL, base + 512, 0) == 0);
    CHECK(t->copy_to_host(t->state, NULL, base + 512, 4) == CUDA_ERROR_INVALID_VALUE);
    void *hole = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(t->copy_to_host(t->state, hole, base + 512, 64) == CUDA_ERROR_ILLEGAL_ADDRESS);
    CHECK(t->copy_to_device(t->state, base + 512, hole, 64) == CUDA_ERROR_ILLEGAL_ADDRESS);
    OK(cuCtxSynchronize());
}
