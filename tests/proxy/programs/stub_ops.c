/* Handlers for stub.h's calls, written as the generated ones are. */
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "singularity_core/proxy/session.h"
#include "stub.h"

const struct sg_hal_table *proxy_hal(const char *driver);

struct sg_driver {
    void *(*create)(int kind);
    void (*destroy)(void *);
    int (*ended)(void *);
    void (*set)(void *, uint64_t);
    uint64_t (*get)(void *);
    void *(*current)(void);
    int (*set_current)(void *);
    _Atomic int64_t *live, *wrong_context;
};
struct state { _Atomic uint64_t sum; _Atomic int quit, gate; };

int sg_driver_load(struct sg_driver **out, void *library, char why[256]) {
    static struct sg_driver driver;
    *(void **)&driver.create = dlsym(library, "stubCreate");
    *(void **)&driver.destroy = dlsym(library, "stubDestroy");
    *(void **)&driver.ended = dlsym(library, "stubEnded");
    *(void **)&driver.set = dlsym(library, "stubSet");
    *(void **)&driver.get = dlsym(library, "stubGet");
    *(void **)&driver.current = dlsym(library, "stubCurrent");
    *(void **)&driver.set_current = dlsym(library, "cuCtxSetCurrent");
    driver.live = dlsym(library, "stub_live");
    driver.wrong_context = dlsym(library, "stub_wrong_context");
    if (driver.wrong_context == NULL) snprintf(why, 256, "this is not the stub driver");
    *out = &driver;
    return driver.wrong_context == NULL ? -1 : 0;
}

void sg_handle_destroy_physical(const struct sg_driver *driver, uint32_t kind, void *physical) {
    (void)kind;
    driver->destroy(physical);
}

static struct state *state_of(sg_session *s) {
    _Atomic(void *) *word = (_Atomic(void *) *)sg_session_state(s);
    struct state *state = atomic_load(word);
    if (state != NULL) return state;
    void *none = NULL, *mine = calloc(1, sizeof *state);
    if (atomic_compare_exchange_strong(word, &none, mine)) return mine;
    free(mine);
    return none;
}
void sg_calls_session_quit(sg_session *s) { atomic_store(&state_of(s)->quit, 1); }
void sg_calls_contexts_end(sg_session *s) { (void)s; }
void sg_calls_session_end(sg_session *s) { free(*sg_session_state(s)); *sg_session_state(s) = NULL; }
int sg_calls_export(sg_session *s, struct sg_out *out, char why[96]) { (void)s, (void)out, (void)why; return 0; }
int sg_calls_import(sg_session *s, struct sg_in *in, char why[96]) { (void)s, (void)in, (void)why; return 0; }
int sg_calls_portable(const struct sg_request *record, char why[96]) { (void)record, (void)why; return 1; }

static uint64_t word(const struct sg_request *r, uint32_t at) {
    uint64_t value = 0;
    if ((at + 1) * 8 <= r->bytes) memcpy(&value, r->payload + at * 8, 8);
    return value;
}
static void give(struct sg_answer *a, const void *data, uint32_t bytes) {
    memcpy(a->payload + a->bytes, data, bytes);
    a->bytes += bytes;
}
#define HANDLER(name) static int32_t name(sg_session *s, const struct sg_request *r, struct sg_answer *a)
#define UNUSED (void)s, (void)r, (void)a

HANDLER(nothing) { UNUSED; return 0; }
HANDLER(echo) { UNUSED; give(a, r->payload, r->bytes < SG_REPLY_PAYLOAD ? r->bytes : SG_REPLY_PAYLOAD); return 0; }
HANDLER(fail) { UNUSED; return (int32_t)word(r, 0); }
HANDLER(sum) { UNUSED; atomic_fetch_add(&state_of(s)->sum, word(r, 0)); return 0; }
HANDLER(sum_read) { UNUSED; uint64_t sum = atomic_load(&state_of(s)->sum); give(a, &sum, 8); return 0; }

HANDLER(context_create) {
    void *context = sg_session_driver(s)->create(SG_KIND_CONTEXT);
    uint64_t handle = sg_handle_put(s, SG_KIND_CONTEXT, context, 0);
    if (handle == 0) return 2;
    sg_log_create(s, r, handle, NULL, 0);
    give(a, &handle, 8);
    return 0;
}
static int32_t destroy(sg_session *s, uint32_t kind, uint64_t handle) {
    void *object = sg_handle_take(s, kind, handle);
    if (object == NULL) return 400;
    sg_log_destroy(s, handle);
    sg_session_driver(s)->destroy(object);
    return 0;
}
HANDLER(context_destroy) { UNUSED; return destroy(s, SG_KIND_CONTEXT, word(r, 0)); }
HANDLER(context_is) { UNUSED; void *now = sg_session_driver(s)->current(); give(a, &now, 8); return 0; }
HANDLER(stream_create) {
    UNUSED;
    void *stream = sg_session_driver(s)->create(SG_KIND_STREAM);
    uint64_t handle = word(r, 0), context = sg_session_context(s, r);
    int32_t error = SG_HANDLE_KIND(handle) == SG_KIND_STREAM ? sg_handle_put_at(s, handle, stream, context) : 400;
    if (error != 0) sg_session_driver(s)->destroy(stream);
    else sg_log_create(s, r, handle, &context, 1);
    return error;
}
HANDLER(stream_destroy) { UNUSED; return destroy(s, SG_KIND_STREAM, word(r, 0)); }
HANDLER(module_create) {
    uint64_t context = sg_session_context(s, r), count = word(r, 0);
    uint64_t module = sg_handle_put(s, SG_KIND_MODULE, sg_session_driver(s)->create(SG_KIND_MODULE), context);
    give(a, &module, 8);
    for (uint64_t i = 0; i < count && i < 32; i++) {
        uint64_t f = sg_handle_put(s, SG_KIND_FUNCTION, sg_session_driver(s)->create(SG_KIND_FUNCTION), module);
        give(a, &f, 8);
    }
    sg_log_create(s, r, module, &context, 1);
    return 0;
}
HANDLER(module_destroy) { UNUSED; return destroy(s, SG_KIND_MODULE, word(r, 0)); }
HANDLER(function_set) {
    UNUSED;
    void *function = sg_handle_get(s, SG_KIND_FUNCTION, word(r, 0));
    if (function == NULL) return 400;
    sg_session_driver(s)->set(function, word(r, 2));
    sg_log_set(s, r, word(r, 0), word(r, 1));
    return 0;
}
HANDLER(function_get) {
    void *function = sg_handle_get(s, SG_KIND_FUNCTION, word(r, 0));
    if (function == NULL) return 400;
    uint64_t value = sg_session_driver(s)->get(function);
    give(a, &value, 8);
    return 0;
}
HANDLER(alloc) {
    uint64_t address;
    int32_t error = sg_memory_alloc(s, word(r, 0), &address);
    if (error == 0) {
        sg_log_create(s, r, address, NULL, 0);
        give(a, &address, 8);
    }
    return error;
}
HANDLER(release) {
    UNUSED;
    int32_t error = sg_memory_free(s, word(r, 0));
    if (error == 0) sg_log_destroy(s, word(r, 0));
    return error;
}
struct bulk { sg_session *session; uint8_t *at; };
static int32_t chunk_in(void *argument, uint64_t offset, void *chunk, uint32_t bytes) {
    struct bulk *bulk = argument;
    int32_t error = sg_device_enter(bulk->session);
    if (error != 0) return error;
    memcpy(bulk->at + offset, chunk, bytes);
    sg_device_leave(bulk->session);
    return 0;
}
static int32_t chunk_out(void *argument, uint64_t offset, void *chunk, uint32_t bytes) {
    struct bulk *bulk = argument;
    int32_t error = sg_device_enter(bulk->session);
    if (error != 0) return error;
    memcpy(chunk, bulk->at + offset, bytes);
    sg_device_leave(bulk->session);
    return 0;
}
HANDLER(write_device) {
    UNUSED;
    if (sg_memory_owned(s, word(r, 0), word(r, 1)) != 0) return 1;
    struct bulk bulk = {s, (uint8_t *)word(r, 0)};
    return sg_bulk_receive(s, word(r, 1), chunk_in, &bulk);
}
HANDLER(read_device) {
    UNUSED;
    if (sg_memory_owned(s, word(r, 0), word(r, 1)) != 0) return 1;
    struct bulk bulk = {s, (uint8_t *)word(r, 0)};
    return sg_bulk_send(s, word(r, 1), chunk_out, &bulk);
}
HANDLER(pin) { UNUSED; return sg_pinned_commit(s, word(r, 0), word(r, 1), word(r, 2) != 0); }
HANDLER(pin_add) {
    UNUSED;
    if (sg_pinned_owned(s, word(r, 0), word(r, 1)) != 0) return 1;
    for (uint64_t i = 0; i < word(r, 1); i++) ((volatile uint8_t *)word(r, 0))[i]++;
    return 0;
}
HANDLER(view) {
    UNUSED;
    enum { ROOM = 1 << 20 };
    uint64_t bytes = word(r, 1) < ROOM ? word(r, 1) : ROOM;
    void *buffer = calloc(1, ROOM);
    for (uint64_t i = 0; buffer != NULL && i < word(r, 2) && i < 10000; i++)
        if (sg_view_read(s, word(r, 0), buffer, bytes) == 0) sg_view_write(s, word(r, 0), buffer, bytes);
    free(buffer);
    return 0;
}
HANDLER(gate_wait) {
    UNUSED;
    struct state *state = state_of(s);
    while (!atomic_load(&state->gate) && !atomic_load(&state->quit)) usleep(200);
    return atomic_load(&state->gate) ? 0 : 999;
}
HANDLER(gate_open) { UNUSED; atomic_store(&state_of(s)->gate, 1); return 0; }
HANDLER(hang) {
    UNUSED;
    void *context = sg_session_driver(s)->current();
    while (!sg_session_driver(s)->ended(context)) usleep(200);
    return 709;
}

static _Atomic int64_t registered, live_bytes;
HANDLER(live) {
    UNUSED;
    int64_t now[4] = {atomic_load(sg_session_driver(s)->live), atomic_load(&registered), atomic_load(&live_bytes),
                      atomic_load(sg_session_driver(s)->wrong_context)};
    give(a, now, sizeof now);
    return 0;
}

const struct sg_op sg_ops[] = {
    [OP_NOTHING] = {"nothing", nothing, 0},
    [OP_ECHO] = {"echo", echo, SG_OP_NO_CONTEXT},
    [OP_FAIL] = {"fail", fail, 0},
    [OP_SUM] = {"sum", sum, 0},
    [OP_SUM_READ] = {"sum_read", sum_read, SG_OP_NO_CONTEXT},
    [OP_CONTEXT_CREATE] = {"context_create", context_create, SG_OP_NO_CONTEXT},
    [OP_CONTEXT_DESTROY] = {"context_destroy", context_destroy, SG_OP_NO_CONTEXT},
    [OP_CONTEXT_IS] = {"context_is", context_is, 0},
    [OP_STREAM_CREATE] = {"stream_create", stream_create, 0},
    [OP_STREAM_DESTROY] = {"stream_destroy", stream_destroy, 0},
    [OP_MODULE_CREATE] = {"module_create", module_create, 0},
    [OP_MODULE_DESTROY] = {"module_destroy", module_destroy, 0},
    [OP_FUNCTION_SET] = {"function_set", function_set, 0},
    [OP_FUNCTION_GET] = {"function_get", function_get, SG_OP_NO_CONTEXT},
    [OP_ALLOC] = {"alloc", alloc, SG_OP_NO_CONTEXT},
    [OP_FREE] = {"free", release, SG_OP_NO_CONTEXT},
    [OP_WRITE] = {"write", write_device, SG_OP_BLOCKS | SG_OP_NO_CONTEXT},
    [OP_READ] = {"read", read_device, SG_OP_BLOCKS | SG_OP_NO_CONTEXT},
    [OP_PIN] = {"pin", pin, SG_OP_NO_CONTEXT},
    [OP_PIN_ADD] = {"pin_add", pin_add, SG_OP_NO_CONTEXT},
    [OP_GATE_WAIT] = {"gate_wait", gate_wait, SG_OP_BLOCKS},
    [OP_GATE_OPEN] = {"gate_open", gate_open, 0},
    [OP_HANG] = {"hang", hang, SG_OP_BLOCKS},
    [OP_LIVE] = {"live", live, SG_OP_NO_CONTEXT},
    [OP_VIEW] = {"view", view, SG_OP_BLOCKS | SG_OP_NO_CONTEXT},
};
const uint32_t sg_op_count = OP_COUNT;

/* ---- a HAL whose device memory is plain memory at the agreed address ---------------------------------------- */
#define DEVICE_BYTES (64ull << 20)
static int32_t arena_open(void *state, uint64_t address, uint64_t bytes, uint64_t *actual) {
    (void)state;
    void *at = mmap((void *)address, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE,
                    -1, 0);
    *actual = (uint64_t)at;
    return at == MAP_FAILED ? 2 : 0;
}
static int32_t arena_close(void *state) { (void)state; return 0; }
static int32_t arena_limit(void *state, uint64_t *bytes) { (void)state; *bytes = DEVICE_BYTES; return 0; }
static int32_t range_live(void *state, uint64_t address, uint64_t bytes) {
    (void)state;
    atomic_fetch_add(&live_bytes, (int64_t)bytes);
    /* whole pages only: blocks are 512 bytes, so neighbours share pages and the guard is coarse */
    uint64_t first = address & ~4095ull, last = (address + bytes + 4095) & ~4095ull;
    return mprotect((void *)first, last - first, PROT_READ | PROT_WRITE) == 0 ? 0 : 2;
}
static int32_t range_dead(void *state, uint64_t address, uint64_t bytes) {
    (void)state, (void)address;
    atomic_fetch_sub(&live_bytes, (int64_t)bytes);
    return 0;
}
static int32_t host_register(void *state, void *host, uint64_t bytes) {
    (void)state, (void)host, (void)bytes;
    atomic_fetch_add(&registered, 1);
    return 0;
}
static int32_t host_unregister(void *state, void *host) {
    (void)state, (void)host;
    atomic_fetch_sub(&registered, 1);
    return 0;
}
static int32_t copy_to_host(void *state, void *host, uint64_t device, uint64_t bytes) {
    (void)state;
    memcpy(host, (void *)device, bytes);
    return 0;
}
static int32_t copy_to_device(void *state, uint64_t device, const void *host, uint64_t bytes) {
    (void)state;
    memcpy((void *)device, host, bytes);
    return 0;
}
/* no call of this device is asynchronous: it is always settled, and no gate is ever asked for */
static int32_t settle(void *state, uint64_t timeout_ns) { (void)state, (void)timeout_ns; return 0; }
static int32_t discard(void *state) { (void)state; return 0; }
static int32_t gate_make(void *state, uint64_t *gate) { (void)state, (void)gate; return 2; }

static const struct sg_hal_table stub_hal = {
    .struct_size = sizeof(struct sg_hal_table), .abi = SG_HAL_ABI, .arena_open = arena_open, .arena_close = arena_close,
    .arena_limit = arena_limit, .range_live = range_live, .range_dead = range_dead, .host_register = host_register,
    .host_unregister = host_unregister, .copy_to_host = copy_to_host, .copy_to_device = copy_to_device, .gate_make = gate_make,
    .settle = settle, .discard = discard,
};
const struct sg_hal_table *proxy_hal(const char *driver) { (void)driver; return &stub_hal; }
