/* How a function of libc is wrapped: begin the note, call, settle. */
#ifndef SG_FILES_WRAP_H
#define SG_FILES_WRAP_H

#include <fcntl.h>

#include "interposers/files/next.h"
#include "interposers/files/note.h"

/* A function that answers -1 when it fails; `begin` begins the note `&note`. */
#define SG_WRAP(name, parameters, arguments, begin) \
    SG_EXPORT int name parameters \
    { \
        struct sg_note note; \
        begin; \
        int result = SG_NEXT(name) arguments; \
        sg_settle(&note, result >= 0); \
        return result; \
    }

#endif
