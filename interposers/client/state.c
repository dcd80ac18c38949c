/* The process's state: opening, fork, death, and what is said on stderr. */
#define SG_TRACE_OWNER
#include "client.h"
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include "../wire.h"
#include "trace.h"

struct sg_client sg_client = {.ordinal = -1};
__thread struct sg_thread sg_self __attribute__((tls_model("initial-exec")));
static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;

void sg_say(const char *format, ...)
{
    char line[512];
    int at = snprintf(line, sizeof line, "singularity: rank %s: ", getenv("SINGULARITY_RANK") ? getenv("SINGULARITY_RANK") : "0");
    va_list arguments;
    va_start(arguments, format);
    int more = vsnprintf(line + at, sizeof line - (size_t)at - 1, format, arguments);
    va_end(arguments);
    size_t length = (size_t)at + (size_t)(more < 0 ? 0 : more);
    if (length > sizeof line - 2)
        length = sizeof line - 2;
    line[length++] = '\n';
    ssize_t written = write(2, line, length); /* one write: lines of ranks do not mix */
    (void)written;
}

/* Names are string constants, so their addresses tell them apart. */
static int first_time(const char *name)
{
    static const char *_Atomic said[1024];
    size_t start = ((uintptr_t)name >> 3) % 1024;
    for (size_t i = 0; i < 1024; i++) {
        const char *none = NULL;
        if (atomic_compare_exchange_strong(&said[(start + i) % 1024], &none, name))
            return 1;
        if (none == name)
            return 0;
    }
    return 0;
}

CUresult sg_refuse(CUresult error, const char *call, const char *reason, const char *remedy)
{
    if (first_time(call))
        sg_say("%s: %s: %s", call, reason, remedy);
    return error;
}

CUresult sg_declined(const char *call, const char *reason, const char *remedy)
{
    return sg_refuse(CUDA_ERROR_NOT_SUPPORTED, call, reason, remedy);
}

CUresult sg_unknown(const char *call)
{
    return sg_declined(call, "not interposed (CUDA_ERROR_NOT_SUPPORTED)",
                       "see reference-supported-calls.md for what is, and annotating.md for how to add it");
}

const char *sg_lost_cause(void)
{
    static const char *const causes[] = {"the message is too long", "the device proxy ended",
                                         "the proxy closed the session (see its log)",
                                         "client and proxy are of different versions", "the job is being ended"};
    sg_link *link = atomic_load(&sg_client.link);
    uint32_t dead = link ? sg_link_dead(link) : SG_DEAD_CLOSED;
    return causes[dead < sizeof causes / sizeof *causes ? dead : SG_DEAD_PROXY];
}

CUresult sg_lost(const char *call)
{
    static _Atomic int said;
    if (atomic_load(&sg_client.state) == SG_FORKED)
        return CUDA_ERROR_NOT_INITIALIZED;
    sg_link *link = atomic_load(&sg_client.link);
    if (!link)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (sg_link_dead(link) == SG_DEAD_NO)
        return CUDA_ERROR_INVALID_VALUE;
    if (atomic_exchange(&said, 1))
        return SG_ERROR_LOST;
    atomic_fetch_add(&sg_client.epoch, 1); /* calls that are answered here look at the session again, too */
    sg_say("%s: the device session is gone: %s; the process must be started again", call, sg_lost_cause());
    return SG_ERROR_LOST;
}

CUresult sg_call_got(const char *name, void *reply, uint32_t capacity, uint32_t *got)
{
    int32_t status = sg_link_call(atomic_load_explicit(&sg_client.link, memory_order_relaxed), reply, capacity, got);
    return SG_LIKELY(status >= 0) ? (CUresult)status : sg_lost(name);
}

CUresult sg_async_report(void)
{
    sg_link *link = atomic_load_explicit(&sg_client.link, memory_order_acquire);
    return link ? (CUresult)sg_link_async_take(link) : CUDA_SUCCESS;
}

/* A call without results is one that waits for earlier work, or might: what failed up to here is its to report. */
CUresult sg_call(const char *name, void *reply, uint32_t capacity)
{
    uint32_t got = 0;
    CUresult error = sg_call_got(name, reply, capacity, &got);
    if (error == CUDA_SUCCESS && !reply)
        return sg_async_report();
    return error == CUDA_SUCCESS && got < capacity ? CUDA_ERROR_UNKNOWN : error;
}

CUresult sg_bulk(const char *name, uint32_t op, const void *wire, uint32_t bytes, void *data, uint64_t data_bytes, int send)
{
    sg_link *link = atomic_load_explicit(&sg_client.link, memory_order_acquire);
    if (!link)
        return CUDA_ERROR_INVALID_CONTEXT;
    sg_link_bulk_lock(link);
    uint8_t *payload = sg_link_begin(link, op, sg_self.context, bytes);
    int32_t status = -EPIPE;
    if (payload) {
        memcpy(payload, wire, bytes);
        status = send ? sg_link_call_send(link, data, data_bytes) : sg_link_call_receive(link, data, data_bytes);
    }
    sg_link_bulk_unlock(link);
    if (status == CUDA_SUCCESS && !send)
        return sg_async_report();
    return status >= 0 ? (CUresult)status : sg_lost(name);
}

/* ---- start ------------------------------------------------------------------------------------------ */
static int map_doors(void)
{
    const char *list = getenv("SINGULARITY_DEVICES"), *visible = getenv("CUDA_VISIBLE_DEVICES");
    const struct sg_door *doors[SG_MAX_ORDINALS];
    char *directories[SG_MAX_ORDINALS];
    int found = 0;
    char *copy = strdup(list), *save = NULL;
    for (char *at = strtok_r(copy, ":", &save); at && found < SG_MAX_ORDINALS; at = strtok_r(NULL, ":", &save)) {
        const struct sg_door *door = sg_door_map(at);
        if (!door) {
            sg_say("cuInit: no device proxy serves %s: %s; start the program with singularity-run", at, strerror(errno));
            free(copy);
            return -1;
        }
        doors[found] = door;
        directories[found++] = strdup(at);
    }
    free(copy);
    sg_client.count = 0;
    if (!visible) {
        for (int i = 0; i < found; i++) {
            sg_client.doors[i] = doors[i];
            sg_client.directories[i] = directories[i];
        }
        sg_client.count = found;
        return 0;
    }
    for (const char *at = visible; *at && sg_client.count < SG_MAX_ORDINALS;) { /* stops at the first wrong entry, as CUDA does */
        char *end;
        long index = strtol(at, &end, 10);
        if (end == at || index < 0 || index >= found)
            break;
        sg_client.doors[sg_client.count] = doors[index];
        sg_client.directories[sg_client.count++] = directories[index];
        at = *end == ',' ? end + 1 : end;
        if (end != at && *end != ',')
            break;
    }
    return 0;
}

CUresult sg_initialise(void)
{
    int state = atomic_load(&sg_client.state);
    if (state == SG_READY)
        return CUDA_SUCCESS;
    if (state == SG_FORKED)
        return CUDA_ERROR_NOT_INITIALIZED;
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&opening);
    if (atomic_load(&sg_client.state) == SG_COLD) {
        const char *list = getenv("SINGULARITY_DEVICES");
        if (!list || !*list) {
            sg_say("cuInit: SINGULARITY_DEVICES is not set: start the program with singularity-run");
            result = CUDA_ERROR_NO_DEVICE;
        } else if (map_doors()) {
            result = CUDA_ERROR_SYSTEM_NOT_READY;
        } else if (sg_client.count == 0) {
            result = CUDA_ERROR_NO_DEVICE;
        } else {
            atomic_store(&sg_client.state, SG_READY);
        }
    }
    pthread_mutex_unlock(&opening);
    return result;
}

static CUresult greet(void)
{
    struct sg_wire_hello *wire = sg_begin(SG_OP_hello, sizeof *wire);
    if (!wire)
        return sg_lost("cuInit");
    wire->hash = SG_CALLS_HASH;
    CUresult error = sg_call("cuInit", NULL, 0);
    if (error)
        sg_say("client and device proxy were generated from different tables of calls: install the same version for both");
    return error;
}

static CUresult open_locked(int ordinal)
{
    const char *rank = getenv("SINGULARITY_RANK");
    char why[128] = "";
    sg_link *link = NULL;
    int result = -1;
    /* A rank's own window is 0; children that use the device take the next ones. */
    for (uint32_t sub = 0; sub < SG_WINDOWS_PER_RANK; sub++) {
        result = sg_link_open(&link, sg_client.directories[ordinal], rank ? (uint32_t)strtoul(rank, NULL, 10) : 0, sub, why);
        if (result != -ECONNREFUSED)
            break;
    }
    if (result) {
        sg_say("cannot open device %d: %s", ordinal, why[0] ? why : strerror(-result));
        return result == -ENOMEM ? CUDA_ERROR_OUT_OF_MEMORY : SG_ERROR_LOST;
    }
    sg_client.ordinal = ordinal;
    sg_client.pinned_base = (uint64_t)(uintptr_t)sg_link_pinned_base(link);
    atomic_store(&sg_client.link, link);
    return greet();
}

CUresult sg_open(int ordinal)
{
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&opening);
    if (!atomic_load(&sg_client.link)) {
        result = open_locked(ordinal);
    } else if (sg_client.ordinal != ordinal) {
        result = CUDA_ERROR_NOT_SUPPORTED;
        sg_say("device %d: this rank has opened device %d, and a rank opens one device: run one rank per device "
               "(--nproc-per-node), or set CUDA_VISIBLE_DEVICES",
               ordinal, sg_client.ordinal);
    }
    pthread_mutex_unlock(&opening);
    return result;
}

static CUresult enter_link(sg_link *link)
{
    if (sg_link_dead(link))
        return sg_lost("a call");
    return (CUresult)sg_link_async_take(link);
}

CUresult sg_enter_bare(void)
{
    if (SG_UNLIKELY(atomic_load_explicit(&sg_client.state, memory_order_acquire) != SG_READY))
        return CUDA_ERROR_NOT_INITIALIZED;
    sg_link *link = atomic_load_explicit(&sg_client.link, memory_order_acquire);
    return link ? enter_link(link) : CUDA_SUCCESS;
}

CUresult sg_enter_slow(void)
{
    CUresult error = sg_enter_bare();
    if (error)
        return error;
    uint32_t epoch = atomic_load(&sg_client.epoch);
    if (sg_self.current && !sg_handle_known(SG_KIND_CONTEXT, sg_self.current)) {
        sg_self.context = 0;
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    }
    if (sg_self.in_host)
        return CUDA_ERROR_NOT_PERMITTED;
    if (!sg_self.current)
        return CUDA_ERROR_INVALID_CONTEXT;
    sg_self.context = SG_HANDLE_INDEX(sg_self.current);
    sg_self.epoch = epoch;
    return CUDA_SUCCESS;
}

/* ---- fork and exit ------------------------------------------------------------------------------------ */
static void forked_child(void)
{
    sg_link *link = atomic_load(&sg_client.link);
    if (atomic_load(&sg_client.state) == SG_READY) /* CUDA's own rule: no use after fork; a child forked before is free */
        atomic_store(&sg_client.state, SG_FORKED);
    atomic_store(&sg_client.link, NULL);
    atomic_fetch_add(&sg_client.epoch, 1);
    sg_self.context = 0;
    sg_self.current = 0;
    if (link)
        sg_link_abandon(link);
}

__attribute__((constructor)) static void start(void)
{
    sg_trace_start();
    pthread_atfork(NULL, NULL, forked_child);
}

__attribute__((destructor)) static void finish(void)
{
    sg_link *link = atomic_load(&sg_client.link);
    if (link)
        sg_link_close(link); /* the link stays mapped: other threads may still be inside a call */
}
