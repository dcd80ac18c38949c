/* residency CASE: the splicing parts of a proxy over a device that does what the case wants (the HAL's table below), for
 * moments that real devices seldom hit. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "singularity_core/proxy/session.h"

#define ARENA (512ull << 20)
#define NO_MEMORY 2
#define NOT_READY 600

static sg_server server;
static int32_t (*on_settle)(uint64_t timeout_ns);
static _Atomic uint32_t opened, copied, settled_at_copy, settled;

static void expect(int good, const char *what) {
    if (good) return;
    fprintf(stderr, "%s\n", what);
    exit(1);
}

/* ---- the device ------------------------------------------------------------------------------------------- */
static int32_t settle(void *state, uint64_t timeout_ns) {
    (void)state;
    return on_settle(timeout_ns);
}
static int32_t copy(void) {
    copied++;
    settled_at_copy = settled;
    return 0;
}
static int32_t copy_to_host(void *s, void *to, uint64_t from, uint64_t n) { (void)s, (void)to, (void)from, (void)n; return copy(); }
static int32_t copy_to_device(void *s, uint64_t to, const void *from, uint64_t n) { (void)s, (void)to, (void)from, (void)n; return copy(); }
static int32_t gate_make(void *s, uint64_t *gate) { (void)s, *gate = 1; return 0; }
static int32_t gate_open(void *s, uint64_t gate) { (void)s, (void)gate, opened++; return 0; }
static int32_t discard(void *s) { (void)s; return 0; }
static const struct sg_hal_table hal = {.abi = SG_HAL_ABI, .struct_size = sizeof hal, .copy_to_host = copy_to_host,
                                        .copy_to_device = copy_to_device, .gate_make = gate_make, .gate_open = gate_open,
                                        .settle = settle, .discard = discard};

static sg_session *make(uint32_t slot) {
    sg_session *s = calloc(1, sizeof *s);
    s->server = &server;
    s->slot = s->rank = slot;
    s->id = slot + 1;
    s->page = calloc(1, sizeof *s->page);
    s->ring = calloc(SG_RING_LINES, SG_LINE);
    pthread_mutex_init(&s->arena_lock, NULL);
    expect(sg_memory_begin(s) == 0, "no memory for a session");
    return s;
}

static sg_session *come(uint32_t slot) {
    char why[96] = "";
    sg_session *s = make(slot);
    expect(sg_residency_join(s, why) == 0, why);
    return s;
}

static void go(sg_session *s) {
    sg_residency_leave(s);
    sg_arena_destroy(s->arena);
    free(s->ring);
    free(s->page);
    free(s);
}

static void open_server(void) {
    server.hal = &hal;
    server.arena_bytes = ARENA;
    server.swap_limit = UINT64_MAX;
    sg_residency_open(&server, 1, 1);
}

/* ---- a host function returns while the device is looked at ------------------------------------------------- */
static sg_session *held;
static pthread_t returning;
static int returns;
static int32_t looks_like;

static void *open_it(void *unused) {
    sg_gate_open(held, 7);
    return unused;
}

/* At the latest moment that the machinery leaves: at once, or when it lets go of its lock. */
static int32_t a_function_returns(uint64_t timeout_ns) {
    (void)timeout_ns;
    if (returns++ != 0) return looks_like;
    expect(pthread_create(&returning, NULL, open_it, NULL) == 0, "no thread");
    if (pthread_mutex_trylock(&server.residency.lock) == 0) {
        pthread_mutex_unlock(&server.residency.lock);
        pthread_join(returning, NULL);
        returning = 0;
    }
    return looks_like;
}

static void rest(int32_t seen) {
    open_server();
    held = come(0);
    looks_like = seen;
    on_settle = a_function_returns;
    expect(sg_server_hold_all(&server, 1, 0) == 0, "an idle session cannot be held");
    int rests = sg_residency_rest(&server);
    if (returning != 0) pthread_join(returning, NULL);
    expect(rests == (seen == 0), "only what has settled rests");
    expect(opened == (rests ? 0 : 1), rests ? "a gate opened at rest" : "a gate stayed closed without rest");
    expect(sg_server_hold_all(&server, 0, 0) == 0 && opened == 1, "after the rest gates open that are due");
    go(held);
    sg_residency_close(&server);
}

/* ---- a device that cannot always say whether it has settled -------------------------------------------------- */
static int32_t no_memory_to_look(uint64_t timeout_ns) {
    static uint32_t looks;
    settled = (looks += timeout_ns != 0) > 5; /* who waits, not who just looks, is about to move something */
    return settled ? 0 : NO_MEMORY;
}

static void busy(void) {
    uint64_t address;
    open_server();
    on_settle = no_memory_to_look;
    sg_session *first = come(0), *second = come(1);
    expect(sg_memory_alloc(first, 4096, &address) == 0, "no memory");
    expect(sg_device_enter(second) == 0, "the second session ends");
    sg_device_leave(second);
    expect(copied == 1 && settled_at_copy == 1, "a session was moved before the device had settled");
    go(first);
    go(second);
    sg_residency_close(&server);
}

/* ---- memory of the proxy's own that lies where an image at 0 would ------------------------------------------- */
static int32_t at_rest(uint64_t timeout_ns) {
    (void)timeout_ns;
    return 0;
}

static void trim(void) {
    uint64_t address;
    uint8_t *page = mmap((void *)0x10000000, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    expect(page == (void *)0x10000000, "the page is taken");
    *page = 42;
    open_server();
    on_settle = at_rest;
    sg_session *first = come(0), *second = come(1);
    expect(sg_memory_alloc(first, 128ull << 20, &address) == 0 && sg_memory_free(first, address) == 0, "no memory");
    expect(sg_device_enter(second) == 0, "the second session ends");
    sg_device_leave(second);
    expect(*page == 42, "pages of the proxy were dropped");
    go(first);
    go(second);
    sg_residency_close(&server);
}

/* ---- errors that the rank has not asked for yet ---------------------------------------------------------------- */
static void errors(void) {
    sg_session s = {.page = calloc(1, sizeof *s.page)};
    sg_session_note_error(&s, 1);
    sg_session_note_error(&s, 2);
    expect(s.page->async_error == 1, "the first of equals counts");
    sg_session_note_error(&s, 719);
    expect(s.page->async_error == 719, "a sticky one is not lost");
    sg_session_note_error(&s, 700);
    sg_session_note_error(&s, 1);
    expect(s.page->async_error == 719, "nothing comes after a sticky one");
    free(s.page);
}

/* ---- more sessions than places ---------------------------------------------------------------------------------- */
static void full(void) {
    sg_session *all[SG_SLICER_SLOTS], *late;
    char why[96] = "";
    open_server();
    late = make(3); /* its slot, of another door, says nothing */
    on_settle = at_rest;
    for (uint32_t i = 0; i < SG_SLICER_SLOTS; i++) all[i] = come(i / 2);
    for (uint32_t i = 0; i < SG_SLICER_SLOTS; i++)
        expect(server.residency.sessions[all[i]->turn.place] == all[i], "two sessions have one place");
    expect(sg_residency_full(&server), "there is room");
    expect(sg_residency_join(late, why) == -EBUSY && !late->turn.joined, "one too many came in");
    expect(strcmp(why, "all 64 sessions of this device proxy are taken") == 0, why);
    uint32_t place = all[40]->turn.place;
    go(all[40]);
    expect(!sg_residency_full(&server) && sg_residency_join(late, why) == 0, "who went left no room");
    expect(late->turn.place == place && server.residency.sessions[place] == late, "a place was lost");
    all[40] = late;
    for (uint32_t i = 0; i < SG_SLICER_SLOTS; i++) go(all[i]);
    sg_residency_close(&server);
}

int main(int argc, char **argv) {
    const char *what = argc == 2 ? argv[1] : "";
    if (strcmp(what, "rest") == 0) rest(0);
    else if (strcmp(what, "unsettled") == 0) rest(NOT_READY);
    else if (strcmp(what, "unknown") == 0) rest(NO_MEMORY);
    else if (strcmp(what, "busy") == 0) busy();
    else if (strcmp(what, "trim") == 0) trim();
    else if (strcmp(what, "errors") == 0) errors();
    else if (strcmp(what, "full") == 0) full();
    else return 2;
    puts("good");
    return 0;
}
