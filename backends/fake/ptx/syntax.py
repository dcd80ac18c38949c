"""The syntax tree of a PTX module.  Line numbers are kept on everything that can be refused later."""

from __future__ import annotations

from dataclasses import dataclass, field

TYPE_SIZE = {
    "b8": 1,
    "u8": 1,
    "s8": 1,
    "b16": 2,
    "u16": 2,
    "s16": 2,
    "f16": 2,
    "bf16": 2,
    "b32": 4,
    "u32": 4,
    "s32": 4,
    "f32": 4,
    "f16x2": 4,
    "bf16x2": 4,
    "b64": 8,
    "u64": 8,
    "s64": 8,
    "f64": 8,
    "b128": 16,
    "pred": 1,
}


@dataclass(slots=True, eq=False)
class Reg:
    name: str


@dataclass(slots=True, eq=False)
class Imm:
    value: int


@dataclass(slots=True, eq=False)
class FloatImm:
    """A floating-point literal: its bits at `width` (0f: 32; 0d and decimal: 64)."""

    bits: int
    width: int


@dataclass(slots=True, eq=False)
class Sym:
    name: str
    offset: int = 0


@dataclass(slots=True, eq=False)
class Special:
    name: str


@dataclass(slots=True, eq=False)
class Mem:
    base: Operand
    offset: int


@dataclass(slots=True, eq=False)
class Vec:
    items: list[Operand]


@dataclass(slots=True, eq=False)
class Not:
    operand: Operand


@dataclass(slots=True, eq=False)
class Pair:
    first: Operand
    second: Operand


@dataclass(slots=True, eq=False)
class Sink:
    """`_`: a result that nobody wants."""


Operand = Reg | Imm | FloatImm | Sym | Special | Mem | Vec | Not | Pair | Sink


@dataclass(slots=True, eq=False)
class Instruction:
    op: str
    mods: tuple[str, ...]
    operands: list[Operand]
    guard: tuple[str, bool] | None  # (predicate register, negated)
    line: int

    @property
    def name(self) -> str:
        return ".".join((self.op, *self.mods))


@dataclass(slots=True, eq=False)
class Label:
    name: str
    line: int


@dataclass(slots=True, eq=False)
class Variable:
    """A variable of a state space; `data` is None where it is zero, else bytes with holes for `fixups`."""

    name: str
    space: str
    type: str
    align: int
    size: int
    line: int
    data: bytes | None = None
    fixups: list[tuple[int, str, int]] = field(default_factory=list)  # (offset, symbol, addend)
    extern: bool = False


@dataclass(slots=True, eq=False)
class Function:
    name: str
    is_entry: bool
    line: int
    params: list[Variable] = field(default_factory=list)
    returns: list[Variable] = field(default_factory=list)
    registers: dict[str, str] = field(default_factory=dict)  # name -> type
    variables: dict[str, Variable] = field(default_factory=dict)  # .local, .shared, .param of the body
    body: list[Instruction | Label] | None = None
    branch_targets: dict[str, list[str]] = field(default_factory=dict)
    maxntid: tuple[int, int, int] = (0, 0, 0)
    reqntid: tuple[int, int, int] = (0, 0, 0)


@dataclass(slots=True, eq=False)
class Module:
    version: str
    sm: int
    functions: dict[str, Function]
    variables: dict[str, Variable]  # .global, .const and .shared of the module, in order
