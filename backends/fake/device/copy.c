/* Copies and fills: argument checks, and whether the call waits.
 *
 * A copy that CUDA lets block (pageable memory, the synchronous calls) runs in the calling thread once the stream is
 * quiet: no hand-over to the stream's thread, which would cost more than most copies. */
#include "device.h"

#include <string.h>

#define STAGED (64u << 10) /* pageable sources up to this size are copied aside instead of waiting */

static bool readable(uint64_t address, uint64_t bytes)
{
    return sgf_place_of(address, bytes) != SGF_NOWHERE;
}

static struct sgf_copy plain(uint64_t dst, uint64_t src, uint64_t bytes)
{
    return (struct sgf_copy){ dst, src, bytes, 1, 1, bytes, bytes, bytes, bytes };
}

/* Device ends must lie in live memory; host ends (`host` bit 0: source, 1: destination) only must not be NULL. */
static CUresult check(const struct sgf_copy *c, unsigned host)
{
    uint64_t src = c->src_slice * (c->slices - 1) + c->src_pitch * (c->rows - 1) + c->width;
    uint64_t dst = c->dst_slice * (c->slices - 1) + c->dst_pitch * (c->rows - 1) + c->width;
    if ((host & 1) != 0 ? c->src == 0 : !readable(c->src, src))
        return CUDA_ERROR_INVALID_VALUE;
    if ((host & 2) != 0 ? c->dst == 0 : !readable(c->dst, dst))
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

static bool pageable(const struct sgf_copy *c, unsigned host)
{
    return ((host & 1) != 0 && !readable(c->src, c->width)) || ((host & 2) != 0 && !readable(c->dst, c->width));
}

/* In the calling thread when the stream has nothing to do, in the stream otherwise: a thread that waits for its turn
 * would begin by itself, without `settle` seeing it. */
static CUresult copy_now(struct CUstream_st *stream, const struct sgf_copy *c, unsigned host)
{
    struct sgf_device *device = stream->context->device;
    CUresult result = sgf_capture_forbids(stream->context, stream);
    if (result != CUDA_SUCCESS)
        return result;
    atomic_fetch_add(&device->direct_begun, 1);
    bool idle = sgf_stream_idle(stream);
    if (idle && (result = sgf_context_check(stream->context)) == CUDA_SUCCESS)
        result = sgf_copy_run(c);
    atomic_fetch_add(&device->direct_done, 1);
    sgf_came_to_rest();
    if (!idle) {
        uint64_t seq;
        CUresult told = CUDA_SUCCESS;
        struct sgf_work *work = sgf_work_new(SGF_WORK_TOLD_COPY, stream->context, 0);
        if (work == NULL)
            return CUDA_ERROR_OUT_OF_MEMORY;
        work->u.told_copy.copy = *c;
        work->u.told_copy.told = &told;
        if ((result = sgf_stream_submit(stream, work, &seq)) != CUDA_SUCCESS)
            return result;
        sgf_wait_seq(stream, seq);
        result = sgf_context_check(stream->context);
        if (result == CUDA_SUCCESS)
            result = told;
    }
    if (result == CUDA_ERROR_ILLEGAL_ADDRESS && host != 0 && atomic_load(&stream->context->error) == 0)
        return CUDA_ERROR_INVALID_VALUE; /* the host end is not what its caller says it is */
    return result;
}

static CUresult copy_later(struct CUstream_st *stream, const struct sgf_copy *c, size_t staged)
{
    struct sgf_work *work = sgf_work_new(SGF_WORK_COPY, stream->context, staged);
    CUresult result = CUDA_SUCCESS;
    if (work == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    work->u.copy = *c;
    if (staged != 0) {
        if (sgf_guarded_copy(work->tail, (const void *)(uintptr_t)c->src, staged) != CUDA_SUCCESS) {
            sgf_work_free(work);
            return CUDA_ERROR_INVALID_VALUE;
        }
        work->u.copy.src = (uintptr_t)work->tail;
    }
    if (SGF_UNLIKELY(sgf_capture_work(stream, work, &result)))
        return result;
    return sgf_stream_submit(stream, work, NULL);
}

static CUresult copy(const char *function, const struct sgf_copy *c, unsigned host, bool async, CUstream handle)
{
    struct CUctx_st *context;
    struct CUstream_st *stream;
    CUresult result = sgf_enter_context(function, &context);
    if (result == CUDA_SUCCESS)
        result = sgf_stream_resolve(context, handle, &stream);
    if (result != CUDA_SUCCESS)
        return result;
    if (c->width == 0 || c->rows == 0 || c->slices == 0)
        return CUDA_SUCCESS;
    if ((result = check(c, host)) != CUDA_SUCCESS)
        return result;
    if (!async)
        return copy_now(stream, c, host);
    if (atomic_load(&stream->capture) == NULL && host != 0 && pageable(c, host)) {
        if (host == 1 && c->rows * c->slices == 1 && c->width <= STAGED)
            return copy_later(stream, c, c->width);
        return copy_now(stream, c, host);
    }
    return copy_later(stream, c, 0);
}

#define HOST(p) ((uint64_t)(uintptr_t)(p))

CUresult cuMemcpyHtoD_v2(CUdeviceptr dstDevice, const void *srcHost, size_t ByteCount)
{
    struct sgf_copy c = plain(dstDevice, HOST(srcHost), ByteCount);
    return copy(__func__, &c, 1, false, NULL);
}

CUresult cuMemcpyDtoH_v2(void *dstHost, CUdeviceptr srcDevice, size_t ByteCount)
{
    struct sgf_copy c = plain(HOST(dstHost), srcDevice, ByteCount);
    return copy(__func__, &c, 2, false, NULL);
}

/* A copy within the device is asynchronous to the host even in its synchronous form, as in CUDA. */
CUresult cuMemcpyDtoD_v2(CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount)
{
    struct sgf_copy c = plain(dstDevice, srcDevice, ByteCount);
    return copy(__func__, &c, 0, true, NULL);
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr dstDevice, const void *srcHost, size_t ByteCount, CUstream hStream)
{
    struct sgf_copy c = plain(dstDevice, HOST(srcHost), ByteCount);
    return copy(__func__, &c, 1, true, hStream);
}

CUresult cuMemcpyDtoHAsync_v2(void *dstHost, CUdeviceptr srcDevice, size_t ByteCount, CUstream hStream)
{
    struct sgf_copy c = plain(HOST(dstHost), srcDevice, ByteCount);
    return copy(__func__, &c, 2, true, hStream);
}

CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount, CUstream hStream)
{
    struct sgf_copy c = plain(dstDevice, srcDevice, ByteCount);
    return copy(__func__, &c, 0, true, hStream);
}

/* Unified addressing: an address outside device memory is host memory. */
static unsigned host_ends(uint64_t dst, uint64_t src)
{
    return (sgf_device_of(src) == NULL ? 1u : 0u) | (sgf_device_of(dst) == NULL ? 2u : 0u);
}

CUresult cuMemcpy(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount)
{
    struct sgf_copy c = plain(dst, src, ByteCount);
    unsigned host = host_ends(dst, src);
    return copy(__func__, &c, host, host == 0, NULL);
}

CUresult cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount, CUstream hStream)
{
    struct sgf_copy c = plain(dst, src, ByteCount);
    return copy(__func__, &c, host_ends(dst, src), true, hStream);
}

CUresult cuMemcpyPeer(CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice, CUcontext srcContext, size_t ByteCount)
{
    struct sgf_copy c = plain(dstDevice, srcDevice, ByteCount);
    if (!sgf_valid(SGF_CONTEXT, dstContext) || !sgf_valid(SGF_CONTEXT, srcContext))
        return CUDA_ERROR_INVALID_CONTEXT;
    sgf_context_drain(dstContext); /* ordered after all work of both contexts */
    sgf_context_drain(srcContext);
    return copy(__func__, &c, 0, true, NULL);
}

CUresult cuMemcpyPeerAsync(CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice, CUcontext srcContext,
                           size_t ByteCount, CUstream hStream)
{
    struct sgf_copy c = plain(dstDevice, srcDevice, ByteCount);
    if (!sgf_valid(SGF_CONTEXT, dstContext) || !sgf_valid(SGF_CONTEXT, srcContext))
        return CUDA_ERROR_INVALID_CONTEXT;
    return copy(__func__, &c, 0, true, hStream);
}

/* ---- pitched copies ------------------------------------------------------------------------------------- */
static CUresult end_of(CUmemorytype type, const void *host, CUdeviceptr device, uint64_t *address, bool *is_host)
{
    switch (type) {
    case CU_MEMORYTYPE_HOST: *address = HOST(host); *is_host = true; return CUDA_SUCCESS;
    case CU_MEMORYTYPE_DEVICE: *address = device; *is_host = false; return CUDA_SUCCESS;
    case CU_MEMORYTYPE_UNIFIED: *address = device; *is_host = sgf_device_of(device) == NULL; return CUDA_SUCCESS;
    case CU_MEMORYTYPE_ARRAY: sgf_once("a copy to or from a CUDA array"); return CUDA_ERROR_NOT_SUPPORTED;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
}

static CUresult describe(const CUDA_MEMCPY3D *p, struct sgf_copy *c, unsigned *host)
{
    bool src_host = false, dst_host = false;
    uint64_t src = 0, dst = 0;
    CUresult result = end_of(p->srcMemoryType, p->srcHost, p->srcDevice, &src, &src_host);
    if (result == CUDA_SUCCESS)
        result = end_of(p->dstMemoryType, p->dstHost, p->dstDevice, &dst, &dst_host);
    if (result != CUDA_SUCCESS)
        return result;
    uint64_t src_pitch = p->srcPitch != 0 ? p->srcPitch : p->srcXInBytes + p->WidthInBytes;
    uint64_t dst_pitch = p->dstPitch != 0 ? p->dstPitch : p->dstXInBytes + p->WidthInBytes;
    uint64_t src_height = p->srcHeight != 0 ? p->srcHeight : p->srcY + p->Height;
    uint64_t dst_height = p->dstHeight != 0 ? p->dstHeight : p->dstY + p->Height;
    if ((p->Height > 1 || p->Depth > 1) &&
        (src_pitch < p->srcXInBytes + p->WidthInBytes || dst_pitch < p->dstXInBytes + p->WidthInBytes))
        return CUDA_ERROR_INVALID_VALUE;
    if (p->Depth > 1 && (src_height < p->srcY + p->Height || dst_height < p->dstY + p->Height))
        return CUDA_ERROR_INVALID_VALUE;
    uint64_t limit = 1ull << 47; /* no product below can wrap */
    if (src_pitch > limit || dst_pitch > limit || src_height > (1u << 30) || dst_height > (1u << 30) ||
        p->Height > (1u << 30) || p->Depth > (1u << 30) || p->WidthInBytes > limit)
        return CUDA_ERROR_INVALID_VALUE;
    c->src = src + p->srcZ * src_pitch * src_height + p->srcY * src_pitch + p->srcXInBytes;
    c->dst = dst + p->dstZ * dst_pitch * dst_height + p->dstY * dst_pitch + p->dstXInBytes;
    c->width = p->WidthInBytes;
    c->rows = p->Height;
    c->slices = p->Depth;
    c->src_pitch = src_pitch;
    c->dst_pitch = dst_pitch;
    c->src_slice = src_pitch * src_height;
    c->dst_slice = dst_pitch * dst_height;
    *host = (src_host ? 1u : 0u) | (dst_host ? 2u : 0u);
    return CUDA_SUCCESS;
}

CUresult sgf_describe_copy3d(const CUDA_MEMCPY3D *p, struct sgf_copy *out)
{
    unsigned host;
    if (p == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = describe(p, out, &host);
    if (result == CUDA_SUCCESS && out->width != 0 && out->rows != 0 && out->slices != 0)
        result = check(out, host);
    return result;
}

static CUresult copy3d(const char *function, const CUDA_MEMCPY3D *p, bool async, CUstream stream)
{
    struct sgf_copy c;
    unsigned host = 0;
    CUresult result = sgf_enter(function);
    if (result != CUDA_SUCCESS)
        return result;
    if (p == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if ((result = describe(p, &c, &host)) != CUDA_SUCCESS)
        return result;
    return copy(function, &c, host, async || host == 0, stream);
}

static CUDA_MEMCPY3D flat(const CUDA_MEMCPY2D *p)
{
    return (CUDA_MEMCPY3D){
        .srcXInBytes = p->srcXInBytes, .srcY = p->srcY, .srcMemoryType = p->srcMemoryType, .srcHost = p->srcHost,
        .srcDevice = p->srcDevice, .srcPitch = p->srcPitch, .dstXInBytes = p->dstXInBytes, .dstY = p->dstY,
        .dstMemoryType = p->dstMemoryType, .dstHost = p->dstHost, .dstDevice = p->dstDevice, .dstPitch = p->dstPitch,
        .WidthInBytes = p->WidthInBytes, .Height = p->Height, .Depth = 1,
    };
}

CUresult cuMemcpy2D_v2(const CUDA_MEMCPY2D *pCopy)
{
    if (pCopy == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    CUDA_MEMCPY3D p = flat(pCopy);
    return copy3d(__func__, &p, false, NULL);
}

CUresult cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D *pCopy)
{
    return cuMemcpy2D_v2(pCopy);
}

CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *pCopy, CUstream hStream)
{
    if (pCopy == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    CUDA_MEMCPY3D p = flat(pCopy);
    return copy3d(__func__, &p, true, hStream);
}

CUresult cuMemcpy3D_v2(const CUDA_MEMCPY3D *pCopy)
{
    return copy3d(__func__, pCopy, false, NULL);
}

CUresult cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D *pCopy, CUstream hStream)
{
    return copy3d(__func__, pCopy, true, hStream);
}

/* ---- fills ----------------------------------------------------------------------------------------------------- */
CUresult sgf_check_fill(const struct sgf_fill *f)
{
    if ((f->element != 1 && f->element != 2 && f->element != 4) || f->dst % f->element != 0 ||
        (f->rows > 1 && (f->pitch % f->element != 0 || f->pitch < f->width * f->element)))
        return CUDA_ERROR_INVALID_VALUE;
    if (f->width == 0 || f->rows == 0)
        return CUDA_SUCCESS;
    if (f->width > 1ull << 46 || f->rows > 1ull << 32 || f->pitch > 1ull << 46)
        return CUDA_ERROR_INVALID_VALUE;
    return readable(f->dst, (f->rows - 1) * f->pitch + f->width * f->element) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* Documented: memsets are asynchronous, except on page-locked memory. */
static CUresult fill(const char *function, struct sgf_fill f, bool async, CUstream handle)
{
    struct CUctx_st *context;
    struct CUstream_st *stream;
    CUresult result = sgf_enter_context(function, &context);
    if (result == CUDA_SUCCESS)
        result = sgf_stream_resolve(context, handle, &stream);
    if (result == CUDA_SUCCESS)
        result = sgf_check_fill(&f);
    if (result != CUDA_SUCCESS || f.width == 0 || f.rows == 0)
        return result;
    if (!async && (result = sgf_capture_forbids(context, stream)) != CUDA_SUCCESS)
        return result;
    struct sgf_work *work = sgf_work_new(SGF_WORK_FILL, stream->context, 0);
    if (work == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    work->u.fill = f;
    if (SGF_UNLIKELY(sgf_capture_work(stream, work, &result)))
        return result;
    uint64_t seq;
    result = sgf_stream_submit(stream, work, &seq);
    if (async || sgf_device_of(f.dst) != NULL || result != CUDA_SUCCESS)
        return result;
    sgf_wait_seq(stream, seq);
    return sgf_context_check(stream->context);
}

#define FILL1(bits, type, element) \
    CUresult cuMemsetD##bits##_v2(CUdeviceptr dst, type value, size_t N) \
    { return fill(__func__, (struct sgf_fill){ dst, 0, N, 1, value, element }, false, NULL); } \
    CUresult cuMemsetD##bits##Async(CUdeviceptr dst, type value, size_t N, CUstream hStream) \
    { return fill(__func__, (struct sgf_fill){ dst, 0, N, 1, value, element }, true, hStream); } \
    CUresult cuMemsetD2D##bits##_v2(CUdeviceptr dst, size_t pitch, type value, size_t Width, size_t Height) \
    { return fill(__func__, (struct sgf_fill){ dst, pitch, Width, Height, value, element }, false, NULL); } \
    CUresult cuMemsetD2D##bits##Async(CUdeviceptr dst, size_t pitch, type value, size_t Width, size_t Height, CUstream hStream) \
    { return fill(__func__, (struct sgf_fill){ dst, pitch, Width, Height, value, element }, true, hStream); }

FILL1(8, unsigned char, 1)
FILL1(16, unsigned short, 2)
FILL1(32, unsigned int, 4)
