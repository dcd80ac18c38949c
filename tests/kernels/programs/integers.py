"""Integer corner cases; expectations are Python integers of any size, reduced to the type's width."""
# ruff: noqa: E501  (kernels' source text)

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
from driver import Device, case, same

EDGES32 = [
    0,
    1,
    2,
    3,
    5,
    7,
    31,
    32,
    33,
    63,
    64,
    127,
    128,
    255,
    256,
    32767,
    32768,
    65535,
    65536,
    0x55555555,
    0x7FFFFFFE,
    0x7FFFFFFF,
    0x80000000,
    0x80000001,
    0xAAAAAAAA,
    0xFFFF0000,
    0xFFFFFFFE,
    0xFFFFFFFF,
]
EDGES64 = [
    *EDGES32,
    1 << 32,
    (1 << 32) + 1,
    1 << 62,
    (1 << 63) - 1,
    1 << 63,
    (1 << 63) + 1,
    (1 << 64) - 1,
    0x123456789ABCDEF0,
    0xFEDCBA9876543210,
]


def signed(value: int, bits: int) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def pairs(edges: list[int], bits: int) -> tuple[np.ndarray, np.ndarray]:
    grid = [(a, b) for a in edges for b in edges]
    kind = np.dtype(f"u{bits // 8}")
    return np.array([a for a, _ in grid], kind), np.array([b for _, b in grid], kind)


def same_rows(
    names: Iterable[str], got: np.ndarray, expected: np.ndarray, a: np.ndarray, b: np.ndarray
) -> None:
    """Row by row; the first difference is told with its operands."""
    for name, row, meant in zip(names, got, expected, strict=True):
        try:
            same(row, meant)
        except AssertionError as problem:
            where = int(np.argmax(row != meant))
            raise AssertionError(f"{name}, a={int(a[where]):#x}, b={int(b[where]):#x}: {problem}") from None


def binary(
    device: Device, bits: int, edges: list[int], expressions: dict[str, Callable[[int, int], int]]
) -> None:
    """Every expression (CUDA C on unsigned a, b and signed x, y) against its Python meaning."""
    unsigned, signed_type = ("unsigned", "int") if bits == 32 else ("unsigned long long", "long long")
    rows = "\n".join(f"  out[{k} * n + i] = ({unsigned})({text});" for k, text in enumerate(expressions))
    module = device.build(f"""extern "C" __global__ void f(const {unsigned} *pa, const {unsigned} *pb, {unsigned} *out, int n) {{
  int i = blockIdx.x * blockDim.x + threadIdx.x; if (i >= n) return;
  {unsigned} a = pa[i], b = pb[i]; {signed_type} x = a, y = b; (void)x; (void)y;
{rows}
}}""")
    a, b = pairs(edges, bits)
    out = device.zeros((len(expressions), len(a)), a.dtype)
    module.run("f", (len(a) + 127) // 128, 128, device.put(a), device.put(b), out, len(a))
    mask, operands = (1 << bits) - 1, [(int(p), int(q)) for p, q in zip(a, b, strict=True)]
    expected = [[meaning(p, q) & mask for p, q in operands] for meaning in expressions.values()]
    same_rows(expressions, out.numpy(), np.array(expected, a.dtype), a, b)


def truncated(p: int, q: int) -> tuple[int, int]:
    quotient = abs(p) // abs(q) * (1 if (p < 0) == (q < 0) else -1)
    return quotient, p - quotient * q


@case
def arithmetic_32(device: Device) -> None:
    def s(value: int) -> int:
        return signed(value, 32)

    binary(
        device,
        32,
        EDGES32,
        {
            "a + b": lambda a, b: a + b,
            "a - b": lambda a, b: a - b,
            "a * b": lambda a, b: a * b,
            "__umulhi(a, b)": lambda a, b: a * b >> 32,
            "__mulhi(x, y)": lambda a, b: s(a) * s(b) >> 32,
            "__umul24(a, b)": lambda a, b: (a & 0xFFFFFF) * (b & 0xFFFFFF),
            "__mul24(x, y)": lambda a, b: signed(a, 24) * signed(b, 24),
            "min(a, b)": min,
            "max(a, b)": max,
            "min(x, y)": lambda a, b: min(s(a), s(b)),
            "max(x, y)": lambda a, b: max(s(a), s(b)),
            "__usad(a, b, 7u)": lambda a, b: abs(a - b) + 7,
            "__sad(x, y, 7)": lambda a, b: abs(s(a) - s(b)) + 7,
            "__hadd(x, y)": lambda a, b: (s(a) + s(b)) >> 1,
            "__rhadd(x, y)": lambda a, b: (s(a) + s(b) + 1) >> 1,
            "__uhadd(a, b)": lambda a, b: (a + b) >> 1,
            "__urhadd(a, b)": lambda a, b: (a + b + 1) >> 1,
            "(x < y) + 2 * (a < b) + 4 * (x <= y) + 8 * (a == b)": lambda a, b: (
                (s(a) < s(b)) + 2 * (a < b) + 4 * (s(a) <= s(b)) + 8 * (a == b)
            ),
        },
    )


@case
def division_32(device: Device) -> None:
    def s(value: int) -> int:
        return signed(value, 32)

    binary(
        device,
        32,
        EDGES32,
        {
            "a / (b | 1)": lambda a, b: a // (b | 1),
            "a % (b | 1)": lambda a, b: a % (b | 1),
            # INT_MIN / -1 is undefined in C, so it is asked for in PTX, where it is not
            "x / (y | 1) * !(a == 0x80000000u && b >= 0xfffffffeu)": lambda a, b: (
                0 if a == 1 << 31 and b >= (1 << 32) - 2 else truncated(s(a), s(b | 1))[0]
            ),
            "x % (y | 1) * !(a == 0x80000000u && b >= 0xfffffffeu)": lambda a, b: (
                0 if a == 1 << 31 and b >= (1 << 32) - 2 else truncated(s(a), s(b | 1))[1]
            ),
            "a / 7 + a % 10": lambda a, b: a // 7 + a % 10,
            "x / 7 + x % 10": lambda a, b: truncated(s(a), 7)[0] + truncated(s(a), 10)[1],
            "x / -3": lambda a, b: truncated(s(a), -3)[0],
            "x / 16": lambda a, b: truncated(s(a), 16)[0],
        },
    )


@case
def division_of_the_smallest_integer(device: Device) -> None:
    module = device.build(r"""
    extern "C" __global__ void d(const int *a, const long long *b, int *q, long long *r) {
      int x = a[threadIdx.x], one = a[2]; long long z = b[threadIdx.x], o = b[2];
      int quotient; long long wide;
      asm volatile("div.s32 %0, %1, %2;" : "=r"(quotient) : "r"(x), "r"(one));
      asm volatile("div.s64 %0, %1, %2;" : "=l"(wide) : "l"(z), "l"(o));
      q[threadIdx.x] = quotient; r[threadIdx.x] = wide;
      asm volatile("rem.s32 %0, %1, %2;" : "=r"(quotient) : "r"(x), "r"(one));
      asm volatile("rem.s64 %0, %1, %2;" : "=l"(wide) : "l"(z), "l"(o));
      q[threadIdx.x + 3] = quotient; r[threadIdx.x + 3] = wide;
    }""")
    a, b = np.array([-(2**31), 2**31 - 1, -1], np.int32), np.array([-(2**63), 2**63 - 1, -1], np.int64)
    q, r = device.zeros(6, np.int32), device.zeros(6, np.int64)
    module.run("d", 1, 3, device.put(a), device.put(b), q, r)
    same(q.numpy(), np.array([-(2**31), -(2**31) + 1, 1, 0, 0, 0], np.int32))
    same(r.numpy(), np.array([-(2**63), -(2**63) + 1, 1, 0, 0, 0], np.int64))


@case
def division_by_zero_does_not_trap(device: Device) -> None:
    module = device.build(r"""
    extern "C" __global__ void d(const int *a, int *q) {
      int x = a[threadIdx.x], y = a[32 + threadIdx.x], r;
      asm volatile("div.s32 %0, %1, %2;" : "=r"(r) : "r"(x), "r"(y));
      q[threadIdx.x] = y ? r : 5;
      asm volatile("rem.u32 %0, %1, %2;" : "=r"(r) : "r"(x), "r"(y));
      q[32 + threadIdx.x] = y ? r : 6;
    }""")
    x, y = np.arange(100, 132, dtype=np.int32), np.arange(32, dtype=np.int32) % 4
    out = device.zeros(64, np.int32)
    module.run("d", 1, 32, device.put(np.concatenate([x, y])), out)
    safe = np.maximum(y, 1)
    same(
        out.numpy(),
        np.concatenate([np.where(y == 0, 5, x // safe), np.where(y == 0, 6, x % safe)]).astype(np.int32),
    )


@case
def shifts_32(device: Device) -> None:
    """PTX clamps shift amounts; C leaves them undefined, so these are asm."""
    module = device.build(r"""
    extern "C" __global__ void s(const unsigned *pa, const unsigned *pb, unsigned *out, int n) {
      int i = blockIdx.x * blockDim.x + threadIdx.x; if (i >= n) return;
      unsigned a = pa[i], b = pb[i], r;
      asm volatile("shl.b32 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b)); out[i] = r;
      asm volatile("shr.u32 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b)); out[n + i] = r;
      asm volatile("shr.s32 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b)); out[2 * n + i] = r;
      out[3 * n + i] = __funnelshift_l(a, 0x9abcdef0u, b); out[4 * n + i] = __funnelshift_r(a, 0x9abcdef0u, b);
      out[5 * n + i] = __funnelshift_lc(a, 0x9abcdef0u, b); out[6 * n + i] = __funnelshift_rc(a, 0x9abcdef0u, b);
      out[7 * n + i] = a << (b & 31);
    }""")
    a, b = pairs(EDGES32, 32)
    out = device.zeros((8, len(a)), np.uint32)
    module.run("s", (len(a) + 63) // 64, 64, device.put(a), device.put(b), out, len(a))

    def meaning(p: int, q: int) -> list[int]:
        wide = (0x9ABCDEF0 << 32) | p
        clamped = min(q, 32)
        return [
            p << q if q < 32 else 0,
            p >> q if q < 32 else 0,
            signed(p, 32) >> min(q, 31),
            (wide << (q & 31)) >> 32,
            wide >> (q & 31),
            (wide << clamped) >> 32,
            wide >> clamped,
            p << (q & 31),
        ]

    table = [[v & 0xFFFFFFFF for v in meaning(int(p), int(q))] for p, q in zip(a, b, strict=True)]
    same(out.numpy(), np.array(table, np.uint32).T.copy())


@case
def bits_32(device: Device) -> None:
    def leading(v: int) -> int:
        return 32 - v.bit_length()

    def prmt(a: int, b: int, selector: int) -> int:
        whole = (b << 32) | a
        result = 0
        for k in range(4):
            nibble = selector >> (4 * k) & 15
            byte = whole >> (8 * (nibble & 7)) & 255
            result |= ((255 if byte >> 7 else 0) if nibble & 8 else byte) << (8 * k)
        return result

    binary(
        device,
        32,
        EDGES32,
        {
            "__popc(a)": lambda a, b: a.bit_count(),
            "__clz(x)": lambda a, b: leading(a),
            "__brev(a)": lambda a, b: int(f"{a:032b}"[::-1], 2),
            "__ffs(x)": lambda a, b: (a & -a).bit_length(),
            "__byte_perm(a, b, 0x5140)": lambda a, b: prmt(a, b, 0x5140),
            "__byte_perm(a, b, 0x0123)": lambda a, b: prmt(a, b, 0x0123),
            "__byte_perm(a, 0x8899aabbu, b & 0x7777)": lambda a, b: prmt(a, 0x8899AABB, b & 0x7777),
            "(a & b) | (~a & 0xF0F0F0F0u)": lambda a, b: (a & b) | (~a & 0xF0F0F0F0),
            "(a ^ b) & ~(a | b) ^ 0x1234u": lambda a, b: ((a ^ b) & ~(a | b)) ^ 0x1234,
            "__vadd4(a, b)": lambda a, b: sum(((a >> s) + (b >> s) & 255) << s for s in (0, 8, 16, 24)),
        },
    )


@case
def bit_fields_in_ptx(device: Device) -> None:
    module = device.build(r"""
    extern "C" __global__ void s(const unsigned *pa, const unsigned *pb, unsigned *out, int n) {
      int i = blockIdx.x * blockDim.x + threadIdx.x; if (i >= n) return;
      unsigned a = pa[i], b = pb[i], position = b & 255, length = (b >> 3) & 63, r; int s = a;
      asm volatile("bfe.u32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(position), "r"(length)); out[i] = r;
      asm volatile("bfe.s32 %0, %1, %2, %3;" : "=r"(r) : "r"(s), "r"(position), "r"(length)); out[n + i] = r;
      asm volatile("bfi.b32 %0, %1, %2, %3, %4;" : "=r"(r) : "r"(a), "r"(0xCAFEBABEu), "r"(position), "r"(length));
      out[2 * n + i] = r;
      asm volatile("bfind.u32 %0, %1;" : "=r"(r) : "r"(a)); out[3 * n + i] = r;
      asm volatile("bfind.s32 %0, %1;" : "=r"(r) : "r"(s)); out[4 * n + i] = r;
      asm volatile("lop3.b32 %0, %1, %2, %3, 0xCA;" : "=r"(r) : "r"(a), "r"(b), "r"(0x0FF0F00Fu)); out[5 * n + i] = r;
      asm volatile("lop3.b32 %0, %1, %2, %3, 0x96;" : "=r"(r) : "r"(a), "r"(b), "r"(0x0FF0F00Fu)); out[6 * n + i] = r;
      asm volatile("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(0x8899AABBu), "r"(b)); out[7 * n + i] = r;
    }""")
    a, b = pairs(EDGES32, 32)
    out = device.zeros((8, len(a)), np.uint32)
    module.run("s", (len(a) + 63) // 64, 64, device.put(a), device.put(b), out, len(a))

    def field(p: int, position: int, length: int, is_signed: bool) -> int:
        msb = min(position + length - 1, 31)
        fill = 0 if not is_signed or length == 0 else p >> msb & 1
        bit = [p >> (position + k) & 1 if k < length and position + k <= 31 else fill for k in range(32)]
        return sum(v << k for k, v in enumerate(bit))

    def insert(p: int, base: int, position: int, length: int) -> int:
        for k in range(length):
            if position + k < 32:
                base = base & ~(1 << (position + k)) | (p >> k & 1) << (position + k)
        return base

    def permute(p: int, selector: int) -> int:
        whole, result = (0x8899AABB << 32) | p, 0
        for k in range(4):
            nibble = selector >> (4 * k) & 15
            byte = whole >> (8 * (nibble & 7)) & 255
            result |= (255 * (byte >> 7) if nibble & 8 else byte) << (8 * k)
        return result

    def meaning(p: int, q: int) -> list[int]:
        position, length, c = q & 255, q >> 3 & 63, 0x0FF0F00F
        s = signed(p, 32)
        return [
            field(p, position, length, False),
            field(p, position, length, True),
            insert(p, 0xCAFEBABE, position, length),
            p.bit_length() - 1,
            (~s if s < 0 else s).bit_length() - 1,
            p & q | ~p & c,
            p ^ q ^ c,
            permute(p, q),
        ]

    table = [[v & 0xFFFFFFFF for v in meaning(int(p), int(q))] for p, q in zip(a, b, strict=True)]
    names = ("bfe.u32", "bfe.s32", "bfi", "bfind.u32", "bfind.s32", "lop3 CA", "lop3 96", "prmt")
    same_rows(names, out.numpy(), np.array(table, np.uint32).T.copy(), a, b)


@case
def arithmetic_64(device: Device) -> None:
    def s(value: int) -> int:
        return signed(value, 64)

    binary(
        device,
        64,
        EDGES64,
        {
            "a + b": lambda a, b: a + b,
            "a - b": lambda a, b: a - b,
            "a * b": lambda a, b: a * b,
            "__umul64hi(a, b)": lambda a, b: a * b >> 64,
            "__mul64hi(x, y)": lambda a, b: s(a) * s(b) >> 64,
            "a / (b | 1)": lambda a, b: a // (b | 1),
            "a % (b | 1)": lambda a, b: a % (b | 1),
            "x / (y | 1) * !(a == 1ull << 63 && b >= ~1ull)": lambda a, b: (
                0 if a == 1 << 63 and b >= (1 << 64) - 2 else truncated(s(a), s(b | 1))[0]
            ),
            "x % (y | 1) * !(a == 1ull << 63 && b >= ~1ull)": lambda a, b: (
                0 if a == 1 << 63 and b >= (1 << 64) - 2 else truncated(s(a), s(b | 1))[1]
            ),
            "a << (b & 63)": lambda a, b: a << (b & 63),
            "a >> (b & 63)": lambda a, b: a >> (b & 63),
            "x >> (b & 63)": lambda a, b: s(a) >> (b & 63),
            "__popcll(a)": lambda a, b: a.bit_count(),
            "__clzll(x)": lambda a, b: 64 - a.bit_length(),
            "__brevll(a)": lambda a, b: int(f"{a:064b}"[::-1], 2),
            "__ffsll(x)": lambda a, b: (a & -a).bit_length(),
            "min(x, y) ^ max(a, b)": lambda a, b: min(s(a), s(b)) ^ max(a, b),
            "(unsigned long long)(unsigned)a * (unsigned)b": lambda a, b: (a & 0xFFFFFFFF) * (b & 0xFFFFFFFF),
            "(long long)(int)x * (int)y + x": lambda a, b: signed(a, 32) * signed(b, 32) + s(a),
        },
    )


@case
def narrow_types(device: Device) -> None:
    module = device.build(r"""
    extern "C" __global__ void n(const short *a, const short *b, signed char *c, unsigned char *d, short *e,
                                 unsigned short *f, int n) {
      int i = blockIdx.x * blockDim.x + threadIdx.x; if (i >= n) return;
      short x = a[i], y = b[i];
      c[i] = (signed char)(x + y); d[i] = (unsigned char)(x * y); e[i] = (short)(x * y - (x >> 2));
      f[i] = (unsigned short)((unsigned short)x / (unsigned short)(y | 1)) ;
      c[n + i] = (signed char)((signed char)x > (signed char)y ? x : y);
      d[n + i] = (unsigned char)((unsigned char)x >> (y & 7));
    }""")
    rng = np.random.default_rng(4)
    x, y = (rng.integers(-32768, 32768, 1000).astype(np.int16) for _ in range(2))
    c, d = device.zeros((2, 1000), np.int8), device.zeros((2, 1000), np.uint8)
    e, f = device.zeros(1000, np.int16), device.zeros(1000, np.uint16)
    module.run("n", 8, 128, device.put(x), device.put(y), c, d, e, f, 1000)
    p, q = x.astype(np.int64), y.astype(np.int64)
    larger = np.where(x.astype(np.int8) > y.astype(np.int8), x, y)
    same(c.numpy(), np.stack([(p + q).astype(np.int8), larger.astype(np.int8)]))
    same(d.numpy(), np.stack([(p * q).astype(np.uint8), (p & 255) >> (q & 7)]).astype(np.uint8))
    same(e.numpy(), (p * q - (p >> 2)).astype(np.int16))
    same(f.numpy(), ((p & 0xFFFF) // ((q | 1) & 0xFFFF)).astype(np.uint16))


@case
def saturation_and_carry_in_ptx(device: Device) -> None:
    module = device.build(
        r"""
    extern "C" __global__ void s(const unsigned *pa, const unsigned *pb, unsigned *out, int n) {
      int i = blockIdx.x * blockDim.x + threadIdx.x; if (i >= n) return;
      unsigned a = pa[i], b = pb[i], r, lo, hi;
      asm volatile("add.sat.s32 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b)); out[i] = r;
      asm volatile("sub.sat.s32 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b)); out[n + i] = r;
      asm volatile("add.cc.u32 %0, %2, %3; addc.u32 %1, %4, %5;" : "=r"(lo), "=r"(hi) : "r"(a), "r"(b), "r"(b), "r"(a));
      out[2 * n + i] = lo; out[3 * n + i] = hi;
      asm volatile("sub.cc.u32 %0, %2, %3; subc.u32 %1, %4, %5;" : "=r"(lo), "=r"(hi) : "r"(a), "r"(b), "r"(b), "r"(a));
      out[4 * n + i] = lo; out[5 * n + i] = hi;
      asm volatile("mad.hi.u32 %0, %1, %2, 9;" : "=r"(r) : "r"(a), "r"(b)); out[6 * n + i] = r;
      asm volatile("mad.lo.cc.u32 %0, %2, %3, %4; madc.hi.u32 %1, %2, %3, 0;" : "=&r"(lo), "=r"(hi)
                   : "r"(a), "r"(b), "r"(a)); out[7 * n + i] = hi;
      asm volatile("cvt.sat.s16.s32 %0, %1; " : "=r"(r) : "r"(a)); out[8 * n + i] = (int)(short)r;
      asm volatile("sad.u32 %0, %1, %2, %1;" : "=r"(r) : "r"(a), "r"(b)); out[9 * n + i] = r;
      asm volatile("abs.s32 %0, %1;" : "=r"(r) : "r"(a)); out[10 * n + i] = r;
      asm volatile("dp4a.s32.s32 %0, %1, %2, 5;" : "=r"(r) : "r"(a), "r"(b)); out[11 * n + i] = r;
    }""".replace(
            'asm volatile("cvt.sat.s16.s32 %0, %1; " : "=r"(r) : "r"(a));',
            'short h; asm volatile("cvt.sat.s16.s32 %0, %1;" : "=h"(h) : "r"(a)); r = h;',
        )
    )
    a, b = pairs(EDGES32, 32)
    out = device.zeros((12, len(a)), np.uint32)
    module.run("s", (len(a) + 63) // 64, 64, device.put(a), device.put(b), out, len(a))

    def clip(v: int, bits: int) -> int:
        return max(-(1 << (bits - 1)), min((1 << (bits - 1)) - 1, v))

    def meaning(p: int, q: int) -> list[int]:
        s, t = signed(p, 32), signed(q, 32)
        dot = sum(signed(p >> k, 8) * signed(q >> k, 8) for k in (0, 8, 16, 24))
        return [
            clip(s + t, 32),
            clip(s - t, 32),
            p + q,
            q + p + (p + q >> 32),
            p - q,
            q - p - (p < q),
            (p * q >> 32) + 9,
            (p * q >> 32) + ((p * q & 0xFFFFFFFF) + p >> 32),
            clip(s, 16),
            abs(p - q) + p,
            abs(s),
            dot + 5,
        ]

    table = [[v & 0xFFFFFFFF for v in meaning(int(p), int(q))] for p, q in zip(a, b, strict=True)]
    names = (
        "add.sat",
        "sub.sat",
        "add.cc",
        "addc",
        "sub.cc",
        "subc",
        "mad.hi",
        "madc.hi",
        "cvt.sat.s16",
        "sad",
        "abs",
        "dp4a",
    )
    same_rows(names, out.numpy(), np.array(table, np.uint32).T.copy(), a, b)
