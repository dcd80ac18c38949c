"""Operations and comparisons, each written twice: as PTX and as C.

The C side spells out what PTX defines and C does not: shifts by too much, INT_MIN / -1, conversions out of range, the order of
-0 and +0.
"""
# ruff: noqa: E501  (kernels' source text)

from __future__ import annotations

from dataclasses import dataclass

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
