/* What one proxy writes of a session at rest, and another goes on with (session_image.c). */
#ifndef SG_SESSION_IMAGE_H
#define SG_SESSION_IMAGE_H

#include "bytes.h"
#include "server.h"

struct sg_image_owner {
    uint32_t pid; /* and since when it runs, as the proxy that wrote this saw it */
    uint64_t start;
    uint32_t rank, sub, pid_inside; /* pid_inside: as it is called in the box that it runs in */
};
struct sg_image_block { uint64_t address, bytes; };
struct sg_image_facts {
    uint32_t pid_inside, rank, sub;
    uint64_t arena_bytes, block_count;
    char memory[64]; /* where the content of the blocks is, while the proxy that wrote this lives; "": there are none */
};

/* Of a session whose proxy is at rest: nothing of it changes, and it can go on.  0; -EBUSY with `why` when it has to be tried again
 * later, or another error with `why`. */
int sg_session_export(sg_session *session, const struct sg_image_owner *owner, struct sg_out *out, char why[96]);
/* Whose it is, before there is a session. */
int sg_image_owner_of(const uint8_t *image, uint64_t bytes, struct sg_image_owner *owner);
/* What else an image says, for who puts it into a checkpoint: pure, and trusts nothing.  The first `room` blocks of device memory, by
 * address.  0, or -EPROTO. */
int sg_image_read(const uint8_t *image, uint64_t bytes, struct sg_image_facts *facts, struct sg_image_block *blocks, uint64_t room);
/* Into a session that is not resident and has no thread yet.  0, or -errno with `why`. */
int sg_session_import(sg_session *session, const uint8_t *image, uint64_t bytes, char why[96]);

#endif
