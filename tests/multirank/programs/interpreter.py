"""A rank that executes programs of small steps, and says what its memory holds in the end.

    interpreter.py PROGRAMS.json DIRECTORY [ORDINAL]

PROGRAMS.json is a list of programs: {"ranks": [steps of rank 0, ...], "communicators": {name: [ranks]}}.
Writes DIRECTORY/result.<rank>: a JSON list with, for each program, the digests of all that was read, in
order.  What each step does is what the method of its name does.
"""

from __future__ import annotations

import ctypes as c
import hashlib
import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2] / "interposers" / "programs"))
import driver
import nccl
import sockets
from driver import check, make

PTX = b"""
.version 8.0
.target sm_80
.address_size 64
.visible .entry mix(.param .u64 p, .param .u64 s, .param .u32 n, .param .u32 k)
{
  .reg .pred %q; .reg .u32 %i, %b, %t, %n, %v, %w, %k; .reg .u64 %p, %s, %o;
  ld.param.u64 %p, [p]; ld.param.u64 %s, [s]; ld.param.u32 %n, [n]; ld.param.u32 %k, [k];
  mov.u32 %b, %ctaid.x; mov.u32 %t, %ntid.x; mov.u32 %i, %tid.x;
  mad.lo.u32 %i, %b, %t, %i;
  setp.ge.u32 %q, %i, %n;
  @%q bra done;
  mul.wide.u32 %o, %i, 4; add.u64 %p, %p, %o; add.u64 %s, %s, %o;
  ld.global.u32 %v, [%p]; ld.global.u32 %w, [%s];
  mad.lo.u32 %v, %v, %k, %w;
  st.global.u32 [%p], %v;
done:
  ret;
}
"""
HOST_FUNCTION = c.CFUNCTYPE(None, c.c_void_p)
CAPTURE_RELAXED = 2


class Interpreter:
    """The state of one program."""

    def __init__(self, directory: Path, number: int, program: dict[str, Any], mix: Any) -> None:
        self.directory, self.number, self.mix = directory, number, mix
        self.buffers: dict[str, tuple[Any, int]] = {}
        self.streams: dict[int, Any] = {0: c.c_void_p()}
        self.events: dict[str, Any] = {}
        self.threads: list[threading.Thread] = []
        self.failures: list[BaseException] = []
        self.results: list[str] = []
        self.called = 0
        self.host = HOST_FUNCTION(self._count)
        self.hosts: list[Any] = []
        self.graphs: list[Any] = []
        self.communicators = {
            name: nccl.communicator(directory / f"{number}-{name}.id", ranks)
            for name, ranks in program["communicators"].items()
            if nccl.rank() in ranks
        }
        for stream in (1, 2):
            self.streams[stream] = make(driver.Handle, "cuStreamCreate", 0 if stream == 1 else 1)

    def _count(self, _: Any) -> None:
        self.called += 1

    def run(self, steps: list[list[Any]]) -> None:
        for name, *arguments in steps:
            getattr(self, name)(*arguments)

    # ---- memory ------------------------------------------------------------------------------------
    def alloc(self, name: str, words: int) -> None:
        self.buffers[name] = make(driver.Address, "cuMemAlloc_v2", c.c_size_t(4 * words)), words

    def free(self, name: str) -> None:
        check("cuMemFree_v2", self.buffers.pop(name)[0])

    def fill(self, name: str, seed: int, small: bool) -> None:
        """Host to device; `small`: numbers that are exact in float16."""
        address, words = self.buffers[name]
        random = np.random.default_rng(1000 * seed + nccl.rank())
        data = random.integers(0, 2**32, words, np.uint32)
        if small:
            data = random.integers(-8, 8, words).astype(np.float32).view(np.uint32)
        check("cuMemcpyHtoD_v2", address, data.ctypes.data_as(c.c_void_p), c.c_size_t(data.nbytes))

    def set(self, name: str, stream: int, value: int) -> None:
        address, words = self.buffers[name]
        check("cuMemsetD32Async", address, c.c_uint(value), c.c_size_t(words), self.streams[stream])

    def copy(self, to: str, source: str, stream: int) -> None:
        size = 4 * min(self.buffers[to][1], self.buffers[source][1])
        addresses = self.buffers[to][0], self.buffers[source][0]
        check("cuMemcpyDtoDAsync_v2", *addresses, c.c_size_t(size), self.streams[stream])

    def read(self, name: str) -> None:
        """Device to host; the digest becomes a result."""
        address, words = self.buffers[name]
        data = np.empty(words, np.uint32)
        check("cuMemcpyDtoH_v2", data.ctypes.data_as(c.c_void_p), address, c.c_size_t(data.nbytes))
        self.results.append(f"{name} {hashlib.blake2b(data.tobytes(), digest_size=8).hexdigest()}")

    # ---- work ----------------------------------------------------------------------------------------
    def kernel(self, to: str, source: str, stream: int, factor: int) -> None:
        (a, n), (b, m) = self.buffers[to], self.buffers[source]
        words = c.c_uint(min(n, m))
        values = (a, b, words, c.c_uint(factor))
        parameters = (c.c_void_p * 4)(*(c.cast(c.pointer(v), c.c_void_p) for v in values))
        shape = (-(-words.value // 128), 1, 1, 128, 1, 1, 0)
        check("cuLaunchKernel", self.mix, *map(c.c_uint, shape), self.streams[stream], parameters, None)

    def graph(self, to: str, source: str, stream: int, factor: int, times: int) -> None:
        """A captured graph of kernels, launched; `stream` is not the NULL stream."""
        check("cuStreamBeginCapture_v2", self.streams[stream], CAPTURE_RELAXED)
        for _ in range(times):
            self.kernel(to, source, stream, factor)
        graph = driver.Handle()
        check("cuStreamEndCapture", self.streams[stream], c.byref(graph))
        ready = make(driver.Handle, "cuGraphInstantiateWithFlags", graph, c.c_ulonglong(0))
        check("cuGraphLaunch", ready, self.streams[stream])
        self.graphs += [graph, ready]

    def call_host(self, stream: int) -> None:
        check("cuLaunchHostFunc", self.streams[stream], self.host, None)

    def call_host_when(self, stream: int, name: str) -> None:
        """A host function that returns once there is a file of that name."""

        def wait(_: Any) -> None:
            while not (self.directory / name).exists():
                time.sleep(0.002)
            self.called += 1

        self.hosts.append(HOST_FUNCTION(wait))
        check("cuLaunchHostFunc", self.streams[stream], self.hosts[-1], None)

    def order(self, before: int, after: int) -> None:
        """What comes later in `after` waits for what is in `before`."""
        event = make(driver.Handle, "cuEventCreate", 2)
        check("cuEventRecord", event, self.streams[before])
        check("cuStreamWaitEvent", self.streams[after], event, 0)
        check("cuEventDestroy_v2", event)

    def synchronize(self, stream: int | None) -> None:
        if stream is None:
            check("cuCtxSynchronize")
        else:
            check("cuStreamSynchronize", self.streams[stream])

    def poll(self, stream: int) -> None:
        while driver.call("cuStreamQuery", self.streams[stream]) == 600:
            time.sleep(0.001)

    # ---- other ranks -----------------------------------------------------------------------------------
    def collective(self, name: str, kind: str, dtype: str, more: dict[str, Any], stream: int) -> None:
        """`more`: send, receive (buffers), count, operation, root (or peer)."""
        code, where = nccl.DTYPES[dtype], (self.communicators[name], self.streams[stream])
        send, receive = (self.buffers[more[b]][0].value if b in more else None for b in ("send", "receive"))
        reduction = nccl.OPERATIONS[more.get("operation", "sum")]
        count, root = more["count"], more.get("root", 0)
        arguments = {
            "AllReduce": (send, receive, count, code, reduction),
            "Reduce": (send, receive, count, code, reduction, root),
            "Broadcast": (send, receive, count, code, root),
            "AllGather": (send, receive, count, code),
            "ReduceScatter": (send, receive, count, code, reduction),
            "AlltoAll": (send, receive, count, code),
            "Gather": (send, receive, count, code, root),
            "Scatter": (send, receive, count, code, root),
            "Send": (send, count, code, root),
            "Recv": (receive, count, code, root),
        }[kind]
        nccl.check(f"nccl{kind}", *arguments, *where)

    def create(self, name: str, ranks: list[int]) -> None:
        """A communicator that there is not from the start."""
        self.communicators[name] = nccl.communicator(self.directory / f"{self.number}-{name}.id", ranks)

    def group(self, steps: list[list[Any]]) -> None:
        nccl.check("ncclGroupStart")
        self.run(steps)
        nccl.check("ncclGroupEnd")

    def meet(self, name: str) -> None:
        nccl.meet(self.directory / f"{self.number}-{name}", list(range(nccl.world())))

    def tcp_reduce(self, name: str, words: int) -> None:
        """An all-reduce as of gloo, over sockets, of numbers that depend on `name` and the rank; the digest
        becomes a result."""
        data = np.random.default_rng([len(name), nccl.rank(), words]).integers(0, 2**32, words, np.uint32)
        total = sockets.all_reduce(self.directory / f"{self.number}-{name}.port", data)
        self.results.append(f"{name} {hashlib.blake2b(total.tobytes(), digest_size=8).hexdigest()}")

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def wait_for(self, name: str) -> None:
        """Waits on the host until the test makes that file."""
        while not (self.directory / name).exists():
            time.sleep(0.002)

    def exit(self, code: int) -> None:
        os._exit(code)

    def repeat(self, steps: list[list[Any]], name: str) -> None:
        """Goes on until the test makes that file."""
        while not (self.directory / name).exists():
            self.run(steps)

    # ---- threads -----------------------------------------------------------------------------------------
    def thread(self, steps: list[list[Any]]) -> None:
        context = make(driver.Handle, "cuCtxGetCurrent")

        def run() -> None:
            try:
                check("cuCtxSetCurrent", context)
                self.run(steps)
            except BaseException as error:
                self.failures.append(error)

        self.threads.append(threading.Thread(target=run))
        self.threads[-1].start()

    def join(self) -> None:
        for thread in self.threads:
            thread.join()
        self.threads.clear()
        if self.failures:
            raise self.failures[0]

    def end(self) -> list[str]:
        """Reads everything, gives everything back."""
        self.join()
        self.synchronize(None)
        for name in sorted(self.buffers):
            self.read(name)
        for name in list(self.buffers):
            self.free(name)
        for handle in self.communicators.values():
            nccl.check("ncclCommDestroy", handle)
        for graph, ready in zip(self.graphs[::2], self.graphs[1::2], strict=True):
            check("cuGraphExecDestroy", ready)
            check("cuGraphDestroy", graph)
        for stream in (1, 2):
            check("cuStreamDestroy_v2", self.streams[stream])
        return [*self.results, f"host functions {self.called}"]


def begin(ordinal: int) -> Any:
    """Opens a device; the kernel that all programs use."""
    check("cuInit", 0)
    make(driver.Handle, "cuCtxCreate_v2", 0, make(c.c_int, "cuDeviceGet", ordinal))
    return driver.function("mix", PTX)


def main() -> None:
    programs = json.loads(Path(sys.argv[1]).read_text())
    directory = Path(sys.argv[2])
    mix = begin(int(sys.argv[3]) if len(sys.argv) > 3 else nccl.rank())
    results = []
    for number, program in enumerate(programs):
        interpreter = Interpreter(directory, number, program, mix)
        interpreter.run(program["ranks"][nccl.rank()])
        results.append(interpreter.end())
    (directory / f"result.{nccl.rank()}").write_text(json.dumps(results))


if __name__ == "__main__":
    main()
