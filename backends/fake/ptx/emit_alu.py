"""Integer arithmetic, logic and shifts."""

from __future__ import annotations

from .emit import Emitter, handles
from .errors import invalid
from .flow import Ins, Source
from .shape_rules import widening
from .syntax import TYPE_SIZE
from .values import BITS, LLVM_TYPE

INTEGERS = {"u16", "s16", "u32", "s32", "u64", "s64", "b16", "b32", "b64", "u8", "s8", "b8"}


def type_of(ins: Ins, allowed: set[str] | None = None) -> str:
    """The instruction's type: its last modifier."""
    kind = ins.mods[-1] if ins.mods else ""
    if kind not in TYPE_SIZE:
        raise invalid(f"`{ins.name}` has no type", ins.line)
    if allowed is not None and kind not in allowed:
        raise invalid(f"`{ins.name}`: wrong type", ins.line)
    return kind


def only(e: Emitter, ins: Ins, *allowed: str) -> None:
    """Refuses modifiers (other than the type, the last) that the handler does not know."""
    if set(ins.mods[:-1]) - set(allowed):
        raise e.unsupported(ins)


def operands(ins: Ins, count: int) -> list[Source]:
    if len(ins.src) != count:
        raise invalid(f"`{ins.name}` with {len(ins.src)} operands instead of {count}", ins.line)
    return ins.src


def binary(e: Emitter, ins: Ins, text: str, kind: str) -> None:
    """dst = a <text> b, lane by lane or on scalars."""
    a, b = operands(ins, 2)
    vector = e.is_vector(ins.dst[0])
    x, y = e.value(a, kind, vector), e.value(b, kind, vector)
    e.define(ins.dst[0], e.op(f"{text} {e.ty(kind, vector)} {x}, {y}"), kind, vector)


def intrinsic(
    e: Emitter, name: str, kind: str, vector: bool, *arguments: str, tail: str = "", tail_type: str = ""
) -> str:
    """Calls llvm.<name>.<type> on values of one type."""
    t, full = e.ty(kind, vector), f"llvm.{name}.{e.suffix(kind, vector)}"
    types = ", ".join([t] * len(arguments)) + (f", {tail_type}" if tail else "")
    e.declare(full, t, types)
    text = ", ".join(f"{t} {a}" for a in arguments) + (f", {tail_type} {tail}" if tail else "")
    return e.op(f"call {t} @{full}({text})")


def const(e: Emitter, kind: str, value: int, vector: bool) -> str:
    return e.immediate(value, kind, vector)


# ---- add, sub with carries ------------------------------------------------------------------------
def carry_slot(e: Emitter) -> str:
    name = "%carry"
    if not any(line.startswith(f"  {name} =") for line in e.head):
        e.alloca(name, f"<{e.W} x i1>")
        e.head.append(f"  store <{e.W} x i1> zeroinitializer, ptr {name}")
    return name


def with_carry(e: Emitter, ins: Ins, sub: bool, carry_in: bool, x: str, y: str, kind: str) -> None:
    """x +- y (+- carry), vectors; the carry flag is kept per lane whatever the shapes."""
    w = e.W
    t = f"<{w} x {kind}>"
    slot = carry_slot(e)
    text = "sub" if sub else "add"
    result = e.op(f"{text} {t} {x}, {y}")
    out = e.op(f"icmp ult {t} {x}, {y}") if sub else e.op(f"icmp ult {t} {result}, {x}")
    if carry_in:
        flag = e.op(f"load <{w} x i1>, ptr {slot}")
        wide = e.op(f"zext <{w} x i1> {flag} to {t}")
        second = e.op(f"{text} {t} {result}, {wide}")
        more = e.op(f"icmp ult {t} {result}, {wide}") if sub else e.op(f"icmp ult {t} {second}, {result}")
        out = e.op(f"or <{w} x i1> {out}, {more}")
        result = second
    if "cc" in ins.mods:
        e.put(f"store <{w} x i1> {out}, ptr {slot}")
    define_lanes(e, ins.dst[0], result, kind)


def define_lanes(e: Emitter, value: int, name: str, kind: str) -> None:
    """Binds a result that was computed for all lanes, taking lane 0 where the value is uniform or linear."""
    if value < 0:
        return
    if not e.is_vector(value):
        name = e.op(f"extractelement <{e.W} x {kind}> {name}, i64 0")
    e.define(value, name, kind, e.is_vector(value))


@handles("add", "sub")
def add(e: Emitter, ins: Ins) -> None:
    kind = type_of(ins)
    if kind[0] in "f" or kind in ("bf16", "bf16x2"):
        from .emit_float import float_add

        float_add(e, ins)
        return
    only(e, ins, "cc", "sat")
    llvm = LLVM_TYPE[kind]
    if "cc" in ins.mods:
        a, b = operands(ins, 2)
        with_carry(e, ins, ins.op == "sub", False, e.vector(a, llvm), e.vector(b, llvm), llvm)
    elif "sat" in ins.mods:
        if kind != "s32":
            raise e.unsupported(ins)
        a, b = operands(ins, 2)
        vector = e.is_vector(ins.dst[0])
        name = intrinsic(
            e, f"s{ins.op}.sat", llvm, vector, e.value(a, llvm, vector), e.value(b, llvm, vector)
        )
        e.define(ins.dst[0], name, llvm, vector)
    else:
        binary(e, ins, ins.op, llvm)


@handles("addc", "subc")
def add_carry(e: Emitter, ins: Ins) -> None:
    only(e, ins, "cc")
    llvm = LLVM_TYPE[type_of(ins, {"u32", "s32", "u64", "s64", "b32", "b64"})]
    a, b = operands(ins, 2)
    with_carry(e, ins, ins.op == "subc", True, e.vector(a, llvm), e.vector(b, llvm), llvm)


# ---- widening and multiplication --------------------------------------------------------------------
def widen(e: Emitter, source: Source, kind: str, to: str, signed: bool, vector: bool) -> str:
    """A narrower integer as a wider one.  A linear operand stays linear, with a guard where it may wrap."""
    how = "sext" if signed else "zext"
    fact = e.fact(source)
    if vector or fact.stride == 0:
        name = e.value(source, kind, vector)
        return e.op(f"{how} {e.ty(kind, vector)} {name} to {e.ty(to, vector)}")
    base = e.value(source, kind, False)
    if widening(fact, signed, BITS[kind]) == "proven":
        return e.op(f"{how} {kind} {base} to {to}")
    assert fact.stride is not None
    start, bad, good = e.new_label("widen"), e.new_label("wrap"), e.new_label("widened")
    e.put(f"br label %{start}")
    e.label(start)
    wide = e.op(f"{how} {kind} {base} to {to}")
    last = e.op(f"add {to} {wide}, {fact.stride * (e.W - 1)}")
    cut = e.op(f"trunc {to} {last} to {kind}")
    back = e.op(f"{how} {kind} {cut} to {to}")
    fits = e.op(f"icmp eq {to} {back}, {last}")
    e.put(f"br i1 {fits}, label %{good}, label %{bad}, !prof !1")
    e.label(bad)
    saved = dict(e.cache)
    other = e.op(f"sext {kind} {base} to {to}")
    wrong = wrapped_lanes(e, source, kind, to, how, other, fact.stride)
    fail, done = e.new_label("fail"), e.new_label("same")
    e.put(f"br i1 {wrong}, label %{fail}, label %{done}")
    e.label(fail)
    fault(e, 801, "0")
    e.put(f"br label %{done}")
    e.label(done)
    e.put(f"br label %{good}")
    e.label(good)
    e.cache = saved
    return e.op(f"phi {to} [ {wide}, %{start} ], [ {other}, %{done} ]")


def wrapped_lanes(e: Emitter, source: Source, kind: str, to: str, how: str, base: str, stride: int) -> str:
    """Whether an active lane's widened value is not base + lane * stride."""
    w = e.W
    exact = e.op(f"{how} <{w} x {kind}> {e.value(source, kind, True)} to <{w} x {to}>")
    linear = e.op(f"add <{w} x {to}> {e.splat(base, to)}, {e.iota(to, stride)}")
    return e.any_lane(e.masked(e.op(f"icmp ne <{w} x {to}> {exact}, {linear}")))


def fault(e: Emitter, what: int, address: str) -> None:
    slot = e.op("getelementptr i8, ptr %env, i64 112")
    function = e.op(f"load ptr, ptr {slot}, !invariant.load !0")
    e.put(f"call void {function}(ptr %env, i32 {what}, i64 {address})")


def double_kind(e: Emitter, ins: Ins, llvm: str) -> str:
    found = {"i16": "i32", "i32": "i64"}.get(llvm)
    if found is None:
        raise e.unsupported(ins)
    return found


def product(e: Emitter, ins: Ins, kind: str, vector: bool) -> tuple[str, str]:
    """The product of the first two operands in the mode that the modifiers ask for, and its LLVM type."""
    a, b = ins.src[0], ins.src[1]
    llvm = LLVM_TYPE[kind]
    signed = kind[0] == "s"
    if "wide" in ins.mods:
        to = double_kind(e, ins, llvm)
        x = widen(e, a, llvm, to, signed, vector)
        y = widen(e, b, llvm, to, signed, vector)
        return e.op(f"mul {e.ty(to, vector)} {x}, {y}"), to
    x, y = e.value(a, llvm, vector), e.value(b, llvm, vector)
    if "hi" in ins.mods:
        bits = BITS[llvm]
        wide, t, ext = f"i{2 * bits}", e.ty(f"i{2 * bits}", vector), "sext" if signed else "zext"
        p = e.op(f"{ext} {e.ty(llvm, vector)} {x} to {t}")
        q = e.op(f"{ext} {e.ty(llvm, vector)} {y} to {t}")
        r = e.op(f"mul {t} {p}, {q}")
        r = e.op(f"lshr {t} {r}, {const(e, wide, bits, vector)}")
        return e.op(f"trunc {t} {r} to {e.ty(llvm, vector)}"), llvm
    if "lo" not in ins.mods:
        raise invalid(f"`{ins.name}` needs .lo, .hi or .wide", ins.line)
    return e.op(f"mul {e.ty(llvm, vector)} {x}, {y}"), llvm


@handles("mul")
def mul(e: Emitter, ins: Ins) -> None:
    kind = type_of(ins)
    if kind[0] == "f" or kind[0:2] == "bf":
        from .emit_float import float_mul

        float_mul(e, ins)
        return
    only(e, ins, "lo", "hi", "wide")
    operands(ins, 2)
    vector = e.is_vector(ins.dst[0])
    name, have = product(e, ins, kind, vector)
    e.define(ins.dst[0], name, have, vector)


@handles("mad", "madc")
def mad(e: Emitter, ins: Ins) -> None:
    kind = type_of(ins)
    if kind[0] == "f":
        from .emit_float import fused

        fused(e, ins)
        return
    only(e, ins, "lo", "hi", "wide", "cc", "sat")
    operands(ins, 3)
    if "cc" in ins.mods or ins.op == "madc":
        name, have = product(e, ins, kind, True)
        with_carry(e, ins, False, ins.op == "madc", name, e.vector(ins.src[2], have), have)
        return
    vector = e.is_vector(ins.dst[0])
    name, have = product(e, ins, kind, vector)
    other = e.value(ins.src[2], have, vector)
    if "sat" in ins.mods:
        if "hi" not in ins.mods or kind != "s32":
            raise e.unsupported(ins)
        name = intrinsic(e, "sadd.sat", have, vector, name, other)
    else:
        name = e.op(f"add {e.ty(have, vector)} {name}, {other}")
    e.define(ins.dst[0], name, have, vector)


@handles("mul24", "mad24")
def mul24(e: Emitter, ins: Ins) -> None:
    kind = type_of(ins, {"u32", "s32"})
    only(e, ins, "lo", "hi")
    vector = e.is_vector(ins.dst[0])
    t32, t64 = e.ty("i32", vector), e.ty("i64", vector)
    parts = []
    for source in ins.src[:2]:
        x = e.op(f"shl {t32} {e.value(source, 'i32', vector)}, {const(e, 'i32', 8, vector)}")
        x = e.op(f"{'ashr' if kind[0] == 's' else 'lshr'} {t32} {x}, {const(e, 'i32', 8, vector)}")
        parts.append(e.op(f"{'sext' if kind[0] == 's' else 'zext'} {t32} {x} to {t64}"))
    result = e.op(f"mul {t64} {parts[0]}, {parts[1]}")
    if "hi" in ins.mods:
        result = e.op(f"lshr {t64} {result}, {const(e, 'i64', 16, vector)}")
    name = e.op(f"trunc {t64} {result} to {t32}")
    if ins.op == "mad24":
        name = e.op(f"add {t32} {name}, {e.value(ins.src[2], 'i32', vector)}")
    e.define(ins.dst[0], name, "i32", vector)


@handles("div", "rem")
def divide(e: Emitter, ins: Ins) -> None:
    """Division by zero gives all ones (and the remainder the dividend), as in hardware; never a trap."""
    kind = type_of(ins)
    if kind[0] == "f" or kind[0:2] == "bf":
        from .emit_float import float_div

        float_div(e, ins)
        return
    only(e, ins)
    a, b = operands(ins, 2)
    llvm = LLVM_TYPE[kind]
    vector = e.is_vector(ins.dst[0])
    t, bit = e.ty(llvm, vector), e.ty("i1", vector)
    x, y = e.value(a, llvm, vector), e.value(b, llvm, vector)
    signed = kind[0] == "s"
    divisor = e.fact(b).const
    text = ("s" if signed else "u") + ins.op
    if divisor is not None and divisor not in (0, -1):
        e.define(ins.dst[0], e.op(f"{text} {t} {x}, {y}"), llvm, vector)
        return
    zero = e.op(f"icmp eq {t} {y}, {const(e, llvm, 0, vector)}")
    bad = zero
    if signed:
        minus = e.op(f"icmp eq {t} {y}, {const(e, llvm, -1, vector)}")
        bad = e.op(f"or {bit} {zero}, {minus}")
    safe = e.op(f"select {bit} {bad}, {t} {const(e, llvm, 1, vector)}, {t} {y}")
    name = e.op(f"{text} {t} {x}, {safe}")
    if signed:
        instead = (
            e.op(f"sub {t} {const(e, llvm, 0, vector)}, {x}")
            if ins.op == "div"
            else const(e, llvm, 0, vector)
        )
        name = e.op(f"select {bit} {minus}, {t} {instead}, {t} {name}")
    instead = const(e, llvm, -1, vector) if ins.op == "div" else x
    e.define(ins.dst[0], e.op(f"select {bit} {zero}, {t} {instead}, {t} {name}"), llvm, vector)


# ---- logic and shifts -------------------------------------------------------------------------------
@handles("and", "or", "xor")
def logic(e: Emitter, ins: Ins) -> None:
    only(e, ins)
    binary(e, ins, ins.op, LLVM_TYPE[type_of(ins, {"b16", "b32", "b64", "pred"})])


@handles("not", "cnot")
def negate_bits(e: Emitter, ins: Ins) -> None:
    only(e, ins)
    llvm = LLVM_TYPE[type_of(ins, {"b16", "b32", "b64", "pred"})]
    vector = e.is_vector(ins.dst[0])
    name = e.value(operands(ins, 1)[0], llvm, vector)
    t = e.ty(llvm, vector)
    if ins.op == "not":
        name = e.op(f"xor {t} {name}, {const(e, llvm, -1, vector)}")
    else:
        flag = e.op(f"icmp eq {t} {name}, {const(e, llvm, 0, vector)}")
        name = e.op(f"zext {e.ty('i1', vector)} {flag} to {t}")
    e.define(ins.dst[0], name, llvm, vector)


@handles("shl", "shr")
def shift(e: Emitter, ins: Ins) -> None:
    """Shift amounts beyond the width are clamped to it."""
    only(e, ins)
    kind = type_of(ins, INTEGERS)
    llvm = LLVM_TYPE[kind]
    bits = BITS[llvm]
    a, b = operands(ins, 2)
    vector = e.is_vector(ins.dst[0])
    t = e.ty(llvm, vector)
    x = e.value(a, llvm, vector)
    signed = ins.op == "shr" and kind[0] == "s"
    text = "shl" if ins.op == "shl" else ("ashr" if signed else "lshr")
    known = e.fact(b).const
    if known is not None:
        amount = known & 0xFFFFFFFF
        if amount >= bits:
            if not signed:
                e.define(ins.dst[0], const(e, llvm, 0, vector), llvm, vector)
                return
            amount = bits - 1
        e.define(ins.dst[0], e.op(f"{text} {t} {x}, {const(e, llvm, amount, vector)}"), llvm, vector)
        return
    t32 = e.ty("i32", vector)
    amount_name = e.value(b, "i32", vector)
    inside = e.op(f"icmp ult {t32} {amount_name}, {const(e, 'i32', bits, vector)}")
    top = const(e, "i32", bits - 1, vector)
    clamped = e.op(f"select {e.ty('i1', vector)} {inside}, {t32} {amount_name}, {t32} {top}")
    name = e.op(f"{text} {t} {x}, {e.convert(clamped, 'i32', llvm, vector)}")
    if not signed:
        name = e.op(f"select {e.ty('i1', vector)} {inside}, {t} {name}, {t} {const(e, llvm, 0, vector)}")
    e.define(ins.dst[0], name, llvm, vector)


@handles("shf")
def funnel(e: Emitter, ins: Ins) -> None:
    if (
        len(ins.mods) != 3
        or ins.mods[0] not in "lr"
        or ins.mods[1] not in ("wrap", "clamp")
        or ins.mods[2] != "b32"
    ):
        raise e.unsupported(ins)
    low, high, amount = operands(ins, 3)
    vector = e.is_vector(ins.dst[0])
    t = e.ty("i32", vector)
    x, y, c = (e.value(s, "i32", vector) for s in (low, high, amount))
    name = intrinsic(e, "fshl" if ins.mods[0] == "l" else "fshr", "i32", vector, y, x, c)
    if ins.mods[1] == "clamp":
        big = e.op(f"icmp ugt {t} {c}, {const(e, 'i32', 31, vector)}")
        name = e.op(f"select {e.ty('i1', vector)} {big}, {t} {x if ins.mods[0] == 'l' else y}, {t} {name}")
    e.define(ins.dst[0], name, "i32", vector)


# ---- single operand ---------------------------------------------------------------------------------
@handles("neg", "abs")
def sign(e: Emitter, ins: Ins) -> None:
    kind = type_of(ins)
    if kind[0] == "f" or kind[:2] == "bf":
        from .emit_float import float_sign

        float_sign(e, ins)
        return
    only(e, ins)
    llvm = LLVM_TYPE[kind]
    vector = e.is_vector(ins.dst[0])
    x = e.value(operands(ins, 1)[0], llvm, vector)
    if ins.op == "neg":
        name = e.op(f"sub {e.ty(llvm, vector)} {const(e, llvm, 0, vector)}, {x}")
    else:
        name = intrinsic(e, "abs", llvm, vector, x, tail="false", tail_type="i1")
    e.define(ins.dst[0], name, llvm, vector)


@handles("min", "max")
def extreme(e: Emitter, ins: Ins) -> None:
    kind = type_of(ins)
    if kind[0] == "f" or kind[:2] == "bf":
        from .emit_float import float_extreme

        float_extreme(e, ins)
        return
    if kind in ("u16x2", "s16x2"):
        raise e.unsupported(ins)
    only(e, ins, "relu")
    llvm = LLVM_TYPE[kind]
    a, b = operands(ins, 2)
    vector = e.is_vector(ins.dst[0])
    name = intrinsic(
        e,
        ("s" if kind[0] == "s" else "u") + ins.op,
        llvm,
        vector,
        e.value(a, llvm, vector),
        e.value(b, llvm, vector),
    )
    if "relu" in ins.mods:
        name = intrinsic(e, "smax", llvm, vector, name, const(e, llvm, 0, vector))
    e.define(ins.dst[0], name, llvm, vector)
