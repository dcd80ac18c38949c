/* The same work as gcc makes it of plain loops: -O3 -march=native -fopenmp.  Usage: loops RESULT; OMP_NUM_THREADS counts.
 * The naive product has gcc's better loop order (i-k-j).  The tiled one is there twice.  `matmul_tiled` is the kernel's own
 * loops: between barriers the threads of a block run one by one, as they are numbered, each summing over k; gcc does not
 * vectorise that.  `matmul_tiled_best` is what someone who writes for gcc would write, plain loops over a tile's rows and
 * columns: gcc interchanges and vectorises them, which here beats i-k-j by hand. */
#include "rank.h"

#include "sizes.h"

enum { REPEATS = 7, TILE = 32 };
static float *x, *y, *a, *b, *c;

static void saxpy(void) {
#pragma omp parallel for
    for (int i = 0; i < VECTOR; i++) y[i] = 0.5f * x[i] + y[i];
}

static void product(int n) {
#pragma omp parallel for
    for (int i = 0; i < n; i++) {
        float *restrict row = c + (size_t)i * n;
        for (int j = 0; j < n; j++) row[j] = 0;
        for (int k = 0; k < n; k++)
            for (int j = 0; j < n; j++) row[j] += a[i * n + k] * b[k * n + j];
    }
}

static void matmul_naive(void) { product(MATRIX); }

static void matmul_naive_large(void) { product(LARGE); }

typedef float tile[TILE][TILE];

static void matmul_tiled(void) {
#pragma omp parallel for collapse(2)
    for (int row = 0; row < MATRIX; row += TILE)
        for (int column = 0; column < MATRIX; column += TILE) {
            float sum[TILE * TILE] = {0};
            tile ta, tb;
            for (int t = 0; t < MATRIX; t += TILE) {
                for (int thread = 0; thread < TILE * TILE; thread++) {
                    int i = thread / TILE, j = thread % TILE;
                    ta[i][j] = a[(row + i) * MATRIX + t + j];
                    tb[i][j] = b[(t + i) * MATRIX + column + j];
                }
                for (int thread = 0; thread < TILE * TILE; thread++) {
                    int i = thread / TILE, j = thread % TILE;
                    float s = sum[thread];
                    for (int k = 0; k < TILE; k++) s += ta[i][k] * tb[k][j];
                    sum[thread] = s;
                }
            }
            for (int thread = 0; thread < TILE * TILE; thread++)
                c[(row + thread / TILE) * MATRIX + column + thread % TILE] = sum[thread];
        }
}

static void matmul_tiled_best(void) {
#pragma omp parallel for collapse(2)
    for (int row = 0; row < MATRIX; row += TILE)
        for (int column = 0; column < MATRIX; column += TILE) {
            tile sum = {{0}}, ta, tb;
            for (int t = 0; t < MATRIX; t += TILE) {
                for (int i = 0; i < TILE; i++)
                    for (int j = 0; j < TILE; j++) {
                        ta[i][j] = a[(row + i) * MATRIX + t + j];
                        tb[i][j] = b[(t + i) * MATRIX + column + j];
                    }
                for (int i = 0; i < TILE; i++)
                    for (int j = 0; j < TILE; j++)
                        for (int k = 0; k < TILE; k++) sum[i][j] += ta[i][k] * tb[k][j];
            }
            for (int i = 0; i < TILE; i++)
                for (int j = 0; j < TILE; j++) c[(row + i) * MATRIX + column + j] = sum[i][j];
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
    size_t area = (size_t)LARGE * LARGE;
    a = filled(area), b = filled(area), c = filled(area);
    measure(out, "saxpy", saxpy);
    measure(out, "matmul_naive", matmul_naive);
    measure(out, "matmul_naive_1024", matmul_naive_large);
    measure(out, "matmul_tiled", matmul_tiled);
    measure(out, "matmul_tiled_best", matmul_tiled_best);
    return fclose(out) == 0 ? 0 : 1;
}
