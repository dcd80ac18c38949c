"""Loads, stores, and what else is done with addresses; the checks are in memory_checks.py."""

from __future__ import annotations

from .emit import Emitter, handles
from .errors import invalid, unsupported
from .flow import Ins, ParamAddress, Source
from .memory_checks import READ, SPACES, WRITE, Access, address, check, decode
from .values import BITS, LLVM_TYPE


def local_lanes(e: Emitter) -> str:
    """Each lane's offset from the block's local memory to its own part."""
    key = ("local lanes", "i64", True)
    if key not in e.cache:
        w = e.W
        first = e.op(f"mul i32 {e.warp_number()}, {w}")
        thread = e.op(
            f"add <{w} x i64> {e.splat(e.op(f'zext i32 {first} to i64'), 'i64')}, {e.iota('i64', 1)}"
        )
        e.cache[key] = e.op(f"mul <{w} x i64> {thread}, {e.splat('%local.stride', 'i64')}")
    return e.cache[key]


# ---- addresses ------------------------------------------------------------------------------------
def base_pointer(space: str) -> str:
    return {"shared": "%shared", "local": "%local"}.get(space, "%mem")


def scalar_pointer(e: Emitter, ins: Ins, space: str, extra: int = 0) -> str:
    at = address(e, ins.src[0], space, False)
    pointer = e.op(f"getelementptr i8, ptr {base_pointer(space)}, i64 {at}")
    offset = ins.offsets[0] + extra
    return e.op(f"getelementptr i8, ptr {pointer}, i64 {offset}") if offset else pointer


def vector_pointers(e: Emitter, ins: Ins, space: str, extra: int) -> str:
    """The lanes' addresses.  What all lanes share is in the scalar base, and for linear addresses the rest is
    a constant: so processors gather and scatter with 32-bit indices, twice as many lanes at a time."""
    w = e.W
    source, offset = ins.src[0], ins.offsets[0] + extra
    stride = e.shape(source)
    if space == "local" or stride is None:
        lanes = address(e, source, space, True)
        if space == "local":
            lanes = e.op(f"add <{w} x i64> {lanes}, {local_lanes(e)}")
        base = base_pointer(space)
        if offset:
            base = e.op(f"getelementptr i8, ptr {base}, i64 {offset}")
    else:
        base, lanes = scalar_pointer(e, ins, space, extra), e.iota("i64", stride)
    return e.op(f"getelementptr i8, ptr {base}, <{w} x i64> {lanes}")


def contiguous(e: Emitter, ins: Ins, access: Access) -> bool:
    return access.space != "local" and e.shape(ins.src[0]) == access.bytes


def is_uniform(e: Emitter, ins: Ins, access: Access) -> bool:
    return access.space != "local" and e.shape(ins.src[0]) == 0


# ---- loads ----------------------------------------------------------------------------------------
def extend(e: Emitter, name: str, access: Access, value: int, vector: bool) -> tuple[str, str]:
    """A loaded element widened to its register."""
    have = LLVM_TYPE[access.kind]
    want = e.float_kind[value] if value >= 0 else have
    if access.kind in ("f16", "bf16"):
        have = "i16"
    if BITS[want] > BITS[have]:
        if have[0] != "i":
            name, have = e.convert(name, have, f"i{BITS[have]}", vector), f"i{BITS[have]}"
        how = "sext" if access.kind[0] == "s" else "zext"
        to = f"i{BITS[want]}"
        name = e.op(f"{how} {e.ty(have, vector)} {name} to {e.ty(to, vector)}")
        have = to
    elif BITS[want] < BITS[have]:
        raise invalid("a load into a register that is too small", e.line)
    return name, have


def replicated_mask(e: Emitter, count: int) -> str:
    """The mask for `count` elements per lane, lane by lane."""
    w = e.W
    if e.mask is None:
        return "splat (i1 true)"
    if count == 1:
        return e.mask
    order = ", ".join(f"i32 {i // count}" for i in range(w * count))
    return e.op(f"shufflevector <{w} x i1> {e.mask}, <{w} x i1> poison, <{w * count} x i32> <{order}>")


def load_wide(e: Emitter, pointer: str, kind: str, count: int, align: int) -> str:
    n = e.W * count
    t = f"<{n} x {kind}>"
    if e.mask is None:
        return e.op(f"load {t}, ptr {pointer}, align {align}")
    suffix = f"v{n}{SHORT_NAMES.get(kind, kind)}"
    e.declare(f"llvm.masked.load.{suffix}.p0", t, f"ptr, i32, <{n} x i1>, {t}")
    return e.op(
        f"call {t} @llvm.masked.load.{suffix}.p0(ptr {pointer}, i32 {align}, <{n} x i1> "
        f"{replicated_mask(e, count)}, {t} zeroinitializer)"
    )


SHORT_NAMES = {"float": "f32", "double": "f64"}


def element_type(e: Emitter, access: Access, values: list[int]) -> str:
    """Floats are loaded as floats where the register is kept as one."""
    kind = LLVM_TYPE[access.kind]
    wanted = {e.float_kind[v] for v in values if v >= 0}
    for real in ("float", "double"):
        if BITS[real] == BITS[kind] and wanted == {real}:
            return real
    return f"i{BITS[kind]}"


@handles("ld", "ldu")
def load(e: Emitter, ins: Ins) -> None:
    access = decode(ins)
    if len(ins.dst) != access.count or len(ins.offsets) != 1:
        raise invalid(f"`{ins.name}` with {len(ins.dst)} results", ins.line)
    order_before(e, access)
    if access.space == "param":
        load_param(e, ins, access)
        return
    check(e, ins, access, READ)
    if is_uniform(e, ins, access):
        load_uniform(e, ins, access)
    elif contiguous(e, ins, access):
        load_contiguous(e, ins, access)
    else:
        gather(e, ins, access)
    if access.ordering == "acquire":
        e.put("fence acquire")


def order_before(e: Emitter, access: Access) -> None:
    """Strong accesses are not cached in registers: loops that wait for others depend on it."""
    if access.ordering != "weak":
        e.put('call void asm sideeffect "", "~{memory}"()')
    if access.ordering == "release":
        e.put("fence release")


def load_param(e: Emitter, ins: Ins, access: Access) -> None:
    source = ins.src[0]
    if not isinstance(source, ParamAddress):
        if isinstance(source, int):
            access.space = "generic"
            raise unsupported("`ld.param` with a computed address", ins.line)
        raise invalid(f"`{ins.name}` of something that is no parameter", ins.line)
    for i, value in enumerate(ins.dst):
        offset = source.offset + ins.offsets[0] + i * access.size
        if not 0 <= offset <= e.flow.param_bytes - access.size:
            raise invalid(f"`{ins.name}` outside the parameters", ins.line)
        if value < 0:
            continue
        pointer = e.op(f"getelementptr i8, ptr %params, i64 {offset}")
        name = e.op(f"load {LLVM_TYPE[access.kind]}, ptr {pointer}, align {access.size}, !invariant.load !0")
        name, kind = extend(e, name, access, value, False)
        e.define(value, name, kind, False)


def load_uniform(e: Emitter, ins: Ins, access: Access) -> None:
    kind = element_type(e, access, ins.dst)
    for i, value in enumerate(ins.dst):
        if value < 0:
            continue
        pointer = scalar_pointer(e, ins, access.space, i * access.size)
        name = e.op(f"load {kind}, ptr {pointer}, align {access.size}")
        if kind[0] == "i":
            name, have = extend(e, name, access, value, False)
        else:
            have = kind
        e.define(value, name, have, False)


def load_contiguous(e: Emitter, ins: Ins, access: Access) -> None:
    w, n = e.W, access.count
    kind = element_type(e, access, ins.dst)
    wide = load_wide(e, scalar_pointer(e, ins, access.space), kind, n, access.bytes)
    for i, value in enumerate(ins.dst):
        if value < 0:
            continue
        name = wide
        if n > 1:
            order = ", ".join(f"i32 {i + n * lane}" for lane in range(w))
            t = f"<{w * n} x {kind}>"
            name = e.op(f"shufflevector {t} {wide}, {t} poison, <{w} x i32> <{order}>")
        have = kind
        if kind[0] == "i":
            name, have = extend(e, name, access, value, True)
        e.define(value, name, have, True)


def gather_narrow(e: Emitter, ins: Ins, access: Access) -> None:
    """8- and 16-bit elements: processors gather words, so the aligned word around each (it lies in the same
    page).
    """
    w, bits = e.W, 8 * access.size
    t = f"<{w} x i32>"
    e.declare(f"llvm.masked.gather.v{w}i32.v{w}p0", t, f"<{w} x ptr>, i32, <{w} x i1>, {t}")
    base = "%mem"
    for i, value in enumerate(ins.dst):
        if value < 0:
            continue
        pointers = vector_pointers(e, ins, access.space, i * access.size)
        at = e.op(f"ptrtoint <{w} x ptr> {pointers} to <{w} x i64>")
        word = e.op(f"and <{w} x i64> {at}, splat (i64 -4)")
        words = e.op(f"getelementptr i8, ptr {base}, <{w} x i64> {word}")
        data = e.op(
            f"call {t} @llvm.masked.gather.v{w}i32.v{w}p0(<{w} x ptr> {words}, i32 4, <{w} x i1> "
            f"{e.mask_vector()}, {t} zeroinitializer)"
        )
        low = e.op(f"trunc <{w} x i64> {at} to {t}")
        shift = e.op(f"shl {t} {e.op(f'and {t} {low}, splat (i32 3)')}, splat (i32 3)")
        name = e.op(f"trunc {t} {e.op(f'lshr {t} {data}, {shift}')} to <{w} x i{bits}>")
        name, have = extend(e, name, access, value, True)
        e.define(value, name, have, True)


def gather(e: Emitter, ins: Ins, access: Access) -> None:
    if access.size < 4:
        gather_narrow(e, ins, access)
        return
    w = e.W
    kind = element_type(e, access, ins.dst)
    t, suffix = f"<{w} x {kind}>", f"v{w}{SHORT_NAMES.get(kind, kind)}"
    e.declare(f"llvm.masked.gather.{suffix}.v{w}p0", t, f"<{w} x ptr>, i32, <{w} x i1>, {t}")
    for i, value in enumerate(ins.dst):
        if value < 0:
            continue
        pointers = vector_pointers(e, ins, access.space, i * access.size)
        name = e.op(
            f"call {t} @llvm.masked.gather.{suffix}.v{w}p0(<{w} x ptr> {pointers}, i32 {access.size}, "
            f"<{w} x i1> {e.mask_vector()}, {t} zeroinitializer)"
        )
        have = kind
        if kind[0] == "i":
            name, have = extend(e, name, access, value, True)
        e.define(value, name, have, True)


# ---- stores ---------------------------------------------------------------------------------------
@handles("st")
def store(e: Emitter, ins: Ins) -> None:
    access = decode(ins)
    values = ins.src[1:]
    if len(values) != access.count or len(ins.offsets) != 1:
        raise invalid(f"`{ins.name}` with {len(values)} values", ins.line)
    if access.space in ("param", "const"):
        raise invalid(f"`{ins.name}` writes to a space that is read-only", ins.line)
    order_before(e, access)
    check(e, ins, access, WRITE)
    if is_uniform(e, ins, access):
        store_uniform(e, ins, access, values)
    elif contiguous(e, ins, access):
        store_contiguous(e, ins, access, values)
    else:
        scatter(e, ins, access, values)
    if access.ordering != "weak":
        e.put('call void asm sideeffect "", "~{memory}"()')


def stored_type(e: Emitter, access: Access, values: list[Source]) -> str:
    kind = LLVM_TYPE[access.kind]
    kinds = {e.home[v][0] if isinstance(v, int) and v in e.home else "?" for v in values}
    for real in ("float", "double"):
        if BITS[real] == BITS[kind] and kinds == {real}:
            return real
    return f"i{BITS[kind]}"


def last_lane(e: Emitter) -> str:
    """The number of the last active lane: of several that store to one address, it wins."""
    if e.mask is None:
        return str(e.W - 1)
    e.declare("llvm.ctlz.i32", "i32", "i32, i1")
    zeros = e.op(f"call i32 @llvm.ctlz.i32(i32 {e.mask_bits()}, i1 true)")
    return e.op(f"sub i32 31, {zeros}")


def store_uniform(e: Emitter, ins: Ins, access: Access, values: list[Source]) -> None:
    kind = stored_type(e, access, values)
    for i, value in enumerate(values):
        if e.shape(value) == 0:
            name = e.scalar(value, kind)
        else:
            name = e.op(f"extractelement <{e.W} x {kind}> {e.vector(value, kind)}, i32 {last_lane(e)}")
        pointer = scalar_pointer(e, ins, access.space, i * access.size)
        e.put(f"store {kind} {name}, ptr {pointer}, align {access.size}")


def interleave(e: Emitter, names: list[str], kind: str) -> str:
    """Lanes' elements side by side: a0 b0 a1 b1 ..."""
    w = e.W
    n = len(names)
    width = w
    while len(names) > 1:
        joined = []
        both = ", ".join(f"i32 {i}" for i in range(2 * width))
        for i in range(0, len(names), 2):
            t = f"<{width} x {kind}>"
            joined.append(
                e.op(f"shufflevector {t} {names[i]}, {t} {names[i + 1]}, <{2 * width} x i32> <{both}>")
            )
        names, width = joined, 2 * width
    order = ", ".join(f"i32 {element * w + lane}" for lane in range(w) for element in range(n))
    t = f"<{w * n} x {kind}>"
    return e.op(f"shufflevector {t} {names[0]}, {t} poison, <{w * n} x i32> <{order}>")


def store_contiguous(e: Emitter, ins: Ins, access: Access, values: list[Source]) -> None:
    n = access.count
    kind = stored_type(e, access, values)
    names = [e.vector(v, kind) for v in values]
    data = interleave(e, names, kind) if n > 1 else names[0]
    pointer = scalar_pointer(e, ins, access.space)
    total = e.W * n
    t = f"<{total} x {kind}>"
    if e.mask is None:
        e.put(f"store {t} {data}, ptr {pointer}, align {access.bytes}")
        return
    suffix = f"v{total}{SHORT_NAMES.get(kind, kind)}"
    e.declare(f"llvm.masked.store.{suffix}.p0", "void", f"{t}, ptr, i32, <{total} x i1>")
    e.put(
        f"call void @llvm.masked.store.{suffix}.p0({t} {data}, ptr {pointer}, i32 {access.bytes}, "
        f"<{total} x i1> {replicated_mask(e, n)})"
    )


def scatter_narrow(e: Emitter, ins: Ins, access: Access, values: list[Source]) -> None:
    """8- and 16-bit elements, lane by lane: LLVM would unroll that into a branch per lane."""
    from .emit_system import end_lane_loop, lane_loop

    w, kind = e.W, f"i{8 * access.size}"
    at = address(e, ins.src[0], access.space, True)
    if access.space == "local":
        at = e.op(f"add <{w} x i64> {at}, {local_lanes(e)}")
    slot = kept_in_memory(e, at, "i64")
    data = [kept_in_memory(e, e.vector(v, kind), kind) for v in values]
    lane, head, done, _ = lane_loop(e)
    base = e.op(f"load i64, ptr {e.op(f'getelementptr i64, ptr {slot}, i32 {lane}')}")
    pointer = e.op(f"getelementptr i8, ptr {base_pointer(access.space)}, i64 {base}")
    for i, where in enumerate(data):
        one = e.op(f"load {kind}, ptr {e.op(f'getelementptr {kind}, ptr {where}, i32 {lane}')}")
        target = e.op(f"getelementptr i8, ptr {pointer}, i64 {ins.offsets[0] + i * access.size}")
        e.put(f"store {kind} {one}, ptr {target}, align {access.size}")
    end_lane_loop(e, head, done)


def kept_in_memory(e: Emitter, name: str, kind: str) -> str:
    """A vector stored to a slot, one element per lane; stored once per block."""
    key = (("kept", name), kind, True)
    if key not in e.cache:
        slot = e.fresh()
        e.alloca(slot, f"<{e.W} x {kind}>")
        e.put(f"store <{e.W} x {kind}> {name}, ptr {slot}")
        e.cache[key] = slot
    return e.cache[key]


def scatter(e: Emitter, ins: Ins, access: Access, values: list[Source]) -> None:
    if access.size < 4:
        scatter_narrow(e, ins, access, values)
        return
    w = e.W
    kind = stored_type(e, access, values)
    t, suffix = f"<{w} x {kind}>", f"v{w}{SHORT_NAMES.get(kind, kind)}"
    e.declare(f"llvm.masked.scatter.{suffix}.v{w}p0", "void", f"{t}, <{w} x ptr>, i32, <{w} x i1>")
    for i, value in enumerate(values):
        pointers = vector_pointers(e, ins, access.space, i * access.size)
        e.put(
            f"call void @llvm.masked.scatter.{suffix}.v{w}p0({t} {e.vector(value, kind)}, "
            f"<{w} x ptr> {pointers}, i32 {access.size}, <{w} x i1> {e.mask_vector()})"
        )


@handles("cvta")
def convert_address(e: Emitter, ins: Ins) -> None:
    to = "to" in ins.mods
    space = next((m.split("::")[0] for m in ins.mods if m.split("::")[0] in SPACES), "global")
    if ins.mods[-1] not in ("u64", "u32"):
        raise invalid(f"`{ins.name}` has no type", ins.line)
    vector = e.is_vector(ins.dst[0])
    name = e.value(ins.src[0], "i64", vector)
    t = e.ty("i64", vector)
    if space == "shared":
        base = e.op("ptrtoint ptr %shared to i64")
        base = e.splat(base, "i64") if vector else base
        name = e.op(f"{'sub' if to else 'add'} {t} {name}, {base}")
    elif space == "local":
        base = e.splat(e.op("ptrtoint ptr %local to i64"), "i64")
        base = e.op(f"add {t} {base}, {local_lanes(e)}")
        name = e.op(f"{'sub' if to else 'add'} {t} {name}, {base}")
    e.define(ins.dst[0], name, "i64", vector)


@handles("membar", "fence")
def fence(e: Emitter, ins: Ins) -> None:
    if set(ins.mods) - {"gl", "cta", "sys", "sc", "acq_rel", "gpu", "cluster", "acquire", "release"}:
        raise e.unsupported(ins)
    e.put("fence seq_cst")


@handles("prefetch", "prefetchu", "discard", "applypriority")
def prefetch(e: Emitter, ins: Ins) -> None:
    """Hints."""
    if ins.op == "discard":
        raise e.unsupported(ins)


@handles("isspacep")
def is_space(e: Emitter, ins: Ins) -> None:
    """Whether a generic address lies in a state space."""
    space = ins.mods[0].split("::")[0] if len(ins.mods) == 1 else ""
    if space not in SPACES or ins.mods[0] == "shared::cluster":
        raise e.unsupported(ins)
    vector = e.is_vector(ins.dst[0])
    t, bit = e.ty("i64", vector), e.ty("i1", vector)
    at = e.value(ins.src[0], "i64", vector)

    def within(start: str, size: str) -> str:
        if vector:
            start, size = e.splat(start, "i64"), e.splat(size, "i64")
        return e.op(f"icmp ult {t} {e.op(f'sub {t} {at}, {start}')}, {size}")

    shared = within(e.op("ptrtoint ptr %shared to i64"), "%shared.bytes")
    local = within(e.op("ptrtoint ptr %local to i64"), e.op(f"mul i64 %local.stride, {e.layout.threads}"))
    if space == "shared":
        name = shared
    elif space == "local":
        name = local
    elif space == "global":
        name = e.op(f"xor {bit} {e.op(f'or {bit} {shared}, {local}')}, {e.immediate(-1, 'i1', vector)}")
    else:
        raise e.unsupported(ins)
    e.define(ins.dst[0], name, "i1", vector)
