/* What one proxy writes of a session at rest, and another goes on with (session_image.c). */
#ifndef SG_SESSION_IMAGE_H
#define SG_SESSION_IMAGE_H

#include "bytes.h"
#include "server.h"

struct sg_image_owner { uint32_t pid; uint64_t start; uint32_t rank, sub; };

/* Of a session whose proxy is at rest: nothing of it changes, and it can go on.  0; -EBUSY with `why` when it has to be tried again
 * later, or another error with `why`. */
int sg_session_export(sg_session *session, const struct sg_image_owner *owner, struct sg_out *out, char why[96]);
/* Whose it is, before there is a session. */
int sg_image_owner_of(const uint8_t *image, uint64_t bytes, struct sg_image_owner *owner);
/* Into a session that is not resident and has no thread yet.  0, or -errno with `why`. */
int sg_session_import(sg_session *session, const uint8_t *image, uint64_t bytes, char why[96]);

#endif
