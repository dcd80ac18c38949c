/* One device proxy: the door, the sessions behind it, and the loop that watches both.
 *
 * Ranks ring a futex, processes end with a pidfd, the launcher goes away with a pipe: one thread turns the
 * futex into an eventfd, so that a single epoll loop sees everything.  The loop alone changes `slots`;
 * workers and undertakers only raise flags and poke it. */
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "../splicing/rest.h"
#include "../transport/process_start.h"
#include "session.h"

#define TICK_MS 500
#define SLICE_WAIT_NS 2000000ull     /* design.md: rule (c) */
#define SLICE_QUANTUM_NS 10000000000ull /* longer than a step, which must not be cut */
#define CLAIM_NS 10000000000ull /* a claim that is not finished by then is taken back */
#define STOP_NS 5000000000ull   /* for sessions to end when the server stops */
enum { TAG_STOP = 1000, TAG_POKE = 1001 };

/* ---- create ------------------------------------------------------------------------------------------------ */
static int check_options(const struct sg_server_options *options, sg_server *server, char why[256]) {
    struct stat status;
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
    if (lstat(options->directory, &status) != 0 || !S_ISDIR(status.st_mode) || status.st_uid != geteuid() ||
        (status.st_mode & 077) != 0) {
        snprintf(why, 256, "%.180s must be a directory of ours with mode 0700", options->directory);
        return -1;
    }
    if (snprintf(server->directory, sizeof server->directory, "%s", options->directory) >= (int)sizeof server->directory) {
        snprintf(why, 256, "the directory's name is too long");
        return -1;
    }
    return 0;
}

static int make_door(sg_server *server, char why[256]) {
    char path[4096];
    snprintf(path, sizeof path, "%s/door", server->directory);
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    int error = fd < 0 ? errno : posix_fallocate(fd, 0, sizeof *server->door);
    void *at = error != 0 ? MAP_FAILED : mmap(NULL, sizeof *server->door, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (error == 0 && at == MAP_FAILED) error = errno;
    if (fd >= 0) close(fd);
    if (error != 0) {
        snprintf(why, 256, "cannot create %.180s: %s%s", path, strerror(error),
                 error == EEXIST ? " (is another proxy serving this directory?)" : "");
        return -1;
    }
    server->door = at;
    server->door->magic = SG_DOOR_MAGIC;
    server->door->protocol = SG_PROTOCOL;
    server->door->proxy_pid = (uint32_t)getpid();
    server->door->proxy_start = sg_process_start((uint32_t)getpid());
    static _Atomic uint32_t no_flag; /* a truncated door blinds us to new ranks; sessions go on */
    return sg_fault_guard(server->door, sizeof *server->door, &no_flag);
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
    return sg_device_describe(&server->base, device, &server->door->device, why);
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
    for (uint32_t i = 0; i < SG_DOOR_SLOTS; i++) server->slots[i].pidfd = -1;
    sg_residency_open(server, options->slice_wait_ns != 0 ? options->slice_wait_ns : SLICE_WAIT_NS,
                      options->slice_quantum_ns != 0 ? options->slice_quantum_ns : SLICE_QUANTUM_NS);
    pthread_mutex_init(&server->slots_lock, NULL);
    int good = check_options(options, server, why) == 0 && sg_fault_install() == 0 && make_door(server, why) == 0;
    if (good) {
        server->hal = options->hal;
        server->proxy_index = options->proxy_index;
        server->swap_limit = options->swap_limit != 0 ? options->swap_limit : half_of_host_memory();
        good = open_events(server, options, why) == 0 && open_driver(server, options, why) == 0 &&
               sg_memory_open(server, options->arena_bytes, why) == 0 && sg_communication_open(server, options, why) == 0 &&
               sg_rest_open(server) == 0;
    }
    if (good) return server;
    if (why[0] == 0) snprintf(why, 256, "cannot set up the proxy: %s", strerror(errno));
    sg_server_destroy(server);
    return NULL;
}

/* ---- claims ------------------------------------------------------------------------------------------------- */
static void set_state(struct sg_claim *claim, uint32_t state) {
    atomic_store(&claim->state, state);
    sg_futex_wake(&claim->state, INT_MAX);
}

static void forget_claimant(struct sg_slot *slot) {
    if (slot->pidfd >= 0) close(slot->pidfd); /* leaves the epoll set with its last descriptor */
    slot->pidfd = -1;
    slot->claiming_since = 0;
    slot->burying = 0;
}

/* The slot of the session that has this window; SG_DOOR_SLOTS: none. */
static uint32_t holder_of(const sg_server *server, uint32_t window) {
    uint32_t i = 0;
    while (i < SG_DOOR_SLOTS && (server->slots[i].session == NULL || server->slots[i].session->window != window)) i++;
    return i;
}

static int is_over(const struct sg_slot *slot) {
    return atomic_load(&slot->session->ending) != SG_GOES_ON || sg_process_start(slot->pid) != slot->start;
}

static void set_session(sg_server *server, struct sg_slot *slot, sg_session *session) {
    pthread_mutex_lock(&server->slots_lock);
    slot->session = session;
    pthread_mutex_unlock(&server->slots_lock);
}

/* 0: served; 1: not yet, its predecessor is still being buried; -1: refused, `why` says why. */
static int admit(sg_server *server, uint32_t index, char why[96]) {
    struct sg_slot *slot = &server->slots[index];
    struct sg_claim *claim = &server->door->slots[index];
    uint32_t pid = claim->pid, rank = claim->rank, sub = claim->sub; /* read once */
    uint64_t start = claim->pid_start;
    __asm__ volatile("" ::: "memory");
    if (rank >= SG_MAX_WINDOWS / SG_WINDOWS_PER_RANK || sub >= SG_WINDOWS_PER_RANK) {
        snprintf(why, 96, "rank %u, child %u is outside of what one job may have", rank, sub);
        return -1;
    }
    uint32_t holder = holder_of(server, rank * SG_WINDOWS_PER_RANK + sub);
    if (holder < SG_DOOR_SLOTS && is_over(&server->slots[holder])) return 1;
    if (!sg_residency_sliceable(server)) /* who cannot share waits for one that is going */
        for (uint32_t i = 0; i < SG_DOOR_SLOTS; i++)
            if (server->slots[i].session != NULL && is_over(&server->slots[i])) return 1;
    if (holder < SG_DOOR_SLOTS) {
        snprintf(why, 96, "rank %u, child %u has a session already (process %u)", rank, sub, server->slots[holder].pid);
        return -1;
    }
    slot->pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    if (slot->pidfd < 0 || sg_process_start(pid) != start || start == 0) {
        snprintf(why, 96, "the device proxy sees no process %u like the claimant", pid);
        return -1;
    }
    sg_session *session = sg_session_create(server, index, rank, sub, why);
    if (session == NULL) return -1;
    set_session(server, slot, session);
    slot->pid = pid;
    slot->start = start;
    if (watch(server, slot->pidfd, index) == 0) return 0;
    snprintf(why, 96, "cannot watch process %u: %s", pid, strerror(errno));
    sg_session_end(slot->session, SG_ABORTS, SG_DEAD_PROXY);
    return -1;
}

static void serve_claim(sg_server *server, uint32_t index) {
    struct sg_claim *claim = &server->door->slots[index];
    struct sg_slot *slot = &server->slots[index];
    char why[96] = "";
    uint32_t claimed = SG_SLOT_CLAIMED;
    slot->claiming_since = 0;
    int refused = admit(server, index, why);
    if (refused > 0) return;
    if (refused == 0) {
        if (atomic_compare_exchange_strong(&claim->state, &claimed, SG_SLOT_OPEN)) {
            sg_futex_wake(&claim->state, INT_MAX);
        } else { /* the rank gave up meanwhile */
            sg_session_end(slot->session, SG_ABORTS, SG_DEAD_CLOSED);
        }
        return;
    }
    if (slot->session == NULL) forget_claimant(slot);
    claim->why = SG_CUDA_NOT_SUPPORTED;
    memcpy(claim->said, why, sizeof claim->said);
    atomic_compare_exchange_strong(&claim->state, &claimed, SG_SLOT_REFUSED);
    sg_futex_wake(&claim->state, INT_MAX);
}

/* A rank may die between any two steps of its claim, or while it reads a refusal. */
static void check_half_claim(sg_server *server, uint32_t index, uint32_t state) {
    struct sg_slot *slot = &server->slots[index];
    struct sg_claim *claim = &server->door->slots[index];
    uint64_t now = sg_now_ns();
    if (slot->claiming_since == 0) slot->claiming_since = now;
    int dead = claim->pid != 0 && claim->pid_start != 0 && sg_process_start(claim->pid) != claim->pid_start;
    if (now - slot->claiming_since < (dead ? CLAIM_NS / 20 : CLAIM_NS)) return;
    slot->claiming_since = 0;
    claim->pid = 0;
    claim->pid_start = 0;
    atomic_compare_exchange_strong(&claim->state, &state, SG_SLOT_FREE);
}

/* ---- sessions, as the loop sees them -------------------------------------------------------------------------- */
static void finish_session(sg_server *server, uint32_t index) {
    struct sg_slot *slot = &server->slots[index];
    struct sg_claim *claim = &server->door->slots[index];
    sg_session *s = slot->session;
    uint32_t why = atomic_load(&s->why_dead);
    set_session(server, slot, NULL);
    sg_session_free(s);
    /* A rank that lives and did not close may still write CLOSING: its slot stays taken until it dies. */
    if (why == SG_DEAD_PROTOCOL && sg_process_start(slot->pid) == slot->start) {
        atomic_store(&claim->state, SG_SLOT_CLOSING);
        return;
    }
    forget_claimant(slot);
    claim->pid = 0;
    claim->pid_start = 0;
    set_state(claim, SG_SLOT_FREE);
    sg_server_poke(server); /* its successor may be waiting in a slot that was looked at already */
}

static void look_at(sg_server *server, uint32_t index) {
    struct sg_slot *slot = &server->slots[index];
    uint32_t state = atomic_load(&server->door->slots[index].state);
    sg_session *s = slot->session;
    if (s == NULL && slot->pidfd >= 0) return; /* taken by one who broke the protocol */
    if (s == NULL) {
        if (state == SG_SLOT_CLAIMED && !atomic_load(&server->stopping)) serve_claim(server, index);
        else if (state == SG_SLOT_CLAIMING || state == SG_SLOT_REFUSED) check_half_claim(server, index, state);
        else if (state != SG_SLOT_FREE && state != SG_SLOT_CLAIMED) set_state(&server->door->slots[index], SG_SLOT_FREE);
        else slot->claiming_since = 0;
        s = slot->session;
        if (s == NULL) return;
    }
    if (state == SG_SLOT_CLOSING && atomic_load(&s->ending) == SG_GOES_ON) sg_session_end(s, SG_DRAINS, SG_DEAD_CLOSED);
    if (atomic_load(&s->faulted) && atomic_load(&s->ending) != SG_ABORTS) {
        sg_worker_wake_all(s);
        sg_residency_stir(s);
    }
    if (atomic_load(&s->ending) != SG_GOES_ON && !slot->burying) slot->burying = sg_session_bury(s) == 0;
    if (atomic_load(&s->ended)) finish_session(server, index);
}

static void claimant_died(sg_server *server, uint32_t index) {
    struct sg_slot *slot = &server->slots[index];
    epoll_ctl(server->epoll, EPOLL_CTL_DEL, slot->pidfd, NULL);
    if (slot->session != NULL) {
        sg_session_end(slot->session, SG_ABORTS, SG_DEAD_CLOSED);
    } else {
        forget_claimant(slot);
        set_state(&server->door->slots[index], SG_SLOT_FREE);
    }
}

void sg_server_poke(sg_server *server) {
    uint64_t one = 1;
    if (write(server->poke_event, &one, sizeof one) < 0) return; /* full: it is poked already */
}

/* ---- run -------------------------------------------------------------------------------------------------------- */
static void *watch_bell(void *argument) {
    sg_server *server = argument;
    uint32_t seen = atomic_load(&server->door->bell);
    while (!atomic_load(&server->stopping)) {
        sg_futex_wait(&server->door->bell, seen, TICK_MS);
        uint32_t now = atomic_load(&server->door->bell);
        if (now != seen) sg_server_poke(server);
        seen = now;
    }
    return NULL;
}

static void clear_event(int fd) {
    uint64_t count;
    if (read(fd, &count, sizeof count) < 0) return;
}

/* 1: go on. */
static int turn(sg_server *server, int timeout_ms) {
    struct epoll_event events[16];
    int stop = 0, count = epoll_wait(server->epoll, events, 16, timeout_ms);
    for (int i = 0; i < count; i++) {
        uint32_t tag = events[i].data.u32;
        if (tag == TAG_STOP) stop = 1;
        else if (tag == TAG_POKE) clear_event(server->poke_event);
        else claimant_died(server, tag);
    }
    for (uint32_t i = 0; i < SG_DOOR_SLOTS; i++) look_at(server, i);
    sg_residency_tick(server);
    return !stop;
}

static int sessions(const sg_server *server) {
    int count = 0;
    for (uint32_t i = 0; i < SG_DOOR_SLOTS; i++) count += server->slots[i].session != NULL;
    return count;
}

static void end_all(sg_server *server) {
    uint64_t until = sg_now_ns() + STOP_NS;
    for (uint32_t i = 0; i < SG_DOOR_SLOTS; i++)
        if (server->slots[i].session != NULL) sg_session_end(server->slots[i].session, SG_ABORTS, SG_DEAD_PROXY);
    while (sessions(server) != 0 && sg_now_ns() < until) {
        turn(server, 10);
        usleep(1000); /* the stop descriptor stays readable, so epoll does not wait */
    }
    if (sessions(server) != 0)
        fprintf(stderr, "singularity: device %d: %d sessions did not end within %llu s\n", server->device,
                sessions(server), STOP_NS / 1000000000ull);
}

int sg_server_run(sg_server *server) {
    pthread_t bell;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = -pthread_create(&bell, NULL, watch_bell, server);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error != 0) return error;
    atomic_store(&server->door->ready, 1);
    while (turn(server, TICK_MS)) continue;
    atomic_store(&server->stopping, 1);
    atomic_store(&server->door->dead, SG_DEAD_PROXY); /* who waits at the door, too */
    sg_futex_wake(&server->door->bell, INT_MAX);
    end_all(server);
    pthread_join(bell, NULL);
    return 0;
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
    if (slot >= SG_DOOR_SLOTS) return NULL;
    pthread_mutex_lock(&server->slots_lock);
    sg_session *s = server->slots[slot].session;
    if (s != NULL && sg_session_join(s, UINT32_MAX) != 0) s = NULL;
    pthread_mutex_unlock(&server->slots_lock);
    return s;
}

void sg_server_let_go(sg_session *session) { sg_session_leave(session); }

void sg_server_destroy(sg_server *server) {
    char path[4096];
    for (uint32_t i = 0; i < SG_DOOR_SLOTS; i++) forget_claimant(&server->slots[i]);
    int stuck = sessions(server);
    for (uint32_t i = 0; stuck && i < SG_DOOR_SLOTS; i++) { /* their threads still use what they use: only the files go */
        if (server->slots[i].session == NULL) continue;
        snprintf(path, sizeof path, "%s/%u.session", server->directory, i), unlink(path);
        snprintf(path, sizeof path, "%s/%u.pinned", server->directory, i), unlink(path);
    }
    if (server->door != NULL) {
        snprintf(path, sizeof path, "%s/door", server->directory), unlink(path);
        sg_fault_forget(server->door);
    }
    if (stuck) return;
    sg_rest_close(server);
    sg_communication_close(server);
    if (server->door != NULL) {
        sg_memory_close(server);
        munmap(server->door, sizeof *server->door);
    }
    if (server->context != NULL) {
        server->base.context_set(NULL);
        server->base.primary_release(server->device);
    }
    if (server->stop_event >= 0) close(server->stop_event);
    if (server->poke_event >= 0) close(server->poke_event);
    if (server->epoll >= 0) close(server->epoll);
    /* The library stays loaded: drivers keep threads and exit handlers of their own. */
    sg_residency_close(server);
    pthread_mutex_destroy(&server->slots_lock);
    free(server);
}
