/* Files that are opened.  What is written later, mapped or copied into goes through a descriptor that was opened for
 * it, so that write, mmap, copy_file_range and their like need no note of their own. */
#include "interposers/files/wrap.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

SG_EXPORT int __open(const char *path, int flags, ...);
SG_EXPORT int __open64(const char *path, int flags, ...);
SG_EXPORT int __open_2(const char *path, int flags);
SG_EXPORT int __open64_2(const char *path, int flags);
SG_EXPORT int __openat_2(int directory, const char *path, int flags);
SG_EXPORT int __openat64_2(int directory, const char *path, int flags);

/* mode_t, as it comes through "...", is an unsigned int. */
#define TAKE_MODE(flags) \
    mode_t mode = 0; \
    if ((flags) & O_CREAT || ((flags) & O_TMPFILE) == O_TMPFILE) { \
        va_list rest; \
        va_start(rest, flags); \
        mode = va_arg(rest, mode_t); \
        va_end(rest); \
    }

#define WRAP_OPEN(name) \
    SG_EXPORT int name(const char *path, int flags, ...) \
    { \
        struct sg_note note; \
        TAKE_MODE(flags) \
        sg_note_open(&note, AT_FDCWD, path, flags); \
        int result = SG_NEXT(name)(path, flags, mode); \
        sg_settle(&note, result >= 0); \
        return result; \
    }

#define WRAP_OPENAT(name) \
    SG_EXPORT int name(int directory, const char *path, int flags, ...) \
    { \
        struct sg_note note; \
        TAKE_MODE(flags) \
        sg_note_open(&note, directory, path, flags); \
        int result = SG_NEXT(name)(directory, path, flags, mode); \
        sg_settle(&note, result >= 0); \
        return result; \
    }

WRAP_OPEN(open)
WRAP_OPEN(open64)
WRAP_OPEN(__open)
WRAP_OPEN(__open64)
WRAP_OPENAT(openat)
WRAP_OPENAT(openat64)
SG_WRAP(__open_2, (const char *path, int flags), (path, flags), sg_note_open(&note, AT_FDCWD, path, flags))
SG_WRAP(__open64_2, (const char *path, int flags), (path, flags), sg_note_open(&note, AT_FDCWD, path, flags))
SG_WRAP(__openat_2, (int directory, const char *path, int flags), (directory, path, flags),
        sg_note_open(&note, directory, path, flags))
SG_WRAP(__openat64_2, (int directory, const char *path, int flags), (directory, path, flags),
        sg_note_open(&note, directory, path, flags))
SG_WRAP(creat, (const char *path, mode_t mode), (path, mode),
        sg_note_open(&note, AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC))
SG_WRAP(creat64, (const char *path, mode_t mode), (path, mode),
        sg_note_open(&note, AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC))

/* A handle has no name before it is open. */
SG_EXPORT int open_by_handle_at(int mount, struct file_handle *handle, int flags)
{
    struct sg_note note;
    int result = SG_NEXT(open_by_handle_at)(mount, handle, flags);
    if (result >= 0 && sg_opens_for_change(flags)) {
        sg_note_descriptor(&note, result);
        sg_settle(&note, 1);
    }
    return result;
}

/* ---- streams ---- */

/* What fopen makes of its mode; what follows a comma names a character set. */
static int flags_of(const char *mode)
{
    if (!mode)
        return O_RDONLY;
    size_t end = strcspn(mode, ",");
    int flags = *mode == 'r' ? 0 : *mode == 'w' ? O_CREAT | O_TRUNC : *mode == 'a' ? O_CREAT : O_PATH;
    flags |= *mode == 'r' && !memchr(mode, '+', end) ? O_RDONLY : O_RDWR;
    return flags | (flags & O_CREAT && memchr(mode, 'x', end) ? O_EXCL : 0);
}

#define WRAP_FOPEN(name) \
    SG_EXPORT FILE *name(const char *path, const char *mode) \
    { \
        struct sg_note note; \
        sg_note_open(&note, AT_FDCWD, path, flags_of(mode)); \
        FILE *result = SG_NEXT(name)(path, mode); \
        sg_settle(&note, result != NULL); \
        return result; \
    }

/* Without a path it opens the file that the stream has already, for what the mode says. */
static void note_reopen(struct sg_note *note, const char *path, const char *mode, FILE *stream)
{
    int flags = flags_of(mode), saved = errno;
    if (path)
        sg_note_open(note, AT_FDCWD, path, flags);
    else if (sg_opens_for_change(flags))
        sg_note_descriptor(note, fileno(stream));
    else
        sg_note_none(note);
    errno = saved;
}

#define WRAP_FREOPEN(name) \
    SG_EXPORT FILE *name(const char *path, const char *mode, FILE *stream) \
    { \
        struct sg_note note; \
        note_reopen(&note, path, mode, stream); \
        FILE *result = SG_NEXT(name)(path, mode, stream); \
        sg_settle(&note, result != NULL); \
        return result; \
    }

WRAP_FOPEN(fopen)
WRAP_FOPEN(fopen64)
WRAP_FREOPEN(freopen)
WRAP_FREOPEN(freopen64)
