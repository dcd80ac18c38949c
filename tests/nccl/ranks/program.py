"""program.py DIRECTORY CASE: one rank of a job; the cases' docstrings say what they pin."""

from __future__ import annotations

import ctypes as c
import random
import sys
import threading
from typing import Any

import numpy as np
from arithmetic import DTYPES, FACTOR, OPERATORS, contribution, encode, item_bytes, reduced
from rank import (
    IN_PROGRESS,
    INVALID_ARGUMENT,
    INVALID_USAGE,
    PER_THREAD,
    RANK,
    REMOTE_ERROR,
    SUCCESS,
    WORLD,
    Config,
    allocate,
    ask,
    check,
    communicator,
    do,
    driver,
    equal,
    group,
    make,
    meet,
    read,
    settle,
    settle_failed,
    start,
    stream,
    unique_id,
)

COUNT = 53
EIGHT_BIT_FLOAT = 11


def noise(count: int, *seed: int) -> bytes:
    """Bytes that every rank can make."""
    return np.random.default_rng(list(seed)).bytes(count)


def factor(dtype: str, comm: Any) -> int:
    """The operator of a pre-multiplied sum."""
    scalar, operator = c.create_string_buffer(encode(dtype, np.array([FACTOR]))), c.c_int()
    do("RedOpCreatePreMulSum", c.byref(operator), scalar, DTYPES[dtype], 1, comm)
    return operator.value


def every_reduction(comm: Any) -> None:
    """All-reduce, reduce and reduce-scatter of every type and operator, in place and not, equal numpy."""
    checks: list[tuple[str, int, bytes]] = []
    for dtype, number in DTYPES.items():
        size = COUNT * item_bytes(dtype)
        for operator, code in OPERATORS.items():
            op = factor(dtype, comm) if operator == "premul" else code
            given = [contribution(dtype, operator, r, COUNT * WORLD) for r in range(WORLD)]
            parts = [g[:COUNT] for g in given]
            mine, all_mine = encode(dtype, parts[RANK]), encode(dtype, given[RANK])
            whole, expected = reduced(dtype, operator, given), reduced(dtype, operator, parts)
            for in_place in (False, True):
                what = f"{dtype} {operator}{' in place' if in_place else ''}"
                send = allocate(mine)
                out = send if in_place else allocate(size)
                do("AllReduce", send, out, COUNT, number, op, comm, None)
                checks.append((f"AllReduce {what}", out, expected))
                send, root = allocate(mine), code % WORLD
                out = send if in_place else allocate(size) if root == RANK else 0
                do("Reduce", send, out, COUNT, number, op, root, comm, None)
                if root == RANK:
                    checks.append((f"Reduce {what}", out, expected))
                send = allocate(all_mine)
                out = send + RANK * size if in_place else allocate(size)
                do("ReduceScatter", send, out, COUNT, number, op, comm, None)
                checks.append((f"ReduceScatter {what}", out, whole[RANK * size : (RANK + 1) * size]))
            if operator == "premul":
                do("RedOpDestroy", op, comm)
    for what, address, expected in checks:
        equal(read(address, len(expected)), expected, what)


def every_movement(comm: Any) -> None:
    """Broadcast, gathers, scatter and all-to-all of every type, in place and not, move the right bytes."""
    checks: list[tuple[str, int, bytes]] = []
    for number in (*DTYPES.values(), EIGHT_BIT_FLOAT):
        size = COUNT * (1 if number == EIGHT_BIT_FLOAT else item_bytes(list(DTYPES)[number]))
        root = number % WORLD
        parts = [noise(size, number, r) for r in range(WORLD)]
        wide = [noise(size * WORLD, number, r, 1) for r in range(WORLD)]
        for in_place in (False, True):
            what = f"of type {number}{' in place' if in_place else ''}"
            send = allocate(parts[RANK]) if root == RANK or in_place else 0
            out = send if in_place else allocate(size)
            do("Broadcast", send, out, COUNT, number, root, comm, None)
            checks.append((f"Broadcast {what}", out, parts[root]))
            out = allocate(size * WORLD)
            send = out + RANK * size if in_place else allocate(parts[RANK])
            check("cuMemcpyHtoD_v2", driver.Address(send), parts[RANK], c.c_size_t(size))
            do("AllGather", send, out, COUNT, number, comm, None)
            checks.append((f"AllGather {what}", out, b"".join(parts)))
            if root == RANK:
                out = allocate(size * WORLD)
                send = out + RANK * size if in_place else allocate(parts[RANK])
                check("cuMemcpyHtoD_v2", driver.Address(send), parts[RANK], c.c_size_t(size))
                checks.append((f"Gather {what}", out, b"".join(parts)))
            else:
                send, out = allocate(parts[RANK]), 0
            do("Gather", send, out, COUNT, number, root, comm, None)
            send = allocate(wide[root]) if root == RANK else 0
            out = send + RANK * size if in_place and root == RANK else allocate(size)
            do("Scatter", send, out, COUNT, number, root, comm, None)
            checks.append((f"Scatter {what}", out, wide[root][RANK * size : (RANK + 1) * size]))
        send, out = allocate(parts[RANK]), allocate(parts[RANK])
        do("Bcast", out, COUNT, number, root, comm, None)
        checks.append((f"Bcast of type {number}", out, parts[root]))
        send, out = allocate(wide[RANK]), allocate(size * WORLD)
        do("AlltoAll", send, out, COUNT, number, comm, None)
        mine = slice(RANK * size, (RANK + 1) * size)
        checks.append((f"AlltoAll of type {number}", out, b"".join(w[mine] for w in wide)))
    for what, address, expected in checks:
        equal(read(address, len(expected)), expected, what)


def large_operations(comm: Any) -> None:
    """Some megabytes, not a whole number of any chunk: reduced, gathered and exchanged."""
    count = 700_001
    given = [contribution("float32", "sum", r, count) for r in range(WORLD)]
    send, out = allocate(encode("float32", given[RANK])), allocate(4 * count * WORLD)
    do("AllReduce", send, out, count, 7, 0, comm, None)
    equal(read(out, 4 * count), reduced("float32", "sum", given), "AllReduce")
    do("AllGather", send, out, count, 7, comm, None)
    equal(read(out, 4 * count * WORLD), b"".join(encode("float32", g) for g in given), "AllGather")
    after, before = (RANK + 1) % WORLD, (RANK - 1) % WORLD

    def exchange() -> None:
        do("Send", send, count, 7, after, comm, None)
        do("Recv", out, count, 7, before, comm, None)

    group(exchange)
    equal(read(out, 4 * count), encode("float32", given[before]), "Send and Recv")


def groups(comm: Any) -> None:
    """Sends and receives of a group complete together: a ring, everyone to everyone, oneself; and long."""
    other = communicator("groups-other")
    after, before = (RANK + 1) % WORLD, (RANK - 1) % WORLD
    send, out = allocate(noise(64, RANK)), allocate(64 * WORLD)

    def everyone() -> None:
        for peer in random.Random(RANK).sample(range(WORLD), WORLD):  # each rank in an order of its own
            do("Recv", out + 64 * peer, 64, 0, peer, comm, None)
            do("Send", send, 64, 0, peer, comm, None)

    for _ in range(3):
        group(everyone)
    equal(read(out, 64 * WORLD), b"".join(noise(64, r) for r in range(WORLD)), "everyone to everyone")

    total = allocate(64)

    def both_communicators() -> None:
        do("Send", send, 32, 0, after, comm, None)
        do("AllReduce", send, total, 64, 1, 2, other, None)
        do("Recv", out, 32, 0, before, comm, None)

    group(both_communicators)
    equal(read(out, 32), noise(64, before)[:32], "ring")
    largest = np.max([np.frombuffer(noise(64, r), np.uint8) for r in range(WORLD)], axis=0)
    equal(read(total, 64), largest.tobytes(), "AllReduce beside the ring")

    many = 1500
    source, target = allocate(noise(many, RANK, 1)), allocate(many)

    def long_ring() -> None:
        for i in range(many):
            do("Send", source + i, 1, 0, after, comm, None)
            do("Recv", target + i, 1, 0, before, comm, None)

    group(long_ring)
    equal(read(target, many), noise(many, before, 1), "a long group")
    if RANK == 0:
        do("Send", send, 64, 0, 1, comm, None)
    elif RANK == 1:
        do("Recv", out, 64, 0, 0, comm, None)
        equal(read(out, 64), noise(64, 0), "a send outside of groups")
    do("CommDestroy", other)


def creations(comm: Any) -> None:
    """Splits order by key; groups list creations in any order; without blocking they are in progress."""
    number, child = c.c_int(), c.c_void_p()
    do("CommSplit", comm, RANK % 2, -RANK, c.byref(child), None)
    members = [r for r in reversed(range(WORLD)) if r % 2 == RANK % 2]
    do("CommCount", child, c.byref(number))
    assert number.value == len(members)
    do("CommUserRank", child, c.byref(number))
    assert members[number.value] == RANK
    out = allocate(len(members))
    do("AllGather", allocate(bytes([RANK])), out, 1, 0, child, None)
    equal(read(out, len(members)), bytes(members), "ranks of the child")
    none = c.c_void_p(1)
    do("CommSplit", comm, -1 if RANK == 0 else 3, 0, c.byref(none), None)
    assert (none.value is None) == (RANK == 0)

    pair = [c.c_void_p(), c.c_void_p()]
    ids = [unique_id(f"pair{i}", 0) for i in range(2)]

    def crossed() -> None:
        for i in (0, 1) if RANK % 2 else (1, 0):
            do("CommInitRank", c.byref(pair[i]), WORLD, ids[i], RANK)

    group(crossed)
    total = allocate(4)
    for handle in pair:
        do("AllReduce", allocate((1 << RANK).to_bytes(4, "little")), total, 1, 3, 0, handle, None)
        equal(read(total, 4), ((1 << WORLD) - 1).to_bytes(4, "little"), "over a communicator of a group")

    config = Config(c.sizeof(Config), 0xCAFEBEEF, 23203, 0, -(2**31))
    loose = c.c_void_p()
    code = ask("CommInitRankConfig", c.byref(loose), WORLD, unique_id("loose", 0), RANK, c.byref(config))
    assert code == IN_PROGRESS
    assert settle(loose) == SUCCESS
    do("AllReduce", allocate((1 << RANK).to_bytes(4, "little")), total, 1, 3, 0, loose, None)
    equal(read(total, 4), ((1 << WORLD) - 1).to_bytes(4, "little"), "over one that does not block")
    assert ask("CommFinalize", loose) in (IN_PROGRESS, SUCCESS)
    assert settle(loose) == SUCCESS
    alone = (c.c_void_p * 1)()
    do("CommInitAll", alone, 1, None)
    do("AllReduce", total, total, 1, 3, 0, alone[0], None)
    for handle in (loose, child, none, *pair, c.c_void_p(alone[0])):
        do("CommDestroy", handle)


def streams(comm: Any) -> None:
    """Operations keep their place in streams, after fills before them and before copies after them."""
    other, one, two = communicator("streams-other"), stream(), stream()
    event = make(driver.Handle, "cuEventCreate", 2)
    count = 4096
    size = c.c_size_t(count)
    for turn in range(5):
        value = turn * WORLD + RANK + 1
        a, b, copy = allocate(4 * count), allocate(4 * count), allocate(4 * count)
        check("cuMemsetD32Async", driver.Address(a), value, size, one)
        do("AllReduce", a, b, count, 2, 0, comm, one)
        check("cuEventRecord", event, one)
        check("cuStreamWaitEvent", two, event, 0)
        do("AllReduce", b, b, count, 2, 2, other, two)
        check("cuMemcpyDtoDAsync_v2", driver.Address(copy), driver.Address(b), c.c_size_t(4 * count), two)
        check("cuMemsetD32Async", driver.Address(b), 0, size, two)
        expected = sum(turn * WORLD + r + 1 for r in range(WORLD))
        equal(read(copy, 4 * count), np.full(count, expected, np.int32).tobytes(), "two streams")
    for default in (None, c.c_void_p(1), c.c_void_p(PER_THREAD)):
        a = allocate(4 * count)
        if default is not None and default.value == PER_THREAD:
            check("cuMemsetD32Async", driver.Address(a), RANK, size, default)
        else:
            check("cuMemsetD32_v2", driver.Address(a), RANK, size)
        do("AllReduce", a, a, count, 2, 0, comm, default)
        expected = WORLD * (WORLD - 1) // 2
        equal(read(a, 4 * count), np.full(count, expected, np.int32).tobytes(), f"stream {default}")
    scalar = allocate(FACTOR.to_bytes(8, "little"))
    operator = c.c_int()
    do("RedOpCreatePreMulSum", c.byref(operator), scalar, 4, 0, comm)
    check("cuMemsetD8Async", driver.Address(scalar), 2, c.c_size_t(1), one)
    a = allocate((RANK + 1).to_bytes(8, "little"))
    do("AllReduce", a, a, 1, 4, operator.value, comm, one)
    equal(read(a, 8), (WORLD * (WORLD + 1)).to_bytes(8, "little"), "a factor in device memory")
    do("CommDestroy", other)


def threads(comm: Any) -> None:
    """Threads use communicators of their own at once, in orders of their own; none waits for another."""
    context = make(driver.Handle, "cuCtxGetCurrent")
    handles = [communicator(f"thread{i}") for i in range(3)]
    failures: list[BaseException] = []

    def work(index: int) -> None:
        try:
            check("cuCtxSetCurrent", context)
            own = stream()
            for turn in range(20):
                a = allocate((index * 1000 + turn + RANK).to_bytes(4, "little") * 256)
                do("AllReduce", a, a, 256, 3, 0, handles[index], own)
                check("cuStreamSynchronize", own)
                data = c.create_string_buffer(4)
                check("cuMemcpyDtoH_v2", data, driver.Address(a), c.c_size_t(4))
                expected = sum(index * 1000 + turn + r for r in range(WORLD))
                equal(data.raw, expected.to_bytes(4, "little"), f"thread {index}")
        except BaseException as error:
            failures.append(error)

    running = [threading.Thread(target=work, args=(i,)) for i in random.Random(RANK).sample(range(3), 3)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    for failure in failures:
        raise failure
    for handle in handles:
        do("CommDestroy", handle)


def small_things(comm: Any) -> None:
    """No elements, registered buffers, NCCL's own memory, finalizing, and what ended is known."""
    do("AllReduce", None, None, 0, 7, 0, comm, None)
    do("Send" if RANK % 2 else "Recv", None, 0, 0, RANK ^ 1, comm, None)
    memory, handle = c.c_void_p(), c.c_void_p()
    do("MemAlloc", c.byref(memory), c.c_size_t(4))
    do("CommRegister", comm, memory, 4, c.byref(handle))
    check("cuMemcpyHtoD_v2", memory, RANK.to_bytes(4, "little"), c.c_size_t(4))
    do("AllReduce", memory, memory, 1, 2, 2, comm, None)
    do("CommFinalize", comm)  # waits for it
    data = c.create_string_buffer(4)
    check("cuMemcpyDtoH_v2", data, memory, c.c_size_t(4))
    equal(data.raw, (WORLD - 1).to_bytes(4, "little"), "after finalizing")
    assert ask("AllReduce", memory, memory, 1, 2, 2, comm, None) == INVALID_ARGUMENT
    do("CommDeregister", comm, handle)
    do("MemFree", memory)


def disagreement(comm: Any) -> None:
    """Ranks that call with different counts learn of it by an asynchronous error; none hangs."""
    a, own = allocate(4096), stream()
    do("AllReduce", a, a, 100 + (RANK == 0), 7, 0, comm, own)
    assert settle_failed(comm) in (INVALID_ARGUMENT, INVALID_USAGE, REMOTE_ERROR)
    driver.call("cuStreamSynchronize", own)  # ends, with an error or without
    assert ask("AllReduce", a, a, 100, 7, 0, comm, own) != SUCCESS


def abort(comm: Any) -> None:
    """When a rank aborts, the others learn it from their communicator, abort too, and all go on with another:
    no context has failed."""
    a, own = allocate(4096), stream()
    if RANK != 0:
        do("AllReduce", a, a, 100, 7, 0, comm, own)
        do("AllReduce", a, a, 100, 7, 0, comm, own)
    if RANK == 0:
        do("CommAbort", comm)
    else:
        assert settle_failed(comm) == REMOTE_ERROR
        do("CommAbort", comm)
    check("cuStreamSynchronize", own)
    again, total = communicator("again"), allocate(np.ones(1, np.int32).tobytes())
    do("AllReduce", total, total, 1, 2, 0, again, own)
    check("cuStreamSynchronize", own)
    equal(read(total, 4), np.int32(WORLD).tobytes(), "the sum after an abort")
    do("CommDestroy", again)


def abort_while_waiting(comm: Any) -> None:
    """An abort ends what another thread of the rank waits for, though the other ranks never come."""
    never, own, ended = communicator("never"), stream(), []
    if RANK == 0:
        a = allocate(400)
        do("AllReduce", a, a, 100, 7, 0, never, own)
        waiting = threading.Thread(target=lambda: ended.append(ask("CommFinalize", never)))
        waiting.start()
        while not ask("AllReduce", a, a, 100, 7, 0, never, own):
            pass  # until the thread has begun to finalize
        do("CommAbort", never)
        waiting.join()
        check("cuStreamSynchronize", own)
        assert len(ended) == 1
    total = allocate(4)
    do("AllReduce", total, total, 1, 3, 2, comm, own)  # the others wait here, not for `never`
    check("cuStreamSynchronize", own)


def ends_after_a_fault(comm: Any) -> None:
    """Destroying and finalizing come back when the work in front of a collective has failed."""
    a, own, go = allocate(4096), stream(), threading.Event()
    hold = c.CFUNCTYPE(None, c.c_void_p)(lambda user: go.wait(60) and None)
    second = communicator("second")
    check("cuLaunchHostFunc", own, hold, None)
    nowhere, count, by = driver.Address(16), c.c_uint32(1), c.c_float(1)
    assert driver.launch(driver.function(), nowhere, count, by, stream=own) == 0
    do("AllReduce", a, a, 100, 7, 0, comm, own)
    do("AllReduce", a, a, 100, 7, 0, second, own)
    meet("issued")  # before, one's end could be told to another in the call
    go.set()
    ask("CommFinalize", comm)  # not always an error: another rank's end may be told first
    ask("CommDestroy", second)
    assert driver.call("cuStreamSynchronize", own) != 0


def too_many_in_a_group(comm: Any) -> None:
    """A group that is too large breaks its communicator, for the others too, and no other group."""
    a, own = allocate(4096), stream()

    def every_one() -> None:
        for _ in range(65537):
            do("AllReduce", a, a, 1, 7, 0, comm, own)

    if RANK == 0:
        group(every_one)
    else:
        do("AllReduce", a, a, 1, 7, 0, comm, own)
    assert settle_failed(comm) == INVALID_ARGUMENT
    if RANK == 0:
        driver.call("cuStreamSynchronize", own)  # tells what was wrong with the group, once
        alone = communicator("alone", [0])
        do("AllReduce", a, a, 1, 7, 0, alone, own)
        check("cuStreamSynchronize", own)
        assert settle(alone) == SUCCESS


CASES = {
    f.__name__: f
    for f in (
        every_reduction,
        every_movement,
        large_operations,
        groups,
        creations,
        streams,
        threads,
        small_things,
        disagreement,
        abort,
        abort_while_waiting,
        ends_after_a_fault,
        too_many_in_a_group,
    )
}


FAILING = ("disagreement", "abort", "abort_while_waiting", "ends_after_a_fault", "too_many_in_a_group")


def main() -> None:
    """Runs the cases that are named; each has a communicator of all ranks."""
    start()
    for name in sys.argv[2:]:
        comm = communicator(f"world-{name}")
        CASES[name](comm)
        if name not in FAILING:
            do("CommDestroy", comm)
        print(f"{name} passed", flush=True)


if __name__ == "__main__":
    main()
