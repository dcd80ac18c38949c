"""The core of the emitter: values in their shapes, masks, blocks and edges.

A kernel becomes one LLVM function in text form (building text is several times faster than building objects).
Values that cross blocks live in stack slots, which LLVM's SROA turns into registers; so this module need not
make phis, and an edge of the linearised graph need not exist in the original one.  What the instructions
compute is in the emit_* modules, which register themselves in HANDLERS.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from .errors import PtxError, unsupported
from .flow import Block, DynamicShared, Flow, GlobalAddress, Ins, ParamAddress, Source
from .graph import Graph
from .linear import Linear
from .parser import TYPE_SIZE
from .shapes import Fact, Layout, Shapes
from .syntax import FloatImm, Imm, Special

LLVM_TYPE = {
    "b8": "i8",
    "u8": "i8",
    "s8": "i8",
    "b16": "i16",
    "u16": "i16",
    "s16": "i16",
    "f16": "i16",
    "bf16": "i16",
    "b32": "i32",
    "u32": "i32",
    "s32": "i32",
    "f32": "float",
    "f16x2": "i32",
    "bf16x2": "i32",
    "b64": "i64",
    "u64": "i64",
    "s64": "i64",
    "f64": "double",
    "b128": "i128",
    "pred": "i1",
}
BITS = {
    "i1": 1,
    "i8": 8,
    "i16": 16,
    "i32": 32,
    "i64": 64,
    "i128": 128,
    "half": 16,
    "bfloat": 16,
    "float": 32,
    "double": 64,
}
SHORT = {"half": "f16", "bfloat": "bf16", "float": "f32", "double": "f64"}

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


def float_literal(bits: int, kind: str) -> str:
    """An LLVM literal of the float or double with these bits."""
    if kind == "double":
        return f"0x{bits:016X}"
    sign, exponent, mantissa = bits >> 31, bits >> 23 & 0xFF, bits & 0x7FFFFF
    if exponent == 0xFF:
        wide = sign << 63 | 0x7FF << 52 | mantissa << 29
    else:
        wide = struct.unpack("<Q", struct.pack("<d", struct.unpack("<f", struct.pack("<I", bits))[0]))[0]
    return f"0x{wide:016X}"


def float_bits(imm: FloatImm, width: int) -> int:
    """The bits of a literal at 32 or 64 bits."""
    if imm.width == width:
        return imm.bits
    if width == 32:
        value = struct.unpack("<d", struct.pack("<Q", imm.bits))[0]
        try:
            return int(struct.unpack("<I", struct.pack("<f", value))[0])
        except OverflowError:
            return 0x7F800000 | (imm.bits >> 63 << 31)
    value = struct.unpack("<f", struct.pack("<I", imm.bits))[0]
    return int(struct.unpack("<Q", struct.pack("<d", value))[0])


class Emitter:
    def __init__(self, flow: Flow, graph: Graph, shapes: Shapes, linear: Linear, layout: Layout) -> None:
        self.flow, self.graph, self.shapes, self.linear, self.layout = flow, graph, shapes, linear, layout
        self.W = layout.width
        self.lines: list[str] = []
        self.head: list[str] = []  # allocas and what else belongs into the entry block
        self.declared: dict[str, str] = {}
        self.helpers: dict[str, str] = {}
        self.counter = 0
        self.cache: dict[tuple[object, str, bool], str] = {}
        self.home: dict[int, tuple[str, bool]] = {}  # value -> (LLVM type, vector) as it was defined
        self.slots: set[int] = set()
        self.mask: str | None = None  # of the block being emitted; None: all lanes
        self.block: Block = flow.blocks[0]
        self.line = 0
        self.static_full = False
        self.float_kind = self.infer_types()
        self.escapes = self.find_escapes()
        self.resets: dict[int, list[int]] = {}
        for b in linear.order:
            self.resets.setdefault(linear.reset_site(b) if b else 0, []).append(b)
        self.blended = self.find_blended()
        self.tenants: dict[int, list[int]] = {}  # blocks by the owner of their mask
        self.iota_cache: dict[tuple[str, int], str] = {}
        self.access_groups: dict[tuple[str, object], list[tuple[int, int, int]]] = {}
        self.checked: set[tuple[str, object]] = set()

    # ---- text -------------------------------------------------------------------------------------
    def fresh(self) -> str:
        self.counter += 1
        return f"%t{self.counter}"

    def put(self, text: str) -> None:
        self.lines.append("  " + text)

    def op(self, text: str) -> str:
        self.counter += 1
        name = f"%t{self.counter}"
        self.lines.append(f"  {name} = {text}")
        return name

    def label(self, name: str) -> None:
        self.lines.append(f"{name}:")

    def new_label(self, hint: str) -> str:
        self.counter += 1
        return f"{hint}{self.counter}"

    def declare(self, name: str, result: str, arguments: str) -> None:
        self.declared[name] = f"declare {result} @{name}({arguments})"

    def alloca(self, name: str, kind: str, align: int = 0) -> None:
        self.head.append(f"  {name} = alloca {kind}" + (f", align {align}" if align else ""))

    def unsupported(self, ins: Ins) -> PtxError:
        return unsupported(f"`{ins.name}`", ins.line)

    # ---- types and shapes -------------------------------------------------------------------------
    def ty(self, kind: str, vector: bool) -> str:
        return f"<{self.W} x {kind}>" if vector else kind

    def suffix(self, kind: str, vector: bool) -> str:
        short = SHORT.get(kind, kind)
        return f"v{self.W}{short}" if vector else short

    def splat_text(self, kind: str, literal: str, vector: bool) -> str:
        return f"splat ({kind} {literal})" if vector else literal

    def shape(self, source: Source) -> int | None:
        return self.shapes.shape(source)

    def fact(self, source: Source) -> Fact:
        return self.shapes.of(source) or Fact(0)

    def is_vector(self, value: int) -> bool:
        return value >= 0 and self.shapes.shape(value) is None

    def infer_types(self) -> list[str]:
        """The LLVM type that each value is kept in: 32-bit registers that carry floats are kept as floats."""
        kinds = [LLVM_TYPE[t] for t in self.flow.types]
        pending: list[tuple[int, list[int]]] = []
        for block in self.flow.blocks:
            for phi in block.phis:
                pending.append((phi.dst, list(phi.incoming.values())))
            for ins in block.ins:
                if len(ins.dst) != 1 or ins.dst[0] < 0:
                    continue
                d = ins.dst[0]
                if ins.op in ("mov", "$move", "selp", "$select"):
                    pending.append((d, [s for s in ins.src if isinstance(s, int)]))
                elif ins.mods:
                    kind = ins.mods[-1]
                    if ins.op in ("cvt", "set"):
                        kind = next((m for m in ins.mods if m in TYPE_SIZE), kind)
                    if ins.op == "setp" or kinds[d] == "i1":
                        continue
                    if kind == "f32" and kinds[d] == "i32" and ins.op not in ("ld", "atom", "set"):
                        kinds[d] = "float"
                    elif kind == "f64" and kinds[d] == "i64" and ins.op not in ("ld", "atom"):
                        kinds[d] = "double"
        for _ in range(3):
            for d, sources in pending:
                if kinds[d] in ("i32", "i64"):
                    want = "float" if kinds[d] == "i32" else "double"
                    if any(kinds[s] == want for s in sources):
                        kinds[d] = want
        return kinds

    def find_escapes(self) -> set[int]:
        where = self.shapes.def_block
        escapes: set[int] = set()
        for block in self.flow.blocks:
            for phi in block.phis:
                escapes.add(phi.dst)
                for pred, value in phi.incoming.items():
                    if where.get(value) != pred:
                        escapes.add(value)
            for ins in block.ins:
                for s in ins.src:
                    if isinstance(s, int) and where.get(s) != block.index:
                        escapes.add(s)
            tested = block.term.value
            if isinstance(tested, int) and tested >= 0 and where.get(tested) != block.index:
                escapes.add(tested)
        return escapes

    def find_blended(self) -> set[int]:
        """Blocks whose phis collect values lane by lane: lanes arrive there along several edges."""
        blended = set(self.shapes.joins)
        for loop in self.graph.loops:
            if loop.divergent:
                blended |= {target for _, target in loop.exits}
        return blended

    # ---- values -----------------------------------------------------------------------------------
    def convert(self, name: str, have: str, want: str, vector: bool) -> str:
        """Reinterprets or resizes; a larger register is cut, a smaller value is extended with zeros."""
        if have == want:
            return name
        a, b = BITS[have], BITS[want]
        t = self.ty
        if have[0] != "i" and a != b:
            name, have = self.op(f"bitcast {t(have, vector)} {name} to {t(f'i{a}', vector)}"), f"i{a}"
        if a > b:
            name = self.op(f"trunc {t(have, vector)} {name} to {t(f'i{b}', vector)}")
        elif a < b:
            name = self.op(f"zext {t(have, vector)} {name} to {t(f'i{b}', vector)}")
        if a != b:
            have = f"i{b}"
        if have != want:
            name = self.op(f"bitcast {t(have, vector)} {name} to {t(want, vector)}")
        return name

    def splat(self, name: str, kind: str) -> str:
        w = self.W
        first = self.op(f"insertelement <{w} x {kind}> poison, {kind} {name}, i64 0")
        return self.op(
            f"shufflevector <{w} x {kind}> {first}, <{w} x {kind}> poison, <{w} x i32> zeroinitializer"
        )

    def iota(self, kind: str, stride: int) -> str:
        """A vector constant 0, stride, 2 * stride..., named once, since it is long."""
        key = (kind, stride)
        found = self.iota_cache.get(key)
        if found is None:
            found = f"%iota.{kind}.{stride}".replace("-", "m")
            text = "<" + ", ".join(f"{kind} {i * stride}" for i in range(self.W)) + ">"
            self.head.append(f"  {found} = or <{self.W} x {kind}> {text}, zeroinitializer")
            self.iota_cache[key] = found
        return found

    def scalar(self, source: Source, kind: str) -> str:
        """The value of lane 0 of a uniform or linear operand."""
        return self.value(source, kind, False)

    def vector(self, source: Source, kind: str) -> str:
        return self.value(source, kind, True)

    def value(self, source: Source, kind: str, vector: bool) -> str:
        """An operand as `kind`, as a vector of lanes or as the scalar of lane 0."""
        if not isinstance(source, int):
            return self.constant(source, kind, vector)
        key = (source, kind, vector)
        found = self.cache.get(key)
        if found is not None:
            return found
        if source < 0 or source not in self.home:
            return (
                "zeroinitializer"
                if vector
                else ("0x0000000000000000" if kind in ("float", "double") else "0")
            )
        home, is_vector = self.home[source]
        if kind != home:
            if BITS[home] < BITS[kind] and vector and not is_vector and self.shape(source) not in (0, None):
                found = self.convert(self.value(source, home, True), home, kind, True)
            elif BITS[home] != BITS[kind] and vector and not is_vector and BITS[home] < BITS[kind]:
                found = self.convert(self.value(source, home, vector), home, kind, vector)
            elif vector and not is_vector and self.shape(source) == 0:
                found = self.splat(self.value(source, kind, False), kind)
            else:
                found = self.convert(self.value(source, home, vector), home, kind, vector)
        elif vector == is_vector:
            t = self.ty(home, is_vector)
            found = self.op(f"load {t}, ptr %s{source}")
        elif vector:
            base = self.value(source, home, False)
            found = self.splat(base, home)
            stride = self.shape(source)
            if stride:
                found = self.op(f"add <{self.W} x {home}> {found}, {self.iota(home, stride)}")
        else:
            raise AssertionError(f"value {source} varies but is wanted as a scalar")
        self.cache[key] = found
        return found

    def constant(self, source: Source, kind: str, vector: bool) -> str:
        if isinstance(source, Imm):
            return self.immediate(source.value, kind, vector)
        if isinstance(source, FloatImm):
            if kind in ("float", "double"):
                literal = float_literal(float_bits(source, BITS[kind]), kind)
            elif BITS[kind] in (32, 64):
                literal = str(float_bits(source, BITS[kind]))
            else:
                raise PtxError(f"a floating-point literal as a {BITS[kind]}-bit operand", self.line, 218)
            return self.splat_text(kind, literal, vector)
        if isinstance(source, Special):
            return self.special(source.name, kind, vector)
        if isinstance(source, GlobalAddress):
            slot = self.op(f"getelementptr i8, ptr %globals, i64 {8 * source.index}")
            name = self.op(f"load i64, ptr {slot}, !invariant.load !0")
            if source.offset:
                name = self.op(f"add i64 {name}, {source.offset}")
        elif isinstance(source, ParamAddress):
            name = self.op("ptrtoint ptr %params to i64")
            name = self.op(f"add i64 {name}, {source.offset}")
        else:
            assert isinstance(source, DynamicShared)
            at = (self.flow.static_shared + 15) // 16 * 16
            return self.immediate(at + source.offset, kind, vector)
        name = self.convert(name, "i64", kind, False)
        return self.splat(name, kind) if vector else name

    def immediate(self, value: int, kind: str, vector: bool) -> str:
        bits = BITS[kind]
        if kind == "i1":
            return self.splat_text(kind, "true" if value & 1 else "false", vector)
        if kind in ("float", "double"):
            return self.splat_text(kind, float_literal(value & ((1 << bits) - 1), kind), vector)
        masked = value & ((1 << bits) - 1)
        if masked >> (bits - 1):
            masked -= 1 << bits
        return self.splat_text(kind, str(masked), vector)

    def define(self, value: int, name: str, kind: str, vector: bool | None = None) -> None:
        """Binds the result of an instruction; `kind` is the LLVM type of `name`."""
        if value < 0:
            return
        is_vector = self.is_vector(value)
        if vector is not None and vector != is_vector:
            name = self.splat(name, kind)
        home = self.float_kind[value]
        if kind != home:
            name = self.convert(name, kind, home, is_vector)
        self.home[value] = (home, is_vector)
        self.cache[value, home, is_vector] = name
        if value in self.escapes:
            self.slot(value)
            self.put(f"store {self.ty(home, is_vector)} {name}, ptr %s{value}")

    def slot(self, value: int) -> None:
        if value not in self.slots:
            self.slots.add(value)
            home, is_vector = self.home[value]
            self.alloca(f"%s{value}", self.ty(home, is_vector))

    # ---- special registers ------------------------------------------------------------------------
    def env_load(self, kind: str, offset: int) -> str:
        slot = self.op(f"getelementptr i8, ptr %env, i64 {offset}")
        return self.op(f"load {kind}, ptr {slot}, !invariant.load !0")

    def special(self, name: str, kind: str, vector: bool) -> str:
        key = ("%" + name, kind, vector)
        found = self.cache.get(key)
        if found is None:
            made, have, is_vector = self.special_value(name)
            made = self.convert(made, have, kind, is_vector)
            found = self.splat(made, kind) if vector and not is_vector else made
            if vector and not is_vector:
                stride = self.shapes.special(name).stride
                if stride:
                    found = self.op(f"add <{self.W} x {kind}> {found}, {self.iota(kind, stride)}")
            if not name.startswith(("clock", "globaltimer")):
                self.cache[key] = found
        return found

    def special_value(self, name: str) -> tuple[str, str, bool]:
        axis = "xyz".find(name[-1]) if "." in name else -1
        head = name.split(".")[0]
        if "." in name and axis < 0:
            return "0", "i32", False
        if head == "tid":
            return self.thread_index(axis)
        if head == "ntid":
            return str(self.layout.block[axis]), "i32", False
        if head == "ctaid":
            return self.env_load("i32", 88 + 4 * axis), "i32", False
        if head == "nctaid":
            return self.env_load("i32", 64 + 4 * axis), "i32", False
        if head == "laneid":
            return "0", "i32", False
        if head == "warpid":
            first = self.op("load i32, ptr %w.slot")
            return self.op(f"udiv i32 {self.op(f'mul i32 {first}, {self.W}')}, 32"), "i32", False
        if head == "nwarpid":
            return str(-(-self.layout.threads // 32)), "i32", False
        if head == "smid":
            return self.env_load("i32", 156), "i32", False
        if head == "dynamic_smem_size":
            return self.env_load("i32", 100), "i32", False
        if head in ("total_smem_size", "aggr_smem_size"):
            return self.op(f"trunc i64 {self.env_load('i64', 24)} to i32"), "i32", False
        if head.startswith("lanemask"):
            return self.lane_mask(head[-2:]), "i32", True
        if head.startswith(("clock", "globaltimer")):
            return self.clock(head)
        if head in ("nsmid", "cluster_nctarank"):
            return "1", "i32", False
        if head in ("gridid",):
            return "0", "i64", False
        if head in ("clusterid", "cluster_ctaid", "cluster_ctarank", "is_explicit_cluster"):
            return "0", "i32", False
        raise unsupported(f"special register `%{name}`", self.line)

    def lane_mask(self, which: str) -> str:
        def bits(i: int) -> int:
            one = 1 << i
            return {"eq": one, "lt": one - 1, "le": 2 * one - 1, "gt": ~(2 * one - 1), "ge": ~(one - 1)}[
                which
            ]

        values = [bits(i) & 0xFFFFFFFF for i in range(self.W)]
        return "<" + ", ".join(f"i32 {v - (1 << 32) if v >> 31 else v}" for v in values) + ">"

    def clock(self, head: str) -> tuple[str, str, bool]:
        which = 2 if head.startswith("globaltimer") else (1 if head != "clock" else 0)
        slot = self.op("getelementptr i8, ptr %env, i64 136")
        function = self.op(f"load ptr, ptr {slot}, !invariant.load !0")
        value = self.op(f"call i64 {function}(ptr %env, i32 {which})")
        if head.endswith("_hi"):
            value = self.op(f"lshr i64 {value}, 32")
        return value, "i64", False

    def thread_index(self, axis: int) -> tuple[str, str, bool]:
        layout = self.layout
        size = layout.block[axis]
        fact = layout.tid(axis)
        if fact.const is not None:
            return "0", "i32", False
        below = 1
        for i in range(axis):
            below *= layout.block[i]
        first = self.op(f"mul i32 {self.op('load i32, ptr %w.slot')}, {self.W}")
        above = layout.threads // (below * size)
        if fact.stride is not None:
            name = self.op(f"udiv i32 {first}, {below}") if below > 1 else first
            return (self.op(f"urem i32 {name}, {size}") if above > 1 else name), "i32", False
        lanes = self.splat(first, "i32")
        lanes = self.op(f"add <{self.W} x i32> {lanes}, {self.iota('i32', 1)}")
        if below > 1:
            lanes = self.op(f"udiv <{self.W} x i32> {lanes}, splat (i32 {below})")
        if above > 1:
            lanes = self.op(f"urem <{self.W} x i32> {lanes}, splat (i32 {size})")
        return lanes, "i32", True

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

    def emit_dispatch(self, block: Block) -> None:
        raise NotImplementedError

    def arrive(self, block: Block) -> None:
        raise NotImplementedError

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

    # ---- filled in by emit_memory -------------------------------------------------------------------
    def collect_groups(self, block: Block) -> None:
        from .emit_memory import collect_groups

        collect_groups(self, block)
