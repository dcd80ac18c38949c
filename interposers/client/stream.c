/* Streams beyond plain messages: capture, identity, attributes, and host functions.
 *
 * Capture happens in the proxy's driver; the client only counts it, so that calls which could fail because
 * of it wait for their answer while it lasts. */
#include <pthread.h>
#include <stdlib.h>
#include "../wire.h"
#include "client.h"
#include "copy.h"

/* ---- creation: posted, so what can be wrong with it is found here --------------------------------------- */
CUresult sg_hand_cuStreamCreate(CUstream *phStream, unsigned int Flags)
{
    return Flags & ~(unsigned)CU_STREAM_NON_BLOCKING ? CUDA_ERROR_INVALID_VALUE : sg_send_cuStreamCreate(phStream, Flags);
}

CUresult sg_hand_cuStreamCreateWithPriority(CUstream *phStream, unsigned int flags, int priority)
{
    return flags & ~(unsigned)CU_STREAM_NON_BLOCKING ? CUDA_ERROR_INVALID_VALUE
                                                     : sg_send_cuStreamCreateWithPriority(phStream, flags, priority);
}

CUresult sg_hand_cuEventCreate(CUevent *phEvent, unsigned int Flags)
{
    if (Flags & ~(unsigned)(CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS))
        return CUDA_ERROR_INVALID_VALUE;
    if (Flags & CU_EVENT_INTERPROCESS)
        return sg_declined("cuEventCreate", "events of several processes are not supported", "leave CU_EVENT_INTERPROCESS out");
    return sg_send_cuEventCreate(phEvent, Flags);
}

/* ---- identity -------------------------------------------------------------------------------------------- */
CUresult sg_hand_cuStreamGetId(CUstream hStream, unsigned long long *streamId)
{
    uint64_t wire;
    CUresult error = sg_enter();
    if (error || (error = sg_stream_wire(hStream, &wire)))
        return error;
    if (!streamId)
        return CUDA_ERROR_INVALID_VALUE;
    const struct sg_context *context = sg_context_current();
    *streamId = wire > 2 ? wire : (context ? context->id : 0); /* a handle is unique for the life of the process */
    return CUDA_SUCCESS;
}

CUresult sg_hand_cuStreamSetAttribute(CUstream hStream, CUstreamAttrID attr, const CUstreamAttrValue *param)
{
    uint64_t wire;
    CUresult error = sg_enter();
    if (error || (error = sg_stream_wire(hStream, &wire)))
        return error;
    if (attr == CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW) /* a hint for the cache */
        return param ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    return sg_send_cuStreamSetAttribute(hStream, attr, param);
}

/* ---- capture ------------------------------------------------------------------------------------------- */
CUresult sg_hand_cuStreamBeginCapture_v2(CUstream hStream, CUstreamCaptureMode mode)
{
    /* Relaxed in the proxy, whose threads are not the rank's; a mode only forbids, and asks nothing of the device. */
    if ((unsigned)mode > CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult error = sg_send_cuStreamBeginCapture_v2(hStream, CU_STREAM_CAPTURE_MODE_RELAXED);
    if (!error)
        atomic_fetch_add(&sg_client.captures, 1);
    return error;
}

CUresult sg_hand_cuStreamBeginCapture(CUstream hStream) { return sg_hand_cuStreamBeginCapture_v2(hStream, CU_STREAM_CAPTURE_MODE_GLOBAL); }

CUresult sg_hand_cuStreamEndCapture(CUstream hStream, CUgraph *phGraph)
{
    uint64_t stream, graph = 0;
    CUresult error = sg_enter();
    if (error || (error = sg_stream_wire(hStream, &stream)))
        return error;
    if (!phGraph)
        return CUDA_ERROR_INVALID_VALUE;
    struct sg_wire_handle *wire = sg_begin(SG_OP_capture_end, sizeof *wire);
    if (!wire)
        return sg_lost("cuStreamEndCapture");
    wire->handle = stream;
    error = sg_call("cuStreamEndCapture", &graph, sizeof graph);
    if (error != CUDA_ERROR_ILLEGAL_STATE && error != CUDA_ERROR_STREAM_CAPTURE_UNMATCHED && error != CUDA_ERROR_INVALID_VALUE &&
        atomic_load(&sg_client.captures))
        atomic_fetch_sub(&sg_client.captures, 1);
    *phGraph = NULL;
    if (error)
        return error;
    if (sg_handle_note(SG_KIND_GRAPH, graph, 0, NULL))
        return CUDA_ERROR_OUT_OF_MEMORY;
    *phGraph = (CUgraph)(uintptr_t)graph;
    return CUDA_SUCCESS;
}

CUresult sg_hand_cuStreamIsCapturing(CUstream hStream, CUstreamCaptureStatus *captureStatus)
{
    if (atomic_load_explicit(&sg_client.captures, memory_order_relaxed))
        return sg_send_cuStreamIsCapturing(hStream, captureStatus);
    uint64_t wire;
    CUresult error = sg_enter();
    if (error || (error = sg_stream_wire(hStream, &wire)))
        return error;
    if (!captureStatus)
        return CUDA_ERROR_INVALID_VALUE;
    *captureStatus = CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
}

CUresult sg_hand_cuStreamGetCaptureInfo_v2(CUstream hStream, CUstreamCaptureStatus *captureStatus_out, cuuint64_t *id_out, CUgraph *graph_out,
                                           const CUgraphNode **dependencies_out, size_t *numDependencies_out)
{
    return sg_hand_cuStreamGetCaptureInfo_v3(hStream, captureStatus_out, id_out, graph_out, dependencies_out, NULL, numDependencies_out);
}

CUresult sg_hand_cuStreamGetCaptureInfo_v3(CUstream hStream, CUstreamCaptureStatus *captureStatus_out, cuuint64_t *id_out, CUgraph *graph_out,
                                           const CUgraphNode **dependencies_out, const CUgraphEdgeData **edgeData_out,
                                           size_t *numDependencies_out)
{
    CUresult error;
    if (!captureStatus_out)
        return CUDA_ERROR_INVALID_VALUE;
    if (!atomic_load_explicit(&sg_client.captures, memory_order_relaxed)) {
        error = sg_hand_cuStreamIsCapturing(hStream, captureStatus_out);
        if (!error && numDependencies_out)
            *numDependencies_out = 0;
        return error;
    }
    error = sg_send_cuStreamGetCaptureInfo(hStream, captureStatus_out, id_out);
    if (!error && *captureStatus_out == CU_STREAM_CAPTURE_STATUS_ACTIVE && (graph_out || dependencies_out || edgeData_out || numDependencies_out))
        return sg_declined("cuStreamGetCaptureInfo", "the graph and the dependencies of a running capture are not supported",
                           "ask for status and id only, or build the graph explicitly");
    return error;
}

/* ---- host functions -------------------------------------------------------------------------------------
 * The proxy cannot call into the rank.  A thread of the rank's waits for the next function to call, calls it, and
 * says so; meanwhile the stream waits in the proxy. */
static pthread_once_t serving = PTHREAD_ONCE_INIT;
static CUresult serving_error;

static void *serve_callbacks(void *unused)
{
    struct sg_host_function next;
    sg_link *link;
    (void)unused;
    sg_self.in_host = 1; /* this thread does nothing else */
    /* That the session has ended is for the program's own calls to report. */
    while ((link = atomic_load(&sg_client.link)) && !sg_link_host_next(link, &next)) {
        if (next.is_callback)
            ((CUstreamCallback)(uintptr_t)next.function)((CUstream)(uintptr_t)next.stream, (CUresult)next.status, (void *)(uintptr_t)next.user);
        else
            ((CUhostFn)(uintptr_t)next.function)((void *)(uintptr_t)next.user);
        sg_link_host_returned(link);
    }
    return NULL;
}

static void start_serving(void)
{
    pthread_t thread;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    serving_error = pthread_create(&thread, &attributes, serve_callbacks, NULL) ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
    pthread_attr_destroy(&attributes);
}

static CUresult host_call(const char *call, CUstream stream, uint64_t function, uint64_t user, int is_callback)
{
    struct sg_wire_host_call head = {.function = function, .user = user, .is_callback = (uint32_t)is_callback};
    CUresult error = sg_enter();
    if (error || (error = sg_stream_wire(stream, &head.stream)))
        return error;
    if (!function)
        return CUDA_ERROR_INVALID_VALUE;
    if (sg_stream_captures(head.stream))
        return sg_refuse(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, call, "host functions in a captured graph are not supported",
                         "launch them outside of the capture");
    pthread_once(&serving, start_serving);
    if (serving_error)
        return serving_error;
    struct sg_wire_host_call *wire = sg_begin(SG_OP_host_call, sizeof *wire);
    if (!wire)
        return sg_lost(call);
    *wire = head;
    sg_post();
    return CUDA_SUCCESS;
}

CUresult sg_hand_cuLaunchHostFunc(CUstream hStream, CUhostFn fn, void *userData)
{
    return host_call("cuLaunchHostFunc", hStream, (uint64_t)(uintptr_t)fn, (uint64_t)(uintptr_t)userData, 0);
}

CUresult sg_hand_cuStreamAddCallback(CUstream hStream, CUstreamCallback callback, void *userData, unsigned int flags)
{
    if (flags)
        return CUDA_ERROR_INVALID_VALUE;
    return host_call("cuStreamAddCallback", hStream, (uint64_t)(uintptr_t)callback, (uint64_t)(uintptr_t)userData, 1);
}
