/* A driver library that has objects and nothing else; it counts them, so that leaks show. */
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

static _Thread_local void *current;
EXPORT _Atomic int64_t stub_live;
EXPORT _Atomic int64_t stub_wrong_context; /* objects destroyed while another context was current */

struct object { int kind; void *context; _Atomic int ended; _Atomic uint64_t value; };

EXPORT void *stubCreate(int kind) {
    struct object *object = calloc(1, sizeof *object);
    object->kind = kind;
    object->context = current;
    atomic_fetch_add(&stub_live, 1);
    return object;
}
EXPORT void stubDestroy(void *at) {
    struct object *object = at;
    if (object->kind != 1 && object->context != current) atomic_fetch_add(&stub_wrong_context, 1);
    atomic_store(&object->ended, 1);
    atomic_fetch_sub(&stub_live, 1);
    if (object->kind != 1) free(object); /* contexts stay, so that OP_HANG may look at them */
}
EXPORT int stubEnded(void *at) { return atomic_load(&((struct object *)at)->ended); }
EXPORT void stubSet(void *at, uint64_t value) { atomic_store(&((struct object *)at)->value, value); }
EXPORT uint64_t stubGet(void *at) { return atomic_load(&((struct object *)at)->value); }
EXPORT void *stubCurrent(void) { return current; }

EXPORT int cuInit(unsigned flags) { return flags == 0 ? 0 : 1; }
EXPORT int cuDriverGetVersion(int *version) { *version = 13050; return 0; }
EXPORT int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return ordinal == 0 ? 0 : 101; }
EXPORT int cuDeviceGetName(char *name, int bytes, int device) {
    (void)device;
    strncpy(name, "stub device", (size_t)bytes);
    return 0;
}
EXPORT int cuDeviceGetUuid_v2(uint8_t uuid[16], int device) { memset(uuid, 0x5a + device, 16); return 0; }
EXPORT int cuDeviceTotalMem_v2(size_t *bytes, int device) { (void)device; *bytes = 1u << 28; return 0; }
EXPORT int cuDeviceGetAttribute(int *value, int attribute, int device) {
    (void)device;
    *value = attribute * 10;
    return attribute <= 150 ? 0 : 1;
}
EXPORT int cuDevicePrimaryCtxRetain(void **context, int device) {
    static int primary;
    (void)device;
    *context = &primary;
    return 0;
}
EXPORT int cuDevicePrimaryCtxRelease_v2(int device) { (void)device; return 0; }
EXPORT int cuStreamQuery(void *stream) { (void)stream; return 0; }
EXPORT int cuCtxSetCurrent(void *context) { current = context; return 0; }
