/* A session from claim to grave: its files and mappings, its accounting, and its undertaker.
 *
 * The undertaker is a thread of its own, because the end of a session may have to wait for device work of
 * that session, and nobody else's session may wait for that. */
#include "doorway.h"
#include "session_image.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>

#define GRACE_NS 2000000000ull /* for handlers to come back before their contexts are destroyed under them */

static _Atomic uint64_t last_id;

/* ---- what handlers see ------------------------------------------------------------------------------- */
const struct sg_driver *sg_session_driver(sg_session *s) { return s->server->driver; }
const struct sg_hal_table *sg_session_hal(sg_session *s) { return s->server->hal; }
int32_t sg_session_device(sg_session *s) { return s->server->device; }
int sg_session_has_gates(sg_session *s) { return SG_HAL_HAS(s->server->hal, gate_make) && SG_HAL_HAS(s->server->hal, copy_to_host); }
int sg_session_sliceable(sg_session *s) { return sg_residency_sliceable(s->server); }
void **sg_session_state(sg_session *s) { return &s->state; }
int sg_session_replaying(sg_session *s) { return atomic_load(&s->replaying) != 0; }

uint64_t sg_session_context(sg_session *s, const struct sg_request *request) {
    return request->context == 0 ? 0 : sg_handles_at(&s->handles, SG_KIND_CONTEXT, request->context);
}

/* The rank can scribble on its page, so the truth is here and the page holds a copy. */
void sg_count(sg_session *s, enum sg_counter what, uint64_t by) {
    uint64_t now = atomic_fetch_add_explicit(&s->counters[what], by, memory_order_relaxed) + by;
    __atomic_store_n(&s->page->counters[what], now, __ATOMIC_RELAXED);
}

uint64_t sg_counted(sg_session *s, enum sg_counter what) {
    return atomic_load_explicit(&s->counters[what], memory_order_relaxed);
}

void sg_made(uint64_t handle) {
    struct sg_worker *w = sg_current_worker;
    if (w == NULL) return;
    if (w->made_count == w->made_room) {
        uint32_t room = w->made_room * 2 + 16;
        uint64_t *made = realloc(w->made, room * sizeof *made);
        if (made == NULL) {
            sg_session_end(w->session, SG_ABORTS, SG_DEAD_PROXY); /* its log would have a hole */
            return;
        }
        w->made = made;
        w->made_room = room;
    }
    w->made[w->made_count++] = handle;
}

int sg_given(uint32_t kind, uint64_t *handle) {
    struct sg_worker *w = sg_current_worker;
    if (w == NULL || w->give == NULL) return 0;
    /* addresses have kind 0, because windows lie below 2^48 */
    for (uint32_t i = 0; i < w->give_count; i++) {
        if (SG_HANDLE_KIND(w->give[i]) != kind) continue;
        *handle = w->give[i];
        w->give += i + 1;
        w->give_count -= i + 1;
        return 1;
    }
    return 0;
}

/* ---- handles, as handlers see them ---------------------------------------------------------------------- */
static void destroy(void *argument, uint32_t kind, void *physical, void *context) {
    sg_session *s = argument;
    struct sg_worker *w = sg_current_worker;
    int foreign = context != NULL && kind != SG_KIND_CONTEXT && (w == NULL || w->current != context);
    if (foreign) s->server->base.context_set(context);
    sg_handle_destroy_physical(s->server->driver, kind, physical);
    if (foreign && w != NULL && w->current != SG_CONTEXT_UNKNOWN) s->server->base.context_set(w->current);
}

static void *current_context(void) {
    struct sg_worker *w = sg_current_worker;
    return w == NULL || w->current == SG_CONTEXT_UNKNOWN ? NULL : w->current;
}

uint64_t sg_handle_put(sg_session *s, uint32_t kind, void *physical, uint64_t parent) {
    uint64_t handle;
    if (sg_given(kind, &handle)) {
        if (sg_handles_put_at(&s->handles, handle, physical, current_context(), parent) != 0) return 0;
    } else {
        handle = sg_handles_put(&s->handles, kind, physical, current_context(), parent);
    }
    if (handle != 0) sg_made(handle);
    return handle;
}

int32_t sg_handle_put_at(sg_session *s, uint64_t handle, void *physical, uint64_t parent) {
    if (SG_HANDLE_INDEX(handle) >= SG_CLIENT_HANDLES) return SG_CUDA_INVALID_HANDLE; /* those are ours to choose */
    if (sg_handles_put_at(&s->handles, handle, physical, current_context(), parent) != 0) return SG_CUDA_INVALID_HANDLE;
    sg_made(handle);
    return SG_CUDA_SUCCESS;
}

void *sg_handle_get(sg_session *s, uint32_t kind, uint64_t handle) { return sg_handles_get(&s->handles, kind, handle); }

void *sg_handle_take(sg_session *s, uint32_t kind, uint64_t handle) {
    return sg_handles_take(&s->handles, kind, handle, destroy, s);
}

int32_t sg_stream_get(sg_session *s, uint64_t handle, void **physical) {
    if (handle <= 2) { /* the default, legacy and per-thread streams */
        *physical = (void *)handle;
        return SG_CUDA_SUCCESS;
    }
    *physical = sg_handles_get(&s->handles, SG_KIND_STREAM, handle);
    return *physical == NULL ? SG_CUDA_INVALID_HANDLE : SG_CUDA_SUCCESS;
}

void sg_handles_each(sg_session *s, uint32_t kind, sg_handle_visitor each, void *argument) {
    sg_handles_visit(&s->handles, kind, each, argument);
}

/* ---- birth ------------------------------------------------------------------------------------------------ */
static int make_file(const sg_session *s, const char *what, uint64_t bytes, int filled) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%u.%s", s->doorway->directory, s->slot, what);
    unlink(path);
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0) return -errno;
    /* what is always used is allocated now: a full /dev/shm must be an error here, not a SIGBUS later */
    int error = filled ? posix_fallocate(fd, 0, (off_t)bytes) : ftruncate(fd, (off_t)bytes) == 0 ? 0 : errno;
    if (error == 0) return fd;
    close(fd);
    unlink(path);
    return -error;
}

/* One that is there already, of the size that it must have. */
static int open_file(const sg_session *s, const char *what, uint64_t bytes) {
    char path[4096];
    struct stat status;
    snprintf(path, sizeof path, "%s/%u.%s", s->doorway->directory, s->slot, what);
    int fd = open(path, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) return -errno;
    if (fstat(fd, &status) == 0 && S_ISREG(status.st_mode) && status.st_uid == geteuid() && (uint64_t)status.st_size == bytes) return fd;
    close(fd);
    return -EPROTO;
}

static void remove_file(const sg_session *s, const char *what) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%u.%s", s->doorway->directory, s->slot, what);
    unlink(path);
}

static void begin_page(sg_session *s) {
    s->page->magic = SG_SESSION_MAGIC;
    s->page->protocol = SG_PROTOCOL;
    s->page->generation = 1;
    s->page->rank = s->rank;
    s->page->window = s->window;
    s->sleeps = 1;
}

/* The rank may have scribbled on it: what is trusted is in the image. */
static int resume_page(sg_session *s) {
    if (s->page->magic != SG_SESSION_MAGIC || s->page->protocol != SG_PROTOCOL) return -EPROTO;
    s->page->generation++;
    uint32_t before = atomic_load(&s->page->sleeping);
    s->sleeps = before >= UINT32_MAX - 1 ? 1 : before + 2; /* another value than the rank has rung for */
    return 0;
}

static int map_files(sg_session *s) {
    int fd = s->resumes ? open_file(s, "session", SG_SESSION_BYTES) : make_file(s, "session", SG_SESSION_BYTES, 1);
    if (fd < 0) return fd;
    int error = s->server->restored && s->resumes ? -posix_fallocate(fd, 0, SG_SESSION_BYTES) : 0; /* checkpoints keep holes */
    void *at = error != 0 ? MAP_FAILED : mmap(NULL, SG_SESSION_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
    if (error == 0 && at == MAP_FAILED) error = -errno;
    close(fd);
    if (error != 0) return error;
    s->base = at;
    s->page = at;
    s->replies = (struct sg_reply_slot *)(s->base + SG_REPLIES_OFFSET);
    s->ring = s->base + SG_RING_OFFSET;
    s->staging = s->base + SG_STAGING_OFFSET;
    error = sg_fault_guard(s->base, SG_SESSION_BYTES, &s->faulted);
    if (error == 0 && s->resumes) error = resume_page(s);
    if (error != 0) return error;
    if (!s->resumes) begin_page(s);
    s->page->barriers = (uint32_t)s->server->barriers;
    atomic_store(&s->page->sleeping, s->sleeps);
    s->pinned_file = s->resumes ? open_file(s, "pinned", SG_PINNED_WINDOW) : make_file(s, "pinned", SG_PINNED_WINDOW, 0);
    return s->pinned_file < 0 ? s->pinned_file : sg_pinned_open(s);
}

static void release(sg_session *s) {
    sg_pinned_end(s);
    if (s->pinned_file >= 0) close(s->pinned_file);
    if (!s->resumes) remove_file(s, "session");
    if (!s->resumes) remove_file(s, "pinned");
    sg_arena_destroy(s->arena);
    s->arena = NULL;
    sg_handles_close(&s->handles);
    sg_log_free(s->log);
    s->log = NULL;
    s->pinned_file = -1;
}

static sg_session *create(struct sg_doorway *doorway, uint32_t slot, uint32_t rank, uint32_t sub, const uint8_t *image, uint64_t bytes,
                          char why[96]) {
    sg_session *s = calloc(1, sizeof *s);
    if (s == NULL) {
        snprintf(why, 96, "the device proxy is out of memory");
        return NULL;
    }
    s->server = doorway->server;
    s->doorway = doorway;
    s->slot = slot;
    s->rank = rank;
    s->sub = sub;
    s->window = rank * SG_WINDOWS_PER_RANK + sub;
    s->id = atomic_fetch_add(&last_id, 1) + 1;
    s->pinned_file = -1;
    s->resumes = image != NULL;
    pthread_mutex_init(&s->lock, NULL);
    pthread_mutex_init(&s->bulk, NULL);
    pthread_mutex_init(&s->host_lock, NULL);
    pthread_cond_init(&s->host_changed, NULL);
    pthread_mutex_init(&s->log_lock, NULL);
    pthread_mutex_init(&s->pinned_lock, NULL);
    pthread_mutex_init(&s->arena_lock, NULL);
    pthread_cond_init(&s->changed, NULL);
    int error = sg_handles_open(&s->handles);
    if (error == 0) error = (s->log = sg_log_new()) == NULL ? -ENOMEM : 0;
    if (error == 0) error = sg_memory_begin(s);
    if (error == 0) error = map_files(s);
    if (error == 0) error = sg_residency_join(s, why);
    if (error == 0) error = sg_communication_begin(s);
    if (error == 0 && image != NULL) error = sg_session_import(s, image, bytes, why);
    if (error == 0) error = sg_worker_start(s);
    if (error == 0) return s;
    sg_communication_quit(s);
    s->server->base.context_set(s->server->context);
    sg_handles_take_all(&s->handles, destroy, s);
    sg_calls_session_end(s);
    sg_communication_end(s);
    sg_residency_leave(s);
    if (why[0] == 0) snprintf(why, 96, error == -EEXIST ? "rank %u's page-locked window is in use (%s)" : "rank %u: no session: %s", rank,
             strerror(-error));
    release(s);
    sg_session_free(s);
    return NULL;
}

sg_session *sg_session_create(struct sg_doorway *doorway, uint32_t slot, uint32_t rank, uint32_t sub, char why[96]) {
    return create(doorway, slot, rank, sub, NULL, 0, why);
}

sg_session *sg_session_resume(struct sg_doorway *doorway, uint32_t slot, const uint8_t *image, uint64_t bytes, char why[96]) {
    struct sg_image_owner owner;
    if (sg_image_owner_of(image, bytes, &owner) == 0) return create(doorway, slot, owner.rank, owner.sub, image, bytes, why);
    snprintf(why, 96, "its image is of another version, or cut off");
    return NULL;
}

void sg_session_take_over(sg_session *s) {
    s->resumes = 0;
    for (uint32_t i = 0; i < 32; i++) sg_count(s, i, 0); /* the page shows what the other had counted */
}

/* ---- end -------------------------------------------------------------------------------------------------- */
void sg_session_end(sg_session *s, uint32_t how, uint32_t why_dead) {
    uint32_t none = SG_DEAD_NO, before = atomic_load(&s->ending);
    atomic_compare_exchange_strong(&s->why_dead, &none, why_dead);
    while (before < how && !atomic_compare_exchange_weak(&s->ending, &before, how)) continue;
    sg_worker_wake_all(s);
    sg_bulk_wake(s);
    sg_residency_stir(s);
    sg_server_poke(s->server);
}

static void announce_death(sg_session *s) {
    uint32_t none = SG_DEAD_NO;
    atomic_compare_exchange_strong(&s->page->dead, &none, atomic_load(&s->why_dead));
    for (uint32_t i = 0; i < SG_REPLY_SLOTS; i++)
        if (atomic_load(&s->replies[i].waiting)) sg_futex_wake(&s->replies[i].done, INT_MAX);
    sg_futex_wake(&s->page->room, INT_MAX);
    sg_bulk_wake(s);
}

void sg_session_note_error(sg_session *s, int32_t error) {
    uint32_t before = 0;
    while (!atomic_compare_exchange_weak(&s->page->async_error, &before, (uint32_t)error))
        if (before != 0 && (sg_sticky(before) || !sg_sticky((uint32_t)error))) return;
}

static void ask_context(void *argument, uint64_t handle, void *physical, void *context) {
    sg_session *s = argument;
    (void)handle, (void)context;
    int32_t error = s->server->base.context_set(physical);
    if (error == 0) error = s->server->base.stream_query((void *)2); /* our thread's own: another's may be captured */
    if (error != 0 && error != SG_CUDA_NOT_READY && sg_sticky((uint32_t)error)) sg_session_note_error(s, error);
}

int32_t sg_session_lost(sg_session *s) {
    uint32_t error = atomic_load(&s->page->async_error);
    if (!sg_sticky(error)) {
        sg_handles_visit(&s->handles, SG_KIND_CONTEXT, ask_context, s);
        error = atomic_load(&s->page->async_error);
    }
    return sg_sticky(error) ? (int32_t)error : SG_CUDA_SUCCESS;
}

int sg_session_join(sg_session *s, uint32_t limit) {
    pthread_mutex_lock(&s->lock);
    int error = s->closed ? -ESHUTDOWN : s->threads >= limit ? -EAGAIN : 0;
    s->threads += error == 0;
    pthread_mutex_unlock(&s->lock);
    return error;
}

void sg_session_leave(sg_session *s) {
    pthread_mutex_lock(&s->lock);
    s->threads--;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

/* Until no thread runs a handler of this session.  A handler that is stuck behind endless device work is
 * helped by destroying its contexts: that is how a driver is told that the work is not wanted any more. */
static void await_threads(sg_session *s) {
    uint64_t aborted = 0;
    int forced = 0;
    pthread_mutex_lock(&s->lock);
    while (s->threads != 0) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += 50000000;
        if (until.tv_nsec >= 1000000000) until.tv_sec++, until.tv_nsec -= 1000000000;
        pthread_cond_timedwait(&s->changed, &s->lock, &until);
        if (s->threads == 0 || atomic_load(&s->ending) != SG_ABORTS) continue;
        uint64_t now = sg_now_ns();
        pthread_mutex_unlock(&s->lock);
        if (aborted == 0) {
            aborted = now;
            announce_death(s);
            sg_residency_discard(s);
        }
        sg_worker_wake_all(s);
        if (!forced && now - aborted > GRACE_NS) {
            forced = 1;
            sg_calls_contexts_end(s);
            sg_handles_take_kind(&s->handles, SG_KIND_CONTEXT, destroy, s);
        }
        pthread_mutex_lock(&s->lock);
    }
    s->closed = 1;
    pthread_mutex_unlock(&s->lock);
}

static void *undertaker(void *argument) {
    sg_session *s = argument;
    sg_server *server = s->server;
    server->base.context_set(server->context);
    if (atomic_load(&s->ending) == SG_ABORTS) {
        announce_death(s);
        sg_residency_discard(s); /* before a host function is let go: what follows it might be another's memory by now */
    }
    sg_calls_session_quit(s);
    sg_communication_quit(s);
    await_threads(s);
    announce_death(s);
    sg_residency_ends(s);
    sg_residency_discard(s);
    server->base.context_set(server->context);
    sg_calls_contexts_end(s);
    sg_handles_take_all(&s->handles, destroy, s);
    sg_calls_session_end(s);
    sg_communication_end(s);
    server->base.context_set(server->context);
    sg_residency_leave(s);
    release(s);
    server->base.context_set(NULL);
    atomic_store(&s->ended, 1);
    sg_server_poke(server);
    return NULL;
}

int sg_session_bury(sg_session *s) {
    sigset_t all, before;
    sigfillset(&all);
    sigdelset(&all, SIGBUS), sigdelset(&all, SIGSEGV), sigdelset(&all, SIGFPE), sigdelset(&all, SIGILL);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = -pthread_create(&s->undertaker, NULL, undertaker, s);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    s->buried = error == 0;
    return error;
}

void sg_session_free(sg_session *s) {
    if (s->buried) pthread_join(s->undertaker, NULL); /* it has poked the server, and touches it no more */
    if (s->base != NULL) {
        sg_fault_forget(s->base);
        munmap(s->base, SG_SESSION_BYTES);
    }
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->arena_lock);
    pthread_mutex_destroy(&s->pinned_lock);
    pthread_mutex_destroy(&s->log_lock);
    pthread_cond_destroy(&s->host_changed);
    pthread_mutex_destroy(&s->host_lock);
    pthread_mutex_destroy(&s->bulk);
    pthread_mutex_destroy(&s->lock);
    free(s);
}
