/* The communication interceptor: collectives of ranks, executed by the proxies (decision 0005).
 *
 * Handlers (interposers/server/communicator.c) translate NCCL's calls into the functions here; nothing here knows
 * NCCL, CUDA or sockets.  A communicator is known to all proxies of the job by its 128-bit key.
 *
 * Life of an operation of one rank: `sg_group_begin` .. `add` .. `sg_group_submit` checks it and gives it its number on
 * the communicator (its clock ticks: the cut may hold the caller here); the handler puts the arrival and the gate into
 * the streams; `sg_group_arrived`, from a driver thread, tells that the inputs are final.  The engine thread of the
 * server then matches, moves and reduces, and opens the gate when the rank's outputs are in place and it is resident. */
#ifndef SG_COMMUNICATION_H
#define SG_COMMUNICATION_H

#include <stdint.h>

struct sg_session;
struct sg_server;

/* NCCL's numbers, which are as good as any. */
enum sg_dtype { SG_I8 = 0, SG_U8 = 1, SG_I32 = 2, SG_U32 = 3, SG_I64 = 4, SG_U64 = 5, SG_F16 = 6, SG_F32 = 7, SG_F64 = 8,
                SG_BF16 = 9, SG_DTYPES = 10 };
enum sg_reduction { SG_SUM = 0, SG_PROD = 1, SG_MAX = 2, SG_MIN = 3, SG_AVG = 4, SG_PREMUL_SUM = 5 };
enum sg_operation_kind { SG_ALL_REDUCE = 1, SG_REDUCE, SG_BROADCAST, SG_ALL_GATHER, SG_REDUCE_SCATTER, SG_ALL_TO_ALL, SG_GATHER,
                         SG_SCATTER, SG_SEND, SG_RECV };
/* What went wrong, by NCCL's numbers (ncclResult_t). */
enum sg_failure { SG_FAIL_NONE = 0, SG_FAIL_DEVICE = 1, SG_FAIL_SYSTEM = 2, SG_FAIL_INTERNAL = 3, SG_FAIL_ARGUMENT = 4,
                  SG_FAIL_USAGE = 5, SG_FAIL_REMOTE = 6 };

struct sg_operation {
    uint32_t kind, dtype, reduction, peer; /* peer: root, or the other side of send and receive */
    uint64_t communicator;                 /* virtual handle, SG_KIND_COMMUNICATOR */
    uint64_t stream;                       /* virtual handle of the stream */
    uint64_t send, receive;                /* device (or the session's page-locked) addresses; 0 where not used */
    uint64_t count;                        /* elements, with NCCL's meaning for the kind */
    uint64_t scalar;                       /* SG_PREMUL_SUM: the factor's bits, in dtype */
};
#endif
