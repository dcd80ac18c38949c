/* The HAL of stub_proxy.c when it serves a device whose driver library exports its native table. */
#include <dlfcn.h>
#include <stdio.h>

#include "singularity_core/hal/native.h"

const struct sg_hal_table *proxy_hal(const char *driver);

const struct sg_hal_table *proxy_hal(const char *driver) {
    const struct sg_hal_table *table = NULL;
    int32_t (*init)(unsigned), (*open)(int32_t, const struct sg_hal_table **);
    void *library = dlopen(driver, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        return NULL;
    }
    *(void **)&init = dlsym(library, "cuInit");
    *(void **)&open = dlsym(library, "sg_hal_open_table");
    if (init == NULL || open == NULL || init(0) != 0 || open(0, &table) != 0) fprintf(stderr, "%s has no table\n", driver);
    return table;
}
