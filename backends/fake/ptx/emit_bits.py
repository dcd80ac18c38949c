"""Bit manipulation: popc, clz, brev, bfe, bfi, bfind, prmt, lop3, sad, dp4a, dp2a, fns."""

from __future__ import annotations

from .emit import Emitter, handles
from .emit_alu import const, intrinsic, only, operands, type_of
from .flow import Ins, Source
from .syntax import Imm
from .values import BITS, LLVM_TYPE


@handles("popc", "clz")
def count(e: Emitter, ins: Ins) -> None:
    only(e, ins)
    kind = LLVM_TYPE[type_of(ins, {"b32", "b64"})]
    vector = e.is_vector(ins.dst[0])
    x = e.value(operands(ins, 1)[0], kind, vector)
    if ins.op == "popc":
        name = intrinsic(e, "ctpop", kind, vector, x)
    else:
        name = intrinsic(e, "ctlz", kind, vector, x, tail="false", tail_type="i1")
    if kind == "i64":
        name = e.op(f"trunc {e.ty(kind, vector)} {name} to {e.ty('i32', vector)}")
    e.define(ins.dst[0], name, "i32", vector)


@handles("brev")
def reverse(e: Emitter, ins: Ins) -> None:
    only(e, ins)
    kind = LLVM_TYPE[type_of(ins, {"b32", "b64"})]
    vector = e.is_vector(ins.dst[0])
    e.define(
        ins.dst[0],
        intrinsic(e, "bitreverse", kind, vector, e.value(operands(ins, 1)[0], kind, vector)),
        kind,
        vector,
    )


@handles("bfind")
def find(e: Emitter, ins: Ins) -> None:
    """The highest bit that is set (of a negative number: clear), or all ones."""
    only(e, ins, "shiftamt")
    ptx = type_of(ins, {"u32", "s32", "u64", "s64"})
    kind = LLVM_TYPE[ptx]
    vector = e.is_vector(ins.dst[0])
    t = e.ty(kind, vector)
    x = e.value(operands(ins, 1)[0], kind, vector)
    if ptx[0] == "s":
        x = e.op(f"xor {t} {x}, {e.op(f'ashr {t} {x}, {const(e, kind, BITS[kind] - 1, vector)}')}")
    zeros = intrinsic(e, "ctlz", kind, vector, x, tail="false", tail_type="i1")
    name = (
        zeros
        if "shiftamt" in ins.mods
        else e.op(f"sub {t} {const(e, kind, BITS[kind] - 1, vector)}, {zeros}")
    )
    none = e.op(f"icmp eq {t} {x}, {const(e, kind, 0, vector)}")
    name = e.op(f"select {e.ty('i1', vector)} {none}, {t} {const(e, kind, -1, vector)}, {t} {name}")
    if kind == "i64":
        name = e.op(f"trunc {t} {name} to {e.ty('i32', vector)}")
    e.define(ins.dst[0], name, "i32", vector)


def field(e: Emitter, source: Source, kind: str, vector: bool) -> str:
    """A position or length operand: its low 8 bits, widened."""
    t32 = e.ty("i32", vector)
    name = e.op(f"and {t32} {e.value(source, 'i32', vector)}, {const(e, 'i32', 255, vector)}")
    return e.convert(name, "i32", kind, vector)


@handles("bfe")
def extract(e: Emitter, ins: Ins) -> None:
    only(e, ins)
    ptx = type_of(ins, {"u32", "s32", "u64", "s64"})
    kind = LLVM_TYPE[ptx]
    bits = BITS[kind]
    vector = e.is_vector(ins.dst[0])
    t, bit = e.ty(kind, vector), e.ty("i1", vector)
    a, b, c = operands(ins, 3)
    x = e.value(a, kind, vector)
    position, length = field(e, b, kind, vector), field(e, c, kind, vector)
    top = const(e, kind, bits - 1, vector)
    signed = ptx[0] == "s"
    # Shift the field to the top of the register, then down; what is above the register reads as sign or zero.
    inside = e.op(f"icmp ult {t} {position}, {const(e, kind, bits, vector)}")
    safe = e.op(f"select {bit} {inside}, {t} {position}, {t} {top}")
    fill = e.op(f"ashr {t} {x}, {top}") if signed else const(e, kind, 0, vector)
    moved = e.op(f"{'ashr' if signed else 'lshr'} {t} {x}, {safe}")
    moved = e.op(f"select {bit} {inside}, {t} {moved}, {t} {fill}")
    room = e.op(f"sub {t} {const(e, kind, bits, vector)}, {length}")
    whole = e.op(f"icmp uge {t} {length}, {const(e, kind, bits, vector)}")
    empty = e.op(f"icmp eq {t} {length}, {const(e, kind, 0, vector)}")
    either = e.op(f"or {bit} {whole}, {empty}")
    room = e.op(f"select {bit} {either}, {t} {const(e, kind, 0, vector)}, {t} {room}")
    name = e.op(f"shl {t} {moved}, {room}")
    name = e.op(f"{'ashr' if signed else 'lshr'} {t} {name}, {room}")
    e.define(
        ins.dst[0], e.op(f"select {bit} {empty}, {t} {const(e, kind, 0, vector)}, {t} {name}"), kind, vector
    )


@handles("bfi")
def insert(e: Emitter, ins: Ins) -> None:
    only(e, ins)
    kind = LLVM_TYPE[type_of(ins, {"b32", "b64"})]
    bits = BITS[kind]
    vector = e.is_vector(ins.dst[0])
    t, bit = e.ty(kind, vector), e.ty("i1", vector)
    a, b, c, d = operands(ins, 4)
    x, y = e.value(a, kind, vector), e.value(b, kind, vector)
    position, length = field(e, c, kind, vector), field(e, d, kind, vector)
    limit, top = const(e, kind, bits, vector), const(e, kind, bits - 1, vector)
    short = e.op(f"icmp ult {t} {length}, {limit}")
    ones = e.op(
        f"shl {t} {const(e, kind, -1, vector)}, {e.op(f'select {bit} {short}, {t} {length}, {t} {top}')}"
    )
    ones = e.op(f"xor {t} {ones}, {const(e, kind, -1, vector)}")
    ones = e.op(f"select {bit} {short}, {t} {ones}, {t} {const(e, kind, -1, vector)}")
    inside = e.op(f"icmp ult {t} {position}, {limit}")
    safe = e.op(f"select {bit} {inside}, {t} {position}, {t} {top}")
    mask = e.op(
        f"select {bit} {inside}, {t} {e.op(f'shl {t} {ones}, {safe}')}, {t} {const(e, kind, 0, vector)}"
    )
    new = e.op(f"and {t} {e.op(f'shl {t} {x}, {safe}')}, {mask}")
    inverse = e.op(f"xor {t} {mask}, {const(e, kind, -1, vector)}")
    old = e.op(f"and {t} {y}, {inverse}")
    e.define(ins.dst[0], e.op(f"or {t} {new}, {old}"), kind, vector)


@handles("prmt")
def permute(e: Emitter, ins: Ins) -> None:
    """Picks four bytes of the eight of {b, a}; bit 3 of a selector replicates the sign instead."""
    if ins.mods not in (
        ("b32",),
        ("b32", "f4e"),
        ("b32", "b4e"),
        ("b32", "rc8"),
        ("b32", "ecl"),
        ("b32", "ecr"),
        ("b32", "rc16"),
    ):
        raise e.unsupported(ins)
    a, b, c = operands(ins, 3)
    vector = e.is_vector(ins.dst[0])
    t32, t64 = e.ty("i32", vector), e.ty("i64", vector)
    low = e.op(f"zext {t32} {e.value(a, 'i32', vector)} to {t64}")
    high = e.op(f"zext {t32} {e.value(b, 'i32', vector)} to {t64}")
    high = e.op(f"shl {t64} {high}, {const(e, 'i64', 32, vector)}")
    both = e.op(f"or {t64} {low}, {high}")
    selector = e.value(c, "i32", vector)
    result = ""
    for i in range(4):
        if len(ins.mods) == 1:
            byte = selected_byte(e, both, selector, 4 * i, vector)
        else:
            byte = moded_byte(e, both, selector, ins.mods[1], i, vector)
        if i:
            byte = e.op(f"shl {t32} {byte}, {const(e, 'i32', 8 * i, vector)}")
        result = e.op(f"or {t32} {result}, {byte}") if result else byte
    e.define(ins.dst[0], result, "i32", vector)


def byte_at(e: Emitter, both: str, index: str, vector: bool) -> str:
    t32, t64 = e.ty("i32", vector), e.ty("i64", vector)
    index = e.op(f"shl {t32} {index}, {const(e, 'i32', 3, vector)}")
    amount = e.op(f"zext {t32} {index} to {t64}")
    name = e.op(f"trunc {t64} {e.op(f'lshr {t64} {both}, {amount}')} to {t32}")
    return e.op(f"and {t32} {name}, {const(e, 'i32', 255, vector)}")


def selected_byte(e: Emitter, both: str, selector: str, shift: int, vector: bool) -> str:
    t32 = e.ty("i32", vector)
    nibble = e.op(f"lshr {t32} {selector}, {const(e, 'i32', shift, vector)}") if shift else selector
    index = e.op(f"and {t32} {nibble}, {const(e, 'i32', 7, vector)}")
    byte = byte_at(e, both, index, vector)
    up = e.op(f"shl {t32} {byte}, {const(e, 'i32', 24, vector)}")
    sign = e.op(f"ashr {t32} {up}, {const(e, 'i32', 31, vector)}")
    sign = e.op(f"and {t32} {sign}, {const(e, 'i32', 255, vector)}")
    replicate = e.op(f"and {t32} {nibble}, {const(e, 'i32', 8, vector)}")
    flag = e.op(f"icmp ne {t32} {replicate}, {const(e, 'i32', 0, vector)}")
    return e.op(f"select {e.ty('i1', vector)} {flag}, {t32} {sign}, {t32} {byte}")


def moded_byte(e: Emitter, both: str, selector: str, mode: str, i: int, vector: bool) -> str:
    """Byte i in the special modes, by a table over the two low bits of the selector."""
    table = {
        "f4e": [[0, 1, 2, 3], [1, 2, 3, 4], [2, 3, 4, 5], [3, 4, 5, 6]],
        "b4e": [[0, 7, 6, 5], [1, 0, 7, 6], [2, 1, 0, 7], [3, 2, 1, 0]],
        "rc8": [[0] * 4, [1] * 4, [2] * 4, [3] * 4],
        "ecl": [[0, 1, 2, 3], [1, 1, 2, 3], [2, 2, 2, 3], [3, 3, 3, 3]],
        "ecr": [[0, 0, 0, 0], [0, 1, 1, 1], [0, 1, 2, 2], [0, 1, 2, 3]],
        "rc16": [[0, 1, 0, 1], [2, 3, 2, 3], [0, 1, 0, 1], [2, 3, 2, 3]],
    }[mode]
    t32 = e.ty("i32", vector)
    choice = e.op(f"and {t32} {selector}, {const(e, 'i32', 3, vector)}")
    index = const(e, "i32", table[0][i], vector)
    for k in range(1, 4):
        here = e.op(f"icmp eq {t32} {choice}, {const(e, 'i32', k, vector)}")
        index = e.op(
            f"select {e.ty('i1', vector)} {here}, {t32} {const(e, 'i32', table[k][i], vector)}, {t32} {index}"
        )
    return byte_at(e, both, index, vector)


@handles("lop3")
def logic3(e: Emitter, ins: Ins) -> None:
    """Any function of three bits, given by its table."""
    if ins.mods != ("b32",) or len(ins.src) != 4 or not isinstance(ins.src[3], Imm) or len(ins.dst) != 1:
        raise e.unsupported(ins)
    table = ins.src[3].value
    vector = e.is_vector(ins.dst[0])
    t = e.ty("i32", vector)
    values = [e.value(s, "i32", vector) for s in ins.src[:3]]
    inverse = [e.op(f"xor {t} {v}, {const(e, 'i32', -1, vector)}") for v in values]
    result = const(e, "i32", 0, vector)
    for row in range(8):
        if table >> row & 1:
            parts = [values[i] if row >> (2 - i) & 1 else inverse[i] for i in range(3)]
            term = e.op(f"and {t} {e.op(f'and {t} {parts[0]}, {parts[1]}')}, {parts[2]}")
            result = e.op(f"or {t} {result}, {term}")
    e.define(ins.dst[0], result, "i32", vector)


@handles("sad")
def absolute_difference(e: Emitter, ins: Ins) -> None:
    only(e, ins)
    ptx = type_of(ins)
    kind = LLVM_TYPE[ptx]
    vector = e.is_vector(ins.dst[0])
    t = e.ty(kind, vector)
    a, b, c = (e.value(s, kind, vector) for s in operands(ins, 3))
    s = "s" if ptx[0] == "s" else "u"
    larger, smaller = (intrinsic(e, s + which, kind, vector, a, b) for which in ("max", "min"))
    difference = e.op(f"sub {t} {larger}, {smaller}")
    e.define(ins.dst[0], e.op(f"add {t} {difference}, {c}"), kind, vector)


@handles("dp4a", "dp2a")
def dot_product(e: Emitter, ins: Ins) -> None:
    mods = list(ins.mods)
    half = None
    if ins.op == "dp2a":
        half = mods.pop(0)
        if half not in ("lo", "hi"):
            raise e.unsupported(ins)
    if len(mods) != 2 or any(m not in ("u32", "s32") for m in mods):
        raise e.unsupported(ins)
    a, b, c = operands(ins, 3)
    vector = e.is_vector(ins.dst[0])
    t = e.ty("i32", vector)
    x, y, total = (e.value(s, "i32", vector) for s in (a, b, c))
    parts = 4 if half is None else 2
    for i in range(parts):
        width = 8 if half is None else 16
        offset = i * 8 + (16 if half == "hi" else 0)
        p = piece(e, x, i * width, width, mods[0][0] == "s", vector)
        q = piece(e, y, offset, 8, mods[1][0] == "s", vector)
        total = e.op(f"add {t} {total}, {e.op(f'mul {t} {p}, {q}')}")
    e.define(ins.dst[0], total, "i32", vector)


def piece(e: Emitter, x: str, at: int, width: int, signed: bool, vector: bool) -> str:
    """Bits [at, at + width) of a 32-bit value, extended."""
    t = e.ty("i32", vector)
    up = e.op(f"shl {t} {x}, {const(e, 'i32', 32 - width - at, vector)}")
    return e.op(f"{'ashr' if signed else 'lshr'} {t} {up}, {const(e, 'i32', 32 - width, vector)}")


@handles("bmsk")
def make_mask(e: Emitter, ins: Ins) -> None:
    if len(ins.mods) != 2 or ins.mods[0] not in ("clamp", "wrap") or ins.mods[1] != "b32":
        raise e.unsupported(ins)
    vector = e.is_vector(ins.dst[0])
    t, bit = e.ty("i32", vector), e.ty("i1", vector)
    position, length = (e.value(s, "i32", vector) for s in operands(ins, 2))
    limit, low = const(e, "i32", 32, vector), const(e, "i32", 31, vector)
    if ins.mods[0] == "wrap":
        position = e.op(f"and {t} {position}, {low}")
        length = e.op(f"and {t} {length}, {low}")
    short = e.op(f"icmp ult {t} {length}, {limit}")
    ones = e.op(
        f"shl {t} {const(e, 'i32', -1, vector)}, {e.op(f'select {bit} {short}, {t} {length}, {t} {low}')}"
    )
    ones = e.op(f"xor {t} {ones}, {const(e, 'i32', -1, vector)}")
    ones = e.op(f"select {bit} {short}, {t} {ones}, {t} {const(e, 'i32', -1, vector)}")
    inside = e.op(f"icmp ult {t} {position}, {limit}")
    moved = e.op(f"shl {t} {ones}, {e.op(f'select {bit} {inside}, {t} {position}, {t} {low}')}")
    e.define(
        ins.dst[0],
        e.op(f"select {bit} {inside}, {t} {moved}, {t} {const(e, 'i32', 0, vector)}"),
        "i32",
        vector,
    )
