/* One device proxy: its device, its doors, and the loop that watches who comes through them.
 *
 * Ranks ring a futex, processes end with a pidfd, the launcher goes away with a pipe: a thread for each door turns its
 * futex into an eventfd, so that a single epoll loop sees everything. */
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include "../splicing/rest.h"
#include "doorway.h"

#define SLICE_WAIT_NS 2000000ull     /* design.md: rule (c) */
#define SLICE_QUANTUM_NS 10000000000ull /* longer than a step, which must not be cut */
#define STOP_NS 5000000000ull   /* for sessions to end when the server stops */
/* What epoll tells; else the number of a slot, counted over all doors. */
#define TAG_STOP UINT32_MAX
#define TAG_POKE (UINT32_MAX - 1)

/* ---- create ------------------------------------------------------------------------------------------------ */
static int check_options(const struct sg_server_options *options, char why[256]) {
    if (options->struct_size < sizeof *options || options->hal == NULL || options->hal->abi != SG_HAL_ABI) {
        snprintf(why, 256, "the backend's native table has ABI %u, this proxy needs %u",
                 options->struct_size < sizeof *options || options->hal == NULL ? 0 : options->hal->abi, SG_HAL_ABI);
        return -1;
    }
    if (!SG_HAL_HAS(options->hal, arena_limit) || !SG_HAL_HAS(options->hal, arena_open) ||
        !SG_HAL_HAS(options->hal, arena_close) || !SG_HAL_HAS(options->hal, host_register) ||
        !SG_HAL_HAS(options->hal, host_unregister)) {
        snprintf(why, 256, "the backend's native table lacks arena or host functions, which are not optional");
        return -1;
    }
    if (options->directory_count == 0 || options->directory_count > SG_MAX_DOORS) {
        snprintf(why, 256, "a proxy serves 1 to %u doors, not %u", SG_MAX_DOORS, options->directory_count);
        return -1;
    }
    return 0;
}

static int find_ranks(sg_server *server, const struct sg_server_options *options, char why[256]) {
    int error = sg_claimants_open(&server->claimants, options->pid_namespace);
    if (error != 0) snprintf(why, 256, "the ranks' pid namespace cannot be looked at: %s", strerror(-error));
    return error != 0 ? -1 : 0;
}

static int make_doors(sg_server *server, const struct sg_server_options *options, char why[256]) {
    server->doorways = calloc(options->directory_count, sizeof *server->doorways);
    if (server->doorways == NULL) {
        snprintf(why, 256, "out of memory");
        return -1;
    }
    int error = 0;
    while (error == 0 && server->doorway_count < options->directory_count) {
        uint32_t i = server->doorway_count++;
        error = sg_doorway_make(&server->doorways[i], server, i, options->directories[i], why);
    }
    return error;
}

static int open_driver(sg_server *server, const struct sg_server_options *options, char why[256]) {
    server->library = dlopen(options->driver_library, RTLD_NOW | RTLD_LOCAL);
    if (server->library == NULL) {
        snprintf(why, 256, "cannot load the driver library: %.200s", dlerror());
        return -1;
    }
    if (sg_base_driver_load(&server->base, server->library, why) != 0) return -1;
    int device = -1;
    int32_t error = server->base.init(0);
    if (error == 0) error = server->base.device_get(&device, options->device);
    if (error == 0) error = server->base.primary_retain(&server->context, device);
    if (error == 0) error = server->base.context_set(server->context);
    if (error != 0) {
        snprintf(why, 256, "the driver cannot open device %d: CUresult %d", options->device, error);
        return -1;
    }
    server->device = device;
    if (sg_driver_load(&server->driver, server->library, why) != 0) return -1;
    return sg_device_describe(&server->base, device, &server->described, why);
}

/* What a restored job knows of its devices must still be so. */
static int check_device(const sg_server *server, char why[256]) {
    for (uint32_t i = 0; server->restored && i < server->doorway_count; i++)
        if (sg_device_differs(&server->doorways[i].door->device, &server->described, why)) return -1;
    return 0;
}

static int watch(sg_server *server, int fd, uint32_t tag) {
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = tag};
    return epoll_ctl(server->epoll, EPOLL_CTL_ADD, fd, &event);
}

static int open_events(sg_server *server, const struct sg_server_options *options, char why[256]) {
    server->stop_event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    server->poke_event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    server->epoll = epoll_create1(EPOLL_CLOEXEC);
    int good = server->stop_event >= 0 && server->poke_event >= 0 && server->epoll >= 0 &&
               watch(server, server->stop_event, TAG_STOP) == 0 && watch(server, server->poke_event, TAG_POKE) == 0;
    for (int i = 0; good && i < SG_STOP_FDS; i++)
        if (options->stop_fds[i] > 0) good = watch(server, options->stop_fds[i], TAG_STOP) == 0;
    if (!good) snprintf(why, 256, "cannot set up event descriptors: %s", strerror(errno));
    return good ? 0 : -1;
}

static uint64_t half_of_host_memory(void) {
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    return pages > 0 && page > 0 ? (uint64_t)pages * (uint64_t)page / 2 : UINT64_MAX;
}

sg_server *sg_server_create(const struct sg_server_options *options, char why[256]) {
    why[0] = 0;
    sg_server *server = calloc(1, sizeof *server);
    if (server == NULL) {
        snprintf(why, 256, "out of memory");
        return NULL;
    }
    server->stop_event = server->poke_event = server->epoll = -1;
    server->barriers = (sg_membarrier(MEMBARRIER_CMD_QUERY) & MEMBARRIER_CMD_GLOBAL_EXPEDITED) != 0;
    sg_residency_open(server, options->slice_wait_ns != 0 ? options->slice_wait_ns : SLICE_WAIT_NS,
                      options->slice_quantum_ns != 0 ? options->slice_quantum_ns : SLICE_QUANTUM_NS);
    pthread_mutex_init(&server->slots_lock, NULL);
    pthread_mutex_init(&server->loop_lock, NULL);
    server->resumes = server->handed = options->struct_size >= sizeof *options && options->resumes != 0;
    server->restored = server->resumes && options->resumes == 2;
    int good = check_options(options, why) == 0 && sg_fault_install() == 0 && find_ranks(server, options, why) == 0 &&
               make_doors(server, options, why) == 0;
    if (good) {
        server->hal = options->hal;
        server->proxy_index = options->proxy_index;
        server->swap_limit = options->swap_limit != 0 ? options->swap_limit : half_of_host_memory();
        if (server->resumes) sg_server_hold_all(server, 1, 0); /* whoever comes waits for the cut to let go */
        good = open_events(server, options, why) == 0 && open_driver(server, options, why) == 0 &&
               sg_memory_open(server, options->arena_bytes, why) == 0 && check_device(server, why) == 0 &&
               sg_communication_open(server, options, why) == 0 && sg_rest_open(server) == 0;
    }
    if (good) return server;
    if (why[0] == 0) snprintf(why, 256, "cannot set up the proxy: %s", strerror(errno));
    sg_server_destroy(server);
    return NULL;
}

void sg_server_poke(sg_server *server) {
    uint64_t one = 1;
    if (write(server->poke_event, &one, sizeof one) < 0) return; /* full: it is poked already */
}

/* ---- run -------------------------------------------------------------------------------------------------------- */
static void clear_event(int fd) {
    uint64_t count;
    if (read(fd, &count, sizeof count) < 0) return;
}

/* 1: go on. */
static int turn(sg_server *server, int timeout_ms) {
    struct epoll_event events[16];
    int stop = 0, count = epoll_wait(server->epoll, events, 16, timeout_ms);
    pthread_mutex_lock(&server->loop_lock);
    for (int i = 0; i < count; i++) {
        uint32_t tag = events[i].data.u32;
        if (tag == TAG_STOP) stop = 1;
        else if (tag == TAG_POKE) clear_event(server->poke_event);
        else sg_doorway_claimant_died(&server->doorways[tag / SG_DOOR_SLOTS], tag % SG_DOOR_SLOTS);
    }
    for (uint32_t i = 0; i < server->doorway_count && !server->handed; i++) sg_doorway_look(&server->doorways[i]);
    pthread_mutex_unlock(&server->loop_lock);
    sg_residency_tick(server);
    return !stop;
}

static uint32_t sessions(const sg_server *server) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < server->doorway_count; i++) count += sg_doorway_sessions(&server->doorways[i]);
    return count;
}

/* 1: the sessions are another proxy's still, or again. */
static int left_handed(sg_server *server) {
    pthread_mutex_lock(&server->loop_lock);
    if (!server->resumes) server->handed = 0; /* who stops while they are handed has them */
    int left = server->resumes;
    pthread_mutex_unlock(&server->loop_lock);
    return left;
}

static void end_all(sg_server *server) {
    uint64_t until = sg_now_ns() + STOP_NS;
    for (uint32_t i = 0; i < server->doorway_count; i++) sg_doorway_shut(&server->doorways[i]);
    while (sessions(server) != 0 && sg_now_ns() < until) {
        turn(server, 10);
        usleep(1000); /* the stop descriptor stays readable, so epoll does not wait */
    }
    if (sessions(server) != 0)
        fprintf(stderr, "singularity: device %d: %u sessions did not end within %llu s\n", server->device,
                sessions(server), STOP_NS / 1000000000ull);
}

int sg_server_run(sg_server *server) {
    int error = 0;
    pthread_mutex_lock(&server->loop_lock); /* the cut may let them go already */
    for (uint32_t i = 0; i < server->doorway_count && error == 0; i++) error = sg_doorway_open(&server->doorways[i]);
    pthread_mutex_unlock(&server->loop_lock);
    while (error == 0 && turn(server, SG_SERVER_TICK_MS)) continue;
    atomic_store(&server->stopping, 1);
    if (!left_handed(server)) end_all(server);
    for (uint32_t i = 0; i < server->doorway_count; i++) sg_doorway_join(&server->doorways[i]);
    return error;
}

void sg_server_stop(sg_server *server) {
    uint64_t one = 1;
    if (write(server->stop_event, &one, sizeof one) < 0) return; /* full: it is stopping already */
}

sg_session *sg_server_session(sg_server *server, uint32_t slot) {
    sg_session *s = sg_server_hold(server, slot);
    if (s != NULL) sg_server_let_go(s);
    return s;
}

sg_session *sg_server_hold(sg_server *server, uint32_t slot) {
    if (slot >= server->doorway_count * SG_DOOR_SLOTS) return NULL;
    pthread_mutex_lock(&server->slots_lock);
    sg_session *s = server->doorways[slot / SG_DOOR_SLOTS].slots[slot % SG_DOOR_SLOTS].session;
    if (s != NULL && sg_session_join(s, UINT32_MAX) != 0) s = NULL;
    pthread_mutex_unlock(&server->slots_lock);
    return s;
}

void sg_server_let_go(sg_session *session) { sg_session_leave(session); }

void sg_server_destroy(sg_server *server) {
    uint32_t stuck = sessions(server);
    if (left_handed(server)) return; /* what it has mapped is another proxy's: all ends with this process */
    for (uint32_t i = 0; i < server->doorway_count; i++) sg_doorway_remove(&server->doorways[i]);
    if (stuck != 0) return; /* their threads still use what they use: only the files go */
    sg_rest_close(server);
    sg_communication_close(server);
    sg_memory_close(server);
    for (uint32_t i = 0; i < server->doorway_count; i++) sg_doorway_unmap(&server->doorways[i]);
    if (server->context != NULL) {
        server->base.context_set(NULL);
        server->base.primary_release(server->device);
    }
    if (server->stop_event >= 0) close(server->stop_event);
    if (server->poke_event >= 0) close(server->poke_event);
    if (server->epoll >= 0) close(server->epoll);
    /* The library stays loaded: drivers keep threads and exit handlers of their own. */
    sg_residency_close(server);
    pthread_mutex_destroy(&server->loop_lock);
    pthread_mutex_destroy(&server->slots_lock);
    free(server->doorways);
    free(server);
}
