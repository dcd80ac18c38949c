"""Addresses, and the checks in front of every access.

A check is one unsigned comparison: the distance from the start of the space, rotated right by
log2(alignment), so that misaligned addresses become huge, against the number of places where the range fits.
Accesses of a block that share an address register are checked once, as one range: all lanes in a block run
all of its instructions, so one that would fault later in the block may as well fault now.  A failed check
only means a second look (second_look.c).
"""

from __future__ import annotations

from dataclasses import dataclass

from .emit import Emitter
from .errors import invalid, unsupported
from .flow import Block, Ins, Source
from .syntax import TYPE_SIZE, Imm

READ, WRITE, ATOMIC = 0, 1, 2
SHARED_SPACE, LOCAL_SPACE, NARROW = 0x400, 0x800, 0x1000  # SGF_ACCESS_* of kernel_abi.h
SPACES = ("global", "shared", "local", "param", "const")
ORDERINGS = {"weak", "volatile", "relaxed", "acquire", "release", "mmio"}
SCOPES = {"cta", "gpu", "sys", "cluster"}
CACHE_HINTS = {
    "ca",
    "cg",
    "cs",
    "lu",
    "cv",
    "wb",
    "wt",
    "nc",
    "L1",
    "L2",
    "evict_last",
    "evict_normal",
    "evict_first",
    "evict_unchanged",
    "no_allocate",
    "unified",
    "L1::evict_normal",
    "L1::evict_unchanged",
    "L1::evict_first",
    "L1::evict_last",
    "L1::no_allocate",
    "L2::64B",
    "L2::128B",
    "L2::256B",
    "L2::evict_last",
    "L2::evict_first",
    "L2::evict_normal",
    "L2::cache_hint",
}


@dataclass(slots=True)
class Access:
    space: str
    kind: str  # PTX type of an element
    count: int
    ordering: str
    size: int  # bytes of an element

    @property
    def bytes(self) -> int:
        return self.size * self.count


def decode(ins: Ins) -> Access:
    """Space, type and ordering from the modifiers; unknown ones are refused."""
    space, count, ordering = "generic", 1, "weak"
    if not ins.mods or ins.mods[-1] not in TYPE_SIZE or ins.mods[-1] in ("pred",):
        raise invalid(f"`{ins.name}` has no type", ins.line)
    kind = ins.mods[-1]
    for m in ins.mods[:-1]:
        base = m.split("::")[0]
        if base in SPACES:
            space = base
            if m in ("shared::cluster",):
                raise unsupported(f"`{ins.name}`", ins.line)
        elif m in ("v2", "v4", "v8"):
            count = int(m[1])
        elif m in ORDERINGS:
            ordering = m
        elif m in SCOPES or m in CACHE_HINTS or m == "entry" or m == "func":
            if m == "L2::cache_hint":
                raise unsupported(f"`{ins.name}`", ins.line)
        else:
            raise unsupported(f"modifier `.{m}` of `{ins.op}`", ins.line)
    if kind == "b128":
        raise unsupported(f"`{ins.name}`", ins.line)
    return Access(space, kind, count, ordering, TYPE_SIZE[kind])


# ---- checks ---------------------------------------------------------------------------------------
def collect_groups(e: Emitter, block: Block) -> None:
    """Accesses of this block by space and address register: (offset, bytes of an access, alignment, kind)."""
    e.access_groups = {}
    for ins in block.ins:
        if ins.op in ("ld", "st", "ldu") and ins.offsets and isinstance(ins.src[0], int):
            access = decode(ins)
            align = access.bytes
            if ins.offsets[0] % align == 0 and access.space in ("global", "generic", "const", "shared"):
                space = "global" if access.space in ("generic", "const") else access.space
                entry = (ins.offsets[0], access.bytes, WRITE if ins.op == "st" else READ)
                e.access_groups.setdefault((space, ins.src[0]), []).append(entry)


def limit_of(e: Emitter, space: str, span: int, align: int) -> str:
    """How many (aligned) places there are in the space where `span` bytes fit."""
    e.declare("llvm.usub.sat.i64", "i64", "i64, i64")
    places = {"global": "%span.places", "shared": "%shared.places"}.get(space) or str(e.flow.local_bytes + 1)
    limit = e.op(f"call i64 @llvm.usub.sat.i64(i64 {places}, i64 {span})")
    k = align.bit_length() - 1
    if k:
        limit = e.op(f"add i64 {limit}, {align - 1}")
        limit = e.op(f"lshr i64 {limit}, {k}")
    return limit


def rotated(e: Emitter, value: str, align: int, vector: bool) -> str:
    k = align.bit_length() - 1
    if not k:
        return value
    t, suffix = e.ty("i64", vector), e.suffix("i64", vector)
    e.declare(f"llvm.fshr.{suffix}", t, f"{t}, {t}, {t}")
    amount = e.splat_text("i64", str(k), vector)
    return e.op(f"call {t} @llvm.fshr.{suffix}({t} {value}, {t} {value}, {t} {amount})")


def is_narrow(e: Emitter, source: Source, space: str) -> bool:
    """Whether an address is held in 32 bits."""
    return (
        space in ("shared", "local") and isinstance(source, int) and e.home.get(source, ("i64",))[0] == "i32"
    )


def address(e: Emitter, source: Source, space: str, vector: bool) -> str:
    """The register part of an address as i64.

    32-bit addresses of shared and local memory are sign-extended: valid ones are below 2^31, and so base +
    offset and base + lane * stride come out right where the base alone wrapped below zero.
    """
    if is_narrow(e, source, space):
        name = e.value(source, "i32", vector)
        key = (("sext", source), "i64", vector)
        if key not in e.cache:
            e.cache[key] = e.op(f"sext {e.ty('i32', vector)} {name} to {e.ty('i64', vector)}")
        return e.cache[key]
    if isinstance(source, Imm) and space in ("shared", "local"):
        return e.splat_text("i64", str(source.value), vector)
    return e.value(source, "i64", vector)


def check(e: Emitter, ins: Ins, access: Access, kind: int) -> None:
    """Emits the check of an access (or of the group that it belongs to, once per block)."""
    space = "global" if access.space in ("generic", "const") else access.space
    source, offset = ins.src[0], ins.offsets[0]
    known = source.value + offset if space == "local" and isinstance(source, Imm) else -1
    if 0 <= known <= e.flow.local_bytes - access.bytes:
        return
    members = e.access_groups.get((space, source)) if isinstance(source, int) else None
    if members is not None and offset % access.bytes == 0:
        if (space, source) in e.checked:
            return
        e.checked.add((space, source))
        members = list(dict.fromkeys(members))
    else:
        members = [(offset, access.bytes, kind)]
    align = max(m[1] for m in members)
    check_range(e, space, source, members, align)


def check_range(
    e: Emitter, space: str, source: Source, members: list[tuple[int, int, int]], align: int
) -> None:
    first = min(m[0] for m in members)
    if len(members) > 1:
        first -= first % align
    span = max(m[0] + m[1] for m in members) - first
    fact = e.fact(source)
    stride = fact.stride
    if space == "shared" and proven_shared(e, source, first, span, align):
        return
    if stride is None or (stride and abs(stride) % align):
        check_vector(e, space, source, members, first, span, align)
        return
    base = address(e, source, space, False)
    low = first
    if stride:
        reach = abs(stride) * (e.W - 1)
        span += reach
        if stride < 0:
            low -= reach
    start = e.op(f"add i64 {base}, {low}") if low else base
    if space == "global":
        start = e.op(f"sub i64 {start}, %lo")
    ok = e.op(f"icmp ult i64 {rotated(e, start, align, False)}, {limit_of(e, space, span, align)}")
    good, bad = e.new_label("ok"), e.new_label("look")
    e.put(f"br i1 {ok}, label %{good}, label %{bad}, !prof !1")
    e.label(bad)
    look_linear(e, space, source, base, stride, members)
    e.put(f"br label %{good}")
    e.label(good)


def proven_shared(e: Emitter, source: Source, first: int, span: int, align: int) -> bool:
    """Whether the value's range says that the access stays within the static shared memory."""
    fact = e.fact(source)
    if fact.umax < 0 or fact.risky or first < 0 or fact.umax + first + span > e.flow.static_shared:
        return False
    if fact.stride is None:
        return False
    return fact.tz >= align.bit_length() - 1 and fact.stride % align == 0 and first % align == 0


def access_words(e: Emitter, space: str, members: list[tuple[int, int, int]]) -> list[tuple[int, int]]:
    """(offset, SGF_ACCESS_* word of kernel_abi.h) for runs of members that are equally far apart."""
    where = {"global": 0, "shared": SHARED_SPACE}.get(space, LOCAL_SPACE | e.flow.local_bytes << 32)
    found: list[tuple[int, int]] = []
    at = 0
    while at < len(members):
        offset, size, kind = members[at]
        step = members[at + 1][0] - offset if at + 1 < len(members) else 0
        if step <= 0 or step % size or step >= 256 * size:
            step = 0
        count = 1
        while (
            step
            and count < 256
            and members[at + count : at + count + 1] == [(offset + count * step, size, kind)]
        ):
            count += 1
        step = step // size if count > 1 else 0
        found.append((offset, where | size | kind << 8 | (count - 1) << 16 | step << 24))
        at += count
    return found


def look_linear(
    e: Emitter, space: str, source: Source, base: str, stride: int, members: list[tuple[int, int, int]]
) -> None:
    """The second look at accesses whose address is uniform or linear; `base` is lane 0's."""
    e.declared["sgf_rt_look"] = "declare void @sgf_rt_look(ptr, i64, i32, i64, i64, i64) #1"
    narrow = NARROW if stride and is_narrow(e, source, space) else 0
    bits = e.mask_bits() if stride else "1"
    for offset, word in access_words(e, space, members):
        e.put(
            f"call void @sgf_rt_look(ptr %env, i64 {base}, i32 {bits}, i64 {stride}, i64 {offset}, "
            f"i64 {word | narrow})"
        )


def look_at_lanes(e: Emitter, space: str, lanes: str, members: list[tuple[int, int, int]]) -> None:
    slot = "%lanes.slot"
    if not any(line.startswith(f"  {slot} =") for line in e.head):
        e.alloca(slot, f"<{e.W} x i64>")
    e.put(f"store <{e.W} x i64> {lanes}, ptr {slot}")
    e.declared["sgf_rt_look_at_lanes"] = "declare void @sgf_rt_look_at_lanes(ptr, ptr, i32, i64, i64) #1"
    bits = e.mask_bits()
    for offset, word in access_words(e, space, members):
        e.put(f"call void @sgf_rt_look_at_lanes(ptr %env, ptr {slot}, i32 {bits}, i64 {offset}, i64 {word})")


def check_vector(
    e: Emitter,
    space: str,
    source: Source,
    members: list[tuple[int, int, int]],
    first: int,
    span: int,
    align: int,
) -> None:
    w = e.W
    lanes = address(e, source, space, True)
    start = lanes
    if first:
        start = e.op(f"add <{w} x i64> {start}, splat (i64 {first})")
    if space == "global":
        start = e.op(f"sub <{w} x i64> {start}, {e.splat('%lo', 'i64')}")
    limit = e.splat(limit_of(e, space, span, align), "i64")
    wrong = e.op(f"icmp uge <{w} x i64> {rotated(e, start, align, True)}, {limit}")
    any_bad = e.any_lane(e.masked(wrong))
    good, bad = e.new_label("ok"), e.new_label("look")
    e.put(f"br i1 {any_bad}, label %{bad}, label %{good}, !prof !2")
    e.label(bad)
    look_at_lanes(e, space, lanes, members)
    e.put(f"br label %{good}")
    e.label(good)
