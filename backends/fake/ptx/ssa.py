"""Cuts a kernel at its barriers and brings it into SSA form.

Cutting (fission): a barrier ends a block without successor; the block after it becomes a successor of a
dispatch block at the entry.  A warp runs from the dispatch to the next barrier or to the end, and the frame
around it (frame.py) runs all warps of the block to their barriers before any goes on.  What is live across a
barrier is spilled there and reloaded after it.  Loops around a barrier are no loops any more for the passes
after this one.

SSA is what makes the divergence analysis precise.  Values defined in a loop and used outside of it get a phi
at the loop's exit: lanes leave a divergent loop one by one, and what they took along is collected there.
"""

from __future__ import annotations

from .errors import unsupported
from .flow import Barrier, Block, Flow, Ins, Phi, Terminator
from .graph import Graph, add_latches, bits, liveness, make_reducible, renumber_entry
from .syntax import Imm


def barrier_kind(ins: Ins, threads: int) -> str | None:
    """`cut` for barriers of the whole block, `fiber` for others, None for what is no block barrier."""
    if ins.op not in ("bar", "barrier"):
        return None
    mods = [m for m in ins.mods if m not in ("cta", "aligned")]
    if mods and mods[0] == "warp":
        return None
    if ins.op == "barrier" and "cluster" in mods:
        raise unsupported(f"`{ins.name}`", ins.line)
    if mods == ["sync"]:
        count = ins.src[1] if len(ins.src) == 2 else None
        if isinstance(ins.src[0], Imm) and (
            count is None or (isinstance(count, Imm) and count.value == threads)
        ):
            return "cut"
        return "fiber"
    if mods[:1] == ["red"] and len(mods) == 3 and mods[1] in ("popc", "and", "or"):
        return "cut" if len(ins.src) == 2 and isinstance(ins.src[0], Imm) else "fiber"
    if mods == ["arrive"]:
        return "fiber"
    raise unsupported(f"`{ins.name}`", ins.line)


def needs_fibers(flow: Flow, threads: int) -> bool:
    return any(barrier_kind(ins, threads) == "fiber" for block in flow.blocks for ins in block.ins)


def cut_barriers(flow: Flow) -> None:
    """Splits at barriers; afterwards block 0 is a dispatch if there were any."""
    for block in list(flow.blocks):
        current = block
        pending = current.ins
        while True:
            at = next((i for i, ins in enumerate(pending) if barrier_kind(ins, -1) is not None), -1)
            if at < 0:
                current.ins = pending
                break
            ins, rest = pending[at], pending[at + 1 :]
            resume = flow.new_block()
            resume.term = current.term
            current.ins = pending[:at]
            number = len(flow.barriers)
            reduction = None
            if "red" in ins.mods:
                reduction = next(m for m in ins.mods if m in ("popc", "and", "or"))
                current.ins.append(Ins("$arrive", (reduction,), [], [ins.src[-1]], ins.line, width=number))
                rest = [Ins("$reduced", (reduction,), ins.dst, [], ins.line, width=number), *rest]
            current.term = Terminator("barrier", [], line=ins.line, barrier=number)
            flow.barriers.append(Barrier(current.index, resume.index, reduction))
            current, pending = resume, rest
    if not flow.barriers:
        return
    live = liveness(flow)
    for number, barrier in enumerate(flow.barriers):
        barrier.live = bits(live[barrier.resume])
        flow.blocks[barrier.block].ins.append(Ins("$spill", (), [], list(barrier.live), 0, width=number))
        head = [Ins("$reload", (), [v], [], 0, width=number) for v in barrier.live]
        flow.blocks[barrier.resume].ins[:0] = head
    first = Block(len(flow.blocks))
    flow.blocks.append(first)
    renumber_entry(flow, first)
    first.term = Terminator("dispatch", [first.term.targets[0], *(b.resume for b in flow.barriers)])
    flow.link()


class Renamer:
    def __init__(self, flow: Flow, graph: Graph) -> None:
        self.flow = flow
        self.graph = graph
        self.names = list(flow.types)
        self.types: list[str] = []
        self.stacks: list[list[int]] = [[] for _ in flow.types]

    def place_phis(self) -> None:
        flow, graph = self.flow, self.graph
        live = liveness(flow)
        sites: list[list[int]] = [[] for _ in flow.types]
        for block in flow.blocks:
            for v in dict.fromkeys(d for ins in block.ins for d in ins.dst if d >= 0):
                sites[v].append(block.index)
        frontier = self.frontiers()
        loop_defs = (
            [
                (loop, sum(1 << v for v, where in enumerate(sites) if any(b in loop.blocks for b in where)))
                for loop in graph.loops
            ]
            if graph.loops
            else []
        )
        wanted: list[set[int]] = [set() for _ in flow.blocks]
        extra: dict[int, list[int]] = {}
        for loop, defined in loop_defs:
            for _, target in loop.exits:
                for v in bits(live[target] & defined):
                    extra.setdefault(v, []).append(target)
        for v, where in enumerate(sites):
            closing = extra.get(v, [])
            if len(where) + len(closing) < 2 and not (where and where[0] != 0 and frontier[where[0]]):
                continue
            queue = [*where, *closing]
            for b in closing:
                wanted[b].add(v)
            done = set(queue)
            while queue:
                b = queue.pop()
                for f in frontier[b]:
                    if v not in wanted[f] and live[f] >> v & 1:
                        wanted[f].add(v)
                        if f not in done:
                            done.add(f)
                            queue.append(f)
        for block in flow.blocks:
            block.phis = [Phi(-1, v) for v in sorted(wanted[block.index])]

    def frontiers(self) -> list[set[int]]:
        graph = self.graph
        frontier: list[set[int]] = [set() for _ in self.flow.blocks]
        for block in self.flow.blocks:
            if len(block.preds) >= 2:
                for p in block.preds:
                    runner = p
                    while runner != graph.idom[block.index]:
                        frontier[runner].add(block.index)
                        runner = graph.idom[runner]
        return frontier

    def fresh(self, variable: int) -> int:
        self.types.append(self.names[variable])
        return len(self.types) - 1

    def rename(self) -> None:
        children: list[list[int]] = [[] for _ in self.flow.blocks]
        for b in self.graph.rpo[1:]:
            children[self.graph.idom[b]].append(b)
        stack: list[tuple[int, list[int] | None]] = [(0, None)]
        while stack:
            b, pushed = stack.pop()
            if pushed is not None:
                for v in pushed:
                    self.stacks[v].pop()
                continue
            pushed = self.block(self.flow.blocks[b])
            stack.append((b, pushed))
            stack += [(c, None) for c in reversed(children[b])]

    def current(self, variable: int) -> int:
        stack = self.stacks[variable]
        if not stack:  # read before any write: an undefined value
            value = self.fresh(variable)
            self.flow.blocks[0].ins.insert(0, Ins("$undefined", (), [value], [], 0))
            self.stacks[variable].insert(0, value)
            return value
        return stack[-1]

    def block(self, block: Block) -> list[int]:
        pushed: list[int] = []
        for phi in block.phis:
            phi.dst = self.fresh(phi.variable)
            self.stacks[phi.variable].append(phi.dst)
            pushed.append(phi.variable)
        for ins in list(block.ins):
            ins.src = [self.current(s) if isinstance(s, int) else s for s in ins.src]
            for i, d in enumerate(ins.dst):
                if d >= 0:
                    value = self.fresh(d)
                    self.stacks[d].append(value)
                    pushed.append(d)
                    ins.dst[i] = value
            if ins.op == "$spill":
                self.flow.barriers[ins.width].spilled = [s for s in ins.src if isinstance(s, int)]
        if isinstance(block.term.value, int) and block.term.value >= 0:
            block.term.value = self.current(block.term.value)
        for target in dict.fromkeys(block.term.targets):
            for phi in self.flow.blocks[target].phis:
                phi.incoming[block.index] = self.current(phi.variable)
        return pushed


def to_ssa(flow: Flow) -> Graph:
    """SSA form in place; returns the graph."""
    make_reducible(flow)
    add_latches(flow)
    graph = Graph(flow)
    renamer = Renamer(flow, graph)
    renamer.place_phis()
    renamer.rename()
    flow.types = renamer.types
    return graph
