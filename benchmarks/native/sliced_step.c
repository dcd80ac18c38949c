/* A data-parallel rank with simulated compute.  Usage: sliced_step DIRECTORY STEPS STEP_MS LIVE_MIB REDUCED_MIB
 * A step: STEP_MS of device time in kernels that take time and no CPU, an all-reduce of REDUCED_MIB of the LIVE_MIB that are live,
 * and a synchronisation.  Rank 0 makes the communicator's id in DIRECTORY/id, and writes what memcpy does, in GB/s, and
 * the time of each step, in ms, to DIRECTORY/result.  While it runs, the 8 bytes of DIRECTORY/steps.RANK say how many steps a rank has begun. */
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "rank.h"

enum { KERNEL_MS = 10, MOST = 100000 };
static const char *const PTX =
    ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry work() {\n"
    "nanosleep.u32 10000000; ret; }\n";
struct unique_id { char internal[128]; };

static void *nccl_symbol(const char *name) {
    void *library = dlopen("libnccl.so.2", RTLD_NOW), *found = library == NULL ? NULL : dlsym(library, name);
    if (found == NULL) {
        fprintf(stderr, "no %s in libnccl.so.2: %s\n", name, dlerror());
        exit(1);
    }
    return found;
}

static struct unique_id exchange_id(const char *directory, int rank) {
    struct unique_id id;
    char path[4096], making[4096];
    snprintf(path, sizeof path, "%s/id", directory);
    snprintf(making, sizeof making, "%s/id.making", directory);
    if (rank == 0) {
        check(((int (*)(struct unique_id *))nccl_symbol("ncclGetUniqueId"))(&id), "ncclGetUniqueId");
        FILE *file = fopen(making, "w");
        if (file == NULL || fwrite(&id, sizeof id, 1, file) != 1 || fclose(file) != 0 || rename(making, path) != 0) exit(1);
        return id;
    }
    for (FILE *file;; usleep(2000)) {
        if ((file = fopen(path, "r")) == NULL) continue;
        if (fread(&id, sizeof id, 1, file) != 1) exit(1);
        fclose(file);
        return id;
    }
}

static volatile uint64_t *step_counter(const char *directory, int rank) {
    char path[4096];
    snprintf(path, sizeof path, "%s/steps.%d", directory, rank);
    int file = open(path, O_RDWR | O_CREAT, 0600);
    void *at = file < 0 || ftruncate(file, 8) != 0 ? MAP_FAILED : mmap(NULL, 8, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (at == MAP_FAILED) exit(1);
    close(file);
    return at;
}

static double memcpy_speed(size_t bytes) {
    char *from = malloc(bytes), *to = malloc(bytes);
    double times[9];
    if (from == NULL || to == NULL) exit(1);
    memset(from, 1, bytes);
    memset(to, 2, bytes);
    for (int k = 0; k < 9; k++) {
        double start = now_ns();
        memcpy(to, from, bytes);
        times[k] = now_ns() - start;
        __asm__ volatile("" ::"r"(to) : "memory");
    }
    return (double)bytes / median(times, 9);
}

int main(int argc, char **argv) {
    if (argc < 6) return 2;
    int steps = atoi(argv[2]), step_ms = atoi(argv[3]), rank = atoi(getenv("RANK")), ranks = atoi(getenv("WORLD_SIZE"));
    size_t live = (size_t)atoi(argv[4]) << 20, reduced = (size_t)atoi(argv[5]) << 20;
    static double times[MOST];
    if (steps < 1 || steps > MOST || reduced > live) return 2;
    double speed = rank == 0 ? memcpy_speed(live) : 0;
    int device;
    void *context, *communicator, *stream;
    CALL(cuInit, (unsigned), 0);
    CALL(cuDeviceGet, (int *, int), &device, rank);
    CALL(cuCtxCreate_v2, (void **, unsigned, int), &context, 0, device);
    CALL(cuStreamCreate, (void **, unsigned), &stream, 0);
    struct unique_id id = exchange_id(argv[1], rank);
    check(((int (*)(void **, int, struct unique_id, int))nccl_symbol("ncclCommInitRank"))(&communicator, ranks, id, rank), "ncclCommInitRank");
    int (*all_reduce)(const void *, void *, size_t, int, int, void *, void *) =
        (int (*)(const void *, void *, size_t, int, int, void *, void *))nccl_symbol("ncclAllReduce");
    void *function = load_kernel(PTX, "work");
    launch_fn launch = (launch_fn)driver_symbol("cuLaunchKernel");
    int (*synchronize)(void *) = (int (*)(void *))driver_symbol("cuStreamSynchronize");
    uint64_t memory;
    CALL(cuMemAlloc_v2, (uint64_t *, size_t), &memory, live);
    CALL(cuMemsetD32_v2, (uint64_t, unsigned, size_t), memory, (unsigned)rank, live / 4);
    volatile uint64_t *begun = step_counter(argv[1], rank);
    for (int step = -1; step < steps; step++) { /* the first warms up */
        double start = now_ns();
        ++*begun;
        for (int k = 0; k < step_ms; k += KERNEL_MS) check(launch(function, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL), "cuLaunchKernel");
        check(all_reduce((void *)memory, (void *)memory, reduced / 4, 7, 0, communicator, stream), "ncclAllReduce");
        check(synchronize(stream), "cuStreamSynchronize");
        if (step >= 0) times[step] = now_ns() - start;
    }
    if (rank == 0) {
        char path[4096];
        snprintf(path, sizeof path, "%s/result", argv[1]);
        FILE *out = fopen(path, "w");
        if (out == NULL) return 1;
        fprintf(out, "memcpy_gbps %.4f\n", speed);
        for (int step = 0; step < steps; step++) fprintf(out, "%d %.4f\n", step, times[step] / 1e6);
        if (fclose(out) != 0) return 1;
    }
    return 0;
}
