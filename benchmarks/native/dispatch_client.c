/* What driver calls cost from where a rank stands.  Usage: dispatch_client RESULT [MEBIBYTES]
 * Loads libcuda.so.1 as programs do, so the same binary measures the client of a proxy and the device
 * library itself.  Writes "key value" lines; times are medians. */
#include "rank.h"

enum { BURST = 400, BURSTS = 150, SUSTAINED = 40000, ROUND_TRIPS = 3000, COPIES = 7 };

static const char *const PTX =
    ".version 8.0\n.target sm_80\n.address_size 64\n"
    ".visible .entry nothing(.param .u64 a, .param .u64 b, .param .u32 n) { ret; }\n";

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    size_t bytes = (size_t)(argc > 2 ? atoi(argv[2]) : 64) << 20;
    FILE *out = fopen(argv[1], "w");
    if (out == NULL) return 1;
    open_device();
    void *function = load_kernel(PTX, "nothing");

    uint64_t a = 0, b = 0;
    uint32_t n = 0;
    void *parameters[] = {&a, &b, &n};
    launch_fn launch = (launch_fn)driver_symbol("cuLaunchKernel");
    int (*synchronize)(void) = (int (*)(void))driver_symbol("cuCtxSynchronize");
    static double times[ROUND_TRIPS];
    for (int burst = -10; burst < BURSTS; burst++) { /* the first ones warm up */
        double start = now_ns();
        for (int k = 0; k < BURST; k++) check(launch(function, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL), "cuLaunchKernel");
        double end = now_ns();
        check(synchronize(), "cuCtxSynchronize");
        if (burst >= 0) times[burst] = (end - start) / BURST;
    }
    fprintf(out, "enqueue_ns %.2f\n", median(times, BURSTS));

    double start = now_ns();
    for (int k = 0; k < SUSTAINED; k++) check(launch(function, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL), "cuLaunchKernel");
    check(synchronize(), "cuCtxSynchronize");
    fprintf(out, "launches_per_s %.0f\n", SUSTAINED / ((now_ns() - start) * 1e-9));

    for (int k = 0; k < ROUND_TRIPS; k++) {
        start = now_ns();
        check(synchronize(), "cuCtxSynchronize");
        times[k] = now_ns() - start;
    }
    fprintf(out, "rtt_us %.3f\n", median(times, ROUND_TRIPS) / 1e3);

    uint64_t target;
    void *pinned;
    CALL(cuMemAlloc_v2, (uint64_t *, size_t), &target, bytes);
    CALL(cuMemHostAlloc, (void **, size_t, unsigned), &pinned, bytes, 0);
    char *host = malloc(bytes), *other = malloc(bytes);
    if (host == NULL || other == NULL) return 1;
    memset(host, 1, bytes);
    memset(other, 2, bytes);
    memset(pinned, 3, bytes);
    static double up[COPIES], down[COPIES], fixed[COPIES], plain[COPIES];
    for (int k = -1; k < COPIES; k++) {
        int at = k < 0 ? 0 : k;
        start = now_ns();
        CALL(cuMemcpyHtoD_v2, (uint64_t, const void *, size_t), target, host, bytes);
        check(synchronize(), "cuCtxSynchronize");
        up[at] = now_ns() - start;
        start = now_ns();
        CALL(cuMemcpyDtoH_v2, (void *, uint64_t, size_t), host, target, bytes);
        down[at] = now_ns() - start;
        start = now_ns();
        CALL(cuMemcpyHtoDAsync_v2, (uint64_t, const void *, size_t, void *), target, pinned, bytes, NULL);
        check(synchronize(), "cuCtxSynchronize");
        fixed[at] = now_ns() - start;
        start = now_ns();
        memcpy(other, host, bytes);
        plain[at] = now_ns() - start;
        __asm__ volatile("" ::"r"(other) : "memory");
    }
    fprintf(out, "h2d_gbps %.3f\n", (double)bytes / median(up, COPIES));
    fprintf(out, "d2h_gbps %.3f\n", (double)bytes / median(down, COPIES));
    fprintf(out, "pinned_gbps %.3f\n", (double)bytes / median(fixed, COPIES));
    fprintf(out, "memcpy_gbps %.3f\n", (double)bytes / median(plain, COPIES));
    return fclose(out) == 0 ? 0 : 1;
}
