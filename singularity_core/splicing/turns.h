/* What residency.c and switcher.c share: the turns of a device, under the residency lock. */
#ifndef SG_TURNS_H
#define SG_TURNS_H

#include <time.h>

#include "../proxy/session.h"
#include "residency.h"

#define SG_PROBE_NS 5000000ull /* how often it is looked whether a busy session is still busy */

static inline struct sg_residency *sg_residency_of(const sg_session *s) { return &s->server->residency; }

static inline void sg_wait_changed(struct sg_residency *r, uint64_t until_ns) { /* 0: without end */
    struct timespec until = {(time_t)(until_ns / 1000000000u), (long)(until_ns % 1000000000u)};
    if (until_ns == 0) pthread_cond_wait(&r->changed, &r->lock);
    else pthread_cond_timedwait(&r->changed, &r->lock, &until);
}

static inline sg_session *sg_resident(const struct sg_residency *r) {
    return r->slicer.resident == SG_SLICER_NOBODY ? NULL : r->sessions[r->slicer.resident];
}

static inline int sg_turn_is_over(const sg_session *s) { return atomic_load(&s->ending) == SG_ABORTS || atomic_load(&s->faulted); }
static inline void sg_attend(sg_session *s, uint32_t bits) { atomic_fetch_or(&s->turn.attention, bits); }
static inline void sg_attend_not(sg_session *s, uint32_t bits) { atomic_fetch_and(&s->turn.attention, ~bits); }

/* residency.c */
int sg_gates_may_open(const sg_session *session);
void sg_gates_open_due(sg_session *session);
void sg_turn_release(sg_session *session); /* gives the lead back, unless something still holds the session */

/* switcher.c */
int sg_device_runs(sg_server *server); /* 1: the device does not rest, as far as its backend can tell; needs `settle` to be 1 */
void sg_turns_account(struct sg_residency *r, uint64_t now); /* device and queue time, up to now */
int sg_turns_look(sg_server *server, uint64_t now); /* tells the slicer all; 1: another than the resident session wants the device */
void *sg_switcher_main(void *server);

#endif
