"""What instructions do to shapes: facts about values, and a rule per opcode that keeps linear values linear.

A rule takes the facts of the operands; None from it means: uniform if all operands are, else varying.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from .flow import Ins
from .syntax import TYPE_SIZE

VARYING = None


class Fact(NamedTuple):
    """stride; tz: trailing zeros of lane 0's value; umax: bound of all lanes' unsigned values or -1; const:
    the value or None; risky: may have wrapped below zero."""

    stride: int | None
    tz: int = 0
    umax: int = -1
    const: int | None = None
    risky: bool = False


VARIES = Fact(VARYING)
UNIFORM = Fact(0)


def trailing_zeros(value: int) -> int:
    return 64 if value == 0 else (value & -value).bit_length() - 1


def constant(value: int, width: int = 64) -> Fact:
    masked = value & ((1 << width) - 1)
    return Fact(0, trailing_zeros(masked), masked, value, value < 0)


def widening(fact: Fact, signed: bool, bits: int) -> str:
    """How a linear value may be widened: `proven`, `guard` or `vary`."""
    limit = 1 << (bits - 1 if signed else bits)
    if 0 <= fact.umax < limit:
        return "proven"
    if not signed and fact.risky:
        return "vary"
    return "guard"


def width_of(ins: Ins) -> int:
    return 8 * TYPE_SIZE.get(ins.mods[-1], 8) if ins.mods else 64


def normal(fact: Fact, ins: Ins) -> Fact:
    """Keeps strides small and bounds within the type."""
    stride = fact.stride
    if stride is not None and not -(1 << 30) < stride < 1 << 30:
        return VARIES
    width = width_of(ins)
    if "wide" in ins.mods:
        width *= 2
    umax = fact.umax if 0 <= fact.umax < 1 << width else -1
    return Fact(stride, min(fact.tz, 64), umax, fact.const, fact.risky or fact.umax >= 1 << width)


def combine(a: Fact, b: Fact, sign: int) -> Fact:
    stride = None if a.stride is None or b.stride is None else a.stride + sign * b.stride
    const = a.const + sign * b.const if a.const is not None and b.const is not None else None
    if sign > 0:
        umax = a.umax + b.umax if a.umax >= 0 and b.umax >= 0 and not a.risky and not b.risky else -1
        if (const is None and (a.const or 0) < 0) or (b.const or 0) < 0:
            umax = -1
    else:
        umax = -1
    if const is not None and const >= 0:
        umax = const
    risky = a.risky or b.risky or (sign < 0 and not (const is not None and const >= 0))
    return Fact(stride, min(a.tz, b.tz), umax, const, risky)


def times(a: Fact, b: Fact) -> Fact:
    if a.const is None and b.const is not None:
        a, b = b, a
    const = a.const * b.const if a.const is not None and b.const is not None else None
    umax = a.umax * b.umax if a.umax >= 0 and b.umax >= 0 and not a.risky and not b.risky else -1
    if a.const is not None and b.stride is not None:
        stride: int | None = a.const * b.stride
    else:
        stride = 0 if a.stride == 0 and b.stride == 0 else None
    return Fact(stride, min(a.tz + b.tz, 64), umax, const, a.risky or b.risky)


def is_integer(ins: Ins) -> bool:
    return bool(ins.mods) and ins.mods[-1][0] in "usb" and "cc" not in ins.mods and "sat" not in ins.mods


def rule_move(ins: Ins, f: list[Fact], lanes: int) -> Fact | None:
    return f[0] if len(f) == 1 and len(ins.dst) == 1 else None


def rule_add(ins: Ins, f: list[Fact], lanes: int) -> Fact | None:
    return combine(f[0], f[1], 1) if is_integer(ins) else None


def rule_sub(ins: Ins, f: list[Fact], lanes: int) -> Fact | None:
    return combine(f[0], f[1], -1) if is_integer(ins) else None


def widened(ins: Ins, fact: Fact, signed: bool, bits: int) -> Fact | None:
    """The shape after widening, None where it varies."""
    if fact.stride in (0, None):
        return fact
    return None if widening(fact, signed, bits) == "vary" else fact


def rule_mul(ins: Ins, f: list[Fact], lanes: int) -> Fact | None:
    if not is_integer(ins) or not ("lo" in ins.mods or "wide" in ins.mods):
        return None
    if "wide" in ins.mods:
        bits, signed = width_of(ins), ins.mods[-1][0] == "s"
        wide = [widened(ins, x, signed, bits) for x in f[:2]]
        if wide[0] is None or wide[1] is None:
            return VARIES
        f = [wide[0], wide[1], *f[2:]]
    return times(f[0], f[1])


def rule_mad(ins: Ins, f: list[Fact], lanes: int) -> Fact | None:
    product = rule_mul(ins, f, lanes)
    return None if product is None else combine(product, f[2], 1)


def rule_shl(ins: Ins, f: list[Fact], lanes: int) -> Fact | None:
    k = f[1].const
    if k is None or not 0 <= k < 32:
        return None
    return times(f[0], constant(1 << k))


def rule_neg(ins: Ins, f: list[Fact], lanes: int) -> Fact | None:
    return combine(constant(0), f[0], -1) if is_integer(ins) else None


def rule_cvt(ins: Ins, f: list[Fact], lanes: int) -> Fact | None:
    kinds = [m for m in ins.mods if m in TYPE_SIZE]
    if len(kinds) != 2 or kinds[0][0] not in "us" or kinds[1][0] not in "us" or "sat" in ins.mods:
        return None
    to, source = TYPE_SIZE[kinds[0]] * 8, TYPE_SIZE[kinds[1]] * 8
    if to <= source:
        if f[0].stride == 0 or to >= 32:
            return f[0]._replace(umax=f[0].umax if 0 <= f[0].umax < 1 << (to - 1) else -1)
        return None
    if source < 32:
        return f[0] if f[0].stride == 0 else None
    return widened(ins, f[0], kinds[1][0] == "s", source) or VARIES


def span(fact: Fact, width: int = 32) -> int:
    return abs(fact.stride or 0) * (width - 1)


def rule_or(ins: Ins, f: list[Fact], lanes: int) -> Fact | None:
    """`or` of disjoint bits is an addition."""
    if not is_integer(ins):
        return None
    a, b = f
    if a.stride is None or b.stride is None or (a.stride == 0 and b.stride == 0):
        return None
    for x, y in ((a, b), (b, a)):
        if x.stride == 0 and 0 <= y.umax < 1 << x.tz:
            return combine(x, y, 1)
    return None


def rule_and(ins: Ins, f: list[Fact], lanes: int) -> Fact | None:
    if not is_integer(ins):
        return None
    a, b = (f[1], f[0]) if f[0].const is not None else (f[0], f[1])
    m = b.const
    if a.stride == 0 and b.stride == 0:
        umax = min((x.umax for x in (a, b) if x.umax >= 0 and not x.risky), default=-1)
        return Fact(0, max(a.tz, b.tz), umax)
    if m is None or m <= 0 or a.stride is None:
        return VARIES if m is None or m <= 0 else Fact(None, 0, m)
    if m & (m + 1) == 0 and a.stride > 0 and a.stride * lanes <= 1 << min(a.tz, m.bit_length()):
        return Fact(a.stride, a.tz, m)
    return Fact(None, 0, m)


def rule_shr(ins: Ins, f: list[Fact], lanes: int) -> Fact | None:
    k = f[1].const
    if k is None or not 0 <= k < 32 or not is_integer(ins):
        return None
    a = f[0]
    umax = a.umax >> k if a.umax >= 0 and (ins.mods[-1][0] != "s" or a.umax < 1 << 31) else -1
    if a.stride == 0:
        return Fact(0, max(a.tz - k, 0), umax)
    if a.stride is not None and a.stride > 0 and a.stride * lanes <= 1 << min(k, a.tz):
        return Fact(0, max(a.tz - k, 0), umax)
    return Fact(None, 0, umax)


def rule_rem(ins: Ins, f: list[Fact], lanes: int) -> Fact | None:
    n = f[1].const
    if n is None or n <= 0 or not is_integer(ins):
        return None
    if 0 <= f[0].umax < n:
        return f[0]
    nonneg = ins.mods[-1][0] == "u" or f[0].umax >= 0
    return Fact(f[0].stride if f[0].stride == 0 else None, 0, n - 1 if nonneg else -1)


Rule = Callable[[Ins, list[Fact], int], Fact | None]
LINEAR: dict[str, Rule] = {
    "mov": rule_move,
    "$move": rule_move,
    "cvta": rule_move,
    "add": rule_add,
    "sub": rule_sub,
    "mul": rule_mul,
    "mad": rule_mad,
    "shl": rule_shl,
    "neg": rule_neg,
    "cvt": rule_cvt,
    "or": rule_or,
    "and": rule_and,
    "shr": rule_shr,
    "rem": rule_rem,
}
