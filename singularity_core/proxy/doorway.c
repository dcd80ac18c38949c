/* Claims, sessions as the server's loop sees them, and the bell: see doorway.h. */
#include "doorway.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "../transport/process_start.h"

#define CLAIM_NS 10000000000ull /* a claim that is not finished by then is taken back */

/* ---- the door's file ---------------------------------------------------------------------------------------- */
static int check_directory(struct sg_doorway *doorway, const char *directory, char why[256]) {
    struct stat status;
    if (lstat(directory, &status) != 0 || !S_ISDIR(status.st_mode) || status.st_uid != geteuid() || (status.st_mode & 077) != 0) {
        snprintf(why, 256, "%.180s must be a directory of ours with mode 0700", directory);
        return -1;
    }
    if (snprintf(doorway->directory, sizeof doorway->directory, "%s", directory) >= (int)sizeof doorway->directory) {
        snprintf(why, 256, "the directory's name is too long");
        return -1;
    }
    return 0;
}

/* Whose the door is.  Ranks look whether that process lives: while the words change, they take it for granted (0).  So do ranks in
 * a box, always: they cannot see us, and must not take another for us. */
static void sign(const struct sg_doorway *doorway) {
    struct sg_door *door = doorway->door;
    if (doorway->server->claimants.boxed) return;
    __atomic_store_n(&door->proxy_start, 0, __ATOMIC_SEQ_CST);
    __atomic_store_n(&door->proxy_pid, (uint32_t)getpid(), __ATOMIC_SEQ_CST);
    __atomic_store_n(&door->proxy_start, sg_process_start((uint32_t)getpid()), __ATOMIC_SEQ_CST);
}

static int guard(struct sg_doorway *doorway) {
    static _Atomic uint32_t no_flag; /* a truncated door blinds us to new ranks; sessions go on */
    return sg_fault_guard(doorway->door, sizeof *doorway->door, &no_flag);
}

static int make_door(struct sg_doorway *doorway, char why[256]) {
    char path[4096];
    snprintf(path, sizeof path, "%s/door", doorway->directory);
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    int error = fd < 0 ? errno : posix_fallocate(fd, 0, sizeof *doorway->door);
    void *at = error != 0 ? MAP_FAILED : mmap(NULL, sizeof *doorway->door, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (error == 0 && at == MAP_FAILED) error = errno;
    if (fd >= 0) close(fd);
    if (error != 0) {
        snprintf(why, 256, "cannot create %.180s: %s%s", path, strerror(error),
                 error == EEXIST ? " (is another proxy serving this directory?)" : "");
        return -1;
    }
    doorway->door = at;
    doorway->door->magic = SG_DOOR_MAGIC;
    doorway->door->protocol = SG_PROTOCOL;
    sign(doorway);
    return guard(doorway);
}

/* The door of a proxy whose sessions this one takes over. */
static int open_door(struct sg_doorway *doorway, char why[256]) {
    char path[4096];
    struct stat status;
    snprintf(path, sizeof path, "%s/door", doorway->directory);
    int fd = open(path, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
    int error = fd < 0 || fstat(fd, &status) != 0 ? errno : (uint64_t)status.st_size < sizeof *doorway->door ? EPROTO : 0;
    if (error == 0 && doorway->server->restored) error = posix_fallocate(fd, 0, sizeof *doorway->door); /* checkpoints keep holes */
    void *at = error != 0 ? MAP_FAILED : mmap(NULL, sizeof *doorway->door, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (error == 0 && at == MAP_FAILED) error = errno;
    if (fd >= 0) close(fd);
    if (error == 0) doorway->door = at;
    if (error == 0 && (doorway->door->magic != SG_DOOR_MAGIC || doorway->door->protocol != SG_PROTOCOL)) error = EPROTO;
    if (error == 0) return guard(doorway);
    snprintf(why, 256, "cannot open %.180s: %s", path, strerror(error));
    return -1;
}

int sg_doorway_make(struct sg_doorway *doorway, sg_server *server, uint32_t index, const char *directory, char why[256]) {
    doorway->server = server;
    doorway->first = index * SG_DOOR_SLOTS;
    for (uint32_t i = 0; i < SG_DOOR_SLOTS; i++) doorway->slots[i].pidfd = -1;
    if (check_directory(doorway, directory, why) != 0) return -1;
    return server->resumes ? open_door(doorway, why) : make_door(doorway, why);
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
    slot->burying = slot->died = slot->restored = 0;
}

/* The slot of the session that has this window, whatever door it came through; NULL: none. */
static const struct sg_slot *holder_of(const sg_server *server, uint32_t window) {
    for (uint32_t d = 0; d < server->doorway_count; d++)
        for (uint32_t i = 0; i < SG_DOOR_SLOTS; i++) {
            const struct sg_slot *slot = &server->doorways[d].slots[i];
            if (slot->session != NULL && slot->session->window == window) return slot;
        }
    return NULL;
}

static int is_over(const struct sg_slot *slot) {
    return atomic_load(&slot->session->ending) != SG_GOES_ON || sg_process_start(slot->pid) != slot->start;
}

/* Whether some session of the device is about to make room for another. */
static int somebody_goes(const sg_server *server) {
    for (uint32_t d = 0; d < server->doorway_count; d++)
        for (uint32_t i = 0; i < SG_DOOR_SLOTS; i++) {
            const struct sg_slot *slot = &server->doorways[d].slots[i];
            if (slot->session != NULL && is_over(slot)) return 1;
        }
    return 0;
}

static void set_session(struct sg_doorway *doorway, uint32_t index, sg_session *session) {
    pthread_mutex_lock(&doorway->server->slots_lock);
    doorway->slots[index].session = session;
    pthread_mutex_unlock(&doorway->server->slots_lock);
}

static int watch(struct sg_doorway *doorway, uint32_t index) {
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = doorway->first + index};
    return epoll_ctl(doorway->server->epoll, EPOLL_CTL_ADD, doorway->slots[index].pidfd, &event);
}

/* Whether it may have this window now.  0: yes; 1: not yet, somebody else is still being buried; -1: no, `why` says why. */
static int check_window(const sg_server *server, uint32_t rank, uint32_t sub, char why[96]) {
    if (rank >= SG_MAX_WINDOWS / SG_WINDOWS_PER_RANK || sub >= SG_WINDOWS_PER_RANK) {
        snprintf(why, 96, "rank %u, child %u is outside of what one job may have", rank, sub);
        return -1;
    }
    const struct sg_slot *holder = holder_of(server, rank * SG_WINDOWS_PER_RANK + sub);
    if (holder != NULL && is_over(holder)) return 1;
    /* who cannot share, or finds no place, waits for one that is going */
    if ((!sg_residency_sliceable(server) || sg_residency_full(server)) && somebody_goes(server)) return 1;
    if (holder == NULL) return 0;
    snprintf(why, 96, "rank %u, child %u has a session already (process %u)", rank, sub, holder->pid);
    return -1;
}

/* 0: served; 1: not yet; -1: refused, `why` says why. */
static int admit(struct sg_doorway *doorway, uint32_t index, char why[96]) {
    struct sg_slot *slot = &doorway->slots[index];
    struct sg_claim *claim = &doorway->door->slots[index];
    uint32_t pid = claim->pid, rank = claim->rank, sub = claim->sub; /* read once */
    uint64_t start = claim->pid_start;
    __asm__ volatile("" ::: "memory");
    int begun = start != 0;
    if (slot->restored) start = 0;
    int result = check_window(doorway->server, rank, sub, why);
    if (result != 0) return result;
    struct sg_claimant claimant;
    if (!begun || sg_claimant_find(&doorway->server->claimants, pid, start, &claimant) != 0) {
        snprintf(why, 96, "the device proxy sees no process %u like the claimant", pid);
        return -1;
    }
    slot->pidfd = claimant.pidfd;
    slot->pid = claimant.pid;
    slot->start = claimant.start;
    sg_session *session = sg_session_create(doorway, index, rank, sub, why);
    if (session == NULL) return -1;
    set_session(doorway, index, session);
    if (watch(doorway, index) == 0) return 0;
    snprintf(why, 96, "cannot watch process %u: %s", pid, strerror(errno));
    sg_session_end(slot->session, SG_ABORTS, SG_DEAD_PROXY);
    return -1;
}

static void serve_claim(struct sg_doorway *doorway, uint32_t index) {
    struct sg_claim *claim = &doorway->door->slots[index];
    struct sg_slot *slot = &doorway->slots[index];
    char why[96] = "";
    uint32_t claimed = SG_SLOT_CLAIMED;
    slot->claiming_since = 0;
    int refused = admit(doorway, index, why);
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
static void check_half_claim(struct sg_doorway *doorway, uint32_t index, uint32_t state) {
    struct sg_slot *slot = &doorway->slots[index];
    struct sg_claim *claim = &doorway->door->slots[index];
    uint64_t now = sg_now_ns();
    if (slot->claiming_since == 0) slot->claiming_since = now;
    int dead = claim->pid != 0 && claim->pid_start != 0 &&
               !sg_claimant_lives(&doorway->server->claimants, claim->pid, slot->restored ? 0 : claim->pid_start);
    if (now - slot->claiming_since < (dead ? CLAIM_NS / 20 : CLAIM_NS)) return;
    slot->claiming_since = 0;
    claim->pid = 0;
    claim->pid_start = 0;
    atomic_compare_exchange_strong(&claim->state, &state, SG_SLOT_FREE);
}

/* ---- sessions, as the loop sees them -------------------------------------------------------------------------- */
static void finish_session(struct sg_doorway *doorway, uint32_t index) {
    struct sg_slot *slot = &doorway->slots[index];
    struct sg_claim *claim = &doorway->door->slots[index];
    sg_session *s = slot->session;
    uint32_t why = atomic_load(&s->why_dead);
    set_session(doorway, index, NULL);
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
    sg_server_poke(doorway->server); /* its successor may be waiting in a slot that was looked at already */
}

static void bury_claimant(struct sg_doorway *doorway, uint32_t index) {
    struct sg_slot *slot = &doorway->slots[index];
    slot->died = 0;
    if (slot->session != NULL) {
        sg_session_end(slot->session, SG_ABORTS, SG_DEAD_CLOSED);
    } else {
        forget_claimant(slot);
        set_state(&doorway->door->slots[index], SG_SLOT_FREE);
    }
}

static void look_at(struct sg_doorway *doorway, uint32_t index) {
    struct sg_slot *slot = &doorway->slots[index];
    uint32_t state = atomic_load(&doorway->door->slots[index].state);
    sg_session *s = slot->session;
    if (slot->died) bury_claimant(doorway, index);
    if (s == NULL && slot->pidfd >= 0) return; /* taken by one who broke the protocol */
    if (s == NULL) {
        if (state == SG_SLOT_CLAIMED && !atomic_load(&doorway->server->stopping)) serve_claim(doorway, index);
        else if (state == SG_SLOT_CLAIMING || state == SG_SLOT_REFUSED) check_half_claim(doorway, index, state);
        else if (state != SG_SLOT_FREE && state != SG_SLOT_CLAIMED) set_state(&doorway->door->slots[index], SG_SLOT_FREE);
        else slot->claiming_since = 0;
        if (state == SG_SLOT_FREE) slot->restored = 0;
        s = slot->session;
        if (s == NULL) return;
    }
    if (state == SG_SLOT_CLOSING && atomic_load(&s->ending) == SG_GOES_ON) sg_session_end(s, SG_DRAINS, SG_DEAD_CLOSED);
    if (atomic_load(&s->faulted) && atomic_load(&s->ending) != SG_ABORTS) {
        sg_worker_wake_all(s);
        sg_residency_stir(s);
    }
    if (atomic_load(&s->ending) != SG_GOES_ON && !slot->burying) slot->burying = sg_session_bury(s) == 0;
    if (atomic_load(&s->ended)) finish_session(doorway, index);
}

void sg_doorway_claimant_died(struct sg_doorway *doorway, uint32_t index) {
    struct sg_slot *slot = &doorway->slots[index];
    epoll_ctl(doorway->server->epoll, EPOLL_CTL_DEL, slot->pidfd, NULL);
    slot->died = 1;
}

void sg_doorway_look(struct sg_doorway *doorway) {
    for (uint32_t i = 0; i < SG_DOOR_SLOTS; i++) look_at(doorway, i);
}

uint32_t sg_doorway_sessions(const struct sg_doorway *doorway) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < SG_DOOR_SLOTS; i++) count += doorway->slots[i].session != NULL;
    return count;
}

/* ---- opening and shutting ------------------------------------------------------------------------------------- */
static void *watch_bell(void *argument) {
    const struct sg_doorway *doorway = argument;
    _Atomic uint32_t *bell = &doorway->door->bell;
    uint32_t seen = 0; /* as in a new door: who rings before this thread runs is heard, too */
    while (!atomic_load(&doorway->server->stopping)) {
        sg_futex_wait(bell, seen, SG_SERVER_TICK_MS);
        uint32_t now = atomic_load(bell);
        if (now != seen) sg_server_poke(doorway->server);
        seen = now;
    }
    return NULL;
}

int sg_doorway_open(struct sg_doorway *doorway) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = -pthread_create(&doorway->watcher, NULL, watch_bell, doorway);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    doorway->watched = error == 0;
    if (error != 0) return error;
    if (doorway->server->resumes) return 0;
    doorway->door->device = doorway->server->described;
    atomic_store(&doorway->door->ready, 1);
    return 0;
}

void sg_doorway_shut(struct sg_doorway *doorway) {
    atomic_store(&doorway->door->dead, SG_DEAD_PROXY); /* who waits at the door, too */
    atomic_fetch_add(&doorway->door->bell, 1); /* a watcher that has seen no stop yet does not go to sleep */
    sg_futex_wake(&doorway->door->bell, INT_MAX);
    for (uint32_t i = 0; i < SG_DOOR_SLOTS; i++)
        if (doorway->slots[i].session != NULL) sg_session_end(doorway->slots[i].session, SG_ABORTS, SG_DEAD_PROXY);
}

void sg_doorway_join(struct sg_doorway *doorway) {
    if (doorway->watched) pthread_join(doorway->watcher, NULL);
    doorway->watched = 0;
}

void sg_doorway_remove(struct sg_doorway *doorway) {
    char path[4096];
    for (uint32_t i = 0; i < SG_DOOR_SLOTS; i++) {
        forget_claimant(&doorway->slots[i]);
        if (doorway->slots[i].session == NULL) continue;
        snprintf(path, sizeof path, "%s/%u.session", doorway->directory, i), unlink(path);
        snprintf(path, sizeof path, "%s/%u.pinned", doorway->directory, i), unlink(path);
    }
    if (doorway->door == NULL) return; /* the one in the directory, if any, is another proxy's */
    snprintf(path, sizeof path, "%s/door", doorway->directory), unlink(path);
    sg_fault_forget(doorway->door);
}

/* ---- changing proxies (handover.c) ------------------------------------------------------------------------------ */
int sg_doorway_changes(const struct sg_doorway *doorway) {
    int changes = 0;
    for (uint32_t i = 0; i < SG_DOOR_SLOTS; i++) {
        const struct sg_slot *slot = &doorway->slots[i];
        changes |= slot->died || (slot->session != NULL && atomic_load(&slot->session->ending) != SG_GOES_ON);
    }
    return changes;
}

int sg_doorway_is_taken(const struct sg_doorway *doorway, uint32_t slot) {
    uint32_t state = atomic_load(&doorway->door->slots[slot].state);
    char path[4096];
    snprintf(path, sizeof path, "%s/%u.image", doorway->directory, slot);
    return state == SG_SLOT_OPEN || state == SG_SLOT_CLOSING || access(path, F_OK) == 0;
}

int sg_doorway_seat(struct sg_doorway *doorway, uint32_t index, sg_session *session, const struct sg_claimant *claimant) {
    struct sg_slot *slot = &doorway->slots[index];
    slot->pid = claimant->pid;
    slot->start = claimant->start;
    slot->pidfd = claimant->pidfd;
    set_session(doorway, index, session);
    return watch(doorway, index);
}

void sg_doorway_take_over(struct sg_doorway *doorway) {
    char path[4096];
    sign(doorway);
    for (uint32_t i = 0; i < SG_DOOR_SLOTS; i++) {
        uint32_t state = atomic_load(&doorway->door->slots[i].state);
        doorway->slots[i].restored = doorway->server->restored && (state == SG_SLOT_CLAIMING || state == SG_SLOT_CLAIMED);
        if (doorway->slots[i].session == NULL) continue;
        sg_session_take_over(doorway->slots[i].session);
        snprintf(path, sizeof path, "%s/%u.image", doorway->directory, i), unlink(path);
    }
}

void sg_doorway_unmap(struct sg_doorway *doorway) {
    if (doorway->door != NULL) munmap(doorway->door, sizeof *doorway->door);
    doorway->door = NULL;
}
