"""Graphs and stream capture, one behaviour each; argv[1] names the one to run."""

from __future__ import annotations

import ctypes as c

from driver import (
    Address,
    Copy3D,
    Handle,
    allocate,
    call,
    check,
    cuda,
    download,
    expect,
    floats,
    function,
    launch,
    make,
    pointers,
    run_named,
    start,
    upload,
)


class KernelNode(c.Structure):
    _fields_ = [
        ("func", Handle),
        ("grid", c.c_uint * 3),
        ("block", c.c_uint * 3),
        ("shared", c.c_uint),
        ("params", c.c_void_p),
        ("extra", c.c_void_p),
        ("kern", Handle),
        ("ctx", Handle),
    ]


class MemsetNode(c.Structure):
    _fields_ = [
        ("dst", Address),
        ("pitch", c.c_size_t),
        ("value", c.c_uint),
        ("element", c.c_uint),
        ("width", c.c_size_t),
        ("height", c.c_size_t),
    ]


def scale_node(f: Handle, p: Address, k: float) -> tuple[KernelNode, object]:
    """Parameters of a node that multiplies four floats; the second value keeps the first one's memory."""
    values = (Address(p.value), c.c_uint32(4), c.c_float(k))
    array = pointers(*values)
    node = KernelNode(f, (c.c_uint * 3)(1, 1, 1), (c.c_uint * 3)(4, 1, 1), 0, c.cast(array, c.c_void_p))
    return node, (values, array)


def add(graph: Handle, how: str, depends: list[Handle], *rest: object) -> Handle:
    array = (c.c_void_p * max(1, len(depends)))(*[d.value for d in depends])
    return make(Handle, how, graph, array, c.c_size_t(len(depends)), *rest)


def explicit_graph() -> None:
    context = start()
    f, p, q = function(), allocate(16), allocate(16)
    graph = make(Handle, "cuGraphCreate", 0)
    one = 0x3F800000
    fill = add(graph, "cuGraphAddMemsetNode", [], c.byref(MemsetNode(p.value, 0, one, 4, 4, 1)), context)
    first, keep1 = scale_node(f, p, 3)
    times3 = add(graph, "cuGraphAddKernelNode_v2", [fill], c.byref(first))
    second, keep2 = scale_node(f, p, 5)
    times5 = add(graph, "cuGraphAddKernelNode", [times3], c.byref(second))
    move = Copy3D(
        srcMemoryType=2,
        srcDevice=p.value,
        dstMemoryType=2,
        dstDevice=q.value,
        WidthInBytes=16,
        Height=1,
        Depth=1,
    )
    copy = add(graph, "cuGraphAddMemcpyNode", [times5], c.byref(move), context)
    add(graph, "cuGraphAddEmptyNode", [copy])
    exec_ = make(Handle, "cuGraphInstantiateWithFlags", graph, c.c_ulonglong(0))
    for _ in range(3):
        check("cuGraphLaunch", exec_, None)
    check("cuCtxSynchronize")
    assert download(q, 16) == floats(15, 15, 15, 15)
    changed, keep3 = scale_node(f, p, 7)
    check("cuGraphExecKernelNodeSetParams", exec_, times5, c.byref(changed))
    check("cuGraphLaunch", exec_, None)
    check("cuCtxSynchronize")
    assert download(q, 16) == floats(21, 21, 21, 21)
    check(
        "cuGraphKernelNodeSetParams_v2", times3, c.byref(changed)
    )  # of the graph, not of the executable one
    check("cuGraphLaunch", exec_, None)
    check("cuCtxSynchronize")
    assert download(q, 16) == floats(21, 21, 21, 21)
    again = make(Handle, "cuGraphInstantiate_v2", graph, None, None, c.c_size_t(0))
    check("cuGraphLaunch", again, None)
    check("cuCtxSynchronize")
    assert download(q, 16) == floats(35, 35, 35, 35)
    count = c.c_size_t()
    check("cuGraphGetNodes", graph, None, c.byref(count))
    assert count.value == 5
    nodes = (c.c_void_p * 5)()
    check("cuGraphGetNodes", graph, nodes, c.byref(count))
    assert {times3.value, times5.value, fill.value, copy.value} < set(nodes)
    check("cuGraphNodeGetDependencies", times5, nodes, c.byref(count))
    assert count.value == 1
    assert nodes[0] == times3.value
    check("cuGraphDestroy", graph)  # the executable graphs live on
    check("cuGraphLaunch", exec_, None)
    check("cuCtxSynchronize")
    assert download(q, 16) == floats(21, 21, 21, 21)
    check("cuGraphExecDestroy", exec_)
    expect(1, "cuGraphLaunch", exec_, None)
    assert keep1
    assert keep2
    assert keep3


def clone_and_update() -> None:
    start()
    f, p = function(), allocate(16)
    upload(p, floats(1, 1, 1, 1))
    graph = make(Handle, "cuGraphCreate", 0)
    params, keep = scale_node(f, p, 2)
    node = add(graph, "cuGraphAddKernelNode_v2", [], c.byref(params))
    clone = make(Handle, "cuGraphClone", graph)
    exec_ = make(Handle, "cuGraphInstantiateWithFlags", clone, c.c_ulonglong(0))
    check("cuGraphLaunch", exec_, None)
    params, keep = scale_node(f, p, 10)
    check("cuGraphKernelNodeSetParams_v2", node, c.byref(params))
    info = (c.c_uint64 * 3)()
    check("cuGraphExecUpdate_v2", exec_, graph, info)
    check("cuGraphLaunch", exec_, None)
    check("cuCtxSynchronize")
    assert download(p, 16) == floats(20, 20, 20, 20)
    other = add(graph, "cuGraphAddEmptyNode", [node])
    expect(910, "cuGraphExecUpdate_v2", exec_, graph, info)
    assert keep
    assert other


def capture() -> None:
    start()
    f, p = function(), allocate(16)
    upload(p, floats(1, 1, 1, 1))
    a, b = make(Handle, "cuStreamCreate", 1), make(Handle, "cuStreamCreate", 1)
    fork, join = make(Handle, "cuEventCreate", 2), make(Handle, "cuEventCreate", 2)
    status = c.c_int()
    check("cuStreamIsCapturing", a, c.byref(status))
    assert status.value == 0
    check("cuStreamBeginCapture_v2", a, 0)
    check("cuStreamIsCapturing", a, c.byref(status))
    assert status.value == 1
    assert launch(f, p, c.c_uint32(4), c.c_float(2), block=4, stream=a) == 0
    check("cuEventRecord", fork, a)
    check("cuStreamWaitEvent", b, fork, 0)
    assert launch(f, p, c.c_uint32(4), c.c_float(3), block=4, stream=b) == 0
    check("cuEventRecord", join, b)
    check("cuStreamWaitEvent", a, join, 0)
    expect(900, "cuStreamSynchronize", a)
    code = call("cuStreamEndCapture", a, c.byref(Handle()))
    assert code == 901, code  # the synchronisation invalidated it
    check("cuStreamBeginCapture_v2", a, 0)
    assert launch(f, p, c.c_uint32(4), c.c_float(2), block=4, stream=a) == 0
    check("cuEventRecord", fork, a)
    check("cuStreamWaitEvent", b, fork, 0)
    assert launch(f, p, c.c_uint32(4), c.c_float(3), block=4, stream=b) == 0
    check("cuEventRecord", join, b)
    check("cuStreamWaitEvent", a, join, 0)
    check("cuMemsetD32Async", Address(p.value + 12), 0x40000000, c.c_size_t(1), a)
    graph = Handle()
    check("cuStreamEndCapture", a, c.byref(graph))
    assert download(p, 16) == floats(1, 1, 1, 1)  # nothing has run
    exec_ = make(Handle, "cuGraphInstantiateWithFlags", graph, c.c_ulonglong(0))
    check("cuGraphDestroy", graph)
    check("cuGraphLaunch", exec_, a)
    check("cuGraphLaunch", exec_, a)
    check("cuStreamSynchronize", a)
    assert download(p, 16) == floats(36, 36, 36, 2)
    assert cuda.cuStreamEndCapture(a, c.byref(graph)) != 0


if __name__ == "__main__":
    run_named(globals())
