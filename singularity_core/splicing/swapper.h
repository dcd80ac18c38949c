/* Moves sessions between the device and host memory: full copies of all live blocks (decision 0005). */
#ifndef SG_SWAPPER_H
#define SG_SWAPPER_H

#include <stdint.h>

struct sg_session;

/* A session's content while it is not resident: as wide as the arena, so that an address is an offset.  Only what was
 * live has pages, and those stay from switch to switch: they are paid for once.  A file without a name, so that another proxy
 * can go on with it. */
struct sg_image {
    uint8_t *host;  /* NULL: not needed yet */
    int file;       /* valid with `host` */
    int handed;     /* it came from another proxy, and has not been on the device here */
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
/* At rest: brings the image up to date, whether the session is resident or not, and tells by what path another process of the user
 * can open it while this one lives.  0 or a CUresult. */
int32_t sg_image_write(struct sg_session *session, char path[64]);
/* Takes such a file over as the content of a session that is not resident.  0, or -errno: -EPROTO when it is not as wide as the arena. */
int sg_image_adopt(struct sg_session *session, const char *path);
void sg_image_close(struct sg_session *session);
#endif
