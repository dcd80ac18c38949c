/* What driver calls cost from where a rank stands.  Usage: dispatch_client SOCKET MEBIBYTES
 * Loads libcuda.so.1 as programs do, so the same binary measures the client of a proxy and the device library itself.
 * Slices; each answers in nanoseconds, of a launch or round trip the median:
 *   e  a launch, in bursts of 400         s  a launch, 40,000 of them and a synchronisation
 *   r  cuCtxSynchronize, nothing to do    m  memcpy of MEBIBYTES
 *   u, d, p  a copy of MEBIBYTES: from pageable memory, to it, from page-locked memory */
#include "rank.h"

enum { BURST = 400, BURSTS = 25, WARM_UP = 5, SUSTAINED = 40000, ROUND_TRIPS = 2000 };

static const char *const PTX =
    ".version 8.0\n.target sm_80\n.address_size 64\n"
    ".visible .entry nothing(.param .u64 a, .param .u64 b, .param .u32 n) { ret; }\n";

static void *function, *pinned;
static launch_fn launch;
static int (*synchronize)(void);
static int (*to_device)(uint64_t, const void *, size_t), (*to_host)(void *, uint64_t, size_t);
static int (*to_device_async)(uint64_t, const void *, size_t, void *);
static uint64_t target;
static char *host, *other;
static size_t bytes;

static void launches(int count) {
    uint64_t a = 0, b = 0;
    uint32_t n = 0;
    void *parameters[] = {&a, &b, &n};
    for (int k = 0; k < count; k++) check(launch(function, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL), "cuLaunchKernel");
}

static double burst(void) {
    double start = now_ns();
    launches(BURST);
    double end = now_ns();
    check(synchronize(), "cuCtxSynchronize");
    return (end - start) / BURST;
}

static double sustained(void) {
    double start = now_ns();
    launches(SUSTAINED);
    check(synchronize(), "cuCtxSynchronize");
    return (now_ns() - start) / SUSTAINED;
}

static double round_trip(void) {
    double start = now_ns();
    check(synchronize(), "cuCtxSynchronize");
    return now_ns() - start;
}

static double copy(char what) {
    double start = now_ns();
    switch (what) {
    case 'u': check(to_device(target, host, bytes), "cuMemcpyHtoD"); break;
    case 'd': check(to_host(host, target, bytes), "cuMemcpyDtoH"); break;
    case 'p': check(to_device_async(target, pinned, bytes, NULL), "cuMemcpyHtoDAsync"); break;
    default: memcpy(other, host, bytes);
    }
    __asm__ volatile("" ::"r"(other) : "memory");
    if (what == 'u' || what == 'p') check(synchronize(), "cuCtxSynchronize");
    return now_ns() - start;
}

static double slice(char what) {
    static double times[ROUND_TRIPS];
    if (what == 'e') {
        for (int k = -WARM_UP; k < BURSTS; k++) times[k < 0 ? 0 : k] = burst();
        return median(times, BURSTS);
    }
    if (what == 'r') {
        for (int k = 0; k < ROUND_TRIPS; k++) times[k] = round_trip();
        return median(times, ROUND_TRIPS);
    }
    return what == 's' ? sustained() : copy(what);
}

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    bytes = (size_t)atoi(argv[2]) << 20;
    open_device();
    function = load_kernel(PTX, "nothing");
    launch = (launch_fn)driver_symbol("cuLaunchKernel");
    synchronize = (int (*)(void))driver_symbol("cuCtxSynchronize");
    to_device = (int (*)(uint64_t, const void *, size_t))driver_symbol("cuMemcpyHtoD_v2");
    to_host = (int (*)(void *, uint64_t, size_t))driver_symbol("cuMemcpyDtoH_v2");
    to_device_async = (int (*)(uint64_t, const void *, size_t, void *))driver_symbol("cuMemcpyHtoDAsync_v2");
    CALL(cuMemAlloc_v2, (uint64_t *, size_t), &target, bytes);
    CALL(cuMemHostAlloc, (void **, size_t, unsigned), &pinned, bytes, 0);
    host = malloc(bytes);
    other = malloc(bytes);
    if (host == NULL || other == NULL) return 1;
    memset(host, 1, bytes);
    memset(other, 2, bytes);
    memset(pinned, 3, bytes);
    copy('u'); /* no page of the device is touched for the first time later */
    return serve_slices(argv[1], slice);
}
