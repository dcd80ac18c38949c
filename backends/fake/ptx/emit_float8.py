"""Conversions to and from pairs of 8-bit floats (e4m3x2, e5m2x2)."""

from __future__ import annotations

from .emit import Emitter
from .emit_alu import const, intrinsic, operands
from .emit_float import float_to_half, half_to_float
from .flow import Ins

# mantissa bits, least exponent of normal numbers, largest value
FORMATS = {"e4m3x2": (3, -6, 448.0), "e5m2x2": (2, -14, 57344.0)}


def encode(e: Emitter, x: str, kind: str, vector: bool) -> str:
    """A float rounded to nearest even and saturated, as 8 bits in an i32; NaN becomes 0x7F."""
    mantissa, least, largest = FORMATS[kind]
    t, t32, bit = e.ty("float", vector), e.ty("i32", vector), e.ty("i1", vector)
    size = intrinsic(e, "fabs", "float", vector, x)
    limit = e.splat_text("float", f"0x{_bits(largest):016X}", vector)
    over = e.op(f"fcmp ogt {t} {size}, {limit}")
    size = e.op(f"select {bit} {over}, {t} {limit}, {t} {size}")
    raw = e.op(f"bitcast {t} {size} to {t32}")
    exponent = _exponent(e, raw, vector)
    exponent = intrinsic(e, "smax", "i32", vector, exponent, const(e, "i32", least, vector))
    power = e.op(f"sub {t32} {const(e, 'i32', 127 + mantissa, vector)}, {exponent}")
    scale = e.op(f"bitcast {t32} {e.op(f'shl {t32} {power}, ' + const(e, 'i32', 23, vector))} to {t}")
    steps = intrinsic(e, "roundeven", "float", vector, e.op(f"fmul {t} {size}, {scale}"))
    name = f"llvm.fptosi.sat.{e.suffix('i32', vector)}.{e.suffix('float', vector)}"
    e.declare(name, t32, t)
    whole = e.op(f"call {t32} @{name}({t} {steps})")
    field = e.op(f"sub {t32} {exponent}, {const(e, 'i32', least, vector)}")
    field = e.op(f"shl {t32} {field}, {const(e, 'i32', mantissa, vector)}")
    code = e.op(f"add {t32} {field}, {whole}")
    sign = e.op(f"lshr {t32} {e.op(f'bitcast {t} {x} to {t32}')}, {const(e, 'i32', 24, vector)}")
    sign = e.op(f"and {t32} {sign}, {const(e, 'i32', 128, vector)}")
    code = e.op(f"or {t32} {code}, {sign}")
    nan = e.op(f"fcmp uno {t} {x}, {x}")
    return e.op(f"select {bit} {nan}, {t32} {const(e, 'i32', 127, vector)}, {t32} {code}")


def _exponent(e: Emitter, raw: str, vector: bool) -> str:
    t32 = e.ty("i32", vector)
    biased = e.op(f"lshr {t32} {raw}, {const(e, 'i32', 23, vector)}")
    return e.op(f"sub {t32} {biased}, {const(e, 'i32', 127, vector)}")


def _bits(value: float) -> int:
    import struct

    found: int = struct.unpack("<Q", struct.pack("<d", value))[0]
    return found


def decode(e: Emitter, code: str, kind: str, vector: bool) -> str:
    """8 bits in an i32 as the i16 bits of an f16; exact."""
    t, t32, bit, t16 = e.ty("float", vector), e.ty("i32", vector), e.ty("i1", vector), e.ty("i16", vector)
    if kind == "e5m2x2":
        return e.op(f"trunc {t32} {e.op(f'shl {t32} {code}, ' + const(e, 'i32', 8, vector))} to {t16}")
    field = e.op(f"lshr {t32} {code}, {const(e, 'i32', 3, vector)}")
    field = e.op(f"and {t32} {field}, {const(e, 'i32', 15, vector)}")
    low = e.op(f"and {t32} {code}, {const(e, 'i32', 7, vector)}")
    normal = e.op(f"icmp ne {t32} {field}, {const(e, 'i32', 0, vector)}")
    hidden = e.op(f"or {t32} {low}, {const(e, 'i32', 8, vector)}")
    steps = e.op(f"select {bit} {normal}, {t32} {hidden}, {t32} {low}")
    power = intrinsic(e, "umax", "i32", vector, field, const(e, "i32", 1, vector))
    power = e.op(f"add {t32} {power}, {const(e, 'i32', 117, vector)}")
    scale = e.op(f"bitcast {t32} {e.op(f'shl {t32} {power}, ' + const(e, 'i32', 23, vector))} to {t}")
    value = e.op(f"fmul {t} {e.op(f'uitofp {t32} {steps} to {t}')}, {scale}")
    bits = float_to_half(e, value, "f16", vector)
    plain = e.op(f"and {t32} {code}, {const(e, 'i32', 127, vector)}")
    nan = e.op(f"icmp eq {t32} {plain}, {const(e, 'i32', 127, vector)}")
    sign = e.op(f"and {t32} {code}, {const(e, 'i32', 128, vector)}")
    sign = e.op(f"trunc {t32} {e.op(f'shl {t32} {sign}, ' + const(e, 'i32', 8, vector))} to {t16}")
    bits = e.op(f"or {t16} {bits}, {sign}")
    return e.op(f"select {bit} {nan}, {t16} {const(e, 'i16', 0x7FFF, vector)}, {t16} {bits}")


def split(e: Emitter, whole: str, kind: str, width: int, vector: bool) -> list[str]:
    """The high and the low half of a register, as i32 each."""
    t, t32 = e.ty(kind, vector), e.ty("i32", vector)
    if kind != "i32":
        whole = e.op(f"zext {t} {whole} to {t32}")
    mask = const(e, "i32", (1 << width) - 1, vector)
    high = e.op(f"and {t32} {e.op(f'lshr {t32} {whole}, ' + const(e, 'i32', width, vector))}, {mask}")
    return [high, e.op(f"and {t32} {whole}, {mask}")]


def convert_float8(e: Emitter, ins: Ins, to: str, source: str) -> None:
    vector = e.is_vector(ins.dst[0])
    t16, t32 = e.ty("i16", vector), e.ty("i32", vector)
    rest = set(ins.mods) - {to, source}
    if to in FORMATS and source in ("f32", "f16x2") and rest <= {"rn", "satfinite"} and "satfinite" in rest:
        if source == "f32":
            parts = [e.value(s, "float", vector) for s in operands(ins, 2)]
        else:
            halves = split(e, e.value(operands(ins, 1)[0], "i32", vector), "i32", 16, vector)
            parts = [half_to_float(e, e.op(f"trunc {t32} {h} to {t16}"), "f16", vector) for h in halves]
        high, low = (encode(e, p, to, vector) for p in parts)
        both = e.op(f"or {t32} {low}, {e.op(f'shl {t32} {high}, ' + const(e, 'i32', 8, vector))}")
        e.define(ins.dst[0], e.op(f"trunc {t32} {both} to {t16}"), "i16", vector)
    elif to == "f16x2" and source in FORMATS and rest <= {"rn"}:
        halves = split(e, e.value(operands(ins, 1)[0], "i16", vector), "i16", 8, vector)
        high, low = (e.op(f"zext {t16} {decode(e, h, source, vector)} to {t32}") for h in halves)
        e.define(
            ins.dst[0],
            e.op(f"or {t32} {low}, {e.op(f'shl {t32} {high}, ' + const(e, 'i32', 16, vector))}"),
            "i32",
            vector,
        )
    else:
        raise e.unsupported(ins)
