/* The contract between ptx-compile (which makes native objects) and the in-memory device (which runs
 * them).  A change here changes SGF_KERNEL_ABI, which is part of the object cache's key.
 *
 * An object is an x86-64 or aarch64 ELF relocatable file with one global function per kernel and block
 * shape.  Its only undefined symbols are those that the device lists as available (libm, memcpy, memset,
 * and the sgf_rt_* functions below); it has no writable data, no thread-local storage, no constructors.
 *
 *   block mode:  void NAME(struct sgf_env *env, const uint8_t *params)
 *                runs one whole block (all its warps; barriers were removed by fission).
 *   fiber mode:  void NAME(struct sgf_env *env, const uint8_t *params, uint32_t warp)
 *                runs one warp; at a barrier it calls env->barrier, which switches to another warp.
 *
 * `params` holds the kernel's parameters at the offsets of the `param` lines, 16-byte aligned, and is
 * readable 64 bytes past its end.  Addresses in kernels are host virtual addresses; generic = global;
 * the shared and local state spaces are offsets that `cvta` turns into addresses by adding env->shared,
 * env->local (+ the thread's part).
 *
 * Memory checks.  The object checks every access to global or generic memory:
 *   address in [env->lo, env->hi - size]  and aligned  ->  access, else call env->outside(...), which
 * returns when the access is allowed all the same (page-locked window, shared or local memory seen through
 * a generic address) and does not return otherwise.  Inside the window, dead pages raise SIGSEGV, which the
 * device turns into the same error.  Objects must be correct when left at any access: no locks held.
 * Accesses to the shared and local spaces are checked against env->shared_bytes / the local size.
 */
#ifndef SGF_KERNEL_ABI_H
#define SGF_KERNEL_ABI_H

#include <stdint.h>

#define SGF_KERNEL_ABI 2u

enum { SGF_READ = 0, SGF_WRITE = 1, SGF_ATOMIC = 2 };
enum { SGF_FAULT_ADDRESS = 700, SGF_FAULT_MISALIGNED = 716, SGF_FAULT_ASSERT = 710, SGF_FAULT_TRAP = 719,
       SGF_FAULT_INVALID_SPACE = 717, SGF_FAULT_UNSUPPORTED = 801 };

struct sgf_env {                 /* one per block in flight; offsets are fixed: tests check them */
    uint64_t lo, hi;             /*   0: device window of this context's device */
    uint8_t *shared;             /*  16: this block's shared memory, static first, then dynamic; 128-aligned */
    uint64_t shared_bytes;       /*  24 */
    uint8_t *local;              /*  32: local memory of the block's thread 0; thread t at local + t * local_stride */
    uint64_t local_stride;       /*  40 */
    uint8_t *spill;              /*  48: scratch of spill_bytes (block mode) or spill_bytes per warp (fiber mode) */
    const uint64_t *globals;     /*  56: addresses of the module's .global/.const variables, by index */
    uint32_t grid[3];            /*  64: %nctaid */
    uint32_t block[3];           /*  76: %ntid */
    uint32_t ctaid[3];           /*  88 */
    uint32_t dynamic_shared;     /* 100: %dynamic_smem_size */
    /* Not an allowed access, or worth a second look; `lane_mask`-free: one address at a time. */
    void (*outside)(struct sgf_env *env, uint64_t address, uint32_t bytes, uint32_t kind);         /* 104 */
    /* The kernel cannot go on: SGF_FAULT_*, with an address where that makes sense.  Does not return. */
    void (*fault)(struct sgf_env *env, uint32_t what, uint64_t address);                           /* 112 */
    /* Fiber mode: bar.sync/red id with `expected` threads (0: all); `mask` lanes arrive; op 0 sync, 1 arrive, 2 popc, 3 and,
     * 4 or with `predicate` lanes true.  Returns the reduction. */
    uint32_t (*barrier)(struct sgf_env *env, uint32_t warp, uint32_t id, uint32_t expected, uint32_t mask,
                        uint32_t op, uint32_t predicate);                                          /* 120 */
    /* Gives other warps and blocks a chance (spin waits); nanoseconds 0: just yield. */
    void (*pause)(struct sgf_env *env, uint64_t nanoseconds);                                      /* 128 */
    uint64_t (*clock)(struct sgf_env *env, uint32_t which); /* 136: 0 %clock, 1 %clock64, 2 %globaltimer */
    int32_t (*print)(struct sgf_env *env, uint64_t format, uint64_t arguments); /* 144: vprintf */
    uint32_t order_sensitive;    /* 152: blocks run in index order on one thread */
    uint32_t smid;               /* 156 */
    void *device;                /* 160: the device's own */
};

/* ---- what objects call ----------------------------------------------------------------------------
 * A failed check ends in one of these: they look at each lane in `mask`, and return when all is well after all.
 * Lane i accesses `offset` bytes after base + i * stride, or after bases[i]; with SGF_ACCESS_NARROW the sum before the
 * offset is one of 32 bits, extended by its sign.  `access` says what is accessed there, and how many such accesses
 * follow it, equally far apart. */
#define SGF_ACCESS_BYTES 0xffull
#define SGF_ACCESS_KIND_SHIFT 8u /* SGF_READ... */
#define SGF_ACCESS_SPACE 0xc00ull
#define SGF_ACCESS_GLOBAL 0ull
#define SGF_ACCESS_SHARED 0x400ull
#define SGF_ACCESS_LOCAL 0x800ull
#define SGF_ACCESS_NARROW 0x1000ull
#define SGF_ACCESS_MORE_SHIFT 16u  /* 8 bits: how many follow */
#define SGF_ACCESS_STEP_SHIFT 24u  /* 8 bits: their distance, in accesses */
#define SGF_ACCESS_LOCAL_SHIFT 32u /* bytes of local memory that a thread has */
void sgf_rt_look(struct sgf_env *env, uint64_t base, uint32_t mask, int64_t stride, int64_t offset, uint64_t access);
void sgf_rt_look_at_lanes(struct sgf_env *env, const uint64_t *bases, uint32_t mask, int64_t offset, uint64_t access);

/* ---- the compiler as a service ------------------------------------------------------------------
 * `$SINGULARITY_FAKE_PTX_COMPILE` (default: python3 -P -m singularity_backend_fake.ptx) `--serve`, spoken to over its
 * standard input and output; it exits at end of file.  All integers little endian.
 *   request: u32 length of what follows, u32 verb, payload
 *     1 LOAD     payload: PTX text
 *     2 COMPILE  payload: text "MODULE KERNEL x y z options\n"  (x y z: block shape; options: hex flags, 1 = order
 *                sensitive kernels may run in parallel)
 *     3 EXPAND   payload: u32 method (1 zstd, 2 LZ4 block), u32 0, u64 size when expanded, the compressed bytes;
 *                the reply's text is what they hold (PTX), without trailing NULs
 *   reply:   u32 length of what follows, u32 status (0 or a CUresult: 218 invalid PTX, 222 unsupported PTX version,
 *            209 no binary, 500 not found, 801 not supported), text
 * Texts are lines of space-separated words; names are PTX identifiers, so hold no space.
 *   LOAD:    module HEX                      digest of text and versions; names the module in COMPILE
 *            target SM VERSION                e.g. `target 120 8.7`
 *            kernel NAME param_bytes static_shared local_bytes order_sensitive maxntid_x y z reqntid_x y z registers
 *            param OFFSET SIZE                 of the kernel before it, in order
 *            global NAME SPACE SIZE ALIGN INIT in index order; SPACE global|const; INIT hex bytes or `-` (zero)
 *            fixup GLOBAL OFFSET TARGET ADDEND  an 8-byte address of another global inside its initialiser
 *   COMPILE: object PATH                      absolute path in the cache
 *            symbol NAME
 *            mode block|fiber
 *            spill BYTES
 *            shared BYTES / local BYTES       as in LOAD, may have grown for this shape
 *   failure: one line of words: "line 12: opcode `tcgen05.mma` is not supported by the in-memory device"
 */
#endif
