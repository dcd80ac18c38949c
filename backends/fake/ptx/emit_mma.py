"""Tensor-core operations: mma.sync for f16, bf16 and tf32, and ldmatrix.

Fragments are spread over the warp as the PTX ISA lays down; a helper (multiply.py) knows where their elements
are. Sums are accumulated in float in the order of k, starting from c.  Hardware sums in its own order; PTX
promises none.
"""

from __future__ import annotations

from .emit import Emitter, handles
from .emit_float import float_to_half, half_to_float
from .emit_memory import vector_pointers
from .flow import Ins
from .memory_checks import READ, check_range

SHAPES = {
    ("m16n8k16", "f16"): 16,
    ("m16n8k16", "bf16"): 16,
    ("m16n8k8", "f16"): 8,
    ("m16n8k8", "bf16"): 8,
    ("m16n8k8", "tf32"): 8,
    ("m16n8k4", "tf32"): 4,
}


def scratch(e: Emitter, kind: str, count: int) -> str:
    slot = e.fresh()
    e.alloca(slot, f"[{count} x {kind}]", 64)
    return slot


def halves(e: Emitter, register: str, kind: str) -> list[str]:
    """A packed register as two float vectors, the lower half first."""
    found = []
    for shift in (0, 16):
        moved = e.op(f"lshr <32 x i32> {register}, splat (i32 {shift})") if shift else register
        found.append(half_to_float(e, e.op(f"trunc <32 x i32> {moved} to <32 x i16>"), kind, True))
    return found


def tf32(e: Emitter, register: str) -> str:
    """The 19 bits that the hardware looks at."""
    cut = e.op(f"and <32 x i32> {register}, splat (i32 -8192)")
    return e.op(f"bitcast <32 x i32> {cut} to <32 x float>")


def fragment(e: Emitter, registers: list[str], kind: str) -> list[str]:
    """The float vectors of a multiplicand fragment, in the ISA's element order."""
    if kind == "tf32":
        return [tf32(e, r) for r in registers]
    return [v for r in registers for v in halves(e, r, kind)]


@handles("mma")
def mma(e: Emitter, ins: Ins) -> None:
    mods = [m for m in ins.mods if m not in ("sync", "aligned")]
    if (
        len(mods) != 7
        or mods[1:3] != ["row", "col"]
        or mods[4] != mods[5]
        or (mods[0], mods[4]) not in SHAPES
    ):
        raise e.unsupported(ins)
    if mods[3] != mods[6] or mods[3] not in ("f32", "f16") or (mods[3] == "f16" and mods[4] != "f16"):
        raise e.unsupported(ins)
    kind, k = mods[4], SHAPES[mods[0], mods[4]]
    per = 1 if kind == "tf32" else 2
    a_count, b_count = 16 * k // 32 // per, 8 * k // 32 // per
    c_count = 4 if mods[3] == "f32" else 2
    if len(ins.src) != a_count + b_count + c_count or len(ins.dst) != c_count:
        raise e.unsupported(ins)
    registers = [e.vector(s, "i32") for s in ins.src[: a_count + b_count]]
    a = fragment(e, registers[:a_count], kind)
    b = fragment(e, registers[a_count:], kind)
    if mods[3] == "f32":
        c = [e.vector(s, "float") for s in ins.src[a_count + b_count :]]
    else:
        c = [v for s in ins.src[a_count + b_count :] for v in halves(e, e.vector(s, "i32"), "f16")]
    d = multiply(e, kind, k, a, b, c)
    if mods[3] == "f32":
        for value, name in zip(ins.dst, d, strict=False):
            e.define(value, name, "float", True)
        return
    for i, value in enumerate(ins.dst):
        low, high = (
            e.op(f"zext <32 x i16> {float_to_half(e, v, 'f16', True)} to <32 x i32>")
            for v in d[2 * i : 2 * i + 2]
        )
        e.define(
            value, e.op(f"or <32 x i32> {low}, {e.op(f'shl <32 x i32> {high}, splat (i32 16)')}"), "i32", True
        )


def multiply(e: Emitter, kind: str, k: int, a: list[str], b: list[str], c: list[str]) -> list[str]:
    """c + a * b as fragments, which the helper takes as rows of 32 lanes in memory."""
    slots = []
    for vectors in (a, b, c):
        slot = scratch(e, "float", 32 * len(vectors))
        slots.append(slot)
        for i, name in enumerate(vectors):
            row = e.op(f"getelementptr float, ptr {slot}, i64 {32 * i}")
            e.put(f"store <32 x float> {name}, ptr {row}, align 64")
    helper = f"sg.mma.{'tf32' if kind == 'tf32' else 'half'}.{k}"
    e.helpers[helper] = ""
    e.put(f"call void @{helper}(ptr {slots[0]}, ptr {slots[1]}, ptr {slots[2]})")
    return [
        e.op(f"load <32 x float>, ptr {e.op(f'getelementptr float, ptr {slots[2]}, i64 {32 * i}')}, align 64")
        for i in range(4)
    ]


@handles("ldmatrix")
def load_matrix(e: Emitter, ins: Ins) -> None:
    """Matrices of 8 x 8 16-bit elements; lanes 8 i .. 8 i + 7 hold the row addresses of matrix i."""
    mods = [m for m in ins.mods if m not in ("sync", "aligned")]
    transposed = "trans" in mods
    plain = [m for m in mods if m != "trans"]
    if (
        len(plain) != 4
        or plain[0] != "m8n8"
        or plain[1] not in ("x1", "x2", "x4")
        or plain[3] != "b16"
        or plain[2] not in ("shared", "shared::cta")
    ):
        raise e.unsupported(ins)
    count = int(plain[1][1])
    if len(ins.dst) != count:
        raise e.unsupported(ins)
    saved = e.mask
    rows = "<" + ", ".join(f"i1 {'true' if lane < 8 * count else 'false'}" for lane in range(32)) + ">"
    e.mask = e.masked(rows)
    check_range(e, "shared", ins.src[0], [(ins.offsets[0], 16, READ)], 16)
    e.mask = saved
    slot = scratch(e, "ptr", 32)
    source = Ins("ld", ("shared", "b32"), [], [ins.src[0]], ins.line, list(ins.offsets))
    e.put(f"store <32 x ptr> {vector_pointers(e, source, 'shared', 0)}, ptr {slot}, align 64")
    for i, value in enumerate(ins.dst):
        result = "zeroinitializer"
        for lane in range(32):
            parts = []
            for half in range(2):
                row, column = lane >> 2, 2 * (lane & 3) + half
                if transposed:
                    row, column = column, row
                at = e.op(f"load ptr, ptr {e.op(f'getelementptr ptr, ptr {slot}, i64 {8 * i + row}')}")
                at = e.op(f"getelementptr i16, ptr {at}, i64 {column}")
                parts.append(e.op(f"zext i16 {e.op(f'load i16, ptr {at}, align 2')} to i32"))
            whole = e.op(f"or i32 {parts[0]}, {e.op(f'shl i32 {parts[1]}, 16')}")
            result = e.op(f"insertelement <32 x i32> {result}, i32 {whole}, i32 {lane}")
        e.define(value, result, "i32", True)
