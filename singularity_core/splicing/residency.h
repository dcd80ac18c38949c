/* Who is on the device, and where a session's bytes are.  Between the slicer (decides), the swapper (moves) and all
 * that touches memory: handlers, worker.c, and the communication interceptor.
 *
 *   enter/leave   a blocking handler brackets exactly the part that touches device memory or puts work that does so
 *                 into a stream.  `enter` waits until the session is resident; nothing switches before `leave`.
 *                 Never wait for device work, a gate or the rank in between (staging included).
 *                 Non-blocking handlers need neither: worker.c asks for the turn before a call that touches memory
 *                 (SG_OP_TOUCHES), and a switch waits for the session's lead.
 *   pin/unpin     the session stays where it is, resident or not; short.  For the allocator and for views.
 *   view          the session's content wherever it is; valid also while it is not resident.
 * A session that is alone on its device is resident from its first moment, and pays for none of this. */
#ifndef SG_RESIDENCY_H
#define SG_RESIDENCY_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

#include "slicer.h"

struct sg_session;
struct sg_server;

int32_t sg_device_enter(struct sg_session *session); /* 0, or CUDA_ERROR_CONTEXT_IS_DESTROYED: the session ends */
void sg_device_leave(struct sg_session *session);
/* All sessions are held (sg_server_hold_all).  1: none had a gate to be opened or a call that needs the device, nothing runs there
 * or could begin by itself, and from now on no gate opens and nobody enters: nothing changes there until all go on.  Needs the
 * HAL's `settle`. */
int sg_residency_rest(struct sg_server *server);
/* Whether a host function of some session is due or runs; `through`: how many have ended. */
int sg_residency_in_ranks(struct sg_server *server, uint64_t *through);
int sg_device_resident(const struct sg_session *session);
/* Whether other sessions use the device too: then what waits must not do so inside of enter and leave. */
int sg_device_shared(const struct sg_session *session);
int sg_device_pin(struct sg_session *session); /* 1: it is resident */
void sg_device_unpin(struct sg_session *session);

/* Copies between the session's memory (device range of its own, or its page-locked window) and host memory of the proxy.
 * Not ordered with any stream: the caller knows that nothing else uses the range (its operation is between arrival and
 * gate).  0, CUDA_ERROR_ILLEGAL_ADDRESS (700) when the range is not wholly the session's live memory. */
int32_t sg_view_read(struct sg_session *session, uint64_t address, void *out, uint64_t bytes);
int32_t sg_view_write(struct sg_session *session, uint64_t address, const void *in, uint64_t bytes);

/* Opens `gate` (hal->gate_make) when the session is resident: now, or right after its next switch-in.  At once, too,
 * when the session's work was discarded, because it ends. */
void sg_gate_open(struct sg_session *session, uint64_t gate);

/* What the slicer must know; any thread. */
void sg_residency_misses(struct sg_session *session, int misses_local_contribution);

/* ---- for singularity_core/proxy ----------------------------------------------------------------------- */
/* What a leader must look at before it takes a message; bits of `attention`. */
enum { SG_ATTEND_HOLD = 1,  /* a switch begins: take no message */
       SG_ATTEND_PAUSE = 2, /* the cut: likewise */
       SG_ATTEND_AWAY = 4,  /* not resident: take none that touches memory */
       SG_ATTEND_WATCH = 8  /* others want the device: say when there is nothing to do */ };

struct sg_turn { /* a session's; guarded by the server's residency lock, but for what is atomic */
    _Atomic uint32_t attention;
    _Atomic uint32_t waiting;  /* handlers that wait for device work */
    _Atomic uint32_t touching; /* while WATCH: the leader runs a call that touches memory */
    _Atomic uint32_t polled;   /* while WATCH: a query found work undone; since then no call touched memory */
    _Atomic int resident;
    int joined, leaving, moving, parked, lead_ours, misses, ends, discarded;
    uint32_t place; /* while joined: among the residency's sessions, and what the slicer knows it by */
    uint32_t inside, pins, wanting;
    uint64_t *gates; /* to be opened when it is resident */
    uint32_t gate_count, gate_room;
    uint64_t queued_since;
};

struct sg_residency {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct sg_slicer slicer;
    struct sg_session *sessions[SG_SLICER_SLOTS];
    _Atomic uint32_t count;
    _Atomic uint32_t stopping;
    int started, switching, paused, busy;
    pthread_t thread;
    uint64_t accounted;
};

void sg_residency_open(struct sg_server *server, uint64_t wait_ns, uint64_t quantum_ns);
void sg_residency_close(struct sg_server *server);
int sg_residency_sliceable(const struct sg_server *server); /* the backend has what sharing needs */
int sg_residency_full(const struct sg_server *server); /* SG_SLICER_SLOTS sessions share the device: no more can join */
int sg_residency_join(struct sg_session *session, char why[96]); /* 0, or -errno */
void sg_residency_leave(struct sg_session *session); /* its contexts are gone; frees its memory */
/* The session ends: what it has queued never runs.  Any context may be current afterwards. */
void sg_residency_discard(struct sg_session *session);
void sg_residency_ends(struct sg_session *session); /* no handler runs any more */
void sg_residency_stir(struct sg_session *session); /* something happened that a waiter may wait for */
void sg_residency_tick(struct sg_server *server);   /* now and then: accounting */
/* The leader's question before a message: 1: take it; 0: the session is over.  Waits for its turn. */
int sg_leader_turn(struct sg_session *session, int touches);
/* Around a wait in a handler that does not block, because the cut holds its rank: meanwhile it touches nothing, so the session
 * counts as held. */
void sg_leader_park(struct sg_session *session);
void sg_leader_unpark(struct sg_session *session);
#endif
