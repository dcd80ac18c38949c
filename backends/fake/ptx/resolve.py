"""Names and operands of a kernel: where its memory lies, and what each operand is in the flat form."""

from __future__ import annotations

from .errors import invalid, unsupported
from .flow import Block, DynamicShared, Flow, GlobalAddress, Ins, ParamAddress, Source
from .syntax import (
    TYPE_SIZE,
    FloatImm,
    Function,
    Imm,
    Instruction,
    Mem,
    Module,
    Not,
    Operand,
    Pair,
    Reg,
    Sink,
    Special,
    Sym,
    Variable,
    Vec,
)

NO_RESULT = {
    "st",
    "red",
    "bar",
    "barrier",
    "membar",
    "fence",
    "bra",
    "brx",
    "ret",
    "exit",
    "trap",
    "prefetch",
    "prefetchu",
    "nanosleep",
    "brkpt",
    "discard",
    "applypriority",
    "cp",
    "call",
    "pmevent",
}


def align_up(value: int, to: int) -> int:
    return (value + to - 1) // to * to


def parameter_layout(function: Function) -> tuple[dict[str, int], int]:
    offsets: dict[str, int] = {}
    at = 0
    for parameter in function.params:
        at = align_up(
            at,
            max(parameter.align if parameter.size not in (1, 2, 4, 8) else parameter.size, 1)
            if parameter.type != "b8"
            else parameter.align,
        )
        offsets[parameter.name] = at
        at += parameter.size
    return offsets, at


# Operations whose register operands (those at the positions given; None: all) have the instruction's own
# type.
TYPED: dict[str, tuple[int, ...] | None] = {
    **dict.fromkeys(
        (
            "add",
            "sub",
            "div",
            "rem",
            "min",
            "max",
            "neg",
            "abs",
            "and",
            "or",
            "xor",
            "not",
            "cnot",
            "fma",
            "sqrt",
            "rcp",
            "rsqrt",
            "ex2",
            "lg2",
            "sin",
            "cos",
            "tanh",
            "copysign",
            "brev",
            "sad",
            "addc",
            "subc",
        ),
        None,
    ),
    "shl": (0, 1),
    "shr": (0, 1),
    "selp": (0, 1, 2),
    "mul": None,
    "mad": None,
    "setp": (1, 2),
    "popc": (1,),
    "clz": (1,),
}


def check_types(function: Function, ins: Instruction) -> None:
    """Register operands must have the size of the instruction's type, and be floats only where it is one."""
    kind = ins.mods[-1] if ins.mods else ""
    if kind not in TYPE_SIZE:
        raise invalid(f"`{ins.name}` has no type", ins.line)
    if "wide" in ins.mods:
        return
    wanted = TYPED[ins.op]
    for i, operand in enumerate(ins.operands):
        if not isinstance(operand, Reg) or (wanted is not None and i not in wanted):
            continue
        have = function.registers[operand.name]
        clash = have[0] != "b" and have != "pred" and kind[0] != "b" and (have[0] == "f") != (kind[0] == "f")
        if TYPE_SIZE[have] != TYPE_SIZE[kind] or (have == "pred") != (kind == "pred") or clash:
            raise invalid(f"`{ins.name}`: operand `{operand.name}` is of type .{have}", ins.line)


class Frame:
    """One function being inlined: its names mapped to values, blocks and addresses of the kernel."""

    def __init__(self, function: Function, depth: int) -> None:
        self.function = function
        self.depth = depth
        self.values: dict[str, int] = {}
        self.labels: dict[str, int] = {}
        self.locals: dict[str, int] = {}
        self.params: dict[str, str] = {}  # own .param name -> the kernel-wide name of its storage
        self.done: int = -1  # block after the call


class Resolver:
    """Where a kernel's memory lies, and its values; builds `flow` up, a block at a time."""

    def __init__(self, module: Module, kernel: Function) -> None:
        self.module = module
        self.kernel = kernel
        self.global_index = {
            v.name: i
            for i, v in enumerate(v for v in module.variables.values() if v.space in ("global", "const"))
        }
        offsets, size = parameter_layout(kernel)
        self.flow = Flow(kernel.name, [], [], offsets, size, 0, 0)
        self.shared: dict[str, int] = {}
        self.block: Block = self.flow.new_block()
        self.layout_shared()

    # ---- memory layout ----------------------------------------------------------------------------
    def reachable(self) -> list[Function]:
        seen: dict[str, Function] = {}
        queue = [self.kernel]
        while queue:
            function = queue.pop()
            if function.name in seen:
                continue
            seen[function.name] = function
            for ins in function.body or ():
                if isinstance(ins, Instruction) and ins.op == "call":
                    for operand in ins.operands:
                        if isinstance(operand, Sym) and operand.name in self.module.functions:
                            queue.append(self.module.functions[operand.name])
        return list(seen.values())

    def layout_shared(self) -> None:
        """Static shared variables that the kernel can reach, largest alignment first as ptxas packs them."""
        used: dict[str, Variable] = {}
        for function in self.reachable():
            for variable in function.variables.values():
                if variable.space == "shared":
                    used[function.name + "\0" + variable.name] = variable
            names: set[str] = set()
            for ins in function.body or ():
                if isinstance(ins, Instruction):
                    for operand in ins.operands:
                        inner = operand.base if isinstance(operand, Mem) else operand
                        if isinstance(inner, Sym):
                            names.add(inner.name)
            for name in names:
                found = self.module.variables.get(name)
                if found is not None and found.space == "shared":
                    used[name] = found
        at = 0
        for key, variable in used.items():
            if not variable.extern:
                at = align_up(at, variable.align)
                self.shared[key] = at
                at += variable.size
        for key, variable in used.items():
            if variable.extern:
                self.shared[key] = -1
        self.flow.static_shared = at

    # ---- values -----------------------------------------------------------------------------------
    def register(self, frame: Frame, name: str) -> int:
        value = frame.values.get(name)
        if value is None:
            value = self.flow.new_value(frame.function.registers[name])
            frame.values[name] = value
        return value

    def symbol(self, frame: Frame, sym: Sym, line: int) -> Source:
        name = sym.name
        if name == "WARP_SZ":
            return Imm(32)
        own = frame.function.variables.get(name)
        if own is not None and own.space == "local":
            if name not in frame.locals:
                at = align_up(self.flow.local_bytes, own.align)
                frame.locals[name] = at
                self.flow.local_bytes = at + own.size
            return Imm(frame.locals[name] + sym.offset)
        if own is not None and own.space == "shared":
            return self.shared_address(frame.function.name + "\0" + name, sym.offset)
        if frame.depth == 0 and name in self.flow.param_offsets:
            return ParamAddress(self.flow.param_offsets[name] + sym.offset)
        found = self.module.variables.get(name)
        if found is None:
            if name in self.module.functions:
                raise unsupported(f"the address of function `{name}`", line)
            if name in frame.params or own is not None:
                raise unsupported(f"the address of .param `{name}` of a device function", line)
            raise invalid(f"`{name}` is not declared", line)
        if found.space == "shared":
            return self.shared_address(name, sym.offset)
        if found.extern:
            raise unsupported(f".extern variable `{name}` (linking several modules)", line)
        return GlobalAddress(self.global_index[name], sym.offset)

    def shared_address(self, key: str, offset: int) -> Source:
        at = self.shared[key]
        return DynamicShared(offset) if at < 0 else Imm(at + offset)

    def source(self, frame: Frame, operand: Operand, ins: Instruction) -> Source:
        if isinstance(operand, Reg):
            return self.register(frame, operand.name)
        if isinstance(operand, (Imm, FloatImm, Special)):
            return operand
        if isinstance(operand, Sym):
            return self.symbol(frame, operand, ins.line)
        if isinstance(operand, Not):
            inner = self.source(frame, operand.operand, ins)
            result = self.flow.new_value("pred")
            self.block.ins.append(Ins("not", ("pred",), [result], [inner], ins.line))
            return result
        raise invalid(f"`{ins.name}` has an operand of the wrong kind", ins.line)

    def destinations(self, frame: Frame, operand: Operand, ins: Instruction) -> list[int]:
        if isinstance(operand, Reg):
            return [self.register(frame, operand.name)]
        if isinstance(operand, Sink):
            return [-1]
        if isinstance(operand, Pair):
            return self.destinations(frame, operand.first, ins) + self.destinations(
                frame, operand.second, ins
            )
        if isinstance(operand, Vec):
            return [d for item in operand.items for d in self.destinations(frame, item, ins)]
        raise invalid(f"`{ins.name}` cannot write to its first operand", ins.line)

    def flat(self, frame: Frame, ins: Instruction) -> Ins:
        operands = ins.operands
        dst: list[int] = []
        result = Ins(ins.op, ins.mods, dst, [], ins.line)
        if ins.op in TYPED:
            check_types(frame.function, ins)
        if ins.op not in NO_RESULT or (ins.op in ("bar", "barrier") and "red" in ins.mods):
            if not operands:
                raise invalid(f"`{ins.name}` has no operands", ins.line)
            dst += self.destinations(frame, operands[0], ins)
            if isinstance(operands[0], Vec):
                result.width = len(operands[0].items)
            operands = operands[1:]
        for operand in operands:
            if isinstance(operand, Mem):
                result.src.append(self.source(frame, operand.base, ins))
                result.offsets.append(operand.offset)
            elif isinstance(operand, Vec):
                result.src += [self.source(frame, item, ins) for item in operand.items]
                result.width = result.width or len(operand.items)
            elif isinstance(operand, Sink):
                result.src.append(Imm(0))
            else:
                result.src.append(self.source(frame, operand, ins))
        return result
