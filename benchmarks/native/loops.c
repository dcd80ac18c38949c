/* The same work as gcc makes it of plain loops: -O3 -march=native -fopenmp.  Usage: loops RESULT; OMP_NUM_THREADS counts.
 * The naive product has gcc's better loop order (i-k-j); the tiled one is blocked by 32, as the kernel is. */
#include "rank.h"

#include "sizes.h"

enum { REPEATS = 7 };
static float *x, *y, *a, *b, *c;

static void saxpy(void) {
#pragma omp parallel for
    for (int i = 0; i < VECTOR; i++) y[i] = 0.5f * x[i] + y[i];
}

static void matmul_naive(void) {
#pragma omp parallel for
    for (int i = 0; i < MATRIX; i++) {
        float *restrict row = c + (size_t)i * MATRIX;
        for (int j = 0; j < MATRIX; j++) row[j] = 0;
        for (int k = 0; k < MATRIX; k++)
            for (int j = 0; j < MATRIX; j++) row[j] += a[i * MATRIX + k] * b[k * MATRIX + j];
    }
}

static void matmul_tiled(void) {
#pragma omp parallel for collapse(2)
    for (int bi = 0; bi < MATRIX; bi += 32)
        for (int bj = 0; bj < MATRIX; bj += 32) {
            float sum[32][32] = {{0}}, ta[32][32], tb[32][32];
            for (int bk = 0; bk < MATRIX; bk += 32) {
                for (int i = 0; i < 32; i++)
                    for (int j = 0; j < 32; j++) {
                        ta[i][j] = a[(bi + i) * MATRIX + bk + j];
                        tb[i][j] = b[(bk + i) * MATRIX + bj + j];
                    }
                for (int i = 0; i < 32; i++)
                    for (int k = 0; k < 32; k++)
                        for (int j = 0; j < 32; j++) sum[i][j] += ta[i][k] * tb[k][j];
            }
            for (int i = 0; i < 32; i++)
                for (int j = 0; j < 32; j++) c[(bi + i) * MATRIX + bj + j] = sum[i][j];
        }
}

static void measure(FILE *out, const char *name, void (*work)(void)) {
    double times[REPEATS];
    work();
    for (int k = 0; k < REPEATS; k++) {
        double start = now_ns();
        work();
        times[k] = now_ns() - start;
    }
    fprintf(out, "%s %.4f\n", name, median(times, REPEATS) / 1e6);
}

static float *filled(size_t count) {
    float *host = malloc(count * sizeof *host);
    if (host == NULL) exit(1);
    for (size_t k = 0; k < count; k++) host[k] = (float)(k % 1000) * 0.001f;
    return host;
}

int main(int argc, char **argv) {
    FILE *out = argc > 1 ? fopen(argv[1], "w") : NULL;
    if (out == NULL) return 1;
    x = filled(VECTOR), y = filled(VECTOR);
    a = filled((size_t)MATRIX * MATRIX), b = filled((size_t)MATRIX * MATRIX), c = filled((size_t)MATRIX * MATRIX);
    measure(out, "saxpy", saxpy);
    measure(out, "matmul_naive", matmul_naive);
    measure(out, "matmul_tiled", matmul_tiled);
    return fclose(out) == 0 ? 0 : 1;
}
