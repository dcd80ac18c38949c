/* Times kernels on the device.  Usage: device_client RESULT SAXPY.ptx NAIVE.ptx TILED.ptx FIRST.ptx
 * FIRST.ptx, a kernel named `first`, is loaded and run once beforehand, so that starting the compiler is not part of what a
 * kernel's compilation costs.  Writes "key value" lines, times in ms. */
#include "rank.h"

#include "sizes.h"

enum { REPEATS = 7 };
static int (*synchronize)(void);
static launch_fn launch;

static char *read_text(const char *path) {
    FILE *file = fopen(path, "r");
    static char *text;
    text = calloc(1, 1 << 20);
    if (file == NULL || text == NULL || fread(text, 1, (1 << 20) - 1, file) == 0) exit(1);
    fclose(file);
    return text;
}

/* (first, steady) milliseconds of load and launch; the difference is the compilation. */
static void measure(FILE *out, const char *name, const char *path, unsigned gx, unsigned gy, unsigned bx, unsigned by, void **parameters) {
    double times[REPEATS], start = now_ns();
    void *function = load_kernel(read_text(path), name);
    for (int k = -1; k < REPEATS; k++) {
        if (k >= 0) start = now_ns();
        check(launch(function, gx, gy, 1, bx, by, 1, 0, NULL, parameters, NULL), "cuLaunchKernel");
        check(synchronize(), "cuCtxSynchronize");
        if (k < 0)
            fprintf(out, "%s_first %.4f\n", name, (now_ns() - start) / 1e6);
        else
            times[k] = now_ns() - start;
    }
    fprintf(out, "%s %.4f\n", name, median(times, REPEATS) / 1e6);
}

static uint64_t filled(size_t count) {
    float *host = malloc(count * sizeof *host);
    uint64_t pointer;
    if (host == NULL) exit(1);
    for (size_t k = 0; k < count; k++) host[k] = (float)(k % 1000) * 0.001f;
    CALL(cuMemAlloc_v2, (uint64_t *, size_t), &pointer, count * sizeof *host);
    CALL(cuMemcpyHtoD_v2, (uint64_t, const void *, size_t), pointer, host, count * sizeof *host);
    free(host);
    return pointer;
}

int main(int argc, char **argv) {
    if (argc < 6) return 2;
    FILE *out = fopen(argv[1], "w");
    if (out == NULL) return 1;
    open_device();
    launch = (launch_fn)driver_symbol("cuLaunchKernel");
    synchronize = (int (*)(void))driver_symbol("cuCtxSynchronize");
    void *first = load_kernel(read_text(argv[5]), "first");
    check(launch(first, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL), "cuLaunchKernel");
    check(synchronize(), "cuCtxSynchronize");

    uint64_t x = filled(VECTOR), y = filled(VECTOR), a = filled((size_t)MATRIX * MATRIX), b = filled((size_t)MATRIX * MATRIX), c = filled((size_t)MATRIX * MATRIX);
    float factor = 0.5f;
    int n = VECTOR, m = MATRIX;
    measure(out, "saxpy", argv[2], VECTOR / 256, 1, 256, 1, (void *[]){&factor, &x, &y, &n});
    measure(out, "matmul_naive", argv[3], MATRIX / 32, MATRIX / 8, 32, 8, (void *[]){&a, &b, &c, &m});
    measure(out, "matmul_tiled", argv[4], MATRIX / 32, MATRIX / 32, 32, 32, (void *[]){&a, &b, &c, &m});
    return fclose(out) == 0 ? 0 : 1;
}
