/* carried DIRECTORY: a rank whose threads look at all that they have, again and again, while its proxy is exchanged under it.
 * DIRECTORY/stop ends it.  DIRECTORY/rounds.N counts the rounds of thread N, in 8 bytes. */
#include <cuda.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { WORDS = 3000, THREADS = 3 };
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
static const char *directory;

#define OK(call)                                                                                    \
    do {                                                                                            \
        CUresult result_ = (call);                                                                  \
        if (result_ != CUDA_SUCCESS) fprintf(stderr, "%s: %d\n", #call, (int)result_), _exit(1);    \
    } while (0)
#define IS(what)                                                        \
    do {                                                                \
        if (!(what)) fprintf(stderr, "not so: %s\n", #what), _exit(1);  \
    } while (0)

static int told_to_stop(void) {
    char path[4096];
    snprintf(path, sizeof path, "%s/stop", directory);
    return access(path, F_OK) == 0;
}

static _Atomic uint64_t *counter(uintptr_t number) {
    char path[4096];
    snprintf(path, sizeof path, "%s/rounds.%d", directory, (int)number);
    int file = open(path, O_RDWR | O_CREAT, 0600);
    IS(file >= 0 && ftruncate(file, 8) == 0);
    void *at = mmap(NULL, 8, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    IS(at != MAP_FAILED);
    close(file);
    return at;
}

struct everything {
    CUstream stream;
    CUdeviceptr data;
    CUevent recorded, never;
    CUgraph graph;
    CUgraphExec ready;
    uint32_t *locked, wanted[WORDS];
};

static void multiply(struct everything *e, unsigned factor) {
    unsigned words = WORDS;
    void *values[] = {&e->data, &words, &factor};
    OK(cuLaunchKernel(mix, (WORDS + 127) / 128, 1, 1, 128, 1, 1, 0, e->stream, values, NULL));
}

static void make(struct everything *e) {
    OK(cuStreamCreate(&e->stream, CU_STREAM_NON_BLOCKING));
    OK(cuMemAlloc_v2(&e->data, sizeof e->wanted));
    OK(cuEventCreate(&e->recorded, CU_EVENT_DEFAULT));
    OK(cuEventCreate(&e->never, CU_EVENT_DEFAULT));
    OK(cuEventRecord(e->recorded, e->stream));
    OK(cuMemHostAlloc((void **)&e->locked, sizeof e->wanted, 0));
    for (uint32_t i = 0; i < WORDS; i++) e->wanted[i] = e->locked[i] = 7 * i;
    OK(cuMemcpyHtoDAsync_v2(e->data, e->locked, sizeof e->wanted, e->stream));
    OK(cuStreamBeginCapture_v2(e->stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    multiply(e, 3);
    OK(cuStreamEndCapture(e->stream, &e->graph));
    OK(cuGraphInstantiateWithFlags(&e->ready, e->graph, 0));
}

static void look(struct everything *e) {
    uint32_t found[WORDS];
    float took;
    multiply(e, 5);
    OK(cuGraphLaunch(e->ready, e->stream));
    OK(cuMemcpyDtoHAsync_v2(e->locked, e->data, sizeof e->wanted, e->stream));
    OK(cuStreamSynchronize(e->stream));
    OK(cuMemcpyDtoH_v2(found, e->data, sizeof found));
    for (uint32_t i = 0; i < WORDS; i++) {
        e->wanted[i] = (e->wanted[i] * 5 + i) * 3 + i;
        IS(found[i] == e->wanted[i] && e->locked[i] == e->wanted[i]);
    }
    OK(cuEventQuery(e->recorded));
    IS(cuEventElapsedTime(&took, e->never, e->recorded) == CUDA_ERROR_INVALID_HANDLE);
}

static void *run(void *number) {
    struct everything e;
    _Atomic uint64_t *rounds = counter((uintptr_t)number);
    OK(cuCtxSetCurrent(context));
    make(&e);
    while (!told_to_stop()) {
        look(&e);
        atomic_fetch_add(rounds, 1);
    }
    return NULL;
}

int main(int argc, char **argv) {
    CUmodule module;
    pthread_t threads[THREADS];
    if (argc != 2) return 2;
    directory = argv[1];
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
