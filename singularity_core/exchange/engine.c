/* The engine's thread: takes requests, turns every communicator, and sleeps when nothing moves. */
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../transport/process_start.h"
#include "../transport/wait.h"
#include "parts.h"

#define WATCH_NS 100000000ull /* how often peers are looked after */

/* ---- requests ----------------------------------------------------------------------------------------------------- */
void sg_engine_ring(sg_engine *engine) { engine->transport.ring(engine->transport.state, engine->options.proxy_index); }

static void put(sg_engine *engine, struct sg_request_item *item) {
    item->next = NULL;
    *engine->inbox_end = item;
    engine->inbox_end = &item->next;
}

void sg_engine_post(sg_engine *engine, struct sg_request_item *item, uint32_t kind, void *subject) {
    *item = (struct sg_request_item){.kind = kind, .subject = subject};
    put(engine, item);
}

void sg_engine_call(sg_engine *engine, struct sg_request_item *item, uint32_t kind, void *subject, uint32_t argument) {
    int done = 0;
    pthread_mutex_lock(&engine->lock);
    *item = (struct sg_request_item){.kind = kind, .argument = argument, .subject = subject, .done = &done};
    put(engine, item);
    while (!done) {
        if (engine->threaded) {
            sg_engine_ring(engine);
            pthread_cond_wait(&engine->changed, &engine->lock);
        } else {
            pthread_mutex_unlock(&engine->lock);
            sg_engine_turn(engine);
            pthread_mutex_lock(&engine->lock);
        }
    }
    pthread_mutex_unlock(&engine->lock);
}

static void quit_party(sg_party *party) {
    pthread_mutex_lock(&party->engine->lock);
    sg_member *members = party->members;
    pthread_mutex_unlock(&party->engine->lock);
    for (sg_member *member = members; member != NULL; member = member->next_of_party)
        if (member->communicator != NULL && member->communicator->members[member->rank] == member) {
            struct sg_communicator *c = member->communicator;
            sg_member_detach(member, 0);
            pthread_mutex_lock(&party->engine->lock);
            c->locals--;
            member->communicator = NULL;
            pthread_mutex_unlock(&party->engine->lock);
        }
}

static void leave_member(sg_member *member, int aborts) {
    struct sg_communicator *c = member->communicator;
    if (c == NULL) return;
    sg_member_detach(member, aborts);
    pthread_mutex_lock(&c->engine->lock);
    c->locals--;
    member->communicator = NULL;
    pthread_mutex_unlock(&c->engine->lock);
}

static int take_requests(sg_engine *engine) {
    pthread_mutex_lock(&engine->lock);
    struct sg_request_item *item = engine->inbox;
    engine->inbox = NULL;
    engine->inbox_end = &engine->inbox;
    pthread_mutex_unlock(&engine->lock);
    int any = item != NULL;
    while (item != NULL) {
        struct sg_request_item *next = item->next; /* the item may be gone after it is served */
        sg_member *member = item->subject;
        int *done = item->done;
        switch (item->kind) {
        case SG_REQUEST_MEMBER:
            member->communicator->members[member->rank] = member;
            if (member->resumes) member->communicator->number = member->activated;
            break;
        case SG_REQUEST_GROUP: sg_group_link(item->subject); break;
        case SG_REQUEST_LEAVE: leave_member(member, (int)item->argument); break;
        case SG_REQUEST_QUIT: quit_party(item->subject); break;
        default: sg_engine_sweep(engine, item->subject); /* its groups will not arrive any more */
        }
        if (done != NULL) {
            pthread_mutex_lock(&engine->lock);
            *done = 1;
            pthread_cond_broadcast(&engine->changed);
            pthread_mutex_unlock(&engine->lock);
        }
        item = next;
    }
    return any;
}

/* ---- peers ---------------------------------------------------------------------------------------------------------- */
/* A peer that ended without leaving: its ranks are dead, and who shares a communicator with one of them must know. */
static void bury(sg_engine *engine, uint32_t proxy) {
    struct sg_board_proxy *who = &engine->board->proxies[proxy];
    for (struct sg_communicator *c = engine->communicators; c != NULL; c = c->next)
        for (uint32_t rank = 0; rank < c->ranks; rank++) {
            struct sg_roster_member *member = &c->map.members[rank];
            uint32_t state = sg_load(&member->state);
            if (member->proxy != proxy || (state != SG_MEMBER_JOINED && state != SG_MEMBER_JOINING)) continue;
            sg_store(&member->state, SG_MEMBER_DEAD);
            sg_communicator_fail(c, SG_FAIL_REMOTE, rank, "rank %u (global rank %u) is gone: its device proxy (process %u) ended", rank,
                                 member->global_rank, who->pid);
        }
    uint32_t alive = SG_PROXY_ALIVE;
    __atomic_compare_exchange_n(&who->state, &alive, SG_PROXY_DEAD, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

static void watch_peer(sg_engine *engine, uint32_t proxy) {
    struct sg_board_proxy *who = &engine->board->proxies[proxy];
    uint32_t state = sg_load(&who->state);
    int *pidfd = &engine->pidfds[proxy];
    if (state == SG_PROXY_ABSENT) return;
    int ended = state != SG_PROXY_ALIVE;
    if (!ended && *pidfd < 0) {
        *pidfd = (int)syscall(SYS_pidfd_open, (pid_t)who->pid, 0);
        ended = *pidfd < 0 ? errno == ESRCH : sg_process_start(who->pid) != who->start; /* another has its id */
    }
    struct pollfd look = {.fd = *pidfd, .events = POLLIN};
    if (ended || (*pidfd >= 0 && poll(&look, 1, 0) > 0)) bury(engine, proxy);
}

static int has_peers(const struct sg_communicator *c, uint32_t me) {
    for (uint32_t rank = 0; rank < c->ranks; rank++)
        if (sg_load(&c->map.members[rank].state) != SG_MEMBER_ABSENT && c->map.members[rank].proxy != me) return 1;
    return 0;
}

static void watch(sg_engine *engine) {
    uint64_t now = sg_now_ns();
    int peers = 0;
    if (engine->options.proxy_count == 1 || now - engine->watched_ns < WATCH_NS) return;
    engine->watched_ns = now;
    pthread_mutex_lock(&engine->lock);
    for (struct sg_communicator *c = engine->communicators; c != NULL; c = c->next) peers |= has_peers(c, engine->options.proxy_index);
    for (uint32_t proxy = 0; peers && proxy < engine->options.proxy_count; proxy++)
        if (proxy != engine->options.proxy_index) watch_peer(engine, proxy);
    pthread_mutex_unlock(&engine->lock);
}

/* ---- turns ------------------------------------------------------------------------------------------------------------ */
/* Frees what nobody needs any more; the rest takes its turn. */
static int turn_all(sg_engine *engine) {
    int moved = 0;
    pthread_mutex_lock(&engine->lock);
    struct sg_communicator **at = &engine->communicators, *c;
    while ((c = *at) != NULL) {
        if (c->locals == 0 && sg_communicator_spent(c)) {
            *at = c->next;
            sg_communicator_free(c);
            continue;
        }
        pthread_mutex_unlock(&engine->lock); /* only we remove, and new ones come first in the list */
        moved |= sg_communicator_turn(c);
        pthread_mutex_lock(&engine->lock);
        at = &engine->communicators;
        while (*at != c) at = &(*at)->next;
        at = &c->next;
    }
    pthread_mutex_unlock(&engine->lock);
    return moved;
}

int sg_engine_turn(sg_engine *engine) {
    int moved = take_requests(engine);
    moved |= turn_all(engine);
    sg_engine_sweep(engine, NULL);
    watch(engine);
    if (!moved) sg_status_refresh(engine);
    return moved;
}

static void *run(void *argument) {
    sg_engine *engine = argument;
    struct sg_board_proxy *me = &engine->board->proxies[engine->options.proxy_index];
    struct sg_patience patience = {0};
    while (!sg_load(&engine->stopping)) {
        uint32_t seen = sg_load(&me->bell);
        if (sg_engine_turn(engine)) {
            patience = (struct sg_patience){0};
            continue;
        }
        while (sg_load(&me->bell) == seen && sg_patience_left(&patience)) continue;
        if (sg_load(&me->bell) != seen) continue;
        sg_store(&me->sleeping, 1);
        if (sg_load(&me->bell) == seen) sg_futex_wait((_Atomic uint32_t *)&me->bell, seen, (unsigned)(WATCH_NS / 1000000));
        sg_store(&me->sleeping, 0);
        patience = (struct sg_patience){0};
    }
    return NULL;
}

int sg_engine_start(sg_engine *engine) {
    sigset_t all, before;
    sigfillset(&all);
    sigdelset(&all, SIGBUS), sigdelset(&all, SIGSEGV), sigdelset(&all, SIGFPE), sigdelset(&all, SIGILL);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    engine->threaded = 1;
    int error = -pthread_create(&engine->thread, NULL, run, engine);
    if (error != 0) engine->threaded = 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

/* ---- life -------------------------------------------------------------------------------------------------------------- */
static int enter_board(sg_engine *engine, char why[256]) {
    const struct sg_engine_options *options = &engine->options;
    engine->board = sg_board_open(engine->directory, options->proxy_count, why);
    if (engine->board == NULL) return -1;
    if (options->proxy_index >= options->proxy_count) {
        snprintf(why, 256, "there is no proxy %u of %u", options->proxy_index, options->proxy_count);
        return -1;
    }
    int error = sg_outbox_open(&engine->transport, engine->board, engine->directory, options->proxy_index, options->proxy_count);
    if (error != 0) {
        snprintf(why, 256, "cannot make an outbox in %.180s: %s", engine->directory, strerror(-error));
        return -1;
    }
    struct sg_board_proxy *me = &engine->board->proxies[options->proxy_index];
    me->pid = (uint32_t)getpid();
    me->start = sg_process_start(me->pid);
    sg_store(&me->state, SG_PROXY_ALIVE);
    return 0;
}

sg_engine *sg_engine_create(const struct sg_engine_options *options, char why[256]) {
    sg_engine *engine = calloc(1, sizeof *engine);
    snprintf(why, 256, "out of memory");
    if (engine == NULL) return NULL;
    engine->options = *options;
    engine->inbox_end = &engine->inbox;
    pthread_mutex_init(&engine->lock, NULL);
    pthread_cond_init(&engine->changed, NULL);
    for (uint32_t i = 0; i < SG_EXCHANGE_PROXIES; i++) engine->pidfds[i] = -1;
    int good = options->directory == NULL || (engine->directory = strdup(options->directory)) != NULL;
    for (uint32_t i = 0; i < SG_TREE_STACK + 2; i++) good &= (engine->pieces[i] = aligned_alloc(64, SG_PIECE_BYTES)) != NULL;
    if (options->directory == NULL && options->proxy_count > 1) {
        snprintf(why, 256, "%u proxies need an exchange directory", options->proxy_count);
        good = 0;
    }
    if (good && enter_board(engine, why) == 0) return engine;
    sg_engine_destroy(engine);
    return NULL;
}

void sg_engine_destroy(sg_engine *engine) {
    if (engine->threaded) {
        sg_store(&engine->stopping, 1);
        sg_engine_ring(engine);
        pthread_join(engine->thread, NULL);
    }
    if (engine->transport.state != NULL) sg_store(&engine->board->proxies[engine->options.proxy_index].state, SG_PROXY_ENDED);
    while (engine->communicators != NULL) {
        struct sg_communicator *next = engine->communicators->next;
        sg_communicator_free(engine->communicators);
        engine->communicators = next;
    }
    for (uint32_t i = 0; i < SG_EXCHANGE_PROXIES; i++)
        if (engine->pidfds[i] >= 0) close(engine->pidfds[i]);
    sg_outbox_close(&engine->transport);
    sg_board_close(engine->board);
    for (uint32_t i = 0; i < SG_TREE_STACK + 2; i++) free(engine->pieces[i]);
    pthread_cond_destroy(&engine->changed);
    pthread_mutex_destroy(&engine->lock);
    free(engine->directory);
    free(engine);
}

int sg_engine_idle(sg_engine *engine) {
    pthread_mutex_lock(&engine->lock);
    int idle = engine->inbox == NULL;
    for (const sg_party *party = engine->parties; party != NULL; party = party->next) idle = idle && party->groups == NULL;
    pthread_mutex_unlock(&engine->lock);
    return idle;
}

struct sg_board *sg_engine_board(sg_engine *engine) { return engine->board; }
