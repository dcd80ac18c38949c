"""What reaches outside of arithmetic: traps, printf, assertions, waiting, barriers in fiber mode,
asynchronous copies.
"""

from __future__ import annotations

from .emit import Emitter, handles
from .emit_alu import fault
from .emit_memory import vector_pointers
from .errors import invalid
from .flow import Ins, Source
from .memory_checks import READ, WRITE, check_range
from .syntax import Imm

TRAP, ASSERT = 719, 710


@handles("trap", "brkpt")
def trap(e: Emitter, ins: Ins) -> None:
    if ins.op == "trap":
        fault(e, TRAP, "0")


def lane_loop(e: Emitter) -> tuple[str, str, str, str]:
    """Begins a loop over the active lanes; returns the lane's number (i32) and the labels that end it."""
    bits = e.mask_bits()
    before, head, body, done = (e.new_label(x) for x in ("lanes", "each", "lane", "after"))
    e.put(f"br label %{before}")
    e.label(before)
    slot = e.fresh()
    e.alloca(slot, "i32")
    e.put(f"store i32 {bits}, ptr {slot}")
    e.put(f"br label %{head}")
    e.label(head)
    left = e.op(f"load i32, ptr {slot}")
    none = e.op(f"icmp eq i32 {left}, 0")
    e.put(f"br i1 {none}, label %{done}, label %{body}")
    e.label(body)
    e.declare("llvm.cttz.i32", "i32", "i32, i1")
    lane = e.op(f"call i32 @llvm.cttz.i32(i32 {left}, i1 true)")
    rest = e.op(f"and i32 {left}, {e.op(f'sub i32 {left}, 1')}")
    e.put(f"store i32 {rest}, ptr {slot}")
    return lane, head, done, slot


def end_lane_loop(e: Emitter, head: str, done: str) -> None:
    e.put(f"br label %{head}, !llvm.loop !3")
    e.label(done)


def lane_value(e: Emitter, source: Source, kind: str, lane: str, whole: str) -> str:
    """One lane of an operand that was evaluated before the loop."""
    if e.shape(source) == 0:
        return whole
    return e.op(f"extractelement <{e.W} x {kind}> {whole}, i32 {lane}")


def before_loop(e: Emitter, source: Source, kind: str) -> str:
    return e.value(source, kind, e.shape(source) != 0)


@handles("$vprintf")
def vprintf(e: Emitter, ins: Ins) -> None:
    names = [before_loop(e, s, "i64") for s in ins.src[:2]]
    lane, head, done, _ = lane_loop(e)
    arguments = [lane_value(e, s, "i64", lane, n) for s, n in zip(ins.src, names, strict=False)]
    slot = e.op("getelementptr i8, ptr %env, i64 144")
    function = e.op(f"load ptr, ptr {slot}")
    e.op(f"call i32 {function}(ptr %env, i64 {arguments[0]}, i64 {arguments[1]})")
    end_lane_loop(e, head, done)
    if ins.dst:
        e.define(ins.dst[0], "1", "i32", False)


@handles("$__assertfail")
def assertion(e: Emitter, ins: Ins) -> None:
    """assert(): the message and the file are handed to the fault as the address of the message."""
    message = e.value(ins.src[0], "i64", e.shape(ins.src[0]) != 0)
    if e.shape(ins.src[0]) != 0:
        message = e.op(f"extractelement <{e.W} x i64> {message}, i32 0")
    fault(e, ASSERT, message)


@handles("nanosleep")
def nanosleep(e: Emitter, ins: Ins) -> None:
    if ins.mods != ("u32",):
        raise e.unsupported(ins)
    source = ins.src[0]
    name = e.value(source, "i32", e.shape(source) != 0)
    if e.shape(source) != 0:
        name = e.op(f"extractelement <{e.W} x i32> {name}, i32 0")
    wide = e.op(f"zext i32 {name} to i64")
    slot = e.op("getelementptr i8, ptr %env, i64 128")
    e.put(f"call void {e.op(f'load ptr, ptr {slot}')}(ptr %env, i64 {wide})")


@handles("pmevent")
def performance_event(e: Emitter, ins: Ins) -> None:
    """Nobody listens."""


@handles("bar", "barrier")
def barrier(e: Emitter, ins: Ins) -> None:
    """bar.warp.sync needs nothing: a warp is always in step.  Other barriers only get here in fiber mode."""
    mods = [m for m in ins.mods if m not in ("cta", "aligned")]
    if mods[:1] == ["warp"]:
        return
    operation = {"sync": 0, "arrive": 1}.get(mods[0])
    if operation is None:
        operation = {"popc": 2, "and": 3, "or": 4}[mods[1]]
    sources = list(ins.src)
    predicate = sources.pop() if mods[0] == "red" else None
    number = scalar_operand(e, sources[0], ins)
    expected = scalar_operand(e, sources[1], ins) if len(sources) > 1 else "0"
    lanes = "0"
    if predicate is not None:
        lanes = e.mask_bits(e.masked(e.vector(predicate, "i1")))
    slot = e.op("getelementptr i8, ptr %env, i64 120")
    function = e.op(f"load ptr, ptr {slot}")
    result = e.op(
        f"call i32 {function}(ptr %env, i32 %warp, i32 {number}, i32 {expected}, i32 {e.mask_bits()}, "
        f"i32 {operation}, i32 {lanes})"
    )
    if ins.dst and ins.dst[0] >= 0:
        if mods[1] == "popc":
            e.define(ins.dst[0], result, "i32", False)
        else:
            e.define(ins.dst[0], e.op(f"icmp ne i32 {result}, 0"), "i1", False)


def scalar_operand(e: Emitter, source: Source, ins: Ins) -> str:
    if e.shape(source) != 0:
        raise invalid(f"`{ins.name}` with an operand that differs between the lanes of a warp", ins.line)
    return e.scalar(source, "i32")


@handles("cp")
def asynchronous_copy(e: Emitter, ins: Ins) -> None:
    """cp.async, done at once; so waiting for it is nothing."""
    mods = list(ins.mods)
    if mods[:2] in (["async", "commit_group"], ["async", "wait_group"], ["async", "wait_all"]):
        return
    rest = {m.split("::")[0] for m in mods}
    if mods[:1] != ["async"] or rest - {"async", "ca", "cg", "shared", "global", "L2"} or "bulk" in mods:
        raise e.unsupported(ins)
    if len(ins.src) not in (3, 4) or not isinstance(ins.src[2], Imm) or ins.src[2].value not in (4, 8, 16):
        raise e.unsupported(ins)
    if len(ins.src) == 4 and not isinstance(ins.src[3], Imm):
        raise e.unsupported(ins)
    size = ins.src[2].value
    taken = ins.src[3].value if len(ins.src) == 4 and isinstance(ins.src[3], Imm) else size
    to = Ins("st", ("shared", "b32"), [], [ins.src[0]], ins.line, [ins.offsets[0]])
    source = Ins("ld", ("global", "b32"), [], [ins.src[1]], ins.line, [ins.offsets[1]])
    check_range(e, "shared", ins.src[0], [(ins.offsets[0], size, WRITE)], size)
    if taken:
        check_range(e, "global", ins.src[1], [(ins.offsets[1], min(taken, size), READ)], min(size, 4))
    w = e.W
    t = f"<{w} x i32>"
    e.declare(f"llvm.masked.gather.v{w}i32.v{w}p0", t, f"<{w} x ptr>, i32, <{w} x i1>, {t}")
    e.declare(f"llvm.masked.scatter.v{w}i32.v{w}p0", "void", f"{t}, <{w} x ptr>, i32, <{w} x i1>")
    for at in range(0, size, 4):
        value = "zeroinitializer"
        if at < taken:
            pointers = vector_pointers(e, source, "global", at)
            value = e.op(
                f"call {t} @llvm.masked.gather.v{w}i32.v{w}p0(<{w} x ptr> {pointers}, i32 4, <{w} x i1> "
                f"{e.mask_vector()}, {t} zeroinitializer)"
            )
        pointers = vector_pointers(e, to, "shared", at)
        e.put(
            f"call void @llvm.masked.scatter.v{w}i32.v{w}p0({t} {value}, <{w} x ptr> {pointers}, i32 4, "
            f"<{w} x i1> {e.mask_vector()})"
        )
