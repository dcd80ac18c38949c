"""Values in their shapes: LLVM text, types, operands as scalars or vectors, special registers.

Values that cross blocks live in stack slots, which LLVM's SROA turns into registers.
"""

from __future__ import annotations

import struct

from .errors import PtxError, unsupported
from .flow import Block, DynamicShared, Flow, GlobalAddress, Ins, ParamAddress, Source
from .shape_rules import Fact
from .shapes import Layout, Shapes
from .syntax import TYPE_SIZE, FloatImm, Imm, Special

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


class Values:
    """Operands and results of the instructions of one kernel, and the text that is being made."""

    def __init__(self, flow: Flow, shapes: Shapes, layout: Layout) -> None:
        self.flow, self.shapes, self.layout = flow, shapes, layout
        self.W = layout.width
        self.lines: list[str] = []
        self.head: list[str] = []  # allocas and what else belongs into the entry block
        self.declared: dict[str, str] = {}
        self.helpers: dict[str, str] = {}
        self.counter = 0
        self.cache: dict[tuple[object, str, bool], str] = {}
        self.home: dict[int, tuple[str, bool]] = {}  # value -> (LLVM type, vector) as it was defined
        self.slots: set[int] = set()
        self.block: Block = flow.blocks[0]
        self.line = 0
        self.float_kind = self.infer_types()
        self.escapes = self.find_escapes()
        self.iota_cache: dict[tuple[str, int], str] = {}

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

    def warp_number(self) -> str:
        """The number of this warp (of `W` lanes) in its block, as an i32."""
        return "0" if self.layout.warps == 1 else self.op("load i32, ptr %w.slot")

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
            first = self.warp_number()
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
        first = self.op(f"mul i32 {self.warp_number()}, {self.W}")
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
