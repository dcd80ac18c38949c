/* The driver calls that the machinery makes itself, and the device's description for the door. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "session.h"

enum { ATTRIBUTE_MEMORY_POOLS = 115 };

static void *symbol(void *library, const char *name, const char *older) {
    void *at = dlsym(library, name);
    return at != NULL || older == NULL ? at : dlsym(library, older);
}

int sg_base_driver_load(struct sg_base_driver *out, void *library, char why[256]) {
    const struct { const char *name, *older; void **to; } calls[] = {
        {"cuInit", NULL, (void **)&out->init},
        {"cuDriverGetVersion", NULL, (void **)&out->driver_version},
        {"cuDeviceGet", NULL, (void **)&out->device_get},
        {"cuDeviceGetName", NULL, (void **)&out->device_name},
        {"cuDeviceGetUuid_v2", "cuDeviceGetUuid", (void **)&out->device_uuid},
        {"cuDeviceTotalMem_v2", NULL, (void **)&out->device_total},
        {"cuDeviceGetAttribute", NULL, (void **)&out->device_attribute},
        {"cuDevicePrimaryCtxRetain", NULL, (void **)&out->primary_retain},
        {"cuDevicePrimaryCtxRelease_v2", "cuDevicePrimaryCtxRelease", (void **)&out->primary_release},
        {"cuCtxSetCurrent", NULL, (void **)&out->context_set},
        {"cuStreamQuery", NULL, (void **)&out->stream_query},
    };
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        *calls[i].to = symbol(library, calls[i].name, calls[i].older);
        if (*calls[i].to != NULL) continue;
        snprintf(why, 256, "the driver library lacks %s: is it a CUDA driver-ABI library?", calls[i].name);
        return -1;
    }
    return 0;
}

int sg_device_describe(const struct sg_base_driver *driver, int32_t device, struct sg_device_info *out, char why[256]) {
    size_t total = 0;
    int version = 0;
    int32_t error = driver->device_name(out->name, sizeof out->name, device);
    if (error == 0) error = driver->device_uuid(out->uuid, device);
    if (error == 0) error = driver->device_total(&total, device);
    if (error == 0) error = driver->driver_version(&version);
    if (error != 0) {
        snprintf(why, 256, "the driver does not describe device %d: CUresult %d", device, error);
        return -1;
    }
    out->total_bytes = total;
    out->driver_version = version;
    out->attribute_count = 1;
    for (int i = 1; i < (int)SG_ATTRIBUTES; i++) {
        int value = 0;
        if (driver->device_attribute(&value, i, device) != 0) continue;
        out->attributes[i] = value;
        out->attribute_count = i + 1;
    }
    out->pool_supported = out->attributes[ATTRIBUTE_MEMORY_POOLS];
    return 0;
}

/* Where it is, and not what it is: CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, PCI_DEVICE_ID, PCI_DOMAIN_ID, MULTI_GPU_BOARD_GROUP_ID, NUMA_ID. */
static int is_place(int attribute) {
    static const int places[] = {33, 34, 50, 85, 130};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        if (places[i] == attribute) return 1;
    return 0;
}

int sg_device_differs(const struct sg_device_info *was, const struct sg_device_info *is, char why[256]) {
    if (was->total_bytes != is->total_bytes) {
        snprintf(why, 256, "the job saw a device of %llu bytes, this one has %llu", (unsigned long long)was->total_bytes,
                 (unsigned long long)is->total_bytes);
        return 1;
    }
    if (is->driver_version < was->driver_version) {
        snprintf(why, 256, "the job ran with driver version %d, here is %d, which is older", was->driver_version, is->driver_version);
        return 1;
    }
    for (int i = 1; i < (int)SG_ATTRIBUTES; i++)
        if (was->attributes[i] != is->attributes[i] && !is_place(i)) {
            snprintf(why, 256, "the job saw a %.64s, here is a %.64s: CUdevice_attribute %d is %d instead of %d", was->name, is->name, i,
                     is->attributes[i], was->attributes[i]);
            return 1;
        }
    return 0;
}
