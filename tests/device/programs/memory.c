#include "check.h"

#include <sys/mman.h>

#define MIB (1u << 20)

CASE(allocations_are_distinct_and_aligned, "allocations never overlap, lie on 512 bytes, and come back after free")
{
    CUdeviceptr p[256];
    size_t size[256], before, after, total;
    srand(1);
    OK(cuMemGetInfo_v2(&before, &total));
    for (int round = 0; round < 20; round++) {
        for (int i = 0; i < 256; i++) {
            size[i] = 1 + (size_t)rand() % 100000;
            OK(cuMemAlloc_v2(&p[i], size[i]));
            CHECK(p[i] % 512 == 0);
            OK(cuMemsetD8_v2(p[i], (unsigned char)i, size[i]));
        }
        for (int i = 0; i < 256; i++) {
            unsigned char first, last;
            OK(cuMemcpyDtoH_v2(&first, p[i], 1));
            OK(cuMemcpyDtoH_v2(&last, p[i] + size[i] - 1, 1));
            CHECK(first == i && last == i);
        }
        for (int i = 0; i < 256; i++)
            OK(cuMemFree_v2(p[(i * 77) % 256]));
    }
    OK(cuMemGetInfo_v2(&after, &total));
    CHECK(before == after && total == 256u * MIB);
}

CASE(memory_runs_out_as_on_a_card, "the set size is a limit; a failed allocation changes nothing")
{
    CUdeviceptr p, q;
    IS(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc_v2(&p, 257u * MIB));
    OK(cuMemAlloc_v2(&p, 200u * MIB));
    IS(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc_v2(&q, 100u * MIB));
    OK(cuMemAlloc_v2(&q, 56u * MIB));
    OK(cuMemFree_v2(p));
    OK(cuMemAlloc_v2(&p, 200u * MIB));
    OK(cuMemFree_v2(p));
    OK(cuMemFree_v2(q));
    IS(CUDA_ERROR_INVALID_VALUE, cuMemAlloc_v2(&p, 0));
    IS(CUDA_ERROR_INVALID_VALUE, cuMemAlloc_v2(NULL, 1));
}

CASE(frees_are_checked, "NULL may be freed; interior, freed and foreign addresses are refused")
{
    CUdeviceptr p;
    OK(cuMemAlloc_v2(&p, 10000));
    OK(cuMemFree_v2(0));
    IS(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(p + 512));
    OK(cuMemFree_v2(p));
    IS(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(p));
    IS(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2((CUdeviceptr)(uintptr_t)&p));
}

CASE(copies_move_bytes, "all linear copies agree with memcpy, whatever the kind of host memory")
{
    enum { N = 300000 };
    CUdeviceptr a, b;
    unsigned char *host = malloc(N), *back = malloc(N), *pinned;
    OK(cuMemAlloc_v2(&a, N));
    OK(cuMemAlloc_v2(&b, N));
    OK(cuMemHostAlloc((void **)&pinned, N, 0));
    for (int i = 0; i < N; i++)
        host[i] = pinned[i] = (unsigned char)(i * 7 + i / 251);
    OK(cuMemcpyHtoD_v2(a, host, N));
    OK(cuMemcpyDtoD_v2(b, a, N));
    OK(cuMemcpyDtoH_v2(back, b, N));
    CHECK(memcmp(host, back, N) == 0);
    OK(cuMemcpyHtoDAsync_v2(a, pinned, 1000, NULL));
    OK(cuMemcpyHtoDAsync_v2(a + 1000, host + 1000, 1000, NULL));
    OK(cuMemcpyDtoDAsync_v2(b + 13, a + 1, 1999, NULL));
    OK(cuMemcpyDtoHAsync_v2(back, b + 13, 1999, NULL));
    OK(cuCtxSynchronize());
    CHECK(memcmp(host + 1, back, 1999) == 0);
    OK(cuMemcpy((CUdeviceptr)(uintptr_t)back, a, 2000));
    CHECK(memcmp(host, back, 2000) == 0);
    OK(cuMemcpyDtoD_v2(a + 3, a, 5000)); /* overlapping */
    OK(cuMemcpyDtoH_v2(back, a + 3, 5000));
    CHECK(memcmp(back, host, 5000) == 0);
    free(host);
    free(back);
    OK(cuMemFreeHost(pinned));
}

CASE(pitched_copies_agree_with_loops, "2D and 3D copies between host and device move exactly the described box")
{
    enum { W = 50, H = 9, D = 4, SP = 64, SH = 11, DP = 512, DH = 10 };
    static unsigned char src[SP * SH * D], want[DP * DH * D], got[DP * DH * D];
    CUdeviceptr d;
    size_t pitch;
    for (size_t i = 0; i < sizeof src; i++)
        src[i] = (unsigned char)(i * 31);
    OK(cuMemAllocPitch_v2(&d, &pitch, W, DH * D, 4));
    CHECK(pitch == DP);
    OK(cuMemsetD8_v2(d, 0, DP * DH * D));
    CUDA_MEMCPY3D c = { .srcXInBytes = 3, .srcY = 1, .srcMemoryType = CU_MEMORYTYPE_HOST, .srcHost = src, .srcPitch = SP,
                        .srcHeight = SH, .dstXInBytes = 5, .dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = d, .dstPitch = DP,
                        .dstHeight = DH, .WidthInBytes = W, .Height = H, .Depth = D };
    OK(cuMemcpy3D_v2(&c));
    for (int z = 0; z < D; z++)
        for (int y = 0; y < H; y++)
            memcpy(want + (z * DH + y) * DP + 5, src + (z * SH + y + 1) * SP + 3, W);
    OK(cuMemcpyDtoH_v2(got, d, sizeof got));
    CHECK(memcmp(want, got, sizeof got) == 0);
    CUDA_MEMCPY2D two = { .srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = d, .srcPitch = DP, .srcXInBytes = 5, .srcY = 2,
                          .dstMemoryType = CU_MEMORYTYPE_HOST, .dstHost = got, .dstPitch = 100, .WidthInBytes = W, .Height = 3 };
    memset(got, 0, sizeof got);
    OK(cuMemcpy2DAsync_v2(&two, NULL));
    OK(cuCtxSynchronize());
    for (int y = 0; y < 3; y++)
        CHECK(memcmp(got + y * 100, src + (y + 3) * SP + 3, W) == 0);
    c.dstPitch = 10;
    IS(CUDA_ERROR_INVALID_VALUE, cuMemcpy3D_v2(&c));
    c.dstPitch = DP;
    c.dstMemoryType = CU_MEMORYTYPE_ARRAY;
    IS(CUDA_ERROR_NOT_SUPPORTED, cuMemcpy3D_v2(&c));
}

CASE(fills_write_every_element, "memsets of all widths write the elements and nothing beyond")
{
    unsigned char got[4096];
    CUdeviceptr d;
    OK(cuMemAlloc_v2(&d, sizeof got));
    OK(cuMemsetD8_v2(d, 0xee, sizeof got));
    OK(cuMemsetD32_v2(d + 4, 0x01020304, 3));
    OK(cuMemsetD16Async(d + 100, 0x0506, 5, NULL));
    OK(cuMemsetD2D8_v2(d + 1024, 64, 7, 10, 4));
    OK(cuMemcpyDtoH_v2(got, d, sizeof got));
    for (size_t i = 0; i < sizeof got; i++) {
        unsigned char want = 0xee;
        if (i >= 4 && i < 16)
            want = (unsigned char)(4 - i % 4);
        else if (i >= 100 && i < 110)
            want = i % 2 == 0 ? 6 : 5;
        else if (i >= 1024 && i < 1024 + 4 * 64 && (i - 1024) % 64 < 10)
            want = 7;
        CHECK(got[i] == want);
    }
    IS(CUDA_ERROR_INVALID_VALUE, cuMemsetD32_v2(d + 1, 0, 1));
    IS(CUDA_ERROR_INVALID_VALUE, cuMemsetD32_v2(d, 0, 1025));
}

CASE(unreadable_host_memory_is_refused_by_the_call, "a copy with host memory that is not there is an error of that call, and nothing else")
{
    CUdeviceptr p;
    char host[64];
    void *nowhere = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    OK(cuMemAlloc_v2(&p, 4096));
    IS(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoD_v2(p, nowhere, 4));
    IS(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoH_v2(nowhere, p, 4));
    IS(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoDAsync_v2(p, nowhere, 4, NULL));
    OK(cuMemcpyDtoH_v2(host, p, 64));
    OK(cuCtxSynchronize());
}

CASE(bad_addresses_are_refused_by_the_call, "a copy with a bad device address is an error of that call, and nothing else")
{
    CUdeviceptr p, q;
    char host[64] = { 0 };
    OK(cuMemAlloc_v2(&p, 4096));
    OK(cuMemAlloc_v2(&q, 4096));
    IS(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoD_v2(0, host, 4));
    IS(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoD_v2(p + 4090, host, 10));
    IS(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoH_v2(host, p - 4096 * 64, 10));
    IS(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoH_v2(host, (CUdeviceptr)(uintptr_t)host, 4));
    IS(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoD_v2(p, NULL, 4));
    OK(cuMemFree_v2(q));
    IS(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoH_v2(host, q, 4));
    IS(CUDA_ERROR_INVALID_VALUE, cuMemsetD8_v2(q, 0, 4));
    OK(cuMemcpyDtoH_v2(host, p, 64));
    OK(cuCtxSynchronize());
}

CASE(pointers_tell_what_they_are, "pointer attributes name kind, range, context and device of an address")
{
    CUdeviceptr p, base;
    size_t size;
    void *pinned, *host_pointer;
    unsigned kind, flags;
    unsigned char managed[2] = { 1, 1 };
    CUcontext owner;
    OK(cuMemAlloc_v2(&p, 5000));
    OK(cuMemHostAlloc(&pinned, 100, CU_MEMHOSTALLOC_PORTABLE));
    OK(cuMemGetAddressRange_v2(&base, &size, p + 4999));
    CHECK(base == p && size == 5000);
    IS(CUDA_ERROR_NOT_FOUND, cuMemGetAddressRange_v2(&base, &size, p + 5000));
    OK(cuPointerGetAttribute(&kind, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, p + 9));
    CHECK(kind == CU_MEMORYTYPE_DEVICE);
    OK(cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, p));
    CHECK(owner == context);
    OK(cuPointerGetAttribute(&kind, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (CUdeviceptr)(uintptr_t)pinned));
    CHECK(kind == CU_MEMORYTYPE_HOST);
    IS(CUDA_ERROR_INVALID_VALUE, cuPointerGetAttribute(&kind, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (CUdeviceptr)(uintptr_t)&kind));
    CUpointer_attribute which[3] = { CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_IS_MANAGED, CU_POINTER_ATTRIBUTE_HOST_POINTER };
    void *data[3] = { &kind, managed, &host_pointer };
    OK(cuPointerGetAttributes(3, which, data, (CUdeviceptr)(uintptr_t)&kind));
    CHECK(kind == 0 && managed[0] == 0 && host_pointer == NULL);
    CHECK(managed[1] == 1); /* a boolean is one byte */
    OK(cuPointerGetAttributes(3, which, data, (CUdeviceptr)(uintptr_t)pinned));
    CHECK(kind == CU_MEMORYTYPE_HOST && host_pointer == pinned);
    OK(cuMemHostGetDevicePointer_v2(&base, pinned, 0));
    CHECK(base == (uintptr_t)pinned);
    OK(cuMemHostGetFlags(&flags, pinned));
    CHECK((flags & CU_MEMHOSTALLOC_PORTABLE) != 0);
    IS(CUDA_ERROR_INVALID_VALUE, cuMemFreeHost(&flags));
    OK(cuMemFreeHost(pinned));
    IS(CUDA_ERROR_INVALID_VALUE, cuMemFreeHost(pinned));
}

CASE(pools_free_in_stream_order, "memory of cuMemFreeAsync lives until the stream reaches the free")
{
    CUstream s;
    CUmemoryPool pool;
    CUdeviceptr p, q;
    cuuint64_t used, none = 0;
    int v = 5, got = 0, reuse = 0;
    OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    OK(cuDeviceGetDefaultMemPool(&pool, 0));
    OK(cuMemAllocAsync(&p, 200u * MIB, s));
    OK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used));
    CHECK(used == 200u * MIB);
    OK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, &reuse));
    CHECK(reuse == 1);
    CUmemoryPool owner;
    OK(cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, p));
    CHECK(owner == pool);
    OK(cuMemcpyHtoDAsync_v2(p, &v, 4, s));
    OK(cuMemcpyDtoHAsync_v2(&got, p, 4, s));
    OK(cuMemFreeAsync(p, s));
    OK(cuMemAllocAsync(&q, 200u * MIB, s)); /* fits only because it waits for the free */
    OK(cuStreamSynchronize(s));
    CHECK(got == 5);
    OK(cuMemFreeAsync(q, s));
    OK(cuStreamSynchronize(s));
    OK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used));
    CHECK(used == 0);
    OK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &used));
    CHECK(used >= 200u * MIB);
    IS(CUDA_ERROR_INVALID_VALUE, cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &used));
    OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &none));
    OK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &used));
    CHECK(used == 0);
    IS(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoH_v2(&got, q, 4));
    OK(cuMemAllocAsync(&p, MIB, s));
    OK(cuMemFree_v2(p)); /* counts like the other */
    OK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used));
    CHECK(used == 0);
}

CASE(a_context_takes_its_memory_along, "destroying a context frees what it allocated")
{
    CUcontext other;
    CUdeviceptr p;
    void *pinned;
    size_t before, after, total;
    OK(cuMemGetInfo_v2(&before, &total));
    OK(cuCtxCreate_v2(&other, 0, 0));
    OK(cuMemAlloc_v2(&p, 10u * MIB));
    OK(cuMemHostAlloc(&pinned, 4096, 0));
    OK(cuCtxDestroy_v2(other));
    OK(cuMemGetInfo_v2(&after, &total));
    CHECK(before == after);
    IS(CUDA_ERROR_INVALID_VALUE, cuMemsetD8_v2(p, 0, 1));
    IS(CUDA_ERROR_INVALID_VALUE, cuMemFreeHost(pinned));
}
