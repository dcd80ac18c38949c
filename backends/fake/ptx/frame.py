"""The frame around a kernel's blocks: the loop over warps, the phases between barriers, spilled state.

Block mode without barriers is a loop over the warps.  With barriers, phases: each warp that is not done goes
from the dispatch to its next barrier; when all have been there, the next phase begins.  Per warp the spill
area holds a record:
    u32 state (0: start, k + 1: waits at barrier k, DONE), u32 lane mask, [u32 lane mask per target], spilled
    values
Where lanes of a warp may wait at different barriers, each target of the dispatch has a mask of its own, and
records are kept twice (for even and odd phases), since a barrier may be reached anew before the lanes that
wait there resume.
"""

from __future__ import annotations

from .emit import HANDLERS, Emitter, handles
from .flow import Block, Flow, Ins
from .graph import Graph
from .linear import Linear
from .shapes import Layout, Shapes, reloads
from .values import BITS

DONE = 0x7FFFFFFF
ENVIRONMENT = {  # fields of struct sgf_env (kernel_abi.h): LLVM type and offset
    "lo": ("i64", 0),
    "hi": ("i64", 8),
    "shared": ("ptr", 16),
    "shared.bytes": ("i64", 24),
    "local": ("ptr", 32),
    "local.stride": ("i64", 40),
    "spill": ("ptr", 48),
    "globals": ("ptr", 56),
}


class Frame(Emitter):
    def __init__(self, flow: Flow, graph: Graph, shapes: Shapes, linear: Linear, layout: Layout) -> None:
        super().__init__(flow, graph, shapes, linear, layout)
        self.fibers = flow.uses_fibers
        self.phased = bool(flow.barriers)
        barriers = flow.barriers
        barrier_masks = [linear.mask.get(b.block, 0) for b in barriers]
        self.static_full = layout.full and all(m == 0 for m in barrier_masks) and not shapes.dispatch_diverges
        self.masks_offset = 8
        self.record = 64
        self.offsets: list[list[int]] = []
        if self.phased:
            self.layout_record()

    def layout_record(self) -> None:
        diverges = self.shapes.dispatch_diverges
        base = (8 + (4 * (len(self.flow.barriers) + 1) if diverges else 0) + 63) // 64 * 64
        end = base
        at = base
        for _number, barrier in enumerate(self.flow.barriers):
            if not diverges:
                at = base
            where = []
            for value in barrier.spilled:
                size = self.W * BITS[self.float_kind[value]] // 8 if self.is_vector(value) else 8
                size = max(size, 4)
                at = (
                    (at + min(size, 64) - 1) // min(size, 64) * min(size, 64)
                    if size & (size - 1) == 0
                    else at
                )
                where.append(at)
                at += size
            self.offsets.append(where)
            end = max(end, at)
        self.record = (end + 63) // 64 * 64

    @property
    def spill_bytes(self) -> int:
        if not self.phased:
            return 0
        return self.record * self.layout.warps * (2 if self.shapes.dispatch_diverges else 1)

    # ---- text of the function -----------------------------------------------------------------------
    def function(self, symbol: str) -> str:
        self.emit_blocks()
        body = self.lines
        self.lines = []
        self.prologue()
        first = self.lines
        self.lines = []
        self.epilogue()
        last = self.lines
        arguments = "ptr noalias nocapture %env, ptr noalias nocapture readonly %params"
        if self.fibers:
            arguments = "ptr %env, ptr readonly %params, i32 %warp"
        text = [f"define void @{symbol}({arguments}) #0 {{", "entry:"]
        rest = "\n".join([*first, *body, *last, "}"])
        return "\n".join([*text, *self.masks_allocas(), *self.head, *self.environment(rest), rest])

    def masks_allocas(self) -> list[str]:
        w = self.W
        found = ["  %w.slot = alloca i32", f"  %region.mask = alloca <{w} x i1>"]
        for b in self.linear.order:
            if self.linear.owns(b):
                found.append(f"  %m{b} = alloca <{w} x i1>")
                found.append(f"  %mv{b} = alloca <{w} x i1>")
        return found

    def prologue(self) -> None:
        """Everything before block 0, which is entered once per warp and phase."""
        w = self.W
        for b in self.linear.order:
            if self.linear.owns(b):
                self.put(f"store <{w} x i1> zeroinitializer, ptr %m{b}")
        if self.fibers:
            self.put("store i32 %warp, ptr %w.slot")
            self.put("br label %warp.in")
        else:
            self.put("store i32 0, ptr %w.slot")
            if self.phased:
                self.phases_prologue()
            self.put("br label %warp.in")
        self.label("warp.in")
        if self.phased:
            self.enter_phase()
        elif not self.layout.full:
            self.put(f"store <{w} x i1> {self.initial_mask()}, ptr %region.mask")
        self.put("br label %b0")

    def environment(self, body: str) -> list[str]:
        """What the text that follows uses of struct sgf_env: loaded once, and only where it is needed, since
        every line costs compile time."""
        found: list[str] = []
        places = {"span": ("hi", "lo"), "span.places": ("span",), "shared.places": ("shared.bytes",)}
        needed = {name for name in (*ENVIRONMENT, *places, "mem") if f"%{name}" in body}
        for name, sources in reversed(places.items()):
            if name in needed:
                needed.update(sources)
        for name, (kind, offset) in ENVIRONMENT.items():
            if name in needed:
                found.append(f"  %{name}.at = getelementptr i8, ptr %env, i64 {offset}")
                found.append(f"  %{name} = load {kind}, ptr %{name}.at, !invariant.load !0")
        if "mem" in needed:
            found.append('  %mem = call ptr asm "", "=r,0"(ptr null)')
        if "span" in needed:
            found.append("  %span = sub i64 %hi, %lo")
        if "span.places" in needed:
            found.append("  %span.places = add i64 %span, 1")
        if "shared.places" in needed:
            found.append("  %shared.places = add i64 %shared.bytes, 1")
        return found

    def initial_mask(self) -> str:
        """The lanes of this warp that are threads of the block."""
        w = self.W
        first = self.op(f"mul i32 {self.warp_number()}, {w}")
        lanes = self.splat(first, "i32")
        lanes = self.op(f"add <{w} x i32> {lanes}, {self.iota('i32', 1)}")
        return self.op(f"icmp ult <{w} x i32> {lanes}, splat (i32 {self.layout.threads})")

    def record_pointer(self, offset: int, phase_offset: bool = False) -> str:
        name = self.op(f"mul i32 {self.warp_number()}, {self.record}")
        name = self.op(f"zext i32 {name} to i64")
        if phase_offset and self.shapes.dispatch_diverges:
            odd = self.op("load i64, ptr %write.half")
            name = self.op(f"add i64 {name}, {odd}")
        if offset:
            name = self.op(f"add i64 {name}, {offset}")
        return self.op(f"getelementptr i8, ptr %spill, i64 {name}")

    def phases_prologue(self) -> None:
        self.head.append("  %waiting = alloca i32")
        self.head.append("  %write.half = alloca i64")
        self.head.append("  %read.half = alloca i64")
        for number, barrier in enumerate(self.flow.barriers):
            if barrier.reduction:
                self.head.append(f"  %red{number} = alloca i32")
                self.head.append(f"  %redout{number} = alloca i32")
                self.put(f"store i32 {self.identity(barrier.reduction)}, ptr %red{number}")
        half = self.record * self.layout.warps
        self.put(f"store i64 {half}, ptr %write.half")
        self.put("store i64 0, ptr %read.half")
        self.put("store i32 0, ptr %waiting")
        self.put("br label %init")
        self.label("init")
        self.put("store i64 0, ptr %read.half")
        state = self.record_pointer(0)
        self.put(f"store i32 0, ptr {state}")
        if not self.static_full:
            mask = self.mask_bits(self.initial_mask())
            self.put(f"store i32 {mask}, ptr {self.record_pointer(4)}")
            if self.shapes.dispatch_diverges:
                for k in range(len(self.flow.barriers) + 1):
                    self.put(f"store i32 {mask if k == 0 else 0}, ptr {self.record_pointer(8 + 4 * k)}")
                    self.put(f"store i32 0, ptr {self.record_pointer(8 + 4 * k, True)}")
        self.advance("init", "init.done")
        self.label("init.done")
        self.put("store i32 0, ptr %w.slot")

    @staticmethod
    def identity(reduction: str) -> int:
        return 1 if reduction == "and" else 0

    def advance(self, again: str, done: str) -> None:
        """The next warp, or `done`."""
        if self.layout.warps == 1:
            self.put(f"br label %{done}")
            return
        now = self.warp_number()
        following = self.op(f"add i32 {now}, 1")
        self.put(f"store i32 {following}, ptr %w.slot")
        more = self.op(f"icmp ult i32 {following}, {self.layout.warps}")
        self.put(f"br i1 {more}, label %{again}, label %{done}")

    def enter_phase(self) -> None:
        """Loads this warp's state; a warp that is done is passed over."""
        w = self.W
        if self.shapes.dispatch_diverges:
            return
        state = self.op(f"load i32, ptr {self.record_pointer(0)}")
        self.put(f"store i32 {state}, ptr %state")
        self.head.append("  %state = alloca i32")
        done = self.op(f"icmp eq i32 {state}, {DONE}")
        self.put(f"br i1 {done}, label %warp.next, label %warp.live")
        self.label("warp.live")
        self.put(f"store i32 {DONE}, ptr {self.record_pointer(0)}")
        if not self.static_full:
            mask = self.unpack_mask(self.op(f"load i32, ptr {self.record_pointer(4)}"))
            self.put(f"store <{w} x i1> {mask}, ptr %region.mask")

    def unpack_mask(self, bits: str) -> str:
        w = self.W
        if w < 32:
            bits = self.op(f"trunc i32 {bits} to i{w}")
        return self.op(f"bitcast i{w} {bits} to <{w} x i1>")

    def emit_dispatch(self, block: Block) -> None:
        w = self.W
        step = self.linear.steps[0]
        targets = block.succs
        if self.shapes.dispatch_diverges:
            for k, to in enumerate(targets):
                where = self.read_pointer(8 + 4 * k)
                mask = self.unpack_mask(self.op(f"load i32, ptr {where}"))
                self.put(f"store i32 0, ptr {where}")
                self.put(f"store <{w} x i1> {mask}, ptr %m{to}")
            self.put(f"br label %{self.target(step.next)}")
            return
        state = self.op("load i32, ptr %state")
        cases = " ".join(f"i32 {k}, label %b0.d{k}" for k in range(1, len(targets)))
        self.put(f"switch i32 {state}, label %b0.d0 [{cases}]")
        for k, to in enumerate(targets):
            self.label(f"b0.d{k}")
            self.cache.clear()
            self.mask = self.region_mask()
            self.edge(block, to, None)
            self.put(f"br label %{self.target(step.ways[to])}")

    def read_pointer(self, offset: int) -> str:
        name = self.op(f"mul i32 {self.warp_number()}, {self.record}")
        name = self.op(f"zext i32 {name} to i64")
        if self.shapes.dispatch_diverges:
            name = self.op(f"add i64 {name}, {self.op('load i64, ptr %read.half')}")
        if offset:
            name = self.op(f"add i64 {name}, {offset}")
        return self.op(f"getelementptr i8, ptr %spill, i64 {name}")

    def arrive(self, block: Block) -> None:
        number = block.term.barrier
        if self.shapes.dispatch_diverges:
            self.put(f"store i32 {self.mask_bits()}, ptr {self.record_pointer(8 + 4 * (number + 1), True)}")
        else:
            self.put(f"store i32 {number + 1}, ptr {self.record_pointer(0)}")
            if not self.static_full:
                self.put(f"store i32 {self.mask_bits()}, ptr {self.record_pointer(4)}")
        count = self.op("load i32, ptr %waiting")
        self.put(f"store i32 {self.op(f'add i32 {count}, 1')}, ptr %waiting")

    def epilogue(self) -> None:
        self.label("region.end")
        if self.fibers:
            self.put("ret void")
            return
        self.put("br label %warp.next")
        self.label("warp.next")
        self.advance("warp.in", "phase.end")
        self.label("phase.end")
        if self.phased:
            waiting = self.op("load i32, ptr %waiting")
            more = self.op(f"icmp ne i32 {waiting}, 0")
            self.put(f"br i1 {more}, label %phase.again, label %finish")
            self.label("phase.again")
            self.put("store i32 0, ptr %waiting")
            self.put("store i32 0, ptr %w.slot")
            for number, barrier in enumerate(self.flow.barriers):
                if barrier.reduction:
                    self.put(f"store i32 {self.op(f'load i32, ptr %red{number}')}, ptr %redout{number}")
                    self.put(f"store i32 {self.identity(barrier.reduction)}, ptr %red{number}")
            if self.shapes.dispatch_diverges:
                a, b = self.op("load i64, ptr %read.half"), self.op("load i64, ptr %write.half")
                self.put(f"store i64 {b}, ptr %read.half")
                self.put(f"store i64 {a}, ptr %write.half")
            self.put("br label %warp.in")
            self.label("finish")
        self.put("ret void")


@handles("$spill")
def spill(e: Emitter, ins: Ins) -> None:
    assert isinstance(e, Frame)
    for source, offset in zip(ins.src, e.offsets[ins.width], strict=False):
        assert isinstance(source, int)
        if e.shapes.facts[source] is None:
            continue
        kind, vector = e.float_kind[source], e.is_vector(source)
        name = e.value(source, kind, vector)
        where = e.record_pointer(offset, True)
        if kind == "i1" and vector:
            name, text = e.op(f"bitcast <{e.W} x i1> {name} to i{e.W}"), f"i{e.W}"
        else:
            text = e.ty(kind, vector)
        e.put(f"store {text} {name}, ptr {where}, align {4 if not vector else 8}")


@handles("$reload")
def reload(e: Emitter, ins: Ins) -> None:
    assert isinstance(e, Frame)
    value = ins.dst[0]
    index = next(i for i, other in enumerate(reloads(e.shapes, ins.width)) if other is ins)
    spilled = e.flow.barriers[ins.width].spilled[index]
    kind, vector = e.float_kind[spilled], e.is_vector(value)
    where = e.read_pointer(e.offsets[ins.width][index])
    if kind == "i1" and vector:
        raw = e.op(f"load i{e.W}, ptr {where}, align 8")
        name = e.op(f"bitcast i{e.W} {raw} to <{e.W} x i1>")
    else:
        name = e.op(f"load {e.ty(kind, vector)}, ptr {where}, align {4 if not vector else 8}")
    e.define(value, name, kind)


@handles("$arrive")
def arrive_with_value(e: Emitter, ins: Ins) -> None:
    """A barrier with a reduction: adds this warp's lanes to the block's result."""
    lanes = e.masked(e.vector(ins.src[0], "i1"))
    bits = e.mask_bits(lanes)
    where = f"%red{ins.width}"
    old = e.op(f"load i32, ptr {where}")
    reduction = ins.mods[0]
    if reduction == "popc":
        e.declare("llvm.ctpop.i32", "i32", "i32")
        new = e.op(f"add i32 {old}, {e.op(f'call i32 @llvm.ctpop.i32(i32 {bits})')}")
    else:
        test = f"icmp eq i32 {bits}, {e.mask_bits()}" if reduction == "and" else f"icmp ne i32 {bits}, 0"
        flag = e.op(f"zext i1 {e.op(test)} to i32")
        new = e.op(f"{'and' if reduction == 'and' else 'or'} i32 {old}, {flag}")
    e.put(f"store i32 {new}, ptr {where}")


@handles("$reduced")
def reduced(e: Emitter, ins: Ins) -> None:
    value = e.op(f"load i32, ptr %redout{ins.width}")
    if ins.mods[0] == "popc":
        e.define(ins.dst[0], value, "i32", False)
    else:
        e.define(ins.dst[0], e.op(f"icmp ne i32 {value}, 0"), "i1", False)


@handles("$undefined")
def undefined(e: Emitter, ins: Ins) -> None:
    """A register that is read before it is written; it never gets a home and reads as zero."""


__all__ = ["DONE", "HANDLERS", "Frame"]
