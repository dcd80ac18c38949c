/* The proxy's machinery, as the generated dispatch and the hand-written handlers see it.
 *
 * One session = one ordered ring = one *leader* thread that drains it.  A call that may block
 * (SG_OP_BLOCKS) is executed by the leader itself, after it has given up the lead: `sleeping` is set,
 * a follower sleeps on the doorbell, and takes the lead only if another message comes meanwhile.  So
 * one thread's blocking call never blocks another's, and the common single-threaded rank pays nothing.
 * Handlers of one session may thus run at the same time; tables below are locked inside.
 */
#ifndef SG_SERVER_H
#define SG_SERVER_H

#include <stddef.h>
#include "../hal/native.h"
#include "../transport/layout.h"

typedef struct sg_server sg_server;
typedef struct sg_session sg_session;

struct sg_request {          /* a private copy: what the rank does to the ring now is of no effect */
    uint32_t op, bytes, context;
    uint16_t reply;
    const uint8_t *payload;  /* 8-byte aligned, `bytes` long */
};
struct sg_answer {           /* filled by the handler; sent only when the request asks for a reply */
    uint32_t bytes;          /* <= SG_REPLY_PAYLOAD */
    uint8_t *payload;
};
/* Returns a CUresult.  Without a reply slot, a failure becomes the session's async_error.  A handler of collectives that does
 * not block may return SG_HELD: nothing was done, and the message stays in the ring until the cut lets the rank go on.  So what is held
 * is where the rank put it, and whoever serves the session next finds it there. */
#define SG_HELD INT32_MIN
typedef int32_t (*sg_handler)(sg_session *session, const struct sg_request *request, struct sg_answer *answer);

enum { SG_OP_BLOCKS = 1, SG_OP_NO_CONTEXT = 2 /* does not need the thread's context made current */,
       SG_OP_TOUCHES = 4 /* needs residency (splicing/residency.h); those that block enter and leave themselves */,
       SG_OP_WAITS = 8   /* blocks until device work is done */,
       SG_OP_LAUNCHES = 16 /* starts a kernel or a graph: counted */ };
struct sg_op { const char *name; sg_handler handler; uint32_t flags; };
extern const struct sg_op sg_ops[];     /* generated; index = message op */
extern const uint32_t sg_op_count;

/* ---- the driver-ABI library that the backend names; resolved once, by the generated loader ------ */
struct sg_driver;                        /* generated: one function pointer per annotated call */
int sg_driver_load(struct sg_driver **out, void *dlopen_handle, char why[256]);
const struct sg_driver *sg_session_driver(sg_session *session);
const struct sg_hal_table *sg_session_hal(sg_session *session);
int32_t sg_session_device(sg_session *session); /* CUdevice that this proxy serves */
int sg_session_sliceable(sg_session *session);  /* whether ranks can share its device (then its HAL has gates) */
/* The whole virtual handle of the context that the request's thread had current; 0: none (or stale). */
uint64_t sg_session_context(sg_session *session, const struct sg_request *request);
/* The sticky error that work in one of its contexts has met; 0: none yet.  For handlers that need no context: it leaves another
 * one current. */
int32_t sg_session_lost(sg_session *session);
/* Whether the handler now running replays the log (no rank waits, no bulk data comes). */
int sg_session_replaying(sg_session *session);
/* One word per session for the handlers' own state (interposers/server/state.c); starts NULL. */
void **sg_session_state(sg_session *session);
/* Implemented by interposers/server/state.c.  quit: called first, from any thread, when the session ends, so
 * that handlers that wait for the rank return.  end: no handler runs any more; frees the state. */
void sg_calls_session_quit(sg_session *session);
void sg_calls_contexts_end(sg_session *session); /* before the contexts are destroyed; waits for nothing */
void sg_calls_session_end(sg_session *session);
/* carry.c: what they know that the replay log does not say, at rest.  0, or -1 with `why` when that cannot go on elsewhere. */
struct sg_out;
struct sg_in;
int sg_calls_export(sg_session *session, struct sg_out *out, char why[96]);
int sg_calls_import(sg_session *session, struct sg_in *in, char why[96]); /* after the log */
/* 0, with `why`: the object that this record of the log made holds what the log does not say. */
int sg_calls_portable(const struct sg_request *record, char why[96]);

/* ---- handles ----------------------------------------------------------------------------------- */
/* put: a new handle for `physical`; put_at: at one that the client chose (0 or CUDA_ERROR_INVALID_HANDLE
 * when taken or malformed).  `parent`: virtual handle whose end takes this one along (0: the session).
 * get: NULL when stale, foreign, of another kind.  take: get and forget; children are released too. */
uint64_t sg_handle_put(sg_session *s, uint32_t kind, void *physical, uint64_t parent);
int32_t sg_handle_put_at(sg_session *s, uint64_t handle, void *physical, uint64_t parent);
void *sg_handle_get(sg_session *s, uint32_t kind, uint64_t handle);
void *sg_handle_take(sg_session *s, uint32_t kind, uint64_t handle);
/* How the session's end, or a parent's, destroys a physical object; generated. */
void sg_handle_destroy_physical(const struct sg_driver *driver, uint32_t kind, void *physical);
/* Calls `each` for all of one kind, with the table locked: it must not make or take any. */
void sg_handles_each(sg_session *s, uint32_t kind, void (*each)(void *argument, uint64_t handle, void *physical, void *context),
                     void *argument);
/* Streams: 0, 1, 2 map to themselves.  Returns 0, or CUDA_ERROR_INVALID_HANDLE. */
int32_t sg_stream_get(sg_session *s, uint64_t handle, void **physical);

/* ---- memory interceptor (singularity_core/interceptors/memory.c) ------------------------------- */
int32_t sg_memory_alloc(sg_session *s, uint64_t bytes, uint64_t *address);
int32_t sg_memory_free(sg_session *s, uint64_t address);       /* ordered after earlier work by its caller */
int32_t sg_memory_range(sg_session *s, uint64_t address, uint64_t *base, uint64_t *bytes);
int32_t sg_memory_owned(sg_session *s, uint64_t address, uint64_t bytes); /* 0, or CUDA_ERROR_INVALID_VALUE */
void sg_memory_info(sg_session *s, uint64_t *free_bytes, uint64_t *total_bytes);
/* Page-locked window: the same address in rank and proxy.  0 when [host, host+bytes) is committed in it. */
int32_t sg_pinned_owned(sg_session *s, uint64_t host, uint64_t bytes);
int32_t sg_pinned_commit(sg_session *s, uint64_t offset, uint64_t bytes, int on);

/* ---- communication interceptor (singularity_core/interceptors/communication.c) ------------------ */
struct sg_party *sg_session_party(sg_session *s); /* exchange/engine.h; NULL: a child of a rank, which has none */
int sg_session_has_gates(sg_session *s);          /* the backend can hold streams: needed for collectives */

/* ---- staging: the handler's side of sg_link_call_send / _receive --------------------------------- */
/* Calls `each` for consecutive chunks; the memory is the proxy's view of staging and may change under
 * the handler (untrusted bytes, trusted bounds).  Stops with CUDA_ERROR_UNKNOWN when the rank is gone. */
typedef int32_t (*sg_chunk)(void *argument, uint64_t offset, void *chunk, uint32_t bytes);
int32_t sg_bulk_receive(sg_session *s, uint64_t bytes, sg_chunk each, void *argument); /* rank -> proxy */
int32_t sg_bulk_send(sg_session *s, uint64_t bytes, sg_chunk each, void *argument);    /* proxy -> rank */

/* ---- host functions (host_function.c) ------------------------------------------------------------ */
/* Returns when the rank has called the function, or calls no more. */
void sg_host_function_call(sg_session *s, const struct sg_host_function *function);
void sg_host_functions_quit(sg_session *s); /* lets all go that wait for one */
void sg_host_functions_due(sg_session *s, int change); /* how many more, or fewer, streams will come to one, or wait at its gate */

/* ---- replay log (replay.c): what it takes to make the session's objects again -------------------- */
/* create: `request` made `handle` (or a device address) and needs `needs` to exist.  A later destroy
 * removes it, and with it every `set` on it.  set: the last request with the same (owner, key) counts. */
void sg_log_create(sg_session *s, const struct sg_request *request, uint64_t handle, const uint64_t *needs, uint32_t count);
void sg_log_set(sg_session *s, const struct sg_request *request, uint64_t owner, uint64_t key);
void sg_log_destroy(sg_session *s, uint64_t handle);
/* While a log is replayed, sg_handle_put and sg_memory_alloc hand out what the log recorded. */

enum sg_counter { SG_COUNT_MESSAGES, SG_COUNT_LAUNCHES, SG_COUNT_BYTES_IN, SG_COUNT_BYTES_OUT, SG_COUNT_QUEUE_NS,
                  SG_COUNT_DEVICE_NS, SG_COUNT_SWITCHES, SG_COUNT_SWAPPED, SG_COUNT_LIVE_BYTES, SG_COUNT_LOG_ENTRIES,
                  SG_COUNT_REJECTED };
void sg_count(sg_session *s, enum sg_counter what, uint64_t by);
uint64_t sg_counted(sg_session *s, enum sg_counter what);

/* ---- life of a server (called from Python through cffi; run() holds no GIL) ----------------------- */
#define SG_STOP_FDS 4
#define SG_MAX_DOORS 128u /* of one proxy: twice the sessions that may share a device */
struct sg_server_options {
    uint32_t struct_size;
    int32_t device;              /* CUdevice */
    uint32_t directory_count;    /* 1 to SG_MAX_DOORS */
    const char *const *directories; /* one per door: where it and its sessions' files go; must exist, 0700 */
    const char *driver_library;  /* path for dlopen */
    const struct sg_hal_table *hal;
    uint64_t arena_bytes;        /* 0: all that the device can back now (the HAL's arena_limit) */
    int32_t stop_fds[SG_STOP_FDS]; /* run returns when one becomes readable or hangs up; <= 0: unused */
    const char *exchange;        /* what the job's proxies share: a directory (0700); NULL: this is the only one */
    uint32_t proxy_index, proxy_count; /* of those that share it */
    uint64_t swap_limit;         /* host memory for what is swapped out, in bytes; 0: the server's default */
    uint64_t slice_wait_ns;      /* rule (c) of splicing/slicer.h: the least that it waits; 0: 2 ms */
    uint64_t slice_quantum_ns;   /* rule (d): likewise; 0: 10 s */
    uint32_t resumes;            /* 1: takes over the doors and sessions of other proxies, at rest; see sg_server_resume.  2: those come
                                  * from a checkpoint: each session's memory is beside its image, and its process began anew */
    int32_t pid_namespace;       /* a descriptor of the ranks', kept by the caller; <= 0: ours */
};
sg_server *sg_server_create(const struct sg_server_options *options, char why[256]);
/* Of a server that was created to take over (`resumes`): makes the sessions that the others have written.  0, or -1 with `why`. */
int sg_server_resume(sg_server *server, char why[256]);
int sg_server_run(sg_server *server);   /* returns after sg_server_stop; 0 or -errno */
void sg_server_stop(sg_server *server); /* async-signal-safe; any thread, until destroy is called */
void sg_server_destroy(sg_server *server);
/* The cut: no session takes another message.  0 once that is so, -ETIMEDOUT when some handler still runs after `timeout_ns` (the
 * request stands).  A call that had begun ends, also when its session must come to the device for that.  on 0: all go on. */
int sg_server_hold_all(sg_server *server, int on, uint64_t timeout_ns);
/* The session behind a door slot, kept from ending until it is let go; NULL: none, or it ends already.  Slots count on over the
 * doors, in their order: door * SG_DOOR_SLOTS + slot.  Any thread, also while run() runs. */
sg_session *sg_server_hold(sg_server *server, uint32_t slot);
void sg_server_let_go(sg_session *session);
/* As above, let go already: for who knows that its rank neither ends nor closes it meanwhile. */
sg_session *sg_server_session(sg_server *server, uint32_t slot);
/* The replay log as a flat, versioned buffer; returns its size, and writes it only when it fits in `room`. */
uint64_t sg_session_log_export(sg_session *session, uint8_t *buffer, uint64_t room);
/* Plays such a buffer into a fresh session: same handles, same addresses.  0, or -errno with `why`. */
int sg_session_log_import(sg_session *session, const uint8_t *buffer, uint64_t bytes, char why[256]);

#endif
