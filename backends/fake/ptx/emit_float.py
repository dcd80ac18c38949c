"""Floating-point arithmetic.  f32 and f64 are LLVM's own; f16 and bf16 are computed in float and rounded
once.

Nothing here carries fast-math flags: PTX says where operations may be fused, and `.ftz`, `.sat` and rounding
modes are semantics.  NaN results are canonical where PTX says so and otherwise whatever the host's arithmetic
gives.
"""

from __future__ import annotations

from .emit import Emitter, handles
from .emit_alu import const, intrinsic, operands, type_of
from .errors import invalid
from .flow import Ins, Source

REAL = {"f16": "float", "bf16": "float", "f32": "float", "f64": "double"}
ROUNDINGS = {"rn", "rz", "rm", "rp", "rna"}


def flush(e: Emitter, name: str, vector: bool) -> str:
    """.ftz: subnormal floats become zeros of the same sign."""
    t = e.ty("float", vector)
    size = intrinsic(e, "fabs", "float", vector, name)
    small = e.op(f"fcmp olt {t} {size}, {e.splat_text('float', '0x3810000000000000', vector)}")
    zero = intrinsic(
        e, "copysign", "float", vector, e.splat_text("float", "0x0000000000000000", vector), name
    )
    return e.op(f"select {e.ty('i1', vector)} {small}, {t} {zero}, {t} {name}")


def half_to_float(e: Emitter, name: str, kind: str, vector: bool) -> str:
    """i16 bits of an f16 or bf16 as float; exact."""
    if kind == "f16":
        half = e.op(f"bitcast {e.ty('i16', vector)} {name} to {e.ty('half', vector)}")
        return e.op(f"fpext {e.ty('half', vector)} {half} to {e.ty('float', vector)}")
    t32 = e.ty("i32", vector)
    wide = e.op(f"zext {e.ty('i16', vector)} {name} to {t32}")
    wide = e.op(f"shl {t32} {wide}, {const(e, 'i32', 16, vector)}")
    return e.op(f"bitcast {t32} {wide} to {e.ty('float', vector)}")


def float_to_half(e: Emitter, name: str, kind: str, vector: bool) -> str:
    """A float rounded to nearest even, as the i16 bits of an f16 or bf16.  NaN becomes 0x7FFF, as in PTX."""
    t, t16, bit = e.ty("float", vector), e.ty("i16", vector), e.ty("i1", vector)
    if kind == "f16":
        half = e.op(f"fptrunc {t} {name} to {e.ty('half', vector)}")
        raw = e.op(f"bitcast {e.ty('half', vector)} {half} to {t16}")
    else:
        t32 = e.ty("i32", vector)
        whole = e.op(f"bitcast {t} {name} to {t32}")
        odd = e.op(f"lshr {t32} {whole}, {const(e, 'i32', 16, vector)}")
        odd = e.op(f"and {t32} {odd}, {const(e, 'i32', 1, vector)}")
        up = e.op(f"add {t32} {whole}, {const(e, 'i32', 0x7FFF, vector)}")
        up = e.op(f"add {t32} {up}, {odd}")
        up = e.op(f"lshr {t32} {up}, {const(e, 'i32', 16, vector)}")
        raw = e.op(f"trunc {t32} {up} to {t16}")
    nan = e.op(f"fcmp uno {t} {name}, {name}")
    return e.op(f"select {bit} {nan}, {t16} {const(e, 'i16', 0x7FFF, vector)}, {t16} {raw}")


def float_operand(e: Emitter, source: Source, kind: str, vector: bool, ftz: bool = False) -> tuple[str, str]:
    """An operand of a floating-point type as float or double; returns the name and which."""
    if kind in ("f16", "bf16"):
        return half_to_float(e, e.value(source, "i16", vector), kind, vector), "float"
    if kind not in ("f32", "f64"):
        raise invalid(f"`.{kind}` is not a floating-point type here", e.line)
    real = REAL[kind]
    name = e.value(source, real, vector)
    if ftz and kind == "f32":
        name = flush(e, name, vector)
    return name, real


def saturate(e: Emitter, name: str, real: str, vector: bool) -> str:
    """Clamps to [0, 1]; NaN becomes +0."""
    t, bit = e.ty(real, vector), e.ty("i1", vector)
    zero = e.splat_text(real, "0x0000000000000000", vector)
    one = e.splat_text(real, "0x3FF0000000000000", vector)
    positive = e.op(f"fcmp ogt {t} {name}, {zero}")
    name = e.op(f"select {bit} {positive}, {t} {name}, {t} {zero}")
    below = e.op(f"fcmp olt {t} {name}, {one}")
    return e.op(f"select {bit} {below}, {t} {name}, {t} {one}")


def finish(e: Emitter, ins: Ins, name: str, kind: str, vector: bool) -> None:
    """Saturation, flushing and rounding to the type, then the binding."""
    real = REAL[kind]
    if "ftz" in ins.mods and kind == "f32":
        name = flush(e, name, vector)
    if "sat" in ins.mods:
        name = saturate(e, name, real, vector)
    if "relu" in ins.mods:
        name = relu(e, name, real, vector)
    if kind in ("f16", "bf16"):
        e.define(ins.dst[0], float_to_half(e, name, kind, vector), "i16", vector)
    else:
        e.define(ins.dst[0], name, real, vector)


def relu(e: Emitter, name: str, real: str, vector: bool) -> str:
    """max(x, 0) that keeps NaN."""
    t = e.ty(real, vector)
    zero = e.splat_text(real, "0x0000000000000000", vector)
    negative = e.op(f"fcmp olt {t} {name}, {zero}")
    return e.op(f"select {e.ty('i1', vector)} {negative}, {t} {zero}, {t} {name}")


def packed(e: Emitter, ins: Ins, handler: object) -> bool:
    """f16x2/bf16x2: runs the handler on both halves and packs the results; whether it was one."""
    kind = ins.mods[-1] if ins.mods else ""
    if kind not in ("f16x2", "bf16x2"):
        return False
    assert callable(handler)
    vector = e.is_vector(ins.dst[0])
    t32, t16 = e.ty("i32", vector), e.ty("i16", vector)
    halves: list[str] = []
    for part in range(2):
        sources: list[Source] = []
        for source in ins.src:
            whole = e.value(source, "i32", vector)
            if part:
                whole = e.op(f"lshr {t32} {whole}, {const(e, 'i32', 16, vector)}")
            sources.append(temporary(e, e.op(f"trunc {t32} {whole} to {t16}"), vector))
        dst = temporary(e, "", vector)
        handler(e, Ins(ins.op, (*ins.mods[:-1], kind[:-2]), [dst], sources, ins.line))
        halves.append(e.cache[dst, "i16", vector])
    low = e.op(f"zext {t16} {halves[0]} to {t32}")
    high = e.op(f"zext {t16} {halves[1]} to {t32}")
    high = e.op(f"shl {t32} {high}, {const(e, 'i32', 16, vector)}")
    e.define(ins.dst[0], e.op(f"or {t32} {low}, {high}"), "i32", vector)
    return True


def temporary(e: Emitter, name: str, vector: bool) -> int:
    """A value of this block that is not in the flow: bits of an f16."""
    value = len(e.float_kind)
    e.float_kind.append("i16")
    from .shape_rules import UNIFORM, VARIES

    e.shapes.facts.append(VARIES if vector else UNIFORM)
    if name:
        e.home[value] = ("i16", vector)
        e.cache[value, "i16", vector] = name
    return value


def rounding(ins: Ins) -> str:
    found = [m for m in ins.mods if m in ROUNDINGS]
    return found[0] if found else "rn"


def check_mods(e: Emitter, ins: Ins, *allowed: str) -> None:
    if set(ins.mods[:-1]) - ROUNDINGS - set(allowed):
        raise e.unsupported(ins)


def float_add(e: Emitter, ins: Ins) -> None:
    """add and sub."""
    if packed(e, ins, float_add):
        return
    check_mods(e, ins, "ftz", "sat")
    two_operands(e, ins, type_of(ins, set(REAL)))


def float_mul(e: Emitter, ins: Ins) -> None:
    if packed(e, ins, float_mul):
        return
    check_mods(e, ins, "ftz", "sat")
    two_operands(e, ins, type_of(ins, set(REAL)))


def two_operands(e: Emitter, ins: Ins, kind: str) -> None:
    """An operation of IEEE 754 that LLVM calls by PTX's name with an f before it."""
    a, b = operands(ins, 2)
    vector = e.is_vector(ins.dst[0])
    ftz = "ftz" in ins.mods
    x, real = float_operand(e, a, kind, vector, ftz)
    y, _ = float_operand(e, b, kind, vector, ftz)
    if rounding(ins) != "rn":
        from .emit_rounding import directed

        name = directed(e, ins.op, real, rounding(ins), vector, x, y)
    else:
        name = e.op(f"f{ins.op} {e.ty(real, vector)} {x}, {y}")
    finish(e, ins, name, kind, vector)


def odd_sum(e: Emitter, p: str, c: str, vector: bool) -> str:
    """p + c in float, rounded to odd: rounding that once more to 11 or 8 bits is then exact."""
    t, t32, bit = e.ty("float", vector), e.ty("i32", vector), e.ty("i1", vector)
    s = e.op(f"fadd {t} {p}, {c}")
    back = e.op(f"fsub {t} {s}, {p}")
    rest = e.op(f"fsub {t} {s}, {back}")
    error = e.op(f"fadd {t} {e.op(f'fsub {t} {p}, {rest}')}, {e.op(f'fsub {t} {c}, {back}')}")
    zero = e.splat_text("float", "0x0000000000000000", vector)
    inexact = e.op(f"fcmp one {t} {error}, {zero}")
    bits = e.op(f"bitcast {t} {s} to {t32}")
    error_bits = e.op(f"bitcast {t} {error} to {t32}")
    differ = e.op(f"icmp slt {t32} {e.op(f'xor {t32} {bits}, {error_bits}')}, {const(e, 'i32', 0, vector)}")
    step = e.op(
        f"select {bit} {differ}, {t32} {const(e, 'i32', -1, vector)}, {t32} {const(e, 'i32', 1, vector)}"
    )
    flipped = e.op(f"xor {t32} {bits}, {const(e, 'i32', 1, vector)}")
    even = e.op(f"trunc {t32} {flipped} to {bit}")
    move = e.op(f"select {bit} {inexact}, {bit} {even}, {bit} {const(e, 'i1', 0, vector)}")
    moved = e.op(f"add {t32} {bits}, {step}")
    bits = e.op(f"select {bit} {move}, {t32} {moved}, {t32} {bits}")
    return e.op(f"bitcast {t32} {bits} to {t}")


@handles("fma")
def fused(e: Emitter, ins: Ins) -> None:
    if packed(e, ins, fused):
        return
    check_mods(e, ins, "ftz", "sat", "relu")
    kind = type_of(ins, set(REAL))
    vector = e.is_vector(ins.dst[0])
    ftz = "ftz" in ins.mods
    parts = [float_operand(e, s, kind, vector, ftz) for s in operands(ins, 3)]
    real = parts[0][1]
    x, y, z = (p[0] for p in parts)
    if kind in ("f16", "bf16"):
        product = e.op(f"fmul {e.ty('float', vector)} {x}, {y}")
        name = odd_sum(e, product, z, vector)
    elif rounding(ins) != "rn":
        from .emit_rounding import directed

        name = directed(e, "fma", real, rounding(ins), vector, x, y, z)
    else:
        name = intrinsic(e, "fma", real, vector, x, y, z)
    finish(e, ins, name, kind, vector)


def float_div(e: Emitter, ins: Ins) -> None:
    """div.rn, and .approx and .full, which are allowed to be less exact but need not be."""
    if ins.op != "div":
        raise e.unsupported(ins)
    check_mods(e, ins, "ftz", "approx", "full")
    two_operands(e, ins, type_of(ins, {"f32", "f64"}))


def float_sign(e: Emitter, ins: Ins) -> None:
    check_mods(e, ins, "ftz")
    kind = type_of(ins)
    vector = e.is_vector(ins.dst[0])
    source = operands(ins, 1)[0]
    if kind in ("f16", "bf16", "f16x2", "bf16x2"):
        llvm = "i32" if kind.endswith("x2") else "i16"
        ones = {"i32": 0x80008000, "i16": 0x8000}[llvm]
        name = e.value(source, llvm, vector)
        if ins.op == "neg":
            name = e.op(f"xor {e.ty(llvm, vector)} {name}, {const(e, llvm, ones, vector)}")
        else:
            name = e.op(f"and {e.ty(llvm, vector)} {name}, {const(e, llvm, ~ones, vector)}")
        e.define(ins.dst[0], name, llvm, vector)
        return
    x, real = float_operand(e, source, kind, vector, "ftz" in ins.mods)
    name = (
        e.op(f"fneg {e.ty(real, vector)} {x}") if ins.op == "neg" else intrinsic(e, "fabs", real, vector, x)
    )
    e.define(ins.dst[0], name, real, vector)


def float_extreme(e: Emitter, ins: Ins) -> None:
    """min, max: a NaN operand gives the other one (with .NaN: NaN); -0 is less than +0."""
    if packed(e, ins, float_extreme):
        return
    check_mods(e, ins, "ftz", "NaN", "xorsign", "abs")
    if "xorsign" in ins.mods or "abs" in ins.mods:
        raise e.unsupported(ins)
    kind = type_of(ins, set(REAL))
    vector = e.is_vector(ins.dst[0])
    parts = [float_operand(e, s, kind, vector, "ftz" in ins.mods) for s in ins.src]
    real = parts[0][1]
    name = parts[0][0]
    for other, _ in parts[1:]:
        name = extreme_of(e, ins.op, name, other, real, vector, "NaN" in ins.mods)
    finish(e, ins, name, kind, vector)


def extreme_of(e: Emitter, op: str, x: str, y: str, real: str, vector: bool, keep_nan: bool) -> str:
    t, bit = e.ty(real, vector), e.ty("i1", vector)
    if keep_nan:
        name = intrinsic(e, f"{op}imum", real, vector, x, y)
        unordered = e.op(f"fcmp uno {t} {x}, {y}")
        nan = e.splat_text(real, "0x7FFFFFFFE0000000" if real == "float" else "0x7FFFFFFFFFFFFFFF", vector)
        return e.op(f"select {bit} {unordered}, {t} {nan}, {t} {name}")
    name = intrinsic(e, f"{op}imum", real, vector, x, y)
    nan_x = e.op(f"fcmp uno {t} {x}, {x}")
    nan_y = e.op(f"fcmp uno {t} {y}, {y}")
    name = e.op(f"select {bit} {nan_y}, {t} {x}, {t} {name}")
    name = e.op(f"select {bit} {nan_x}, {t} {y}, {t} {name}")
    both = e.op(f"and {bit} {nan_x}, {nan_y}")
    nan = e.splat_text(real, "0x7FFFFFFFE0000000" if real == "float" else "0x7FFFFFFFFFFFFFFF", vector)
    return e.op(f"select {bit} {both}, {t} {nan}, {t} {name}")


@handles("sqrt", "rcp", "rsqrt")
def roots(e: Emitter, ins: Ins) -> None:
    check_mods(e, ins, "ftz", "approx")
    kind = type_of(ins, {"f32", "f64"})
    vector = e.is_vector(ins.dst[0])
    x, real = float_operand(e, operands(ins, 1)[0], kind, vector, "ftz" in ins.mods)
    t = e.ty(real, vector)
    one = e.splat_text(real, "0x3FF0000000000000", vector)
    if rounding(ins) != "rn":
        from .emit_rounding import directed

        if ins.op == "rcp":
            name = directed(e, "div", real, rounding(ins), vector, one, x)
        else:
            name = directed(e, ins.op, real, rounding(ins), vector, x)
    elif ins.op == "rcp":
        name = e.op(f"fdiv {t} {one}, {x}")
    else:
        name = intrinsic(e, "sqrt", real, vector, x)
        if ins.op == "rsqrt":
            name = e.op(f"fdiv {t} {one}, {name}")
    finish(e, ins, name, kind, vector)


@handles("copysign")
def copysign(e: Emitter, ins: Ins) -> None:
    """copysign.f32 d, a, b: the sign of a on b."""
    check_mods(e, ins)
    kind = type_of(ins, {"f32", "f64"})
    a, b = operands(ins, 2)
    vector = e.is_vector(ins.dst[0])
    real = REAL[kind]
    e.define(
        ins.dst[0],
        intrinsic(e, "copysign", real, vector, e.value(b, real, vector), e.value(a, real, vector)),
        real,
        vector,
    )


@handles("testp")
def test_property(e: Emitter, ins: Ins) -> None:
    kind = type_of(ins, {"f32", "f64"})
    vector = e.is_vector(ins.dst[0])
    real = REAL[kind]
    # LLVM's is.fpclass: bits for snan 1, qnan 2, -inf 4, -normal 8, -sub 16, -0 32, +0 64, +sub 128, +normal
    # 256, +inf 512
    classes = {
        "finite": 0x1F8,
        "infinite": 0x204,
        "number": 0x3FC,
        "notanumber": 0x3,
        "normal": 0x108,
        "subnormal": 0x90,
    }
    if len(ins.mods) != 2 or ins.mods[0] not in classes:
        raise e.unsupported(ins)
    x = e.value(operands(ins, 1)[0], real, vector)
    t, suffix = e.ty(real, vector), e.suffix(real, vector)
    name = f"llvm.is.fpclass.{suffix}"
    e.declare(name, e.ty("i1", vector), f"{t}, i32")
    e.define(
        ins.dst[0],
        e.op(f"call {e.ty('i1', vector)} @{name}({t} {x}, i32 {classes[ins.mods[0]]})"),
        "i1",
        vector,
    )
