"""Operations between the lanes of a warp.  Kernels that use them are compiled for 32 lanes.

A lane that does not take part (masked off) contributes nothing; reading from it gives an unspecified value,
as in PTX.
"""

from __future__ import annotations

from .emit import Emitter, handles
from .errors import invalid
from .flow import Ins, Source
from .values import BITS

REDUCTIONS = {"add": ("add", 0), "and": ("and", -1), "or": ("or", 0), "xor": ("xor", 0)}


def members(e: Emitter, source: Source) -> str:
    """Active lanes that the member mask names, as i32."""
    fact = e.fact(source)
    if fact.const is not None and fact.const & 0xFFFFFFFF == 0xFFFFFFFF:
        return e.mask_bits()
    if fact.stride == 0:
        return e.op(f"and i32 {e.scalar(source, 'i32')}, {e.mask_bits()}")
    w = e.W
    own = e.op(f"lshr <{w} x i32> {e.vector(source, 'i32')}, {e.iota('i32', 1)}")
    named = e.op(f"trunc <{w} x i32> {own} to <{w} x i1>")
    return e.mask_bits(e.masked(named))


def mask_from(e: Emitter, bits: str) -> str:
    return e.op(f"bitcast i32 {bits} to <32 x i1>")


# ---- shuffles -------------------------------------------------------------------------------------
def shuffle_table(mode: str, b: int, c: int) -> tuple[list[int], list[bool]]:
    """Source lane and predicate of each lane, for constant operands."""
    b &= 31
    clamp, segment = c & 31, c >> 8 & 31
    lanes, valid = [], []
    for lane in range(32):
        top = (lane & segment) | (clamp & ~segment & 31)
        low = lane & segment
        if mode == "up":
            j = lane - b
            good = j >= top
        elif mode == "down":
            j = lane + b
            good = j <= top
        elif mode == "bfly":
            j = lane ^ b
            good = j <= top
        else:
            j = low | (b & ~segment & 31)
            good = j <= top
        lanes.append(j if good else lane)
        valid.append(good)
    return lanes, valid


@handles("shfl")
def shuffle(e: Emitter, ins: Ins) -> None:
    mods = [m for m in ins.mods if m != "sync"]
    if len(mods) != 2 or mods[0] not in ("up", "down", "bfly", "idx") or mods[1] != "b32":
        raise e.unsupported(ins)
    if len(ins.src) not in (3, 4):
        raise invalid(f"`{ins.name}` with {len(ins.src)} operands", ins.line)
    a, b, c = ins.src[:3]
    kind = "i32"
    if isinstance(a, int) and a in e.home and e.home[a][0] == "float":
        kind = "float"
    data = e.vector(a, kind)
    b_const, c_const = e.fact(b).const, e.fact(c).const
    if b_const is not None and c_const is not None:
        lanes, valid = shuffle_table(mods[0], b_const, c_const)
        order = ", ".join(f"i32 {j}" for j in lanes)
        name = e.op(f"shufflevector <32 x {kind}> {data}, <32 x {kind}> poison, <32 x i32> <{order}>")
        flags = "<" + ", ".join(f"i1 {'true' if v else 'false'}" for v in valid) + ">"
    else:
        index, flags = shuffle_index(e, mods[0], e.vector(b, "i32"), e.vector(c, "i32"))
        name = permute(e, data, kind, index)
    e.define(ins.dst[0], name, kind, True)
    if len(ins.dst) > 1:
        e.define(ins.dst[1], flags, "i1", True)


def shuffle_index(e: Emitter, mode: str, b: str, c: str) -> tuple[str, str]:
    t = "<32 x i32>"
    lane, low5 = e.iota("i32", 1), "splat (i32 31)"
    segment = e.op(f"and {t} {e.op(f'lshr {t} {c}, splat (i32 8)')}, {low5}")
    free = e.op(f"xor {t} {segment}, {low5}")
    low = e.op(f"and {t} {segment}, {lane}")
    clamp = e.op(f"and {t} {c}, {free}")
    top = e.op(f"or {t} {low}, {clamp}")
    amount = e.op(f"and {t} {b}, {low5}")
    if mode == "up":
        j = e.op(f"sub {t} {lane}, {amount}")
        good = e.op(f"icmp sge {t} {j}, {top}")
    else:
        if mode == "down":
            j = e.op(f"add {t} {lane}, {amount}")
        elif mode == "bfly":
            j = e.op(f"xor {t} {lane}, {amount}")
        else:
            j = e.op(f"or {t} {low}, {e.op(f'and {t} {amount}, {free}')}")
        good = e.op(f"icmp sle {t} {j}, {top}")
    return e.op(f"select <32 x i1> {good}, {t} {j}, {t} {lane}"), good


def permute(e: Emitter, data: str, kind: str, index: str) -> str:
    """data[index[lane]] per lane, by way of memory."""
    slot = e.fresh()
    e.alloca(slot, f"<32 x {kind}>")
    e.put(f"store <32 x {kind}> {data}, ptr {slot}")
    wide = e.op(f"zext <32 x i32> {index} to <32 x i64>")
    pointers = e.op(f"getelementptr {kind}, ptr {slot}, <32 x i64> {wide}")
    short = "f32" if kind == "float" else kind
    t = f"<32 x {kind}>"
    e.declare(f"llvm.masked.gather.v32{short}.v32p0", t, f"<32 x ptr>, i32, <32 x i1>, {t}")
    return e.op(
        f"call {t} @llvm.masked.gather.v32{short}.v32p0(<32 x ptr> {pointers}, i32 4, <32 x i1> "
        f"splat (i1 true), {t} zeroinitializer)"
    )


# ---- votes ----------------------------------------------------------------------------------------
@handles("vote")
def vote(e: Emitter, ins: Ins) -> None:
    mods = [m for m in ins.mods if m != "sync"]
    if mods not in (["all", "pred"], ["any", "pred"], ["uni", "pred"], ["ballot", "b32"]):
        raise e.unsupported(ins)
    taking = members(e, ins.src[1]) if len(ins.src) > 1 else e.mask_bits()
    lanes = e.vector(ins.src[0], "i1")
    yes = e.op(f"and i32 {e.op(f'bitcast <32 x i1> {lanes} to i32')}, {taking}")
    if mods[0] == "ballot":
        e.define(ins.dst[0], yes, "i32", False)
        return
    every = e.op(f"icmp eq i32 {yes}, {taking}")
    none = e.op(f"icmp eq i32 {yes}, 0")
    if mods[0] == "all":
        name = every
    elif mods[0] == "any":
        name = e.op(f"xor i1 {none}, true")
    else:
        name = e.op(f"or i1 {every}, {none}")
    e.define(ins.dst[0], name, "i1", False)


@handles("activemask")
def active(e: Emitter, ins: Ins) -> None:
    e.define(ins.dst[0], e.op(f"or i32 {e.mask_bits()}, 0"), "i32", False)


@handles("elect")
def elect(e: Emitter, ins: Ins) -> None:
    """elect.sync leader|predicate, members: the first lane leads."""
    if ins.mods != ("sync",):
        raise e.unsupported(ins)
    e.declare("llvm.cttz.i32", "i32", "i32, i1")
    leader = e.op(f"call i32 @llvm.cttz.i32(i32 {members(e, ins.src[0])}, i1 false)")
    lanes = e.splat(leader, "i32")
    e.define(ins.dst[0], lanes, "i32", True)
    if len(ins.dst) > 1:
        e.define(ins.dst[1], e.op(f"icmp eq <32 x i32> {lanes}, {e.iota('i32', 1)}"), "i1", True)


@handles("match")
def match(e: Emitter, ins: Ins) -> None:
    """Lanes with the same value: compared with each lane in turn."""
    mods = [m for m in ins.mods if m != "sync"]
    if len(mods) != 2 or mods[0] not in ("any", "all") or mods[1] not in ("b32", "b64"):
        raise e.unsupported(ins)
    kind = "i32" if mods[1] == "b32" else "i64"
    data = e.vector(ins.src[0], kind)
    taking = members(e, ins.src[1])
    result = "zeroinitializer"
    for lane in range(32):
        one = e.op(f"extractelement <32 x {kind}> {data}, i32 {lane}")
        same = e.op(f"icmp eq <32 x {kind}> {data}, {e.splat(one, kind)}")
        bits = e.op(f"and i32 {e.op(f'bitcast <32 x i1> {same} to i32')}, {taking}")
        result = e.op(f"insertelement <32 x i32> {result}, i32 {bits}, i32 {lane}")
    if mods[0] == "any":
        e.define(ins.dst[0], result, "i32", True)
        return
    whole = e.op(f"icmp eq <32 x i32> {result}, {e.splat(taking, 'i32')}")
    e.define(
        ins.dst[0],
        e.op(f"select <32 x i1> {whole}, <32 x i32> {result}, <32 x i32> zeroinitializer"),
        "i32",
        True,
    )
    if len(ins.dst) > 1:
        e.define(ins.dst[1], whole, "i1", True)


def reduce_lanes(e: Emitter, op: str, kind: str, signed: bool, data: str, lanes: str) -> str:
    """A reduction over the lanes of a mask vector; integers only."""
    w = e.W
    if op in ("min", "max"):
        name = ("s" if signed else "u") + op
        bits = BITS[kind]
        low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, -1)
        identity = high if op == "min" else low
    else:
        name, identity = REDUCTIONS[op]
    t = f"<{w} x {kind}>"
    chosen = e.op(f"select <{w} x i1> {lanes}, {t} {data}, {t} splat ({kind} {identity})")
    full = f"llvm.vector.reduce.{name}.v{w}{kind}"
    e.declare(full, kind, t)
    return e.op(f"call {kind} @{full}({t} {chosen})")


@handles("redux")
def redux(e: Emitter, ins: Ins) -> None:
    mods = [m for m in ins.mods if m != "sync"]
    if (
        len(mods) != 2
        or mods[0] not in ("add", "min", "max", "and", "or", "xor")
        or mods[1] not in ("u32", "s32", "b32")
    ):
        raise e.unsupported(ins)
    lanes = mask_from(e, members(e, ins.src[1]))
    name = reduce_lanes(e, mods[0], "i32", mods[1] == "s32", e.vector(ins.src[0], "i32"), lanes)
    e.define(ins.dst[0], name, "i32", False)
