/* Notes of what a call is about to change.
 *
 * A note is appended *before* the call, because the process may be killed or frozen right behind it, and taken back
 * when the call fails: a file that the job was not allowed to write must not travel with it. */
#ifndef SG_FILES_NOTE_H
#define SG_FILES_NOTE_H

#include <stdint.h>

#include "interposers/files/log.h"

#define SG_EXPORT __attribute__((visibility("default")))

/* Small: calls come from signal handlers on stacks that hold little more than a frame. */
struct sg_note {
    uint64_t inode_key, path_key; /* remembered when the call has succeeded; 0: none */
    struct sg_room *room;         /* for a piece; NULL: none was needed */
    uint32_t bytes;               /* of the piece that was appended; 0: none was */
};

enum sg_how {
    SG_CREATES = 1,    /* if it is not there */
    SG_EXCLUSIVE = 2,  /* fails if it is there */
    SG_NOFOLLOW = 4,   /* a symbolic link is meant itself */
    SG_ATTRIBUTES = 8, /* of any kind of file, not the contents of a regular one */
    SG_TREE = 16,      /* a directory, with all that is in it, comes or goes under this name */
};

/* The file that `path` leads to is written, or its attributes are set. */
void sg_note_content(struct sg_note *note, int directory, const char *path, unsigned how);
/* The same for an open file. */
void sg_note_descriptor(struct sg_note *note, int descriptor);
/* The name itself comes (SG_CREATES), goes, or means something else afterwards. */
void sg_note_name(struct sg_note *note, int directory, const char *path, unsigned how);
/* By open's flags, whether it changes anything, and what. */
void sg_note_open(struct sg_note *note, int directory, const char *path, int flags);
/* By open's flags, whether the descriptor may change what it refers to. */
int sg_opens_for_change(int flags);
void sg_note_none(struct sg_note *note);
/* The call is over. */
void sg_settle(struct sg_note *note, int succeeded);

#endif
