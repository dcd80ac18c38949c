/* Moves sessions between the device and host memory: full copies of all live blocks (decision 0005). */
#ifndef SG_SWAPPER_H
#define SG_SWAPPER_H

#include <stdint.h>

struct sg_session;

/* A session's content while it is not resident: as wide as the arena, so that an address is an offset.  Only what was
 * live has pages, and those stay from switch to switch: they are paid for once. */
struct sg_image {
    uint8_t *host;  /* NULL: not needed yet */
    uint64_t freed; /* bytes of blocks that are gone since the last trim */
};

struct sg_swap {
    int32_t out_error, in_error; /* 0, or the CUresult that made the session lose its content */
    uint64_t out_bytes, in_bytes;
};

/* `out` (or NULL) leaves the device and `in` comes.  Nothing runs on the device, and both are pinned by nobody. */
struct sg_swap sg_swap(struct sg_session *out, struct sg_session *in);
/* Where `address` lies in the image; NULL: no memory for images. */
uint8_t *sg_image_at(struct sg_session *session, uint64_t address);
/* A block that begins to live while the session is out starts as zeroes.  0 or -1. */
int sg_image_zero(struct sg_session *session, uint64_t address, uint64_t bytes);
void sg_image_close(struct sg_session *session);
#endif
