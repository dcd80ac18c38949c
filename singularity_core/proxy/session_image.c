/* A session that changes proxies.  At rest, and with no call under way, all that a proxy knows of a session is: its objects (the
 * replay log), its memory (an image, which is handed over as a file), where it stands in its ring, and a few numbers.  What it
 * shares with the rank stays where it is: the rank notices nothing.
 *
 *   head      struct image_head
 *   blocks    struct sg_image_block, by address: the device memory that is in use
 *   log       sg_session_log_export
 *   calls     sg_calls_export */
#include "session_image.h"

#include <stdio.h>

#include "doorway.h"

#define MAGIC 0x4547414d49474c41ull /* "ALGIMAGE" */
#define VERSION 2u
#define ANSWER_NS 5000000000ull /* for calls whose device work is done, and host functions, to come back */

struct image_head {
    uint64_t magic;
    uint32_t version, pid; /* the rank's process, as the proxy knows it, */
    uint64_t pid_start;
    uint32_t rank, sub, pid_inside, reserved;
    uint64_t arena_bytes, head, block_count;
    uint32_t host_functions, handles_used;
    uint64_t counters[32];
    char memory[64]; /* a path, valid while the proxy that wrote this lives; "": no memory */
    uint64_t log_bytes;
};

/* ---- out ------------------------------------------------------------------------------------------------------------- */
static int in_host_function(sg_session *s) {
    pthread_mutex_lock(&s->host_lock);
    int in_host = s->host_asked != s->host_through;
    pthread_mutex_unlock(&s->host_lock);
    return in_host;
}

/* 0, with `why`: some thread of the rank is in a call, or a function, that does not end by itself. */
static int await_answers(sg_session *s, char why[96]) {
    uint64_t until = sg_now_ns() + ANSWER_NS;
    int calls, in_host;
    do {
        calls = atomic_load(&s->calls) != 0;
        in_host = in_host_function(s);
        if (atomic_load(&s->ending) != SG_GOES_ON) {
            snprintf(why, 96, "it is just ending");
            return 0;
        }
        if (!calls && !in_host) return 1;
        usleep(200);
    } while (sg_now_ns() < until);
    snprintf(why, 96, in_host ? "a host function of it still runs" : "a call of it waits for other ranks");
    return 0;
}

struct look { char *why; int portable; };

static int look_at_record(void *argument, const struct sg_log_record *record) {
    struct look *look = argument;
    struct sg_request request = {record->op, record->bytes, 0, SG_NO_REPLY, record->payload};
    look->portable = sg_calls_portable(&request, look->why);
    return !look->portable;
}

static int put_log(sg_session *s, struct sg_out *out, uint64_t *bytes, char why[96]) {
    struct look look = {why, 1};
    *bytes = sg_session_log_export(s, NULL, 0);
    uint8_t *log = malloc(*bytes + 1);
    if (log == NULL || sg_session_log_export(s, log, *bytes) != *bytes) snprintf(why, 96, "out of memory");
    else if (sg_log_walk(log, *bytes, look_at_record, &look) == 0) sg_put(out, log, *bytes);
    free(log);
    return why[0] == 0;
}

static void fill_head(const sg_session *s, const struct sg_image_owner *owner, struct image_head *head) {
    *head = (struct image_head){.magic = MAGIC, .version = VERSION, .pid = owner->pid, .pid_start = owner->start, .rank = s->rank,
                                .sub = s->sub, .pid_inside = owner->pid_inside, .arena_bytes = s->server->arena_bytes, .head = atomic_load(&s->head),
                                .host_functions = s->host_through, .handles_used = s->handles.own_used};
    for (uint32_t i = 0; i < 32; i++) head->counters[i] = atomic_load(&s->counters[i]);
}

static uint64_t put_blocks(const sg_session *s, struct sg_out *out) {
    struct sg_arena_block block;
    uint64_t count = 0;
    for (uint64_t at = SG_DEVICE_BASE; sg_arena_next(s->arena, at, &block) == SG_ARENA_OK; at = block.address + block.bytes, count++) {
        struct sg_image_block said = {block.address, block.bytes};
        sg_put(out, &said, sizeof said);
    }
    return count;
}

/* As the worker that this thread is for the moment. */
static int write_image(sg_session *s, const struct sg_image_owner *owner, struct sg_out *out, char why[96]) {
    struct sg_out calls = {0};
    struct image_head head;
    int good = sg_calls_export(s, &calls, why) == 0; /* first: it frees what is due */
    fill_head(s, owner, &head);
    sg_put(out, &head, sizeof head);
    head.block_count = put_blocks(s, out);
    good = good && put_log(s, out, &head.log_bytes, why);
    sg_put(out, calls.at, calls.used);
    out->failed |= calls.failed;
    free(calls.at);
    if (good && sg_counted(s, SG_COUNT_LIVE_BYTES) != 0) {
        int32_t error = sg_image_write(s, head.memory);
        good = error == 0;
        if (!good) snprintf(why, 96, "its memory cannot be read (CUresult %d)", error);
    }
    if (good && out->failed) snprintf(why, 96, "out of memory");
    if (good && !out->failed) memcpy(out->at, &head, sizeof head);
    return good && !out->failed;
}

int sg_session_export(sg_session *s, const struct sg_image_owner *owner, struct sg_out *out, char why[96]) {
    struct sg_worker worker, *before = sg_current_worker;
    why[0] = 0;
    if (!await_answers(s, why)) return -EBUSY;
    int error = sg_worker_open(&worker, s);
    if (error == 0) {
        sg_current_worker = &worker;
        error = write_image(s, owner, out, why) ? 0 : -ENOTSUP;
        sg_current_worker = before;
        s->server->base.context_set(NULL);
    } else {
        snprintf(why, 96, "out of memory");
    }
    sg_worker_close(&worker);
    return error;
}

/* ---- in -------------------------------------------------------------------------------------------------------------- */
static int read_head(const uint8_t *image, uint64_t bytes, struct image_head *head) {
    if (bytes < sizeof *head) return -EPROTO;
    memcpy(head, image, sizeof *head);
    head->memory[sizeof head->memory - 1] = 0;
    if (head->magic != MAGIC || head->version != VERSION) return -EPROTO;
    return head->block_count <= (bytes - sizeof *head) / sizeof(struct sg_image_block) ? 0 : -EPROTO;
}

int sg_image_owner_of(const uint8_t *image, uint64_t bytes, struct sg_image_owner *owner) {
    struct image_head head;
    if (read_head(image, bytes, &head) != 0) return -EPROTO;
    *owner = (struct sg_image_owner){head.pid, head.pid_start, head.rank, head.sub, head.pid_inside};
    return 0;
}

int sg_image_read(const uint8_t *image, uint64_t bytes, struct sg_image_facts *facts, struct sg_image_block *blocks, uint64_t room) {
    struct image_head head;
    struct sg_image_block block;
    if (read_head(image, bytes, &head) != 0 || head.arena_bytes > UINT64_MAX - SG_DEVICE_BASE) return -EPROTO;
    uint64_t from = SG_DEVICE_BASE, end = SG_DEVICE_BASE + head.arena_bytes;
    for (uint64_t i = 0; i < head.block_count; i++) {
        memcpy(&block, image + sizeof head + i * sizeof block, sizeof block);
        if (block.address < from || block.address > end || block.bytes == 0 || block.bytes > end - block.address) return -EPROTO;
        from = block.address + block.bytes;
        if (i < room) blocks[i] = block;
    }
    *facts = (struct sg_image_facts){head.pid_inside, head.rank, head.sub, head.arena_bytes, head.block_count, ""};
    memcpy(facts->memory, head.memory, sizeof facts->memory);
    return 0;
}

/* From a checkpoint, it lies in a file beside the image. */
static int adopt_memory(sg_session *s, const struct image_head *head, char why[96]) {
    char path[4096];
    if (!s->server->restored) return head->memory[0] == 0 ? 0 : sg_image_adopt(s, head->memory);
    if (head->block_count == 0) return 0;
    snprintf(path, sizeof path, "%s/%u.memory", s->doorway->directory, s->slot);
    int error = sg_image_adopt(s, path);
    if (error != 0) snprintf(why, 96, "its memory cannot be read: %s", strerror(-error));
    unlink(path);
    return error;
}

/* The log's, with the head's numbers in place: its creations count anew. */
static int take_log(sg_session *s, const struct image_head *head, struct sg_in *in, char why[96]) {
    char said[256];
    const uint8_t *log = sg_get(in, head->log_bytes);
    if (log == NULL) return -EPROTO;
    int error = sg_session_log_import(s, log, head->log_bytes, said);
    if (error != 0) snprintf(why, 96, "%.95s", said);
    return error;
}

static void take_numbers(sg_session *s, const struct image_head *head) {
    for (uint32_t i = 0; i < 32; i++)
        if (i != SG_COUNT_LIVE_BYTES && i != SG_COUNT_LOG_ENTRIES) atomic_store(&s->counters[i], head->counters[i]);
    for (uint32_t i = 0; i < 32; i++) sg_count(s, i, 0);
    atomic_store(&s->head, head->head);
    s->host_asked = s->host_through = head->host_functions;
    sg_handles_skip(&s->handles, head->handles_used);
}

int sg_session_import(sg_session *s, const uint8_t *image, uint64_t bytes, char why[96]) {
    struct image_head head;
    struct sg_in in = {image, bytes, 0};
    why[0] = 0;
    if (read_head(image, bytes, &head) != 0) return -EPROTO;
    sg_get(&in, sizeof head + head.block_count * sizeof(struct sg_image_block));
    if (head.arena_bytes != s->server->arena_bytes) {
        snprintf(why, 96, "it saw a device of %llu bytes, this one has %llu", (unsigned long long)head.arena_bytes,
                 (unsigned long long)s->server->arena_bytes);
        return -EINVAL;
    }
    take_numbers(s, &head); /* first: launches so far are what members begin with */
    int error = take_log(s, &head, &in, why);
    if (error == 0) error = adopt_memory(s, &head, why);
    if (error == 0) error = sg_calls_import(s, &in, why) == 0 ? 0 : -EPROTO;
    s->server->base.context_set(NULL);
    if (error != 0 && why[0] == 0)
        snprintf(why, 96, error == -EPROTO ? "its image is of another version, or cut off" : "its image: %s", strerror(-error));
    return error;
}
