/* Every rank adds its number to everybody's: an all-reduce with the CUDA driver API and NCCL, without Python.
 *
 *     cc examples/allreduce.c -o allreduce -I<include directory of cuda.h and nccl.h> -l:libcuda.so.1 -l:libnccl.so.2
 *     singularity-run --backend fake --nproc-per-node 4 --devices 2 --no-python ./allreduce
 *
 * The ranks meet by torchrun's environment: rank 0 hands NCCL's unique id to the others at MASTER_ADDR:MASTER_PORT. */
#include <arpa/inet.h>
#include <cuda.h>
#include <nccl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define COUNT (1u << 20)

static void cu(CUresult result, const char *call)
{
    const char *name = "unknown";
    if (result == CUDA_SUCCESS)
        return;
    cuGetErrorName(result, &name);
    fprintf(stderr, "%s: %s\n", call, name);
    exit(1);
}
#define CU(call) cu((call), #call)

static void nccl(ncclResult_t result, const char *call)
{
    if (result == ncclSuccess)
        return;
    fprintf(stderr, "%s: %s\n", call, ncclGetErrorString(result));
    exit(1);
}
#define NCCL(call) nccl((call), #call)

static void need(int fine, const char *what)
{
    if (fine)
        return;
    perror(what);
    exit(1);
}

static int setting(const char *name, int otherwise)
{
    const char *text = getenv(name);
    return text != NULL ? atoi(text) : otherwise;
}

/* Rank 0 listens and sends; the others connect, again and again until it listens. */
static void share(int rank, int ranks, ncclUniqueId *id)
{
    const char *host = getenv("MASTER_ADDR");
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons((uint16_t)setting("MASTER_PORT", 29500)) };
    need(inet_pton(AF_INET, host != NULL ? host : "127.0.0.1", &address.sin_addr) == 1, "MASTER_ADDR");
    if (rank == 0) {
        int listener = socket(AF_INET, SOCK_STREAM, 0), yes = 1;
        setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
        need(bind(listener, (struct sockaddr *)&address, sizeof address) == 0, "bind");
        need(listen(listener, ranks) == 0, "listen");
        for (int i = 1; i < ranks; i++) {
            int peer = accept(listener, NULL, NULL);
            need(peer >= 0 && send(peer, id, sizeof *id, 0) == sizeof *id, "send the id");
            close(peer);
        }
        close(listener);
        return;
    }
    for (int tries = 0;; tries++) {
        int peer = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(peer, (struct sockaddr *)&address, sizeof address) == 0) {
            need(recv(peer, id, sizeof *id, MSG_WAITALL) == sizeof *id, "receive the id");
            close(peer);
            return;
        }
        close(peer);
        need(tries < 1200, "connect to rank 0");
        usleep(100000);
    }
}

int main(void)
{
    int rank = setting("RANK", 0), ranks = setting("WORLD_SIZE", 1);
    CUdevice device;
    CUcontext context;
    CUstream stream;
    CUdeviceptr memory;
    ncclUniqueId id;
    ncclComm_t communicator;
    static float host[COUNT];

    CU(cuInit(0));
    CU(cuDeviceGet(&device, setting("LOCAL_RANK", 0)));
    CU(cuDevicePrimaryCtxRetain(&context, device));
    CU(cuCtxSetCurrent(context));
    if (rank == 0)
        NCCL(ncclGetUniqueId(&id));
    share(rank, ranks, &id);
    NCCL(ncclCommInitRank(&communicator, ranks, id, rank));

    for (unsigned i = 0; i < COUNT; i++)
        host[i] = (float)(rank + 1) + (float)(i % 1000);
    CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CU(cuMemAlloc(&memory, sizeof host));
    CU(cuMemcpyHtoDAsync(memory, host, sizeof host, stream));
    NCCL(ncclAllReduce((const void *)memory, (void *)memory, COUNT, ncclFloat, ncclSum, communicator, stream));
    CU(cuMemcpyDtoHAsync(host, memory, sizeof host, stream));
    CU(cuStreamSynchronize(stream));

    unsigned wrong = 0;
    for (unsigned i = 0; i < COUNT; i++) /* small integers: floats add them exactly */
        wrong += host[i] != (float)(ranks * (ranks + 1) / 2) + (float)(ranks * (int)(i % 1000));
    printf("rank %d of %d: %u values, %u wrong\n", rank, ranks, COUNT, wrong);

    NCCL(ncclCommDestroy(communicator));
    CU(cuMemFree(memory));
    CU(cuStreamDestroy(stream));
    CU(cuDevicePrimaryCtxRelease(device));
    return wrong != 0;
}
