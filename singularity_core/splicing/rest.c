/* Brings a device to rest when the cut is reached, and keeps it there until the agent lets it go (barrier/coordinator.py).
 *
 * All ranks stand at one point then: whatever was issued has been issued by everybody, so it completes by itself, once
 *   - every session is held, so that nothing new begins;
 *   - the slicer goes on, because results are due to sessions that are not resident;
 *   - ranks go on to call the host functions that their streams come to (layout.h).
 * At rest: no operation is pending, no gate is to be opened, and the device has nothing that could begin by itself.  Host
 * functions of ranks are let come to their end, with what follows them, for calls may wait for that, and a session in a call
 * cannot be handed over; but one that takes long may still run: what follows it in its stream waits at a gate.  Only the HAL's `settle` can say that: to
 * synchronise one context says nothing of those of the sessions.  Without it a device never rests, so the board says so,
 * and the agent refuses to begin a cut. */
#include "rest.h"

#include <errno.h>
#include <signal.h>

#include "../exchange/engine.h"
#include "../proxy/session.h"

#define LOOK_MS 1u
#define SLEEP_MS 200u
#define HOST_NS 2000000000ull /* a host function that takes longer may never end */

static uint32_t wanted(sg_server *server) { return sg_load(&sg_engine_board(server->engine)->freeze); }

/* When the ranks' host functions have made progress last, and how many had ended by then. */
struct in_ranks { uint64_t through, since; };

static int ranks_are_through(sg_server *server, struct in_ranks *seen) {
    uint64_t through, now = sg_now_ns();
    if (!sg_residency_in_ranks(server, &through)) return 1;
    if (through != seen->through || seen->since == 0) *seen = (struct in_ranks){through, now};
    return now - seen->since > HOST_NS;
}

static void come_to_rest(sg_server *server, uint32_t number) {
    _Atomic uint32_t *freeze = (_Atomic uint32_t *)&sg_engine_board(server->engine)->freeze;
    struct in_ranks seen = {0, 0};
    while (wanted(server) == number && !atomic_load(&server->stopping)) {
        if (sg_server_hold_all(server, 1, LOOK_MS * 5000000u) == 0 && sg_engine_idle(server->engine) && ranks_are_through(server, &seen) &&
            sg_residency_rest(server))
            return;
        sg_futex_wait(freeze, number, LOOK_MS);
    }
}

/* At rest, writes down the sessions when the agent wants that.  1: it did, or said why it cannot. */
static int hands_over(sg_server *server, uint32_t number) {
    struct sg_board *board = sg_engine_board(server->engine);
    uint32_t *handed = &board->proxies[server->proxy_index].handed, nobody = 0;
    char why[SG_SAID] = "";
    if (!(number & 1) || sg_load(&board->hand) != number || sg_load(handed) == number) return 0;
    int error = sg_server_write_sessions(server, why);
    if (error != 0 && __atomic_compare_exchange_n(&board->refusing, &nobody, number, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
        memcpy(board->said, why, SG_SAID);
        sg_store(&board->refused, number);
    }
    sg_store(handed, number);
    return 1;
}

static void *rest_main(void *argument) {
    sg_server *server = argument;
    struct sg_board *board = sg_engine_board(server->engine);
    uint32_t *obeyed = &board->proxies[server->proxy_index].frozen;
    while (!atomic_load(&server->stopping)) {
        uint32_t number = wanted(server);
        if (number == sg_load(obeyed)) {
            if (hands_over(server, number)) continue;
            sg_futex_wait((_Atomic uint32_t *)&board->freeze, number, SLEEP_MS);
            continue;
        }
        if (number & 1) come_to_rest(server, number);
        else sg_server_goes_on(server), sg_server_hold_all(server, 0, 0);
        if (wanted(server) == number && !atomic_load(&server->stopping)) sg_store(obeyed, number);
    }
    return NULL;
}

int sg_rest_open(sg_server *server) {
    sg_store(&sg_engine_board(server->engine)->proxies[server->proxy_index].rests, SG_HAL_HAS(server->hal, settle));
    sigset_t all, before;
    sigfillset(&all);
    sigdelset(&all, SIGBUS), sigdelset(&all, SIGSEGV), sigdelset(&all, SIGFPE), sigdelset(&all, SIGILL);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = -pthread_create(&server->rest, NULL, rest_main, server);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    server->rests = error == 0;
    return error;
}

void sg_rest_close(sg_server *server) {
    if (!server->rests) return;
    atomic_store(&server->stopping, 1);
    sg_futex_wake((_Atomic uint32_t *)&sg_engine_board(server->engine)->freeze, INT_MAX);
    pthread_join(server->rest, NULL);
    server->rests = 0;
}
