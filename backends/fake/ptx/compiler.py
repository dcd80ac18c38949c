"""One kernel, one block shape: from the syntax tree to an object."""

from __future__ import annotations

import hashlib
import re
import sys
from dataclasses import dataclass

from . import (
    emit_alu,
    emit_atomic,
    emit_bits,
    emit_convert,
    emit_float,
    emit_math,
    emit_memory,
    emit_mma,
    emit_select,
    emit_system,
    emit_warp,
)
from .errors import NOT_FOUND, PtxError
from .frame import Frame
from .graph import most_live
from .interleave import interleave
from .linear import Linear
from .lower import lower
from .prelude import ATTRIBUTES, helpers
from .resolve import Resolver
from .shapes import Layout, analyse
from .ssa import cut_barriers, needs_fibers, to_ssa
from .syntax import Function, Instruction, Module
from .target import attributes, object_code, optimise

_FAMILIES = (
    emit_alu,
    emit_atomic,
    emit_bits,
    emit_convert,
    emit_float,
    emit_math,
    emit_memory,
    emit_mma,
    emit_select,
    emit_system,
    emit_warp,
)  # they register their handlers when imported
WARP_OPS = {
    "shfl",
    "vote",
    "match",
    "activemask",
    "redux",
    "mma",
    "ldmatrix",
    "stmatrix",
    "elect",
    "movmatrix",
}
MANY_LIVE = 32  # values at a time: twice as many registers are needed for 32 lanes
sys.setrecursionlimit(20_000)


@dataclass
class Compiled:
    """What COMPILE answers, and the LLVM module's text."""

    symbol: str
    mode: str
    spill: int
    shared: int
    local: int
    text: str
    width: int


def uses_lanes(module: Module, kernel: Function) -> bool:
    """Whether the kernel can see which threads share a warp."""
    for function in Resolver(module, kernel).reachable():
        for ins in function.body or ():
            if isinstance(ins, Instruction):
                if ins.op in WARP_OPS or (ins.op in ("bar", "barrier") and "warp" in ins.mods):
                    return True
                for operand in ins.operands:
                    name = getattr(operand, "name", "")
                    if (
                        name.startswith(("laneid", "lanemask", "warpid"))
                        and operand.__class__.__name__ == "Special"
                    ):
                        return True
    return False


def choose_width(block: tuple[int, int, int], lanes: bool, live: int) -> int:
    """Lanes per vector: 32 as in hardware, unless fewer keep %tid.x linear, waste less or spare registers."""
    if lanes:
        return 32
    if live > MANY_LIVE and block[0] % 16 == 0:
        return 16
    threads = block[0] * block[1] * block[2]
    total = 1
    while total < threads and total < 32:
        total *= 2
    if block[1] * block[2] == 1 or block[0] % 32 == 0:
        return total
    width = 1
    while width < 32 and block[0] % (2 * width) == 0:
        width *= 2
    return width if width >= 8 or width == total else min(total, 16)


def symbol_name(name: str, block: tuple[int, int, int]) -> str:
    digest = hashlib.sha256(name.encode()).hexdigest()[:12]
    readable = re.sub(r"\W", "_", name)[:40]
    return f"sgk_{readable}_{digest}_{block[0]}_{block[1]}_{block[2]}"


def generate(module: Module, name: str, block: tuple[int, int, int], width: int = 0) -> Compiled:
    """LLVM text for a kernel; raises PtxError."""
    kernel = module.functions.get(name)
    if kernel is None or not kernel.is_entry or kernel.body is None:
        raise PtxError(f"there is no kernel `{name}` in this module", 0, NOT_FOUND)
    flow = lower(module, name)
    threads = block[0] * block[1] * block[2]
    flow.uses_fibers = needs_fibers(flow, threads)
    lanes = flow.uses_fibers or uses_lanes(module, kernel)
    layout = Layout(width or choose_width(block, lanes, most_live(flow)), block)
    interleaved = not flow.uses_fibers and interleave(flow, layout)
    if not flow.uses_fibers:
        cut_barriers(flow)
    graph = to_ssa(flow)
    shapes = analyse(flow, graph, layout)
    if interleaved and shapes.dispatch_diverges:
        flow = lower(module, name)
        graph = to_ssa(flow)
        shapes = analyse(flow, graph, layout)
    linear = Linear(graph, shapes)
    frame = Frame(flow, graph, shapes, linear, layout)
    symbol = symbol_name(name, block)
    body = frame.function(symbol)
    tail = helpers(set(frame.helpers), frame.declared)
    text = "\n".join([body, tail, *frame.declared.values(), ATTRIBUTES % (attributes(), attributes())])
    return Compiled(
        symbol,
        "fiber" if flow.uses_fibers else "block",
        frame.spill_bytes,
        flow.static_shared,
        flow.local_bytes,
        text,
        layout.width,
    )


def compile_kernel(module: Module, name: str, block: tuple[int, int, int]) -> tuple[Compiled, bytes]:
    found = generate(module, name, block)
    return found, object_code(optimise(found.text))


assert all(_FAMILIES)
