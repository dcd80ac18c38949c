"""Conversions between integers, float16, bfloat16, float32 and float64, in every rounding mode."""
# ruff: noqa: E501  (kernels' source text)

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from driver import Device, case, same
from rounding import (
    BF16,
    F16,
    F32,
    F64,
    SPECIAL32,
    SPECIAL64,
    Format,
    bf16_to_float,
    float_to_bf16,
    to_float,
    to_integer,
)

MODES = ("rn", "rz", "ru", "rd")
HALVES = np.array(
    [
        0.5,
        1.5,
        2.5,
        -0.5,
        -1.5,
        2147483520.0,
        2147483648.0,
        -2147483648.0,
        -2147483904.0,
        4294967040.0,
        4294967296.0,
        9.223372e18,
        -9.223372e18,
        1.8446744e19,
        1e30,
        -1e30,
        0.9999999,
        255.5,
        -0.75,
    ],
    np.float64,
)


def _float_to_integer(device: Device, kind: str, values: np.ndarray) -> None:
    source = {"float": "float", "double": "double"}[kind]
    targets = (("int", 32, True), ("uint", 32, False), ("ll", 64, True), ("ull", 64, False))
    calls = [(name, bits, is_signed, mode) for name, bits, is_signed in targets for mode in MODES]
    rows = "\n".join(
        f"out[{k} * n + i] = (unsigned long long)__{source}2{name}_{mode}(x);"
        for k, (name, _, _, mode) in enumerate(calls)
    )
    module = device.build(f"""extern "C" __global__ void f(const {kind} *in, unsigned long long *out, int n) {{
      int i = blockIdx.x * blockDim.x + threadIdx.x; if (i >= n) return; {kind} x = in[i];
      {rows} }}""")
    out = device.zeros((len(calls), len(values)), np.uint64)
    module.run("f", (len(values) + 31) // 32, 32, device.put(values), out, len(values))
    got = out.numpy()
    for row, (name, bits, is_signed, mode) in enumerate(calls):
        low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if is_signed else (0, (1 << bits) - 1)
        # NaN: zero for float to 32 bits, else the sign bit alone (PTX ISA, cvt)
        nan = 0 if kind == "float" and bits == 32 else (1 << (bits - 1))
        expected = []
        for v in values:
            if math.isnan(v):
                whole = nan
            elif math.isinf(v):
                whole = high if v > 0 else low
            else:
                whole = max(low, min(high, to_integer(Fraction(float(v)), mode)))
            if is_signed and bits == 32 and whole >= 1 << 31:
                whole -= 1 << 32
            expected.append(whole & ((1 << 64) - 1))
        try:
            same(got[row], np.array(expected, np.uint64))
        except AssertionError as problem:
            where = int(np.argmax(got[row] != np.array(expected, np.uint64)))
            raise AssertionError(f"__{source}2{name}_{mode}({values[where]!r}): {problem}") from None


@case
def float_to_integer(device: Device) -> None:
    _float_to_integer(device, "float", np.concatenate([SPECIAL32, HALVES.astype(np.float32)]))


@case
def double_to_integer(device: Device) -> None:
    edges = np.array(
        [2147483647.5, -2147483648.5, 4294967295.5, 9223372036854774784.0, 18446744073709549568.0]
    )
    _float_to_integer(device, "double", np.concatenate([SPECIAL64, HALVES, edges]))


@case
def integer_to_float(device: Device) -> None:
    kinds = (
        ("int", np.int32, "int"),
        ("uint", np.uint32, "unsigned"),
        ("ll", np.int64, "long long"),
        ("ull", np.uint64, "unsigned long long"),
    )
    rng = np.random.default_rng(3)
    for name, dtype, kind in kinds:
        info = np.iinfo(dtype)
        edges = [
            0,
            1,
            2,
            3,
            16777215,
            16777216,
            16777217,
            16777219,
            33554433,
            2147483647,
            2147483584,
            info.max,
            info.max - 1,
            info.min,
            info.min + 1,
            info.max // 2 + 1,
            info.max - 64,
            info.max - 128,
        ]
        values = np.concatenate([np.array(edges, dtype), rng.integers(info.min, info.max, 80, dtype=dtype)])
        rows = "\n".join(f"out[{k} * n + i] = __{name}2float_{mode}(x);" for k, mode in enumerate(MODES))
        wide = (
            "\n".join(f"wide[{k} * n + i] = __{name}2double_{mode}(x);" for k, mode in enumerate(MODES))
            if "ll" in name
            else "wide[i] = x;"
        )
        module = device.build(f"""extern "C" __global__ void f(const {kind} *in, float *out, double *wide, int n) {{
          int i = threadIdx.x; if (i >= n) return; {kind} x = in[i];
          {rows} {wide} }}""")
        n = len(values)
        out, wider = device.zeros((4, n), np.float32), device.zeros((4, n), np.float64)
        module.run("f", 1, 128, device.put(values), out, wider, n)
        exact = [Fraction(int(v)) for v in values]
        same(
            out.numpy(),
            np.array([[to_float(v, F32, mode) if v else 0.0 for v in exact] for mode in MODES], np.float32),
        )
        if "ll" in name:
            same(
                wider.numpy(),
                np.array([[to_float(v, F64, mode) if v else 0.0 for v in exact] for mode in MODES]),
            )
        else:
            same(wider.numpy()[0], values.astype(np.float64))


@case
def double_and_float(device: Device) -> None:
    rows = "\n".join(f"out[{k} * n + i] = __double2float_{mode}(x);" for k, mode in enumerate(MODES))
    module = device.build(f"""extern "C" __global__ void f(const double *in, float *out, double *back, int n) {{
      int i = threadIdx.x; if (i >= n) return; double x = in[i];
      {rows} back[i] = (double)out[i];
      back[n + i] = __hiloint2double(__double2loint(x), __double2hiint(x)); }}""")
    rng = np.random.default_rng(3)
    values = np.concatenate(
        [
            SPECIAL64,
            HALVES,
            [3.4028235677973366e38, 3.4028235e38, 1.1754943e-38, 1e-45, 7e-46, 1.4e-45],
            rng.standard_normal(60) * 10.0 ** rng.integers(-44, 38, 60),
        ]
    )
    n = len(values)
    out, back = device.zeros((4, n), np.float32), device.zeros((2, n), np.float64)
    module.run("f", 1, 128, device.put(values), out, back, n)

    def rounded(v: float, mode: str) -> float:
        return v if v == 0 or not math.isfinite(v) else to_float(Fraction(v), F32, mode)

    expected = np.array([[rounded(float(v), mode) for v in values] for mode in MODES], np.float32)
    same(out.numpy(), expected)
    swapped = values.view(np.uint64)
    swapped = ((swapped << np.uint64(32)) | (swapped >> np.uint64(32))).view(np.float64)
    same(back.numpy(), np.stack([expected[0].astype(np.float64), swapped]))


def _to_sixteen(values: np.ndarray, form: Format, mode: str) -> np.ndarray:
    return np.array(
        [
            float(v) if v == 0 or not math.isfinite(v) else to_float(Fraction(float(v)), form, mode)
            for v in values
        ]
    )


@case
def half_conversions(device: Device) -> None:
    rows = "\n".join(f"out[{k} * n + i] = __float2half_{mode}(x);" for k, mode in enumerate(MODES))
    module = device.build(f"""#include <cuda_fp16.h>
    extern "C" __global__ void narrow(const float *in, __half *out, int n) {{
      int i = blockIdx.x * blockDim.x + threadIdx.x; if (i >= n) return; float x = in[i];
      {rows} out[4 * n + i] = __double2half((double)x); }}
    extern "C" __global__ void widen(const __half *in, float *out, int *whole, __half *back) {{
      int i = blockIdx.x * blockDim.x + threadIdx.x;
      out[i] = __half2float(in[i]); whole[i] = __half2int_rz(in[i]); whole[65536 + i] = __half2int_rn(in[i]);
      whole[131072 + i] = __half2uint_ru(in[i]); whole[196608 + i] = (int)__half2short_rd(in[i]);
      back[i] = __int2half_rn(i - 32768); back[65536 + i] = __uint2half_rz(i * 3u); }}""")
    rng = np.random.default_rng(5)
    drawn = rng.standard_normal(300) * 10.0 ** rng.integers(-9, 6, 300)
    edges = [
        65504,
        65519.996,
        65520,
        65536,
        5.9604645e-8,
        2.9802322e-8,
        2.9802326e-8,
        6.1035156e-5,
        6.0975552e-5,
        2049,
        2051,
    ]
    values = np.concatenate([SPECIAL32, drawn, edges, np.negative(edges)]).astype(np.float32)
    n = len(values)
    out = device.zeros((5, n), np.float16)
    module.run("narrow", (n + 127) // 128, 128, device.put(values), out, n)
    same(
        out.numpy(), np.stack([_to_sixteen(values, F16, mode).astype(np.float16) for mode in (*MODES, "rn")])
    )

    every = np.arange(65536, dtype=np.uint16).view(np.float16)
    wide, whole, back = (
        device.zeros(65536, np.float32),
        device.zeros((4, 65536), np.int32),
        device.zeros((2, 65536), np.float16),
    )
    module.run("widen", 256, 256, device.put(every.view(np.uint16)), wide, whole, back)
    same(wide.numpy(), every.astype(np.float32))
    clean = np.where(np.isnan(every), 0, every.astype(np.float64))
    top = 2.0**31

    def integer(values64: np.ndarray, low: float, high: float) -> np.ndarray:
        clipped: np.ndarray = np.clip(values64, low, high)
        return clipped.astype(np.int64).astype(np.int32)

    same(
        whole.numpy(),
        np.stack(
            [
                integer(np.trunc(clean), -top, top - 1),
                integer(np.rint(clean), -top, top - 1),
                integer(np.ceil(clean), 0, 2.0**32 - 1),
                integer(np.floor(clean), -32768, 32767),
            ]
        ),
    )
    numbers, triple = np.arange(65536) - 32768.0, np.arange(65536) * 3.0
    same(
        back.numpy(),
        np.stack([numbers.astype(np.float16), _to_sixteen(triple, F16, "rz").astype(np.float16)]),
    )


@case
def bfloat_conversions(device: Device) -> None:
    module = device.build(r"""#include <cuda_bf16.h>
    extern "C" __global__ void narrow(const float *in, __nv_bfloat16 *out, int n) {
      int i = blockIdx.x * blockDim.x + threadIdx.x; if (i >= n) return; float x = in[i];
      out[i] = __float2bfloat16_rn(x); out[n + i] = __float2bfloat16_rz(x);
      out[2 * n + i] = __float2bfloat16_ru(x); out[3 * n + i] = __float2bfloat16_rd(x);
      out[4 * n + i] = __double2bfloat16((double)x); }
    extern "C" __global__ void widen(const __nv_bfloat16 *in, float *out, int *whole) {
      int i = blockIdx.x * blockDim.x + threadIdx.x;
      out[i] = __bfloat162float(in[i]); whole[i] = __bfloat162int_rz(in[i]); }""")
    rng = np.random.default_rng(5)
    drawn = rng.standard_normal(300) * 10.0 ** rng.integers(-40, 38, 300)
    values = np.concatenate([SPECIAL32, drawn, [257, 258, 259, 3.3961775e38, 3.39e38]]).astype(np.float32)
    n = len(values)
    out = device.zeros((5, n), np.uint16)
    module.run("narrow", (n + 127) // 128, 128, device.put(values), out, n)
    expected = np.stack([_to_sixteen(values, BF16, mode) for mode in (*MODES, "rn")]).astype(np.float32)
    same(bf16_to_float(out.numpy()), bf16_to_float(float_to_bf16(expected)))
    every = np.arange(65536, dtype=np.uint16)
    wide, whole = device.zeros(65536, np.float32), device.zeros(65536, np.int32)
    module.run("widen", 256, 256, device.put(every), wide, whole)
    floats = bf16_to_float(every)
    same(wide.numpy(), floats)
    clean = np.where(np.isnan(floats), 0, floats.astype(np.float64))
    same(whole.numpy(), np.clip(np.trunc(clean), -(2.0**31), 2.0**31 - 1).astype(np.int64).astype(np.int32))


@case
def bit_casts_and_packing(device: Device) -> None:
    module = device.build(r"""
    extern "C" __global__ void f(const float *in, unsigned *out, float *halved, int n) {
      int i = threadIdx.x; if (i >= n) return;
      unsigned bits = __float_as_uint(in[i]);
      out[i] = bits ^ 0x80000000u; halved[i] = __uint_as_float(bits & 0xffff0000u);
      uchar4 c = make_uchar4(bits, bits >> 8, bits >> 16, bits >> 24);
      out[n + i] = c.x << 24 | c.y << 16 | c.z << 8 | c.w;
      short2 s = *reinterpret_cast<short2 *>(&bits); out[2 * n + i] = (int)s.x - (int)s.y; }""")
    n = len(SPECIAL32)
    out, halved = device.zeros((3, n), np.uint32), device.zeros(n, np.float32)
    module.run("f", 1, 64, device.put(SPECIAL32), out, halved, n)
    bits = SPECIAL32.view(np.uint32)
    shorts = bits.view(np.int16).reshape(-1, 2).astype(np.int32)
    same(
        out.numpy(),
        np.stack([bits ^ np.uint32(1 << 31), bits.byteswap(), (shorts[:, 0] - shorts[:, 1]).view(np.uint32)]),
    )
    same(halved.numpy(), (bits & np.uint32(0xFFFF0000)).view(np.float32))
