"""PTX text -> syntax tree.

Not a tokenizer and a grammar but a scanner over statements: PTX is assembly, a statement ends at `;`, and
splitting a statement costs one regular expression and a split at commas.  That keeps parsing under a
millisecond for the kernels that frameworks send, where a token at a time takes ten times as long.
Names declared in an inner scope (call sequences) get a suffix, so that names are unique within a function.
"""

from __future__ import annotations

import re

from .errors import UNSUPPORTED_VERSION, PtxError, invalid, unsupported
from .scanner import DECLARATION, NAME, Scanner, float_literal, parse_integer
from .syntax import (
    TYPE_SIZE,
    FloatImm,
    Function,
    Imm,
    Instruction,
    Label,
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

MAX_VERSION = (9, 9)

_LABEL = re.compile(rf"({NAME})\s*:(?!:)")
_INSTRUCTION = re.compile(rf"(?:@(!?)\s*({NAME})\s+)?([a-z][a-z0-9_]*)((?:(?:\.|::)[\w]+)*)\s*(.*)", re.S)
_SPECIALS = {
    "tid",
    "ntid",
    "ctaid",
    "nctaid",
    "laneid",
    "warpid",
    "nwarpid",
    "smid",
    "nsmid",
    "gridid",
    "clock",
    "clock64",
    "clock_hi",
    "globaltimer",
    "globaltimer_lo",
    "globaltimer_hi",
    "lanemask_eq",
    "lanemask_lt",
    "lanemask_le",
    "lanemask_gt",
    "lanemask_ge",
    "dynamic_smem_size",
    "total_smem_size",
    "aggr_smem_size",
    "clusterid",
    "nclusterid",
    "cluster_ctaid",
    "cluster_nctaid",
    "cluster_ctarank",
    "cluster_nctarank",
    "is_explicit_cluster",
    "current_graph_exec",
    "reserved_smem_offset_begin",
    "reserved_smem_offset_end",
    "reserved_smem_offset_cap",
}


class Parser(Scanner):
    """One pass over the text; `parse()` returns the module or raises PtxError with the line."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.functions: dict[str, Function] = {}
        self.variables: dict[str, Variable] = {}
        self.scopes: list[dict[str, str]] = []
        self.scope_count = 0
        self.operand_cache: dict[str, Operand] = {}
        self.function: Function | None = None

    # ---- module level -----------------------------------------------------------------------------
    def parse(self) -> Module:
        version, sm = "", 0
        while True:
            self.skip_space()
            if self.at >= len(self.text):
                break
            here = self.line()
            word = re.compile(r"[^\s;(\[]+").match(self.text, self.at)
            name = word[0] if word else ""
            if name == ".version":
                version = (
                    self.rest_of_line().split()[1]
                    if len(self.text[self.at : self.at + 60].split()) > 1
                    else ""
                )
                self.check_version(version, here)
            elif name == ".target":
                sm = self.parse_target(self.rest_of_line(), here)
            elif name == ".address_size":
                if self.rest_of_line().split()[-1] != "64":
                    raise unsupported(".address_size other than 64", here)
            elif name in (".file", ".loc"):
                self.rest_of_line()
            elif name == ".section":
                self.skip_braces(here)
            elif name == ".pragma":
                self.statement()
            elif name == ".alias":
                raise unsupported("directive `.alias`", here)
            elif name.startswith("."):
                if not version:
                    raise invalid("the module does not begin with .version", here)
                self.parse_declaration(here)
            elif name == "" and self.text[self.at] == ";":
                self.at += 1
            else:
                raise invalid(f"unexpected `{name or self.text[self.at]}` at module level", here)
        if not version or not sm:
            raise invalid("not a PTX module: .version or .target is missing")
        return Module(version, sm, self.functions, self.variables)

    def check_version(self, version: str, line: int) -> None:
        match = re.fullmatch(r"(\d+)\.(\d+)", version)
        if match is None:
            raise invalid(f"malformed .version `{version}`", line)
        if (int(match[1]), int(match[2])) > MAX_VERSION:
            raise PtxError(
                f".version {version} is newer than {MAX_VERSION[0]}.{MAX_VERSION[1]}, the newest known",
                line,
                UNSUPPORTED_VERSION,
            )

    def parse_target(self, text: str, line: int) -> int:
        match = re.match(r"\.target\s+sm_(\d+)", text)
        if match is None:
            raise invalid(f"malformed `{text}`", line)
        return int(match[1])

    def skip_braces(self, line: int) -> None:
        end = self.text.find("}", self.at)
        if end < 0:
            raise invalid("unterminated .section", line)
        self.at = end + 1

    def parse_declaration(self, line: int) -> None:
        """A function or a module variable, with its linkage."""
        linkage = set()
        while True:
            self.skip_space()
            match = re.compile(r"\.(visible|extern|weak|common)\b").match(self.text, self.at)
            if match is None:
                break
            linkage.add(match[1])
            self.at = match.end()
        match = re.compile(r"\.(\w+)").match(self.text, self.at)
        kind = match[1] if match else ""
        if kind in ("entry", "func"):
            assert match is not None
            self.at = match.end()
            self.parse_function(kind == "entry", "extern" in linkage, line)
        elif kind in ("global", "const", "shared"):
            text = self.statement_with_initialiser()
            for variable in self.parse_variables(text, line, "extern" in linkage):
                self.variables[variable.name] = variable
        else:
            raise unsupported(f"directive `.{kind}`", line)

    def statement_with_initialiser(self) -> str:
        """As statement(), but a string in an initialiser may hold a `;`."""
        return self.statement()

    # ---- functions --------------------------------------------------------------------------------
    def parse_parameters(self, line: int) -> list[Variable]:
        """A parenthesised list at the cursor, or nothing."""
        self.skip_space()
        if self.text[self.at : self.at + 1] != "(":
            return []
        end = self.text.find(")", self.at)
        if end < 0:
            raise invalid("unterminated parameter list", line)
        text = self.text[self.at + 1 : end]
        self.at = end + 1
        found: list[Variable] = []
        for part in self.split_commas(text):
            if part.strip():
                part = re.sub(r"\.ptr(\s*\.(global|const|local|shared|param))?", " ", part)
                found += self.parse_variables(part, line)
        return found

    def parse_function(self, is_entry: bool, extern: bool, line: int) -> None:
        self.skip_space()
        if re.compile(r"\.(attribute)\b").match(self.text, self.at):
            raise unsupported("`.attribute` on a function", line)
        returns = [] if is_entry else self.parse_parameters(line)
        self.skip_space()
        match = re.compile(NAME).match(self.text, self.at)
        if match is None:
            raise invalid("a function without a name", line)
        self.at = match.end()
        function = Function(match[0], is_entry, line, returns=returns)
        function.params = self.parse_parameters(line)
        for parameter in function.params + function.returns:
            if parameter.space == "reg":
                function.registers[parameter.name] = parameter.type
        while True:
            self.skip_space()
            c = self.text[self.at : self.at + 1]
            if c == ";":
                self.at += 1
                self.functions.setdefault(function.name, function)
                return
            if c == "{":
                break
            self.function_directive(function)
        self.at += 1
        if extern:
            raise invalid(f".extern function `{function.name}` has a body", line)
        self.function = function
        self.functions[function.name] = function
        self.parse_body(function)

    def function_directive(self, function: Function) -> None:
        line = self.line()
        match = re.compile(r"\.(\w+)((?:\s*,?\s*\d+)*)").match(self.text, self.at)
        if match is None:
            raise invalid(
                f"unexpected `{self.text[self.at : self.at + 20].split()[0:1]}` after a function's head", line
            )
        self.at = match.end()
        numbers = [int(n) for n in re.findall(r"\d+", match[2])]
        shape = (*numbers, 1, 1)[:3]
        name = match[1]
        if name == "maxntid":
            function.maxntid = (shape[0], shape[1], shape[2])
        elif name == "reqntid":
            function.reqntid = (shape[0], shape[1], shape[2])
        elif name in (
            "minnctapersm",
            "maxnreg",
            "maxnctapersm",
            "noreturn",
            "abi_preserve",
            "abi_preserve_control",
            "unique",
            "blocksareclusters",
        ):
            if name == "blocksareclusters":
                raise unsupported("directive `.blocksareclusters`", line)
        elif name == "reqnctapercluster" and all(n == 1 for n in numbers):
            pass
        elif name == "pragma":
            self.statement()
        else:
            raise unsupported(f"directive `.{name}`", line)

    def parse_body(self, function: Function) -> None:
        body: list[Instruction | Label] = []
        function.body = body
        self.scopes = [{}]
        self.operand_cache = {}
        text = self.text
        while True:
            self.skip_space()
            if self.at >= len(text):
                raise invalid(f"function `{function.name}` has no closing brace", function.line)
            c = text[self.at]
            if c == "{":
                self.scopes.append({})
                self.at += 1
            elif c == "}":
                self.at += 1
                if len(self.scopes) == 1:
                    return
                if self.scopes.pop():
                    self.operand_cache = {}
            elif c == ".":
                self.body_directive(function)
            elif c == ";":
                self.at += 1
            elif (match := _LABEL.match(text, self.at)) is not None:
                self.label(function, match)
            else:
                line = self.line()
                body.append(self.instruction(self.statement(), line))

    def label(self, function: Function, match: re.Match[str]) -> None:
        line = self.line()
        self.at = match.end()
        self.skip_space()
        if self.text.startswith(".branchtargets", self.at):
            text = self.statement()[len(".branchtargets") :]
            function.branch_targets[match[1]] = [t.strip() for t in text.split(",")]
        elif self.text.startswith((".callprototype", ".calltargets"), self.at):
            self.statement()  # refused at the call
        else:
            assert function.body is not None
            function.body.append(Label(match[1], line))

    def body_directive(self, function: Function) -> None:
        line = self.line()
        if self.text.startswith((".loc ", ".loc\t", ".file"), self.at):
            self.rest_of_line()
            return
        text = self.statement()
        if text.startswith(".pragma"):
            return
        if text.startswith(".reg"):
            self.declare_registers(function, text, line)
            return
        if not text.startswith((".local", ".shared", ".param", ".align")):
            if text.startswith((".global", ".const")):
                for variable in self.parse_variables(text, line):
                    self.variables[variable.name] = variable
                return
            raise unsupported(f"directive `{text.split()[0]}`", line)
        for variable in self.parse_variables(text, line):
            variable.name = self.declare(variable.name)
            function.variables[variable.name] = variable

    def declare(self, name: str) -> str:
        """Enters a name into the innermost scope and returns the name that is unique in the function."""
        if len(self.scopes) == 1:
            return name
        self.scope_count += 1
        unique = f"{name}${self.scope_count}"
        self.scopes[-1][name] = unique
        self.operand_cache = {}
        return unique

    def declare_registers(self, function: Function, text: str, line: int) -> None:
        match = re.match(r"\.reg\s*(?:\.v[24]\s*)?\.(\w+)\s+(.*)", text, re.S)
        if match is None or match[1] not in TYPE_SIZE:
            raise invalid(f"malformed register declaration `{text}`", line)
        if re.match(r"\.reg\s*\.v[24]", text):
            raise unsupported("vector registers", line)
        for part in match[2].split(","):
            found = DECLARATION.fullmatch(part)
            if found is None or found[3]:
                raise invalid(f"malformed register declaration `{text}`", line)
            if found[2] is None:
                function.registers[self.declare(found[1])] = match[1]
            elif len(self.scopes) == 1:
                function.registers.update({found[1] + str(i): match[1] for i in range(int(found[2]))})
            else:
                for i in range(int(found[2])):
                    function.registers[self.declare(found[1] + str(i))] = match[1]

    # ---- instructions -----------------------------------------------------------------------------
    def instruction(self, text: str, line: int) -> Instruction:
        match = _INSTRUCTION.fullmatch(text)
        if match is None:
            raise invalid(f"cannot read the instruction `{text[:80]}`", line)
        negated, guard, op, mods, rest = match.groups()
        operands: list[Operand] = []
        if rest:
            cache = self.operand_cache
            for part in self.split_commas(rest):
                part = part.strip()
                operand = cache.get(part)
                if operand is None:
                    operand = self.operand(part, line)
                    cache[part] = operand
                operands.append(operand)
        if guard:
            guard = self.resolve(guard)
            assert self.function is not None
            if self.function.registers.get(guard) != "pred":
                raise invalid(f"guard `{guard}` is not a predicate register", line)
        words = tuple(mods.replace("::", "::").split(".")[1:]) if mods else ()
        return Instruction(op, words, operands, (guard, negated == "!") if guard else None, line)

    def resolve(self, name: str) -> str:
        for scope in reversed(self.scopes):
            if name in scope:
                return scope[name]
        return name

    def operand(self, text: str, line: int) -> Operand:
        if not text:
            raise invalid("an empty operand", line)
        first = text[0]
        if first == "%" or first.isalpha() or first in "_$":
            return self.named_operand(text, line)
        if first == "[":
            return self.memory_operand(text, line)
        if first == "{":
            if text[-1] != "}":
                raise invalid(f"malformed vector `{text}`", line)
            return Vec([self.operand(p.strip(), line) for p in self.split_commas(text[1:-1])])
        if first == "!":
            return Not(self.operand(text[1:].strip(), line))
        if first == "(":
            return Vec([self.operand(p.strip(), line) for p in self.split_commas(text[1:-1])])
        integer = parse_integer(text)
        if integer is not None:
            return Imm(integer)
        if first == "-" and (inner := float_literal(text[1:].strip())) is not None:
            return FloatImm(inner.bits ^ (1 << (inner.width - 1)), inner.width)
        literal = float_literal(text)
        if literal is not None:
            return literal
        raise invalid(f"cannot read the operand `{text}`", line)

    def named_operand(self, text: str, line: int) -> Operand:
        assert self.function is not None
        if text == "_":
            return Sink()
        name = self.resolve(text) if len(self.scopes) > 1 else text
        if name in self.function.registers:
            return Reg(name)
        if text[0] == "%":
            base = text[1:].split(".")[0]
            if base in _SPECIALS:
                return Special(text[1:])
            if base.startswith(("envreg", "pm")):
                raise unsupported(f"special register `{text}`", line)
        if "|" in text:
            first, second = text.split("|", 1)
            return Pair(self.operand(first.strip(), line), self.operand(second.strip(), line))
        if re.fullmatch(NAME, text):
            if text[0] == "%":
                raise invalid(f"`{text}` is not declared", line)
            return Sym("WARP_SZ") if text == "WARP_SZ" else Sym(name)
        match = re.fullmatch(rf"({NAME})\s*([+-])\s*(\w+)", text)
        if match is not None and (offset := parse_integer(match[3])) is not None:
            return Sym(self.resolve(match[1]), -offset if match[2] == "-" else offset)
        if re.fullmatch(r"%?[\w$]+\.[xyzwrgba]", text):
            raise unsupported(f"vector element `{text}`", line)
        raise invalid(f"cannot read the operand `{text}`", line)

    def memory_operand(self, text: str, line: int) -> Operand:
        if text[-1] != "]":
            raise invalid(f"malformed address `{text}`", line)
        inner = text[1:-1].strip()
        if "," in inner:
            raise unsupported(f"address `{text}`", line)
        match = re.fullmatch(rf"({NAME})\s*(?:([+-])\s*([+-]?\s*\w+))?", inner)
        if match is not None:
            offset = parse_integer(match[3]) if match[3] else 0
            if offset is None:
                raise invalid(f"malformed address `{text}`", line)
            return Mem(self.named_operand(match[1], line), -offset if match[2] == "-" else offset)
        integer = parse_integer(inner)
        if integer is None:
            raise invalid(f"malformed address `{text}`", line)
        return Mem(Imm(integer), 0)


def parse(text: str) -> Module:
    """Parses a module; raises PtxError (status 218, 222 or 801) that names the line."""
    return Parser(text).parse()
