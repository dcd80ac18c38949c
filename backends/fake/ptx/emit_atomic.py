"""atom and red: one lane after the other, in lane order, so that results do not depend on anything else.

Global memory is shared with blocks on other threads, so each lane's update is a real atomic; shared memory
belongs to the one thread that runs the block, so there it is a plain read, change and write.  Integer
reductions to one address without a result are combined first.
"""

from __future__ import annotations

from dataclasses import dataclass

from .emit import Emitter, handles
from .emit_float import float_to_half, half_to_float
from .emit_system import end_lane_loop, lane_loop
from .emit_warp import reduce_lanes
from .flow import Ins, Source
from .memory_checks import ATOMIC, ORDERINGS, SCOPES, SPACES, address, check_range
from .syntax import TYPE_SIZE
from .values import LLVM_TYPE

OPS = {"add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec"}
ORDERS = ORDERINGS | {"acq_rel"}


@dataclass
class Atomic:
    space: str
    op: str
    kind: str

    @property
    def llvm(self) -> str:
        return LLVM_TYPE[self.kind]


def decode(e: Emitter, ins: Ins) -> Atomic:
    space, op = "generic", ""
    kind = ins.mods[-1] if ins.mods else ""
    for m in ins.mods[:-1]:
        if m.split("::")[0] in SPACES and m != "shared::cluster":
            space = m.split("::")[0]
        elif m in OPS:
            op = m
        elif m not in ORDERS and m not in SCOPES and m not in ("noftz",):
            raise e.unsupported(ins)
    floats = {
        "f32": {"add"},
        "f64": {"add"},
        "f16": {"add"},
        "bf16": {"add"},
        "f16x2": {"add"},
        "bf16x2": {"add"},
    }
    allowed = floats.get(kind, OPS)
    if not op or kind not in TYPE_SIZE or op not in allowed or kind == "b128":
        raise e.unsupported(ins)
    if TYPE_SIZE[kind] < 4 and op not in ("cas", "exch") and kind not in floats:
        raise e.unsupported(ins)
    return Atomic(space, op, kind)


def lane_array(e: Emitter, source: Source, kind: str) -> tuple[str, bool]:
    """An operand kept for a loop over lanes: a scalar, or a slot with one element per lane."""
    if e.shape(source) == 0:
        return e.scalar(source, kind), False
    slot = e.fresh()
    e.alloca(slot, f"<{e.W} x {kind}>")
    e.put(f"store <{e.W} x {kind}> {e.vector(source, kind)}, ptr {slot}")
    return slot, True


def of_lane(e: Emitter, kept: tuple[str, bool], kind: str, lane: str) -> str:
    name, is_array = kept
    if not is_array:
        return name
    return e.op(f"load {kind}, ptr {e.op(f'getelementptr {kind}, ptr {name}, i32 {lane}')}")


@handles("atom", "red")
def atomic(e: Emitter, ins: Ins) -> None:
    found = decode(e, ins)
    expected = 3 if found.op == "cas" else 2
    if len(ins.src) != expected or len(ins.offsets) != 1 or len(ins.dst) > 1:
        raise e.unsupported(ins)
    space = "shared" if found.space == "shared" else "global"
    size = TYPE_SIZE[found.kind]
    check_range(e, space, ins.src[0], [(ins.offsets[0], size, ATOMIC)], size)
    e.put('call void asm sideeffect "", "~{memory}"()')
    uniform = e.shape(ins.src[0]) == 0
    if (
        ins.op == "red"
        and uniform
        and found.op in ("add", "min", "max", "and", "or", "xor")
        and found.llvm[0] == "i"
        and found.kind[0] in "usb"
        and not found.kind.startswith("bf")
    ):
        combined(e, ins, found, space)
        return
    one_by_one(e, ins, found, space)


def combined(e: Emitter, ins: Ins, found: Atomic, space: str) -> None:
    data = e.vector(ins.src[1], found.llvm)
    value = reduce_lanes(e, found.op, found.llvm, found.kind[0] == "s", data, e.mask_vector())
    at = e.op(f"add i64 {address(e, ins.src[0], space, False)}, {ins.offsets[0]}")
    pointer = e.op(f"getelementptr i8, ptr {'%shared' if space == 'shared' else '%mem'}, i64 {at}")
    update(e, found, space, pointer, value, "")


def one_by_one(e: Emitter, ins: Ins, found: Atomic, space: str) -> None:
    kind = found.llvm
    vector = e.shape(ins.src[0]) != 0
    lanes = address(e, ins.src[0], space, vector)
    kept_address: tuple[str, bool] = (lanes, False)
    if vector:
        slot = e.fresh()
        e.alloca(slot, f"<{e.W} x i64>")
        e.put(f"store <{e.W} x i64> {lanes}, ptr {slot}")
        kept_address = (slot, True)
    data = [lane_array(e, s, kind) for s in ins.src[1:]]
    wanted = ins.op == "atom" and bool(ins.dst) and ins.dst[0] >= 0
    result = e.fresh()
    if wanted:
        e.alloca(result, f"<{e.W} x {kind}>")
    lane, head, done, _ = lane_loop(e)
    at = e.op(f"add i64 {of_lane(e, kept_address, 'i64', lane)}, {ins.offsets[0]}")
    pointer = e.op(f"getelementptr i8, ptr {'%shared' if space == 'shared' else '%mem'}, i64 {at}")
    values = [of_lane(e, kept, kind, lane) for kept in data]
    old = update(e, found, space, pointer, values[0], values[1] if len(values) > 1 else "")
    if wanted:
        e.put(f"store {kind} {old}, ptr {e.op(f'getelementptr {kind}, ptr {result}, i32 {lane}')}")
    end_lane_loop(e, head, done)
    if wanted:
        e.define(ins.dst[0], e.op(f"load <{e.W} x {kind}>, ptr {result}"), kind, True)


def update(e: Emitter, found: Atomic, space: str, pointer: str, value: str, other: str) -> str:
    """One read-modify-write; returns the old value."""
    kind = found.llvm
    size = TYPE_SIZE[found.kind]
    if found.kind in ("f16", "bf16", "f16x2", "bf16x2"):
        return update_halves(e, found, space, pointer, value)
    if space == "shared":
        old = e.op(f"load {kind}, ptr {pointer}, align {size}")
        e.put(f"store {kind} {changed(e, found, old, value, other)}, ptr {pointer}, align {size}")
        return old
    if found.op == "cas":
        pair = e.op(f"cmpxchg ptr {pointer}, {kind} {value}, {kind} {other} seq_cst seq_cst, align {size}")
        return e.op(f"extractvalue {{ {kind}, i1 }} {pair}, 0")
    signed = "" if found.kind[0] == "s" else "u"
    name = {
        "add": "fadd" if kind in ("float", "double") else "add",
        "min": signed + "min",
        "max": signed + "max",
        "exch": "xchg",
        "inc": "uinc_wrap",
        "dec": "udec_wrap",
    }.get(found.op, found.op)
    return e.op(f"atomicrmw {name} ptr {pointer}, {kind} {value} seq_cst, align {size}")


def changed(e: Emitter, found: Atomic, old: str, value: str, other: str) -> str:
    """The new content, for the plain form."""
    kind, op = found.llvm, found.op
    if op == "add":
        return e.op(f"{'fadd' if kind in ('float', 'double') else 'add'} {kind} {old}, {value}")
    if op in ("and", "or", "xor"):
        return e.op(f"{op} {kind} {old}, {value}")
    if op in ("min", "max"):
        test = ("s" if found.kind[0] == "s" else "u") + ("lt" if op == "min" else "gt")
        return e.op(f"select i1 {e.op(f'icmp {test} {kind} {old}, {value}')}, {kind} {old}, {kind} {value}")
    if op == "exch":
        return value
    if op == "cas":
        return e.op(f"select i1 {e.op(f'icmp eq {kind} {old}, {value}')}, {kind} {other}, {kind} {old}")
    if op == "inc":
        wraps = e.op(f"icmp uge {kind} {old}, {value}")
        return e.op(f"select i1 {wraps}, {kind} 0, {kind} {e.op(f'add {kind} {old}, 1')}")
    zero = e.op(f"icmp eq {kind} {old}, 0")
    above = e.op(f"icmp ugt {kind} {old}, {value}")
    wraps = e.op(f"or i1 {zero}, {above}")
    return e.op(f"select i1 {wraps}, {kind} {value}, {kind} {e.op(f'sub {kind} {old}, 1')}")


def half_sum(e: Emitter, kind: str, old: str, value: str) -> str:
    """Sum of two 16-bit floats, or of two pairs of them."""
    if not kind.endswith("x2"):
        total = e.op(
            f"fadd float {half_to_float(e, old, kind, False)}, {half_to_float(e, value, kind, False)}"
        )
        return float_to_half(e, total, kind, False)
    parts = []
    for shift in (0, 16):
        pair = []
        for whole in (old, value):
            moved = e.op(f"lshr i32 {whole}, {shift}") if shift else whole
            pair.append(e.op(f"trunc i32 {moved} to i16"))
        parts.append(e.op(f"zext i16 {half_sum(e, kind[:-2], pair[0], pair[1])} to i32"))
    high = e.op(f"shl i32 {parts[1]}, 16")
    return e.op(f"or i32 {parts[0]}, {high}")


def update_halves(e: Emitter, found: Atomic, space: str, pointer: str, value: str) -> str:
    kind, size = found.llvm, TYPE_SIZE[found.kind]
    if space == "shared":
        old = e.op(f"load {kind}, ptr {pointer}, align {size}")
        e.put(f"store {kind} {half_sum(e, found.kind, old, value)}, ptr {pointer}, align {size}")
        return old
    again, done = e.new_label("retry"), e.new_label("stored")
    e.put(f"br label %{again}")
    e.label(again)
    old = e.op(f"load atomic {kind}, ptr {pointer} monotonic, align {size}")
    new = half_sum(e, found.kind, old, value)
    pair = e.op(f"cmpxchg ptr {pointer}, {kind} {old}, {kind} {new} seq_cst monotonic, align {size}")
    e.put(f"br i1 {e.op(f'extractvalue {{ {kind}, i1 }} {pair}, 1')}, label %{done}, label %{again}")
    e.label(done)
    return old
