"""Syntax tree -> flat form: inlines calls, turns guards into selects or branches.

Calls are inlined because the divergence analysis is per kernel, and because a call of warp vectors under a
mask would need a calling convention of its own.  Recursion and indirect calls are refused by name.
"""

from __future__ import annotations

from .errors import invalid, unsupported
from .flow import Block, Flow, Ins, Source, Terminator
from .resolve import NO_RESULT, Frame, Resolver
from .syntax import (
    TYPE_SIZE,
    Function,
    Instruction,
    Label,
    Mem,
    Module,
    Operand,
    Sym,
    Vec,
)

# What a guard turns into a branch rather than a select: whatever touches memory or is felt by others.
EFFECTS = NO_RESULT | {
    "ld",
    "ldu",
    "atom",
    "shfl",
    "vote",
    "match",
    "activemask",
    "redux",
    "mma",
    "ldmatrix",
    "wmma",
    "stmatrix",
    "elect",
    "alloca",
}
STRUCTURE = {"bra", "brx", "ret", "exit", "call", "trap"}
MAX_DEPTH = 24
MAX_INSTRUCTIONS = 200_000


class Lowering(Resolver):
    """Blocks and calls of one kernel."""

    def __init__(self, module: Module, kernel: Function) -> None:
        from .emit import HANDLERS

        super().__init__(module, kernel)
        self.known = HANDLERS
        self.param_values: dict[tuple[str, int], tuple[int, int]] = {}
        self.active: list[str] = []
        self.count = 0
        self.kept: list[Frame] = []  # frames name their storage by identity, so none may be collected

    # ---- control flow -----------------------------------------------------------------------------
    def go(self, target: int, line: int = 0) -> None:
        self.block.term = Terminator("br", [target], line=line)

    def start(self, block: Block) -> None:
        self.block = block

    def label(self, frame: Frame, name: str, line: int) -> int:
        if name not in frame.labels:
            raise invalid(f"label `{name}` is not defined", line)
        return frame.labels[name]

    def run(self) -> Flow:
        frame = Frame(self.kernel, 0)
        end = self.flow.new_block()
        frame.done = end.index
        self.body(frame)
        end.term = Terminator("exit", [])
        return self.flow

    def body(self, frame: Frame) -> None:
        function = frame.function
        if function.body is None:
            raise unsupported(f"calling the external function `{function.name}`", function.line)
        self.active.append(function.name)
        for item in function.body:
            if isinstance(item, Label):
                frame.labels[item.name] = self.flow.new_block().index
        for item in function.body:
            self.count += 1
            if self.count > MAX_INSTRUCTIONS:
                raise unsupported(
                    f"a kernel of more than {MAX_INSTRUCTIONS} instructions after inlining", item.line
                )
            if isinstance(item, Label):
                target = self.flow.blocks[frame.labels[item.name]]
                self.go(target.index, item.line)
                self.start(target)
            else:
                self.instruction(frame, item)
        self.go(frame.done)
        self.active.pop()

    def instruction(self, frame: Frame, ins: Instruction) -> None:
        op = ins.op
        if op not in STRUCTURE and op not in self.known:
            raise unsupported(f"opcode `{op}`", ins.line)
        if op in ("bra", "brx"):
            self.branch(frame, ins)
            return
        if ins.guard is None:
            self.plain(frame, ins)
            return
        name, negated = ins.guard
        guard = self.register(frame, name)
        if op in EFFECTS:
            then, after = self.flow.new_block(), self.flow.new_block()
            self.block.term = Terminator("cond", [then.index, after.index], guard, negated, ins.line)
            self.start(then)
            self.plain(frame, ins)
            self.go(after.index, ins.line)
            self.start(after)
            return
        made = self.flat(frame, ins)
        wanted = list(made.dst)
        made.dst = [d if d < 0 else self.flow.new_value(self.flow.types[d]) for d in made.dst]
        self.block.ins.append(made)
        for old, new in zip(wanted, made.dst, strict=False):
            if old >= 0:
                pair: list[Source] = [old, new] if negated else [new, old]
                self.block.ins.append(Ins("$select", (), [old], [guard, *pair], ins.line))

    def branch(self, frame: Frame, ins: Instruction) -> None:
        after = self.flow.new_block()
        if ins.op == "brx":
            if len(ins.operands) != 2 or not isinstance(ins.operands[1], Sym) or ins.mods[:1] != ("idx",):
                raise invalid(f"malformed `{ins.name}`", ins.line)
            if ins.guard is not None:
                raise unsupported("a guarded `brx.idx`", ins.line)
            table = frame.function.branch_targets.get(ins.operands[1].name)
            if not table:
                raise invalid(f"branch table `{ins.operands[1].name}` is not defined", ins.line)
            targets = [self.label(frame, t, ins.line) for t in table]
            value = self.source(frame, ins.operands[0], ins)
            self.block.term = Terminator("switch", targets, value, line=ins.line)
        else:
            if len(ins.operands) != 1 or not isinstance(ins.operands[0], Sym):
                raise invalid(f"malformed `{ins.name}`", ins.line)
            if set(ins.mods) - {"uni"}:
                raise unsupported(f"`{ins.name}`", ins.line)
            target = self.label(frame, ins.operands[0].name, ins.line)
            if ins.guard is None:
                self.go(target, ins.line)
            else:
                name, negated = ins.guard
                self.block.term = Terminator(
                    "cond", [target, after.index], self.register(frame, name), negated, ins.line
                )
        self.start(after)

    def plain(self, frame: Frame, ins: Instruction) -> None:
        op = ins.op
        if op == "ret" or op == "exit":
            if op == "exit" or frame.depth == 0:
                self.block.term = Terminator("exit", [], line=ins.line)
            else:
                self.go(frame.done, ins.line)
            self.start(self.flow.new_block())
        elif op == "call":
            self.call(frame, ins)
        elif op in ("ld", "st") and "param" in ins.mods[:2] and self.own_param(frame, ins) is not None:
            self.param_access(frame, ins)
        elif op == "trap":
            self.block.ins.append(Ins("trap", ins.mods, [], [], ins.line))
            self.block.term = Terminator("exit", [], line=ins.line)
            self.start(self.flow.new_block())
        else:
            self.block.ins.append(self.flat(frame, ins))

    # ---- calls ------------------------------------------------------------------------------------
    def own_param(self, frame: Frame, ins: Instruction) -> str | None:
        """The storage name when a ld/st.param goes to a call's .param variable rather than to a kernel
        parameter.
        """
        memory = ins.operands[1] if ins.op == "ld" else ins.operands[0]
        if not isinstance(memory, Mem) or not isinstance(memory.base, Sym):
            return None
        name = memory.base.name
        if name in frame.params:
            return frame.params[name]
        own = frame.function.variables.get(name)
        if own is not None and own.space == "param":
            return f"{self.frames_id(frame)}:{name}"
        return None

    def frames_id(self, frame: Frame) -> int:
        return id(frame)

    def param_value(self, storage: str, offset: int, size: int, line: int) -> int:
        key = (storage, offset)
        if key not in self.param_values:
            self.param_values[key] = (self.flow.new_value(f"b{8 * size}"), size)
        value, known = self.param_values[key]
        if known != size:
            raise unsupported("a .param of a device function that is accessed with different sizes", line)
        return value

    def param_access(self, frame: Frame, ins: Instruction) -> None:
        storage = self.own_param(frame, ins)
        assert storage is not None
        kind = ins.mods[-1]
        size = TYPE_SIZE.get(kind, 0)
        if not size:
            raise invalid(f"`{ins.name}` has no type", ins.line)
        memory, data = (
            (ins.operands[1], ins.operands[0]) if ins.op == "ld" else (ins.operands[0], ins.operands[1])
        )
        assert isinstance(memory, Mem)
        assert isinstance(memory.base, Sym)
        items = data.items if isinstance(data, Vec) else [data]
        for i, item in enumerate(items):
            value = self.param_value(storage, memory.base.offset + memory.offset + i * size, size, ins.line)
            if ins.op == "st":
                self.block.ins.append(
                    Ins("$move", (kind,), [value], [self.source(frame, item, ins)], ins.line)
                )
            else:
                dst = self.destinations(frame, item, ins)
                self.block.ins.append(Ins("$move", (kind,), dst, [value], ins.line))

    def call(self, frame: Frame, ins: Instruction) -> None:
        operands = list(ins.operands)
        results: list[Operand] = []
        if operands and isinstance(operands[0], Vec):
            results = operands[0].items
            operands = operands[1:]
        if not operands or not isinstance(operands[0], Sym) or len(operands) > 2:
            raise unsupported("an indirect call", ins.line)
        name = operands[0].name
        arguments = operands[1].items if len(operands) == 2 and isinstance(operands[1], Vec) else []
        target = self.module.functions.get(name)
        if target is None:
            raise invalid(f"function `{name}` is not declared", ins.line)
        if name in ("vprintf", "__assertfail"):
            self.system_call(frame, ins, name, results, arguments)
            return
        if target.body is None:
            raise unsupported(f"calling the external function `{name}`", ins.line)
        if name in self.active or len(self.active) > MAX_DEPTH:
            raise unsupported(f"recursion (function `{name}`)", ins.line)
        if len(results) != len(target.returns) or len(arguments) != len(target.params):
            raise invalid(f"call of `{name}` with the wrong number of arguments", ins.line)
        self.inline(frame, ins, target, results, arguments)

    def storage(self, frame: Frame, operand: Operand, ins: Instruction) -> str:
        if not isinstance(operand, Sym):
            raise unsupported("a call argument that is neither a register nor a .param variable", ins.line)
        return frame.params.get(operand.name) or f"{self.frames_id(frame)}:{operand.name}"

    def inline(
        self,
        frame: Frame,
        ins: Instruction,
        target: Function,
        results: list[Operand],
        arguments: list[Operand],
    ) -> None:
        inner = Frame(target, frame.depth + 1)
        self.kept.append(inner)
        for formal, actual in zip(target.params + target.returns, arguments + results, strict=False):
            if formal.space == "reg":
                if formal in target.params:
                    value = self.register(inner, formal.name)
                    self.block.ins.append(
                        Ins("$move", (formal.type,), [value], [self.source(frame, actual, ins)], ins.line)
                    )
            else:
                inner.params[formal.name] = self.storage(frame, actual, ins)
        after = self.flow.new_block()
        inner.done = after.index
        self.body(inner)
        self.start(after)
        for formal, actual in zip(target.returns, results, strict=False):
            if formal.space == "reg":
                self.block.ins.append(
                    Ins(
                        "$move",
                        (formal.type,),
                        self.destinations(frame, actual, ins),
                        [self.register(inner, formal.name)],
                        ins.line,
                    )
                )

    def system_call(
        self, frame: Frame, ins: Instruction, name: str, results: list[Operand], arguments: list[Operand]
    ) -> None:
        sizes = {"vprintf": (8, 8), "__assertfail": (8, 8, 4, 8, 8)}[name]
        values: list[Source] = []
        for argument, size in zip(arguments, sizes, strict=False):
            if isinstance(argument, Sym):
                values.append(self.param_value(self.storage(frame, argument, ins), 0, size, ins.line))
            else:
                values.append(self.source(frame, argument, ins))
        dst = []
        if results:
            first = results[0]
            dst = (
                [self.param_value(self.storage(frame, first, ins), 0, 4, ins.line)]
                if isinstance(first, Sym)
                else self.destinations(frame, first, ins)
            )
        self.block.ins.append(Ins(f"${name}", (), dst, values, ins.line))


def lower(module: Module, name: str) -> Flow:
    """The flat form of a kernel; unreachable blocks are gone."""
    flow = Lowering(module, module.functions[name]).run()
    return prune(flow)


def prune(flow: Flow) -> Flow:
    """Drops blocks that cannot be reached, and renumbers."""
    order: list[int] = []
    seen = {0}
    queue = [0]
    while queue:
        index = queue.pop()
        order.append(index)
        for target in flow.blocks[index].term.targets:
            if target not in seen:
                seen.add(target)
                queue.append(target)
    order.sort()
    number = {old: new for new, old in enumerate(order)}
    flow.blocks = [flow.blocks[i] for i in order]
    for i, block in enumerate(flow.blocks):
        block.index = i
        block.term.targets = [number[t] for t in block.term.targets]
    flow.link()
    return flow
