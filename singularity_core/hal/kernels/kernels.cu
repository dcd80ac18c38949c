// Device code of the HAL over the driver ABI: tree reductions and the content digest (digest.h).
//
// Written so that the result is the same bits on every device: no fused multiply-add (--fmad=false), no atomics, and an
// order of operations that does not depend on the grid.  build.py compiles it once per element type into the committed
// .ptx files, restricted to what every target since sm_75 has: bfloat16 is converted with integers for that reason.
// Compiled with -DELEMENT_<TYPE>; without one, the digest.

typedef unsigned long long u64;
typedef unsigned int u32;

#if defined(ELEMENT_F16)
typedef unsigned short element;
typedef float sum_type;
static __device__ __forceinline__ sum_type widen(element x) {
    float wide;
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(x));
    return wide;
}
static __device__ __forceinline__ element narrow(sum_type x) {
    element small;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(small) : "f"(x));
    return small;
}
#elif defined(ELEMENT_BF16)
typedef unsigned short element;
typedef float sum_type;
static __device__ __forceinline__ sum_type widen(element x) { return __uint_as_float((u32)x << 16); }
static __device__ __forceinline__ element narrow(sum_type x) {
    u32 bits = __float_as_uint(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (element)(bits >> 16 | 0x40u);  // stays a NaN
    return (element)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}
#elif defined(ELEMENT_TYPE)
typedef ELEMENT_TYPE element;
typedef SUM_TYPE sum_type;
static __device__ __forceinline__ sum_type widen(element x) { return (sum_type)x; }
static __device__ __forceinline__ element narrow(sum_type x) { return (element)x; }
#endif

#if defined(ELEMENT_F16) || defined(ELEMENT_BF16) || defined(ELEMENT_TYPE)

// NaN on either side wins; of equal numbers the second (so of +0 and -0 the one that comes later in the tree).
struct Sum { static __device__ __forceinline__ sum_type join(sum_type a, sum_type b) { return a + b; } };
struct Product { static __device__ __forceinline__ sum_type join(sum_type a, sum_type b) { return a * b; } };
struct Min {
    static __device__ __forceinline__ sum_type join(sum_type a, sum_type b) { return a < b || a != a ? a : b; }
};
struct Max {
    static __device__ __forceinline__ sum_type join(sum_type a, sum_type b) { return a > b || a != a ? a : b; }
};

// The tree over leaves 0..n-1 as a binary counter: partial k holds a complete subtree of 2^k leaves.  Named variables
// instead of an array, so that they stay in registers.
template <class Op>
static __device__ __forceinline__ sum_type tree(const char *leaf, u64 stride, u32 leaves, sum_type premultiply) {
    sum_type p0 = 0, p1 = 0, p2 = 0, p3 = 0, p4 = 0, p5 = 0, x = 0;
#pragma unroll 1
    for (u32 k = 0; k < leaves; k++, leaf += stride) {
        x = widen(*(const element *)leaf);
#ifdef FLOATING
        if (premultiply != (sum_type)1) x = x * premultiply;
#endif
        if (!(k & 1)) { p0 = x; continue; }
        x = Op::join(p0, x);
        if (!(k & 2)) { p1 = x; continue; }
        x = Op::join(p1, x);
        if (!(k & 4)) { p2 = x; continue; }
        x = Op::join(p2, x);
        if (!(k & 8)) { p3 = x; continue; }
        x = Op::join(p3, x);
        if (!(k & 16)) { p4 = x; continue; }
        x = Op::join(p4, x);
        if (!(k & 32)) { p5 = x; continue; }
        x = Op::join(p5, x);  // 64 leaves: complete
    }
    // What is left are subtrees of falling size; the smaller ones are joined first, as the right child.
    bool some = leaves == 64;
#define FOLD(bit, partial)                            \
    if (leaves & bit) {                               \
        x = some ? Op::join(partial, x) : partial;    \
        some = true;                                  \
    }
    FOLD(1, p0) FOLD(2, p1) FOLD(4, p2) FOLD(8, p3) FOLD(16, p4) FOLD(32, p5)
    return x;
}

template <class Op>
static __device__ __forceinline__ void reduce(u64 dst, u64 leaf, u64 stride, u64 count, u32 leaves,
                                              sum_type premultiply, sum_type divisor) {
    u64 step = (u64)gridDim.x * blockDim.x;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
        sum_type x = tree<Op>((const char *)leaf + i * sizeof(element), stride, leaves, premultiply);
#ifdef FLOATING
        if (divisor != (sum_type)1) x = x / divisor;
#endif
        ((element *)dst)[i] = narrow(x);
    }
}

#define KERNEL(name, Op)                                                                                        \
    extern "C" __global__ void sg_reduce_##name(u64 dst, u64 leaf, u64 stride, u64 count, u32 leaves,           \
                                                sum_type premultiply, sum_type divisor) {                       \
        reduce<Op>(dst, leaf, stride, count, leaves, premultiply, divisor);                                     \
    }
KERNEL(sum, Sum)
KERNEL(product, Product)
KERNEL(min, Min)
KERNEL(max, Max)

#else

static __device__ __forceinline__ u64 mix(u64 x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

// partials[2t], partials[2t + 1]: what thread t of the whole grid contributes.
extern "C" __global__ void sg_digest_words(u64 content, u64 words, u64 partials) {
    const u64 *word = (const u64 *)content;
    u64 thread = (u64)blockIdx.x * blockDim.x + threadIdx.x, step = (u64)gridDim.x * blockDim.x, a = 0, b = 0;
    for (u64 i = thread; i < words; i += step) {
        u64 w = word[i], position = i + 1;
        a += mix(w + position * 0x9e3779b97f4a7c15ull);
        b += mix((w << 32 | w >> 32) ^ (position * 0xd1b54a32d192ed03ull));
    }
    ((u64 *)partials)[2 * thread] = a;
    ((u64 *)partials)[2 * thread + 1] = b;
}

// One block: thread t adds pairs t, t + blockDim.x ... and writes pair t of `result`.
extern "C" __global__ void sg_digest_fold(u64 partials, u64 pairs, u64 result) {
    const u64 *in = (const u64 *)partials;
    u64 a = 0, b = 0;
    for (u64 i = threadIdx.x; i < pairs; i += blockDim.x) {
        a += in[2 * i];
        b += in[2 * i + 1];
    }
    ((u64 *)result)[2 * threadIdx.x] = a;
    ((u64 *)result)[2 * threadIdx.x + 1] = b;
}

#endif
