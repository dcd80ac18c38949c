/* The replay log of a live session: what handlers record, and how it is played into a fresh session. */
#include <stdio.h>
#include <stdlib.h>

#include "session.h"

static void record(sg_session *s, const struct sg_log_record *what) {
    if (atomic_load(&s->replaying)) return; /* sg_session_log_import adds the records as they were */
    pthread_mutex_lock(&s->log_lock);
    int error = sg_log_add(s->log, what);
    uint64_t entries = sg_log_entries(s->log);
    pthread_mutex_unlock(&s->log_lock);
    __atomic_store_n(&s->page->counters[SG_COUNT_LOG_ENTRIES], entries, __ATOMIC_RELAXED);
    if (error != 0) {
        /* a log with a hole would restore another job than the one that ran */
        fprintf(stderr, "singularity: rank %u: no memory for the replay log: its session is closed\n", s->rank);
        sg_session_end(s, SG_ABORTS, SG_DEAD_PROXY);
    }
}

void sg_log_create(sg_session *s, const struct sg_request *request, uint64_t handle, const uint64_t *needs,
                   uint32_t count) {
    struct sg_worker *w = sg_current_worker;
    struct sg_log_record what = {.type = SG_LOG_CREATE, .op = request->op, .object = handle, .needs = needs,
                                 .need_count = count, .payload = request->payload, .bytes = request->bytes,
                                 .context = sg_session_context(s, request)};
    if (w != NULL && w->made_count != 0) {
        what.made = w->made;
        what.made_count = w->made_count;
    } else {
        what.made = &handle;
        what.made_count = 1;
    }
    record(s, &what);
}

void sg_log_set(sg_session *s, const struct sg_request *request, uint64_t owner, uint64_t key) {
    struct sg_log_record what = {.type = SG_LOG_SET, .op = request->op, .object = owner, .key = key,
                                 .payload = request->payload, .bytes = request->bytes,
                                 .context = sg_session_context(s, request)};
    record(s, &what);
}

void sg_log_destroy(sg_session *s, uint64_t handle) {
    pthread_mutex_lock(&s->log_lock);
    sg_log_remove(s->log, handle);
    uint64_t entries = sg_log_entries(s->log);
    pthread_mutex_unlock(&s->log_lock);
    __atomic_store_n(&s->page->counters[SG_COUNT_LOG_ENTRIES], entries, __ATOMIC_RELAXED);
}

/* ---- export and import ------------------------------------------------------------------------------------ */
uint64_t sg_session_log_export(sg_session *s, uint8_t *buffer, uint64_t room) {
    pthread_mutex_lock(&s->log_lock);
    uint64_t bytes = sg_log_serialise(s->log, buffer, room);
    pthread_mutex_unlock(&s->log_lock);
    return bytes;
}

struct import {
    struct sg_worker worker;
    char *why;
    uint64_t count;
};

static int failed(struct import *import, const struct sg_log_record *what, const char *reason, int32_t result) {
    const char *name = what->op < sg_op_count ? sg_ops[what->op].name : "?";
    snprintf(import->why, 256, "replaying record %llu (%s): %s (%d)", (unsigned long long)import->count, name, reason,
             result);
    return -EINVAL;
}

static int made_as_recorded(sg_session *s, uint64_t name) {
    uint32_t kind = SG_HANDLE_KIND(name);
    uint64_t base, bytes;
    if (kind != 0) return sg_handle_get(s, kind, name) != NULL;
    return sg_memory_range(s, name, &base, &bytes) == SG_CUDA_SUCCESS && base == name;
}

static int replay(void *argument, const struct sg_log_record *what) {
    struct import *import = argument;
    struct sg_worker *w = &import->worker;
    sg_session *s = w->session;
    if (what->op >= sg_op_count) return failed(import, what, "no such call", 0);
    /* a copy, aligned; a module's image or a graph's recipe may be longer than any message */
    uint8_t *large = what->bytes > SG_MAX_PAYLOAD ? malloc(what->bytes) : NULL;
    if (what->bytes > SG_MAX_PAYLOAD && large == NULL) return -ENOMEM;
    uint8_t *payload = large != NULL ? large : ((struct sg_message *)w->message)->payload;
    if (what->bytes != 0) memcpy(payload, what->payload, what->bytes);
    struct sg_request request = {what->op, what->bytes, SG_HANDLE_INDEX(what->context), SG_NO_REPLY, payload};
    struct sg_answer answer = {0, w->answer};
    w->give = what->made;
    w->give_count = what->made_count;
    int32_t result = sg_worker_execute(w, &request, &answer);
    free(large);
    w->give = NULL;
    w->give_count = 0;
    if (result != SG_CUDA_SUCCESS) return failed(import, what, "the driver refused", result);
    for (uint32_t i = 0; i < what->made_count; i++)
        if (!made_as_recorded(s, what->made[i])) return failed(import, what, "it made another object", (int)i);
    pthread_mutex_lock(&s->log_lock);
    int error = sg_log_add(s->log, what);
    pthread_mutex_unlock(&s->log_lock);
    import->count++;
    return error;
}

int sg_session_log_import(sg_session *s, const uint8_t *buffer, uint64_t bytes, char why[256]) {
    struct import import = {.why = why};
    struct sg_worker *before = sg_current_worker;
    why[0] = 0;
    int error = sg_worker_open(&import.worker, s);
    if (error == 0) {
        sg_current_worker = &import.worker;
        atomic_store(&s->replaying, 1);
        error = sg_log_walk(buffer, bytes, replay, &import);
        atomic_store(&s->replaying, 0);
        sg_current_worker = before;
        s->server->base.context_set(before == NULL || before->current == SG_CONTEXT_UNKNOWN ? NULL : before->current);
    }
    if (error != 0 && why[0] == 0)
        snprintf(why, 256, error == -EPROTO ? "this is no replay log of this version, or it is cut off"
                                            : "out of memory");
    sg_worker_close(&import.worker);
    return error;
}
