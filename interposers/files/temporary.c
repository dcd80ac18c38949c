/* Names that libc makes up.  It would tell them only when the file is there, and a process that is frozen in between
 * would have a file that nobody knows of; so the name is made up here, noted, and then taken. */
#include "interposers/files/wrap.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>

enum { ATTEMPTS = 62 * 62 * 62, MARKS = 6 };

/* Where the X are, or NULL with errno set. */
static char *marks_of(char *pattern, int suffix)
{
    size_t bytes = strlen(pattern);
    if (suffix >= 0 && bytes >= (size_t)suffix + MARKS) {
        char *marks = pattern + bytes - (size_t)suffix - MARKS;
        if (memcmp(marks, "XXXXXX", MARKS) == 0)
            return marks;
    }
    errno = EINVAL;
    return NULL;
}

static void fill(char *marks, unsigned attempt)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
    uint64_t random;
    if (getrandom(&random, sizeof random, GRND_NONBLOCK) != sizeof random) { /* early in a boot */
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        uint64_t parts[] = {(uint64_t)now.tv_nsec, (uint64_t)now.tv_sec, (uint64_t)(uintptr_t)&now, attempt};
        random = sg_hash(4, parts, sizeof parts);
    }
    for (int at = 0; at < MARKS; at++, random /= 62)
        marks[at] = letters[random % 62];
}

static int make_file(const char *path, int flags)
{
    struct sg_note note;
    flags |= O_CREAT | O_EXCL | O_RDWR;
    sg_note_open(&note, AT_FDCWD, path, flags);
    int result = SG_NEXT(open)(path, flags, 0600);
    sg_settle(&note, result >= 0);
    return result;
}

static int make_directory(const char *path, int flags)
{
    struct sg_note note;
    (void)flags;
    sg_note_name(&note, AT_FDCWD, path, SG_CREATES | SG_EXCLUSIVE);
    int result = SG_NEXT(mkdir)(path, 0700);
    sg_settle(&note, result >= 0);
    return result;
}

static int make(char *pattern, int suffix, int flags, int (*one)(const char *, int))
{
    int saved = errno;
    char *marks = marks_of(pattern, suffix);
    for (unsigned attempt = 0; marks && attempt < ATTEMPTS; attempt++) {
        fill(marks, attempt);
        int result = one(pattern, flags);
        if (result >= 0)
            errno = saved;
        if (result >= 0 || errno != EEXIST)
            return result;
    }
    return -1;
}

/* glibc takes the access mode out of what it is given. */
#define WRAP_TEMPORARY(name, parameters, arguments, suffix, flags) \
    SG_EXPORT int name parameters \
    { \
        if (!sg_log_wanted()) \
            return SG_NEXT(name) arguments; \
        return make(pattern, suffix, (flags) & ~O_ACCMODE, make_file); \
    }

WRAP_TEMPORARY(mkstemp, (char *pattern), (pattern), 0, 0)
WRAP_TEMPORARY(mkstemp64, (char *pattern), (pattern), 0, 0)
WRAP_TEMPORARY(mkstemps, (char *pattern, int suffix), (pattern, suffix), suffix, 0)
WRAP_TEMPORARY(mkstemps64, (char *pattern, int suffix), (pattern, suffix), suffix, 0)
WRAP_TEMPORARY(mkostemp, (char *pattern, int flags), (pattern, flags), 0, flags)
WRAP_TEMPORARY(mkostemp64, (char *pattern, int flags), (pattern, flags), 0, flags)
WRAP_TEMPORARY(mkostemps, (char *pattern, int suffix, int flags), (pattern, suffix, flags), suffix, flags)
WRAP_TEMPORARY(mkostemps64, (char *pattern, int suffix, int flags), (pattern, suffix, flags), suffix, flags)

SG_EXPORT char *mkdtemp(char *pattern)
{
    if (!sg_log_wanted())
        return SG_NEXT(mkdtemp)(pattern);
    return make(pattern, 0, 0, make_directory) >= 0 ? pattern : NULL;
}
