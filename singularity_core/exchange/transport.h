/* How a proxy offers bytes to its peers and gets theirs.
 *
 * Bytes travel in blocks of a bounded size; which block holds what, and who has done with it, is told by words on the rosters
 * (board.h), each of which has one writer.  Shared memory (outbox.c) is the one implementation now; one between hosts
 * sends the blocks and mirrors the words.  Called by the engine's thread only, except `ring`. */
#ifndef SG_TRANSPORT_H
#define SG_TRANSPORT_H

#include <stdint.h>
#include "board.h"

#define SG_BLOCK_BYTES (2u << 20)
#define SG_BLOCKS 1024u

struct sg_transport {
    void *state;
    /* A block to fill, until it is released; NULL: there is no memory for one. */
    uint8_t *(*reserve)(void *state, uint32_t *block);
    void (*release)(void *state, uint32_t block);
    /* The first `bytes` of a block that a peer has offered; NULL: it cannot have offered that. */
    const uint8_t *(*peer)(void *state, uint32_t proxy, uint32_t block, uint32_t bytes);
    /* Words that `proxy` looks at have changed. */
    void (*ring)(void *state, uint32_t proxy);
};

/* Shared memory.  `directory` NULL: there are no peers, and nothing is ever reserved.  0 or -errno. */
int sg_outbox_open(struct sg_transport *out, struct sg_board *board, const char *directory, uint32_t index, uint32_t count);
void sg_outbox_close(struct sg_transport *transport);

#endif
