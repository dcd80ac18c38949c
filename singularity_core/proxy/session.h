/* The insides of a session and of the server: for singularity_core/proxy and the memory interceptor only. */
#ifndef SG_SESSION_H
#define SG_SESSION_H

#include <pthread.h>
#include <stdatomic.h>

#include "../interceptors/arena.h"
#include "../splicing/residency.h"
#include "../splicing/swapper.h"
#include "../transport/ring.h"
#include "claimant.h"
#include "handles.h"
#include "replay.h"
#include "server.h"

/* CUresult values that the machinery itself returns or recognises (public: cuda.h). */
enum { SG_CUDA_SUCCESS = 0, SG_CUDA_INVALID_VALUE = 1, SG_CUDA_OUT_OF_MEMORY = 2, SG_CUDA_CONTEXT_DESTROYED = 709,
       SG_CUDA_INVALID_HANDLE = 400, SG_CUDA_NOT_READY = 600, SG_CUDA_NOT_SUPPORTED = 801, SG_CUDA_UNKNOWN = 999 };

/* The few driver calls that the machinery needs itself; everything else is the generated dispatch's. */
struct sg_base_driver {
    int32_t (*init)(unsigned flags);
    int32_t (*driver_version)(int *version);
    int32_t (*device_get)(int *device, int ordinal);
    int32_t (*device_name)(char *name, int bytes, int device);
    int32_t (*device_uuid)(uint8_t uuid[16], int device);
    int32_t (*device_total)(size_t *bytes, int device);
    int32_t (*device_attribute)(int *value, int attribute, int device);
    int32_t (*primary_retain)(void **context, int device);
    int32_t (*primary_release)(int device);
    int32_t (*context_set)(void *context);
    int32_t (*stream_query)(void *stream);
};
int sg_base_driver_load(struct sg_base_driver *out, void *library, char why[256]);
int sg_device_describe(const struct sg_base_driver *driver, int32_t device, struct sg_device_info *out, char why[256]);
/* Whether what ranks know of a device, and may have acted upon, is not so here; `why` says what. */
int sg_device_differs(const struct sg_device_info *was, const struct sg_device_info *is, char why[256]);

enum { SG_LEAD_VACANT = 0, SG_LEAD_HELD = 1, SG_LEAD_ON_OFFER = 2 /* its holder runs a call that blocks */ };
enum { SG_GOES_ON = 0, SG_DRAINS = 1 /* the rank said good-bye: finish what is in the ring */, SG_ABORTS = 2 };

struct sg_session {
    struct sg_server *server;
    uint64_t id; /* never reused: owner tag in the arena */
    struct sg_doorway *doorway; /* it came through */
    uint32_t slot; /* there: its files are named after it */
    uint32_t rank, sub, window;
    uint8_t *base; /* the session file's mapping; the next four point into it */
    struct sg_session_page *page;
    struct sg_reply_slot *replies;
    uint8_t *ring, *staging, *pinned;
    int pinned_file;
    int resumes;               /* it was another proxy's: its files exist, and are that one's until `taken_over` */

    _Atomic uint64_t head;     /* written by the lead's holder */
    _Atomic uint32_t lead;     /* SG_LEAD_*: whether some thread drains the ring */
    _Atomic uint32_t wanted;   /* a thread came for the lead, found work, and could not have it */
    uint32_t sleeps;           /* the lead's holder's, too: how often it was given up; never 0 */
    _Atomic uint32_t idle;     /* threads that wait for the lead */
    _Atomic uint32_t calls;    /* that may block, and have not been answered */
    _Atomic uint32_t ending;   /* SG_DRAINS, SG_ABORTS */
    _Atomic uint32_t why_dead; /* SG_DEAD_* for the page, once it ends */
    _Atomic uint32_t faulted;  /* the rank took pages away from under a mapping */
    pthread_mutex_t lock;      /* guards the next three */
    pthread_cond_t changed;
    uint32_t threads;          /* and holders: whoever keeps the session from being buried */
    int closed;                /* nobody may join any more */
    pthread_mutex_t bulk;
    pthread_mutex_t host_lock; /* guards the next four */
    pthread_cond_t host_changed;
    uint32_t host_asked, host_through; /* host functions: how many streams have come to one, and were let go */
    int host_quit;                     /* the rank calls no more */
    _Atomic uint32_t host_due;         /* host functions that streams will come to, and those whose gate is not open yet */

    struct sg_handles handles;
    struct sg_log *log;
    pthread_mutex_t log_lock;
    struct sg_turn turn;
    sg_arena *arena; /* over the whole arena of the device: its own addresses, its own out-of-memory point */
    pthread_mutex_t arena_lock;
    struct sg_image image;
    int limit_said;
    sg_arena *committed; /* what of the page-locked window is mapped */
    pthread_mutex_t pinned_lock;
    void *state; /* the handlers' */
    struct sg_party *party; /* its place in the exchange */
    char failure_said[160]; /* the exchange's thread: of its last collective without a result */
    uint32_t *last_op;      /* where the board shows what the rank has called last; NULL: nowhere */
    _Atomic uint32_t replaying;
    _Atomic uint64_t counters[32];
    _Atomic uint32_t ended; /* undertaker is through: the server's loop may free the slot */
    pthread_t undertaker;
    int buried; /* it was started; the server's loop alone asks */
};

/* What a thread that runs handlers knows; NULL in other threads. */
struct sg_worker {
    sg_session *session;
    void *current;      /* physical context that is current in this thread, or SG_CONTEXT_UNKNOWN */
    uint64_t context;   /* virtual handle of the request's context */
    uint64_t *made;     /* handles and addresses that the running handler made, for the replay log */
    uint32_t made_count, made_room;
    const uint64_t *give; /* while replaying: what to hand out instead, in order */
    uint32_t give_count;
    uint8_t *message;   /* SG_MAX_MESSAGE_LINES lines */
    uint8_t *answer;    /* SG_REPLY_PAYLOAD */
};
#define SG_CONTEXT_UNKNOWN ((void *)-1)
extern _Thread_local struct sg_worker *sg_current_worker;
int sg_worker_open(struct sg_worker *worker, sg_session *session); /* 0 or -ENOMEM; to be closed all the same */
void sg_worker_close(struct sg_worker *worker);
void sg_made(uint64_t handle);                                  /* notes it for sg_log_create */
int sg_given(uint32_t kind, uint64_t *handle);                  /* 1: replaying, and this is what to hand out */

struct sg_server {
    struct sg_base_driver base;
    struct sg_driver *driver;
    void *library;
    const struct sg_hal_table *hal;
    int32_t device;
    void *context; /* the device's primary context: for what belongs to no session */
    struct sg_device_info described; /* the device, for all doors */
    struct sg_claimants claimants; /* where ranks are to be looked for */
    uint64_t arena_bytes, swap_limit;
    _Atomic uint64_t live_bytes; /* of all sessions */
    struct sg_residency residency;
    struct sg_engine *engine; /* the collectives of its sessions */
    uint32_t proxy_index;     /* on the board */
    pthread_t rest;           /* obeys the cut (splicing/rest.c) */
    int rests;                /* it runs */
    int stop_event, poke_event, epoll;
    _Atomic uint32_t stopping;
    int barriers; /* the kernel has membarrier for all processes */
    pthread_mutex_t slots_lock; /* sessions of slots are read by sg_server_hold from any thread */
    struct sg_doorway *doorways; /* doorway.h; in the order of the directories that were asked for */
    uint32_t doorway_count;
    pthread_mutex_t loop_lock; /* held during each turn of the loop; guards the next two */
    int handed;                /* another proxy may have the sessions: nothing that ranks see is touched */
    int resumes;               /* it takes over another's, and was not let go yet */
    int restored;              /* what it takes over comes from a checkpoint */
};
#define SG_HAL_HAS(table, member) \
    ((table)->struct_size >= offsetof(struct sg_hal_table, member) + sizeof((table)->member) && (table)->member != NULL)

#ifndef SG_SERVER_TICK_MS
#define SG_SERVER_TICK_MS 500 /* how often the loop and the watchers of bells look even if nobody woke them */
#endif

/* session.c */
sg_session *sg_session_create(struct sg_doorway *doorway, uint32_t slot, uint32_t rank, uint32_t sub, char why[96]);
/* Goes on with a session that another proxy wrote down (session_image.h); the files at `slot` are there.  It takes no message before
 * the cut lets it, and leaves the files alone until sg_session_take_over. */
sg_session *sg_session_resume(struct sg_doorway *doorway, uint32_t slot, const uint8_t *image, uint64_t bytes, char why[96]);
void sg_session_take_over(sg_session *session);
void sg_session_end(sg_session *session, uint32_t how, uint32_t why_dead); /* any thread; returns at once */
/* Counts the caller as one of its threads, unless `limit` are there (-EAGAIN) or it is over (-ESHUTDOWN). */
int sg_session_join(sg_session *session, uint32_t limit);
/* Makes `error` the session's async_error, for its rank's next call.  The first one counts, but a sticky one is never lost to
 * another that the rank has not asked for yet. */
void sg_session_note_error(sg_session *session, int32_t error);
void sg_session_leave(sg_session *session); /* the session may be gone when this returns */
int sg_session_bury(sg_session *session);  /* starts the undertaker; `ended` is set when it is through */
void sg_session_free(sg_session *session); /* after `ended` */
void sg_server_poke(sg_server *server);    /* makes the server's loop look at its sessions */

/* handover.c.  write_sessions: 0, or -errno with `why`, and then the loop goes on; goes_on: of those that may have the sessions, it is
 * this one. */
int sg_server_write_sessions(sg_server *server, char why[160]);
void sg_server_goes_on(sg_server *server);

/* worker.c */
int sg_worker_start(sg_session *session); /* 0 or -errno */
/* Runs one request as the current worker, with its context made current.  `answer->payload` must be set. */
int32_t sg_worker_execute(struct sg_worker *worker, const struct sg_request *request, struct sg_answer *answer);
void sg_worker_wake_all(sg_session *session);
/* For who is no worker and wants no message to run: 1: the lead was vacant and is the caller's now. */
/* host_function.c: 1: one runs, or is due.  Adds to `through` how many have ended. */
int sg_host_functions_run(sg_session *s, uint64_t *through);
int sg_lead_take(sg_session *session);
void sg_lead_give(sg_session *session);

/* memory.c */
int sg_memory_open(sg_server *server, uint64_t bytes, char why[256]);
void sg_memory_close(sg_server *server);
int sg_memory_begin(sg_session *session); /* 0 or -ENOMEM */
void sg_memory_end(sg_session *session);  /* frees what the session holds */
int sg_pinned_open(sg_session *session);
void sg_pinned_end(sg_session *session);
/* To or from committed memory of the window, or nothing and CUDA_ERROR_INVALID_VALUE.  The rank may withdraw the memory at any
 * moment: it waits until this is through. */
int32_t sg_pinned_copy(sg_session *session, uint64_t pinned, void *host, uint64_t bytes, int write);

/* communication.c; begin and open: 0, or -errno, or -1 with `why`.  quit: no collective of the session waits for anything any
 * more, its gates are open; end: when its streams are gone. */
int sg_communication_open(sg_server *server, const struct sg_server_options *options, char why[256]);
void sg_communication_close(sg_server *server);
int sg_communication_begin(sg_session *session);
void sg_communication_quit(sg_session *session);
void sg_communication_end(sg_session *session);

/* bulk.c */
void sg_bulk_wake(sg_session *session);

/* fault.c: SIGBUS inside of [base, base + bytes) gets zero pages and sets *flag */
int sg_fault_install(void);
int sg_fault_guard(void *base, uint64_t bytes, _Atomic uint32_t *flag); /* 0 or -ENOSPC */
void sg_fault_forget(void *base);

#endif
