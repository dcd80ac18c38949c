/* Who is on the device, and where a session's bytes are.  Between the slicer (decides), the swapper (moves) and all
 * that touches memory: handlers, worker.c, and the communication interceptor.
 *
 *   enter/leave   a blocking handler brackets exactly the part that touches device memory or puts work that does so
 *                 into a stream.  `enter` waits until the session is resident; nothing switches before `leave`.
 *                 Never wait for device work, a gate or the rank in between (staging included).
 *                 Non-blocking handlers need neither: worker.c holds the session's lead instead.
 *   view          the session's content wherever it is; valid also while it is not resident. */
#ifndef SG_RESIDENCY_H
#define SG_RESIDENCY_H

#include <stdint.h>

struct sg_session;
struct sg_server;

int32_t sg_device_enter(struct sg_session *session); /* 0, or CUDA_ERROR_CONTEXT_IS_DESTROYED: the session ends */
void sg_device_leave(struct sg_session *session);
int sg_device_resident(const struct sg_session *session);

/* Copies between the session's memory (device range of its own, or its page-locked window) and host memory of the proxy.
 * Not ordered with any stream: the caller knows that nothing else uses the range (its operation is between arrival and
 * gate).  0, CUDA_ERROR_ILLEGAL_ADDRESS (700) when the range is not wholly the session's live memory. */
int32_t sg_view_read(struct sg_session *session, uint64_t address, void *out, uint64_t bytes);
int32_t sg_view_write(struct sg_session *session, uint64_t address, const void *in, uint64_t bytes);

/* Opens `gate` (hal->gate_make) when the session is resident: now, or right after its next switch-in. */
void sg_gate_open(struct sg_session *session, uint64_t gate);

/* What the slicer must know; any thread. */
void sg_residency_misses(struct sg_session *session, int misses_local_contribution);
#endif
