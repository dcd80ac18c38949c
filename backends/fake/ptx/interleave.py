"""Lets the warps of a block take turns within a loop whose loads they share.

A block's warps run one after the other, each through its whole loop.  Where all of them walk through the same
rows of a matrix, each fetches these rows anew from the far caches.  So a yield is put into such a loop: after
a few rows the other warps get their turn, while the rows are near.  The yield is a barrier as frame.py knows
it (all warps that are not done run to it before any goes on).  A kernel without barriers, atomics and ordered
accesses means the same whatever the order of its warps, so it needs no proof that they turn equally often.
What a warp holds must go to memory and back at each yield: loops that hold much are left alone.

What is chosen here is a guess about profit only; a yield that would make lanes of a warp wait at different
places is taken back (compiler.py).
"""

from __future__ import annotations

from .flow import Flow, Ins, Terminator
from .graph import Graph, Loop, liveness, make_reducible
from .shapes import Layout
from .syntax import Imm, Special

ROWS = 8  # between yields: the ways of a first-level cache, as rows a power of two apart share its sets
HELD = 4  # values that differ between lanes; with more, spilling them costs more than near rows gain
# Operations that others can see, or that order what they see.
ORDERED = {
    "atom",
    "red",
    "bar",
    "barrier",
    "membar",
    "fence",
    "cp",
    "trap",
    "nanosleep",
    "mma",
    "ldmatrix",
    "stmatrix",
    "$vprintf",
    "$__assertfail",
}
ORDERINGS = {"volatile", "relaxed", "acquire", "release", "mmio"}


def unordered(flow: Flow) -> bool:
    return not any(
        ins.op in ORDERED or (ins.op in ("ld", "st") and ORDERINGS & set(ins.mods))
        for block in flow.blocks
        for ins in block.ins
    )


def depends(layout: Layout, name: str) -> tuple[bool, bool]:
    """Whether a special register differs between the warps of a block, and between the lanes of a warp."""
    if not name.startswith("tid."):
        return name.startswith("warpid"), name.startswith(("laneid", "lanemask"))
    axis = "xyz".find(name[-1])
    if axis < 0 or layout.block[axis] == 1:
        return False, False
    below = 1
    for size in layout.block[:axis]:
        below *= size
    return layout.width % (below * layout.block[axis]) != 0, below % layout.width != 0


def dependent(flow: Flow, layout: Layout) -> tuple[int, int]:
    """The variables that may differ between warps, and between lanes, as bit sets (data flow only)."""
    sets = [0, 0]
    changed = True
    while changed:
        changed = False
        for block in flow.blocks:
            for ins in block.ins:
                for k in range(2):
                    hit = any(
                        sets[k] >> s & 1 if isinstance(s, int) else depends(layout, s.name)[k]
                        for s in ins.src
                        if isinstance(s, (int, Special))
                    )
                    for d in ins.dst if hit else ():
                        if d >= 0 and not sets[k] >> d & 1:
                            sets[k] |= 1 << d
                            changed = True
    return sets[0], sets[1]


def shared_loads(flow: Flow, loop: Loop, warps: int, lanes: int) -> int:
    """Loads of a loop that walk through memory, lane beside lane, in the same way in all warps."""
    assigned = 0
    for b in loop.blocks:
        for ins in flow.blocks[b].ins:
            for d in ins.dst:
                if d >= 0:
                    assigned |= 1 << d
    wanted = assigned & lanes & ~warps
    return sum(
        ins.op == "ld" and "global" in ins.mods and isinstance(ins.src[0], int) and wanted >> ins.src[0] & 1
        for b in loop.blocks
        for ins in flow.blocks[b].ins
    )


def insert(flow: Flow, loop: Loop, every: int) -> None:
    """A barrier, every so many turns of the loop."""
    line = flow.blocks[loop.header].term.line
    turn, pause = flow.new_block(), flow.new_block()
    for b in loop.blocks:
        term = flow.blocks[b].term
        term.targets = [turn.index if t == loop.header else t for t in term.targets]
    if every == 1:
        turn.term = Terminator("br", [pause.index], line=line)
    else:
        count, rest, due = flow.new_value("u32"), flow.new_value("u32"), flow.new_value("pred")
        flow.blocks[0].ins.insert(0, Ins("$move", ("u32",), [count], [Imm(0)], line))
        turn.ins = [
            Ins("add", ("u32",), [count], [count, Imm(1)], line),
            Ins("and", ("b32",), [rest], [count, Imm(every - 1)], line),
            Ins("setp", ("eq", "u32"), [due], [rest, Imm(0)], line),
        ]
        turn.term = Terminator("cond", [pause.index, loop.header], due, line=line)
    pause.ins = [Ins("bar", ("sync",), [], [Imm(0)], line)]
    pause.term = Terminator("br", [loop.header], line=line)
    flow.link()


def interleave(flow: Flow, layout: Layout) -> bool:
    """Puts a yield into the innermost loop that gains most by it; whether there is one."""
    if layout.warps < 2 or not unordered(flow):
        return False
    make_reducible(flow)
    loops = Graph(flow).loops
    inner = [a for a in loops if not any(b.parent is a for b in loops)]
    if not inner:
        return False
    warps, lanes = dependent(flow, layout)
    rows, best = max(((shared_loads(flow, a, warps, lanes), a) for a in inner), key=lambda pair: pair[0])
    if rows == 0 or (liveness(flow)[best.header] & lanes).bit_count() > HELD:
        return False
    every = 1
    while every * rows < ROWS:
        every *= 2
    insert(flow, best, every)
    return True
