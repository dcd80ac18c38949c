"""Random branching programs over 32- and 64-bit integers and floats, written twice: as PTX and as C.

One drawn program has one meaning; `Program.ptx` is for the device, `Program.c` for gcc (the oracle) and, where all its
operations exist in CUDA C, for NVRTC.  Every register starts with an input, so nothing is undefined, and the C side spells
out what PTX defines and C does not: shifts by too much, INT_MIN / -1, conversions out of range, the order of -0 and +0.
The bits of a NaN are nobody's promise: they are compared as NaN, and made one value where they turn into an integer.
"""
# ruff: noqa: E501  (kernels' source text)

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st

# register classes: u 32 bits, w 64 bits, f float, d double
KINDS = {
    "u": ("unsigned", "b32", 8),
    "w": ("unsigned long long", "b64", 4),
    "f": ("float", "f32", 6),
    "d": ("double", "f64", 4),
}


@dataclass(frozen=True)
class Operation:
    result: str
    arguments: str  # one letter per register argument
    ptx: str  # {d} and {a} {b} {c}; {k} an immediate byte
    c: str
    cuda: bool = True  # the C text is CUDA C too


def _table() -> list[Operation]:
    two = [
        ("add.u32", "a + b"),
        ("sub.u32", "a - b"),
        ("mul.lo.u32", "a * b"),
        ("mul.hi.u32", "(unsigned)((unsigned long long)a * b >> 32)"),
        ("mul.hi.s32", "(unsigned)((long long)(int)a * (int)b >> 32)"),
        ("and.b32", "a & b"),
        ("or.b32", "a | b"),
        ("xor.b32", "a ^ b"),
        ("shl.b32", "shl32(a, b)"),
        ("shr.u32", "shr32(a, b)"),
        ("shr.s32", "sar32(a, b)"),
        ("min.u32", "a < b ? a : b"),
        ("max.u32", "a > b ? a : b"),
        ("min.s32", "(int)a < (int)b ? a : b"),
        ("max.s32", "(int)a > (int)b ? a : b"),
        ("add.sat.s32", "addsat(a, b)"),
        ("sub.sat.s32", "subsat(a, b)"),
    ]
    table = [Operation("u", "uu", f"{name} {{d}}, {{a}}, {{b}};", text) for name, text in two]
    for name, text in (
        ("div.u32", "a / (b | 1)"),
        ("rem.u32", "a % (b | 1)"),
        ("div.s32", "sdiv(a, b | 1)"),
        ("rem.s32", "srem(a, b | 1)"),
    ):
        table.append(
            Operation("u", "uu", f"{{{{ .reg .b32 t; or.b32 t, {{b}}, 1; {name} {{d}}, {{a}}, t; }}}}", text)
        )
    one = [
        ("not.b32", "~a"),
        ("neg.s32", "0u - a"),
        ("abs.s32", "(int)a < 0 ? 0u - a : a"),
        ("popc.b32", "pop32(a)"),
        ("clz.b32", "clz32(a)"),
        ("brev.b32", "rev32(a)"),
        ("cnot.b32", "a == 0"),
        ("cvt.s32.s8", "(unsigned)(int)(signed char)a"),
        ("cvt.u32.u8", "a & 255"),
        ("cvt.s32.s16", "(unsigned)(int)(short)a"),
        ("cvt.u32.u16", "a & 65535"),
        ("bfind.u32", "31 - clz32(a)"),
        ("cvt.sat.s8.s32", "clip8(a)"),
    ]
    for name, text in one:
        table.append(Operation("u", "u", f"{name} {{d}}, {{a}};", text))
    table += [
        Operation("u", "uuu", "mad.lo.u32 {d}, {a}, {b}, {c};", "a * b + c"),
        Operation(
            "u", "uuu", "mad.hi.u32 {d}, {a}, {b}, {c};", "(unsigned)((unsigned long long)a * b >> 32) + c"
        ),
        Operation("u", "uuu", "sad.u32 {d}, {a}, {b}, {c};", "(a > b ? a - b : b - a) + c"),
        Operation("u", "uuu", "bfe.u32 {d}, {a}, {b}, {c};", "bfe(a, b, c, 0)"),
        Operation("u", "uuu", "bfe.s32 {d}, {a}, {b}, {c};", "bfe(a, b, c, 1)"),
        Operation("u", "uuu", "bfi.b32 {d}, {a}, {b}, {k}, 9;", "bfi(a, b, {k}, 9)"),
        Operation("u", "uuu", "prmt.b32 {d}, {a}, {b}, {c};", "prmt(a, b, c)"),
        Operation(
            "u", "uuu", "shf.l.wrap.b32 {d}, {a}, {b}, {c};", "(unsigned)(pack(a, b) << (c & 31) >> 32)"
        ),
        Operation("u", "uuu", "shf.r.wrap.b32 {d}, {a}, {b}, {c};", "(unsigned)(pack(a, b) >> (c & 31))"),
        Operation(
            "u",
            "uuu",
            "shf.l.clamp.b32 {d}, {a}, {b}, {c};",
            "(unsigned)(pack(a, b) << (c > 32 ? 32 : c) >> 32)",
        ),
        Operation(
            "u", "uuu", "shf.r.clamp.b32 {d}, {a}, {b}, {c};", "(unsigned)(pack(a, b) >> (c > 32 ? 32 : c))"
        ),
        Operation("u", "uuu", "lop3.b32 {d}, {a}, {b}, {c}, {k};", "lop3(a, b, c, {k})"),
        Operation("u", "u", "add.u32 {d}, {a}, {k};", "a + {k}u"),
        Operation("u", "u", "mul.lo.s32 {d}, {a}, -{k};", "a * (0u - {k}u)"),
        Operation("u", "w", "cvt.u32.u64 {d}, {a};", "(unsigned)a"),
        Operation("u", "w", "popc.b64 {d}, {a};", "pop32((unsigned)a) + pop32((unsigned)(a >> 32))"),
        Operation(
            "u", "w", "clz.b64 {d}, {a};", "a >> 32 ? clz32((unsigned)(a >> 32)) : 32 + clz32((unsigned)a)"
        ),
        Operation("u", "w", "{{ .reg .b32 t; mov.b64 {{t, {d}}}, {a}; }}", "(unsigned)(a >> 32)"),
        Operation("w", "uu", "mov.b64 {d}, {{{a}, {b}}};", "pack(a, b)"),
        Operation("w", "uu", "mul.wide.u32 {d}, {a}, {b};", "(unsigned long long)a * b"),
        Operation(
            "w", "uu", "mul.wide.s32 {d}, {a}, {b};", "(unsigned long long)((long long)(int)a * (int)b)"
        ),
        Operation(
            "w",
            "uuw",
            "mad.wide.s32 {d}, {a}, {b}, {c};",
            "(unsigned long long)((long long)(int)a * (int)b) + c",
        ),
        Operation("w", "u", "cvt.u64.u32 {d}, {a};", "a"),
        Operation("w", "u", "cvt.s64.s32 {d}, {a};", "(unsigned long long)(long long)(int)a"),
        Operation("w", "wu", "shl.b64 {d}, {a}, {b};", "b > 63 ? 0 : a << b"),
        Operation("w", "wu", "shr.u64 {d}, {a}, {b};", "b > 63 ? 0 : a >> b"),
        Operation(
            "w", "wu", "shr.s64 {d}, {a}, {b};", "(unsigned long long)((long long)a >> (b > 63 ? 63 : b))"
        ),
        Operation("w", "ww", "mul.hi.u64 {d}, {a}, {b};", "mulhi64(a, b)"),
    ]
    for name, text in (
        ("add.u64", "a + b"),
        ("sub.u64", "a - b"),
        ("mul.lo.u64", "a * b"),
        ("xor.b64", "a ^ b"),
        ("and.b64", "a & b"),
        ("min.s64", "(long long)a < (long long)b ? a : b"),
        ("max.u64", "a > b ? a : b"),
    ):
        table.append(Operation("w", "ww", f"{name} {{d}}, {{a}}, {{b}};", text))
    for name, text in (("div.u64", "a / (b | 1)"), ("rem.u64", "a % (b | 1)")):
        table.append(
            Operation("w", "ww", f"{{{{ .reg .b64 t; or.b64 t, {{b}}, 1; {name} {{d}}, {{a}}, t; }}}}", text)
        )
    for letter, suffix, kind, tail in (("f", "f32", "float", "f"), ("d", "f64", "double", "")):
        for name, sign in (("add", "+"), ("sub", "-"), ("mul", "*")):
            table.append(
                Operation(letter, letter * 2, f"{name}.rn.{suffix} {{d}}, {{a}}, {{b}};", f"a {sign} b")
            )
            for mode, c_mode in (("rz", "FE_TOWARDZERO"), ("rp", "FE_UPWARD"), ("rm", "FE_DOWNWARD")):
                table.append(
                    Operation(
                        letter,
                        letter * 2,
                        f"{name}.{mode}.{suffix} {{d}}, {{a}}, {{b}};",
                        f"directed_{kind}('{sign}', a, b, 0, {c_mode})",
                        cuda=False,
                    )
                )
        table += [
            Operation(letter, letter * 2, f"div.rn.{suffix} {{d}}, {{a}}, {{b}};", "a / b"),
            Operation(
                letter, letter * 3, f"fma.rn.{suffix} {{d}}, {{a}}, {{b}}, {{c}};", f"fma{tail}(a, b, c)"
            ),
            Operation(
                letter,
                letter * 3,
                f"fma.rz.{suffix} {{d}}, {{a}}, {{b}}, {{c}};",
                f"directed_{kind}('f', a, b, c, FE_TOWARDZERO)",
                cuda=False,
            ),
            Operation(letter, letter, f"sqrt.rn.{suffix} {{d}}, {{a}};", f"sqrt{tail}(a)"),
            Operation(letter, letter, f"rcp.rn.{suffix} {{d}}, {{a}};", f"({kind})1 / a"),
            Operation(letter, letter * 2, f"min.{suffix} {{d}}, {{a}}, {{b}};", f"min_{kind}(a, b)"),
            Operation(letter, letter * 2, f"max.{suffix} {{d}}, {{a}}, {{b}};", f"max_{kind}(a, b)"),
            Operation(letter, letter, f"neg.{suffix} {{d}}, {{a}};", "-a"),
            Operation(letter, letter, f"abs.{suffix} {{d}}, {{a}};", f"fabs{tail}(a)"),
            Operation(letter, letter, f"cvt.rmi.{suffix}.{suffix} {{d}}, {{a}};", f"floor{tail}(a)"),
            Operation(letter, letter, f"cvt.rni.{suffix}.{suffix} {{d}}, {{a}};", f"rint{tail}(a)"),
            Operation(
                "u", letter, f"cvt.rzi.s32.{suffix} {{d}}, {{a}};", f"to_s32(trunc(a), {int(letter == 'd')})"
            ),
            Operation(
                "u", letter, f"cvt.rni.u32.{suffix} {{d}}, {{a}};", f"to_u32(rint(a), {int(letter == 'd')})"
            ),
            Operation("w", letter, f"cvt.rmi.s64.{suffix} {{d}}, {{a}};", "to_s64(floor(a))"),
            Operation(letter, "u", f"cvt.rn.{suffix}.s32 {{d}}, {{a}};", f"({kind})(int)a"),
            Operation(letter, "u", f"cvt.rn.{suffix}.u32 {{d}}, {{a}};", f"({kind})a"),
            Operation(letter, "w", f"cvt.rn.{suffix}.s64 {{d}}, {{a}};", f"({kind})(long long)a"),
            Operation(letter, "w", f"cvt.rn.{suffix}.u64 {{d}}, {{a}};", f"({kind})a"),
        ]
    table += [
        Operation("f", "ff", "add.ftz.f32 {d}, {a}, {b};", "flush(flush(a) + flush(b))"),
        Operation("f", "ff", "mul.ftz.f32 {d}, {a}, {b};", "flush(flush(a) * flush(b))"),
        Operation("f", "ff", "add.sat.f32 {d}, {a}, {b};", "saturate(a + b)"),
        Operation("f", "f", "cvt.sat.f32.f32 {d}, {a};", "saturate(a)"),
        Operation(
            "f", "uf", "{{ .reg .f32 t; mov.b32 t, {a}; copysign.f32 {d}, t, {b}; }}", "with_sign(a, b)"
        ),
        Operation("f", "d", "cvt.rn.f32.f64 {d}, {a};", "(float)a"),
        Operation("d", "f", "cvt.f64.f32 {d}, {a};", "(double)a"),
        Operation(
            "u",
            "f",
            "{{ .reg .pred q; setp.nan.f32 q, {a}, {a}; mov.b32 {d}, {a}; selp.b32 {d}, 0x7fc00000, {d}, q; }}",
            "bits(a)",
        ),
        Operation("f", "u", "mov.b32 {d}, {a};", "from_bits(a)"),
        Operation(
            "f",
            "f",
            "{{ .reg .b16 h; cvt.rn.f16.f32 h, {a}; cvt.f32.f16 {d}, h; }}",
            "through_half(a)",
            cuda=False,
        ),
        Operation(
            "f", "f", "{{ .reg .b16 h; cvt.rn.bf16.f32 h, {a}; cvt.f32.bf16 {d}, h; }}", "through_bfloat(a)"
        ),
    ]
    return table


OPERATIONS = _table()
COMPARISONS = [  # (argument letters, PTX setp suffix, C)
    ("uu", "lt.u32", "a < b"),
    ("uu", "lt.s32", "(int)a < (int)b"),
    ("uu", "ge.s32", "(int)a >= (int)b"),
    ("uu", "eq.b32", "a == b"),
    ("uu", "ne.u32", "a != b"),
    ("uu", "hi.u32", "a > b"),
    ("ww", "lt.s64", "(long long)a < (long long)b"),
    ("ww", "le.u64", "a <= b"),
    ("ff", "lt.f32", "a < b"),
    ("ff", "geu.f32", "!(a < b)"),
    ("ff", "ne.f32", "(a < b || a > b)"),
    ("ff", "neu.f32", "a != b"),
    ("ff", "nan.f32", "(a != a || b != b)"),
    ("dd", "gt.f64", "a > b"),
    ("dd", "leu.f64", "!(a > b)"),
    ("dd", "num.f64", "(a == a && b == b)"),
]

PRELUDE = r"""
FN unsigned shl32(unsigned a, unsigned b) { return b > 31 ? 0 : a << b; }
FN unsigned shr32(unsigned a, unsigned b) { return b > 31 ? 0 : a >> b; }
FN unsigned sar32(unsigned a, unsigned b) { return (unsigned)((int)a >> (b > 31 ? 31 : b)); }
FN unsigned sdiv(unsigned a, unsigned b) { return b == ~0u ? 0u - a : (unsigned)((int)a / (int)b); }
FN unsigned srem(unsigned a, unsigned b) { return b == ~0u ? 0 : (unsigned)((int)a % (int)b); }
FN unsigned addsat(unsigned a, unsigned b) { long long r = (long long)(int)a + (int)b; return r > 2147483647 ? 2147483647u : r < -2147483647ll - 1 ? 2147483648u : (unsigned)r; }
FN unsigned subsat(unsigned a, unsigned b) { long long r = (long long)(int)a - (int)b; return r > 2147483647 ? 2147483647u : r < -2147483647ll - 1 ? 2147483648u : (unsigned)r; }
FN unsigned clip8(unsigned a) { return (int)a > 127 ? 127u : (int)a < -128 ? 0u - 128 : a; }
FN unsigned pop32(unsigned a) { unsigned n = 0; for (int k = 0; k < 32; ++k) n += a >> k & 1; return n; }
FN unsigned clz32(unsigned a) { unsigned n = 0; for (int k = 31; k >= 0 && !(a >> k & 1); --k) ++n; return n; }
FN unsigned rev32(unsigned a) { unsigned r = 0; for (int k = 0; k < 32; ++k) r |= (a >> k & 1) << (31 - k); return r; }
FN unsigned long long pack(unsigned a, unsigned b) { return (unsigned long long)b << 32 | a; }
FN unsigned bfe(unsigned a, unsigned b, unsigned c, int s) {
  unsigned pos = b & 255, len = c & 255, r = 0, msb = pos + len - 1 > 31 ? 31 : pos + len - 1, fill = s && len ? a >> msb & 1 : 0;
  if (!len) return 0;
  for (unsigned k = 0; k < 32; ++k) r |= (k < len && pos + k < 32 ? a >> (pos + k) & 1 : fill) << k;
  return r; }
FN unsigned bfi(unsigned a, unsigned base, unsigned pos, unsigned len) {
  for (unsigned k = 0; k < len && pos + k < 32; ++k) base = (base & ~(1u << (pos + k))) | (a >> k & 1) << (pos + k);
  return base; }
FN unsigned prmt(unsigned a, unsigned b, unsigned s) {
  unsigned long long all = (unsigned long long)b << 32 | a; unsigned r = 0;
  for (int k = 0; k < 4; ++k) { unsigned n = s >> 4 * k & 15, v = (unsigned)(all >> 8 * (n & 7)) & 255; if (n & 8) v = v & 128 ? 255 : 0; r |= v << 8 * k; }
  return r; }
FN unsigned lop3(unsigned a, unsigned b, unsigned c, unsigned t) {
  unsigned r = 0; for (int k = 0; k < 32; ++k) r |= (t >> ((a >> k & 1) << 2 | (b >> k & 1) << 1 | (c >> k & 1)) & 1) << k; return r; }
FN unsigned long long mulhi64(unsigned long long a, unsigned long long b) {
  unsigned long long al = (unsigned)a, ah = a >> 32, bl = (unsigned)b, bh = b >> 32, m = (al * bl >> 32) + (unsigned)(al * bh) + (unsigned)(ah * bl);
  return ah * bh + (al * bh >> 32) + (ah * bl >> 32) + (m >> 32); }
FN unsigned bits(float x) { union { float f; unsigned u; } v; v.f = x; return x != x ? 0x7fc00000u : v.u; }
FN float from_bits(unsigned x) { union { float f; unsigned u; } v; v.u = x; return v.f; }
FN float with_sign(unsigned s, float x) { union { float f; unsigned u; } v; v.f = x; v.u = (v.u & 0x7fffffffu) | (s & 0x80000000u); return v.f; }
FN float flush(float x) { return fabsf(x) < 1.17549435e-38f ? with_sign(bits(x), 0.0f) : x; }
FN float saturate(float x) { return x > 0 ? x < 1 ? x : 1.0f : 0.0f; }
FN int negative_float(float x) { return bits(x) >> 31; }
FN int negative_double(double x) { union { double f; unsigned long long u; } v; v.f = x; return (int)(v.u >> 63); }
#define EXTREMES(T) \
FN T min_##T(T a, T b) { return a != a ? b : b != b ? a : a < b || (a == b && negative_##T(a)) ? a : b; } \
FN T max_##T(T a, T b) { return a != a ? b : b != b ? a : a > b || (a == b && !negative_##T(a)) ? a : b; }
EXTREMES(float) EXTREMES(double)
FN unsigned to_s32(double x, int wide) { return x != x ? (wide ? 2147483648u : 0) : x >= 2147483647.0 ? 2147483647u : x <= -2147483648.0 ? 2147483648u : (unsigned)(int)x; }
FN unsigned to_u32(double x, int wide) { return x != x ? (wide ? 2147483648u : 0) : x >= 4294967295.0 ? ~0u : x <= 0 ? 0 : (unsigned)x; }
FN unsigned long long to_s64(double x) { return x != x ? 1ull << 63 : x >= 9223372036854775808.0 ? ~0ull >> 1 : x <= -9223372036854775808.0 ? 1ull << 63 : (unsigned long long)(long long)x; }
FN float through_bfloat(float x) { unsigned u = bits(x); return x != x ? x : from_bits((u + 0x7fff + (u >> 16 & 1)) & 0xffff0000u); }
"""
ORACLE_PRELUDE = (
    r"""
#include <fenv.h>
#include <math.h>
#define FN static
"""
    + PRELUDE
    + r"""
#define DIRECTED(T, FMA) static T directed_##T(char op, T a, T b, T c, int mode) { \
  volatile T x = a, y = b, z = c, r; fesetround(mode); \
  if (op == '+') r = x + y; else if (op == '-') r = x - y; else if (op == '*') r = x * y; else r = FMA(x, y, z); \
  fesetround(FE_TONEAREST); return r; }
DIRECTED(float, fmaf) DIRECTED(double, fma)
static float through_half(float x) { volatile _Float16 h = (_Float16)x; return (float)h; }
"""
)


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
