"""Floating-point arithmetic: directed rounding, fused against separate, subnormals, NaN, 16-bit types, functions."""
# ruff: noqa: E501  (kernels' source text)

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from driver import Device, case, close, same
from rounding import BF16, F16, F32, F64, SPECIAL32, SPECIAL64, Format, apply, bf16_to_float, float_to_bf16

MODES = ("rn", "rz", "ru", "rd")


def _all_pairs(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    a, b = np.meshgrid(values, values, indexing="ij")
    return a.ravel().copy(), b.ravel().copy()


def _directed(device: Device, letter: str, kind: str, special: np.ndarray, form: Format) -> None:
    rng = np.random.default_rng(11)
    drawn = (rng.standard_normal(12) * 10.0 ** rng.integers(-6, 6, 12)).astype(special.dtype)
    a, b = _all_pairs(np.concatenate([special, drawn]))
    fma = "__fmaf" if letter == "f" else "__fma"
    calls = [
        (op, mode, text.format(m=mode))
        for mode in MODES
        for op, text in (
            ("add", f"__{letter}add_{{m}}(a, b)"),
            ("sub", f"__{letter}sub_{{m}}(a, b)"),
            ("mul", f"__{letter}mul_{{m}}(a, b)"),
            ("div", f"__{letter}div_{{m}}(a, b)"),
            ("fma", f"{fma}_{{m}}(a, b, c)"),
            ("sqrt", f"__{letter}sqrt_{{m}}(a)"),
            ("rcp", f"__{letter}rcp_{{m}}(a)"),
        )
    ]
    rows = "\n".join(f"out[{k} * n + i] = {text};" for k, (_, _, text) in enumerate(calls))
    module = device.build(f"""extern "C" __global__ void f(const {kind} *pa, const {kind} *pb, {kind} *out, int n) {{
      int i = blockIdx.x * blockDim.x + threadIdx.x; if (i >= n) return;
      {kind} a = pa[i], b = pb[i], c = pa[(i + 5) % n];
      {rows} }}""")
    out = device.zeros((len(calls), len(a)), a.dtype)
    module.run("f", (len(a) + 127) // 128, 128, device.put(a), device.put(b), out, len(a))
    got, c = out.numpy(), np.roll(a, -5)
    for row, (op, mode, text) in enumerate(calls):
        width = {"fma": 3, "sqrt": 1, "rcp": 1}.get(op, 2)
        known: dict[bytes, float] = {}
        expected = np.empty_like(a)
        for i in range(len(a)):
            values = (float(a[i]), float(b[i]), float(c[i]))[:width]
            key = np.array(values).tobytes()
            if key not in known:
                known[key] = apply(op, values, form, mode)
            expected[i] = known[key]
        try:
            same(got[row], expected)
        except AssertionError as problem:
            raise AssertionError(f"{text}: {problem}") from None


@case
def directed_rounding_32(device: Device) -> None:
    _directed(device, "f", "float", SPECIAL32, F32)


@case
def directed_rounding_64(device: Device) -> None:
    _directed(device, "d", "double", SPECIAL64, F64)


@case
def fused_and_separate(device: Device) -> None:
    source = r"""extern "C" __global__ void f(const float *a, const float *b, const float *c, float *out, int n) {
      int i = blockIdx.x * blockDim.x + threadIdx.x; if (i >= n) return;
      out[i] = a[i] * b[i] + c[i]; out[n + i] = fmaf(a[i], b[i], c[i]); }"""
    rng = np.random.default_rng(1)
    a, b = (rng.standard_normal(2000).astype(np.float32) for _ in range(2))
    c = -(a * b)  # so that what one rounding more loses is all there is
    fused = np.array(
        [apply("fma", (float(x), float(y), float(z)), F32, "rn") for x, y, z in zip(a, b, c, strict=True)],
        np.float32,
    )
    for flag, first in (("--fmad=false", a * b + c), ("--fmad=true", fused)):
        out = device.zeros((2, 2000), np.float32)
        device.build(source, flag).run("f", 20, 100, device.put(a), device.put(b), device.put(c), out, 2000)
        same(out.numpy(), np.stack([first, fused]))


@case
def subnormals_kept_and_flushed(device: Device) -> None:
    source = r"""extern "C" __global__ void f(const float *a, float *out, int n) {
      int i = threadIdx.x; if (i >= n) return;
      out[i] = a[i] * 0.5f; out[n + i] = a[i] + a[i]; out[2 * n + i] = fmaf(a[i], 1.0f, 0.0f); }"""
    tiny = np.array(
        [1e-45, -1e-45, 1e-40, -3e-39, 1.17549435e-38, 2e-38, 1.0, 0.0, -0.0, 2.3509887e-38], np.float32
    )

    def flush(x: np.ndarray) -> np.ndarray:
        return np.where(np.abs(x) < np.float32(1.17549435e-38), np.copysign(np.float32(0), x), x).astype(
            np.float32
        )

    kept, flushed = (device.zeros((3, len(tiny)), np.float32) for _ in range(2))
    device.build(source, "--ftz=false").run("f", 1, 32, device.put(tiny), kept, len(tiny))
    device.build(source, "--ftz=true").run("f", 1, 32, device.put(tiny), flushed, len(tiny))
    same(kept.numpy(), np.stack([tiny * np.float32(0.5), tiny + tiny, tiny + np.float32(0)]))
    f = flush(tiny)
    same(flushed.numpy(), np.stack([flush(f * np.float32(0.5)), flush(f + f), flush(f + np.float32(0))]))


@case
def minimum_and_maximum(device: Device) -> None:
    module = device.build(r"""extern "C" __global__ void f(const float *pa, const float *pb, float *out, int n) {
      int i = blockIdx.x * blockDim.x + threadIdx.x; if (i >= n) return;
      float a = pa[i], b = pb[i], r;
      out[i] = fminf(a, b); out[n + i] = fmaxf(a, b);
      asm volatile("min.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b)); out[2 * n + i] = r;
      asm volatile("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b)); out[3 * n + i] = r;
      out[4 * n + i] = (float)fmin((double)a, (double)b); out[5 * n + i] = (float)fmax((double)a, (double)b);
      out[6 * n + i] = __saturatef(a); }""")
    a, b = _all_pairs(SPECIAL32)
    out = device.zeros((7, len(a)), np.float32)
    module.run("f", (len(a) + 63) // 64, 64, device.put(a), device.put(b), out, len(a))

    def pick(smallest: bool, propagate: bool) -> np.ndarray:
        least = (a < b) | ((a == b) & np.signbit(a))  # PTX orders -0 before +0
        chosen = np.where(least == smallest, a, b)
        other = np.nan if propagate else np.where(np.isnan(a), b, a)
        return np.where(np.isnan(a) | np.isnan(b), other, chosen).astype(np.float32)

    clipped = np.where(np.isnan(a) | (a <= 0), np.float32(0), np.minimum(a, np.float32(1))).astype(np.float32)
    same(
        out.numpy(),
        np.stack(
            [
                pick(True, False),
                pick(False, False),
                pick(True, True),
                pick(False, True),
                pick(True, False),
                pick(False, False),
                clipped,
            ]
        ),
    )


@case
def comparisons_with_nan(device: Device) -> None:
    operators = ("eq", "ne", "lt", "le", "gt", "ge", "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan")
    rows = "\n".join(
        f"""asm volatile("{{ .reg .pred p; setp.{op}.f32 p, %1, %2; selp.u32 %0, 1, 0, p; }}"
        : "=r"(r) : "f"(a), "f"(b)); bits |= r << {k};"""
        for k, op in enumerate(operators)
    )
    module = device.build(f"""extern "C" __global__ void f(const float *pa, const float *pb, unsigned *out, int n) {{
      int i = blockIdx.x * blockDim.x + threadIdx.x; if (i >= n) return;
      float a = pa[i], b = pb[i]; unsigned r, bits = 0;
      {rows}
      bits |= (unsigned)isnan(a) << 14 | (unsigned)isinf(a) << 15 | (unsigned)(signbit(a) != 0) << 16
            | (unsigned)isfinite(a) << 17;
      out[i] = bits; }}""")
    a, b = _all_pairs(SPECIAL32)
    out = device.zeros(len(a), np.uint32)
    module.run("f", (len(a) + 63) // 64, 64, device.put(a), device.put(b), out, len(a))
    nan = np.isnan(a) | np.isnan(b)
    ordered = [a == b, (a != b) & ~nan, a < b, a <= b, a > b, a >= b]
    flags = [
        *ordered,
        *(flag | nan for flag in ordered),
        ~nan,
        nan,
        np.isnan(a),
        np.isinf(a),
        np.signbit(a),
        np.isfinite(a),
    ]
    same(
        out.numpy(),
        sum(
            (flag.astype(np.uint32) << np.uint32(k) for k, flag in enumerate(flags)),
            np.zeros(len(a), np.uint32),
        ),
    )


@case
def rounding_functions(device: Device) -> None:
    names = (
        "floorf(x)",
        "ceilf(x)",
        "truncf(x)",
        "rintf(x)",
        "roundf(x)",
        "fabsf(x)",
        "-x",
        "copysignf(2.5f, x)",
        "fmodf(x, 3.0f)",
        "remainderf(x, 3.0f)",
        "fdimf(x, 1.0f)",
        "ldexpf(x, 5)",
        "nextafterf(x, 1.0f)",
    )
    rows = "\n".join(f"out[{k} * n + i] = {text};" for k, text in enumerate(names))
    module = device.build(f"""extern "C" __global__ void f(const float *in, float *out, int n) {{
      int i = blockIdx.x * blockDim.x + threadIdx.x; if (i >= n) return; float x = in[i];
      {rows} }}""")
    x = np.concatenate(
        [
            SPECIAL32[:-3],
            np.array(
                [0.5, 1.5, -0.5, -1.5, 2.5, 8388609.0, 0.49999997, -7.7, 123456.78, np.inf, -np.inf, np.nan],
                np.float32,
            ),
        ]
    )
    out = device.zeros((len(names), len(x)), np.float32)
    module.run("f", 1, 64, device.put(x), out, len(x))
    with np.errstate(all="ignore"):
        away = np.where(
            np.abs(x) < 8388608, np.copysign(np.floor(np.abs(x.astype(np.float64)) + 0.5), x), x
        ).astype(np.float32)
        remainder = np.array(
            [math.remainder(v, 3.0) if math.isfinite(v) else math.nan for v in x.astype(np.float64)],
            np.float32,
        )
        rows32 = [
            np.floor(x),
            np.ceil(x),
            np.trunc(x),
            np.rint(x),
            away,
            np.abs(x),
            -x,
            np.copysign(np.float32(2.5), x),
            np.fmod(x, np.float32(3)),
            remainder,
            np.where(np.isnan(x), x, np.maximum(x - np.float32(1), 0)),
            np.ldexp(x, 5),
            np.nextafter(x, np.float32(1)),
        ]
    got = out.numpy()
    for row, name in enumerate(names):
        try:
            same(got[row], rows32[row].astype(np.float32))
        except AssertionError as problem:
            raise AssertionError(
                f"{name}: {problem}, x = {x[np.argmax(got[row] != rows32[row])]!r}"
            ) from None


Oracle = Callable[[np.ndarray], np.ndarray]
FUNCTIONS: dict[
    str, tuple[Oracle, int, tuple[float, float]]
] = {  # CUDA name: (oracle, largest error in units in the last place by the CUDA manual, plus one; argument range)
    "expf": (np.exp, 3, (-80, 80)),
    "exp2f": (np.exp2, 3, (-120, 120)),
    "exp10f": (lambda x: 10.0**x, 3, (-35, 35)),
    "logf": (np.log, 2, (1e-6, 1e6)),
    "log2f": (np.log2, 2, (1e-6, 1e6)),
    "log10f": (np.log10, 3, (1e-6, 1e6)),
    "log1pf": (np.log1p, 2, (-0.9, 1e4)),
    "expm1f": (np.expm1, 2, (-10, 50)),
    "sinf": (np.sin, 3, (-200, 200)),
    "cosf": (np.cos, 3, (-200, 200)),
    "tanf": (np.tan, 5, (-20, 20)),
    "asinf": (np.arcsin, 3, (-1, 1)),
    "acosf": (np.arccos, 3, (-1, 1)),
    "atanf": (np.arctan, 3, (-50, 50)),
    "sinhf": (np.sinh, 4, (-20, 20)),
    "coshf": (np.cosh, 3, (-20, 20)),
    "tanhf": (np.tanh, 3, (-10, 10)),
    "asinhf": (np.arcsinh, 4, (-50, 50)),
    "acoshf": (np.arccosh, 5, (1, 100)),
    "atanhf": (np.arctanh, 4, (-0.99, 0.99)),
    "sqrtf": (np.sqrt, 0, (0, 1e6)),
    "rsqrtf": (lambda x: 1 / np.sqrt(x), 3, (1e-3, 1e6)),
    "cbrtf": (np.cbrt, 2, (-1e4, 1e4)),
    "erff": (np.vectorize(math.erf), 3, (-4, 4)),
    "erfcf": (np.vectorize(math.erfc), 5, (-4, 9)),
    "tgammaf": (np.vectorize(math.gamma), 6, (0.1, 30)),
    "lgammaf": (np.vectorize(math.lgamma), 7, (3.1, 100)),
}


@case
def mathematical_functions(device: Device) -> None:
    rows = "\n".join(f"out[{k} * n + i] = {name}(in[{k} * n + i]);" for k, name in enumerate(FUNCTIONS))
    module = device.build(f"""extern "C" __global__ void f(const float *in, float *out, int n) {{
      int i = blockIdx.x * blockDim.x + threadIdx.x; if (i >= n) return;
      {rows} }}""")
    rng = np.random.default_rng(6)
    x = np.stack([rng.uniform(low, high, 500) for _, _, (low, high) in FUNCTIONS.values()]).astype(np.float32)
    out = device.zeros(x.shape, np.float32)
    module.run("f", 4, 128, device.put(x), out, 500)
    got = out.numpy()
    for row, (name, (oracle, ulps, _)) in enumerate(FUNCTIONS.items()):
        exact = oracle(x[row].astype(np.float64))
        error = np.abs(got[row].astype(np.float64) - exact) / np.spacing(
            np.abs(exact).astype(np.float32)
        ).astype(np.float64)
        assert error.max() <= ulps + 0.501, (
            f"{name}({x[row][error.argmax()]!r}): {error.max():.2f} units in the last place"
        )


@case
def mathematical_functions_64(device: Device) -> None:
    names: dict[str, Oracle] = {
        "exp": np.exp,
        "log": np.log,
        "sin": np.sin,
        "cos": np.cos,
        "sqrt": np.sqrt,
        "atan": np.arctan,
        "tanh": np.tanh,
        "cbrt": np.cbrt,
        "rsqrt": lambda x: 1 / np.sqrt(x),
    }
    rows = "\n".join(f"out[{k} * n + i] = {name}(in[i]);" for k, name in enumerate(names))
    module = device.build(f"""extern "C" __global__ void f(const double *in, double *out, int n) {{
      int i = blockIdx.x * blockDim.x + threadIdx.x; if (i >= n) return;
      {rows} out[{len(names)} * n + i] = pow(in[i], 1.7) / (1.0 + in[i]); }}""")
    x = np.random.default_rng(6).uniform(0.01, 40, 300)
    out = device.zeros((len(names) + 1, 300), np.float64)
    module.run("f", 3, 128, device.put(x), out, 300)
    close(out.numpy(), np.stack([*(f(x) for f in names.values()), x**1.7 / (1 + x)]), relative=2e-15)


@case
def approximate_functions(device: Device) -> None:
    names: dict[str, Oracle] = {
        "__expf": np.exp,
        "__logf": np.log,
        "__log2f": np.log2,
        "__sinf": np.sin,
        "__cosf": np.cos,
        "__frsqrt_rn": lambda x: 1 / np.sqrt(x),
    }
    rows = "\n".join(f"out[{k} * n + i] = {name}(in[i]);" for k, name in enumerate(names))
    module = device.build(f"""extern "C" __global__ void f(const float *in, float *out, int n) {{
      int i = blockIdx.x * blockDim.x + threadIdx.x; if (i >= n) return;
      {rows} out[{len(names)} * n + i] = __fdividef(1.0f, in[i]); out[{len(names) + 1} * n + i] = __powf(in[i], 1.3f);
      float t; asm volatile("tanh.approx.f32 %0, %1;" : "=f"(t) : "f"(in[i])); out[{len(names) + 2} * n + i] = t; }}""")
    x = np.random.default_rng(6).uniform(0.1, 3.1, 256).astype(np.float32)
    out = device.zeros((len(names) + 3, 256), np.float32)
    module.run("f", 2, 128, device.put(x), out, 256)
    wide = x.astype(np.float64)
    close(
        out.numpy(),
        np.stack([*(f(wide) for f in names.values()), 1 / wide, wide**1.3, np.tanh(wide)]),
        6e-4,
        2e-6,
    )


def _sixteen_bits(
    device: Device, kind: str, form: Format, values: np.ndarray, bits: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(bits from the device, exact results rounded once) of add, sub, mul and fma of all pairs."""
    header = "cuda_fp16.h" if kind == "__half" else "cuda_bf16.h"
    module = device.build(
        f"""#include <{header}>
    extern "C" __global__ void f(const {kind} *a, {kind} *out, int n) {{
      int i = blockIdx.x, j = threadIdx.x; size_t at = i * n + j, all = n * n;
      out[at] = __hadd(a[i], a[j]); out[all + at] = __hsub(a[i], a[j]); out[2 * all + at] = __hmul(a[i], a[j]);
      out[3 * all + at] = __hfma(a[i], a[j], a[(i + j) % n]); }}""",
        "--fmad=false",
    )
    n = len(values)
    out = device.zeros((4, n, n), np.uint16)
    module.run("f", n, n, device.put(bits), out, n)
    expected = np.empty((4, n, n))
    for i in range(n):
        for j in range(n):
            a, b, c = float(values[i]), float(values[j]), float(values[(i + j) % n])
            expected[:, i, j] = [
                apply(op, (a, b, c)[: 3 if op == "fma" else 2], form, "rn")
                for op in ("add", "sub", "mul", "fma")
            ]
    return out.numpy(), expected


@case
def half_arithmetic(device: Device) -> None:
    rng = np.random.default_rng(9)
    values = np.concatenate(
        [
            [
                0.0,
                -0.0,
                1.0,
                -1.5,
                65504.0,
                -65504.0,
                6e-8,
                -6e-8,
                6.1e-5,
                0.1,
                2048.0,
                2049.0,
                np.inf,
                np.nan,
            ],
            rng.standard_normal(30) * 10.0 ** rng.integers(-4, 4, 30),
        ]
    ).astype(np.float16)
    got, expected = _sixteen_bits(device, "__half", F16, values.astype(np.float64), values.view(np.uint16))
    same(got.view(np.float16), expected.astype(np.float16))


@case
def bfloat_arithmetic(device: Device) -> None:
    rng = np.random.default_rng(9)
    drawn = np.concatenate(
        [
            [0.0, -0.0, 1.0, -1.5, 3.3895314e38, -3.3895314e38, 9.2e-41, 1.2e-38, 0.1, 257.0, np.inf, np.nan],
            rng.standard_normal(30) * 10.0 ** rng.integers(-8, 8, 30),
        ]
    ).astype(np.float32)
    bits = float_to_bf16(drawn)
    got, expected = _sixteen_bits(device, "__nv_bfloat16", BF16, bf16_to_float(bits).astype(np.float64), bits)
    same(bf16_to_float(got), expected.astype(np.float32))


@case
def packed_halves(device: Device) -> None:
    module = device.build(
        r"""#include <cuda_fp16.h>
    extern "C" __global__ void f(const __half2 *a, const __half2 *b, __half2 *out, int n) {
      int i = threadIdx.x + blockIdx.x * blockDim.x; if (i >= n) return;
      out[i] = __hadd2(a[i], b[i]); out[n + i] = __hmul2(a[i], b[i]); out[2 * n + i] = __hmax2(a[i], b[i]);
      out[3 * n + i] = __hmin2(a[i], b[i]); out[4 * n + i] = __hneg2(a[i]); out[5 * n + i] = __lowhigh2highlow(a[i]);
      out[6 * n + i] = __habs2(b[i]); }""",
        "--fmad=false",
    )
    rng = np.random.default_rng(2)
    a, b = (rng.standard_normal((200, 2)).astype(np.float16) for _ in range(2))
    out = device.zeros((7, 200, 2), np.float16)
    module.run("f", 2, 100, device.put(a), device.put(b), out, 200)
    same(out.numpy(), np.stack([a + b, a * b, np.maximum(a, b), np.minimum(a, b), -a, a[:, ::-1], np.abs(b)]))
