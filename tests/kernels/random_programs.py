"""Random branching programs over 32- and 64-bit integers and floats, written twice: as PTX and as C.

One drawn program has one meaning; `Program.ptx` is for the device, `Program.c` for gcc (the oracle) and, where all its
operations exist in CUDA C, for NVRTC.  Every register starts with an input, so nothing is undefined
(operations.py).  The bits of a NaN are nobody's promise: they are compared as NaN, and made one value where they turn into
an integer.
"""
# ruff: noqa: E501  (kernels' source text)

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st

from .operations import COMPARISONS, KINDS, OPERATIONS, ORACLE_PRELUDE, PRELUDE


@dataclass(frozen=True)
class Program:
    statements: tuple  # type: ignore[type-arg]
    guard: int  # threads from here on leave early

    def ptx(self) -> str:
        writer = _PtxWriter()
        writer.block(self.statements)
        declared = "\n".join(
            f"  .reg .{bits} %{letter}<{count}>;" for letter, (_, bits, count) in KINDS.items()
        )
        loads: list[str] = []
        stores: list[str] = []
        for letter, (_, bits, count) in KINDS.items():
            size = int(bits[1:]) // 8
            for k in range(count):
                for verb, target in (("ld", loads), ("st", stores)):
                    operands = f"%{letter}{k}, [%at]" if verb == "ld" else f"[%at], %{letter}{k}"
                    target.append(
                        f"  mad.wide.u32 %at, %i, {count * size}, %base{letter}{verb}; add.u64 %at, %at, {k * size}; {verb}.global.{bits} {operands};"
                    )
        pointers = [f"{letter}{verb}" for verb in ("ld", "st") for letter in KINDS]
        parameters = ", ".join(f".param .u64 p{name}" for name in pointers)
        bases = "\n".join(
            f"  .reg .b64 %base{name}; ld.param.u64 %base{name}, [p{name}]; cvta.to.global.u64 %base{name}, %base{name};"
            for name in pointers
        )
        return f""".version 8.7
.target sm_120
.address_size 64
.visible .entry fuzz({parameters}, .param .u32 pn)
{{
{declared}
  .reg .b32 %i, %b, %n; .reg .b64 %at; .reg .pred %p, %left; .reg .b32 %k<{writer.loops + 1}>;
{bases}
  ld.param.u32 %n, [pn];
  mov.u32 %i, %tid.x; mov.u32 %b, %ctaid.x; mov.u32 %k0, %ntid.x; mad.lo.u32 %i, %b, %k0, %i;
  setp.ge.u32 %left, %i, %n;
  @%left bra LEAVE;
{chr(10).join(loads)}
{chr(10).join(writer.lines)}
{chr(10).join(stores)}
LEAVE:
  ret;
}}
"""

    def c_body(self) -> str:
        lines: list[str] = []
        _write_c(self.statements, lines, [0])
        loads = "\n".join(
            f"  {kind} {letter}{k} = in_{letter}[i * {count} + {k}];"
            for letter, (kind, _, count) in KINDS.items()
            for k in range(count)
        )
        stores = "\n".join(
            f"  out_{letter}[i * {count} + {k}] = {letter}{k};"
            for letter, (_, _, count) in KINDS.items()
            for k in range(count)
        )
        return f"{loads}\n{chr(10).join(lines)}\n{stores}\n"

    def c(self) -> str:
        """For gcc: void fuzz(in_u, in_w, in_f, in_d, out_u, ..., n)."""
        return f"{ORACLE_PRELUDE}\nvoid fuzz({_arguments()}, unsigned n) {{ for (unsigned i = 0; i < n; ++i) {{\n{self.c_body()}}} }}\n"

    def cuda(self) -> str:
        return (
            f'#define FN static __device__\n{PRELUDE}\nextern "C" __global__ void fuzz({_arguments()}, unsigned n) {{\n'
            f"  unsigned i = blockIdx.x * blockDim.x + threadIdx.x; if (i >= n) return;\n{self.c_body()}}}\n"
        )

    def is_cuda(self) -> bool:
        return _all_cuda(self.statements)


def _arguments() -> str:
    return ", ".join(
        [f"const {kind} *in_{letter}" for letter, (kind, _, _) in KINDS.items()]
        + [f"{kind} *out_{letter}" for letter, (kind, _, _) in KINDS.items()]
    )


def _all_cuda(statements: tuple) -> bool:  # type: ignore[type-arg]
    return all(
        OPERATIONS[s[1]].cuda
        if s[0] == "set"
        else all(
            _all_cuda(part) for part in s if isinstance(part, tuple) and part and isinstance(part[0], tuple)
        )
        for s in statements
    )


class _PtxWriter:
    def __init__(self) -> None:
        self.lines: list[str] = []
        self.labels = 0
        self.loops = 0

    def block(self, statements: tuple) -> None:  # type: ignore[type-arg]
        for statement in statements:
            getattr(self, statement[0])(*statement[1:])

    def set(self, index: int, destination: int, sources: tuple[int, ...], immediate: int) -> None:
        op = OPERATIONS[index]
        named = {
            name: f"%{letter}{source}"
            for name, letter, source in zip("abc", op.arguments, sources, strict=False)
        }
        self.lines.append("  " + op.ptx.format(d=f"%{op.result}{destination}", k=immediate, **named))

    def compare(self, comparison: int, left: int, right: int) -> None:
        letters, suffix, _ = COMPARISONS[comparison]
        self.lines.append(f"  setp.{suffix} %p, %{letters[0]}{left}, %{letters[1]}{right};")

    def branch(self, comparison: int, left: int, right: int, then: tuple, other: tuple) -> None:  # type: ignore[type-arg]
        self.labels += 1
        label = self.labels
        self.compare(comparison, left, right)
        self.lines.append(f"  @!%p bra ELSE{label};")
        self.block(then)
        self.lines.append(f"  bra END{label};\nELSE{label}:")
        self.block(other)
        self.lines.append(f"END{label}:")

    def loop(self, counter: int, comparison: int, left: int, right: int, body: tuple) -> None:  # type: ignore[type-arg]
        self.labels += 1
        self.loops += 1
        label, k = self.labels, self.loops
        self.lines.append(
            f"  and.b32 %k{k}, %u{counter}, 7;\nHEAD{label}:\n  setp.eq.u32 %p, %k{k}, 0;\n  @%p bra OUT{label};"
        )
        self.block(body)
        self.compare(comparison, left, right)
        self.lines.append(
            f"  @%p bra OUT{label};\n  sub.u32 %k{k}, %k{k}, 1;\n  bra HEAD{label};\nOUT{label}:"
        )

    def select(
        self, comparison: int, left: int, right: int, letter: str, destination: int, yes: int, no: int
    ) -> None:
        self.compare(comparison, left, right)
        self.lines.append(
            f"  selp.{KINDS[letter][1]} %{letter}{destination}, %{letter}{yes}, %{letter}{no}, %p;"
        )

    def predicated(self, comparison: int, left: int, right: int, statement: tuple) -> None:  # type: ignore[type-arg]
        self.compare(comparison, left, right)
        letter = OPERATIONS[statement[0][1]].result
        self.lines.append(
            f"  @%p mov.{KINDS[letter][1]} %{letter}{statement[0][2]}, %{letter}{statement[0][3][0] % KINDS[letter][2]};"
        )


def _write_c(statements: tuple, lines: list[str], depth: list[int]) -> None:  # type: ignore[type-arg]
    for kind, *rest in statements:
        if kind == "set":
            index, destination, sources, immediate = rest
            op = OPERATIONS[index]
            declared = " ".join(
                f"{KINDS[letter][0]} {name} = {letter}{source};"
                for name, letter, source in zip("abc", op.arguments, sources, strict=False)
            )
            lines.append(
                f"  {{ {declared} {op.result}{destination} = {op.c.replace('{k}', str(immediate))}; }}"
            )
        elif kind == "loop":
            counter, comparison, left, right, body = rest
            depth[0] += 1
            k = f"k{depth[0]}"
            lines.append(f"  for (unsigned {k} = u{counter} & 7; {k}; --{k}) {{")
            _write_c(body, lines, depth)
            lines.append(f"  {_c_test(comparison, left, right)} if (p) break; }}")
        else:
            comparison, left, right, *tail = rest
            lines.append(f"  {{ {_c_test(comparison, left, right)}")
            if kind == "branch":
                lines.append("  if (p) {")
                _write_c(tail[0], lines, depth)
                lines.append("  } else {")
                _write_c(tail[1], lines, depth)
                lines.append("  }")
            elif kind == "select":
                letter, destination, yes, no = tail
                lines.append(f"  {letter}{destination} = p ? {letter}{yes} : {letter}{no};")
            else:
                _, index, destination, sources, _ = tail[0][0]
                letter = OPERATIONS[index].result
                lines.append(f"  if (p) {letter}{destination} = {letter}{sources[0] % KINDS[letter][2]};")
            lines.append("  }")


def _c_test(comparison: int, left: int, right: int) -> str:
    letters, _, text = COMPARISONS[comparison]
    return f"int p; {{ {KINDS[letters[0]][0]} a = {letters[0]}{left}; {KINDS[letters[1]][0]} b = {letters[1]}{right}; p = {text}; }}"


@st.composite
def _set(draw: st.DrawFn) -> tuple:  # type: ignore[type-arg]
    index = draw(st.integers(0, len(OPERATIONS) - 1))
    op = OPERATIONS[index]
    sources = tuple(draw(st.integers(0, KINDS[letter][2] - 1)) for letter in op.arguments)
    return ("set", index, draw(st.integers(0, KINDS[op.result][2] - 1)), sources, draw(st.integers(0, 255)))


@st.composite
def _test(draw: st.DrawFn) -> tuple[int, int, int]:
    index = draw(st.integers(0, len(COMPARISONS) - 1))
    letters = COMPARISONS[index][0]
    return (
        index,
        draw(st.integers(0, KINDS[letters[0]][2] - 1)),
        draw(st.integers(0, KINDS[letters[1]][2] - 1)),
    )


@st.composite
def _select(draw: st.DrawFn) -> tuple:  # type: ignore[type-arg]
    letter = draw(st.sampled_from("uwfd"))
    register = st.integers(0, KINDS[letter][2] - 1)
    return ("select", *draw(_test()), letter, draw(register), draw(register), draw(register))


def _blocks(depth: int) -> st.SearchStrategy[tuple]:  # type: ignore[type-arg]
    simple = st.one_of(
        _set(), _set(), _set(), _select(), st.builds(lambda t, s: ("predicated", *t, (s,)), _test(), _set())
    )
    if depth == 0:
        return st.lists(simple, min_size=1, max_size=5).map(tuple)
    inner = _blocks(depth - 1)
    nested = st.one_of(
        simple,
        simple,
        simple,
        st.builds(lambda t, a, b: ("branch", *t, a, b), _test(), inner, inner),
        st.builds(lambda c, t, b: ("loop", c, *t, b), st.integers(0, KINDS["u"][2] - 1), _test(), inner),
    )
    return st.lists(nested, min_size=1, max_size=12 if depth == 2 else 5).map(tuple)


def programs() -> st.SearchStrategy[Program]:
    return st.builds(Program, _blocks(2), st.integers(1, 128))
