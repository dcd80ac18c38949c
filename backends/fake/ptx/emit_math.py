"""Approximate functions (ex2, lg2, sin, cos, tanh), inline, within what the PTX ISA allows.

Polynomials were fitted by least squares on Chebyshev nodes in the relative error; the tests measure all of
them over their domains against numpy in double precision.
"""

from __future__ import annotations

from .emit import Emitter, handles
from .emit_alu import const, intrinsic, operands, type_of
from .emit_float import check_mods, finish, float_operand, packed
from .errors import invalid
from .flow import Ins

# 2^f on [-0.5, 0.5], lowest power first
EXP2 = (
    1.0,
    0.6931471805599453,
    0.24022650695910072,
    0.05550410866482158,
    0.009618129107628477,
    0.0013333558146428443,
    0.00015403530393381608,
    1.5252733804059841e-05,
)
SIN = (1.0, -1 / 6, 1 / 120, -1 / 5040, 1 / 362880)  # x * P(x^2)
COS = (1.0, -1 / 2, 1 / 24, -1 / 720, 1 / 40320)


def literal(e: Emitter, value: float, kind: str, vector: bool) -> str:
    import struct

    rounded = struct.unpack("<f", struct.pack("<f", value))[0] if kind == "float" else value
    bits = struct.unpack("<Q", struct.pack("<d", rounded))[0]
    return e.splat_text(kind, f"0x{bits:016X}", vector)


def polynomial(e: Emitter, x: str, coefficients: tuple[float, ...], vector: bool, kind: str = "float") -> str:
    result = literal(e, coefficients[-1], kind, vector)
    for c in coefficients[-2::-1]:
        result = intrinsic(e, "fma", kind, vector, result, x, literal(e, c, kind, vector))
    return result


def exp2(e: Emitter, x: str, vector: bool) -> str:
    """2^x with subnormal results; two scale factors, since 2^-149 is no normal float."""
    t, t32, bit = e.ty("float", vector), e.ty("i32", vector), e.ty("i1", vector)
    low, high = literal(e, -151.0, "float", vector), literal(e, 129.0, "float", vector)
    nan = e.op(f"fcmp uno {t} {x}, {x}")
    below = e.op(f"fcmp olt {t} {x}, {low}")
    y = e.op(f"select {bit} {below}, {t} {low}, {t} {x}")
    above = e.op(f"fcmp ogt {t} {y}, {high}")
    y = e.op(f"select {bit} {above}, {t} {high}, {t} {y}")
    y = e.op(f"select {bit} {nan}, {t} {literal(e, 0.0, 'float', vector)}, {t} {y}")
    whole = intrinsic(e, "roundeven", "float", vector, y)
    fraction = e.op(f"fsub {t} {y}, {whole}")
    power = polynomial(e, fraction, EXP2, vector)
    n = e.op(f"fptosi {t} {whole} to {t32}")
    first = e.op(f"ashr {t32} {n}, {const(e, 'i32', 1, vector)}")
    second = e.op(f"sub {t32} {n}, {first}")
    for exponent in (first, second):
        biased = e.op(f"add {t32} {exponent}, {const(e, 'i32', 127, vector)}")
        scale = e.op(f"shl {t32} {biased}, {const(e, 'i32', 23, vector)}")
        power = e.op(f"fmul {t} {power}, {e.op(f'bitcast {t32} {scale} to {t}')}")
    return e.op(f"select {bit} {nan}, {t} {x}, {t} {power}")


@handles("ex2")
def ex2(e: Emitter, ins: Ins) -> None:
    if packed(e, ins, ex2):
        return
    check_mods(e, ins, "approx", "ftz")
    kind = type_of(ins, {"f32", "f16", "bf16"})
    vector = e.is_vector(ins.dst[0])
    x, _ = float_operand(e, operands(ins, 1)[0], kind, vector, "ftz" in ins.mods)
    finish(e, ins, exp2(e, x, vector), kind, vector)


@handles("lg2")
def lg2(e: Emitter, ins: Ins) -> None:
    """log2(m * 2^k) = k + log2(m), m in [sqrt(1/2), sqrt(2)), log2(m) by the series of atanh((m - 1) / (m +
    1)).
    """
    check_mods(e, ins, "approx", "ftz")
    kind = type_of(ins, {"f32"})
    vector = e.is_vector(ins.dst[0])
    x, _ = float_operand(e, operands(ins, 1)[0], kind, vector, "ftz" in ins.mods)
    t, t32, bit = e.ty("float", vector), e.ty("i32", vector), e.ty("i1", vector)
    zero, one = literal(e, 0.0, "float", vector), literal(e, 1.0, "float", vector)
    small = e.op(f"fcmp olt {t} {x}, {literal(e, 2.0**-126, 'float', vector)}")
    scaled = e.op(f"fmul {t} {x}, {literal(e, 2.0**24, 'float', vector)}")
    y = e.op(f"select {bit} {small}, {t} {scaled}, {t} {x}")
    bias = e.op(f"select {bit} {small}, {t} {literal(e, -24.0, 'float', vector)}, {t} {zero}")
    bits = e.op(f"bitcast {t} {y} to {t32}")
    shifted = e.op(f"sub {t32} {bits}, {const(e, 'i32', 0x3F3504F3, vector)}")
    k = e.op(f"ashr {t32} {shifted}, {const(e, 'i32', 23, vector)}")
    scale = e.op(f"shl {t32} {k}, {const(e, 'i32', 23, vector)}")
    m = e.op(f"bitcast {t32} {e.op(f'sub {t32} {bits}, {scale}')} to {t}")
    s = e.op(f"fdiv {t} {e.op(f'fsub {t} {m}, {one}')}, {e.op(f'fadd {t} {m}, {one}')}")
    square = e.op(f"fmul {t} {s}, {s}")
    factor = 2 / 0.6931471805599453
    series = polynomial(e, square, tuple(factor / (2 * i + 1) for i in range(6)), vector)
    exponent = e.op(f"fadd {t} {e.op(f'sitofp {t32} {k} to {t}')}, {bias}")
    result = intrinsic(e, "fma", "float", vector, s, series, exponent)
    infinity = literal(e, float("inf"), "float", vector)
    is_zero = e.op(f"fcmp oeq {t} {x}, {zero}")
    result = e.op(f"select {bit} {is_zero}, {t} {literal(e, float('-inf'), 'float', vector)}, {t} {result}")
    is_infinite = e.op(f"fcmp oeq {t} {x}, {infinity}")
    result = e.op(f"select {bit} {is_infinite}, {t} {infinity}, {t} {result}")
    bad = e.op(f"fcmp ult {t} {x}, {zero}")
    nan = e.splat_text("float", "0x7FFFFFFFE0000000", vector)
    finish(e, ins, e.op(f"select {bit} {bad}, {t} {nan}, {t} {result}"), kind, vector)


@handles("sin", "cos")
def sine(e: Emitter, ins: Ins) -> None:
    """Reduction by pi/2 in double, where 53 bits do for every argument that sin.approx is meant for."""
    check_mods(e, ins, "approx", "ftz")
    kind = type_of(ins, {"f32"})
    vector = e.is_vector(ins.dst[0])
    x, _ = float_operand(e, operands(ins, 1)[0], kind, vector, "ftz" in ins.mods)
    t, d, t32, bit = e.ty("float", vector), e.ty("double", vector), e.ty("i32", vector), e.ty("i1", vector)
    wide = e.op(f"fpext {t} {x} to {d}")
    turns = intrinsic(
        e,
        "roundeven",
        "double",
        vector,
        e.op(f"fmul {d} {wide}, {literal(e, 0.6366197723675814, 'double', vector)}"),
    )
    rest = intrinsic(
        e, "fma", "double", vector, turns, literal(e, -1.5707963267948966, "double", vector), wide
    )
    rest = intrinsic(
        e, "fma", "double", vector, turns, literal(e, -6.123233995736766e-17, "double", vector), rest
    )
    r = e.op(f"fptrunc {d} {rest} to {t}")
    square = e.op(f"fmul {t} {r}, {r}")
    sine_part = e.op(f"fmul {t} {r}, {polynomial(e, square, SIN, vector)}")
    cosine_part = polynomial(e, square, COS, vector)
    name = f"llvm.fptosi.sat.{e.suffix('i64', vector)}.{e.suffix('double', vector)}"
    t64 = e.ty("i64", vector)
    e.declare(name, t64, d)
    quadrant = e.op(f"trunc {t64} {e.op(f'call {t64} @{name}({d} {turns})')} to {t32}")
    if ins.op == "cos":
        quadrant = e.op(f"add {t32} {quadrant}, {const(e, 'i32', 1, vector)}")
    odd = e.op(f"trunc {t32} {quadrant} to {bit}")
    result = e.op(f"select {bit} {odd}, {t} {cosine_part}, {t} {sine_part}")
    second = e.op(f"lshr {t32} {quadrant}, {const(e, 'i32', 1, vector)}")
    negative = e.op(f"trunc {t32} {second} to {bit}")
    result = e.op(f"select {bit} {negative}, {t} {e.op(f'fneg {t} {result}')}, {t} {result}")
    size = intrinsic(e, "fabs", "float", vector, x)
    bad = e.op(f"fcmp ueq {t} {size}, {literal(e, float('inf'), 'float', vector)}")
    nan = e.splat_text("float", "0x7FFFFFFFE0000000", vector)
    finish(e, ins, e.op(f"select {bit} {bad}, {t} {nan}, {t} {result}"), kind, vector)


@handles("tanh")
def tanh(e: Emitter, ins: Ins) -> None:
    """1 - 2 / (e^2|x| + 1), and an odd polynomial near zero, where that cancels."""
    if packed(e, ins, tanh):
        return
    check_mods(e, ins, "approx")
    kind = type_of(ins, {"f32", "f16", "bf16"})
    vector = e.is_vector(ins.dst[0])
    x, _ = float_operand(e, operands(ins, 1)[0], kind, vector)
    t, bit = e.ty("float", vector), e.ty("i1", vector)
    one = literal(e, 1.0, "float", vector)
    size = intrinsic(e, "fabs", "float", vector, x)
    power = exp2(e, e.op(f"fmul {t} {size}, {literal(e, 2.8853900817779268, 'float', vector)}"), vector)
    large = e.op(f"fdiv {t} {literal(e, 2.0, 'float', vector)}, {e.op(f'fadd {t} {power}, {one}')}")
    large = e.op(f"fsub {t} {one}, {large}")
    square = e.op(f"fmul {t} {x}, {x}")
    small = polynomial(e, square, (1.0, -1 / 3, 2 / 15, -17 / 315, 62 / 2835), vector)
    small = e.op(f"fmul {t} {size}, {small}")
    near = e.op(f"fcmp olt {t} {size}, {literal(e, 0.4, 'float', vector)}")
    result = e.op(f"select {bit} {near}, {t} {small}, {t} {large}")
    finish(e, ins, intrinsic(e, "copysign", "float", vector, result, x), kind, vector)


__all__ = ["exp2", "invalid"]
