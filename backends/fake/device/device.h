/* What the files of the in-memory device share.
 *
 * Objects that have a CUDA handle live in type-stable slabs (handles.c): a handle is checked by arithmetic and one
 * load, a stale or invented one is refused instead of followed, and a reader that lost a race with a destroy still
 * reads an object of the right type.  Nothing is torn down at process exit: work may be in flight then.
 *
 * Locks, outermost first: context->lock, stream->lock, capture (graph_lock), zone->lock.  No lock is held while
 * generated code, a host callback or a wait runs.
 */
#ifndef SGF_DEVICE_H
#define SGF_DEVICE_H

#ifndef __CUDA_API_VERSION_INTERNAL
#define __CUDA_API_VERSION_INTERNAL
#endif
#pragma GCC visibility push(default)
#include <cuda.h>
#pragma GCC visibility pop

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../../../singularity_core/hal/native.h"
#include "../../../singularity_core/transport/layout.h"
#include "kernel_abi.h"

#define SGF_EXPORT __attribute__((visibility("default")))
#define SGF_LIKELY(x) __builtin_expect(!!(x), 1)
#define SGF_UNLIKELY(x) __builtin_expect(!!(x), 0)
#define SGF_MAX_DEVICES 8
#define SGF_PAGE 4096u
#define SGF_UNIT 512u /* granularity that cuMemAlloc promises and the HAL's ranges use */
#ifndef SGF_HEAP_OFFSET /* the window's low part is for HAL arenas, the rest is cuMemAlloc's */
#define SGF_HEAP_OFFSET (SG_DEVICE_WINDOW / 2)
#endif
#ifndef SGF_PINNED_ZONE /* address space for cuMemHostAlloc */
#define SGF_PINNED_ZONE (1ull << 36)
#endif

#define SGF_WARP 32u
#define SGF_MULTIPROCESSORS 16
#define SGF_MAX_THREADS 1024
#define SGF_THREADS_PER_SM 1536
#define SGF_BLOCKS_PER_SM 24
#define SGF_SHARED_DEFAULT 49152
#define SGF_SHARED_OPTIN 101376
#define SGF_SHARED_PER_SM 102400
#define SGF_SHARED_RESERVED 1024
#define SGF_REGISTERS 65536
#define SGF_MAX_PARAM_BYTES 32764u

/* ---- handles.c: type-stable slabs -------------------------------------------------------------- */
enum sgf_kind { SGF_CONTEXT, SGF_STREAM, SGF_EVENT, SGF_MODULE, SGF_FUNCTION, SGF_LIBRARY, SGF_GRAPH, SGF_NODE,
                SGF_GRAPH_EXEC, SGF_POOL, SGF_GATE, SGF_KINDS };
struct sgf_object {
    _Atomic uint32_t live; /* 1 + kind while it exists */
    uint32_t index, next_free;
};
void *sgf_new(enum sgf_kind kind); /* zeroed except for what survives reuse; NULL: table full */
void sgf_delete(void *object);
bool sgf_valid(enum sgf_kind kind, const void *handle);
uint32_t sgf_slots(enum sgf_kind kind);              /* how many slots were ever used */
void *sgf_slot(enum sgf_kind kind, uint32_t index);  /* the live object there, or NULL */

/* ---- memory_zone.c ------------------------------------------------------------------------------ */
struct sgf_zone;
struct sgf_extent { uint64_t base, bytes; uint32_t owner, flags; uint64_t id; struct CUmemPoolHandle_st *pool; };
/* [base, base + span) must be reserved PROT_NONE; at most `capacity` bytes are live at once. */
struct sgf_zone *sgf_zone_create(uint64_t base, uint64_t span, uint64_t capacity);
CUresult sgf_zone_alloc(struct sgf_zone *z, uint64_t bytes, uint32_t owner, uint32_t flags, uint64_t *address);
CUresult sgf_zone_free(struct sgf_zone *z, uint64_t address);
bool sgf_zone_find(struct sgf_zone *z, uint64_t address, struct sgf_extent *out);
void sgf_zone_set_pool(struct sgf_zone *z, uint64_t address, struct CUmemPoolHandle_st *pool);
void sgf_pool_returned(struct CUmemPoolHandle_st *pool_or_null, uint64_t bytes); /* pools.c: counts them down */
void sgf_zone_free_owned(struct sgf_zone *z, uint32_t owner);
void sgf_zone_info(struct sgf_zone *z, uint64_t *used, uint64_t *capacity);
CUresult sgf_zone_charge(struct sgf_zone *z, uint64_t bytes); /* capacity used up outside the zone (arena) */
void sgf_zone_uncharge(struct sgf_zone *z, uint64_t bytes);
uint64_t sgf_reserve(uint64_t address, uint64_t bytes); /* PROT_NONE; 0 when it cannot be had */

/* ---- device ------------------------------------------------------------------------------------- */
struct sgf_arena { /* hal.c: one HAL arena per device, liveness in units of 512 bytes */
    pthread_mutex_t lock;
    _Atomic uint64_t base, bytes;
    int file;      /* without a name; its content is the arena's */
    uint8_t *live; /* one byte per page, one bit per unit */
};
struct sgf_device {
    int ordinal;
    uint64_t lo, hi; /* the device window */
    struct sgf_zone *heap;
    struct sgf_arena arena;
    pthread_mutex_t lock;
    struct CUctx_st *primary;
    unsigned primary_count, primary_flags;
    struct CUmemPoolHandle_st *default_pool, *current_pool;
    struct sg_hal_table hal;
    _Atomic uint64_t direct_begun, direct_done; /* copies that calling threads make themselves */
    pthread_mutex_t kernels;                    /* held by a running kernel when they are `exclusive` */
};
struct sgf_globals {
    _Atomic int state; /* SGF_COLD.. */
    _Atomic bool injecting;
    int device_count, threads;
    bool parallel_atomics, exclusive;
    uint64_t memory;
    struct sgf_device devices[SGF_MAX_DEVICES];
    struct sgf_zone *pinned;
    uint64_t pinned_lo, pinned_hi;
};
enum { SGF_COLD = 0, SGF_READY = 1, SGF_FORKED = 2 };
extern struct sgf_globals sgf;
CUresult sgf_initialise(void);
static inline CUresult sgf_device_at(CUdevice ordinal, struct sgf_device **out)
{
    if (ordinal < 0 || ordinal >= sgf.device_count)
        return CUDA_ERROR_INVALID_DEVICE;
    *out = &sgf.devices[ordinal];
    return CUDA_SUCCESS;
}
struct sgf_device *sgf_device_of(uint64_t address); /* NULL: in no device window */
CUresult sgf_injected(const char *function);
bool sgf_injected_kernel(CUresult *result);
void sgf_once(const char *function); /* says once on stderr that `function` is not supported */
CUresult sgf_unsupported(const char *function);
void sgf_say(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* ---- context ------------------------------------------------------------------------------------ */
struct CUctx_st {
    struct sgf_object object;
    _Atomic int32_t error; /* sticky */
    _Atomic bool ending;
    _Atomic bool abandoned; /* its kernels are to stop: they had their time after its end */
    uint32_t id;
    struct sgf_device *device;
    unsigned flags, version;
    bool primary;
    _Atomic uint32_t peers; /* bit per ordinal whose memory kernels may use */
    pthread_mutex_t lock;
    struct CUstream_st *streams;
    struct CUstream_st *_Atomic legacy;
    _Atomic uint32_t blocking_streams;
    struct CUmod_st *modules;
    size_t limits[16];
    CUfunc_cache cache_config;
    CUsharedconfig shared_config;
};
struct sgf_thread {
    struct CUctx_st *stack[64];
    uint32_t depth;
    bool per_thread_default; /* inside a _ptsz/_ptds call */
    bool in_callback;
    CUstreamCaptureMode capture_mode;
    bool capture_mode_set;
    struct sgf_own_stream *own_streams;
};
struct sgf_thread *sgf_thread_slow(void);
extern __thread struct sgf_thread *sgf_thread_here __attribute__((tls_model("initial-exec")));
static inline struct sgf_thread *sgf_thread(void)
{
    return SGF_LIKELY(sgf_thread_here != NULL) ? sgf_thread_here : sgf_thread_slow();
}
CUresult sgf_not_ready(void);
static inline CUresult sgf_enter(const char *function)
{
    if (SGF_UNLIKELY(atomic_load_explicit(&sgf.state, memory_order_acquire) != SGF_READY))
        return sgf_not_ready();
    if (SGF_UNLIKELY(atomic_load_explicit(&sgf.injecting, memory_order_relaxed)))
        return sgf_injected(function);
    return CUDA_SUCCESS;
}
CUresult sgf_enter_context(const char *function, struct CUctx_st **out);
CUresult sgf_context_check(struct CUctx_st *context); /* live, and its sticky error */
void sgf_context_fail(struct CUctx_st *context, CUresult error);
CUresult sgf_context_new(struct sgf_device *device, unsigned flags, unsigned version, bool primary, CUcontext *out);
/* Waits for the context's work, except what is behind closed gates, then frees everything that belongs to it. */
void sgf_context_end(struct CUctx_st *context);
CUresult sgf_context_drain(struct CUctx_st *context);
/* Waits for streams that were destroyed with work left, too; false when `nanoseconds` (0: for ever) were too few. */
bool sgf_context_outwait(const struct CUctx_st *context, uint64_t nanoseconds);
bool sgf_context_idle(const struct CUctx_st *context);
void sgf_device_drain(struct sgf_device *device);
void sgf_own_streams_forget(struct CUctx_st *context);
#define SGF_ENTER() \
    do { CUresult entered_ = sgf_enter(__func__); if (SGF_UNLIKELY(entered_ != 0)) return entered_; } while (0)
#define SGF_ENTER_DEVICE(name, ordinal) \
    SGF_ENTER(); \
    struct sgf_device *name; \
    do { CUresult found_ = sgf_device_at(ordinal, &name); if (found_ != CUDA_SUCCESS) return found_; } while (0)
#define SGF_ENTER_CONTEXT(name) \
    struct CUctx_st *name; \
    do { CUresult entered_ = sgf_enter_context(__func__, &name); if (SGF_UNLIKELY(entered_ != 0)) return entered_; } while (0)

/* ---- work: what a stream does --------------------------------------------------------------------- */
enum sgf_work_kind { SGF_WORK_KERNEL, SGF_WORK_COPY, SGF_WORK_FILL, SGF_WORK_HOST, SGF_WORK_CALLBACK, SGF_WORK_RECORD,
                     SGF_WORK_WAIT, SGF_WORK_FREE, SGF_WORK_PLAN, SGF_WORK_EMPTY, SGF_WORK_TOLD_COPY, SGF_WORK_GATE };
struct sgf_copy { /* rows x slices; pitch 0 for a plain copy */
    uint64_t dst, src, width, rows, slices;
    uint64_t dst_pitch, src_pitch, dst_slice, src_slice;
};
struct sgf_fill { uint64_t dst, pitch, width, rows; uint32_t value, element; };
struct sgf_launch {
    struct CUfunc_st *function;
    const struct sgf_variant *variant;
    const uint64_t *globals;
    uint32_t grid[3], block[3], dynamic_shared;
    uint32_t param_bytes;
    bool cooperative;
};
struct sgf_work {
    struct sgf_work *next;
    uint64_t seq;
    uint32_t kind;
    uint32_t references; /* of graph plans; 0: belongs to one stream */
    struct CUctx_st *context;
    union {
        struct sgf_launch launch;
        struct sgf_copy copy;
        struct sgf_fill fill;
        struct { CUhostFn fn; void *user; } host;
        struct { CUstreamCallback fn; void *user; CUstream said; } callback;
        struct { struct CUevent_st *event; uint64_t record; } record;
        struct { struct CUstream_st *stream; uint64_t seq; struct CUevent_st *event; } wait;
        struct { uint64_t address; struct sgf_zone *zone; } release;
        struct { struct sgf_plan *plan; uint32_t from, to; } part;
        struct { struct sgf_copy copy; CUresult *told; } told_copy; /* its failure is the caller's, not the context's */
        struct { struct sgf_gate *gate; uint64_t number; } gate;
    } u;
    _Alignas(16) uint8_t tail[]; /* kernel parameters, or staged bytes of a pageable copy */
};
struct sgf_work *sgf_work_new(enum sgf_work_kind kind, struct CUctx_st *context, size_t tail);
void sgf_work_free(struct sgf_work *work);
CUresult sgf_work_run(struct sgf_work *work, struct CUstream_st *stream);
CUresult sgf_copy_run(const struct sgf_copy *copy);
CUresult sgf_fill_run(const struct sgf_fill *fill);

/* ---- stream.c -------------------------------------------------------------------------------------- */
struct CUstream_st {
    struct sgf_object object;
    /* Survive reuse of the slot, so that a (stream, seq) pair never comes true too early. */
    _Atomic uint64_t submitted;
    _Atomic uint64_t completed;
    _Atomic uint32_t waiters;
    _Atomic uint32_t ordinal;          /* of its device */
    _Atomic(struct CUctx_st *) home;   /* its context */
    _Atomic uint64_t phase;            /* settle.c: changes << 2 | enum sgf_phase; written by its own thread */
    _Atomic(struct sgf_gate *) gate;   /* what it is parked at, or behind, and the point there */
    _Atomic(struct CUstream_st *) ahead;
    _Atomic uint64_t point;
    _Atomic(struct sgf_gate *) queued_gate; /* when the queue begins with a wait at a gate: it, and the work's number */
    _Atomic uint64_t queued_point, queued_seq;
    /* Zeroed by sgf_new from here on. */
    _Atomic uint32_t sleeping;
    pthread_mutex_t lock;
    struct sgf_work *head, *tail;
    struct CUctx_st *context;
    unsigned flags;
    int priority;
    uint64_t id, legacy_seen;
    bool threaded, legacy, per_thread;
    _Atomic bool destroyed;
    struct sgf_capture *_Atomic capture;
    struct CUgraphNode_st **tips; /* while it captures: what its next node needs */
    uint32_t tip_count;
    struct CUstream_st *next, *previous;
};
struct CUstream_st *sgf_stream_new(struct CUctx_st *context, unsigned flags, int priority);
void sgf_stream_release(struct CUstream_st *stream); /* ends after its work, returns at once */
/* The stream behind a handle (0, 1, 2 included) in `context`; CUDA_ERROR_INVALID_HANDLE. */
CUresult sgf_stream_resolve(struct CUctx_st *context, CUstream handle, struct CUstream_st **out);
/* Takes `work`; orders it after what default-stream semantics ask for. */
CUresult sgf_stream_submit(struct CUstream_st *stream, struct sgf_work *work, uint64_t *seq_or_null);
bool sgf_stream_idle(struct CUstream_st *stream); /* including what default-stream semantics make it wait for */
/* Waits for its work and for what new work in it would have to wait for. */
void sgf_stream_quiet(struct CUstream_st *stream);
void sgf_wait_seq(struct CUstream_st *stream, uint64_t seq);
static inline bool sgf_seq_done(struct CUstream_st *stream, uint64_t seq)
{
    return atomic_load_explicit(&stream->completed, memory_order_acquire) >= seq;
}
void sgf_futex_wait(_Atomic uint32_t *word, uint32_t value, uint64_t nanoseconds);
void sgf_futex_wake(_Atomic uint32_t *word, int count);
uint64_t sgf_now(void); /* CLOCK_MONOTONIC, ns */

/* ---- gate.c ------------------------------------------------------------------------------------------ */
struct sgf_gate { /* a slot is used again and again; (slot, number) is one gate, as (stream, seq) is one point */
    struct sgf_object object;
    _Atomic uint64_t number, opened;
    _Atomic uint32_t bell, waiters;
    bool dropped; /* guarded by gate.c's lock */
};
static inline bool sgf_gate_is_open(struct sgf_gate *gate, uint64_t number)
{
    return atomic_load(&gate->opened) >= number;
}
int32_t sgf_gate_make(void *state, uint64_t *gate); /* these four: see native.h */
int32_t sgf_gate_wait(void *state, uint64_t gate, void *stream);
int32_t sgf_gate_open(void *state, uint64_t gate);
int32_t sgf_gate_drop(void *state, uint64_t gate);
/* What a stream's thread does at a gate.  CUDA_ERROR_CONTEXT_IS_DESTROYED when the context ends first. */
CUresult sgf_gate_pass(struct CUstream_st *stream, struct sgf_gate *gate, uint64_t number);
/* Lets streams of `context` go that wait at gates: it failed or ends, so what follows does not run. */
void sgf_gates_release(struct CUctx_st *context);
/* Waits for all work of the device but host functions, and fails contexts that wait at gates: their memory goes. */
void sgf_gates_void(struct sgf_device *device);

/* ---- settle.c ---------------------------------------------------------------------------------------- */
enum sgf_phase { SGF_MOVING, SGF_AT_GATE, SGF_IN_HOST, SGF_BEHIND };
/* `ahead` is set, or `gate`: in a host function, the one that is known to follow, or NULL. */
void sgf_park(struct CUstream_st *stream, enum sgf_phase phase, uint64_t point);
void sgf_unpark(struct CUstream_st *stream);
extern _Atomic uint32_t sgf_settlers;
void sgf_settle_ring(void);
static inline void sgf_came_to_rest(void) /* call after what rests was stored */
{
    if (SGF_UNLIKELY(atomic_load(&sgf_settlers) != 0))
        sgf_settle_ring();
}
int32_t sgf_settle(void *state, uint64_t timeout_ns);

/* ---- event.c ----------------------------------------------------------------------------------------- */
struct CUevent_st {
    struct sgf_object object;
    pthread_mutex_t lock;
    uint64_t record; /* grows with every record, survives reuse of the slot */
    /* Zeroed by sgf_new from here on. */
    struct CUctx_st *context;
    unsigned flags;
    struct CUstream_st *stream; /* last record; NULL: never recorded */
    uint64_t seq, stamp;
    bool stamped;
    uint64_t capture_id; /* of the capture whose nodes follow; 0: none */
    struct CUgraphNode_st **nodes;
    uint32_t node_count;
};
void sgf_event_stamp(struct CUevent_st *event, uint64_t record);
/* A record that graph launch `seq` of `stream` will make; returns its number. */
uint64_t sgf_event_promise(struct CUevent_st *event, struct CUstream_st *stream);
void sgf_event_promised(struct CUevent_st *event, uint64_t record, struct CUstream_st *stream, uint64_t seq);
/* What a wait on `event` waits for now; false: nothing. */
bool sgf_event_point(struct CUevent_st *event, struct CUstream_st **stream, uint64_t *seq);

/* ---- images, modules, functions ----------------------------------------------------------------------- */
struct sgf_variant { /* one kernel compiled for one block shape; never freed while its image lives */
    struct sgf_variant *next;
    uint32_t block[3], options;
    void *entry;
    bool fibers;
    uint32_t spill, shared, local;
    struct sgf_loaded *object;
    _Atomic uint64_t block_ns; /* running mean, decides whether the pool is worth waking */
};
struct sgf_param { uint32_t offset, size; };
struct sgf_kernel {
    char *name;
    uint32_t param_bytes, shared, local, maxntid[3], reqntid[3], registers, param_count;
    bool order_sensitive;
    struct sgf_param *params;
    struct sgf_variant *_Atomic variants;
};
struct sgf_global { char *name; bool constant; uint64_t bytes, align; uint8_t *init; };
struct sgf_fixup { uint32_t global, target; uint64_t offset, addend; };
struct sgf_image {
    _Atomic uint32_t references;
    bool binary_only; /* holds no PTX: loads, its kernels cannot run */
    char *text;       /* PTX, kept for a compile service that was started again */
    size_t text_bytes;
    char key[130];
    uint32_t service; /* generation of the service that knows `key` */
    int target, version; /* 120, 87 */
    uint32_t kernel_count, global_count, fixup_count;
    struct sgf_kernel *kernels;
    struct sgf_global *globals;
    struct sgf_fixup *fixups;
    pthread_mutex_t lock; /* variants, service */
};
#define SGF_REASON_BYTES 2048
/* On failure `reason` says why, "" where the error's name says all there is to say. */
CUresult sgf_image_load(const void *data, char reason[SGF_REASON_BYTES], struct sgf_image **out);
/* jit_log.c: fills the log buffers among a load's options. */
void sgf_jit_log(unsigned count, const CUjit_option *options, void **values, const char *error);
void sgf_image_release(struct sgf_image *image);
CUresult sgf_image_parse(struct sgf_image *image, char *reply); /* the LOAD reply */
CUresult sgf_image_variant(struct sgf_image *image, struct sgf_kernel *kernel, const uint32_t block[3],
                           const struct sgf_variant **out);
/* fatbin.c: PTX text inside a fatbin, malloc'ed; *text NULL when there is none. */
CUresult sgf_fatbin_ptx(const void *data, char **text, size_t *bytes);
bool sgf_fatbin_is(const void *data);

struct CUfunc_st { /* CUfunction, and CUkernel (context NULL) */
    struct sgf_object object;
    struct CUmod_st *module;  /* of a CUfunction */
    struct CUlib_st *library; /* of a CUkernel */
    struct sgf_image *image;
    struct sgf_kernel *kernel; /* NULL: image without PTX */
    char *name;
    struct CUfunc_st *next;
    int dynamic_limit, carveout;
    CUfunc_cache cache_config;
};
struct CUmod_st {
    struct sgf_object object;
    struct CUctx_st *context;
    struct CUlib_st *library;
    struct sgf_image *image;
    uint64_t *globals; /* addresses, by index */
    struct CUfunc_st *functions;
    pthread_mutex_t lock;
    struct CUmod_st *next;
};
struct CUlib_st {
    struct sgf_object object;
    struct sgf_image *image;
    pthread_mutex_t lock;
    struct CUfunc_st *kernels;
    struct CUmod_st *modules[64];
    uint32_t module_count;
};
CUresult sgf_module_create(struct CUctx_st *context, struct sgf_image *image, struct CUlib_st *library, CUmodule *out);
void sgf_module_destroy(struct CUmod_st *module);
CUresult sgf_module_function(struct CUmod_st *module, const char *name, CUfunction *out);
CUresult sgf_library_module(struct CUlib_st *library, struct CUctx_st *context, CUmodule *out);
/* A CUfunction of `context` from a CUfunction or CUkernel. */
CUresult sgf_function_in(struct CUctx_st *context, CUfunction handle, struct CUfunc_st **out);
int sgf_occupancy(const struct CUfunc_st *function, uint32_t threads, size_t dynamic_shared);

/* ---- compile_service.c, elf_loader.c -------------------------------------------------------------------- */
/* One request; the answer's text is malloc'ed and NUL-terminated.  *generation names the process that answered. */
CUresult sgf_service_ask(uint32_t verb, const void *payload, size_t bytes, char **answer, uint32_t *generation);
uint32_t sgf_service_generation(void);
struct sgf_loaded;
CUresult sgf_object_load(const char *path, const char *symbol, struct sgf_loaded **object, void **entry);
void sgf_object_release(struct sgf_loaded *object);

/* ---- launch.c, execute.c, fiber.c, fault.c ----------------------------------------------------------------- */
struct sgf_launch_request {
    CUfunction function;
    uint32_t grid[3], block[3], shared;
    void **params, **extra;
    bool cooperative;
};
/* Checks a launch and makes its work (context, variant and parameters filled in). */
CUresult sgf_launch_prepare(struct CUctx_st *context, const struct sgf_launch_request *request, struct sgf_work **out);
CUresult sgf_kernel_run(const struct sgf_launch *launch, const uint8_t *params, struct CUctx_st *context);
CUresult sgf_guarded_copy(void *dst, const void *src, size_t bytes); /* CUDA_ERROR_ILLEGAL_ADDRESS on dead pages */
CUresult sgf_guarded_fill(void *dst, uint32_t value, uint32_t element, uint64_t count);
void sgf_fault_install(void);
void sgf_fault_thread(void); /* alternate stack for this thread */
extern __thread void *volatile sgf_guard_here __attribute__((tls_model("initial-exec")));
_Noreturn void sgf_leave_kernel(CUresult error, uint64_t address); /* from generated code, or its signal handler */
bool sgf_in_kernel(void);
bool sgf_host_registered(uint64_t address, uint64_t bytes);
CUresult sgf_host_register(uint64_t host, uint64_t bytes);
CUresult sgf_host_unregister(uint64_t host);

struct sgf_fiber_context { void *sp; void *sanitizer; const void *stack; size_t stack_bytes; };
void *sgf_stack_new(size_t bytes);
void sgf_stack_free(void *stack, size_t bytes);
void sgf_stack_clean(void *stack, size_t bytes);
void sgf_fiber_make(struct sgf_fiber_context *fiber, void *stack, size_t bytes, void (*entry)(void *), void *argument);
void sgf_fiber_entered(void); /* first thing that a new fiber does */
void sgf_fiber_switch(struct sgf_fiber_context *from, struct sgf_fiber_context *to);
void sgf_fiber_adopt(struct sgf_fiber_context *thread); /* the calling thread's own stack, as a switch target */
void sgf_fiber_end(struct sgf_fiber_context *fiber);    /* never resumed again */

/* ---- graphs -------------------------------------------------------------------------------------------------- */
struct sgf_plan { _Atomic uint32_t references; uint32_t count; struct sgf_work *work[]; }; /* NULL: event node, see graph_exec.c */
void sgf_plan_release(struct sgf_plan *plan);
/* During capture: takes `work` into the stream's graph.  False when the stream does not capture. */
bool sgf_capture_work(struct CUstream_st *stream, struct sgf_work *work, CUresult *result);
CUresult sgf_capture_record(struct CUstream_st *stream, CUevent event);
bool sgf_capture_wait(struct CUstream_st *stream, CUevent event, CUresult *result);
CUresult sgf_capture_forbids(struct CUctx_st *context, struct CUstream_st *stream); /* 0, or what a sync returns */
CUresult sgf_capture_unsafe(void); /* for calls that a global-mode capture of this process forbids */
void sgf_capture_abandon(struct CUstream_st *stream);

/* ---- copies ----------------------------------------------------------------------------------------------------- */
/* Where an address range lies; live ranges only. */
enum sgf_place { SGF_NOWHERE, SGF_ON_DEVICE, SGF_PINNED };
enum sgf_place sgf_place_of(uint64_t address, uint64_t bytes);
bool sgf_arena_live(struct sgf_device *device, uint64_t address, uint64_t bytes);
CUresult sgf_describe_copy3d(const CUDA_MEMCPY3D *p, struct sgf_copy *out);
CUresult sgf_check_fill(const struct sgf_fill *fill);

#endif
