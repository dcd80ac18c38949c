"""Divergence analysis: what is the same in all lanes, what differs by a constant from lane to lane, what
varies.

A value's shape is its stride from lane to lane (0: uniform), or VARYING.  Uniform and linear values are kept
as scalars (the value of lane 0), which is what makes addresses contiguous and loops scalar.  The analysis is
optimistic: everything starts unknown and only falls.

Linear values are exact modulo 2^bits.  Where one is widened, a wrap within the warp would make it non-linear:
the range says that it cannot happen, or the emitter guards (see emit_alu.widen), or the value varies.
"""

from __future__ import annotations

from dataclasses import dataclass

from .flow import DynamicShared, Flow, GlobalAddress, Ins, ParamAddress, Source
from .graph import Graph, Loop
from .shape_rules import LINEAR, UNIFORM, VARIES, VARYING, Fact, constant, normal, trailing_zeros
from .syntax import FloatImm, Imm, Special


@dataclass(slots=True, frozen=True)
class Layout:
    """How threads map to lanes: thread t of the block is lane t % width of warp t // width."""

    width: int
    block: tuple[int, int, int]

    @property
    def threads(self) -> int:
        return self.block[0] * self.block[1] * self.block[2]

    @property
    def warps(self) -> int:
        return -(-self.threads // self.width)

    @property
    def full(self) -> bool:
        return self.threads % self.width == 0

    def tid(self, axis: int) -> Fact:
        """The shape of %tid.<axis>."""
        size = self.block[axis]
        below = above = 1
        for i in range(3):
            if i < axis:
                below *= self.block[i]
            elif i > axis:
                above *= self.block[i]
        if size == 1:
            return constant(0)
        if below == 1 and (above == 1 or size % self.width == 0):
            return Fact(1, trailing_zeros(self.width), size - 1)
        if below % self.width == 0:
            return Fact(0, 0, size - 1)
        return Fact(VARYING, 0, size - 1)


class Shapes:
    """The analysis of one kernel for one layout."""

    def __init__(self, flow: Flow, graph: Graph, layout: Layout) -> None:
        self.flow = flow
        self.graph = graph
        self.layout = layout
        self.facts: list[Fact | None] = [None] * len(flow.types)
        self.divergent: set[int] = set()  # blocks whose branch diverges
        self.joins: set[int] = set()  # blocks where lanes meet that came along different ways
        self.dispatch_diverges = False
        self.undefined: set[int] = set()  # read before they are written, on every way
        self.def_block: dict[int, int] = {}
        for block in flow.blocks:
            for phi in block.phis:
                self.def_block[phi.dst] = block.index
            for ins in block.ins:
                for d in ins.dst:
                    self.def_block[d] = block.index
                if ins.op == "$undefined":
                    self.undefined |= set(ins.dst)

    # ---- the fixed point --------------------------------------------------------------------------
    def run(self) -> None:
        self.solve()
        if self.flow.barriers and self.barrier_diverges():
            self.dispatch_diverges = True
            self.mark_divergent(0)
            self.solve()

    def solve(self) -> None:
        graph, blocks = self.graph, self.flow.blocks
        while True:
            changed = True
            while changed:
                changed = False
                for b in graph.rpo:
                    block = blocks[b]
                    for phi in block.phis:
                        changed |= self.update(phi.dst, self.phi(b, phi.incoming))
                    for ins in block.ins:
                        if ins.dst:
                            changed |= self.instruction(ins)
            grown = False
            for b in graph.rpo:
                for phi in blocks[b].phis:
                    if self.facts[phi.dst] is None and phi.dst not in self.undefined:
                        self.undefined.add(phi.dst)
                        grown = True
                if b not in self.divergent and blocks[b].term.kind in ("cond", "switch"):
                    fact = self.of(blocks[b].term.value)
                    if fact is not None and fact.stride != 0:
                        self.mark_divergent(b)
                        grown = True
            if not grown:
                return

    def update(self, value: int, new: Fact | None) -> bool:
        if value < 0 or new is None:
            return False
        old = self.facts[value]
        if old == new:
            return False
        if old is not None:
            umax = new.umax if new.umax == old.umax else -1
            stride = new.stride if new.stride == old.stride else VARYING
            new = Fact(
                stride,
                min(new.tz, old.tz),
                umax,
                new.const if new.const == old.const else None,
                new.risky or old.risky,
            )
            if new == old:
                return False
        self.facts[value] = new
        return True

    def phi(self, block: int, incoming: dict[int, int]) -> Fact | None:
        if len(set(incoming.values())) > 1 and block in self.joins:
            return VARIES
        result: Fact | None = None
        for pred, value in incoming.items():
            fact = self.facts[value]
            if fact is None:
                continue
            loop = self.graph.loop_of[pred]
            while loop is not None and block not in loop.blocks:
                if loop.divergent and self.def_block.get(value) in loop.blocks:
                    return VARIES
                loop = loop.parent
            if result is None:
                result = fact
            else:
                result = Fact(
                    fact.stride if fact.stride == result.stride else VARYING,
                    min(fact.tz, result.tz),
                    max(fact.umax, result.umax) if fact.umax >= 0 and result.umax >= 0 else -1,
                    fact.const if fact.const == result.const else None,
                    fact.risky or result.risky,
                )
        return result

    # ---- control divergence -----------------------------------------------------------------------
    def mark_divergent(self, branch: int) -> None:
        self.divergent.add(branch)
        self.joins |= self.find_joins(branch)
        loop = self.graph.loop_of[branch]
        while loop is not None:
            if not loop.divergent and self.exits_within(branch, loop):
                loop.divergent = True
                for _, target in loop.exits:  # lanes arrive there from several iterations
                    if len(self.graph.preds[target]) > 1:
                        self.joins.add(target)
            loop = loop.parent

    def find_joins(self, branch: int) -> set[int]:
        """Blocks where two disjoint paths from the branch meet (labels go down in reverse postorder)."""
        graph = self.graph
        label: dict[int, int] = {}
        joins: set[int] = set()
        pending: set[int] = set()
        for s in graph.succs[branch]:
            label[s] = s
            pending.add(s)
        while pending:
            b = min(pending, key=lambda x: graph.number[x])
            pending.discard(b)
            if b == branch:
                continue
            for s in graph.succs[b]:
                known = label.get(s)
                if known is None:
                    label[s] = label[b]
                    pending.add(s)
                elif known != label[b] and known != s:
                    label[s] = s
                    joins.add(s)
                    pending.add(s)
                elif known != label[b] and known == s and s not in joins:
                    joins.add(s)
        return joins

    def region(self, branch: int, loop: Loop | None) -> set[int]:
        """Blocks between a branch and its post-dominator, not crossing the header of `loop`."""
        graph = self.graph
        stop = graph.ipdom[branch]
        seen: set[int] = set()
        stack = list(graph.succs[branch])
        while stack:
            b = stack.pop()
            if b == stop or b in seen or (loop is not None and (b == loop.header or b not in loop.blocks)):
                continue
            seen.add(b)
            stack += graph.succs[b]
        return seen

    def exits_within(self, branch: int, loop: Loop) -> bool:
        inner = self.region(branch, loop) | {branch}
        return any(b in inner for b, _ in loop.exits)

    def barrier_diverges(self) -> bool:
        """Whether lanes of one warp can wait at different barriers, or at one while others do not."""
        graph = self.graph
        waiting = {b.block for b in self.flow.barriers}
        for branch in self.divergent:
            region = self.region(branch, None)
            if not region & waiting:
                continue
            if graph.ipdom[branch] != graph.exit:
                return True
            sides = [self.reach(s) & waiting for s in graph.succs[branch]]
            if sum(1 for side in sides if side) > 1:
                return True
        return False

    def reach(self, start: int) -> set[int]:
        seen = {start}
        stack = [start]
        while stack:
            for s in self.graph.succs[stack.pop()]:
                if s not in seen:
                    seen.add(s)
                    stack.append(s)
        return seen

    # ---- values -----------------------------------------------------------------------------------
    def of(self, source: Source) -> Fact | None:
        if isinstance(source, int):
            return self.facts[source] if source >= 0 else UNIFORM
        if isinstance(source, Imm):
            return constant(source.value)
        if isinstance(source, Special):
            return self.special(source.name)
        if isinstance(source, (FloatImm, GlobalAddress, ParamAddress)):
            return UNIFORM
        if isinstance(source, DynamicShared):
            return Fact(0, 4, -1)
        return UNIFORM

    def special(self, name: str) -> Fact:
        axis = "xyz".find(name[-1]) if "." in name else -1
        if name.startswith("tid."):
            return self.layout.tid(axis) if axis >= 0 else UNIFORM
        if name.startswith("ntid."):
            return constant(self.layout.block[axis] if axis >= 0 else 1)
        if name == "laneid":
            return Fact(1, 5, 31)
        if name.startswith("lanemask"):
            return VARIES
        if name.startswith("ctaid"):
            return Fact(0, 0, -1)
        return UNIFORM

    def shape(self, source: Source) -> int | None:
        """The stride; undefined values are uniform."""
        fact = self.of(source)
        return 0 if fact is None else fact.stride

    def instruction(self, ins: Ins) -> bool:
        facts: list[Fact | None] = [self.of(s) for s in ins.src]
        if self.undefined:
            facts = [
                UNIFORM if f is None and s in self.undefined else f
                for s, f in zip(ins.src, facts, strict=False)
            ]
        special = SPECIAL.get(ins.op)
        if special is not None:
            new = special(self, ins, facts)
        elif any(f is None for f in facts) and ins.op != "$undefined":
            new = None
        else:
            known = [f for f in facts if f is not None]
            new = self.generic(ins, known)
        changed = False
        for d in ins.dst:
            changed |= self.update(d, new)
        return changed

    def generic(self, ins: Ins, facts: list[Fact]) -> Fact:
        rule = LINEAR.get(ins.op)
        if rule is not None:
            found = rule(ins, facts, self.layout.width)
            if found is not None:
                return normal(found, ins)
        if all(f.stride == 0 for f in facts):
            return UNIFORM
        return VARIES


def special_load(shapes: Shapes, ins: Ins, facts: list[Fact | None]) -> Fact | None:
    if facts[0] is None:
        return None
    uniform = facts[0].stride == 0 and "local" not in ins.mods[:3]
    kind = ins.mods[-1]
    umax = {"u8": 255, "u16": 65535}.get(kind, -1)
    return Fact(0 if uniform else VARYING, 0, umax)


def special_varying(shapes: Shapes, ins: Ins, facts: list[Fact | None]) -> Fact | None:
    return VARIES


def special_uniform(shapes: Shapes, ins: Ins, facts: list[Fact | None]) -> Fact | None:
    return UNIFORM


def special_undefined(shapes: Shapes, ins: Ins, facts: list[Fact | None]) -> Fact | None:
    return None


def special_cvta(shapes: Shapes, ins: Ins, facts: list[Fact | None]) -> Fact | None:
    if facts[0] is None:
        return None
    return VARIES if "local" in ins.mods else Fact(facts[0].stride)


def special_select(shapes: Shapes, ins: Ins, facts: list[Fact | None]) -> Fact | None:
    """selp and guards: the predicate comes last in selp, first in $select."""
    predicate = facts[0] if ins.op == "$select" else facts[2]
    a, b = (facts[1], facts[2]) if ins.op == "$select" else (facts[0], facts[1])
    if predicate is None:
        return None
    if a is None or b is None:
        known = a or b
        return (
            known if known is not None and predicate.stride == 0 else (VARIES if known is not None else None)
        )
    umax = max(a.umax, b.umax) if a.umax >= 0 and b.umax >= 0 else -1
    stride = a.stride if predicate.stride == 0 and a.stride == b.stride else VARYING
    return Fact(stride, min(a.tz, b.tz), umax, None, a.risky or b.risky)


def special_reload(shapes: Shapes, ins: Ins, facts: list[Fact | None]) -> Fact | None:
    barrier = shapes.flow.barriers[ins.width]
    index = next(i for i, reload in enumerate(reloads(shapes, ins.width)) if reload is ins)
    return shapes.facts[barrier.spilled[index]]


def reloads(shapes: Shapes, number: int) -> list[Ins]:
    block = shapes.flow.blocks[shapes.flow.barriers[number].resume]
    return [i for i in block.ins if i.op == "$reload"]


SPECIAL = {
    "ld": special_load,
    "ldu": special_load,
    "atom": special_varying,
    "shfl": special_varying,
    "match": special_varying,
    "mma": special_varying,
    "ldmatrix": special_varying,
    "vote": special_uniform,
    "activemask": special_uniform,
    "redux": special_uniform,
    "$reduced": special_uniform,
    "$undefined": special_undefined,
    "cvta": special_cvta,
    "selp": special_select,
    "$select": special_select,
    "$reload": special_reload,
    "$vprintf": special_uniform,
    "barrier": special_uniform,
    "bar": special_uniform,
    "elect": special_varying,
    "movmatrix": special_varying,
}


def analyse(flow: Flow, graph: Graph, layout: Layout) -> Shapes:
    shapes = Shapes(flow, graph, layout)
    shapes.run()
    return shapes
