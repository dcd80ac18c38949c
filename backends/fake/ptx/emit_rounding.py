"""Directed rounding (.rz, .rm, .rp) without touching the host's rounding mode.

The result is rounded to nearest, the sign of what was lost is found exactly (error-free transformations), and
the result is moved by one unit in the last place where the mode asks for it.  f32 goes through double, where
products are exact and nothing underflows.
"""

from __future__ import annotations

from .emit import Emitter
from .emit_alu import const, intrinsic
from .errors import unsupported
from .values import BITS

TINY = "0x0570000000000000"  # 2^-936
SCALE = "0x46B0000000000000"  # 2^108


def zero(e: Emitter, kind: str, vector: bool) -> str:
    return e.splat_text(kind, "0x0000000000000000", vector)


def two_sum(e: Emitter, x: str, y: str, kind: str, vector: bool) -> tuple[str, str]:
    """RN(x + y) and what it lost, exactly."""
    t = e.ty(kind, vector)
    s = e.op(f"fadd {t} {x}, {y}")
    b = e.op(f"fsub {t} {s}, {x}")
    a = e.op(f"fsub {t} {s}, {b}")
    return s, e.op(f"fadd {t} {e.op(f'fsub {t} {x}, {a}')}, {e.op(f'fsub {t} {y}, {b}')}")


def negate(e: Emitter, x: str, kind: str, vector: bool) -> str:
    return e.op(f"fneg {e.ty(kind, vector)} {x}")


def scaled(e: Emitter, test: str, vector: bool) -> str:
    """2^108 where |test| is tiny, else 1: keeps residuals of doubles out of the subnormal range."""
    t = e.ty("double", vector)
    small = e.op(
        f"fcmp olt {t} {intrinsic(e, 'fabs', 'double', vector, test)}, {e.splat_text('double', TINY, vector)}"
    )
    one = e.splat_text("double", "0x3FF0000000000000", vector)
    return e.op(
        f"select {e.ty('i1', vector)} {small}, {t} {e.splat_text('double', SCALE, vector)}, {t} {one}"
    )


def nearest_and_loss(e: Emitter, op: str, vector: bool, args: tuple[str, ...]) -> tuple[str, str]:
    """In double: the nearest result and a value with the sign of (exact - nearest)."""
    t = e.ty("double", vector)
    if op in ("add", "sub"):
        y = negate(e, args[1], "double", vector) if op == "sub" else args[1]
        return two_sum(e, args[0], y, "double", vector)
    if op == "mul":
        return product_and_loss(e, vector, args[0], args[1])
    if op == "div":
        q = e.op(f"fdiv {t} {args[0]}, {args[1]}")
        k = scaled(e, args[0], vector)
        r = intrinsic(
            e,
            "fma",
            "double",
            vector,
            e.op(f"fmul {t} {negate(e, q, 'double', vector)}, {k}"),
            args[1],
            e.op(f"fmul {t} {args[0]}, {k}"),
        )
        sign = intrinsic(
            e, "copysign", "double", vector, e.splat_text("double", "0x3FF0000000000000", vector), args[1]
        )
        return q, e.op(f"fmul {t} {r}, {sign}")
    if op == "sqrt":
        s = intrinsic(e, "sqrt", "double", vector, args[0])
        k = scaled(e, args[0], vector)
        r = intrinsic(
            e,
            "fma",
            "double",
            vector,
            e.op(f"fmul {t} {negate(e, s, 'double', vector)}, {k}"),
            s,
            e.op(f"fmul {t} {args[0]}, {k}"),
        )
        return s, r
    if op == "fma":
        return fused_and_loss(e, vector, *args)
    raise unsupported(f"directed rounding of `{op}`", e.line)


def by_size(e: Emitter, vector: bool, x: str, y: str) -> tuple[str, str]:
    """The smaller and the larger of two factors: scaling the smaller cannot overflow."""
    t, bit = e.ty("double", vector), e.ty("i1", vector)
    size_x, size_y = intrinsic(e, "fabs", "double", vector, x), intrinsic(e, "fabs", "double", vector, y)
    smaller = e.op(f"fcmp olt {t} {size_x}, {size_y}")
    return (
        e.op(f"select {bit} {smaller}, {t} {x}, {t} {y}"),
        e.op(f"select {bit} {smaller}, {t} {y}, {t} {x}"),
    )


def vanished(e: Emitter, vector: bool, value: str, x: str, y: str) -> str:
    """`value`, or where it is zero though x * y is not: the smallest number with the product's sign."""
    t, bit, t64 = e.ty("double", vector), e.ty("i1", vector), e.ty("i64", vector)
    z = zero(e, "double", vector)
    lost = e.op(f"fcmp oeq {t} {value}, {z}")
    for factor in (x, y):
        lost = e.op(f"and {bit} {lost}, {e.op(f'fcmp one {t} {factor}, {z}')}")
    signs = e.op(f"xor {t64} {e.op(f'bitcast {t} {x} to {t64}')}, {e.op(f'bitcast {t} {y} to {t64}')}")
    sign = e.op(f"and {t64} {signs}, {const(e, 'i64', 1 << 63, vector)}")
    bits = e.op(f"or {t64} {sign}, {const(e, 'i64', 1, vector)}")
    least = e.op(f"bitcast {t64} {bits} to {t}")
    return e.op(f"select {bit} {lost}, {t} {least}, {t} {value}")


def product_and_loss(e: Emitter, vector: bool, x: str, y: str) -> tuple[str, str]:
    t = e.ty("double", vector)
    p = e.op(f"fmul {t} {x}, {y}")
    k = scaled(e, p, vector)
    low, high = by_size(e, vector, x, y)
    minus = e.op(f"fmul {t} {negate(e, p, 'double', vector)}, {k}")
    loss = intrinsic(e, "fma", "double", vector, e.op(f"fmul {t} {low}, {k}"), high, minus)
    bit = e.ty("i1", vector)
    gone = e.op(f"fcmp oeq {t} {p}, {zero(e, 'double', vector)}")
    return p, e.op(f"select {bit} {gone}, {t} {vanished(e, vector, loss, x, y)}, {t} {loss}")


def fused_and_loss(e: Emitter, vector: bool, x: str, y: str, z: str) -> tuple[str, str]:
    """The loss of x * y + z is the sum of three exact terms; where all is tiny, they are computed at 2^108
    times.
    """
    t, bit = e.ty("double", vector), e.ty("i1", vector)
    s = intrinsic(e, "fma", "double", vector, x, y, z)
    low, high = by_size(e, vector, x, y)
    near = e.op(
        f"fcmp olt {t} {intrinsic(e, 'fabs', 'double', vector, z)}, "
        f"{e.splat_text('double', '0x0DF0000000000000', vector)}"
    )  # 2^-800
    one = e.splat_text("double", "0x3FF0000000000000", vector)
    product = e.op(f"fmul {t} {x}, {y}")
    k = e.op(f"select {bit} {near}, {t} {scaled(e, product, vector)}, {t} {one}")
    huge = e.op(
        f"fcmp ogt {t} {intrinsic(e, 'fabs', 'double', vector, product)}, "
        f"{e.splat_text('double', '0x7E70000000000000', vector)}"
    )  # 2^1000
    k = e.op(
        f"select {bit} {huge}, {t} {e.splat_text('double', '0x3930000000000000', vector)}, {t} {k}"
    )  # 2^-108
    low = e.op(f"fmul {t} {low}, {k}")
    p = e.op(f"fmul {t} {low}, {high}")
    lost = intrinsic(e, "fma", "double", vector, low, high, negate(e, p, "double", vector))
    p = vanished(e, vector, p, x, y)
    term = vanished(e, vector, e.op(f"fmul {t} {z}, {k}"), z, one)
    u, t1 = two_sum(e, p, term, "double", vector)
    a = e.op(f"fsub {t} {u}, {e.op(f'fmul {t} {s}, {k}')}")
    v, w = two_sum(e, a, t1, "double", vector)
    h, rest = two_sum(e, w, lost, "double", vector)
    return s, e.op(f"fadd {t} {e.op(f'fadd {t} {v}, {h}')}, {rest}")


def adjust(e: Emitter, s: str, loss: str, kind: str, loss_kind: str, mode: str, vector: bool) -> str:
    """Moves a nearest result by one unit where the mode and the sign of the loss ask for it."""
    t, bit, integer = e.ty(kind, vector), e.ty("i1", vector), f"i{BITS[kind]}"
    ti, tl = e.ty(integer, vector), e.ty(loss_kind, vector)
    bits = e.op(f"bitcast {t} {s} to {ti}")
    less = e.op(f"fcmp olt {tl} {loss}, {zero(e, loss_kind, vector)}")
    more = e.op(f"fcmp ogt {tl} {loss}, {zero(e, loss_kind, vector)}")
    negative = e.op(f"icmp slt {ti} {bits}, {const(e, integer, 0, vector)}")
    up, down = const(e, integer, 1, vector), const(e, integer, -1, vector)
    if mode == "rz":
        wanted = e.op(f"select {bit} {negative}, {bit} {more}, {bit} {less}")
        moved = e.op(f"add {ti} {bits}, {down}")
    else:
        wanted = less if mode == "rm" else more
        away = negative if mode == "rm" else e.op(f"xor {bit} {negative}, {const(e, 'i1', -1, vector)}")
        step = e.op(f"select {bit} {away}, {ti} {up}, {ti} {down}")
        moved = e.op(f"add {ti} {bits}, {step}")
        is_zero = e.op(f"fcmp oeq {t} {s}, {zero(e, kind, vector)}")
        least = 1 if mode == "rp" else (1 << BITS[kind] - 1) | 1
        moved = e.op(f"select {bit} {is_zero}, {ti} {const(e, integer, least, vector)}, {ti} {moved}")
    name = e.op(f"select {bit} {wanted}, {ti} {moved}, {ti} {bits}")
    return e.op(f"bitcast {ti} {name} to {t}")


def narrow_with_loss(e: Emitter, d: str, loss: str, mode: str, vector: bool) -> str:
    """double (with a loss of its own) -> float, rounded as the mode says."""
    td, tf, bit = e.ty("double", vector), e.ty("float", vector), e.ty("i1", vector)
    f = e.op(f"fptrunc {td} {d} to {tf}")
    back = e.op(f"fpext {tf} {f} to {td}")
    second = e.op(f"fsub {td} {d}, {back}")
    exact = e.op(f"fcmp oeq {td} {second}, {zero(e, 'double', vector)}")
    total = e.op(f"select {bit} {exact}, {td} {loss}, {td} {second}")
    return adjust(e, f, total, "float", "double", mode, vector)


def narrow(e: Emitter, d: str, mode: str, vector: bool) -> str:
    return narrow_with_loss(e, d, zero(e, "double", vector), mode, vector)


def directed(e: Emitter, op: str, kind: str, mode: str, vector: bool, *args: str) -> str:
    """x op y, rounded as `mode` says."""
    if mode not in ("rz", "rm", "rp"):
        raise unsupported(f"rounding `.{mode}` of `{op}`", e.line)
    td = e.ty("double", vector)
    wide = args
    if kind == "float":
        wide = tuple(e.op(f"fpext {e.ty('float', vector)} {a} to {td}") for a in args)
    s, loss = nearest_and_loss(e, op, vector, wide)
    if kind == "float":
        name = narrow_with_loss(e, s, loss, mode, vector)
    else:
        name = adjust(e, s, overflow_loss(e, op, s, loss, wide, vector), "double", "double", mode, vector)
    if mode == "rm" and op in ("add", "sub", "fma"):
        name = minus_zero(e, op, kind, name, s, loss, wide, vector)
    return name


def overflow_loss(e: Emitter, op: str, s: str, loss: str, args: tuple[str, ...], vector: bool) -> str:
    """Where finite doubles overflowed, the loss points back from infinity."""
    t, bit = e.ty("double", vector), e.ty("i1", vector)
    infinity = e.splat_text("double", "0x7FF0000000000000", vector)
    over = e.op(f"fcmp oeq {t} {intrinsic(e, 'fabs', 'double', vector, s)}, {infinity}")
    for a in args:
        finite = e.op(f"fcmp olt {t} {intrinsic(e, 'fabs', 'double', vector, a)}, {infinity}")
        over = e.op(f"and {bit} {over}, {finite}")
    if op == "div":  # x / 0 is an exact infinity
        nonzero = e.op(f"fcmp one {t} {args[1]}, {zero(e, 'double', vector)}")
        over = e.op(f"and {bit} {over}, {nonzero}")
    return e.op(f"select {bit} {over}, {t} {negate(e, s, 'double', vector)}, {t} {loss}")


def minus_zero(
    e: Emitter, op: str, kind: str, name: str, s: str, loss: str, args: tuple[str, ...], vector: bool
) -> str:
    """Rounding down, an exact zero sum is -0, unless both terms were +0."""
    t, td, bit = e.ty(kind, vector), e.ty("double", vector), e.ty("i1", vector)
    first, second = args[0], args[1]
    if op == "fma":
        first, second = e.op(f"fmul {td} {args[0]}, {args[1]}"), args[2]
    if op == "sub":
        second = negate(e, second, "double", vector)
    z = zero(e, "double", vector)
    exact = e.op(f"and {bit} {e.op(f'fcmp oeq {td} {s}, {z}')}, {e.op(f'fcmp oeq {td} {loss}, {z}')}")
    t64 = e.ty("i64", vector)
    signs = e.op(
        f"or {t64} {e.op(f'bitcast {td} {first} to {t64}')}, {e.op(f'bitcast {td} {second} to {t64}')}"
    )
    negative = e.op(f"icmp slt {t64} {signs}, {const(e, 'i64', 0, vector)}")
    both = e.op(f"and {bit} {exact}, {negative}")
    return e.op(f"select {bit} {both}, {t} {e.splat_text(kind, '0x8000000000000000', vector)}, {t} {name}")


def directed_from_integer(
    e: Emitter, x: str, kind: str, signed: bool, real: str, mode: str, vector: bool, nearest: str
) -> str:
    """An integer as a float; `nearest` is its conversion to nearest."""
    t, ti, bit = e.ty(real, vector), e.ty(kind, vector), e.ty("i1", vector)
    how = "fptosi" if signed else "fptoui"
    full = f"llvm.{how}.sat.{e.suffix(kind, vector)}.{e.suffix(real, vector)}"
    e.declare(full, ti, t)
    back = e.op(f"call {ti} @{full}({t} {nearest})")
    test = "s" if signed else "u"
    limit = BITS[kind] - (1 if signed else 0)
    top = e.splat_text(real, f"0x{(1023 + limit) << 52:016X}", vector)
    over = e.op(f"fcmp oge {t} {nearest}, {top}")
    larger = e.op(f"or {bit} {over}, {e.op(f'icmp {test}gt {ti} {back}, {x}')}")
    smaller = e.op(f"icmp {test}lt {ti} {back}, {x}")
    minus, plus = (
        e.splat_text(real, "0xBFF0000000000000", vector),
        e.splat_text(real, "0x3FF0000000000000", vector),
    )
    loss = e.op(f"select {bit} {smaller}, {t} {plus}, {t} {zero(e, real, vector)}")
    loss = e.op(f"select {bit} {larger}, {t} {minus}, {t} {loss}")
    return adjust(e, nearest, loss, real, real, mode, vector)
