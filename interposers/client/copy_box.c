/* Pitched copies, and fills. */
#include "copy.h"

/* One side's start, from CUDA's many ways to say it.  UINT64_MAX: an array, or nonsense. */
static uint64_t start_of(CUmemorytype type, const void *host, CUdeviceptr device, uint64_t x, uint64_t offset)
{
    switch (type) {
    case CU_MEMORYTYPE_HOST: return (uint64_t)(uintptr_t)host + offset + x;
    case CU_MEMORYTYPE_DEVICE:
    case CU_MEMORYTYPE_UNIFIED: return device + offset + x;
    default: return UINT64_MAX;
    }
}

CUresult sg_copy_describe(const char *call, const CUDA_MEMCPY3D *p, struct sg_wire_copy *out)
{
    if (!p)
        return CUDA_ERROR_INVALID_VALUE;
    if (p->srcMemoryType == CU_MEMORYTYPE_ARRAY || p->dstMemoryType == CU_MEMORYTYPE_ARRAY)
        return sg_declined(call, "CUDA arrays are not supported", "use linear memory");
    uint64_t width = p->WidthInBytes, height = p->Height, depth = p->Depth;
    uint64_t src_pitch = p->srcPitch ? p->srcPitch : p->srcXInBytes + width, dst_pitch = p->dstPitch ? p->dstPitch : p->dstXInBytes + width;
    uint64_t src_height = p->srcHeight ? p->srcHeight : p->srcY + height, dst_height = p->dstHeight ? p->dstHeight : p->dstY + height;
    if ((height > 1 || depth > 1) && (src_pitch < p->srcXInBytes + width || dst_pitch < p->dstXInBytes + width))
        return CUDA_ERROR_INVALID_VALUE;
    if (depth > 1 && (src_height < p->srcY + height || dst_height < p->dstY + height))
        return CUDA_ERROR_INVALID_VALUE;
    uint64_t src_slice, dst_slice, src_at, dst_at;
    if (__builtin_mul_overflow(src_pitch, src_height, &src_slice) || __builtin_mul_overflow(dst_pitch, dst_height, &dst_slice) ||
        __builtin_mul_overflow(src_slice, p->srcZ, &src_at) || __builtin_mul_overflow(dst_slice, p->dstZ, &dst_at))
        return CUDA_ERROR_INVALID_VALUE;
    uint64_t src = start_of(p->srcMemoryType, p->srcHost, p->srcDevice, p->srcXInBytes, src_at + p->srcY * src_pitch);
    uint64_t dst = start_of(p->dstMemoryType, p->dstHost, p->dstDevice, p->dstXInBytes, dst_at + p->dstY * dst_pitch);
    if (src == UINT64_MAX || dst == UINT64_MAX)
        return CUDA_ERROR_INVALID_VALUE;
    *out = (struct sg_wire_copy){.dst = dst, .src = src, .width = width, .height = height, .depth = depth, .dst_pitch = dst_pitch,
                                 .src_pitch = src_pitch, .dst_slice = dst_slice, .src_slice = src_slice};
    return CUDA_SUCCESS;
}

static CUresult box(const char *call, const CUDA_MEMCPY3D *p, CUstream stream, int sync)
{
    struct sg_wire_copy c;
    CUresult error = sg_copy_describe(call, p, &c);
    return error ? error : sg_copy_run(call, &c, stream, sync);
}

static CUresult plane(const char *call, const CUDA_MEMCPY2D *p, CUstream stream, int sync)
{
    if (!p)
        return CUDA_ERROR_INVALID_VALUE;
    CUDA_MEMCPY3D q = {
        .srcXInBytes = p->srcXInBytes, .srcY = p->srcY, .srcMemoryType = p->srcMemoryType, .srcHost = p->srcHost,
        .srcDevice = p->srcDevice, .srcPitch = p->srcPitch, .dstXInBytes = p->dstXInBytes, .dstY = p->dstY,
        .dstMemoryType = p->dstMemoryType, .dstHost = p->dstHost, .dstDevice = p->dstDevice, .dstPitch = p->dstPitch,
        .WidthInBytes = p->WidthInBytes, .Height = p->Height, .Depth = 1,
    };
    return box(call, &q, stream, sync);
}

static CUresult peer(const char *call, const CUDA_MEMCPY3D_PEER *p, CUstream stream, int sync)
{
    if (!p)
        return CUDA_ERROR_INVALID_VALUE;
    if (!sg_handle_known(SG_KIND_CONTEXT, SG_VALUE(p->srcContext)) || !sg_handle_known(SG_KIND_CONTEXT, SG_VALUE(p->dstContext)))
        return CUDA_ERROR_INVALID_CONTEXT;
    CUDA_MEMCPY3D q = {
        .srcXInBytes = p->srcXInBytes, .srcY = p->srcY, .srcZ = p->srcZ, .srcMemoryType = p->srcMemoryType, .srcHost = p->srcHost,
        .srcDevice = p->srcDevice, .srcPitch = p->srcPitch, .srcHeight = p->srcHeight, .dstXInBytes = p->dstXInBytes, .dstY = p->dstY,
        .dstZ = p->dstZ, .dstMemoryType = p->dstMemoryType, .dstHost = p->dstHost, .dstDevice = p->dstDevice, .dstPitch = p->dstPitch,
        .dstHeight = p->dstHeight, .WidthInBytes = p->WidthInBytes, .Height = p->Height, .Depth = p->Depth,
    };
    return box(call, &q, stream, sync);
}

CUresult sg_hand_cuMemcpy2D_v2(const CUDA_MEMCPY2D *pCopy, CUstream default_stream) { return plane("cuMemcpy2D", pCopy, default_stream, 1); }
CUresult sg_hand_cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D *pCopy, CUstream default_stream)
{
    return plane("cuMemcpy2DUnaligned", pCopy, default_stream, 1);
}
CUresult sg_hand_cuMemcpy3D_v2(const CUDA_MEMCPY3D *pCopy, CUstream default_stream) { return box("cuMemcpy3D", pCopy, default_stream, 1); }
CUresult sg_hand_cuMemcpy3DPeer(const CUDA_MEMCPY3D_PEER *pCopy, CUstream default_stream)
{
    return peer("cuMemcpy3DPeer", pCopy, default_stream, 1);
}
CUresult sg_hand_cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *pCopy, CUstream hStream) { return plane("cuMemcpy2DAsync", pCopy, hStream, 0); }
CUresult sg_hand_cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D *pCopy, CUstream hStream) { return box("cuMemcpy3DAsync", pCopy, hStream, 0); }
CUresult sg_hand_cuMemcpy3DPeerAsync(const CUDA_MEMCPY3D_PEER *pCopy, CUstream hStream) { return peer("cuMemcpy3DPeerAsync", pCopy, hStream, 0); }

/* ---- fills ------------------------------------------------------------------------------------------- */
CUresult sg_fill_check(const struct sg_wire_fill *f)
{
    uint64_t row, rows, end;
    if (f->element != 1 && f->element != 2 && f->element != 4)
        return CUDA_ERROR_INVALID_VALUE;
    if (__builtin_mul_overflow(f->width, f->element, &row) || f->dst % f->element || (f->height > 1 && f->pitch < row) ||
        __builtin_mul_overflow(f->height - 1, f->pitch, &rows) || __builtin_add_overflow(rows, row, &end) || end > SG_DEVICE_WINDOW ||
        sg_place_of(f->dst) == SG_PLACE_HOST)
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

static CUresult fill(const char *call, CUdeviceptr dst, size_t pitch, uint32_t value, uint32_t element, size_t width, size_t height,
                     CUstream stream, int sync)
{
    struct sg_wire_fill f = {.dst = dst, .pitch = pitch, .width = width, .height = height, .value = value, .element = element};
    CUresult error = sg_enter();
    if (error || (error = sg_stream_wire(stream, &f.stream)))
        return error;
    if (!width || !height)
        return CUDA_SUCCESS;
    if ((error = sg_fill_check(&f)))
        return error;
    int known = sg_range_covers(dst, (height - 1) * pitch + width * element);
    struct sg_wire_fill *wire = sg_begin(SG_OP_fill, sizeof *wire);
    if (!wire)
        return sg_lost(call);
    *wire = f;
    if (!known || atomic_load_explicit(&sg_client.captures, memory_order_relaxed))
        return sg_call(call, NULL, 0);
    sg_post();
    /* On page-locked memory the synchronous form has filled it when it returns. */
    return sync && sg_is_pinned(dst) ? sg_send_cuStreamSynchronize((CUstream)(uintptr_t)f.stream) : CUDA_SUCCESS;
}

#define FILL(suffix, type, element) \
    CUresult sg_hand_cuMemsetD##suffix##_v2(CUdeviceptr dst, type value, size_t n, CUstream stream) \
    { return fill("cuMemsetD" #suffix, dst, n * (element), value, element, n, 1, stream, 1); } \
    CUresult sg_hand_cuMemsetD##suffix##Async(CUdeviceptr dst, type value, size_t n, CUstream stream) \
    { return fill("cuMemsetD" #suffix "Async", dst, n * (element), value, element, n, 1, stream, 0); } \
    CUresult sg_hand_cuMemsetD2D##suffix##_v2(CUdeviceptr dst, size_t pitch, type value, size_t width, size_t height, CUstream stream) \
    { return fill("cuMemsetD2D" #suffix, dst, pitch, value, element, width, height, stream, 1); } \
    CUresult sg_hand_cuMemsetD2D##suffix##Async(CUdeviceptr dst, size_t pitch, type value, size_t width, size_t height, CUstream stream) \
    { return fill("cuMemsetD2D" #suffix "Async", dst, pitch, value, element, width, height, stream, 0); }
FILL(8, unsigned char, 1)
FILL(16, unsigned short, 2)
FILL(32, unsigned int, 4)
