/* The job's log of files: pieces that are appended, and what this process need not append again. */
#ifndef SG_FILES_LOG_H
#define SG_FILES_LOG_H

#include <limits.h>
#include <stdint.h>
#include <sys/types.h>

enum {
    SG_PIECE_HEAD = 14,                          /* NUL, checksum, space, kind, state, form, space */
    SG_PIECE_ROOM = SG_PIECE_HEAD + PATH_MAX + 1 /* path, NUL */
};

/* Why the log does not say everything.  A bit of the log's file mode each: to set one takes no memory, no room in the
 * file system and no descriptor, so it works when appending does not. */
enum sg_gap {
    SG_GAP_FULL = 0100,        /* it could not be appended to */
    SG_GAP_DESCRIPTORS = 0010, /* the process had no descriptor left */
    SG_GAP_OTHER = 0001,       /* a path could not be found out, or has another meaning than here (chroot) */
};

/* Whether this process belongs to a job that keeps a log. */
int sg_log_wanted(void);

/* Fills in the head of a piece around its path, which lies at SG_PIECE_HEAD. */
void sg_piece_seal(char *piece, size_t path_bytes, char kind, char state, char form);
void sg_log_append(const char *pieces, size_t bytes);
void sg_log_gap(enum sg_gap why);

/* A set that forgets when it is full.  Keys are 64-bit hashes; 0 is in no set. */
uint64_t sg_hash(uint64_t seed, const void *bytes, size_t count);
int sg_known(uint64_t key);
void sg_remember(uint64_t key);

#endif
