/* Collectives, send and receive: checked here as NCCL documents, then posted.
 *
 * Operators that a communicator has made (pre-multiplied sums) live here, too. */
#include "communicator.h"
#include <stdlib.h>
#include <string.h>

/* ---- operators ---------------------------------------------------------------------------------------------- */
static const uint8_t dtype_bytes[ncclNumTypes] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};

ncclResult_t sg_ncclRedOpCreatePreMulSum(ncclRedOp_t *op, void *scalar, ncclDataType_t datatype, ncclScalarResidence_t residence, ncclComm_t comm)
{
    static const char call[] = "ncclRedOpCreatePreMulSum";
    struct sg_comm *c;
    ncclResult_t result = sg_session_enter(call);
    if (result || (result = sg_comm_get(call, comm, &c)))
        return result;
    if (!op || !scalar)
        return sg_fail(call, ncclInvalidArgument, "%s is NULL", op ? "scalar" : "op");
    if ((unsigned)datatype >= SG_DTYPES)
        return sg_fail(call, ncclInvalidArgument, "data type %d is not supported: 8-bit floating point is not reduced", (int)datatype);
    if (residence != ncclScalarDevice && residence != ncclScalarHostImmediate)
        return sg_fail(call, ncclInvalidArgument, "residence %d is neither ncclScalarDevice nor ncclScalarHostImmediate", (int)residence);
    struct sg_factor factor = {datatype, residence, (uint64_t)(uintptr_t)scalar, 1};
    if (residence == ncclScalarHostImmediate) {
        factor.bits = 0;
        memcpy(&factor.bits, scalar, dtype_bytes[datatype]);
    }
    pthread_mutex_lock(&c->lock);
    int at = 0;
    while (at < c->factor_count && c->factors[at].used)
        at++;
    if (at == c->factor_count) {
        struct sg_factor *more = realloc(c->factors, (size_t)(at + 4) * sizeof *more);
        if (more) {
            memset(more + at, 0, 4 * sizeof *more);
            c->factors = more;
            c->factor_count += 4;
        }
    }
    int made = at < c->factor_count;
    if (made)
        c->factors[at] = factor;
    pthread_mutex_unlock(&c->lock);
    if (!made)
        return sg_fail(call, ncclSystemError, "out of memory");
    *op = (ncclRedOp_t)(ncclNumOps + at);
    return ncclSuccess;
}

/* The operator's factor; 0 when there is none of that number. */
static int find_factor(struct sg_comm *c, int op, struct sg_factor *out, int take)
{
    pthread_mutex_lock(&c->lock);
    int at = op - ncclNumOps, found = at >= 0 && at < c->factor_count && c->factors[at].used;
    if (found) {
        *out = c->factors[at];
        c->factors[at].used = !take;
    }
    pthread_mutex_unlock(&c->lock);
    return found;
}

ncclResult_t sg_ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm)
{
    static const char call[] = "ncclRedOpDestroy";
    struct sg_comm *c;
    struct sg_factor factor;
    ncclResult_t result = sg_session_enter(call);
    if (result || (result = sg_comm_get(call, comm, &c)))
        return result;
    if ((int)op >= 0 && op < ncclNumOps)
        return sg_fail(call, ncclInvalidArgument, "operator %d is built in", (int)op);
    return find_factor(c, (int)op, &factor, 1) ? ncclSuccess
                                               : sg_fail(call, ncclInvalidArgument, "operator %d is none of this communicator", (int)op);
}

ncclResult_t sg_operator_get(const char *call, struct sg_comm *c, int op, ncclDataType_t dtype, cudaStream_t stream, struct sg_operation *out)
{
    struct sg_factor factor;
    if (op >= 0 && op < ncclNumOps) {
        out->reduction = (uint32_t)op;
        return ncclSuccess;
    }
    if (!find_factor(c, op, &factor, 0))
        return sg_fail(call, ncclInvalidArgument, "operator %d is none of this communicator", op);
    if (factor.dtype != dtype)
        return sg_fail(call, ncclInvalidArgument, "operator %d was made for data type %d, not %d", op, (int)factor.dtype, (int)dtype);
    out->reduction = SG_PREMUL_SUM;
    out->scalar = factor.bits;
    if (factor.residence == ncclScalarHostImmediate)
        return ncclSuccess;
    /* NCCL reads it when the operation runs, that is after the stream's earlier work: so do we, by waiting for that. */
    out->scalar = 0;
    int32_t error = sg_session()->read(&out->scalar, factor.bits, dtype_bytes[dtype], stream);
    return error ? sg_cuda_failed(call, error) : ncclSuccess;
}

/* ---- one operation ------------------------------------------------------------------------------------------------ */
enum { NEVER, AT_ROOT, ALWAYS };
static const struct kind {
    uint8_t sends, receives; /* who uses the buffer */
    uint8_t rooted, reduces;
    uint8_t wide;            /* a buffer holds `count` elements per rank */
} kinds[] = {
    [SG_ALL_REDUCE] = {ALWAYS, ALWAYS, 0, 1, 0}, [SG_REDUCE] = {ALWAYS, AT_ROOT, 1, 1, 0}, [SG_BROADCAST] = {AT_ROOT, ALWAYS, 1, 0, 0},
    [SG_ALL_GATHER] = {ALWAYS, ALWAYS, 0, 0, 1}, [SG_REDUCE_SCATTER] = {ALWAYS, ALWAYS, 0, 1, 1}, [SG_ALL_TO_ALL] = {ALWAYS, ALWAYS, 0, 0, 1},
    [SG_GATHER] = {ALWAYS, AT_ROOT, 1, 0, 1}, [SG_SCATTER] = {AT_ROOT, ALWAYS, 1, 0, 1}, [SG_SEND] = {ALWAYS, NEVER, 0, 0, 0},
    [SG_RECV] = {NEVER, ALWAYS, 0, 0, 0},
};

struct request {
    const char *call;
    uint32_t kind;
    const void *send;
    void *receive;
    size_t count;
    ncclDataType_t dtype;
    int op, peer;
    ncclComm_t comm;
    cudaStream_t stream;
    const ncclCollConfig_t *config;
};

static ncclResult_t check_config(const struct request *r)
{
    const ncclCollConfig_t *config = r->config;
    if (config->magic != SG_NCCL_MAGIC || config->size < offsetof(ncclCollConfig_t, ext))
        return sg_fail(r->call, ncclInvalidArgument, "config was not initialised with NCCL_COLLCONFIG_INITIALIZER");
    if (config->size >= offsetof(ncclCollConfig_t, CTAPolicy) && config->algSelection && config->algSelection[0] && config->forceAlgSelection)
        return sg_fail(r->call, ncclInvalidUsage, "algorithm \"%.40s\" is not there: leave algSelection empty, or set forceAlgSelection to 0", config->algSelection);
    if (config->size >= sizeof *config && config->launchCompletionEvent)
        return sg_fail(r->call, ncclInvalidUsage, "launchCompletionEvent is not supported: leave it NULL, and record an event after the call");
    return ncclSuccess;
}

static ncclResult_t check_numbers(const struct request *r, const struct kind *kind, const struct sg_comm *c)
{
    uint64_t bytes;
    int point_to_point = r->kind >= SG_SEND;
    if ((unsigned)r->dtype >= ncclNumTypes)
        return sg_fail(r->call, ncclInvalidArgument, "there is no data type %d", (int)r->dtype);
    if (kind->reduces && r->dtype >= ncclFloat8e4m3)
        return sg_fail(r->call, ncclInvalidArgument, "8-bit floating point (data type %d) is not reduced here: use ncclFloat16 or ncclBfloat16", (int)r->dtype);
    if ((kind->rooted || point_to_point) && (r->peer < 0 || r->peer >= c->ranks))
        return sg_fail(r->call, ncclInvalidArgument, "%s %d is none of the communicator's %d ranks", point_to_point ? "peer" : "root", r->peer, c->ranks);
    if (__builtin_mul_overflow(r->count, (uint64_t)dtype_bytes[r->dtype] * (kind->wide ? (uint64_t)c->ranks : 1), &bytes) || bytes >> 62)
        return sg_fail(r->call, ncclInvalidArgument, "%zu elements are too many", r->count);
    return ncclSuccess;
}

/* The buffer's address on the wire; 0 when this rank does not use it. */
static ncclResult_t check_buffer(const struct request *r, int who, int is_root, const void *buffer, const char *name, uint64_t *out)
{
    *out = 0;
    if (who == NEVER || (who == AT_ROOT && !is_root))
        return ncclSuccess;
    *out = (uint64_t)(uintptr_t)buffer;
    if (r->count == 0)
        return ncclSuccess;
    if (!buffer)
        return sg_fail(r->call, ncclInvalidArgument, "%s is NULL", name);
    if (!sg_session()->reachable(*out))
        return sg_fail(r->call, ncclInvalidArgument, "%s, %p, is neither device memory nor page-locked", name, buffer);
    return ncclSuccess;
}

static ncclResult_t issue(const struct request *r)
{
    const struct kind *kind = &kinds[r->kind];
    struct sg_operation operation = {.kind = r->kind, .count = r->count};
    struct sg_comm *c;
    ncclResult_t result = sg_session_enter(r->call);
    if (result || (result = sg_comm_get(r->call, r->comm, &c)))
        return result;
    if (atomic_load_explicit(&c->finalized, memory_order_relaxed))
        return sg_fail(r->call, ncclInvalidArgument, "the communicator was finalized");
    if (!sg_session()->context_known(c->context))
        return sg_fail(r->call, ncclInvalidUsage, "the context that the communicator was made in has ended");
    if ((result = check_numbers(r, kind, c)) || (r->config && (result = check_config(r))))
        return result;
    int is_root = r->peer == c->rank;
    if ((result = check_buffer(r, kind->sends, is_root, r->send, "sendbuff", &operation.send)) ||
        (result = check_buffer(r, kind->receives, is_root, r->receive, "recvbuff", &operation.receive)))
        return result;
    int32_t error = sg_session()->stream(r->stream, &operation.stream);
    if (error)
        return sg_cuda_failed(r->call, error);
    if (sg_session()->captures(operation.stream))
        return sg_fail(r->call, ncclInvalidUsage, "the stream captures a graph, which is not supported: run collectives outside of graphs");
    operation.communicator = c->handle;
    operation.dtype = r->dtype >= ncclFloat8e4m3 ? SG_U8 : (uint32_t)r->dtype; /* bytes that are only moved */
    operation.peer = kind->rooted || r->kind >= SG_SEND ? (uint32_t)r->peer : 0;
    if (kind->reduces && (result = sg_operator_get(r->call, c, r->op, r->dtype, r->stream, &operation)))
        return result;
    return sg_group_operation(r->call, c, &operation);
}

/* ---- NCCL's functions ------------------------------------------------------------------------------------------------ */
#define ISSUE(name, number, ...) issue(&(struct request){.call = name, .kind = number, .count = count, .dtype = datatype, .comm = comm, .stream = stream, __VA_ARGS__})

ncclResult_t sg_ncclAllReduceConfig(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm,
                                    cudaStream_t stream, const ncclCollConfig_t *config)
{
    return ISSUE("ncclAllReduce", SG_ALL_REDUCE, .send = sendbuff, .receive = recvbuff, .op = (int)op, .config = config);
}

ncclResult_t sg_ncclReduceConfig(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, ncclRedOp_t op, int root,
                                 ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config)
{
    return ISSUE("ncclReduce", SG_REDUCE, .send = sendbuff, .receive = recvbuff, .op = (int)op, .peer = root, .config = config);
}

ncclResult_t sg_ncclBroadcastConfig(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm,
                                    cudaStream_t stream, const ncclCollConfig_t *config)
{
    return ISSUE("ncclBroadcast", SG_BROADCAST, .send = sendbuff, .receive = recvbuff, .peer = root, .config = config);
}

ncclResult_t sg_ncclAllGatherConfig(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, ncclComm_t comm,
                                    cudaStream_t stream, const ncclCollConfig_t *config)
{
    return ISSUE("ncclAllGather", SG_ALL_GATHER, .send = sendbuff, .receive = recvbuff, .config = config);
}

ncclResult_t sg_ncclReduceScatterConfig(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, ncclRedOp_t op,
                                        ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config)
{
    return ISSUE("ncclReduceScatter", SG_REDUCE_SCATTER, .send = sendbuff, .receive = recvbuff, .op = (int)op, .config = config);
}

ncclResult_t sg_ncclAlltoAllConfig(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, ncclComm_t comm,
                                   cudaStream_t stream, const ncclCollConfig_t *config)
{
    return ISSUE("ncclAlltoAll", SG_ALL_TO_ALL, .send = sendbuff, .receive = recvbuff, .config = config);
}

ncclResult_t sg_ncclGatherConfig(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm,
                                 cudaStream_t stream, const ncclCollConfig_t *config)
{
    return ISSUE("ncclGather", SG_GATHER, .send = sendbuff, .receive = recvbuff, .peer = root, .config = config);
}

ncclResult_t sg_ncclScatterConfig(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm,
                                  cudaStream_t stream, const ncclCollConfig_t *config)
{
    return ISSUE("ncclScatter", SG_SCATTER, .send = sendbuff, .receive = recvbuff, .peer = root, .config = config);
}

ncclResult_t sg_ncclSend(const void *sendbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm, cudaStream_t stream)
{
    return ISSUE("ncclSend", SG_SEND, .send = sendbuff, .peer = peer);
}

ncclResult_t sg_ncclRecv(void *recvbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm, cudaStream_t stream)
{
    return ISSUE("ncclRecv", SG_RECV, .receive = recvbuff, .peer = peer);
}

ncclResult_t sg_ncclAllReduce(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm,
                              cudaStream_t stream)
{
    return sg_ncclAllReduceConfig(sendbuff, recvbuff, count, datatype, op, comm, stream, NULL);
}

ncclResult_t sg_ncclReduce(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, ncclRedOp_t op, int root, ncclComm_t comm,
                           cudaStream_t stream)
{
    return sg_ncclReduceConfig(sendbuff, recvbuff, count, datatype, op, root, comm, stream, NULL);
}

ncclResult_t sg_ncclBcast(void *buff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm, cudaStream_t stream)
{
    return ISSUE("ncclBcast", SG_BROADCAST, .send = buff, .receive = buff, .peer = root);
}

ncclResult_t sg_ncclBroadcast(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm,
                              cudaStream_t stream)
{
    return sg_ncclBroadcastConfig(sendbuff, recvbuff, count, datatype, root, comm, stream, NULL);
}

ncclResult_t sg_ncclAllGather(const void *sendbuff, void *recvbuff, size_t sendcount, ncclDataType_t datatype, ncclComm_t comm, cudaStream_t stream)
{
    return sg_ncclAllGatherConfig(sendbuff, recvbuff, sendcount, datatype, comm, stream, NULL);
}

ncclResult_t sg_ncclReduceScatter(const void *sendbuff, void *recvbuff, size_t recvcount, ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm,
                                  cudaStream_t stream)
{
    return sg_ncclReduceScatterConfig(sendbuff, recvbuff, recvcount, datatype, op, comm, stream, NULL);
}

ncclResult_t sg_ncclAlltoAll(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, ncclComm_t comm, cudaStream_t stream)
{
    return sg_ncclAlltoAllConfig(sendbuff, recvbuff, count, datatype, comm, stream, NULL);
}

ncclResult_t sg_ncclGather(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm,
                           cudaStream_t stream)
{
    return sg_ncclGatherConfig(sendbuff, recvbuff, count, datatype, root, comm, stream, NULL);
}

ncclResult_t sg_ncclScatter(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm,
                            cudaStream_t stream)
{
    return sg_ncclScatterConfig(sendbuff, recvbuff, count, datatype, root, comm, stream, NULL);
}
