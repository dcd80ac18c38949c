/* What everybody asks of the sessions that share a device: may I, is it there, who comes, who goes.  switcher.c gives the device
 * to one after the other.
 *
 * One lock guards all turns of a device; every wait is on one condition, because there are few sessions and a switch
 * costs far more than a few threads that wake up in vain.  A session is *held* when its leader is parked in
 * sg_leader_turn, or when nobody led and we took the lead. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#include "swapper.h"
#include "turns.h"

#define ERROR_ILLEGAL_ADDRESS 700

/* ---- small things ---------------------------------------------------------------------------------------- */
void sg_residency_stir(sg_session *s) {
    struct sg_residency *r = sg_residency_of(s);
    pthread_mutex_lock(&r->lock);
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
}

int sg_device_resident(const sg_session *s) { return atomic_load(&s->turn.resident); }
int sg_device_shared(const sg_session *s) { return atomic_load_explicit(&sg_residency_of(s)->count, memory_order_relaxed) > 1; }

/* `s` waits for the device; the lock is held. */
static void await_turn(sg_session *s, struct sg_residency *r) {
    s->turn.wanting++;
    pthread_cond_broadcast(&r->changed);
    sg_wait_changed(r, 0);
    s->turn.wanting--;
}

/* ---- handlers ----------------------------------------------------------------------------------------------- */
int32_t sg_device_enter(sg_session *s) {
    struct sg_residency *r = sg_residency_of(s);
    int32_t result = SG_CUDA_SUCCESS;
    pthread_mutex_lock(&r->lock);
    while (!sg_turn_is_over(s) && (!s->turn.resident || s->turn.leaving || r->slicer.held)) {
        if (s->turn.resident) sg_wait_changed(r, 0);
        else await_turn(s, r);
    }
    if (sg_turn_is_over(s)) result = SG_CUDA_CONTEXT_DESTROYED;
    else s->turn.inside++;
    pthread_mutex_unlock(&r->lock);
    return result;
}

void sg_device_leave(sg_session *s) {
    struct sg_residency *r = sg_residency_of(s);
    pthread_mutex_lock(&r->lock);
    s->turn.inside--;
    if (atomic_load_explicit(&s->turn.attention, memory_order_relaxed) != 0 || r->paused) pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
}

int sg_device_pin(sg_session *s) {
    struct sg_residency *r = sg_residency_of(s);
    pthread_mutex_lock(&r->lock);
    while (s->turn.moving) sg_wait_changed(r, 0);
    s->turn.pins++;
    int resident = s->turn.resident;
    pthread_mutex_unlock(&r->lock);
    return resident;
}

void sg_device_unpin(sg_session *s) {
    struct sg_residency *r = sg_residency_of(s);
    pthread_mutex_lock(&r->lock);
    if (--s->turn.pins == 0 && (r->switching || s->turn.ends)) pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
}

int sg_leader_turn(sg_session *s, int touches) {
    struct sg_residency *r = sg_residency_of(s);
    uint32_t attention = atomic_load(&s->turn.attention);
    int result = -1;
    if ((attention & ~(uint32_t)SG_ATTEND_WATCH) != 0) {
        pthread_mutex_lock(&r->lock);
        while (result < 0) {
            attention = atomic_load(&s->turn.attention);
            int away = touches && (attention & SG_ATTEND_AWAY);
            if (sg_turn_is_over(s)) result = 0;
            else if (!away && (attention & (SG_ATTEND_HOLD | SG_ATTEND_PAUSE)) == 0) result = 1;
            if (result >= 0) break;
            s->turn.parked = 1;
            if (away && (attention & SG_ATTEND_PAUSE) == 0) {
                await_turn(s, r);
            } else {
                pthread_cond_broadcast(&r->changed);
                sg_wait_changed(r, 0);
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
    struct sg_residency *r = sg_residency_of(s);
    pthread_mutex_lock(&r->lock);
    s->turn.parked = 1;
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
}

void sg_leader_unpark(sg_session *s) {
    struct sg_residency *r = sg_residency_of(s);
    pthread_mutex_lock(&r->lock);
    while (!sg_turn_is_over(s) && (atomic_load(&s->turn.attention) & (SG_ATTEND_HOLD | SG_ATTEND_PAUSE)) != 0) sg_wait_changed(r, 0);
    s->turn.parked = 0;
    pthread_mutex_unlock(&r->lock);
}

void sg_residency_misses(sg_session *s, int misses) {
    struct sg_residency *r = sg_residency_of(s);
    pthread_mutex_lock(&r->lock);
    s->turn.misses = misses;
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
}

/* ---- gates ------------------------------------------------------------------------------------------------------ */
int sg_gates_may_open(const sg_session *s) {
    return s->turn.discarded || !s->turn.joined || (s->turn.resident && !s->turn.leaving && !sg_residency_of(s)->slicer.held);
}

void sg_gates_open_due(sg_session *s) {
    const struct sg_hal_table *hal = s->server->hal;
    for (uint32_t i = 0; i < s->turn.gate_count; i++) hal->gate_open(hal->state, s->turn.gates[i]);
    s->turn.gate_count = 0;
}

void sg_gate_open(sg_session *s, uint64_t gate) {
    struct sg_residency *r = sg_residency_of(s);
    struct sg_turn *turn = &s->turn;
    int lost = 0;
    pthread_mutex_lock(&r->lock);
    if (!sg_gates_may_open(s) && turn->gate_count == turn->gate_room) {
        uint32_t room = turn->gate_room * 2 + 16;
        uint64_t *gates = realloc(turn->gates, room * sizeof *gates);
        lost = gates == NULL;
        if (!lost) turn->gates = gates, turn->gate_room = room;
    }
    if (sg_gates_may_open(s)) s->server->hal->gate_open(s->server->hal->state, gate);
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
    int error = -pthread_create(&r->thread, NULL, sg_switcher_main, server);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    r->started = error == 0;
    return error;
}

int sg_residency_full(const sg_server *server) { return atomic_load(&server->residency.count) >= SG_SLICER_SLOTS; }

static uint32_t free_place(const struct sg_residency *r) {
    uint32_t place = 0;
    while (place < SG_SLICER_SLOTS && r->sessions[place] != NULL) place++;
    return place;
}

int sg_residency_join(sg_session *s, char why[96]) {
    struct sg_residency *r = sg_residency_of(s);
    int error = 0;
    pthread_mutex_lock(&r->lock);
    s->turn.place = free_place(r);
    if (s->turn.place == SG_SLICER_SLOTS) {
        error = -EBUSY;
        snprintf(why, 96, "all %u sessions of this device proxy are taken", SG_SLICER_SLOTS);
    } else if (atomic_load(&r->count) != 0 || s->resumes) {
        error = sg_residency_sliceable(s->server) ? start(s->server) : -ENOTSUP;
        if (error != 0)
            snprintf(why, 96, error == -ENOTSUP ? "rank %u: device %d cannot be shared by ranks; give each one of its own"
                                                : "rank %u: no thread to share device %d", s->rank, s->server->device);
    }
    if (error == 0) {
        uint64_t now = sg_now_ns();
        int alone = r->slicer.resident == SG_SLICER_NOBODY && atomic_load(&r->count) == 0 && !s->resumes; /* its bytes are elsewhere */
        if (!alone) sg_attend(s, SG_ATTEND_AWAY);
        if (r->paused) sg_attend(s, SG_ATTEND_PAUSE);
        r->sessions[s->turn.place] = s;
        s->turn.joined = 1;
        atomic_fetch_add(&r->count, 1);
        sg_turns_account(r, now);
        sg_slicer_set(&r->slicer, s->turn.place, SG_SLICE_PRESENT, now);
        if (alone) {
            atomic_store(&s->turn.resident, 1);
            sg_slicer_switched(&r->slicer, s->turn.place, now, 0);
        }
        pthread_cond_broadcast(&r->changed);
    }
    pthread_mutex_unlock(&r->lock);
    return error;
}

static void discard_context(void *argument, uint64_t handle, void *physical, void *context) {
    sg_server *server = argument;
    (void)handle, (void)context;
    if (server->base.context_set(physical) == 0) server->hal->discard(server->hal->state);
}

void sg_residency_discard(sg_session *s) {
    struct sg_residency *r = sg_residency_of(s);
    if (SG_HAL_HAS(s->server->hal, discard)) sg_handles_visit(&s->handles, SG_KIND_CONTEXT, discard_context, s->server);
    pthread_mutex_lock(&r->lock);
    s->turn.discarded = 1;
    sg_gates_open_due(s);
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
}

void sg_residency_ends(sg_session *s) {
    struct sg_residency *r = sg_residency_of(s);
    pthread_mutex_lock(&r->lock);
    s->turn.ends = 1;
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
}

void sg_residency_leave(sg_session *s) {
    struct sg_residency *r = sg_residency_of(s);
    pthread_mutex_lock(&r->lock);
    if (!s->turn.joined) {
        pthread_mutex_unlock(&r->lock);
        return;
    }
    while (r->switching || s->turn.pins != 0) sg_wait_changed(r, 0);
    r->switching = 1; /* nobody comes to the device while we clear it */
    pthread_mutex_unlock(&r->lock);
    sg_memory_end(s);
    sg_image_close(s);
    pthread_mutex_lock(&r->lock);
    uint64_t now = sg_now_ns();
    sg_turns_account(r, now);
    r->sessions[s->turn.place] = NULL;
    sg_slicer_set(&r->slicer, s->turn.place, 0, now);
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
    if (!r->started && atomic_load(&r->count) != 0) sg_turns_look(server, sg_now_ns());
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
void sg_turn_release(sg_session *s) {
    if ((atomic_load(&s->turn.attention) & (SG_ATTEND_HOLD | SG_ATTEND_PAUSE)) != 0 || !s->turn.lead_ours) return;
    s->turn.lead_ours = 0;
    sg_lead_give(s);
}

static int all_held(struct sg_residency *r) {
    int held = !r->switching;
    for (uint32_t i = 0; i < SG_SLICER_SLOTS; i++) {
        sg_session *s = r->sessions[i];
        if (s == NULL || sg_turn_is_over(s) || s->turn.parked || s->turn.lead_ours) continue;
        if (sg_lead_take(s)) s->turn.lead_ours = 1;
        else held = 0;
    }
    for (uint32_t i = 0; i < SG_SLICER_SLOTS; i++) held = held && (r->sessions[i] == NULL || r->sessions[i]->turn.inside == 0);
    return held;
}

static void end_rest(struct sg_residency *r) {
    r->slicer.held = 0;
    if (sg_resident(r) != NULL && sg_gates_may_open(sg_resident(r))) sg_gates_open_due(sg_resident(r));
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
            sg_attend(s, SG_ATTEND_PAUSE);
        } else {
            sg_attend_not(s, SG_ATTEND_PAUSE);
            sg_turn_release(s);
        }
    }
    pthread_cond_broadcast(&r->changed);
    while (on && !(held = all_held(r)) && sg_now_ns() < until) sg_wait_changed(r, until < sg_now_ns() + SG_PROBE_NS ? until : sg_now_ns() + SG_PROBE_NS);
    pthread_mutex_unlock(&r->lock);
    return held ? 0 : -ETIMEDOUT;
}

int sg_residency_in_ranks(sg_server *server, uint64_t *through) {
    struct sg_residency *r = &server->residency;
    int found = 0;
    *through = 0;
    pthread_mutex_lock(&r->lock);
    for (uint32_t i = 0; i < SG_SLICER_SLOTS; i++) {
        if (r->sessions[i] != NULL) found |= sg_host_functions_run(r->sessions[i], through);
    }
    pthread_mutex_unlock(&r->lock);
    return found;
}

int sg_residency_rest(sg_server *server) {
    struct sg_residency *r = &server->residency;
    pthread_mutex_lock(&r->lock);
    int rests = r->paused && !r->switching && SG_HAL_HAS(server->hal, settle);
    for (uint32_t i = 0; rests && i < SG_SLICER_SLOTS; i++) {
        const sg_session *s = r->sessions[i];
        rests = s == NULL || (s->turn.gate_count == 0 && s->turn.inside == 0 && s->turn.wanting == 0);
    }
    if (rests) {
        /* First no gate opens any more, then we look: a host function may return at any moment, and what follows it
         * must not begin between the two. */
        r->slicer.held = 1;
        rests = !sg_device_runs(server);
        if (!rests) end_rest(r);
    }
    pthread_mutex_unlock(&r->lock);
    return rests;
}
