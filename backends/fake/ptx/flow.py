"""The flat form between syntax tree and native code: blocks of instructions over numbered values.

Operands of an instruction are plain ints where they are values (variables before ssa.py has run, SSA values
afterwards), and the classes below where they are constants of some kind.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .syntax import FloatImm, Imm, Special


@dataclass(slots=True, eq=False)
class GlobalAddress:
    """The address of a module variable, by its index in sgf_env.globals."""

    index: int
    offset: int


@dataclass(slots=True, eq=False)
class ParamAddress:
    offset: int


@dataclass(slots=True, eq=False)
class DynamicShared:
    """The first byte after the static shared memory of the kernel."""

    offset: int


Source = int | Imm | FloatImm | Special | GlobalAddress | ParamAddress | DynamicShared


@dataclass(slots=True, eq=False)
class Ins:
    op: str
    mods: tuple[str, ...]
    dst: list[int]
    src: list[Source]
    line: int
    offsets: list[int] = field(default_factory=list)  # of its memory operands, in order
    width: int = 0  # elements of a vector operand

    @property
    def name(self) -> str:
        return ".".join((self.op, *self.mods))


@dataclass(slots=True, eq=False)
class Terminator:
    """How a block ends: br | cond (value, taken, otherwise) | switch (value, targets...) | exit | barrier |
    dispatch (targets: start, then one per barrier)."""

    kind: str
    targets: list[int]
    value: Source = -1
    negated: bool = False
    line: int = 0
    barrier: int = -1


@dataclass(slots=True, eq=False)
class Phi:
    dst: int
    variable: int
    incoming: dict[int, int] = field(default_factory=dict)  # predecessor -> value


@dataclass(slots=True, eq=False)
class Block:
    index: int
    ins: list[Ins] = field(default_factory=list)
    term: Terminator = field(default_factory=lambda: Terminator("exit", []))
    preds: list[int] = field(default_factory=list)
    phis: list[Phi] = field(default_factory=list)

    @property
    def succs(self) -> list[int]:
        return self.term.targets


@dataclass(slots=True, eq=False)
class Barrier:
    """A barrier of the whole block where the kernel is cut; red: None | popc | and | or."""

    block: int
    resume: int
    reduction: str | None
    live: list[int] = field(default_factory=list)  # variables that cross it
    spilled: list[int] = field(default_factory=list)  # their values at the barrier, once in SSA form


@dataclass(slots=True, eq=False)
class Flow:
    """A kernel in flat form."""

    name: str
    blocks: list[Block]
    types: list[str]  # PTX type of each value
    param_offsets: dict[str, int]
    param_bytes: int
    static_shared: int
    local_bytes: int
    barriers: list[Barrier] = field(default_factory=list)
    uses_fibers: bool = False

    def new_block(self) -> Block:
        block = Block(len(self.blocks))
        self.blocks.append(block)
        return block

    def new_value(self, kind: str) -> int:
        self.types.append(kind)
        return len(self.types) - 1

    def link(self) -> None:
        """Recomputes predecessors."""
        for block in self.blocks:
            block.preds = []
        for block in self.blocks:
            for target in dict.fromkeys(block.term.targets):
                self.blocks[target].preds.append(block.index)
