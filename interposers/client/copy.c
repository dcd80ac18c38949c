/* Copies.  Where the bytes are decides how they travel:
 *   device and page-locked memory   by address; the message is all there is
 *   pageable source                 small: inside the message; large: through staging while the caller waits
 *   pageable destination            in the reply, or through staging; the caller waits, as with CUDA itself
 * Pitched copies of pageable memory travel as packed rows. */
#include "copy.h"
#include <stdlib.h>

#define INLINE_LIMIT (64u << 10)

enum sg_place sg_place_of(uint64_t address)
{
    return sg_is_device(address) ? SG_PLACE_DEVICE : sg_is_pinned(address) ? SG_PLACE_PINNED : SG_PLACE_HOST;
}

uint64_t sg_copy_extent(const struct sg_wire_copy *c, uint64_t pitch, uint64_t slice)
{
    uint64_t rows, slices, end;
    if (__builtin_mul_overflow(c->height - 1, pitch, &rows) || __builtin_mul_overflow(c->depth - 1, slice, &slices) ||
        __builtin_add_overflow(rows, slices, &end) || __builtin_add_overflow(end, c->width, &end))
        return UINT64_MAX;
    return end;
}

int sg_stream_captures(uint64_t stream)
{
    if (SG_LIKELY(atomic_load_explicit(&sg_client.captures, memory_order_relaxed) == 0))
        return 0;
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    (void)sg_send_cuStreamIsCapturing((CUstream)(uintptr_t)stream, &status);
    return status != CU_STREAM_CAPTURE_STATUS_NONE;
}

/* The rows of a pitched copy, to or from a contiguous buffer. */
static void pack(const struct sg_wire_copy *c, uint8_t *packed, uint8_t *rows, uint64_t pitch, uint64_t slice, int to_packed)
{
    for (uint64_t z = 0; z < c->depth; z++) {
        for (uint64_t y = 0; y < c->height; y++) {
            uint8_t *row = rows + z * slice + y * pitch;
            memcpy(to_packed ? packed : row, to_packed ? row : packed, c->width);
            packed += c->width;
        }
    }
}

static int is_packed(const struct sg_wire_copy *c, uint64_t pitch, uint64_t slice)
{
    return (c->height == 1 || pitch == c->width) && (c->depth == 1 || slice == c->width * c->height);
}

/* Device and page-locked sides only. */
static CUresult by_address(const char *call, struct sg_wire_copy *c, int sync, int known)
{
    int wait = sync && (sg_is_pinned(c->src) || sg_is_pinned(c->dst));
    c->flags = wait ? SG_COPY_SYNC : 0;
    struct sg_wire_copy *wire = sg_begin(wait ? SG_OP_copy_wait : SG_OP_copy, sizeof *wire);
    if (!wire)
        return sg_lost(call);
    *wire = *c;
    if (wait || !known || atomic_load_explicit(&sg_client.captures, memory_order_relaxed))
        return sg_call(call, NULL, 0);
    sg_post();
    return CUDA_SUCCESS;
}

static CUresult from_host(const char *call, struct sg_wire_copy *c, uint64_t total, int known)
{
    uint8_t *host = (uint8_t *)(uintptr_t)c->src;
    uint64_t pitch = c->src_pitch, slice = c->src_slice;
    int packed = is_packed(c, pitch, slice);
    c->flags = SG_COPY_FROM_MESSAGE;
    c->src = 0;
    c->src_pitch = c->width;
    c->src_slice = c->width * c->height;
    if (total <= INLINE_LIMIT) {
        struct sg_wire_copy *wire = sg_begin(SG_OP_copy, (uint32_t)(sizeof *wire + total));
        if (!wire)
            return sg_lost(call);
        *wire = *c;
        pack(c, (uint8_t *)(wire + 1), host, pitch, slice, 1);
        if (!known)
            return sg_call(call, NULL, 0);
        sg_post();
        return CUDA_SUCCESS;
    }
    if (packed)
        return sg_bulk(call, SG_OP_copy_in, c, sizeof *c, host, total, 1);
    uint8_t *buffer = malloc(total);
    if (!buffer)
        return CUDA_ERROR_OUT_OF_MEMORY;
    pack(c, buffer, host, pitch, slice, 1);
    CUresult error = sg_bulk(call, SG_OP_copy_in, c, sizeof *c, buffer, total, 1);
    free(buffer);
    return error;
}

static CUresult fetch(const char *call, const struct sg_wire_copy *c, uint8_t *to, uint64_t total)
{
    if (total > SG_REPLY_PAYLOAD)
        return sg_bulk(call, SG_OP_copy_out, c, sizeof *c, to, total, 0);
    struct sg_wire_copy *wire = sg_begin(SG_OP_copy_wait, sizeof *wire);
    if (!wire)
        return sg_lost(call);
    *wire = *c;
    CUresult error = sg_call(call, to, (uint32_t)total);
    return error ? error : sg_async_report();
}

static CUresult to_host(const char *call, struct sg_wire_copy *c, uint64_t total)
{
    uint8_t *host = (uint8_t *)(uintptr_t)c->dst;
    uint64_t pitch = c->dst_pitch, slice = c->dst_slice;
    int packed = is_packed(c, pitch, slice);
    c->flags = SG_COPY_TO_REPLY;
    c->dst = 0;
    c->dst_pitch = c->width;
    c->dst_slice = c->width * c->height;
    if (packed)
        return fetch(call, c, host, total);
    uint8_t *buffer = malloc(total);
    if (!buffer)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult error = fetch(call, c, buffer, total);
    if (!error)
        pack(c, buffer, host, pitch, slice, 0);
    free(buffer);
    return error;
}

CUresult sg_copy_run(const char *call, struct sg_wire_copy *c, CUstream stream, int sync)
{
    CUresult error = sg_enter();
    if (error || (error = sg_stream_wire(stream, &c->stream)))
        return error;
    if (!c->width || !c->height || !c->depth)
        return CUDA_SUCCESS;
    uint64_t to = sg_copy_extent(c, c->dst_pitch, c->dst_slice), from = sg_copy_extent(c, c->src_pitch, c->src_slice);
    if (!c->dst || !c->src || to > SG_DEVICE_WINDOW || from > SG_DEVICE_WINDOW)
        return CUDA_ERROR_INVALID_VALUE;
    enum sg_place dst = sg_place_of(c->dst), src = sg_place_of(c->src);
    int known = (dst == SG_PLACE_HOST || sg_range_covers(c->dst, to)) && (src == SG_PLACE_HOST || sg_range_covers(c->src, from));
    if (dst != SG_PLACE_HOST && src != SG_PLACE_HOST)
        return by_address(call, c, sync, known);
    if (sg_stream_captures(c->stream))
        return sg_refuse(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, call, "pageable memory in a captured copy is not supported",
                         "use cuMemHostAlloc");
    uint64_t total = c->width * c->height * c->depth;
    if (dst != SG_PLACE_HOST)
        return from_host(call, c, total, known);
    if (src != SG_PLACE_HOST)
        return to_host(call, c, total);
    error = sg_send_cuStreamSynchronize((CUstream)(uintptr_t)c->stream);
    for (uint64_t z = 0; !error && z < c->depth; z++)
        for (uint64_t y = 0; y < c->height; y++)
            memmove((void *)(uintptr_t)(c->dst + z * c->dst_slice + y * c->dst_pitch),
                    (const void *)(uintptr_t)(c->src + z * c->src_slice + y * c->src_pitch), c->width);
    return error;
}

static CUresult linear(const char *call, uint64_t dst, uint64_t src, uint64_t bytes, CUstream stream, int sync)
{
    struct sg_wire_copy c = {.dst = dst, .src = src, .width = bytes, .height = 1, .depth = 1, .dst_pitch = bytes, .src_pitch = bytes,
                             .dst_slice = bytes, .src_slice = bytes};
    return sg_copy_run(call, &c, stream, sync);
}

#define ADDRESS(p) ((uint64_t)(uintptr_t)(p))
/* A device address outside of the window is no device address, whatever the host has mapped there. */
#define ON_DEVICE(a, n) do { if ((n) && sg_place_of(a) == SG_PLACE_HOST) return sg_enter() ? sg_enter() : CUDA_ERROR_INVALID_VALUE; } while (0)

CUresult sg_hand_cuMemcpyHtoD_v2(CUdeviceptr dstDevice, const void *srcHost, size_t ByteCount, CUstream default_stream)
{
    ON_DEVICE(dstDevice, ByteCount);
    return linear("cuMemcpyHtoD", dstDevice, ADDRESS(srcHost), ByteCount, default_stream, 1);
}
CUresult sg_hand_cuMemcpyDtoH_v2(void *dstHost, CUdeviceptr srcDevice, size_t ByteCount, CUstream default_stream)
{
    ON_DEVICE(srcDevice, ByteCount);
    return linear("cuMemcpyDtoH", ADDRESS(dstHost), srcDevice, ByteCount, default_stream, 1);
}
CUresult sg_hand_cuMemcpyDtoD_v2(CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount, CUstream default_stream)
{
    ON_DEVICE(dstDevice, ByteCount);
    ON_DEVICE(srcDevice, ByteCount);
    return linear("cuMemcpyDtoD", dstDevice, srcDevice, ByteCount, default_stream, 1);
}
CUresult sg_hand_cuMemcpy(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount, CUstream default_stream)
{
    return linear("cuMemcpy", dst, src, ByteCount, default_stream, 1);
}
CUresult sg_hand_cuMemcpyPeer(CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice, CUcontext srcContext, size_t ByteCount,
                              CUstream default_stream)
{
    if (!sg_handle_known(SG_KIND_CONTEXT, SG_VALUE(dstContext)) || !sg_handle_known(SG_KIND_CONTEXT, SG_VALUE(srcContext)))
        return CUDA_ERROR_INVALID_CONTEXT;
    return sg_hand_cuMemcpyDtoD_v2(dstDevice, srcDevice, ByteCount, default_stream);
}
CUresult sg_hand_cuMemcpyHtoDAsync_v2(CUdeviceptr dstDevice, const void *srcHost, size_t ByteCount, CUstream hStream)
{
    ON_DEVICE(dstDevice, ByteCount);
    return linear("cuMemcpyHtoDAsync", dstDevice, ADDRESS(srcHost), ByteCount, hStream, 0);
}
CUresult sg_hand_cuMemcpyDtoHAsync_v2(void *dstHost, CUdeviceptr srcDevice, size_t ByteCount, CUstream hStream)
{
    ON_DEVICE(srcDevice, ByteCount);
    return linear("cuMemcpyDtoHAsync", ADDRESS(dstHost), srcDevice, ByteCount, hStream, 0);
}
CUresult sg_hand_cuMemcpyDtoDAsync_v2(CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount, CUstream hStream)
{
    ON_DEVICE(dstDevice, ByteCount);
    ON_DEVICE(srcDevice, ByteCount);
    return linear("cuMemcpyDtoDAsync", dstDevice, srcDevice, ByteCount, hStream, 0);
}
CUresult sg_hand_cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount, CUstream hStream)
{
    return linear("cuMemcpyAsync", dst, src, ByteCount, hStream, 0);
}
CUresult sg_hand_cuMemcpyPeerAsync(CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice, CUcontext srcContext,
                                   size_t ByteCount, CUstream hStream)
{
    if (!sg_handle_known(SG_KIND_CONTEXT, SG_VALUE(dstContext)) || !sg_handle_known(SG_KIND_CONTEXT, SG_VALUE(srcContext)))
        return CUDA_ERROR_INVALID_CONTEXT;
    return sg_hand_cuMemcpyDtoDAsync_v2(dstDevice, srcDevice, ByteCount, hStream);
}
