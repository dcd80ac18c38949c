/* Memory and copies on the proxy's side. */
#include "handlers.h"

int sg_where(sg_session *session, uint64_t address, uint64_t bytes)
{
    if (address - SG_DEVICE_BASE < SG_DEVICE_WINDOW) {
        if (sg_memory_owned(session, address, bytes) == 0)
            return SG_AT_DEVICE;
    } else if (sg_pinned_owned(session, address, bytes) == 0) {
        return SG_AT_PINNED;
    }
    struct sg_calls *calls = sg_calls_of(session); /* a module's global: wherever the driver put it */
    int found = 0;
    if (!calls)
        return SG_AT_NOWHERE;
    pthread_mutex_lock(&calls->lock);
    for (uint32_t i = 0; i < calls->global_count && !found; i++) {
        const struct sg_global *at = &calls->globals[i];
        uint64_t offset = address - at->address;
        found = offset <= at->bytes && bytes <= at->bytes - offset && sg_handle_get(session, SG_HANDLE_KIND(at->owner), at->owner);
    }
    pthread_mutex_unlock(&calls->lock);
    return found ? SG_AT_DEVICE : SG_AT_NOWHERE;
}

/* ---- allocation ------------------------------------------------------------------------------------------- */
/* Frees that waited for their stream; `all`: waits for them. */
void sg_frees_reap(sg_session *session, int all)
{
    struct sg_calls *calls = sg_calls_of(session);
    const struct sg_driver *driver = sg_session_driver(session);
    if (!calls)
        return;
    for (;;) {
        pthread_mutex_lock(&calls->lock);
        struct sg_pending_free *first = calls->frees;
        int ready = first && (all || driver->cuEventQuery(first->event) != CUDA_ERROR_NOT_READY);
        if (ready) {
            calls->frees = first->next;
            if (!calls->frees)
                calls->frees_end = &calls->frees;
        }
        pthread_mutex_unlock(&calls->lock);
        if (!ready)
            return;
        if (all)
            (void)driver->cuEventSynchronize(first->event);
        (void)driver->cuEventDestroy_v2(first->event);
        (void)sg_memory_free(session, first->address);
        free(first);
    }
}

void sg_frees_forget(sg_session *session)
{
    struct sg_calls *calls = sg_calls_of(session);
    pthread_mutex_lock(&calls->lock);
    struct sg_pending_free *entry = calls->frees;
    calls->frees = NULL;
    calls->frees_end = &calls->frees;
    pthread_mutex_unlock(&calls->lock);
    while (entry) {
        struct sg_pending_free *next = entry->next;
        (void)sg_session_driver(session)->cuEventDestroy_v2(entry->event);
        free(entry);
        entry = next;
    }
}

SG_HANDLER(memory_alloc)
{
    struct sg_wire_memory_alloc wire;
    uint64_t address;
    SG_READ(wire);
    sg_frees_reap(session, 0);
    int32_t error = sg_memory_alloc(session, wire.bytes, &address);
    if (error == CUDA_ERROR_OUT_OF_MEMORY) {
        sg_frees_reap(session, 1);
        error = sg_memory_alloc(session, wire.bytes, &address);
    }
    if (error)
        return error;
    sg_log_create(session, request, address, NULL, 0);
    SG_REPLY(address);
    return CUDA_SUCCESS;
}

SG_HANDLER(memory_free)
{
    struct sg_wire_memory_free wire;
    uint64_t base, bytes;
    (void)answer;
    SG_READ(wire);
    if (sg_memory_range(session, wire.address, &base, &bytes) || base != wire.address)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult error = sg_session_driver(session)->cuCtxSynchronize(); /* earlier work may use it */
    if (error)
        return (int32_t)error;
    sg_log_destroy(session, wire.address);
    return sg_memory_free(session, wire.address);
}

SG_HANDLER(memory_free_async)
{
    struct sg_wire_memory_free wire;
    uint64_t base, bytes;
    void *stream;
    (void)answer;
    SG_READ(wire);
    struct sg_calls *calls = sg_calls_of(session);
    const struct sg_driver *driver = sg_session_driver(session);
    if (sg_stream_get(session, wire.stream, &stream))
        return CUDA_ERROR_INVALID_HANDLE;
    if (sg_memory_range(session, wire.address, &base, &bytes) || base != wire.address)
        return CUDA_ERROR_INVALID_VALUE;
    struct sg_pending_free *entry = calls ? calloc(1, sizeof *entry) : NULL;
    if (!entry)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult error = driver->cuEventCreate(&entry->event, CU_EVENT_DISABLE_TIMING);
    if (!error)
        error = driver->cuEventRecord(entry->event, stream);
    if (error) {
        if (entry->event)
            (void)driver->cuEventDestroy_v2(entry->event);
        free(entry);
        return (int32_t)error;
    }
    entry->address = wire.address;
    sg_log_destroy(session, wire.address);
    pthread_mutex_lock(&calls->lock);
    *calls->frees_end = entry;
    calls->frees_end = &entry->next;
    pthread_mutex_unlock(&calls->lock);
    return CUDA_SUCCESS;
}

SG_HANDLER(cuMemGetInfo_v2)
{
    struct sg_reply_memory_info reply;
    (void)request;
    sg_frees_reap(session, 0);
    sg_memory_info(session, &reply.free_bytes, &reply.total_bytes);
    SG_REPLY(reply);
    return CUDA_SUCCESS;
}

SG_HANDLER(pinned_commit)
{
    struct sg_wire_pinned_commit wire;
    (void)answer;
    SG_READ(wire);
    int32_t error = sg_pinned_commit(session, wire.offset, wire.bytes, wire.on != 0);
    if (!error)
        sg_log_set(session, request, SG_PINNED_BASE, SG_LOG_KEY(SG_OP_pinned_commit, wire.offset));
    return error;
}

/* ---- copies ------------------------------------------------------------------------------------------------- */
static int32_t side(sg_session *session, const struct sg_wire_copy *c, uint64_t address, uint64_t pitch, uint64_t slice)
{
    uint64_t rows, slices, end;
    if (__builtin_mul_overflow(c->height - 1, pitch, &rows) || __builtin_mul_overflow(c->depth - 1, slice, &slices) ||
        __builtin_add_overflow(rows, slices, &end) || __builtin_add_overflow(end, c->width, &end))
        return CUDA_ERROR_INVALID_VALUE;
    if ((c->height > 1 || c->depth > 1) && (pitch < c->width || slice % pitch || (c->depth > 1 && slice / pitch < c->height)))
        return CUDA_ERROR_INVALID_VALUE;
    return sg_where(session, address, end) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

int32_t sg_copy_check(sg_session *session, const struct sg_wire_copy *c)
{
    if (!c->width || !c->height || !c->depth || c->width > SG_DEVICE_WINDOW || c->height > SG_DEVICE_WINDOW || c->depth > SG_DEVICE_WINDOW)
        return CUDA_ERROR_INVALID_VALUE;
    int32_t error = c->flags & SG_COPY_TO_REPLY ? 0 : side(session, c, c->dst, c->dst_pitch, c->dst_slice);
    return error || c->flags & SG_COPY_FROM_MESSAGE ? error : side(session, c, c->src, c->src_pitch, c->src_slice);
}

static CUmemorytype type_of(sg_session *session, uint64_t address)
{
    return sg_where(session, address, 1) == SG_AT_PINNED ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
}

void sg_copy_fill(CUDA_MEMCPY3D *out, sg_session *session, const struct sg_wire_copy *c, const void *host)
{
    *out = (CUDA_MEMCPY3D){.WidthInBytes = c->width, .Height = c->height, .Depth = c->depth};
    int from_host = (c->flags & SG_COPY_FROM_MESSAGE) != 0, to_host = (c->flags & SG_COPY_TO_REPLY) != 0;
    out->srcMemoryType = from_host ? CU_MEMORYTYPE_HOST : type_of(session, c->src);
    out->dstMemoryType = to_host ? CU_MEMORYTYPE_HOST : type_of(session, c->dst);
    out->srcHost = from_host ? host : (const void *)(uintptr_t)c->src;
    out->dstHost = to_host ? (void *)(uintptr_t)host : (void *)(uintptr_t)c->dst;
    out->srcDevice = c->src;
    out->dstDevice = c->dst;
    out->srcPitch = from_host ? c->width : c->src_pitch;
    out->dstPitch = to_host ? c->width : c->dst_pitch;
    out->srcHeight = from_host ? c->height : c->depth > 1 ? c->src_slice / c->src_pitch : c->height;
    out->dstHeight = to_host ? c->height : c->depth > 1 ? c->dst_slice / c->dst_pitch : c->height;
}

/* `host`: the packed bytes of the side that the message or reply holds, or NULL. */
static CUresult start_copy(sg_session *session, const struct sg_wire_copy *c, void *host, void *stream)
{
    const struct sg_driver *driver = sg_session_driver(session);
    if (c->height > 1 || c->depth > 1) {
        CUDA_MEMCPY3D box;
        sg_copy_fill(&box, session, c, host);
        return driver->cuMemcpy3DAsync_v2(&box, stream);
    }
    if (c->flags & SG_COPY_FROM_MESSAGE)
        return driver->cuMemcpyHtoDAsync_v2(c->dst, host, c->width, stream);
    if (c->flags & SG_COPY_TO_REPLY)
        return driver->cuMemcpyDtoHAsync_v2(host, c->src, c->width, stream);
    int to_pinned = sg_where(session, c->dst, 1) == SG_AT_PINNED, from_pinned = sg_where(session, c->src, 1) == SG_AT_PINNED;
    if (to_pinned && from_pinned)
        return driver->cuMemcpyAsync(c->dst, c->src, c->width, stream);
    if (from_pinned)
        return driver->cuMemcpyHtoDAsync_v2(c->dst, (const void *)(uintptr_t)c->src, c->width, stream);
    if (to_pinned)
        return driver->cuMemcpyDtoHAsync_v2((void *)(uintptr_t)c->dst, c->src, c->width, stream);
    return driver->cuMemcpyDtoDAsync_v2(c->dst, c->src, c->width, stream);
}

/* Reads and checks the head of a copy. */
static int32_t begin_copy(sg_session *session, const struct sg_request *request, struct sg_wire_copy *wire, void **stream, uint64_t *total)
{
    SG_READ(*wire);
    if (sg_stream_get(session, wire->stream, stream))
        return CUDA_ERROR_INVALID_HANDLE;
    uint64_t rows;
    int32_t error = sg_copy_check(session, wire);
    if (!error && (__builtin_mul_overflow(wire->width, wire->height, &rows) || __builtin_mul_overflow(rows, wire->depth, total)))
        error = CUDA_ERROR_INVALID_VALUE;
    return error;
}

/* Pitched rows from a message: each is taken by the driver at once, where one pitched copy would wait for its stream,
 * and with it all that this session sends. */
static int32_t start_rows(sg_session *session, const struct sg_wire_copy *c, const uint8_t *host, void *stream)
{
    const struct sg_driver *driver = sg_session_driver(session);
    CUresult error = CUDA_SUCCESS;
    for (uint64_t z = 0; z < c->depth; z++)
        for (uint64_t y = 0; y < c->height && !error; y++, host += c->width)
            error = driver->cuMemcpyHtoDAsync_v2(c->dst + z * c->dst_slice + y * c->dst_pitch, host, c->width, stream);
    return (int32_t)error;
}

SG_HANDLER(copy)
{
    struct sg_wire_copy wire;
    void *stream, *host = NULL;
    uint64_t total;
    (void)answer;
    int32_t error = begin_copy(session, request, &wire, &stream, &total);
    if (error)
        return error;
    if (wire.flags & (SG_COPY_TO_REPLY | SG_COPY_SYNC))
        return CUDA_ERROR_INVALID_VALUE; /* those wait: see copy_wait */
    if (wire.flags & SG_COPY_FROM_MESSAGE) {
        if (total > request->bytes - sizeof wire)
            return CUDA_ERROR_INVALID_VALUE;
        host = (void *)(uintptr_t)(request->payload + sizeof wire);
        sg_count(session, SG_COUNT_BYTES_IN, total);
        if (wire.height > 1 || wire.depth > 1)
            return start_rows(session, &wire, host, stream);
    }
    return (int32_t)start_copy(session, &wire, host, stream);
}

/* ---- copies that wait.  Their stream may stand at a gate that opens only after other sessions had the device, so it
 * is waited for outside of enter and leave.  Then the copy has nothing more to wait for. ---------------------------- */
static int32_t copy_rows(sg_session *session, const struct sg_wire_copy *c, uint8_t *host)
{
    const struct sg_hal_table *hal = sg_session_hal(session);
    int out = (c->flags & SG_COPY_TO_REPLY) != 0, flat = c->height == 1 && c->depth == 1;
    uint64_t base = out ? c->src : c->dst, pitch = out ? c->src_pitch : c->dst_pitch, slice = out ? c->src_slice : c->dst_slice;
    int32_t error = CUDA_SUCCESS;
    for (uint64_t z = 0; z < c->depth; z++) {
        for (uint64_t y = 0; y < c->height && !error; y++, host += c->width) {
            uint64_t device = flat ? base : base + z * slice + y * pitch;
            error = out ? hal->copy_to_host(hal->state, host, device, c->width) : hal->copy_to_device(hal->state, device, host, c->width);
        }
    }
    return error;
}

/* Between device memory and `host`, memory of ours; ordered like a copy in `stream`, and done on return. */
static int32_t copy_now(sg_session *session, const struct sg_wire_copy *c, void *host, void *stream)
{
    const struct sg_driver *driver = sg_session_driver(session);
    uint64_t device = c->flags & SG_COPY_TO_REPLY ? c->src : c->dst, base, bytes;
    int32_t error = (int32_t)driver->cuStreamSynchronize(stream);
    if (error)
        return error;
    /* module globals and page-locked memory stay where they are, whoever is resident */
    int moves = device - SG_DEVICE_BASE < SG_DEVICE_WINDOW && !sg_memory_range(session, device, &base, &bytes);
    if (moves && (error = sg_device_enter(session)))
        return error;
    if (moves && sg_device_shared(session))
        error = copy_rows(session, c, host);
    else
        error = (int32_t)start_copy(session, c, host, stream);
    if (moves)
        sg_device_leave(session);
    return error ? error : (int32_t)driver->cuStreamSynchronize(stream);
}

SG_HANDLER(copy_wait)
{
    struct sg_wire_copy wire;
    void *stream;
    uint64_t total;
    sg_frees_reap(session, 0); /* memory whose free has come is no memory any more */
    int32_t error = begin_copy(session, request, &wire, &stream, &total);
    if (error)
        return error;
    if (wire.flags == SG_COPY_TO_REPLY) {
        if (total > SG_REPLY_PAYLOAD)
            return CUDA_ERROR_INVALID_VALUE;
        answer->bytes = (uint32_t)total;
        sg_count(session, SG_COUNT_BYTES_OUT, total);
        return copy_now(session, &wire, answer->payload, stream);
    }
    struct sg_calls *calls = sg_calls_of(session);
    if (wire.flags != SG_COPY_SYNC)
        return CUDA_ERROR_INVALID_VALUE;
    if (!calls)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if ((error = sg_device_enter(session)))
        return error;
    pthread_mutex_lock(&calls->joint);
    error = (int32_t)start_copy(session, &wire, NULL, stream); /* by address: takes its place in the stream */
    pthread_mutex_unlock(&calls->joint);
    sg_device_leave(session);
    return error ? error : (int32_t)sg_session_driver(session)->cuStreamSynchronize(stream);
}

struct bulk { sg_session *session; const struct sg_wire_copy *wire; void *stream; uint8_t *buffer; };

static int32_t chunk_in(void *argument, uint64_t offset, void *chunk, uint32_t bytes)
{
    struct bulk *b = argument;
    if (b->buffer) {
        memcpy(b->buffer + offset, chunk, bytes);
        return CUDA_SUCCESS;
    }
    struct sg_wire_copy part = {.dst = b->wire->dst + offset, .width = bytes, .height = 1, .depth = 1, .flags = SG_COPY_FROM_MESSAGE};
    return copy_now(b->session, &part, chunk, b->stream);
}

static int32_t chunk_out(void *argument, uint64_t offset, void *chunk, uint32_t bytes)
{
    struct bulk *b = argument;
    if (b->buffer) {
        memcpy(chunk, b->buffer + offset, bytes);
        return CUDA_SUCCESS;
    }
    struct sg_wire_copy part = {.src = b->wire->src + offset, .width = bytes, .height = 1, .depth = 1, .flags = SG_COPY_TO_REPLY};
    return copy_now(b->session, &part, chunk, b->stream);
}

/* What is no single row goes through a buffer. */
static int32_t begin_bulk(sg_session *session, const struct sg_request *request, uint32_t flags, struct bulk *b,
                          struct sg_wire_copy *wire, uint64_t *total)
{
    *b = (struct bulk){.session = session, .wire = wire};
    sg_frees_reap(session, 0);
    int32_t error = begin_copy(session, request, wire, &b->stream, total);
    if (error)
        return error;
    if (wire->flags != flags)
        return CUDA_ERROR_INVALID_VALUE;
    if (wire->height == 1 && wire->depth == 1)
        return CUDA_SUCCESS;
    return (b->buffer = malloc(*total)) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

SG_HANDLER(copy_in)
{
    struct sg_wire_copy wire;
    struct bulk b;
    uint64_t total;
    (void)answer;
    int32_t error = begin_bulk(session, request, SG_COPY_FROM_MESSAGE, &b, &wire, &total);
    if (!error)
        error = sg_bulk_receive(session, total, chunk_in, &b);
    if (!error && b.buffer)
        error = copy_now(session, &wire, b.buffer, b.stream);
    free(b.buffer);
    return error;
}

SG_HANDLER(copy_out)
{
    struct sg_wire_copy wire;
    struct bulk b;
    uint64_t total;
    (void)answer;
    int32_t error = begin_bulk(session, request, SG_COPY_TO_REPLY, &b, &wire, &total);
    if (!error && b.buffer)
        error = copy_now(session, &wire, b.buffer, b.stream);
    if (!error)
        error = sg_bulk_send(session, total, chunk_out, &b);
    free(b.buffer);
    return error;
}

/* ---- fills ---------------------------------------------------------------------------------------------------- */
int32_t sg_fill_check(sg_session *session, const struct sg_wire_fill *f)
{
    uint64_t row, rows, end;
    if ((f->element != 1 && f->element != 2 && f->element != 4) || !f->width || !f->height || f->dst % f->element)
        return CUDA_ERROR_INVALID_VALUE;
    if (__builtin_mul_overflow(f->width, f->element, &row) || (f->height > 1 && f->pitch < row) ||
        __builtin_mul_overflow(f->height - 1, f->pitch, &rows) || __builtin_add_overflow(rows, row, &end))
        return CUDA_ERROR_INVALID_VALUE;
    return sg_where(session, f->dst, end) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

SG_HANDLER(fill)
{
    struct sg_wire_fill w;
    void *stream;
    (void)answer;
    SG_READ(w);
    if (sg_stream_get(session, w.stream, &stream))
        return CUDA_ERROR_INVALID_HANDLE;
    const struct sg_driver *driver = sg_session_driver(session);
    int32_t error = sg_fill_check(session, &w);
    if (error)
        return error;
    switch (w.element) {
    case 1:
        return (int32_t)(w.height == 1 ? driver->cuMemsetD8Async(w.dst, (unsigned char)w.value, w.width, stream)
                                       : driver->cuMemsetD2D8Async(w.dst, w.pitch, (unsigned char)w.value, w.width, w.height, stream));
    case 2:
        return (int32_t)(w.height == 1 ? driver->cuMemsetD16Async(w.dst, (unsigned short)w.value, w.width, stream)
                                       : driver->cuMemsetD2D16Async(w.dst, w.pitch, (unsigned short)w.value, w.width, w.height, stream));
    default:
        return (int32_t)(w.height == 1 ? driver->cuMemsetD32Async(w.dst, w.value, w.width, stream)
                                       : driver->cuMemsetD2D32Async(w.dst, w.pitch, w.value, w.width, w.height, stream));
    }
}
