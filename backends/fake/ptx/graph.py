"""Graph algorithms on the flat form: order, dominators, post-dominators, loops, liveness.

Sets of blocks and of values are Python ints used as bit sets: the fastest sets that Python has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from .errors import unsupported
from .flow import Block, Flow, Ins, Terminator
from .syntax import Imm


def reverse_postorder(succs: Sequence[Sequence[int]], entry: int) -> list[int]:
    seen = {entry}
    order: list[int] = []
    stack = [(entry, iter(succs[entry]))]
    while stack:
        node, rest = stack[-1]
        for target in rest:
            if target not in seen:
                seen.add(target)
                stack.append((target, iter(succs[target])))
                break
        else:
            order.append(node)
            stack.pop()
    order.reverse()
    return order


def dominators(
    succs: Sequence[Sequence[int]], preds: Sequence[Sequence[int]], entry: int
) -> tuple[list[int], list[int]]:
    """Immediate dominators (Cooper, Harvey, Kennedy); -1 where unreachable, entry for the entry.  Also the
    order.
    """
    order = reverse_postorder(succs, entry)
    position = {node: i for i, node in enumerate(order)}
    idom = [-1] * len(succs)
    idom[entry] = entry
    changed = True
    while changed:
        changed = False
        for node in order[1:]:
            new = -1
            for pred in preds[node]:
                if idom[pred] < 0:
                    continue
                if new < 0:
                    new = pred
                    continue
                a, b = pred, new
                while a != b:
                    while position[a] > position[b]:
                        a = idom[a]
                    while position[b] > position[a]:
                        b = idom[b]
                new = a
            if idom[node] != new:
                idom[node] = new
                changed = True
    return idom, order


@dataclass(slots=True, eq=False)
class Loop:
    header: int
    latch: int
    blocks: set[int]
    parent: Loop | None = None
    depth: int = 1
    divergent: bool = False
    exits: list[tuple[int, int]] = field(default_factory=list)

    def __contains__(self, block: int) -> bool:
        return block in self.blocks


class Graph:
    """The control-flow graph with everything that later passes ask of it.  The virtual exit is `exit`."""

    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        blocks = flow.blocks
        n = len(blocks)
        self.exit = n
        self.succs = [list(dict.fromkeys(b.term.targets)) for b in blocks]
        self.preds = [list(b.preds) for b in blocks]
        self.idom, self.rpo = dominators(self.succs, self.preds, 0)
        self.number = {b: i for i, b in enumerate(self.rpo)}
        self.depth = [0] * n
        for b in self.rpo[1:]:
            self.depth[b] = self.depth[self.idom[b]] + 1
        self.loops = self.find_loops()
        self.ipdom = self.post_dominators()
        self.loop_of: list[Loop | None] = [None] * n
        for loop in self.loops:  # outer first
            for b in loop.blocks:
                self.loop_of[b] = loop

    def dominates(self, a: int, b: int) -> bool:
        while self.depth[b] > self.depth[a]:
            b = self.idom[b]
        return a == b

    def post_dominators(self) -> list[int]:
        """ipdom by block, within an iteration: a latch leads to its loop's exits rather than back to the
        header, so that what comes after a `continue` does not post-dominate it by way of the next
        iteration."""
        n = self.exit
        preds: list[list[int]] = [[] for _ in range(n + 1)]
        succs: list[list[int]] = [[] for _ in range(n + 1)]
        by_header = {loop.header: loop for loop in self.loops}
        for b in range(n):
            targets: list[int] = []
            for t in self.succs[b]:
                loop = by_header.get(t)
                if loop is not None and b in loop.blocks:
                    targets += [target for _, target in loop.exits] or [n]
                else:
                    targets.append(t)
            for t in dict.fromkeys(targets or [n]):
                succs[t].append(b)
                preds[b].append(t)
        return dominators(succs, preds, n)[0]

    def find_loops(self) -> list[Loop]:
        loops: list[Loop] = []
        for h in self.rpo:
            latches = [p for p in self.preds[h] if self.number[p] >= self.number[h]]
            if not latches:
                continue
            blocks = {h}
            stack = list(latches)
            while stack:
                b = stack.pop()
                if b not in blocks:
                    if b == 0 or not self.dominates(h, b):
                        line = self.flow.blocks[h].term.line
                        raise unsupported("an irreducible loop (a jump into the middle of a loop)", line)
                    blocks.add(b)
                    stack += self.preds[b]
            loops.append(Loop(h, latches[0] if len(latches) == 1 else -1, blocks))
        loops.sort(key=lambda loop: -len(loop.blocks))
        for i, loop in enumerate(loops):
            for other in reversed(loops[:i]):
                if loop.header in other.blocks and other is not loop and loop.blocks <= other.blocks:
                    loop.parent = other
                    loop.depth = other.depth + 1
                    break
            loop.exits = [(b, t) for b in loop.blocks for t in self.succs[b] if t not in loop.blocks]
        return loops


def components(nodes: set[int], succs: Sequence[Sequence[int]]) -> list[set[int]]:
    """Strongly connected components of an induced subgraph that hold a cycle (Kosaraju)."""
    order: list[int] = []
    seen: set[int] = set()
    for root in nodes:
        if root in seen:
            continue
        seen.add(root)
        stack = [(root, iter([t for t in succs[root] if t in nodes]))]
        while stack:
            node, rest = stack[-1]
            for t in rest:
                if t not in seen:
                    seen.add(t)
                    stack.append((t, iter([x for x in succs[t] if x in nodes])))
                    break
            else:
                order.append(node)
                stack.pop()
    preds: dict[int, list[int]] = {n: [] for n in nodes}
    for n in nodes:
        for t in succs[n]:
            if t in nodes:
                preds[t].append(n)
    found: list[set[int]] = []
    done: set[int] = set()
    for root in reversed(order):
        if root in done:
            continue
        group, stack2 = {root}, [root]
        done.add(root)
        while stack2:
            for p in preds[stack2.pop()]:
                if p not in done:
                    done.add(p)
                    group.add(p)
                    stack2.append(p)
        if len(group) > 1 or root in succs[root]:
            found.append(group)
    return found


def make_reducible(flow: Flow) -> None:
    """Gives loops with several entries (cutting at barriers makes such) one header: a block that switches on
    a selector, which every edge to one of the entries sets."""
    work = [set(range(len(flow.blocks)))]
    while work:
        nodes = work.pop()
        for group in components(nodes, [b.term.targets for b in flow.blocks]):
            entries = sorted(n for n in group if n == 0 or any(p not in group for p in flow.blocks[n].preds))
            if len(entries) == 1:
                work.append(group - {entries[0]})
                continue
            added = single_entry(flow, entries)
            work.append(group | added)


def single_entry(flow: Flow, entries: list[int]) -> set[int]:
    """Redirects all edges to `entries` through a new block; returns it and those that set its selector."""
    selector = flow.new_value("u32")
    header = flow.new_block()
    header.term = Terminator("switch", list(entries), selector, line=flow.blocks[entries[0]].term.line)
    added = {header.index}
    for block in list(flow.blocks):
        if block.index in added:
            continue
        targets = list(block.term.targets)
        for k, entry in enumerate(entries):
            if entry in targets:
                way = flow.new_block()
                way.ins.append(Ins("$move", ("u32",), [selector], [Imm(k)], block.term.line))
                way.term = Terminator("br", [header.index], line=block.term.line)
                added.add(way.index)
                targets = [way.index if t == entry else t for t in targets]
        block.term.targets = targets
    flow.link()
    return added


def add_latches(flow: Flow) -> None:
    """Gives every loop a single latch of its own: an empty block that only jumps to the header.  An entry
    block that is a loop header gets a predecessor first."""
    if flow.blocks[0].preds:
        first = Block(len(flow.blocks))
        flow.blocks.append(first)
        renumber_entry(flow, first)
    graph = Graph(flow)
    for loop in graph.loops:
        latch = flow.new_block()
        latch.term = Terminator("br", [loop.header], line=flow.blocks[loop.header].term.line)
        for p in graph.preds[loop.header]:
            if p in loop.blocks:
                term = flow.blocks[p].term
                term.targets = [latch.index if t == loop.header else t for t in term.targets]
    flow.link()


def renumber_entry(flow: Flow, first: Block) -> None:
    """Makes `first` block 0, jumping to the old block 0, which takes its number."""
    old = flow.blocks[0]
    number = first.index
    for block in flow.blocks:
        block.term.targets = [number if t == 0 else t for t in block.term.targets]
    for barrier in flow.barriers:
        barrier.block = number if barrier.block == 0 else barrier.block
        barrier.resume = number if barrier.resume == 0 else barrier.resume
    flow.blocks[0], flow.blocks[number] = first, old
    first.index, old.index = 0, number
    first.term = Terminator("br", [number])
    flow.link()


def liveness(flow: Flow) -> list[int]:
    """Values live into each block, as bit sets.  A barrier's successor is where the warp resumes."""
    n = len(flow.blocks)
    uses, defs = [0] * n, [0] * n
    succs: list[list[int]] = []
    resume = {b.block: b.resume for b in flow.barriers}
    for block in flow.blocks:
        use = defined = 0
        for ins in block.ins:
            for s in ins.src:
                if isinstance(s, int) and not defined >> s & 1:
                    use |= 1 << s
            for d in ins.dst:
                if d >= 0:
                    defined |= 1 << d
        value = block.term.value
        if isinstance(value, int) and value >= 0 and not defined >> value & 1:
            use |= 1 << value
        uses[block.index], defs[block.index] = use, defined
        succs.append([resume[block.index]] if block.term.kind == "barrier" else block.term.targets)
    live = list(uses)
    order = reverse_postorder(succs, 0)
    seen = set(order)
    order += [b for b in range(n) if b not in seen]
    order.reverse()
    changed = True
    while changed:
        changed = False
        for b in order:
            out = 0
            for t in succs[b]:
                out |= live[t]
            new = uses[b] | (out & ~defs[b])
            if new != live[b]:
                live[b] = new
                changed = True
    return live


def most_live(flow: Flow) -> int:
    """How many values are live at once, at most."""
    live = liveness(flow)
    most = 0
    for block in flow.blocks:
        now = 0
        for target in block.term.targets:
            now |= live[target]
        count = now.bit_count()
        for ins in reversed(block.ins):
            for d in ins.dst:
                if d >= 0 and now >> d & 1:
                    now ^= 1 << d
                    count -= 1
            for s in ins.src:
                if isinstance(s, int) and s >= 0 and not now >> s & 1:
                    now |= 1 << s
                    count += 1
            most = max(most, count)
    return most


def bits(mask: int) -> list[int]:
    found = []
    while mask:
        low = mask & -mask
        found.append(low.bit_length() - 1)
        mask ^= low
    return found
