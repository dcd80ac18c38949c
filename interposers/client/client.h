/* Inside the rank's libcuda.so.1: what the generated stubs and the hand-written calls share.
 *
 * A call starts with sg_enter (a context is needed) or sg_enter_bare, checks what can be checked
 * here, and then sends one message.  Locks are leaves: nobody sends while holding one. */
#ifndef SG_CLIENT_H
#define SG_CLIENT_H

#include <stdatomic.h>
#include <stddef.h>
#include <string.h>
#include "../../singularity_core/transport/link.h"
#include "../generated/hooks.h"

#define SG_EXPORT __attribute__((visibility("default")))
#define SG_LIKELY(x) __builtin_expect(!!(x), 1)
#define SG_UNLIKELY(x) __builtin_expect(!!(x), 0)
#define SG_PER_THREAD(stream) ((stream) ? (stream) : CU_STREAM_PER_THREAD)
#define SG_STRING_LIMIT 4096u
#define SG_MAX_ORDINALS 1024 /* as many as a node may have ranks: each has an ordinal of its own, whatever device serves it */

/* What every call reports once the session has died: the documented code for "this device cannot be
 * used now" (decision 0002).  One line on stderr says why. */
#define SG_ERROR_LOST CUDA_ERROR_DEVICE_UNAVAILABLE

enum { SG_COLD = 0, SG_READY = 1, SG_FORKED = 2 };

/* ---- state of the process (state.c) ------------------------------------------------------------- */
struct sg_client {
    _Atomic int state;
    sg_link *_Atomic link;    /* NULL until the first context */
    int ordinal;              /* the one device that is open, or -1 */
    int count;                /* visible devices */
    const struct sg_door *doors[SG_MAX_ORDINALS];
    char *directories[SG_MAX_ORDINALS];
    _Atomic uint32_t epoch;   /* grows when a context ends and after fork: cached contexts are looked at again */
    _Atomic uint32_t captures; /* streams that capture: then launches wait, as they can fail from the call */
    uint64_t pinned_base;     /* of the open session */
};
extern struct sg_client sg_client;

struct sg_thread_rest;
struct sg_thread { /* small: it lives in the static TLS block */
    uint32_t context; /* index part of `current`, checked at `epoch`; 0: look again */
    uint32_t epoch;
    uint64_t current; /* handle; 0: none */
    struct sg_thread_rest *rest;
    uint32_t in_host; /* it calls a host function, which must not use the device: `context` stays 0 */
};
extern __thread struct sg_thread sg_self __attribute__((tls_model("initial-exec")));

CUresult sg_initialise(void);
CUresult sg_open(int ordinal);         /* the session, once */
CUresult sg_enter_slow(void);
CUresult sg_enter_bare(void);          /* initialised, session open or not, no sticky error */
CUresult sg_async_report(void);        /* what failed asynchronously, once unless it is sticky */
CUresult sg_lost(const char *call);    /* the session is dead: says so once, returns SG_ERROR_LOST */
const char *sg_lost_cause(void);       /* why it is */
void sg_say(const char *format, ...) __attribute__((format(printf, 1, 2)));
CUresult sg_declined(const char *call, const char *reason, const char *remedy);
CUresult sg_unknown(const char *call);
CUresult sg_refuse(CUresult error, const char *call, const char *reason, const char *remedy); /* as declined, other code */

/* 0 when this thread has a live context and nothing has failed asynchronously. */
static inline CUresult sg_enter(void)
{
    if (SG_LIKELY(sg_self.context != 0 &&
                  sg_self.epoch == atomic_load_explicit(&sg_client.epoch, memory_order_relaxed)))
        return SG_LIKELY(!sg_link_async_error(atomic_load_explicit(&sg_client.link, memory_order_relaxed))) ? CUDA_SUCCESS : sg_async_report();
    return sg_enter_slow();
}

/* ---- messages ------------------------------------------------------------------------------------ */
static inline void *sg_begin(uint32_t op, uint32_t bytes)
{
    sg_link *link = atomic_load_explicit(&sg_client.link, memory_order_acquire);
    return link ? sg_link_begin(link, op, sg_self.context, bytes) : NULL;
}
static inline void sg_post(void) { sg_link_post(atomic_load_explicit(&sg_client.link, memory_order_relaxed)); }
CUresult sg_call(const char *name, void *reply, uint32_t capacity);
CUresult sg_call_got(const char *name, void *reply, uint32_t capacity, uint32_t *got);
/* One message with its bulk data; `wire` of `bytes` is copied.  `send`: data goes to the proxy. */
CUresult sg_bulk(const char *name, uint32_t op, const void *wire, uint32_t bytes, void *data, uint64_t data_bytes, int send);

/* ---- handles (handles.c) ---------------------------------------------------------------------------- */
uint64_t sg_handle_new(uint32_t kind, uint64_t parent); /* client-chosen; 0: none left */
int sg_handle_note(uint32_t kind, uint64_t handle, uint64_t parent, void *data); /* 0 or -1 (out of memory) */
int sg_handle_known(uint32_t kind, uint64_t handle);
void *sg_handle_data(uint32_t kind, uint64_t handle);   /* NULL: unknown, or without data */
uint64_t sg_handle_parent(uint64_t handle);
void sg_handle_forget(uint32_t kind, uint64_t handle);  /* and what hangs on it */
#define SG_VALUE(handle) ((uint64_t)(uintptr_t)(handle))

/* ---- contexts (context.c) ----------------------------------------------------------------------------- */
struct sg_context {
    uint64_t handle;
    uint64_t id;
    unsigned flags, version;
    int ordinal, primary;
    CUfunc_cache cache;
};
struct sg_context *sg_context_current(void); /* NULL: none */
void sg_thread_refresh(void);                /* context word of sg_self from its stack */
/* The stream's wire value: 0, 1, or a live handle; per-thread streams are made on first use. */
CUresult sg_stream_wire(CUstream stream, uint64_t *wire);
int sg_visible(CUdevice device);
const struct sg_device_info *sg_device(CUdevice device); /* of a visible device */

/* ---- memory (ranges.c, memory.c, host_memory.c) -------------------------------------------------------- */
enum sg_range_kind { SG_RANGE_NONE = 0, SG_RANGE_DEVICE, SG_RANGE_GLOBAL, SG_RANGE_PINNED };
struct sg_range {
    uint64_t base, bytes, id, owner; /* owner: module of a global, context of an allocation */
    enum sg_range_kind kind;
    unsigned flags;
};
int sg_range_add(const struct sg_range *range);       /* 0, or -1: out of memory */
int sg_range_find(uint64_t address, struct sg_range *out); /* 1: found */
int sg_range_take(uint64_t base, enum sg_range_kind kind, struct sg_range *out); /* 1: was there, is removed */
int sg_range_take_of(uint64_t owner, enum sg_range_kind kind, struct sg_range *out); /* any one of the owner's */
void sg_range_drop_globals(uint64_t handle); /* of a module or library */
uint64_t sg_range_next_id(void);
CUresult sg_memory_release(const char *call, const struct sg_range *range); /* of device memory that was taken */
void sg_pinned_release(const struct sg_range *range);                       /* of page-locked memory, likewise */
/* pool.c: what a pool holds; `pool` as in the flags of a range of device memory: its index + 1, 0: no pool's. */
unsigned sg_pool_current(void);
unsigned sg_pool_find(CUmemoryPool pool);
void sg_pool_count(unsigned pool, int64_t bytes);
CUmemoryPool sg_pool_handle(unsigned pool);
/* 1 when [address, address + bytes) lies in one known range. */
int sg_range_covers(uint64_t address, uint64_t bytes);
static inline int sg_is_pinned(uint64_t address)
{
    return sg_client.pinned_base != 0 && address - sg_client.pinned_base < SG_PINNED_WINDOW;
}
static inline int sg_is_device(uint64_t address) { return address - SG_DEVICE_BASE < SG_DEVICE_WINDOW; }

/* ---- functions (function.c) ------------------------------------------------------------------------------- */
#define SG_FUNCTION_ATTRIBUTES 16
struct sg_param { uint16_t offset, size; };
#define SG_ACCEPTED_SHAPES 4
struct sg_function {
    uint64_t handle, module, library; /* library: of a kernel */
    uint32_t param_count, param_bytes;
    int opaque; /* layout unknown (an image without code for this device): launches wait for the driver's word */
    _Atomic int32_t attributes[SG_FUNCTION_ATTRIBUTES];
    _Atomic uint64_t accepted[SG_ACCEPTED_SHAPES]; /* block shapes that the driver has launched before */
    struct sg_param *params;
    char *name;
};
struct sg_function *sg_function_find(CUfunction function); /* CUfunction or CUkernel; NULL: unknown */
CUresult sg_function_check(const struct sg_function *f, const uint32_t grid[3], const uint32_t block[3], uint32_t shared);
struct sg_packed { uint32_t bytes; const void *ready; void **each; }; /* parameters: packed already, or one by one */
CUresult sg_params_find(const struct sg_function *f, void **params, void **extra, struct sg_packed *out);
void sg_params_copy(const struct sg_function *f, const struct sg_packed *packed, void *to);

#endif
