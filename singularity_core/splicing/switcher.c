/* The thread that gives the device to one session after the other.  A switch:
 *   leaving  no new enter, no gate opens, the leader is held, everybody has left
 *   settle   what runs on the device ends; what waits at gates or in host functions stays where it is
 *   moving   nobody is pinned; the swapper copies
 * The lock is not held while the device is waited for or copied. */
#include <stdio.h>

#include "swapper.h"
#include "turns.h"

#define IDLE_NS 500000000ull /* how often the accounts are brought up to date when nothing happens */

/* ---- what the slicer must know; the lock is held from here on ------------------------------------------------------- */
/* Only success says that a device rests; a backend that has no memory to look, say, does not know. */
int sg_device_runs(sg_server *server) {
    const struct sg_hal_table *hal = server->hal;
    return SG_HAL_HAS(hal, settle) && hal->settle(hal->state, 0) != SG_CUDA_SUCCESS;
}

/* Whether the resident session has something to do.  `watched`: the leader tells of itself.  One that is parked runs nothing
 * of what its rank goes on to post: the cut may hold it for long, and wait for who needs the device meanwhile. */
enum { IDLE = 0, DEVICE_RUNS = 1, CALL_RUNS = 2 };
static int busy_with(sg_session *s, int watched) {
    uint32_t op;
    if (s->turn.inside != 0) return CALL_RUNS;
    if (watched && !s->turn.parked) {
        if (atomic_load(&s->turn.touching)) return CALL_RUNS;
        if (!sg_residency_of(s)->paused && sg_ring_peek(s->ring, atomic_load(&s->head), &op) && op < sg_op_count &&
            (sg_ops[op].flags & SG_OP_TOUCHES) != 0)
            return CALL_RUNS;
    }
    return sg_device_runs(s->server) ? DEVICE_RUNS : IDLE; /* looked at last: a call puts work there */
}

/* While all are held, that is results that are due and calls that had begun: leaders wait, and want nothing. */
static int wants(const sg_session *s) { return (s->turn.wanting != 0 && !sg_residency_of(s)->slicer.held) || s->turn.gate_count != 0; }

void sg_turns_account(struct sg_residency *r, uint64_t now) {
    sg_session *s = sg_resident(r);
    if (s != NULL && r->busy) sg_count(s, SG_COUNT_DEVICE_NS, now - r->accounted);
    r->accounted = now;
    for (uint32_t i = 0; i < SG_SLICER_SLOTS; i++) {
        sg_session *other = r->sessions[i];
        if (other == NULL) continue;
        int queues = !other->turn.resident && wants(other);
        if (other->turn.queued_since != 0) sg_count(other, SG_COUNT_QUEUE_NS, now - other->turn.queued_since);
        other->turn.queued_since = queues ? now : 0;
    }
}

static uint32_t state_of(const struct sg_residency *r, const sg_session *s) {
    int ends = s->turn.ends || sg_turn_is_over(s), is_resident = s->turn.resident;
    int waits = atomic_load(&s->turn.waiting) != 0 || atomic_load(&s->turn.polled);
    if (r->paused && is_resident && r->busy == IDLE) return SG_SLICE_PRESENT | SG_SLICE_WAITS | SG_SLICE_MISSES; /* does not come back */
    return SG_SLICE_PRESENT | ((is_resident ? r->busy != IDLE : wants(s)) ? SG_SLICE_WANTS : 0u) | (waits ? SG_SLICE_WAITS : 0u) |
           (s->turn.misses ? SG_SLICE_MISSES : 0u) | (ends ? SG_SLICE_ENDS : 0u);
}

/* 1: another session than the resident one wants the device. */
int sg_turns_look(sg_server *server, uint64_t now) {
    struct sg_residency *r = &server->residency;
    sg_session *here = sg_resident(r);
    int others = 0;
    for (uint32_t i = 0; i < SG_SLICER_SLOTS; i++)
        others |= r->sessions[i] != NULL && r->sessions[i] != here && wants(r->sessions[i]);
    if (here != NULL && others && (atomic_load(&here->turn.attention) & SG_ATTEND_WATCH) == 0) {
        /* What the leader does now began unwatched.  It is believed idle until it takes its next message: believed busy
         * it would keep the device when there is none. */
        atomic_store(&here->turn.touching, 0);
        atomic_store(&here->turn.polled, 0);
        sg_attend(here, SG_ATTEND_WATCH);
    } else if (here != NULL && !others) {
        sg_attend_not(here, SG_ATTEND_WATCH);
    }
    r->busy = here == NULL ? IDLE : busy_with(here, others);
    sg_turns_account(r, now);
    for (uint32_t i = 0; i < SG_SLICER_SLOTS; i++)
        sg_slicer_set(&r->slicer, i, r->sessions[i] == NULL ? 0 : state_of(r, r->sessions[i]), now);
    return others;
}

/* ---- a switch --------------------------------------------------------------------------------------------------------- */
/* Until no message of `s` runs. */
static void hold(struct sg_residency *r, sg_session *s) {
    while (!s->turn.parked && !s->turn.lead_ours) {
        if (sg_lead_take(s)) s->turn.lead_ours = 1;
        else sg_wait_changed(r, sg_now_ns() + SG_PROBE_NS);
    }
}

/* Lets the resident session come to rest.  0: it has; -1: the switch is off. */
static int bring_to_rest(sg_server *server, sg_session *out) {
    struct sg_residency *r = &server->residency;
    const struct sg_hal_table *hal = server->hal;
    int32_t error = SG_CUDA_NOT_READY;
    out->turn.leaving = 1;
    sg_attend(out, SG_ATTEND_HOLD);
    hold(r, out);
    while (out->turn.inside != 0) sg_wait_changed(r, 0);
    while (error != SG_CUDA_SUCCESS && !sg_turn_is_over(out) && !atomic_load(&r->stopping)) {
        if (error != SG_CUDA_NOT_READY) sg_wait_changed(r, sg_now_ns() + SG_PROBE_NS); /* it could not look: soon, perhaps */
        pthread_mutex_unlock(&r->lock);
        error = hal->settle(hal->state, SG_PROBE_NS);
        pthread_mutex_lock(&r->lock);
    }
    return sg_turn_is_over(out) || atomic_load(&r->stopping) ? -1 : 0;
}

static void change_hands(sg_server *server, sg_session *out, sg_session *in, uint64_t cost) {
    struct sg_residency *r = &server->residency;
    uint64_t now = sg_now_ns();
    sg_turns_account(r, now);
    if (out != NULL) {
        atomic_store(&out->turn.resident, 0);
        sg_attend(out, SG_ATTEND_AWAY);
        sg_attend_not(out, SG_ATTEND_WATCH);
        sg_count(in, SG_COUNT_SWITCHES, 1);
    }
    atomic_store(&in->turn.resident, 1);
    sg_attend_not(in, SG_ATTEND_AWAY);
    r->busy = CALL_RUNS; /* it wanted the device for something */
    sg_slicer_switched(&r->slicer, in->turn.place, now, cost);
    sg_gates_open_due(in);
}

static void tell_lost(sg_session *s, int32_t error, const char *way) {
    if (error == 0) return;
    fprintf(stderr, "singularity: rank %u: its memory could not be moved %s device %d (CUresult %d): its session is closed\n",
            s->rank, way, s->server->device, error);
    sg_session_end(s, SG_ABORTS, SG_DEAD_PROXY);
}

static void switch_to(sg_server *server, uint32_t to) {
    struct sg_residency *r = &server->residency;
    sg_session *out = sg_resident(r), *in = r->sessions[to];
    struct sg_swap swap = {0};
    r->switching = 1;
    int off = out != NULL && bring_to_rest(server, out) != 0;
    if (!off && !sg_turn_is_over(in) && !in->turn.ends) {
        in->turn.moving = 1;
        if (out != NULL) out->turn.moving = 1;
        while (in->turn.pins != 0 || (out != NULL && out->turn.pins != 0)) sg_wait_changed(r, 0);
        pthread_mutex_unlock(&r->lock);
        uint64_t begin = sg_now_ns();
        swap = sg_swap(out, in);
        uint64_t cost = sg_now_ns() - begin;
        if (out != NULL) sg_count(out, SG_COUNT_SWAPPED, swap.out_bytes);
        sg_count(in, SG_COUNT_SWAPPED, swap.in_bytes);
        pthread_mutex_lock(&r->lock);
        change_hands(server, out, in, cost);
        in->turn.moving = 0;
    }
    if (out != NULL) {
        out->turn.leaving = out->turn.moving = 0;
        sg_attend_not(out, SG_ATTEND_HOLD);
        if (sg_gates_may_open(out)) sg_gates_open_due(out); /* it stays: those that came meanwhile */
        sg_turn_release(out);
    }
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock); /* `switching` keeps both from going */
    if (out != NULL) tell_lost(out, swap.out_error, "from");
    tell_lost(in, swap.in_error, "to");
    pthread_mutex_lock(&r->lock);
    r->switching = 0;
    pthread_cond_broadcast(&r->changed);
}

void *sg_switcher_main(void *argument) {
    sg_server *server = argument;
    struct sg_residency *r = &server->residency;
    const struct sg_hal_table *hal = server->hal;
    pthread_mutex_lock(&r->lock);
    while (!atomic_load(&r->stopping)) {
        uint64_t now = sg_now_ns();
        int others = sg_turns_look(server, now);
        struct sg_slice_decision decision = sg_slicer_decide(&r->slicer, now);
        uint64_t until = now + (others ? SG_PROBE_NS : IDLE_NS);
        if (decision.again_ns != 0 && decision.again_ns < until) until = decision.again_ns;
        if (r->switching) {
            sg_wait_changed(r, until); /* a burial */
        } else if (decision.what == SG_SLICE_SWITCH) {
            switch_to(server, decision.to);
        } else if (others && r->busy == DEVICE_RUNS && until > now) {
            pthread_mutex_unlock(&r->lock); /* its end is worth knowing at once */
            int32_t error = hal->settle(hal->state, until - now);
            pthread_mutex_lock(&r->lock);
            if (error != SG_CUDA_SUCCESS && error != SG_CUDA_NOT_READY) sg_wait_changed(r, until);
        } else {
            sg_wait_changed(r, until);
        }
    }
    pthread_mutex_unlock(&r->lock);
    return NULL;
}
