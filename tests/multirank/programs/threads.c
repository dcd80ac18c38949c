/* threads FOLDER STEPS: threads that compute on one device by the driver API, each on a stream of its own, and add up what
 * all found.  A step begins when FOLDER/gate is as many bytes long; FOLDER/seen.0 gets a byte with each.  Writes one line
 * per step to FOLDER/log, which depends on the number of the step alone. */
#include <cuda.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { WORDS = 3000, THREADS = 4 };
static const char PTX[] =
    ".version 8.0\n.target sm_80\n.address_size 64\n"
    ".visible .entry mix(.param .u64 p, .param .u32 n, .param .u32 k)\n{\n"
    ".reg .pred %q; .reg .u32 %i, %b, %t, %n, %v, %k; .reg .u64 %p, %o;\n"
    "ld.param.u64 %p, [p]; ld.param.u32 %n, [n]; ld.param.u32 %k, [k];\n"
    "mov.u32 %b, %ctaid.x; mov.u32 %t, %ntid.x; mov.u32 %i, %tid.x; mad.lo.u32 %i, %b, %t, %i;\n"
    "setp.ge.u32 %q, %i, %n;\n@%q bra done;\n"
    "mul.wide.u32 %o, %i, 4; add.u64 %p, %p, %o; ld.global.u32 %v, [%p]; mad.lo.u32 %v, %v, %k, %i; st.global.u32 [%p], %v;\n"
    "done:\nret;\n}\n";
static CUcontext context;
static CUfunction mix;
static const char *folder;
static int steps;
static pthread_barrier_t together;
static uint64_t sums[THREADS];

#define OK(call)                                                                                    \
    do {                                                                                            \
        CUresult result_ = (call);                                                                  \
        if (result_ != CUDA_SUCCESS) fprintf(stderr, "%s: %d\n", #call, (int)result_), _exit(1);    \
    } while (0)
#define IS(what)                                                        \
    do {                                                                \
        if (!(what)) fprintf(stderr, "not so: %s\n", #what), _exit(1);  \
    } while (0)

static void append(const char *name, const char *text) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    int file = open(path, O_WRONLY | O_CREAT | O_APPEND, 0600);
    IS(file >= 0 && write(file, text, strlen(text)) == (ssize_t)strlen(text));
    close(file);
}

static void wait_for_step(int step) {
    char path[4096];
    struct stat gate;
    snprintf(path, sizeof path, "%s/gate", folder);
    for (;;) {
        IS(stat(path, &gate) == 0);
        if (gate.st_size >= step) break;
        nanosleep(&(struct timespec){0, 2000000}, NULL);
    }
    append("seen.0", ".");
}

static void CUDA_CB count(void *at) { ++*(int *)at; }

static void *run(void *argument) {
    uintptr_t number = (uintptr_t)argument;
    unsigned words = WORDS;
    int called = 0;
    uint32_t *locked, wanted[WORDS];
    CUstream stream;
    CUdeviceptr data;
    CUevent done;
    OK(cuCtxSetCurrent(context));
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuEventCreate(&done, CU_EVENT_DEFAULT));
    OK(cuMemAlloc_v2(&data, sizeof wanted));
    OK(cuMemHostAlloc((void **)&locked, sizeof wanted, 0));
    for (uint32_t i = 0; i < WORDS; i++) wanted[i] = locked[i] = (uint32_t)number + 7 * i;
    OK(cuMemcpyHtoDAsync_v2(data, locked, sizeof wanted, stream));
    for (int step = 1; step <= steps; step++) {
        if (number == 0) wait_for_step(step);
        pthread_barrier_wait(&together);
        for (unsigned factor = 3; factor < 9; factor++) {
            void *values[] = {&data, &words, &factor};
            OK(cuLaunchKernel(mix, (WORDS + 127) / 128, 1, 1, 128, 1, 1, 0, stream, values, NULL));
            OK(cuLaunchHostFunc(stream, count, &called));
            for (uint32_t i = 0; i < WORDS; i++) wanted[i] = wanted[i] * factor + i;
        }
        OK(cuMemcpyDtoHAsync_v2(locked, data, sizeof wanted, stream));
        OK(cuEventRecord(done, stream));
        OK(cuEventSynchronize(done));
        IS(called == 6 * step && memcmp(locked, wanted, sizeof wanted) == 0);
        sums[number] = 0;
        for (uint32_t i = 0; i < WORDS; i++) sums[number] += locked[i];
        pthread_barrier_wait(&together);
        if (number == 0) {
            char line[128];
            uint64_t sum = 0;
            for (int i = 0; i < THREADS; i++) sum += sums[i];
            snprintf(line, sizeof line, "%d %llu\n", step, (unsigned long long)sum);
            append("log", line);
        }
    }
    return NULL;
}

int main(int argc, char **argv) {
    CUmodule module;
    pthread_t threads[THREADS];
    if (argc != 3) return 2;
    folder = argv[1], steps = atoi(argv[2]);
    IS(pthread_barrier_init(&together, NULL, THREADS) == 0);
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    OK(cuModuleLoadData(&module, PTX));
    OK(cuModuleGetFunction(&mix, module, "mix"));
    for (uintptr_t i = 0; i < THREADS; i++) IS(pthread_create(&threads[i], NULL, run, (void *)i) == 0);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    puts("passed");
    return 0;
}
