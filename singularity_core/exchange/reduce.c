/* gcc vectorises these loops at -O3 only; nothing here may be contracted or reassociated, so no fast-math. */
#pragma GCC optimize("O3")
#include "reduce.h"

#include <string.h>

/* ---- types -------------------------------------------------------------------------------------------------- */
uint32_t sg_dtype_bytes(uint32_t dtype) {
    static const uint8_t bytes[SG_DTYPES] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
    return dtype < SG_DTYPES ? bytes[dtype] : 0;
}

uint32_t sg_dtype_accumulator(uint32_t dtype) { return dtype == SG_F16 || dtype == SG_BF16 ? SG_F32 : dtype; }

static inline float float_of(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float from_bf16(uint16_t half) { return float_of((uint32_t)half << 16); }

static inline uint16_t to_bf16(float value) {
    uint32_t bits = bits_of(value);
    uint16_t rounded = (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
    uint16_t quiet = (uint16_t)((bits >> 16) | 0x40u);
    return (bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded;
}

static inline float from_f16(uint16_t half) {
    uint32_t sign = (uint32_t)(half & 0x8000u) << 16, rest = (uint32_t)(half & 0x7fffu) << 13;
    float small = float_of(rest) * 0x1p112f; /* exact, also for subnormal numbers */
    uint32_t large = rest + (112u << 23) + (112u << 23); /* infinity and NaN keep their fraction */
    return float_of((rest < (31u << 23) ? bits_of(small) : large) | sign);
}

static inline uint16_t to_f16(float value) {
    uint32_t bits = bits_of(value), sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7fffffffu;
    uint32_t normal = magnitude - (112u << 23);
    normal = (normal + 0xfffu + ((normal >> 13) & 1u)) >> 13;
    /* adding 0.5 leaves the subnormal's bits, rounded to nearest even, in the fraction of the sum */
    uint32_t subnormal = bits_of(float_of(magnitude) + 0.5f) - bits_of(0.5f);
    uint32_t out = magnitude < (113u << 23) ? subnormal : normal;
    out = magnitude >= 0x477ff000u ? 0x7c00u : out; /* 65520 and above round to infinity */
    out = magnitude > 0x7f800000u ? 0x7e00u | ((magnitude >> 13) & 0x1ffu) : out;
    return (uint16_t)(out | sign);
}

/* ---- load ---------------------------------------------------------------------------------------------------- */
#define LOAD(name, in_type, acc_type, convert)                                                                       \
    static void load_##name(acc_type *restrict out, const in_type *restrict in, uint64_t count, acc_type factor,     \
                            int scaled) {                                                                            \
        if (scaled) for (uint64_t i = 0; i < count; i++) out[i] = (acc_type)((acc_type)convert(in[i]) * factor);     \
        else for (uint64_t i = 0; i < count; i++) out[i] = (acc_type)convert(in[i]);                                 \
    }
LOAD(f16, uint16_t, float, from_f16)
LOAD(bf16, uint16_t, float, from_bf16)
LOAD(f32, float, float, )
LOAD(f64, double, double, )
LOAD(u8, uint8_t, uint8_t, )
LOAD(u32, uint32_t, uint32_t, )
LOAD(u64, uint64_t, uint64_t, )

static double double_of(uint64_t bits) {
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

void sg_reduce_load(uint32_t dtype, uint32_t reduction, uint64_t scalar, void *out, const void *in, uint64_t count) {
    int scaled = reduction == SG_PREMUL_SUM;
    if (!scaled && sg_dtype_accumulator(dtype) == dtype) {
        if (out != in) memcpy(out, in, count * sg_dtype_bytes(dtype));
        return;
    }
    switch (dtype) {
    case SG_F16: load_f16(out, in, count, from_f16((uint16_t)scalar), scaled); break;
    case SG_BF16: load_bf16(out, in, count, from_bf16((uint16_t)scalar), scaled); break;
    case SG_F32: load_f32(out, in, count, float_of((uint32_t)scalar), scaled); break;
    case SG_F64: load_f64(out, in, count, double_of(scalar), scaled); break;
    case SG_I8: case SG_U8: load_u8(out, in, count, (uint8_t)scalar, scaled); break;
    case SG_I32: case SG_U32: load_u32(out, in, count, (uint32_t)scalar, scaled); break;
    default: load_u64(out, in, count, scalar, scaled); break;
    }
}

/* ---- join ----------------------------------------------------------------------------------------------------- */
/* Sums and products of integers wrap, so unsigned types serve for signed ones. */
#define JOIN(name, type, expression)                                                                                 \
    static void name(type *restrict left, const type *restrict right, uint64_t count) {                              \
        for (uint64_t i = 0; i < count; i++) {                                                                       \
            type a = left[i], b = right[i];                                                                          \
            left[i] = (type)(expression);                                                                            \
        }                                                                                                            \
    }
#define ADD a + b
#define MULTIPLY a * b
#define LARGER b > a ? b : a
#define SMALLER b < a ? b : a
#define LARGER_FLOAT (b > a) | (b != b) ? b : a /* a NaN on the left stays, because no comparison with it holds */
#define SMALLER_FLOAT (b < a) | (b != b) ? b : a
#define ARITHMETIC(suffix, type) JOIN(sum_##suffix, type, ADD) JOIN(product_##suffix, type, MULTIPLY)
#define ORDER(suffix, type, large, small) JOIN(max_##suffix, type, large) JOIN(min_##suffix, type, small)
ARITHMETIC(u8, uint8_t)
ARITHMETIC(u32, uint32_t)
ARITHMETIC(u64, uint64_t)
ARITHMETIC(f32, float)
ARITHMETIC(f64, double)
ORDER(i8, int8_t, LARGER, SMALLER)
ORDER(u8, uint8_t, LARGER, SMALLER)
ORDER(i32, int32_t, LARGER, SMALLER)
ORDER(u32, uint32_t, LARGER, SMALLER)
ORDER(i64, int64_t, LARGER, SMALLER)
ORDER(u64, uint64_t, LARGER, SMALLER)
ORDER(f32, float, LARGER_FLOAT, SMALLER_FLOAT)
ORDER(f64, double, LARGER_FLOAT, SMALLER_FLOAT)

#define JOINS(arithmetic, order) \
    switch (reduction) { \
    case SG_PROD: product_##arithmetic(left, right, count); break; \
    case SG_MAX: max_##order(left, right, count); break; \
    case SG_MIN: min_##order(left, right, count); break; \
    default: sum_##arithmetic(left, right, count); break; \
    }

void sg_reduce_join(uint32_t accumulator, uint32_t reduction, void *left, const void *right, uint64_t count) {
    switch (accumulator) {
    case SG_I8: JOINS(u8, i8) break;
    case SG_U8: JOINS(u8, u8) break;
    case SG_I32: JOINS(u32, i32) break;
    case SG_U32: JOINS(u32, u32) break;
    case SG_I64: JOINS(u64, i64) break;
    case SG_U64: JOINS(u64, u64) break;
    case SG_F32: JOINS(f32, f32) break;
    default: JOINS(f64, f64) break;
    }
}

/* ---- finish ---------------------------------------------------------------------------------------------------- */
#define DIVIDE(name, type)                                                                        \
    static void divide_##name(type *out, const type *in, uint64_t count, type by) {              \
        for (uint64_t i = 0; i < count; i++) out[i] = (type)(in[i] / by);                         \
    }
DIVIDE(u8, uint8_t)
DIVIDE(u32, uint32_t)
DIVIDE(u64, uint64_t)
DIVIDE(f32, float)
DIVIDE(f64, double)
/* The divisor may be larger than the type's largest value: then every quotient is 0 (-128 / 128 is -1). */
static void divide_i8(int8_t *out, const int8_t *in, uint64_t count, int by) {
    for (uint64_t i = 0; i < count; i++) out[i] = (int8_t)(in[i] / by);
}
static void divide_i32(int32_t *out, const int32_t *in, uint64_t count, int32_t by) {
    for (uint64_t i = 0; i < count; i++) out[i] = in[i] / by;
}
static void divide_i64(int64_t *out, const int64_t *in, uint64_t count, int64_t by) {
    for (uint64_t i = 0; i < count; i++) out[i] = in[i] / by;
}

static void divide(uint32_t dtype, uint32_t ranks, void *out, const void *in, uint64_t count) {
    switch (dtype) {
    case SG_I8: divide_i8(out, in, count, (int)ranks); break;
    case SG_U8:
        if (ranks > UINT8_MAX) memset(out, 0, count);
        else divide_u8(out, in, count, (uint8_t)ranks);
        break;
    case SG_I32: divide_i32(out, in, count, (int32_t)ranks); break;
    case SG_U32: divide_u32(out, in, count, ranks); break;
    case SG_I64: divide_i64(out, in, count, ranks); break;
    case SG_U64: divide_u64(out, in, count, ranks); break;
    case SG_F64: divide_f64(out, in, count, ranks); break;
    default: divide_f32(out, in, count, (float)ranks); break;
    }
}

#define ROUND_PIECE 1024u
static void round_to(uint32_t dtype, uint16_t *out, const float *in, uint64_t count) {
    if (dtype == SG_F16) for (uint64_t i = 0; i < count; i++) out[i] = to_f16(in[i]);
    else for (uint64_t i = 0; i < count; i++) out[i] = to_bf16(in[i]);
}

void sg_reduce_finish(uint32_t dtype, uint32_t reduction, uint32_t ranks, void *out, const void *in, uint64_t count) {
    if (sg_dtype_accumulator(dtype) == dtype) {
        if (reduction == SG_AVG) divide(dtype, ranks, out, in, count);
        else if (out != in) memcpy(out, in, count * sg_dtype_bytes(dtype));
        return;
    }
    float piece[ROUND_PIECE];
    for (uint64_t at = 0; at < count; at += ROUND_PIECE) {
        uint64_t some = count - at < ROUND_PIECE ? count - at : ROUND_PIECE;
        const float *from = (const float *)in + at;
        if (reduction == SG_AVG) divide(SG_F32, ranks, piece, from, some), from = piece;
        round_to(dtype, (uint16_t *)out + at, from, some);
    }
}
