/* Times kernels on the device.  Usage: device_client RESULT SAXPY.ptx NAIVE.ptx TILED.ptx
 * Writes "key value" lines: medians in ms, each kernel having run once before. */
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

static void measure(FILE *out, const char *key, void *function, unsigned gx, unsigned gy, unsigned bx, unsigned by, void **parameters) {
    double times[REPEATS];
    for (int k = -1; k < REPEATS; k++) {
        double start = now_ns();
        check(launch(function, gx, gy, 1, bx, by, 1, 0, NULL, parameters, NULL), "cuLaunchKernel");
        check(synchronize(), "cuCtxSynchronize");
        if (k >= 0) times[k] = now_ns() - start;
    }
    fprintf(out, "%s %.4f\n", key, median(times, REPEATS) / 1e6);
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
    if (argc < 5) return 2;
    FILE *out = fopen(argv[1], "w");
    if (out == NULL) return 1;
    open_device();
    launch = (launch_fn)driver_symbol("cuLaunchKernel");
    synchronize = (int (*)(void))driver_symbol("cuCtxSynchronize");

    size_t area = (size_t)LARGE * LARGE;
    uint64_t x = filled(VECTOR), y = filled(VECTOR), a = filled(area), b = filled(area), c = filled(area);
    float factor = 0.5f;
    int n = VECTOR, m = MATRIX, l = LARGE;
    void *saxpy = load_kernel(read_text(argv[2]), "saxpy"), *naive = load_kernel(read_text(argv[3]), "matmul_naive");
    void *tiled = load_kernel(read_text(argv[4]), "matmul_tiled");
    void *small[] = {&a, &b, &c, &m}, *large[] = {&a, &b, &c, &l};
    measure(out, "saxpy", saxpy, VECTOR / 256, 1, 256, 1, (void *[]){&factor, &x, &y, &n});
    measure(out, "matmul_naive", naive, MATRIX / 32, MATRIX / 8, 32, 8, small);
    measure(out, "matmul_naive_1024", naive, LARGE / 32, LARGE / 8, 32, 8, large);
    measure(out, "matmul_naive_16x16", naive, LARGE / 16, LARGE / 16, 16, 16, large);
    measure(out, "matmul_tiled", tiled, MATRIX / 32, MATRIX / 32, 32, 32, small);
    return fclose(out) == 0 ? 0 : 1;
}
