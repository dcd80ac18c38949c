/* The part of NCCL's documented interface that the examples use, so that they build without NCCL's headers. */
#ifndef NCCL_H_
#define NCCL_H_

#include <stddef.h>

typedef struct ncclComm *ncclComm_t;
typedef struct { char internal[128]; } ncclUniqueId;
typedef enum { ncclSuccess = 0 } ncclResult_t;
typedef enum { ncclFloat = 7 } ncclDataType_t;
typedef enum { ncclSum = 0 } ncclRedOp_t;
struct CUstream_st;

const char *ncclGetErrorString(ncclResult_t result);
ncclResult_t ncclGetUniqueId(ncclUniqueId *id);
ncclResult_t ncclCommInitRank(ncclComm_t *communicator, int ranks, ncclUniqueId id, int rank);
ncclResult_t ncclCommDestroy(ncclComm_t communicator);
ncclResult_t ncclAllReduce(const void *source, void *result, size_t count, ncclDataType_t type, ncclRedOp_t operation,
                           ncclComm_t communicator, struct CUstream_st *stream);

#endif
