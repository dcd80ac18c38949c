/* The rank's end of a session: claim a slot, post messages, wait for replies, move bulk data.
 * Loaded into ranks, so libc only.  Every function may be called from any thread.
 * Waiting is a bounded spin that yields, then a futex with a time-out of 50 ms, after which
 * the dead words (and, should the agent be gone too, /proc) are looked at again. */
#ifndef SG_LINK_H
#define SG_LINK_H

#include "layout.h"

typedef struct sg_link sg_link;

/* The device a door leads to, read-only, or NULL with errno (ENOENT: no proxy there; ETIMEDOUT:
 * it never became ready; EPROTO: another protocol version).  Waits up to 30 s for `ready`. */
const struct sg_door *sg_door_map(const char *directory);

/* Claims a session.  0, or -errno; -ECONNREFUSED with the proxy's words in `why`. */
int sg_link_open(sg_link **out, const char *directory, uint32_t rank, uint32_t sub, char why[128]);
/* Tells the proxy that nothing more comes, and lets go.  Never blocks on device work. */
void sg_link_close(sg_link *link);
/* After fork, in the child: forgets the parent's session without touching it. */
void sg_link_abandon(sg_link *link);

uint32_t sg_link_dead(const sg_link *link);        /* SG_DEAD_* */
uint32_t sg_link_async_error(const sg_link *link); /* CUresult; 0: none */
uint32_t sg_link_async_take(sg_link *link);        /* the same, to report it: only a sticky one stays */
uint8_t *sg_link_pinned_base(const sg_link *link); /* the window, mapped read-write on demand */
int sg_link_pinned_commit(sg_link *link, uint64_t offset, uint64_t bytes, int on); /* 0 or -errno */

/* begin: takes the producer lock, waits for room, returns `bytes` of contiguous payload in the ring;
 *        NULL when the session is dead (lock not held then).
 * post:  publishes it; no reply.   call: publishes it and waits for the reply.
 * `call` returns the proxy's status (CUresult >= 0), or -EPIPE when the session died. */
uint8_t *sg_link_begin(sg_link *link, uint32_t op, uint32_t context, uint32_t bytes);
void sg_link_post(sg_link *link);
int32_t sg_link_call(sg_link *link, void *reply, uint32_t capacity, uint32_t *got);

/* Bulk: as `call`, with `bytes` streamed through staging chunks while the proxy works on the call.
 * One bulk transfer at a time per session; further ones wait in the client. */
int32_t sg_link_call_send(sg_link *link, const void *data, uint64_t bytes);
int32_t sg_link_call_receive(sg_link *link, void *data, uint64_t bytes);
/* Both end a `begin`.  To keep the order of locks: call sg_link_bulk_lock before `begin`. */
void sg_link_bulk_lock(sg_link *link);
void sg_link_bulk_unlock(sg_link *link);

/* Host functions: waits for the next one, which is to be called and then said to have `returned`.  0, or -EPIPE when the
 * session died.  For one thread of the rank. */
int sg_link_host_next(sg_link *link, struct sg_host_function *out);
void sg_link_host_returned(sg_link *link);

#endif
