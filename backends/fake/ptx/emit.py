"""The core of the emitter: masks, blocks and edges.

A kernel becomes one LLVM function in text form (building text is several times faster than building objects).
Values that cross blocks live in stack slots (values.py), so this module need not make phis, and an edge of
the linearised graph need not exist in the original one.  What the instructions compute is in the emit_*
modules, which register themselves in HANDLERS.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from .errors import unsupported
from .flow import Block, Flow, Ins
from .graph import Graph
from .linear import Linear
from .shapes import Layout, Shapes
from .values import Values

Handler = Callable[["Emitter", Ins], None]
HANDLERS: dict[str, Handler] = {}
EFFECT_OPS = {
    "ld",
    "ldu",
    "st",
    "atom",
    "red",
    "shfl",
    "vote",
    "match",
    "activemask",
    "redux",
    "mma",
    "ldmatrix",
    "stmatrix",
    "bar",
    "barrier",
    "trap",
    "$vprintf",
    "$__assertfail",
    "nanosleep",
    "cp",
    "$spill",
    "$arrive",
    "$reload",
    "div",
    "rem",
    "brkpt",
    "elect",
}
SMALL_BLOCK = 8


def handles(*names: str) -> Callable[[Handler], Handler]:
    def register(handler: Handler) -> Handler:
        for name in names:
            HANDLERS[name] = handler
        return handler

    return register


class Emitter(Values, ABC):
    """Blocks and edges; how a kernel's phases begin and end is its frame's."""

    def __init__(self, flow: Flow, graph: Graph, shapes: Shapes, linear: Linear, layout: Layout) -> None:
        super().__init__(flow, shapes, layout)
        self.graph, self.linear = graph, linear
        self.mask: str | None = None  # of the block being emitted; None: all lanes
        self.static_full = False
        self.resets: dict[int, list[int]] = {}
        for b in linear.order:
            self.resets.setdefault(linear.reset_site(b) if b else 0, []).append(b)
        self.blended = self.find_blended()
        self.tenants: dict[int, list[int]] = {}  # blocks by the owner of their mask
        self.access_groups: dict[tuple[str, object], list[tuple[int, int, int]]] = {}
        self.checked: set[tuple[str, object]] = set()

    def find_blended(self) -> set[int]:
        """Blocks whose phis collect values lane by lane: lanes arrive there along several edges."""
        blended = set(self.shapes.joins)
        for loop in self.graph.loops:
            if loop.divergent:
                blended |= {target for _, target in loop.exits}
        return blended

    # ---- masks ------------------------------------------------------------------------------------
    def mask_vector(self) -> str:
        return self.mask if self.mask is not None else "splat (i1 true)"

    def mask_bits(self, mask: str | None = None) -> str:
        """The active lanes as an i32."""
        mask = mask or self.mask
        w = self.W
        if mask is None:
            return str((1 << w) - 1 if w < 32 else -1)
        raw = self.op(f"bitcast <{w} x i1> {mask} to i{w}")
        return raw if w == 32 else self.op(f"zext i{w} {raw} to i32")

    def any_lane(self, mask: str) -> str:
        raw = self.op(f"bitcast <{self.W} x i1> {mask} to i{self.W}")
        return self.op(f"icmp ne i{self.W} {raw}, 0")

    def masked(self, condition: str) -> str:
        """A lane condition restricted to the active lanes."""
        if self.mask is None:
            return condition
        w = self.W
        return self.op(f"select <{w} x i1> {self.mask}, <{w} x i1> {condition}, <{w} x i1> zeroinitializer")

    def region_mask(self) -> str | None:
        if self.static_full:
            return None
        key = ("region", "mask", True)
        found = self.cache.get(key)
        if found is None:
            found = self.op(f"load <{self.W} x i1>, ptr %region.mask")
            self.cache[key] = found
        return found

    def load_mask(self, b: int) -> str | None:
        owner = self.linear.mask.get(b, 0)
        if owner == 0:
            return self.region_mask()
        return self.op(f"load <{self.W} x i1>, ptr %mv{owner}")

    # ---- blocks -----------------------------------------------------------------------------------
    def emit_blocks(self) -> None:
        for b in self.linear.order:
            self.emit_block(self.flow.blocks[b])

    def needs_check(self, block: Block) -> bool:
        """Whether a block, or one that runs under its mask without asking again, must be left alone when no
        lane wants it."""
        if not self.tenants:
            for b in self.linear.order:
                self.tenants.setdefault(self.linear.mask.get(b, 0), []).append(b)
        return any(self.has_effects(self.flow.blocks[b]) for b in self.tenants[block.index])

    def has_effects(self, block: Block) -> bool:
        if (
            len(block.ins) > SMALL_BLOCK
            or any(i.op in EFFECT_OPS for i in block.ins)
            or block.term.kind == "barrier"
        ):
            return True
        if block.term.kind not in ("br", "cond"):
            return block.term.kind != "exit"
        for t in block.succs:
            if t in self.linear.latch_of and t not in self.blended and self.flow.blocks[t].phis:
                return True
            for phi in self.flow.blocks[t].phis:
                if t not in self.blended or not self.is_vector(phi.dst):
                    return True
        return block.term.kind == "cond" and block.index not in self.shapes.divergent

    def emit_block(self, block: Block) -> None:
        b = block.index
        self.block = block
        self.cache.clear()
        self.checked.clear()
        w = self.W
        self.label(f"b{b}")
        for x in self.resets.get(b, ()):
            if self.linear.owns(x) and x != b:
                self.put(f"store <{w} x i1> zeroinitializer, ptr %m{x}")
            if x in self.blended and x != b:
                for phi in self.flow.blocks[x].phis:
                    if self.is_vector(phi.dst):
                        self.bind_phi(phi.dst)
                        t = self.ty(self.home[phi.dst][0], True)
                        self.put(f"store {t} undef, ptr %s{phi.dst}")
        if self.linear.owns(b):
            self.enter_masked(block)
        else:
            self.mask = self.load_mask(b)
        for phi in block.phis:
            self.bind_phi(phi.dst)
        self.collect_groups(block)
        for ins in block.ins:
            handler = HANDLERS.get(ins.op)
            if handler is None:
                raise unsupported(f"opcode `{ins.op}`", ins.line)
            self.line = ins.line
            handler(self, ins)
        self.line = block.term.line
        self.emit_terminator(block)

    def enter_masked(self, block: Block) -> None:
        b, w = block.index, self.W
        mask = self.op(f"load <{w} x i1>, ptr %m{b}")
        self.put(f"store <{w} x i1> zeroinitializer, ptr %m{b}")
        self.put(f"store <{w} x i1> {mask}, ptr %mv{b}")
        self.mask = mask
        loop = self.linear.latch_of.get(b)
        if (loop is None or not loop.divergent) and self.needs_check(block):
            active = self.any_lane(mask)
            self.put(f"br i1 {active}, label %b{b}.run, label %{self.target(self.linear.steps[b].skip)}")
            self.label(f"b{b}.run")

    def bind_phi(self, value: int) -> None:
        if value not in self.home:
            self.home[value] = (self.float_kind[value], self.is_vector(value))
            self.slot(value)

    def target(self, b: int) -> str:
        return "region.end" if b == self.linear.EXIT else f"b{b}"

    # ---- edges ------------------------------------------------------------------------------------
    def edge(self, block: Block, to: int, edge_mask: str | None) -> None:
        """What travels along an edge: the phis' values, and the lanes if the target has a mask of its own."""
        w = self.W
        target = self.flow.blocks[to]
        blend = to in self.blended
        stores: list[tuple[str, str]] = []
        for phi in target.phis:
            incoming = phi.incoming[block.index]
            if self.shapes.facts[incoming] is None:
                continue  # undefined
            self.bind_phi(phi.dst)
            home, vector = self.home[phi.dst]
            name = self.value(incoming, home, vector)
            t = self.ty(home, vector)
            if blend and vector:
                chosen = edge_mask if edge_mask is not None else self.mask
                if chosen is not None:
                    old = self.op(f"load {t}, ptr %s{phi.dst}")
                    name = self.op(f"select <{w} x i1> {chosen}, {t} {name}, {t} {old}")
            stores.append((f"{t} {name}", f"%s{phi.dst}"))
        for text, where in stores:
            self.put(f"store {text}, ptr {where}")
        if self.linear.owns(to):
            chosen = edge_mask if edge_mask is not None else self.mask
            if chosen is None:
                self.put(f"store <{w} x i1> splat (i1 true), ptr %m{to}")
            else:
                old = self.op(f"load <{w} x i1>, ptr %m{to}")
                self.put(f"store <{w} x i1> {self.op(f'or <{w} x i1> {old}, {chosen}')}, ptr %m{to}")

    def emit_terminator(self, block: Block) -> None:
        kind = block.term.kind
        step = self.linear.steps[block.index]
        if kind == "dispatch":
            self.emit_dispatch(block)
        elif kind in ("exit", "barrier"):
            if kind == "barrier":
                self.arrive(block)
            self.put(f"br label %{self.target(step.next)}")
        elif block.index in self.linear.latch_of:
            self.emit_latch(block)
        elif block.index in self.shapes.divergent:
            self.emit_divergent(block)
        elif kind == "br" or len(set(block.succs)) == 1:
            to = block.succs[0]
            self.edge(block, to, None)
            self.put(f"br label %{self.target(step.ways[to])}")
        elif kind == "cond":
            self.emit_uniform_branch(block)
        else:
            self.emit_uniform_switch(block)

    @abstractmethod
    def emit_dispatch(self, block: Block) -> None:
        """Sends a warp on from the start of its phase (frame.py)."""

    @abstractmethod
    def arrive(self, block: Block) -> None:
        """Notes that a warp waits at the barrier that ends a block (frame.py)."""

    def emit_latch(self, block: Block) -> None:
        b = block.index
        loop = self.linear.latch_of[b]
        header = loop.header
        if not loop.divergent:
            self.edge(block, header, None)
            self.put(f"br label %{self.target(header)}")
            return
        assert self.mask is not None
        again = self.any_lane(self.mask)
        self.put(f"br i1 {again}, label %b{b}.again, label %{self.target(self.linear.steps[b].leave)}")
        self.label(f"b{b}.again")
        self.edge(block, header, None)
        self.put(f"br label %{self.target(header)}")

    def emit_uniform_branch(self, block: Block) -> None:
        step = self.linear.steps[block.index]
        condition = self.scalar(block.term.value, "i1")
        names = [f"b{block.index}.e{i}" for i in range(2)]
        ordered = names[::-1] if block.term.negated else names
        self.put(f"br i1 {condition}, label %{ordered[0]}, label %{ordered[1]}")
        saved = dict(self.cache)
        for name, to in zip(names, block.succs, strict=False):
            self.cache = dict(saved)
            self.label(name)
            self.edge(block, to, None)
            self.put(f"br label %{self.target(step.ways[to])}")

    def emit_uniform_switch(self, block: Block) -> None:
        step = self.linear.steps[block.index]
        index = self.scalar(block.term.value, "i32")
        targets = block.succs
        names = {to: f"b{block.index}.e{to}" for to in dict.fromkeys(targets)}
        cases = " ".join(f"i32 {i}, label %{names[to]}" for i, to in enumerate(targets))
        self.put(f"switch i32 {index}, label %{names[targets[-1]]} [{cases}]")
        saved = dict(self.cache)
        for to, name in names.items():
            self.cache = dict(saved)
            self.label(name)
            self.edge(block, to, None)
            self.put(f"br label %{self.target(step.ways[to])}")

    def emit_divergent(self, block: Block) -> None:
        w = self.W
        if block.term.kind == "cond":
            condition = self.vector(block.term.value, "i1")
            inverse = self.op(f"xor <{w} x i1> {condition}, splat (i1 true)")
            pair = [inverse, condition] if block.term.negated else [condition, inverse]
            edges = list(zip(block.succs, pair, strict=False))
        else:
            index = self.vector(block.term.value, "i32")
            edges = []
            rest = "splat (i1 true)"
            for i, to in enumerate(block.succs[:-1]):
                here = self.op(f"icmp eq <{w} x i32> {index}, splat (i32 {i})")
                edges.append((to, here))
                rest = self.op(f"select <{w} x i1> {here}, <{w} x i1> zeroinitializer, <{w} x i1> {rest}")
            edges.append((block.succs[-1], rest))
        masks = [(to, self.masked(lanes)) for to, lanes in edges]
        for to, lanes in masks:
            self.edge(block, to, lanes)
        self.put(f"br label %{self.target(self.linear.steps[block.index].next)}")

    # ---- filled in by memory_checks -------------------------------------------------------------------
    def collect_groups(self, block: Block) -> None:
        from .memory_checks import collect_groups

        collect_groups(self, block)
