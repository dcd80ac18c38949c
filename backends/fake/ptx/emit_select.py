"""Comparison, selection and moves."""

from __future__ import annotations

from .emit import Emitter, handles
from .emit_alu import const, only, operands, type_of
from .errors import invalid
from .flow import Ins, Source
from .syntax import TYPE_SIZE
from .values import BITS, LLVM_TYPE

# ---- comparison and selection ----------------------------------------------------------------------
INTEGER_TESTS = {"eq": "eq", "ne": "ne", "lo": "ult", "ls": "ule", "hi": "ugt", "hs": "uge"}
FLOAT_TESTS = {
    "eq": "oeq",
    "ne": "one",
    "lt": "olt",
    "le": "ole",
    "gt": "ogt",
    "ge": "oge",
    "equ": "ueq",
    "neu": "une",
    "ltu": "ult",
    "leu": "ule",
    "gtu": "ugt",
    "geu": "uge",
    "num": "ord",
    "nan": "uno",
}


def comparison(e: Emitter, ins: Ins, test: str, kind: str, vector: bool) -> str:
    a, b = ins.src[0], ins.src[1]
    if kind[0] == "f" or kind[:2] == "bf":
        from .emit_float import float_operand

        if test not in FLOAT_TESTS or kind in ("f16x2", "bf16x2"):
            raise e.unsupported(ins)
        x, real = float_operand(e, a, kind, vector, "ftz" in ins.mods)
        y, _ = float_operand(e, b, kind, vector, "ftz" in ins.mods)
        return e.op(f"fcmp {FLOAT_TESTS[test]} {e.ty(real, vector)} {x}, {y}")
    llvm = LLVM_TYPE[kind]
    name = INTEGER_TESTS.get(test) or {"lt": "lt", "le": "le", "gt": "gt", "ge": "ge"}.get(test)
    if name is None:
        raise e.unsupported(ins)
    if len(name) == 2 and name not in ("eq", "ne"):
        name = ("s" if kind[0] == "s" else "u") + name
    return e.op(f"icmp {name} {e.ty(llvm, vector)} {e.value(a, llvm, vector)}, {e.value(b, llvm, vector)}")


@handles("setp", "set")
def compare(e: Emitter, ins: Ins) -> None:
    mods = [m for m in ins.mods if m != "ftz"]
    boolean = mods[1] if len(mods) > 1 and mods[1] in ("and", "or", "xor") else None
    kinds = [m for m in mods[1:] if m in TYPE_SIZE]
    expected = 2 if ins.op == "set" else 1
    if not mods or len(mods) != 1 + len(kinds) + (boolean is not None) or len(kinds) != expected:
        raise e.unsupported(ins)
    if len(ins.src) != (3 if boolean else 2):
        raise invalid(f"`{ins.name}` with {len(ins.src)} operands", ins.line)
    vector = any(d >= 0 and e.is_vector(d) for d in ins.dst)
    test = comparison(e, ins, mods[0], kinds[-1], vector)
    t = e.ty("i1", vector)
    results = [test]
    if len(ins.dst) > 1:
        results.append(e.op(f"xor {t} {test}, {const(e, 'i1', -1, vector)}"))
    if boolean:
        other = e.value(ins.src[2], "i1", vector)
        results = [e.op(f"{boolean} {t} {r}, {other}") for r in results]
    for value, name in zip(ins.dst, results, strict=False):
        if ins.op == "setp":
            e.define(value, name, "i1", vector)
        else:
            define_set(e, value, name, kinds[0], vector)


def define_set(e: Emitter, value: int, flag: str, kind: str, vector: bool) -> None:
    llvm = LLVM_TYPE[kind]
    if llvm in ("float", "double"):
        one = e.splat_text(llvm, "0x3FF0000000000000", vector)
        zero = e.splat_text(llvm, "0x0000000000000000", vector)
    else:
        one = const(e, llvm, {"f16": 0x3C00, "bf16": 0x3F80}.get(kind, -1), vector)
        zero = const(e, llvm, 0, vector)
    t = e.ty(llvm, vector)
    e.define(value, e.op(f"select {e.ty('i1', vector)} {flag}, {t} {one}, {t} {zero}"), llvm, vector)


def choose(e: Emitter, dst: int, flag: Source, a: Source, b: Source, llvm: str) -> None:
    vector = e.is_vector(dst)
    x, y = e.value(a, llvm, vector), e.value(b, llvm, vector)
    wide = vector and e.shape(flag) != 0
    condition = e.value(flag, "i1", wide)
    t = e.ty(llvm, vector)
    e.define(dst, e.op(f"select {e.ty('i1', wide)} {condition}, {t} {x}, {t} {y}"), llvm, vector)


@handles("selp", "$select")
def select(e: Emitter, ins: Ins) -> None:
    dst = ins.dst[0]
    if ins.op == "$select":
        choose(e, dst, ins.src[0], ins.src[1], ins.src[2], e.float_kind[dst])
        return
    only(e, ins)
    kind = LLVM_TYPE[type_of(ins)]
    a, b, flag = operands(ins, 3)
    if BITS[e.float_kind[dst]] == BITS[kind]:
        kind = e.float_kind[dst]
    choose(e, dst, flag, a, b, kind)


@handles("slct")
def select_by_sign(e: Emitter, ins: Ins) -> None:
    mods = [m for m in ins.mods if m != "ftz"]
    if len(mods) != 2 or mods[1] not in ("s32", "f32"):
        raise e.unsupported(ins)
    a, b, c = operands(ins, 3)
    vector = e.is_vector(ins.dst[0])
    llvm = LLVM_TYPE[mods[0]]
    if mods[1] == "s32":
        flag = e.op(
            f"icmp sge {e.ty('i32', vector)} {e.value(c, 'i32', vector)}, {const(e, 'i32', 0, vector)}"
        )
    else:
        from .emit_float import float_operand

        x, _ = float_operand(e, c, "f32", vector, "ftz" in ins.mods)
        flag = e.op(f"fcmp oge {e.ty('float', vector)} {x}, {const(e, 'float', 0, vector)}")
    t = e.ty(llvm, vector)
    x, y = e.value(a, llvm, vector), e.value(b, llvm, vector)
    e.define(ins.dst[0], e.op(f"select {e.ty('i1', vector)} {flag}, {t} {x}, {t} {y}"), llvm, vector)


# ---- moves ------------------------------------------------------------------------------------------
@handles("mov", "$move")
def move(e: Emitter, ins: Ins) -> None:
    kind = type_of(ins)
    if ins.op == "mov":
        only(e, ins)
    if len(ins.dst) > 1:
        unpack(e, ins, kind)
    elif len(ins.src) > 1:
        pack(e, ins, kind)
    else:
        dst = ins.dst[0]
        if dst < 0:
            return
        vector = e.is_vector(dst)
        home = e.float_kind[dst]
        llvm = LLVM_TYPE[kind]
        if BITS[home] == BITS[llvm]:
            llvm = home
        e.define(dst, e.value(ins.src[0], llvm, vector), llvm, vector)


def unpack(e: Emitter, ins: Ins, kind: str) -> None:
    """mov.b64 {a, b}, c: the parts of a register, lowest first."""
    total = 8 * TYPE_SIZE[kind]
    part = total // len(ins.dst)
    if len(ins.src) != 1 or part * len(ins.dst) != total or part < 8:
        raise invalid(f"malformed `{ins.name}`", ins.line)
    vector = any(d >= 0 and e.is_vector(d) for d in ins.dst)
    t = e.ty(f"i{total}", vector)
    whole = e.value(ins.src[0], f"i{total}", vector)
    for i, value in enumerate(ins.dst):
        if value < 0:
            continue
        name = e.op(f"lshr {t} {whole}, {const(e, f'i{total}', part * i, vector)}") if i else whole
        name = e.op(f"trunc {t} {name} to {e.ty(f'i{part}', vector)}")
        e.define(value, name, f"i{part}", vector)


def pack(e: Emitter, ins: Ins, kind: str) -> None:
    total = 8 * TYPE_SIZE[kind]
    part = total // len(ins.src)
    if part * len(ins.src) != total or part < 8:
        raise invalid(f"malformed `{ins.name}`", ins.line)
    vector = e.is_vector(ins.dst[0])
    t = e.ty(f"i{total}", vector)
    result = ""
    for i, source in enumerate(ins.src):
        name = e.op(f"zext {e.ty(f'i{part}', vector)} {e.value(source, f'i{part}', vector)} to {t}")
        if i:
            name = e.op(f"shl {t} {name}, {const(e, f'i{total}', part * i, vector)}")
            name = e.op(f"or {t} {result}, {name}")
        result = name
    e.define(ins.dst[0], result, f"i{total}", vector)
