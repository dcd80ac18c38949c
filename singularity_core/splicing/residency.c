/* The thread that gives the device to one session after the other, and what everybody else asks it.
 *
 * One lock guards all turns of a device; every wait is on one condition, because there are few sessions and a switch
 * costs far more than a few threads that wake up in vain.  A session is *held* when its leader is parked in
 * sg_leader_turn, or when nobody led and we took the lead.  A switch:
 *   leaving  no new enter, no gate opens, the leader is held, everybody has left
 *   settle   what runs on the device ends; what waits at gates or in host functions stays where it is
 *   moving   nobody is pinned; the swapper copies
 * The lock is not held while the device is waited for or copied. */
#include "residency.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#include "../proxy/session.h"
#include "swapper.h"

#define IDLE_NS 500000000ull /* how often the accounts are brought up to date when nothing happens */
#define PROBE_NS 5000000ull  /* how often it is looked whether a busy session is still busy */
#define ERROR_ILLEGAL_ADDRESS 700

/* ---- small things ---------------------------------------------------------------------------------------- */
static struct sg_residency *of(const sg_session *s) { return &s->server->residency; }

static void wait_changed(struct sg_residency *r, uint64_t until_ns) {
    struct timespec until = {(time_t)(until_ns / 1000000000u), (long)(until_ns % 1000000000u)};
    if (until_ns == 0) pthread_cond_wait(&r->changed, &r->lock);
    else pthread_cond_timedwait(&r->changed, &r->lock, &until);
}

void sg_residency_stir(sg_session *s) {
    struct sg_residency *r = of(s);
    pthread_mutex_lock(&r->lock);
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
}

static int is_over(const sg_session *s) { return atomic_load(&s->ending) == SG_ABORTS || atomic_load(&s->faulted); }
static void attend(sg_session *s, uint32_t bits) { atomic_fetch_or(&s->turn.attention, bits); }
static void attend_not(sg_session *s, uint32_t bits) { atomic_fetch_and(&s->turn.attention, ~bits); }

int sg_device_resident(const sg_session *s) { return atomic_load(&s->turn.resident); }
int sg_device_shared(const sg_session *s) { return atomic_load_explicit(&of(s)->count, memory_order_relaxed) > 1; }

/* `s` waits for the device; the lock is held. */
static void await_turn(sg_session *s, struct sg_residency *r) {
    s->turn.wanting++;
    pthread_cond_broadcast(&r->changed);
    wait_changed(r, 0);
    s->turn.wanting--;
}

/* ---- handlers ----------------------------------------------------------------------------------------------- */
int32_t sg_device_enter(sg_session *s) {
    struct sg_residency *r = of(s);
    int32_t result = SG_CUDA_SUCCESS;
    pthread_mutex_lock(&r->lock);
    while (!is_over(s) && (!s->turn.resident || s->turn.leaving || r->paused)) {
        if (s->turn.resident) wait_changed(r, 0);
        else await_turn(s, r);
    }
    if (is_over(s)) result = SG_CUDA_CONTEXT_DESTROYED;
    else s->turn.inside++;
    pthread_mutex_unlock(&r->lock);
    return result;
}

void sg_device_leave(sg_session *s) {
    struct sg_residency *r = of(s);
    pthread_mutex_lock(&r->lock);
    s->turn.inside--;
    if (atomic_load_explicit(&s->turn.attention, memory_order_relaxed) != 0 || r->paused) pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
}

int sg_device_pin(sg_session *s) {
    struct sg_residency *r = of(s);
    pthread_mutex_lock(&r->lock);
    while (s->turn.moving) wait_changed(r, 0);
    s->turn.pins++;
    int resident = s->turn.resident;
    pthread_mutex_unlock(&r->lock);
    return resident;
}

void sg_device_unpin(sg_session *s) {
    struct sg_residency *r = of(s);
    pthread_mutex_lock(&r->lock);
    if (--s->turn.pins == 0 && (r->switching || s->turn.ends)) pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
}

int sg_leader_turn(sg_session *s, int touches) {
    struct sg_residency *r = of(s);
    uint32_t attention = atomic_load(&s->turn.attention);
    int result = -1;
    if ((attention & ~(uint32_t)SG_ATTEND_WATCH) != 0) {
        pthread_mutex_lock(&r->lock);
        while (result < 0) {
            attention = atomic_load(&s->turn.attention);
            int away = touches && (attention & SG_ATTEND_AWAY);
            if (is_over(s)) result = 0;
            else if (!away && (attention & (SG_ATTEND_HOLD | SG_ATTEND_PAUSE)) == 0) result = 1;
            if (result >= 0) break;
            s->turn.parked = 1;
            if (away) {
                await_turn(s, r);
            } else {
                pthread_cond_broadcast(&r->changed);
                wait_changed(r, 0);
            }
            s->turn.parked = 0;
        }
        pthread_mutex_unlock(&r->lock);
    } else {
        result = 1;
    }
    if (touches) atomic_store(&s->turn.polled, 0);
    atomic_store(&s->turn.touching, (uint32_t)touches);
    return result;
}

void sg_leader_park(sg_session *s) {
    struct sg_residency *r = of(s);
    pthread_mutex_lock(&r->lock);
    s->turn.parked = 1;
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
}

void sg_leader_unpark(sg_session *s) {
    struct sg_residency *r = of(s);
    pthread_mutex_lock(&r->lock);
    while (!is_over(s) && (atomic_load(&s->turn.attention) & (SG_ATTEND_HOLD | SG_ATTEND_PAUSE)) != 0) wait_changed(r, 0);
    s->turn.parked = 0;
    pthread_mutex_unlock(&r->lock);
}

void sg_residency_misses(sg_session *s, int misses) {
    struct sg_residency *r = of(s);
    pthread_mutex_lock(&r->lock);
    s->turn.misses = misses;
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
}

/* ---- gates ------------------------------------------------------------------------------------------------------ */
static int may_open(const sg_session *s) {
    return s->turn.discarded || !s->turn.joined || (s->turn.resident && !s->turn.leaving && !of(s)->slicer.held);
}

static void open_gates(sg_session *s) {
    const struct sg_hal_table *hal = s->server->hal;
    for (uint32_t i = 0; i < s->turn.gate_count; i++) hal->gate_open(hal->state, s->turn.gates[i]);
    s->turn.gate_count = 0;
}

void sg_gate_open(sg_session *s, uint64_t gate) {
    struct sg_residency *r = of(s);
    struct sg_turn *turn = &s->turn;
    int lost = 0;
    pthread_mutex_lock(&r->lock);
    if (!may_open(s) && turn->gate_count == turn->gate_room) {
        uint32_t room = turn->gate_room * 2 + 16;
        uint64_t *gates = realloc(turn->gates, room * sizeof *gates);
        lost = gates == NULL;
        if (!lost) turn->gates = gates, turn->gate_room = room;
    }
    if (may_open(s)) s->server->hal->gate_open(s->server->hal->state, gate);
    else if (!lost) turn->gates[turn->gate_count++] = gate;
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
    if (lost) sg_session_end(s, SG_ABORTS, SG_DEAD_PROXY); /* its stream would wait for ever */
}

/* ---- views ------------------------------------------------------------------------------------------------------- */
static int32_t view(sg_session *s, uint64_t address, void *host, uint64_t bytes, int write) {
    const struct sg_hal_table *hal = s->server->hal;
    int32_t error = 0;
    if (bytes == 0) return 0;
    if (address - SG_DEVICE_BASE >= SG_DEVICE_WINDOW)
        return sg_pinned_copy(s, address, host, bytes, write) == 0 ? 0 : ERROR_ILLEGAL_ADDRESS;
    int resident = sg_device_pin(s);
    uint8_t *image = resident ? NULL : sg_image_at(s, address);
    if (sg_memory_owned(s, address, bytes) != 0) error = ERROR_ILLEGAL_ADDRESS;
    else if (resident)
        error = write ? hal->copy_to_device(hal->state, address, host, bytes)
                      : hal->copy_to_host(hal->state, host, address, bytes);
    else if (image == NULL) error = SG_CUDA_OUT_OF_MEMORY;
    else memcpy(write ? image : host, write ? host : image, bytes);
    sg_device_unpin(s);
    return error;
}

int32_t sg_view_read(sg_session *s, uint64_t address, void *out, uint64_t bytes) { return view(s, address, out, bytes, 0); }
int32_t sg_view_write(sg_session *s, uint64_t address, const void *in, uint64_t bytes) {
    return view(s, address, (void *)in, bytes, 1);
}

/* ---- what the slicer must know; the lock is held from here on ------------------------------------------------------- */
static sg_session *resident(const struct sg_residency *r) {
    return r->slicer.resident == SG_SLICER_NOBODY ? NULL : r->sessions[r->slicer.resident];
}

/* Only success says that a device rests; a backend that has no memory to look, say, does not know. */
static int runs(sg_server *server) {
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
        if (!of(s)->paused && sg_ring_peek(s->ring, atomic_load(&s->head), &op) && op < sg_op_count &&
            (sg_ops[op].flags & SG_OP_TOUCHES) != 0)
            return CALL_RUNS;
    }
    return runs(s->server) ? DEVICE_RUNS : IDLE; /* looked at last: a call puts work there */
}

/* While all are held, only results that are due count. */
static int wants(const sg_session *s) { return (s->turn.wanting != 0 && !of(s)->paused) || s->turn.gate_count != 0; }

static void account(struct sg_residency *r, uint64_t now) {
    sg_session *s = resident(r);
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
    int ends = s->turn.ends || is_over(s), is_resident = s->turn.resident;
    int waits = atomic_load(&s->turn.waiting) != 0 || atomic_load(&s->turn.polled);
    if (r->paused && is_resident && r->busy == IDLE) return SG_SLICE_PRESENT | SG_SLICE_WAITS | SG_SLICE_MISSES; /* does not come back */
    return SG_SLICE_PRESENT | ((is_resident ? r->busy != IDLE : wants(s)) ? SG_SLICE_WANTS : 0u) | (waits ? SG_SLICE_WAITS : 0u) |
           (s->turn.misses ? SG_SLICE_MISSES : 0u) | (ends ? SG_SLICE_ENDS : 0u);
}

/* 1: another session than the resident one wants the device. */
static int look(sg_server *server, uint64_t now) {
    struct sg_residency *r = &server->residency;
    sg_session *here = resident(r);
    int others = 0;
    for (uint32_t i = 0; i < SG_SLICER_SLOTS; i++)
        others |= r->sessions[i] != NULL && r->sessions[i] != here && wants(r->sessions[i]);
    if (here != NULL && others && (atomic_load(&here->turn.attention) & SG_ATTEND_WATCH) == 0) {
        /* What the leader does now began unwatched.  It is believed idle until it takes its next message: believed busy
         * it would keep the device when there is none. */
        atomic_store(&here->turn.touching, 0);
        atomic_store(&here->turn.polled, 0);
        attend(here, SG_ATTEND_WATCH);
    } else if (here != NULL && !others) {
        attend_not(here, SG_ATTEND_WATCH);
    }
    r->busy = here == NULL ? IDLE : busy_with(here, others);
    account(r, now);
    for (uint32_t i = 0; i < SG_SLICER_SLOTS; i++)
        sg_slicer_set(&r->slicer, i, r->sessions[i] == NULL ? 0 : state_of(r, r->sessions[i]), now);
    return others;
}

/* ---- a switch --------------------------------------------------------------------------------------------------------- */
/* Until no message of `s` runs. */
static void hold(struct sg_residency *r, sg_session *s) {
    while (!s->turn.parked && !s->turn.lead_ours) {
        if (sg_lead_take(s)) s->turn.lead_ours = 1;
        else wait_changed(r, sg_now_ns() + PROBE_NS);
    }
}

static void release(sg_session *s) {
    if ((atomic_load(&s->turn.attention) & (SG_ATTEND_HOLD | SG_ATTEND_PAUSE)) != 0 || !s->turn.lead_ours) return;
    s->turn.lead_ours = 0;
    sg_lead_give(s);
}

/* Lets the resident session come to rest.  0: it has; -1: the switch is off. */
static int bring_to_rest(sg_server *server, sg_session *out) {
    struct sg_residency *r = &server->residency;
    const struct sg_hal_table *hal = server->hal;
    int32_t error = SG_CUDA_NOT_READY;
    out->turn.leaving = 1;
    attend(out, SG_ATTEND_HOLD);
    hold(r, out);
    while (out->turn.inside != 0) wait_changed(r, 0);
    while (error != SG_CUDA_SUCCESS && !is_over(out) && !atomic_load(&r->stopping)) {
        if (error != SG_CUDA_NOT_READY) wait_changed(r, sg_now_ns() + PROBE_NS); /* it could not look: soon, perhaps */
        pthread_mutex_unlock(&r->lock);
        error = hal->settle(hal->state, PROBE_NS);
        pthread_mutex_lock(&r->lock);
    }
    return is_over(out) || atomic_load(&r->stopping) ? -1 : 0;
}

static void change_hands(sg_server *server, sg_session *out, sg_session *in, uint64_t cost) {
    struct sg_residency *r = &server->residency;
    uint64_t now = sg_now_ns();
    account(r, now);
    if (out != NULL) {
        atomic_store(&out->turn.resident, 0);
        attend(out, SG_ATTEND_AWAY);
        attend_not(out, SG_ATTEND_WATCH);
        sg_count(in, SG_COUNT_SWITCHES, 1);
    }
    atomic_store(&in->turn.resident, 1);
    attend_not(in, SG_ATTEND_AWAY);
    r->busy = CALL_RUNS; /* it wanted the device for something */
    sg_slicer_switched(&r->slicer, in->slot, now, cost);
    open_gates(in);
}

static void tell_lost(sg_session *s, int32_t error, const char *way) {
    if (error == 0) return;
    fprintf(stderr, "singularity: rank %u: its memory could not be moved %s device %d (CUresult %d): its session is closed\n",
            s->rank, way, s->server->device, error);
    sg_session_end(s, SG_ABORTS, SG_DEAD_PROXY);
}

static void switch_to(sg_server *server, uint32_t to) {
    struct sg_residency *r = &server->residency;
    sg_session *out = resident(r), *in = r->sessions[to];
    struct sg_swap swap = {0};
    r->switching = 1;
    int off = out != NULL && bring_to_rest(server, out) != 0;
    if (!off && !is_over(in) && !in->turn.ends) {
        in->turn.moving = 1;
        if (out != NULL) out->turn.moving = 1;
        while (in->turn.pins != 0 || (out != NULL && out->turn.pins != 0)) wait_changed(r, 0);
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
        attend_not(out, SG_ATTEND_HOLD);
        if (may_open(out)) open_gates(out); /* it stays: those that came meanwhile */
        release(out);
    }
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock); /* `switching` keeps both from going */
    if (out != NULL) tell_lost(out, swap.out_error, "from");
    tell_lost(in, swap.in_error, "to");
    pthread_mutex_lock(&r->lock);
    r->switching = 0;
    pthread_cond_broadcast(&r->changed);
}

static void *slicer_main(void *argument) {
    sg_server *server = argument;
    struct sg_residency *r = &server->residency;
    const struct sg_hal_table *hal = server->hal;
    pthread_mutex_lock(&r->lock);
    while (!atomic_load(&r->stopping)) {
        uint64_t now = sg_now_ns();
        int others = look(server, now);
        struct sg_slice_decision decision = sg_slicer_decide(&r->slicer, now);
        uint64_t until = now + (others ? PROBE_NS : IDLE_NS);
        if (decision.again_ns != 0 && decision.again_ns < until) until = decision.again_ns;
        if (r->switching) {
            wait_changed(r, until); /* a burial */
        } else if (decision.what == SG_SLICE_SWITCH) {
            switch_to(server, decision.to);
        } else if (others && r->busy == DEVICE_RUNS && until > now) {
            pthread_mutex_unlock(&r->lock); /* its end is worth knowing at once */
            int32_t error = hal->settle(hal->state, until - now);
            pthread_mutex_lock(&r->lock);
            if (error != SG_CUDA_SUCCESS && error != SG_CUDA_NOT_READY) wait_changed(r, until);
        } else {
            wait_changed(r, until);
        }
    }
    pthread_mutex_unlock(&r->lock);
    return NULL;
}

/* ---- coming and going ---------------------------------------------------------------------------------------------------- */
int sg_residency_sliceable(const sg_server *server) {
    const struct sg_hal_table *hal = server->hal;
    return SG_HAL_HAS(hal, copy_to_host) && SG_HAL_HAS(hal, copy_to_device) && SG_HAL_HAS(hal, gate_make) &&
           SG_HAL_HAS(hal, settle) && SG_HAL_HAS(hal, discard);
}

static int start(sg_server *server) {
    struct sg_residency *r = &server->residency;
    sigset_t all, before;
    if (r->started) return 0;
    sigfillset(&all);
    sigdelset(&all, SIGBUS), sigdelset(&all, SIGSEGV), sigdelset(&all, SIGFPE), sigdelset(&all, SIGILL);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = -pthread_create(&r->thread, NULL, slicer_main, server);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    r->started = error == 0;
    return error;
}

int sg_residency_join(sg_session *s, char why[96]) {
    struct sg_residency *r = of(s);
    int error = 0;
    pthread_mutex_lock(&r->lock);
    if (atomic_load(&r->count) != 0) {
        error = sg_residency_sliceable(s->server) ? start(s->server) : -ENOTSUP;
        if (error != 0)
            snprintf(why, 96, error == -ENOTSUP ? "rank %u: device %d cannot be shared by ranks; give each one of its own"
                                                : "rank %u: no thread to share device %d", s->rank, s->server->device);
    }
    if (error == 0) {
        uint64_t now = sg_now_ns();
        int alone = r->slicer.resident == SG_SLICER_NOBODY && atomic_load(&r->count) == 0;
        if (!alone) attend(s, SG_ATTEND_AWAY);
        if (r->paused) attend(s, SG_ATTEND_PAUSE);
        r->sessions[s->slot] = s;
        s->turn.joined = 1;
        atomic_fetch_add(&r->count, 1);
        account(r, now);
        sg_slicer_set(&r->slicer, s->slot, SG_SLICE_PRESENT, now);
        if (alone) {
            atomic_store(&s->turn.resident, 1);
            sg_slicer_switched(&r->slicer, s->slot, now, 0);
        }
        pthread_cond_broadcast(&r->changed);
    }
    pthread_mutex_unlock(&r->lock);
    return error;
}

static void discard_context(void *argument, void *physical) {
    sg_server *server = argument;
    if (server->base.context_set(physical) == 0) server->hal->discard(server->hal->state);
}

void sg_residency_discard(sg_session *s) {
    struct sg_residency *r = of(s);
    if (SG_HAL_HAS(s->server->hal, discard)) sg_handles_visit(&s->handles, SG_KIND_CONTEXT, discard_context, s->server);
    pthread_mutex_lock(&r->lock);
    s->turn.discarded = 1;
    open_gates(s);
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
}

void sg_residency_ends(sg_session *s) {
    struct sg_residency *r = of(s);
    pthread_mutex_lock(&r->lock);
    s->turn.ends = 1;
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
}

void sg_residency_leave(sg_session *s) {
    struct sg_residency *r = of(s);
    pthread_mutex_lock(&r->lock);
    if (!s->turn.joined) {
        pthread_mutex_unlock(&r->lock);
        return;
    }
    while (r->switching || s->turn.pins != 0) wait_changed(r, 0);
    r->switching = 1; /* nobody comes to the device while we clear it */
    pthread_mutex_unlock(&r->lock);
    sg_memory_end(s);
    sg_image_close(s);
    pthread_mutex_lock(&r->lock);
    uint64_t now = sg_now_ns();
    account(r, now);
    r->sessions[s->slot] = NULL;
    sg_slicer_set(&r->slicer, s->slot, 0, now);
    if (s->turn.resident) sg_slicer_switched(&r->slicer, SG_SLICER_NOBODY, now, 0);
    atomic_store(&s->turn.resident, 0);
    s->turn.joined = r->switching = 0;
    atomic_fetch_sub(&r->count, 1);
    free(s->turn.gates);
    s->turn.gates = NULL;
    s->turn.gate_count = s->turn.gate_room = 0;
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
}

void sg_residency_tick(sg_server *server) {
    struct sg_residency *r = &server->residency;
    pthread_mutex_lock(&r->lock);
    if (!r->started && atomic_load(&r->count) != 0) look(server, sg_now_ns());
    pthread_mutex_unlock(&r->lock);
}

void sg_residency_open(sg_server *server, uint64_t wait_ns, uint64_t quantum_ns) {
    struct sg_residency *r = &server->residency;
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    sg_slicer_init(&r->slicer, wait_ns, quantum_ns);
    r->accounted = sg_now_ns();
}

void sg_residency_close(sg_server *server) {
    struct sg_residency *r = &server->residency;
    pthread_mutex_lock(&r->lock);
    atomic_store(&r->stopping, 1);
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
    if (r->started) pthread_join(r->thread, NULL);
    r->started = 0;
    pthread_mutex_destroy(&r->lock);
    pthread_cond_destroy(&r->changed);
}

/* ---- the cut ---------------------------------------------------------------------------------------------------------------- */
static int all_held(struct sg_residency *r) {
    int held = !r->switching;
    for (uint32_t i = 0; i < SG_SLICER_SLOTS; i++) {
        sg_session *s = r->sessions[i];
        if (s == NULL || is_over(s) || s->turn.parked || s->turn.lead_ours) continue;
        if (sg_lead_take(s)) s->turn.lead_ours = 1;
        else held = 0;
    }
    for (uint32_t i = 0; i < SG_SLICER_SLOTS; i++) held = held && (r->sessions[i] == NULL || r->sessions[i]->turn.inside == 0);
    return held;
}

static void end_rest(struct sg_residency *r) {
    r->slicer.held = 0;
    if (resident(r) != NULL && may_open(resident(r))) open_gates(resident(r));
}

int sg_server_hold_all(sg_server *server, int on, uint64_t timeout_ns) {
    struct sg_residency *r = &server->residency;
    uint64_t until = sg_now_ns() + timeout_ns;
    int held = 1;
    pthread_mutex_lock(&r->lock);
    r->paused = on != 0;
    if (!on) end_rest(r);
    for (uint32_t i = 0; i < SG_SLICER_SLOTS; i++) {
        sg_session *s = r->sessions[i];
        if (s == NULL) continue;
        if (on) {
            attend(s, SG_ATTEND_PAUSE);
        } else {
            attend_not(s, SG_ATTEND_PAUSE);
            release(s);
        }
    }
    pthread_cond_broadcast(&r->changed);
    while (on && !(held = all_held(r)) && sg_now_ns() < until) wait_changed(r, until < sg_now_ns() + PROBE_NS ? until : sg_now_ns() + PROBE_NS);
    pthread_mutex_unlock(&r->lock);
    return held ? 0 : -ETIMEDOUT;
}

int sg_residency_rest(sg_server *server) {
    struct sg_residency *r = &server->residency;
    const struct sg_hal_table *hal = server->hal;
    pthread_mutex_lock(&r->lock);
    int rests = r->paused && !r->switching && SG_HAL_HAS(hal, settle);
    for (uint32_t i = 0; i < SG_SLICER_SLOTS; i++) rests = rests && (r->sessions[i] == NULL || r->sessions[i]->turn.gate_count == 0);
    if (rests) {
        /* First no gate opens any more, then we look: a host function may return at any moment, and what follows it
         * must not begin between the two. */
        r->slicer.held = 1;
        rests = hal->settle(hal->state, 0) == SG_CUDA_SUCCESS;
        if (!rests) end_rest(r);
    }
    pthread_mutex_unlock(&r->lock);
    return rests;
}
