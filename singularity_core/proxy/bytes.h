/* Flat buffers: one that grows while it is written, and one whose end is looked at before each read. */
#ifndef SG_BYTES_H
#define SG_BYTES_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

struct sg_out { uint8_t *at; uint64_t used, room; int failed; /* out of memory: the rest is not written */ };
struct sg_in { const uint8_t *at; uint64_t left; int failed; /* it was cut off: what follows reads as zeroes */ };

static inline void sg_put(struct sg_out *out, const void *from, uint64_t bytes) {
    if (out->failed || bytes == 0) return;
    if (bytes > out->room - out->used) {
        uint64_t room = out->room * 2 > out->used + bytes ? out->room * 2 : out->used + bytes + 4096;
        uint8_t *grown = realloc(out->at, room);
        out->failed = grown == NULL;
        if (grown == NULL) return;
        out->at = grown;
        out->room = room;
    }
    memcpy(out->at + out->used, from, bytes);
    out->used += bytes;
}

static inline void sg_put_number(struct sg_out *out, uint64_t number) { sg_put(out, &number, sizeof number); }

/* The next `bytes`, in place and not aligned; NULL: they are not there. */
static inline const uint8_t *sg_get(struct sg_in *in, uint64_t bytes) {
    const uint8_t *at = in->at;
    in->failed |= bytes > in->left;
    if (in->failed) return NULL;
    in->at += bytes;
    in->left -= bytes;
    return at;
}

static inline uint64_t sg_get_number(struct sg_in *in) {
    uint64_t number = 0;
    const uint8_t *at = sg_get(in, sizeof number);
    if (at != NULL) memcpy(&number, at, sizeof number);
    return number;
}

#endif
