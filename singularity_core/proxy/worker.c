/* The threads that drain a session's ring.  See server.h for leader and follower, wait.h for the flags.
 *
 * `lead` is HELD while some thread drains.  Who gives it up sets `sleeping` first, and looks at the ring once
 * more after; who takes it clears `sleeping`.  A producer that published and saw `sleeping` rings the
 * doorbell, on which every thread without work sleeps.  So a message is never left behind: either its
 * producer saw `sleeping`, or the thread that set it sees the message.
 *
 * All that costs several trips of a cache line between rank and proxy.  So for a call of a rank that says that it
 * has one thread, which waits, the lead is only put ON_OFFER, a word that the rank does not see.  Should a second
 * thread come, it rings the doorbell after its first message.  Who wakes from that either may take the lead, or leaves
 * `wanted` for the holder to see once it has put the lead on offer. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#include "../exchange/engine.h"
#include "session.h"

#define THREADS_MAX (SG_REPLY_SLOTS + 8) /* each waiting rank thread may hold one of ours */
#define OFFER_ROOM_EVERY (SG_RING_LINES / 16)
#ifndef SG_FOLLOWER_MS /* the doorbell is in the rank's hands; a test makes this long, so that a lost wake-up is seen */
#define SG_FOLLOWER_MS 500u
#endif

_Thread_local struct sg_worker *sg_current_worker;

/* ---- executing ----------------------------------------------------------------------------------------- */
static int32_t make_current(struct sg_worker *w, uint32_t index) {
    sg_session *s = w->session;
    void *physical = NULL;
    if (index == 0) {
        w->context = 0;
    } else if (SG_HANDLE_INDEX(w->context) != index ||
               (physical = sg_handles_get(&s->handles, SG_KIND_CONTEXT, w->context)) == NULL) { /* not the one before */
        w->context = sg_handles_at(&s->handles, SG_KIND_CONTEXT, index);
        physical = sg_handles_get(&s->handles, SG_KIND_CONTEXT, w->context);
        if (physical == NULL) return SG_CUDA_CONTEXT_DESTROYED;
    }
    if (physical == w->current) return SG_CUDA_SUCCESS;
    int32_t error = s->server->base.context_set(physical);
    w->current = error == 0 ? physical : SG_CONTEXT_UNKNOWN;
    return error;
}

int32_t sg_worker_execute(struct sg_worker *w, const struct sg_request *request, struct sg_answer *answer) {
    const struct sg_op *op = &sg_ops[request->op];
    w->made_count = 0;
    if (op->flags & SG_OP_NO_CONTEXT) {
        w->context = request->context == 0 ? 0 : sg_handles_at(&w->session->handles, SG_KIND_CONTEXT, request->context);
        int32_t result = op->handler(w->session, request, answer);
        w->current = SG_CONTEXT_UNKNOWN; /* such calls may create, push or destroy contexts */
        return result;
    }
    int32_t error = make_current(w, request->context);
    return error != 0 ? error : op->handler(w->session, request, answer);
}

static void send_reply(sg_session *s, uint16_t index, uint32_t call, int32_t result, const struct sg_answer *answer) {
    struct sg_reply_slot *slot = &s->replies[index];
    uint32_t bytes = answer->bytes <= SG_REPLY_PAYLOAD ? answer->bytes : SG_REPLY_PAYLOAD;
#if defined(__SANITIZE_THREAD__) /* who replied here before may have lost the lead by then: only the rank orders us */
    (void)atomic_load(&slot->done);
#endif
    if (bytes != 0) memcpy(slot->payload, answer->payload, bytes);
    slot->status = result;
    slot->bytes = bytes;
    atomic_store(&slot->done, call);
    if (atomic_load(&slot->waiting)) sg_futex_wake(&slot->done, 1);
}

/* ---- the lead -------------------------------------------------------------------------------------------- */
static int ring_ready(sg_session *s) { return sg_ring_ready(s->ring, atomic_load(&s->head)); }

static int take_lead(sg_session *s) {
    uint32_t found = atomic_load(&s->lead);
    if (found == SG_LEAD_HELD || !atomic_compare_exchange_strong(&s->lead, &found, SG_LEAD_HELD)) return 0;
    if (found == SG_LEAD_VACANT) atomic_store(&s->page->sleeping, 0);
    return 1;
}

static void vacate(sg_session *s) {
    sg_ring_offer_room(s->page, atomic_load(&s->head));
    s->sleeps += s->sleeps == UINT32_MAX ? 2 : 1;
    atomic_store(&s->page->sleeping, s->sleeps);
    atomic_store(&s->lead, SG_LEAD_VACANT);
}

/* The slicer waits for the lead, or for idleness. */
static void tell_slicer(sg_session *s) {
    if (atomic_load(&s->turn.attention) != 0) sg_residency_stir(s);
}

static void give_lead(sg_session *s) {
    vacate(s);
    tell_slicer(s);
}

/* As above, with nothing left to do.  What a rank has posted lightly, before it could see `sleeping`, is visible
 * to us after the barrier.  Lending the lead needs none: while a call is in flight, ranks post heavily. */
static void rest(sg_session *s) {
    give_lead(s);
    if (s->server->barriers) sg_membarrier(MEMBARRIER_CMD_GLOBAL_EXPEDITED);
}

void sg_worker_wake_all(sg_session *s) { sg_ring_bell(s->page, INT_MAX); }

int sg_lead_take(sg_session *s) { return take_lead(s); }

void sg_lead_give(sg_session *s) {
    vacate(s);
    if (s->server->barriers) sg_membarrier(MEMBARRIER_CMD_GLOBAL_EXPEDITED);
    if (atomic_load(&s->ending) != SG_GOES_ON) sg_ring_bell(s->page, INT_MAX);
    else if (ring_ready(s)) sg_ring_bell(s->page, 1);
}

/* Sleeps until there is work and the lead is vacant: 1, with the lead; 0: the session is over. */
static int await_lead(sg_session *s) {
    int result = -1;
    atomic_fetch_add(&s->idle, 1);
    while (result < 0) {
        uint32_t seen = atomic_load(&s->page->doorbell), ending = atomic_load(&s->ending);
        int ready = ring_ready(s) || atomic_load(&s->faulted);
        if (ready) atomic_store(&s->wanted, 1);
        int held = atomic_load(&s->lead) == SG_LEAD_HELD;
        if (ending == SG_ABORTS || (ending == SG_DRAINS && !held && !ready)) result = 0;
        else if (!held && ready && take_lead(s)) result = 1;
        else sg_futex_wait(&s->page->doorbell, seen, SG_FOLLOWER_MS);
    }
    atomic_fetch_sub(&s->idle, 1);
    return result;
}

static int start_thread(sg_session *s);

/* Lets another thread drain while this one blocks.  0: there is none, so the lead is kept. */
static int lend_lead(sg_session *s, int alone) {
    if (atomic_load(&s->idle) == 0 && start_thread(s) != 0) return 0;
    if (alone) {
        atomic_store(&s->lead, SG_LEAD_ON_OFFER);
        tell_slicer(s);
        if (atomic_load(&s->wanted) == 0) return 1;
        atomic_store(&s->wanted, 0);
    } else {
        give_lead(s);
    }
    if (ring_ready(s)) sg_ring_bell(s->page, 1);
    return 1;
}

static void violation(sg_session *s, const char *what) {
    sg_count(s, SG_COUNT_REJECTED, 1);
    fprintf(stderr, "singularity: rank %u broke the protocol (%s): its session on device %d is closed\n", s->rank, what,
            s->server->device);
    sg_session_end(s, SG_ABORTS, SG_DEAD_PROTOCOL);
}

enum { LEADS_NOT = 0 /* another does, or the session ended */, LEADS = 1, LEADS_HELD = 2 /* the message must stay in the ring */ };

/* Executes the message in w->message. */
static int serve(struct sg_worker *w) {
    sg_session *s = w->session;
    const struct sg_message *message = (const struct sg_message *)w->message;
    struct sg_request request = {message->op, message->bytes, message->context, message->reply, message->payload};
    struct sg_answer answer = {0, w->answer};
    uint32_t call = message->call;
    int replies = request.reply != SG_NO_REPLY;
    if (request.op >= sg_op_count || (replies && request.reply >= SG_REPLY_SLOTS)) {
        violation(s, request.op >= sg_op_count ? "unknown call" : "reply slot out of range");
        return LEADS_NOT;
    }
    uint32_t flags = sg_ops[request.op].flags;
    if ((flags & SG_OP_BLOCKS) && !replies) { /* it would run in the leader, and nobody could stop it there */
        violation(s, "a call that blocks, and no thread that waits for it");
        return LEADS_NOT;
    }
    if (s->last_op != NULL) __atomic_store_n(s->last_op, request.op, __ATOMIC_RELAXED);
    if (flags & SG_OP_LAUNCHES) sg_count(s, SG_COUNT_LAUNCHES, 1);
    if (flags & SG_OP_WAITS) atomic_fetch_add(&s->turn.waiting, 1); /* known before the lead is given up */
    if (flags & SG_OP_BLOCKS) atomic_fetch_add(&s->calls, 1); /* likewise */
    int lent = (flags & SG_OP_BLOCKS) && lend_lead(s, message->flags & SG_MESSAGE_ALONE);
    int32_t result;
    if ((flags & SG_OP_BLOCKS) && !lent && sg_device_shared(s)) {
        violation(s, "a call that blocks, and no thread to wait in"); /* others would wait for it, too */
        result = SG_CUDA_UNKNOWN;
    } else {
        result = sg_worker_execute(w, &request, &answer);
    }
    if (result == SG_HELD) return LEADS_HELD;
    if (flags & SG_OP_WAITS) atomic_fetch_sub(&s->turn.waiting, 1);
    if (result == SG_CUDA_NOT_READY) atomic_store_explicit(&s->turn.polled, 1, memory_order_relaxed);
    int leads = !lent || take_lead(s) ? LEADS : LEADS_NOT; /* before the reply: else its reader would wake a follower in vain */
    if (result != SG_CUDA_SUCCESS && (!replies || sg_sticky((uint32_t)result))) sg_session_note_error(s, result);
    /* an aborted call has no result worth having: its thread learns that the session is dead */
    if (replies && atomic_load(&s->ending) != SG_ABORTS) send_reply(s, request.reply, call, result, &answer);
    if (flags & SG_OP_BLOCKS) atomic_fetch_sub(&s->calls, 1);
    return leads;
}

/* The next message while the session shares its device: as sg_ring_read, but none that may not run now. */
static int take_in_turn(struct sg_worker *w, uint64_t *head) {
    sg_session *s = w->session;
    struct sg_message *message = (struct sg_message *)w->message;
    uint32_t op;
    if (!sg_ring_peek(s->ring, *head, &op)) return 0;
    int touches = op < sg_op_count && (sg_ops[op].flags & SG_OP_TOUCHES) != 0;
    if (!sg_leader_turn(s, touches)) return 0;
    int got = sg_ring_read(s->ring, head, message);
    int touched = got > 0 && message->op < sg_op_count && (sg_ops[message->op].flags & SG_OP_TOUCHES) != 0;
    return touched && !touches ? -1 : got; /* it was another call when it was looked at */
}

static int may_block(const struct sg_message *message) {
    return message->op < sg_op_count && (sg_ops[message->op].flags & SG_OP_BLOCKS) != 0;
}

/* What lies before `head` is the rank's again. */
static void move_head(sg_session *s, uint64_t head) {
    atomic_store_explicit(&s->head, head, memory_order_release);
    atomic_store_explicit(&s->page->head, head, memory_order_release);
}

/* The cut holds the rank before the message: the session counts as held, and others may have the device. */
static void await_cut(sg_session *s) {
    sg_leader_park(s);
    sg_party_await(s->party);
    sg_leader_unpark(s);
}

/* Until the lead is gone or the session ends. */
static void drain(struct sg_worker *w) {
    sg_session *s = w->session;
    struct sg_patience patience = {0};
    uint64_t head = atomic_load(&s->head), offered = head, messages = 0;
    int leads = LEADS;
    while (leads) {
        uint64_t before = head;
        uint32_t attention = atomic_load_explicit(&s->turn.attention, memory_order_relaxed);
        int got = attention == 0 ? sg_ring_read(s->ring, &head, (struct sg_message *)w->message) : take_in_turn(w, &head);
        uint32_t ending = atomic_load_explicit(&s->ending, memory_order_acquire);
        if (atomic_load_explicit(&s->faulted, memory_order_relaxed)) {
            violation(s, "it truncated a shared file");
            break;
        }
        if (ending == SG_ABORTS) break;
        if (got > 0) {
            int blocks = may_block((struct sg_message *)w->message);
            if (blocks) move_head(s, head); /* who gets the lead goes on there */
            leads = serve(w);
            if (leads == LEADS_HELD) head = before, await_cut(s);
            else messages++;
            if (blocks && leads) head = atomic_load_explicit(&s->head, memory_order_acquire);
            else if (!blocks) move_head(s, head); /* only now: a message that is held must stay where it is */
            if (attention != 0 && leads) atomic_store(&s->turn.touching, 0);
            if (leads && head - offered > OFFER_ROOM_EVERY) sg_ring_offer_room(s->page, offered = head);
            patience = (struct sg_patience){0};
        } else if (got < 0) {
            violation(s, "malformed message");
            break;
        } else if (ending == SG_DRAINS || (attention & (SG_ATTEND_HOLD | SG_ATTEND_PAUSE)) != 0 ||
                   !sg_patience_left(&patience)) {
            break;
        }
    }
    if (messages != 0) sg_count(s, SG_COUNT_MESSAGES, messages);
    if (!leads) return;
    rest(s);
    if (atomic_load(&s->ending) != SG_GOES_ON) sg_worker_wake_all(s); /* the others wait for this to end too */
}

/* ---- threads ----------------------------------------------------------------------------------------------- */
int sg_worker_open(struct sg_worker *w, sg_session *s) {
    *w = (struct sg_worker){.session = s, .current = SG_CONTEXT_UNKNOWN};
    w->message = aligned_alloc(SG_LINE, SG_MAX_MESSAGE_LINES * SG_LINE);
    w->answer = aligned_alloc(SG_LINE, SG_REPLY_PAYLOAD + 32);
    return w->message == NULL || w->answer == NULL ? -ENOMEM : 0;
}

void sg_worker_close(struct sg_worker *w) {
    free(w->message);
    free(w->answer);
    free(w->made);
}

static void *worker_main(void *argument) {
    sg_session *s = argument;
    struct sg_worker worker;
    int good = sg_worker_open(&worker, s) == 0;
    sg_current_worker = &worker;
    if (good)
        while (await_lead(s)) drain(&worker);
    else sg_session_end(s, SG_ABORTS, SG_DEAD_PROXY);
    sg_current_worker = NULL;
    s->server->base.context_set(NULL);
    sg_worker_close(&worker);
    sg_session_leave(s);
    return NULL;
}

static int start_thread(sg_session *s) {
    pthread_attr_t attributes;
    pthread_t thread;
    sigset_t all, before;
    int error = sg_session_join(s, THREADS_MAX);
    if (error != 0) return error;
    /* signals are the main thread's business; faults must come through */
    sigfillset(&all);
    sigdelset(&all, SIGBUS), sigdelset(&all, SIGSEGV), sigdelset(&all, SIGFPE), sigdelset(&all, SIGILL);
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    error = -pthread_create(&thread, &attributes, worker_main, s);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    if (error != 0) sg_session_leave(s);
    return error;
}

int sg_worker_start(sg_session *s) { return start_thread(s); }
