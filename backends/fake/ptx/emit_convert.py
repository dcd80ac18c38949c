"""cvt: conversions between all number types, with rounding, saturation and PTX's treatment of NaN.

Float to integer always saturates and NaN becomes 0, as in PTX; so LLVM's saturating conversions are used
throughout, never the plain ones, whose result out of range is undefined.
"""

from __future__ import annotations

from .emit import Emitter, handles
from .emit_alu import const, intrinsic, operands, widen
from .emit_float import ROUNDINGS, finish, float_operand, float_to_half, flush, relu, saturate
from .errors import PtxError, invalid
from .flow import Ins, Source
from .syntax import TYPE_SIZE
from .values import BITS, LLVM_TYPE

INTEGER_ROUND = {"rni": "roundeven", "rzi": "trunc", "rmi": "floor", "rpi": "ceil"}
FLOATS = {"f16", "bf16", "f32", "f64"}


def is_float(kind: str) -> bool:
    return kind in FLOATS


@handles("cvt")
def convert(e: Emitter, ins: Ins) -> None:
    kinds = [m for m in ins.mods if m in TYPE_SIZE or m in ("tf32", "e4m3x2", "e5m2x2")]
    rest = [m for m in ins.mods if m not in kinds]
    if set(rest) - ROUNDINGS - set(INTEGER_ROUND) - {"ftz", "sat", "relu", "satfinite", "pack"}:
        raise e.unsupported(ins)
    if len(kinds) != 2 or "pack" in rest:
        raise e.unsupported(ins)
    to, source = kinds
    if "x2" in source or to in ("e4m3x2", "e5m2x2"):
        from .emit_float8 import convert_float8

        convert_float8(e, ins, to, source)
        return
    if to in ("f16x2", "bf16x2"):
        pack_pair(e, ins, to, source)
        return
    if to == "tf32":
        to_tf32(e, ins)
        return
    if source not in TYPE_SIZE or to not in TYPE_SIZE or "satfinite" in rest:
        raise e.unsupported(ins)
    operand = operands(ins, 1)[0]
    vector = e.is_vector(ins.dst[0])
    if is_float(to) and is_float(source):
        float_to_float(e, ins, to, source, operand, vector)
    elif is_float(to):
        integer_to_float(e, ins, to, source, operand, vector)
    elif is_float(source):
        float_to_integer(e, ins, to, source, operand, vector)
    else:
        integer_to_integer(e, ins, to, source, operand, vector)


def store_integer(e: Emitter, ins: Ins, name: str, kind: str, vector: bool) -> None:
    """Binds an integer result; a register wider than the type gets it extended by its sign."""
    value = ins.dst[0]
    if value < 0:
        return
    have = LLVM_TYPE[kind]
    home = e.float_kind[value]
    if BITS[home] > BITS[have]:
        to = f"i{BITS[home]}"
        name = e.op(
            f"{'sext' if kind[0] == 's' else 'zext'} {e.ty(have, vector)} {name} to {e.ty(to, vector)}"
        )
        have = to
    e.define(value, name, have, vector)


def integer_to_integer(e: Emitter, ins: Ins, to: str, source: str, operand: Source, vector: bool) -> None:
    a, b = LLVM_TYPE[source], LLVM_TYPE[to]
    signed = source[0] == "s"
    if "sat" in ins.mods:
        wide = "i64"
        name = widen(e, operand, a, wide, signed, vector) if a != wide else e.value(operand, a, vector)
        name = clamp(e, name, wide, to, signed, vector)
        name = e.op(f"trunc {e.ty(wide, vector)} {name} to {e.ty(b, vector)}") if b != wide else name
    elif BITS[a] < BITS[b]:
        name = widen(e, operand, a, b, signed, vector)
    else:
        name = e.value(operand, a, vector)
        if a != b:
            name = e.op(f"trunc {e.ty(a, vector)} {name} to {e.ty(b, vector)}")
    store_integer(e, ins, name, to, vector)


def clamp(e: Emitter, name: str, wide: str, to: str, signed: bool, vector: bool) -> str:
    """A 64-bit value (of the given signedness) clamped to the range of `to`."""
    bits = BITS[LLVM_TYPE[to]]
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if to[0] == "s" else (0, (1 << bits) - 1)
    if signed:
        name = intrinsic(e, "smax", wide, vector, name, const(e, wide, low, vector))
        return (
            name
            if high >= 1 << 63
            else intrinsic(e, "smin", wide, vector, name, const(e, wide, high, vector))
        )
    return intrinsic(e, "umin", wide, vector, name, const(e, wide, high, vector))


def integer_to_float(e: Emitter, ins: Ins, to: str, source: str, operand: Source, vector: bool) -> None:
    a = LLVM_TYPE[source]
    if source[0] not in "us":
        raise invalid(f"`{ins.name}`: wrong type", ins.line)
    mode = next((m for m in ins.mods if m in ROUNDINGS), "rn")
    real = "double" if to == "f64" else "float"
    text = "sitofp" if source[0] == "s" else "uitofp"
    x = e.value(operand, a, vector)
    if to in ("f16", "bf16") and BITS[a] > 16:
        # Large integers: round to odd in float first, so that the second rounding is exact.
        name = odd_float(e, x, a, source[0] == "s", vector)
    else:
        name = e.op(f"{text} {e.ty(a, vector)} {x} to {e.ty(real, vector)}")
    exact = BITS[a] <= (53 if real == "double" else 24) - (1 if BITS[a] == 64 else 0)
    if mode != "rn" and not (exact and to in ("f32", "f64")):
        from .emit_rounding import directed_from_integer

        if to in ("f16", "bf16"):
            finish(e, ins, directed_half(e, name, to, mode, vector), to, vector)
            return
        name = directed_from_integer(e, x, a, source[0] == "s", real, mode, vector, name)
    finish(e, ins, name, to, vector)


def odd_float(e: Emitter, x: str, kind: str, signed: bool, vector: bool) -> str:
    """An integer as a float, rounded to odd (by keeping 24 bits and a sticky bit)."""
    t, t32, bit = e.ty(kind, vector), e.ty("i32", vector), e.ty("i1", vector)
    size = intrinsic(e, "abs", kind, vector, x, tail="false", tail_type="i1") if signed else x
    zeros = intrinsic(e, "ctlz", kind, vector, size, tail="false", tail_type="i1")
    shift = e.op(f"sub {t} {const(e, kind, BITS[kind] - 24, vector)}, {zeros}")
    positive = e.op(f"icmp sgt {t} {shift}, {const(e, kind, 0, vector)}")
    shift = e.op(f"select {bit} {positive}, {t} {shift}, {t} {const(e, kind, 0, vector)}")
    cut = e.op(f"lshr {t} {size}, {shift}")
    back = e.op(f"shl {t} {cut}, {shift}")
    lost = e.op(f"icmp ne {t} {back}, {size}")
    lowest = e.op(f"shl {t} {const(e, kind, 1, vector)}, {shift}")
    odd = e.op(f"or {t} {back}, {lowest}")
    size = e.op(f"select {bit} {lost}, {t} {odd}, {t} {back}")
    name = e.op(f"uitofp {t} {size} to {e.ty('float', vector)}")
    if signed:
        negative = e.op(f"icmp slt {t} {x}, {const(e, kind, 0, vector)}")
        minus = e.op(f"fneg {e.ty('float', vector)} {name}")
        name = e.op(
            f"select {bit} {negative}, {e.ty('float', vector)} {minus}, {e.ty('float', vector)} {name}"
        )
    del t32
    return name


def float_to_integer(e: Emitter, ins: Ins, to: str, source: str, operand: Source, vector: bool) -> None:
    if to[0] not in "us":
        raise invalid(f"`{ins.name}`: wrong type", ins.line)
    mode = next((m for m in ins.mods if m in INTEGER_ROUND), None)
    if mode is None:
        raise invalid(f"`{ins.name}` needs an integer rounding (.rni, .rzi, .rmi, .rpi)", ins.line)
    x, real = float_operand(e, operand, source, vector, "ftz" in ins.mods)
    if mode != "rzi":
        x = intrinsic(e, INTEGER_ROUND[mode], real, vector, x)
    llvm = LLVM_TYPE[to]
    t, f = e.ty(llvm, vector), e.ty(real, vector)
    how = "fptosi" if to[0] == "s" else "fptoui"
    name = f"llvm.{how}.sat.{e.suffix(llvm, vector)}.{e.suffix(real, vector)}"
    e.declare(name, t, f)
    result = e.op(f"call {t} @{name}({f} {x})")
    if (
        source == "f64" or BITS[llvm] == 64
    ):  # there NaN becomes the highest bit alone; elsewhere 0, which LLVM gives
        nan = e.op(f"fcmp uno {f} {x}, {x}")
        highest = const(e, llvm, 1 << BITS[llvm] - 1, vector)
        result = e.op(f"select {e.ty('i1', vector)} {nan}, {t} {highest}, {t} {result}")
    store_integer(e, ins, result, to, vector)


def float_to_float(e: Emitter, ins: Ins, to: str, source: str, operand: Source, vector: bool) -> None:
    integral = next((m for m in ins.mods if m in INTEGER_ROUND), None)
    mode = next((m for m in ins.mods if m in ROUNDINGS), "rn")
    x, real = float_operand(e, operand, source, vector, "ftz" in ins.mods and source == "f32")
    if integral is not None:
        x = intrinsic(e, INTEGER_ROUND[integral], real, vector, x)
    if to == "f64":
        if real == "float":
            x = e.op(f"fpext {e.ty('float', vector)} {x} to {e.ty('double', vector)}")
        finish(e, ins, x, to, vector)
        return
    if source == "f64":
        if to in ("f16", "bf16"):
            x = narrow_to_odd(e, x, vector)
        elif mode != "rn":
            from .emit_rounding import narrow

            x = narrow(e, x, mode, vector)
        else:
            x = e.op(f"fptrunc {e.ty('double', vector)} {x} to {e.ty('float', vector)}")
    if to in ("f16", "bf16") and mode != "rn" and TYPE_SIZE[source] > 2:
        x = directed_half(e, x, to, mode, vector)
    finish(e, ins, x, to, vector)


def narrow_to_odd(e: Emitter, x: str, vector: bool) -> str:
    """double -> float, rounded to odd; there is no single instruction from double to f16 or bf16."""
    d, f, t32, bit = e.ty("double", vector), e.ty("float", vector), e.ty("i32", vector), e.ty("i1", vector)
    name = e.op(f"fptrunc {d} {x} to {f}")
    back = e.op(f"fpext {f} {name} to {d}")
    inexact = e.op(f"fcmp one {d} {back}, {x}")
    bits = e.op(f"bitcast {f} {name} to {t32}")
    size_back, size = intrinsic(e, "fabs", "double", vector, back), intrinsic(e, "fabs", "double", vector, x)
    larger = e.op(f"fcmp ogt {d} {size_back}, {size}")
    down = e.op(f"sub {t32} {bits}, {const(e, 'i32', 1, vector)}")
    cut = e.op(f"select {bit} {larger}, {t32} {down}, {t32} {bits}")
    odd = e.op(f"or {t32} {cut}, {const(e, 'i32', 1, vector)}")
    return e.op(f"bitcast {t32} {e.op(f'select {bit} {inexact}, {t32} {odd}, {t32} {bits}')} to {f}")


def directed_half(e: Emitter, x: str, to: str, mode: str, vector: bool) -> str:
    """A float moved to a value that f16 or bf16 holds exactly, as a directed mode rounds it."""
    from .emit_float import half_to_float

    f, bit, t16 = e.ty("float", vector), e.ty("i1", vector), e.ty("i16", vector)
    bits = float_to_half(e, x, to, vector)
    back = half_to_float(e, bits, to, vector)
    less, more = e.op(f"fcmp olt {f} {x}, {back}"), e.op(f"fcmp ogt {f} {x}, {back}")
    negative = e.op(f"icmp slt {t16} {bits}, {const(e, 'i16', 0, vector)}")
    if mode == "rz":
        wanted = e.op(f"select {bit} {negative}, {bit} {more}, {bit} {less}")
        moved = e.op(f"sub {t16} {bits}, {const(e, 'i16', 1, vector)}")
    elif mode in ("rm", "rp"):
        wanted = less if mode == "rm" else more
        away = negative if mode == "rm" else e.op(f"xor {bit} {negative}, {const(e, 'i1', -1, vector)}")
        step = e.op(
            f"select {bit} {away}, {t16} {const(e, 'i16', 1, vector)}, {t16} {const(e, 'i16', -1, vector)}"
        )
        moved = e.op(f"add {t16} {bits}, {step}")
        zero = e.op(f"fcmp oeq {f} {back}, {const(e, 'float', 0, vector)}")
        least = const(e, "i16", 1 if mode == "rp" else 0x8001, vector)
        moved = e.op(f"select {bit} {zero}, {t16} {least}, {t16} {moved}")
    else:
        raise PtxError(f"rounding `.{mode}` to {to} is not supported by the in-memory device", e.line)
    name = half_to_float(e, e.op(f"select {bit} {wanted}, {t16} {moved}, {t16} {bits}"), to, vector)
    nan = e.op(f"fcmp uno {f} {x}, {x}")
    return e.op(f"select {bit} {nan}, {f} {x}, {f} {name}")


def pack_pair(e: Emitter, ins: Ins, to: str, source: str) -> None:
    """cvt.rn.f16x2.f32 d, a, b: a in the upper half, b in the lower."""
    mode = next((m for m in ins.mods if m in ROUNDINGS), "rn")
    if source != "f32" or mode not in ("rn", "rz") or "satfinite" in ins.mods:
        raise e.unsupported(ins)
    vector = e.is_vector(ins.dst[0])
    t16, t32 = e.ty("i16", vector), e.ty("i32", vector)
    parts = []
    for operand in operands(ins, 2):
        x = e.value(operand, "float", vector)
        if mode == "rz":
            x = directed_half(e, x, to[:-2], mode, vector)
        if "relu" in ins.mods:
            x = relu(e, x, "float", vector)
        half = float_to_half(e, x, to[:-2], vector)
        parts.append(e.op(f"zext {t16} {half} to {t32}"))
    high = e.op(f"shl {t32} {parts[0]}, {const(e, 'i32', 16, vector)}")
    e.define(ins.dst[0], e.op(f"or {t32} {high}, {parts[1]}"), "i32", vector)


def to_tf32(e: Emitter, ins: Ins) -> None:
    """float -> tf32: 10 mantissa bits, rounded to nearest, ties away (.rna) or to even (.rn)."""
    mode = next((m for m in ins.mods if m in ROUNDINGS), None)
    if mode not in ("rna", "rn") or set(ins.mods) - {"rna", "rn", "tf32", "f32"}:
        raise e.unsupported(ins)
    vector = e.is_vector(ins.dst[0])
    t32 = e.ty("i32", vector)
    x = e.value(operands(ins, 1)[0], "i32", vector)
    if mode == "rna":
        up = e.op(f"add {t32} {x}, {const(e, 'i32', 0x1000, vector)}")
    else:
        odd = e.op(f"lshr {t32} {x}, {const(e, 'i32', 13, vector)}")
        odd = e.op(f"and {t32} {odd}, {const(e, 'i32', 1, vector)}")
        up = e.op(f"add {t32} {e.op(f'add {t32} {x}, {odd}')}, {const(e, 'i32', 0xFFF, vector)}")
    name = e.op(f"and {t32} {up}, {const(e, 'i32', ~0x1FFF, vector)}")
    f = e.ty("float", vector)
    as_float = e.op(f"bitcast {t32} {x} to {f}")
    special = e.op(f"fcmp uno {f} {as_float}, {as_float}")
    name = e.op(
        f"select {e.ty('i1', vector)} {special}, {t32} {const(e, 'i32', 0x7FFFFFFF, vector)}, {t32} {name}"
    )
    e.define(ins.dst[0], name, "i32", vector)


__all__ = ["convert", "flush", "saturate"]
