/* Messages of the NCCL interposer; both sides include this.  Ops: [op] entries `communicator_*` in annotations.toml. */
#ifndef SG_WIRE_NCCL_H
#define SG_WIRE_NCCL_H

#include <stdint.h>
#include "../singularity_core/interceptors/communication.h"

/* communicator_join (call, blocks): returns when all ranks of the communicator have joined.  `key`: taken from the unique id. */
struct sg_wire_communicator_join { uint8_t key[16]; uint32_t ranks, rank, flags, reserved; };
struct sg_reply_communicator_join { uint64_t handle; int32_t result; uint32_t reserved; char said[96]; }; /* result: an ncclResult_t */
/* communicator_split (call, blocks): every rank of the parent calls it.  color < 0: the caller gets no communicator (handle 0). */
struct sg_wire_communicator_split { uint64_t parent; int32_t color, key; };
struct sg_reply_communicator_split { uint64_t handle; uint32_t ranks, rank; int32_t result; uint32_t reserved; char said[96]; };
/* communicator_submit (post): one group of operations, `count` of them after the struct.  A group that does not fit
 * into one message comes in several; `more` is set in all but the last. */
struct sg_wire_communicator_submit { uint32_t count, more; };
/* communicator_end (call, blocks): how it ends; flush waits for its operations. */
enum { SG_END_FINALIZE = 0, SG_END_DESTROY = 1, SG_END_ABORT = 2 };
struct sg_wire_communicator_end { uint64_t handle; uint32_t how, reserved; };
/* communicator_error (call): the asynchronous error, an ncclResult_t. */
struct sg_reply_communicator_error { int32_t result; char said[124]; };
#endif
