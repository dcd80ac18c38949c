"""Which block runs after which, and under which mask: partial linearisation of divergent control flow.

After Moll and Hack, "Partial Control-Flow Linearization" (PLDI 2018): blocks are visited in a topological
order that keeps loops together; a divergent branch goes to the nearest of its targets and defers the others;
a uniform branch stays a branch, unless something nearer was deferred.  A divergent loop is left only at its
latch, when no lane wants another turn; what its lanes exit to is deferred until then.

Masks: a block has its own mask (a variable, fed by the edges into it) unless it is known to run under the
mask of another block: uniform ways lead there, or it is control-equivalent to its dominator.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .errors import PtxError
from .graph import Graph, Loop
from .shapes import Shapes


@dataclass(slots=True, eq=False)
class Step:
    """What follows a block: `ways` maps each successor to the block that control goes to (EXIT: the region's
    end).
    """

    ways: dict[int, int] = field(default_factory=dict)
    next: int = -1  # for divergent ends and for ends without successor
    skip: int = -1  # where to go when no lane is active
    leave: int = -1  # latch of a divergent loop: where to go when it is done


class Linear:
    def __init__(self, graph: Graph, shapes: Shapes) -> None:
        self.graph = graph
        self.shapes = shapes
        self.blocks = graph.flow.blocks
        self.EXIT = len(self.blocks)
        self.order = self.topological()
        self.position = {b: i for i, b in enumerate(self.order)}
        self.position[self.EXIT] = len(self.order)
        self.latch_of = {loop.latch: loop for loop in graph.loops}
        self.deferred: list[set[int]] = [set() for _ in range(self.EXIT + 1)]
        self.deferrals: set[tuple[int, int]] = set()  # (where, what)
        self.steps: dict[int, Step] = {}
        self.linearise()
        self.mask: dict[int, int] = {}
        self.find_masks()

    # ---- order ------------------------------------------------------------------------------------
    def topological(self) -> list[int]:
        """Topological, loops contiguous, depth first, so that what a block dominates follows it closely."""
        graph = self.graph
        members: dict[int, list[int]] = {}
        for b in graph.rpo:
            loop = graph.loop_of[b]
            key = loop.header if loop is not None else -1
            members.setdefault(key, []).append(b)
        children: dict[int, list[Loop]] = {}
        for loop in graph.loops:
            children.setdefault(loop.parent.header if loop.parent else -1, []).append(loop)

        def level(key: int, header: int) -> list[int]:
            inner = children.get(key, [])
            representative = {b: b for b in members.get(key, [])}
            for loop in inner:
                for b in loop.blocks:
                    representative[b] = loop.header
            waiting = dict.fromkeys(representative.values(), 0)
            edges: dict[int, list[int]] = {node: [] for node in waiting}
            for b, node in representative.items():
                for s in graph.succs[b]:
                    target = representative.get(s)
                    if target is not None and target != node and s != header:
                        edges[node].append(target)
                        waiting[target] += 1
            loops = {loop.header: loop for loop in inner}
            result: list[int] = []
            stack = [representative[header]]
            while stack:
                node = stack.pop()
                found = loops.get(node)
                result += level(node, node) if found is not None else [node]
                ready = []
                for target in edges[node]:
                    waiting[target] -= 1
                    if waiting[target] == 0:
                        ready.append(target)
                ready.sort(key=lambda x: -graph.number[x])
                stack += ready
            return result

        return level(-1, 0)

    # ---- linearisation ----------------------------------------------------------------------------
    def divergent(self, b: int) -> bool:
        return b in self.shapes.divergent

    def redirect(self, source: int, target: int) -> int:
        """Where an edge really goes: out of a divergent loop only by way of the latch."""
        loop = self.graph.loop_of[source]
        if loop is not None and source == loop.latch:
            loop = loop.parent
        while loop is not None and target not in loop.blocks:
            if loop.divergent:
                return loop.latch
            loop = loop.parent
        return target

    def nearest(self, targets: set[int]) -> int:
        best = min(targets | {self.EXIT}, key=lambda t: self.position[t])
        rest = targets - {best}
        self.deferred[best] |= rest
        for t in rest:
            self.deferrals.add((best, t))
        return best

    def linearise(self) -> None:
        for b in self.order:
            block = self.blocks[b]
            pending = set(self.deferred[b])
            step = Step()
            self.steps[b] = step
            loop = self.latch_of.get(b)
            if loop is not None:
                if not pending <= self.deferred[loop.header] | {b}:
                    raise PtxError("control flow too entangled to linearise", block.term.line)
                if loop.divergent:
                    exits = {self.redirect(b, t) for _, t in loop.exits}
                    step.leave = self.nearest(pending | exits)
                step.ways[loop.header] = loop.header
                continue
            step.skip = self.nearest(pending)
            targets = {s: self.redirect(b, s) for s in self.graph.succs[b]}
            if not targets:
                step.next = self.nearest(pending)
            elif self.divergent(b):
                step.next = self.nearest(pending | set(targets.values()))
            else:
                for s, t in targets.items():
                    step.ways[s] = self.nearest(pending | {t})

    # ---- masks ------------------------------------------------------------------------------------
    def equivalent_to(self, b: int) -> int:
        """The dominator that runs with exactly the same lanes, or -1."""
        graph = self.graph
        d = graph.idom[b]
        if b == 0 or graph.loop_of[d] is not graph.loop_of[b]:
            return -1
        walk = graph.ipdom[d]
        while walk != graph.exit:
            if walk == b:
                return d
            walk = graph.ipdom[walk]
        return -1

    def find_masks(self) -> None:
        forced: set[int] = set()
        if self.shapes.dispatch_diverges:
            forced |= set(self.graph.succs[0])
        for loop in self.graph.loops:
            if loop.divergent:
                forced |= {loop.header, loop.latch}
        where: dict[int, list[int]] = {}
        for at, what in self.deferrals:
            where.setdefault(what, []).append(at)
        for b, places in where.items():
            if b == self.EXIT or b in self.latch_of:
                continue
            d = self.equivalent_to(b)
            if d < 0 or not all(at == self.EXIT or self.graph.dominates(d, at) for at in places):
                forced.add(b)
        self.solve_masks(forced)

    def solve_masks(self, forced: set[int]) -> None:
        mask: dict[int, int] = {0: 0}
        changed = True
        while changed:
            changed = False
            for b in self.order:
                new = b if b in forced else self.mask_of(b, mask)
                if new is not None and mask.get(b) != new:
                    if mask.get(b) == b:
                        continue
                    mask[b] = new
                    changed = True
        self.mask = mask

    def mask_of(self, b: int, mask: dict[int, int]) -> int | None:
        if b == 0:
            return 0
        if b in self.latch_of:  # of a uniform loop: its lanes turn together
            return mask.get(self.latch_of[b].header)
        d = self.equivalent_to(b)
        if d >= 0:
            return mask.get(d)
        found: int | None = None
        for p in self.graph.preds[b]:
            if p in self.latch_of and self.latch_of[p].header == b:
                continue
            if self.divergent(p) or self.redirect(p, b) != b:
                return b
            other = mask.get(p)
            if other is None:
                continue
            if found is not None and found != other:
                return b
            found = other
        return found

    def owns(self, b: int) -> bool:
        return self.mask.get(b) == b and b != 0

    def reset_site(self, b: int) -> int:
        """The block at whose start the variables that edges into b feed are cleared."""
        graph = self.graph
        r = graph.idom[b]
        while True:
            loop = graph.loop_of[r]
            outermost: Loop | None = None
            while loop is not None:
                if b not in loop.blocks:
                    outermost = loop
                loop = loop.parent
            if outermost is None:
                return r
            r = graph.idom[outermost.header]
