/* What the benchmark programs share: the driver by dlopen, time, medians, and slices of work on demand. */
#ifndef RANK_H
#define RANK_H

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

typedef int (*launch_fn)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);

static void *driver_symbol(const char *name) {
    static void *library;
    if (library == NULL) library = dlopen("libcuda.so.1", RTLD_NOW);
    void *found = library == NULL ? NULL : dlsym(library, name);
    if (found == NULL) {
        fprintf(stderr, "no %s in libcuda.so.1: %s\n", name, dlerror());
        exit(1);
    }
    return found;
}

static void check(int code, const char *name) {
    if (code != 0) {
        fprintf(stderr, "%s returned %d\n", name, code);
        exit(1);
    }
}
/* Resolves each time: for set-up; what is measured keeps its function pointers. */
#define CALL(name, types, ...) check(((int (*) types)driver_symbol(#name))(__VA_ARGS__), #name)

static inline void open_device(void) {
    int device;
    void *context;
    CALL(cuInit, (unsigned), 0);
    CALL(cuDeviceGet, (int *, int), &device, 0);
    CALL(cuCtxCreate_v2, (void **, unsigned, int), &context, 0, device);
}

static inline void *load_kernel(const char *ptx, const char *name) {
    void *module, *function;
    CALL(cuModuleLoadData, (void **, const void *), &module, ptx);
    CALL(cuModuleGetFunction, (void **, void *, const char *), &function, module, name);
    return function;
}

static double now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static inline double median(double *values, size_t count) {
    qsort(values, count, sizeof *values, ascending);
    return values[count / 2];
}

/* Connects to the Unix socket `path` and measures one slice for each byte that arrives; the answer is a line with what
 * `slice` returned.  So a benchmark has its processes take turns, a few milliseconds each: on a virtual machine the CPUs
 * move, and what a cache line costs between them changes fivefold from one second to the next. */
static inline int serve_slices(const char *path, double (*slice)(char what)) {
    int connection = socket(AF_UNIX, SOCK_STREAM, 0);
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    if (connect(connection, (struct sockaddr *)&address, sizeof address) != 0) return 1;
    for (char what; read(connection, &what, 1) == 1;) dprintf(connection, "%.3f\n", slice(what));
    return 0;
}

#endif
