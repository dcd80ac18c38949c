"""Random multi-rank programs for the interpreter: matched among ranks, free of races, one right answer each.

A program is drawn as a sequence that all ranks share; each rank's own is its projection.  A buffer is used in
one stream at a time; where the next use is in another, an event orders the two.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

WORDS = (1, 33, 1000, 40_000)
NAMES = ("p", "q", "r", "s")
SIZE = {
    "int8": 1,
    "uint8": 1,
    "float16": 2,
    "bfloat16": 2,
    "int32": 4,
    "uint32": 4,
    "float32": 4,
    "float64": 8,
    "int64": 8,
    "uint64": 8,
}
EXACT = ("int8", "uint8", "int32", "uint32", "int64", "uint64")
Steps = list[list[Any]]


@dataclass
class Drawing:
    """What is known while a program is drawn; the same on all ranks."""

    world: int
    communicators: dict[str, list[int]]
    ranks: list[Steps] = field(default_factory=list)
    words: dict[str, int] = field(default_factory=dict)
    used: dict[str, int] = field(default_factory=dict)
    """Per buffer: the stream of its last use."""

    def everyone(self, *step: Any) -> None:
        for steps in self.ranks:
            steps.append(list(step))

    def use(self, stream: int, *names: str) -> None:
        """Orders `stream` after the buffers' last uses."""
        for before in sorted({self.used[name] for name in names} - {stream}):
            self.everyone("order", before, stream)
        for name in names:
            self.used[name] = stream


def _local(draw: st.DrawFn, d: Drawing) -> None:
    """Work of each rank by itself; factors differ among ranks."""
    kind = draw(
        st.sampled_from(
            ["kernel", "kernel", "graph", "copy", "set", "fill", "again", "call_host", "read", "wait"]
        )
    )
    stream = draw(st.integers(0, 2))
    to, source = draw(st.permutations(NAMES))[:2]
    if kind == "fill":
        d.everyone("synchronize", None)
        d.everyone("fill", to, draw(st.integers(0, 99)), True)
    elif kind == "again":
        words = draw(st.sampled_from(WORDS))
        d.everyone("synchronize", None)
        d.everyone("free", to)
        d.everyone("alloc", to, words)
        d.everyone("fill", to, draw(st.integers(0, 99)), False)
        d.words[to] = words
    elif kind == "read":
        d.everyone("synchronize", d.used[to])
        d.everyone("read", to)
    elif kind == "wait":
        d.everyone(draw(st.sampled_from(["synchronize", "poll"])), stream)
    elif kind == "call_host":
        d.everyone("call_host", stream)
    elif kind == "set":
        d.use(stream, to)
        d.everyone("set", to, stream, draw(st.integers(0, 2**32 - 1)))
    elif kind == "copy":
        d.use(stream, to, source)
        d.everyone("copy", to, source, stream)
    else:
        stream = max(1, stream) if kind == "graph" else stream
        more = [draw(st.integers(1, 3))] if kind == "graph" else []
        d.use(stream, to, source)
        for rank, steps in enumerate(d.ranks):
            steps.append([kind, to, source, stream, draw(st.integers(1, 9)) + rank, *more])


def _collective(draw: st.DrawFn, d: Drawing) -> None:
    name = draw(st.sampled_from(sorted(d.communicators)))
    members, stream = d.communicators[name], draw(st.integers(0, 2))
    kind = draw(
        st.sampled_from(
            [
                "AllReduce",
                "AllReduce",
                "Reduce",
                "Broadcast",
                "AllGather",
                "ReduceScatter",
                "AlltoAll",
                "Gather",
                "Scatter",
                "pair",
                "ring",
            ]
        )
    )
    send, receive = draw(st.permutations(NAMES))[:2]
    dtype = draw(st.sampled_from(EXACT))
    if kind in ("AllReduce", "Reduce", "ReduceScatter") and draw(st.booleans()):
        dtype = draw(st.sampled_from(["float32", "float16", "bfloat16", "float64"]))
        d.everyone("synchronize", None)  # numbers, not any bits: NaN payloads have no right answer
        d.everyone("fill", send, draw(st.integers(0, 99)), True)
    operation = draw(
        st.sampled_from(["sum", "max", "min", "prod"] + (["avg"] if dtype.startswith(("f", "b")) else []))
    )
    blocks = len(members)
    room = min(d.words[send], d.words[receive]) * 4 // SIZE[dtype]
    whole = kind in ("AllReduce", "Reduce", "Broadcast", "pair", "ring")
    count = room if whole else room // blocks
    root = draw(st.integers(0, blocks - 1))
    if kind == "AllReduce" and draw(st.booleans()):
        receive = send
    d.use(stream, send, receive)
    buffers = {"send": send, "receive": receive}
    if kind == "pair":  # 0 sends to the last
        one = {"count": count}
        if blocks > 1:
            d.ranks[members[0]].append(
                ["collective", name, "Send", dtype, {"send": send, "root": blocks - 1, **one}, stream]
            )
            d.ranks[members[-1]].append(
                ["collective", name, "Recv", dtype, {"receive": receive, "root": 0, **one}, stream]
            )
    elif kind == "ring":
        for at, rank in enumerate(members):
            sending = {"send": send, "count": count, "root": (at + 1) % blocks}
            receiving = {"receive": receive, "count": count, "root": (at - 1) % blocks}
            pair = [
                ["collective", name, "Send", dtype, sending, stream],
                ["collective", name, "Recv", dtype, receiving, stream],
            ]
            d.ranks[rank].append(["group", pair])
    else:
        more = {**buffers, "count": count, "operation": operation, "root": root}
        for rank in members:
            d.ranks[rank].append(["collective", name, kind, dtype, more, stream])


def _two_threads(draw: st.DrawFn, d: Drawing) -> None:
    """Two communicators used from two threads at once, with buffers of their own and no order between."""
    d.everyone("synchronize", None)
    count = 4 * min(d.words.values())
    for name, buffer, stream in (("world", NAMES[0], 1), ("other", NAMES[1], 2)):
        more = {"send": buffer, "receive": buffer, "count": count, "operation": "sum"}
        step = ["collective", name, "AllReduce", "uint8", more, stream]
        late = draw(st.integers(0, d.world - 1))
        for rank, steps in enumerate(d.ranks):
            waits = [["sleep", 0.003]] if rank == late else []
            steps.append(["thread", [*waits, step, ["synchronize", stream]]])
    d.everyone("join")
    for name in NAMES:
        d.used[name] = 0


@st.composite
def programs(draw: st.DrawFn, world: int) -> dict[str, Any]:
    """One program for `world` ranks, as the interpreter reads it."""
    everyone = list(range(world))
    part = draw(st.sampled_from([everyone[:2], everyone[-2:], everyone[::-1]]))
    d = Drawing(world, {"world": everyone, "other": everyone[::-1], "part": part}, [[] for _ in everyone])
    for name in NAMES:
        d.words[name] = draw(st.sampled_from(WORDS))
        d.used[name] = 0
        d.everyone("alloc", name, d.words[name])
        d.everyone("fill", name, draw(st.integers(0, 99)), draw(st.booleans()))
    for number in range(draw(st.integers(3, 12))):
        what = draw(st.integers(0, 9))
        if what < 4:
            _local(draw, d)
        elif what < 8:
            _collective(draw, d)
        elif what == 8:
            _two_threads(draw, d)
        else:
            d.everyone("meet", str(number))
    return {"communicators": d.communicators, "ranks": d.ranks}
