#include "check.h"

static CUdeviceptr array(size_t bytes)
{
    CUdeviceptr p;
    OK(cuMemAlloc_v2(&p, bytes));
    OK(cuMemsetD8_v2(p, 0, bytes));
    OK(cuCtxSynchronize());
    return p;
}

static unsigned word_at(CUdeviceptr p)
{
    unsigned got;
    OK(cuMemcpyDtoH_v2(&got, p, 4));
    return got;
}

static CUDA_MEMCPY3D copy_of(CUdeviceptr dst, CUdeviceptr src, size_t bytes)
{
    return (CUDA_MEMCPY3D){ .srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = src, .srcPitch = bytes, .srcHeight = 1,
                            .dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = dst, .dstPitch = bytes, .dstHeight = 1,
                            .WidthInBytes = bytes, .Height = 1, .Depth = 1 };
}

static CUDA_KERNEL_NODE_PARAMS_v1 poke_node(void **params)
{
    return (CUDA_KERNEL_NODE_PARAMS_v1){ .func = function("poke"), .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 32,
                                         .blockDimY = 1, .blockDimZ = 1, .kernelParams = params };
}

static unsigned host_calls;
static void on_host(void *user)
{
    host_calls += (unsigned)(uintptr_t)user;
}

CASE(nodes_run_after_what_they_need, "a graph of all node kinds, added out of order, runs in dependency order")
{
    CUgraph g;
    CUgraphExec x;
    CUgraphNode fill, copy, kernel, host, join, need[2];
    CUdeviceptr p = array(64), target = p + 8;
    unsigned value = 3, bytes = 4;
    void *params[] = { &target, &value, &bytes };
    CUDA_KERNEL_NODE_PARAMS_v1 k = poke_node(params);
    CUDA_MEMCPY3D c = copy_of(p + 4, p, 4);
    CUDA_MEMSET_NODE_PARAMS m = { .dst = p, .value = 9, .elementSize = 4, .width = 1, .height = 1 };
    CUDA_HOST_NODE_PARAMS h = { on_host, (void *)1 };
    OK(cuGraphCreate(&g, 0));
    OK(cuGraphAddMemcpyNode(&copy, g, NULL, 0, &c, context));
    OK(cuGraphAddMemsetNode(&fill, g, NULL, 0, &m, context));
    OK(cuGraphAddDependencies(g, &fill, &copy, 1));
    IS(CUDA_ERROR_INVALID_VALUE, cuGraphAddDependencies(g, &fill, &copy, 1));
    OK(cuGraphAddKernelNode(&kernel, g, &copy, 1, &k));
    need[0] = copy;
    need[1] = kernel;
    OK(cuGraphAddHostNode(&host, g, need, 2, &h));
    OK(cuGraphAddEmptyNode(&join, g, &host, 1));
    value = 1000; /* parameters were taken */
    OK(cuGraphInstantiate_v2(&x, g, NULL, NULL, 0));
    for (int i = 0; i < 100; i++)
        OK(cuGraphLaunch(x, NULL));
    OK(cuCtxSynchronize());
    CHECK(word_at(p) == 9 && word_at(p + 4) == 9 && word_at(p + 8) == 3 && host_calls == 100);
    size_t count = 0, edges = 0;
    OK(cuGraphGetNodes(g, NULL, &count));
    OK(cuGraphGetEdges(g, NULL, NULL, &edges));
    CHECK(count == 5 && edges == 5);
    OK(cuGraphDestroy(g));
    OK(cuGraphLaunch(x, NULL));
    OK(cuCtxSynchronize());
    CHECK(host_calls == 101);
    OK(cuGraphExecDestroy(x));
    IS(CUDA_ERROR_INVALID_VALUE, cuGraphLaunch(x, NULL));
}

CASE(updates_hold_for_later_launches_only, "setting parameters changes the next launch, not one in flight")
{
    CUgraph g;
    CUgraphExec x;
    CUgraphNode wait, kernel, fill;
    CUdeviceptr flag = array(4), p = array(64), target = p;
    CUstream s;
    unsigned value = 1, bytes = 4, one = 1;
    void *params[] = { &target, &value, &bytes }, *wait_params[] = { &flag, &one };
    CUDA_KERNEL_NODE_PARAMS_v1 w = poke_node(wait_params), k = poke_node(params), back;
    CUDA_MEMSET_NODE_PARAMS m = { .dst = p + 16, .value = 1, .elementSize = 4, .width = 1, .height = 1 };
    w.func = function("spin_until");
    OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    OK(cuGraphCreate(&g, 0));
    OK(cuGraphAddKernelNode(&wait, g, NULL, 0, &w));
    OK(cuGraphAddKernelNode(&kernel, g, &wait, 1, &k));
    OK(cuGraphAddMemsetNode(&fill, g, &wait, 1, &m, context));
    OK(cuGraphInstantiateWithFlags(&x, g, 0));
    OK(cuGraphLaunch(x, s));
    target = p + 4;
    value = 2;
    m.dst = p + 20;
    OK(cuGraphExecKernelNodeSetParams(x, kernel, &k));
    OK(cuGraphExecMemsetNodeSetParams(x, fill, &m, context));
    OK(cuGraphLaunch(x, s));
    OK(cuMemsetD32Async(flag, 1, 1, CU_STREAM_PER_THREAD));
    OK(cuStreamSynchronize(s));
    CHECK(word_at(p) == 1 && word_at(p + 4) == 2 && word_at(p + 16) == 1 && word_at(p + 20) == 1);
    OK(cuGraphKernelNodeGetParams(kernel, &back));
    CHECK(back.func == function("poke") && *(unsigned *)back.kernelParams[1] == 1); /* the graph itself is unchanged */
    OK(cuGraphNodeSetEnabled(x, kernel, 0));
    value = 5;
    OK(cuMemsetD32_v2(p + 4, 0, 1));
    OK(cuGraphLaunch(x, s));
    OK(cuStreamSynchronize(s));
    CHECK(word_at(p + 4) == 0);
    k.func = (CUfunction)&k;
    IS(CUDA_ERROR_INVALID_VALUE, cuGraphExecKernelNodeSetParams(x, kernel, &k));
}

CASE(clones_and_children, "a clone is independent, a child graph runs in its place")
{
    CUgraph child, parent, clone;
    CUgraphExec x;
    CUgraphNode fill, sub, copy, found;
    CUgraphNodeType type;
    CUdeviceptr p = array(64);
    CUDA_MEMSET_NODE_PARAMS m = { .dst = p, .value = 4, .elementSize = 4, .width = 1, .height = 1 }, other = m;
    CUDA_MEMCPY3D c = copy_of(p + 4, p, 4);
    OK(cuGraphCreate(&child, 0));
    OK(cuGraphAddMemsetNode(&fill, child, NULL, 0, &m, context));
    OK(cuGraphCreate(&parent, 0));
    OK(cuGraphAddChildGraphNode(&sub, parent, NULL, 0, child));
    OK(cuGraphAddMemcpyNode(&copy, parent, &sub, 1, &c, context));
    other.value = 8;
    OK(cuGraphMemsetNodeSetParams(fill, &other)); /* of the original: the child node holds a copy */
    OK(cuGraphClone(&clone, parent));
    OK(cuGraphNodeFindInClone(&found, copy, clone));
    OK(cuGraphNodeGetType(found, &type));
    CHECK(found != copy && type == CU_GRAPH_NODE_TYPE_MEMCPY);
    OK(cuGraphDestroy(parent));
    OK(cuGraphInstantiateWithFlags(&x, clone, 0));
    OK(cuGraphLaunch(x, NULL));
    CHECK(word_at(p + 4) == 4);
    CUgraph inner;
    IS(CUDA_ERROR_INVALID_VALUE, cuGraphChildGraphNodeGetGraph(sub, &inner));
    OK(cuGraphNodeFindInClone(&found, found, clone));
}

CASE(a_cycle_cannot_be_instantiated, "a graph whose nodes need each other is refused")
{
    CUgraph g;
    CUgraphExec x;
    CUgraphNode a, b;
    OK(cuGraphCreate(&g, 0));
    OK(cuGraphAddEmptyNode(&a, g, NULL, 0));
    OK(cuGraphAddEmptyNode(&b, g, &a, 1));
    OK(cuGraphAddDependencies(g, &b, &a, 1));
    IS(CUDA_ERROR_INVALID_VALUE, cuGraphInstantiateWithFlags(&x, g, 0));
    OK(cuGraphRemoveDependencies(g, &b, &a, 1));
    OK(cuGraphInstantiateWithFlags(&x, g, 0));
    OK(cuGraphDestroyNode(a));
    IS(CUDA_ERROR_INVALID_VALUE, cuGraphDestroyNode(a));
}

CASE(event_nodes_are_points_of_the_stream, "a graph's event nodes order its work with that of other streams")
{
    CUgraph g;
    CUgraphExec x;
    CUgraphNode fill, record, wait, last;
    CUevent first, second;
    CUstream a, b;
    CUdeviceptr p = array(64);
    CUDA_MEMSET_NODE_PARAMS m = { .dst = p, .value = 4, .elementSize = 4, .width = 1, .height = 1 };
    CUDA_MEMCPY3D c = copy_of(p + 8, p, 4);
    OK(cuEventCreate(&first, 0));
    OK(cuEventCreate(&second, 0));
    OK(cuStreamCreate(&a, CU_STREAM_NON_BLOCKING));
    OK(cuStreamCreate(&b, CU_STREAM_NON_BLOCKING));
    OK(cuGraphCreate(&g, 0));
    OK(cuGraphAddEventWaitNode(&wait, g, NULL, 0, second));
    OK(cuGraphAddMemsetNode(&fill, g, &wait, 1, &m, context));
    OK(cuGraphAddEventRecordNode(&record, g, &fill, 1, first));
    OK(cuGraphAddMemcpyNode(&last, g, &record, 1, &c, context));
    OK(cuGraphInstantiateWithFlags(&x, g, 0));
    OK(cuGraphLaunch(x, a));
    OK(cuStreamWaitEvent(b, first, 0));
    OK(cuMemcpyDtoDAsync_v2(p + 4, p, 4, b));
    OK(cuEventRecord(second, b));
    OK(cuGraphLaunch(x, a));
    OK(cuStreamSynchronize(a));
    CHECK(word_at(p + 4) == 4 && word_at(p + 8) == 4);
}

CASE(captured_work_becomes_a_graph, "captured calls do nothing until the graph runs, across forked streams")
{
    CUstream a, b;
    CUevent fork, join;
    CUgraph g;
    CUgraphExec x;
    CUstreamCaptureStatus status;
    CUdeviceptr p = array(64), target;
    unsigned value = 6, bytes = 4;
    void *params[] = { &target, &value, &bytes };
    size_t count, edges;
    target = p + 8;
    OK(cuStreamCreate(&a, CU_STREAM_NON_BLOCKING));
    OK(cuStreamCreate(&b, CU_STREAM_NON_BLOCKING));
    OK(cuEventCreate(&fork, CU_EVENT_DISABLE_TIMING));
    OK(cuEventCreate(&join, CU_EVENT_DISABLE_TIMING));
    function("poke");
    OK(cuStreamBeginCapture_v2(a, CU_STREAM_CAPTURE_MODE_GLOBAL));
    OK(cuMemsetD32Async(p, 7, 1, a));
    OK(cuEventRecord(fork, a));
    OK(cuStreamWaitEvent(b, fork, 0));
    OK(cuMemcpyDtoDAsync_v2(p + 4, p, 4, b));
    OK(cuLaunchKernel(function("poke"), 1, 1, 1, 1, 1, 1, 0, a, params, NULL));
    OK(cuLaunchHostFunc(b, on_host, (void *)1));
    OK(cuEventRecord(join, b));
    OK(cuStreamWaitEvent(a, join, 0));
    OK(cuStreamIsCapturing(b, &status));
    CHECK(status == CU_STREAM_CAPTURE_STATUS_ACTIVE);
    IS(CUDA_ERROR_CAPTURED_EVENT, cuEventQuery(join));
    OK(cuStreamEndCapture(a, &g));
    OK(cuStreamIsCapturing(b, &status));
    CHECK(status == CU_STREAM_CAPTURE_STATUS_NONE);
    CHECK(word_at(p) == 0 && host_calls == 0);
    OK(cuGraphGetNodes(g, NULL, &count));
    OK(cuGraphGetEdges(g, NULL, NULL, &edges));
    CHECK(count == 4 && edges == 3);
    OK(cuGraphInstantiateWithFlags(&x, g, 0));
    OK(cuGraphLaunch(x, a));
    OK(cuStreamSynchronize(a));
    CHECK(word_at(p) == 7 && word_at(p + 4) == 7 && word_at(p + 8) == 6 && host_calls == 1);
}

CASE(captures_refuse_what_they_cannot_hold, "illegal calls during capture have their documented errors")
{
    CUstream a, b;
    CUevent e;
    CUgraph g;
    CUdeviceptr p = array(64), q;
    OK(cuStreamCreate(&a, 0));
    OK(cuStreamCreate(&b, CU_STREAM_NON_BLOCKING));
    OK(cuEventCreate(&e, 0));
    IS(CUDA_ERROR_ILLEGAL_STATE, cuStreamEndCapture(a, &g));
    IS(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuStreamBeginCapture_v2(CU_STREAM_LEGACY, CU_STREAM_CAPTURE_MODE_RELAXED));
    OK(cuStreamBeginCapture_v2(a, CU_STREAM_CAPTURE_MODE_GLOBAL));
    IS(CUDA_ERROR_ILLEGAL_STATE, cuStreamBeginCapture_v2(a, CU_STREAM_CAPTURE_MODE_GLOBAL));
    IS(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuStreamSynchronize(a));
    IS(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuMemsetD32Async(p, 1, 1, a));
    IS(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(a, &g));
    CHECK(g == NULL);
    OK(cuStreamBeginCapture_v2(a, CU_STREAM_CAPTURE_MODE_GLOBAL));
    IS(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, cuMemsetD32Async(p, 1, 1, NULL));
    IS(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(a, &g));
    OK(cuStreamBeginCapture_v2(a, CU_STREAM_CAPTURE_MODE_GLOBAL));
    IS(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuMemAlloc_v2(&q, 4));
    IS(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(a, &g));
    OK(cuStreamBeginCapture_v2(a, CU_STREAM_CAPTURE_MODE_RELAXED));
    OK(cuMemAlloc_v2(&q, 4));
    OK(cuMemsetD32Async(p, 1, 1, a));
    OK(cuEventRecord(e, a));
    OK(cuStreamWaitEvent(b, e, 0));
    OK(cuMemsetD32Async(p, 1, 1, b));
    IS(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, cuStreamEndCapture(b, &g));
    IS(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, cuStreamEndCapture(a, &g));
    OK(cuMemsetD32Async(p, 1, 1, b)); /* out of the capture again */
    OK(cuStreamBeginCapture_v2(a, CU_STREAM_CAPTURE_MODE_RELAXED));
    OK(cuStreamDestroy_v2(a));
    OK(cuCtxSynchronize());
}

CASE(executable_graphs_take_updates_of_the_same_shape, "cuGraphExecUpdate takes parameters, and refuses another shape")
{
    CUgraph g, h, other;
    CUgraphExec x;
    CUgraphNode n;
    CUgraphExecUpdateResultInfo info;
    CUdeviceptr p = array(64);
    CUDA_MEMSET_NODE_PARAMS m = { .dst = p, .value = 4, .elementSize = 4, .width = 1, .height = 1 };
    OK(cuGraphCreate(&g, 0));
    OK(cuGraphAddMemsetNode(&n, g, NULL, 0, &m, context));
    m.value = 5;
    OK(cuGraphClone(&h, g));
    OK(cuGraphNodeFindInClone(&n, n, h));
    OK(cuGraphMemsetNodeSetParams(n, &m));
    OK(cuGraphInstantiateWithFlags(&x, g, 0));
    OK(cuGraphLaunch(x, NULL));
    CHECK(word_at(p) == 4);
    OK(cuGraphExecUpdate_v2(x, h, &info));
    OK(cuGraphLaunch(x, NULL));
    CHECK(word_at(p) == 5);
    OK(cuGraphCreate(&other, 0));
    OK(cuGraphAddEmptyNode(&n, other, NULL, 0));
    IS(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, cuGraphExecUpdate_v2(x, other, &info));
    CHECK(info.result == CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED);
}
