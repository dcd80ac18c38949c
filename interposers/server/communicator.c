/* Handlers of the NCCL interposer's messages (wire_nccl.h).  Declined until the exchange is there. */
#include "handlers.h"

#define DECLINED(name) \
    SG_HANDLER(name) \
    { \
        (void)session, (void)request, (void)answer; \
        return CUDA_ERROR_NOT_SUPPORTED; \
    }
DECLINED(communicator_join)
DECLINED(communicator_split)
DECLINED(communicator_submit)
DECLINED(communicator_end)
DECLINED(communicator_error)
