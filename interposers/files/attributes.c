/* Sizes, permissions, owners, times and extended attributes. */
#include "interposers/files/wrap.h"

#include <sys/stat.h>
#include <sys/time.h>
#include <sys/xattr.h>
#include <unistd.h>
#include <utime.h>

#define FOLLOW SG_ATTRIBUTES
#define NOFOLLOW (SG_ATTRIBUTES | SG_NOFOLLOW)
#define BY_FLAGS(flags) ((flags) & AT_SYMLINK_NOFOLLOW ? NOFOLLOW : FOLLOW)
#define PATH(path, how) sg_note_content(&note, AT_FDCWD, path, how)
#define PATH_AT(directory, path, how) sg_note_content(&note, directory, path, how)
#define DESCRIPTOR(descriptor) sg_note_descriptor(&note, descriptor)

SG_WRAP(truncate, (const char *path, off_t size), (path, size), PATH(path, 0))
SG_WRAP(truncate64, (const char *path, off64_t size), (path, size), PATH(path, 0))
SG_WRAP(ftruncate, (int file, off_t size), (file, size), DESCRIPTOR(file))
SG_WRAP(ftruncate64, (int file, off64_t size), (file, size), DESCRIPTOR(file))

SG_WRAP(chmod, (const char *path, mode_t mode), (path, mode), PATH(path, FOLLOW))
SG_WRAP(lchmod, (const char *path, mode_t mode), (path, mode), PATH(path, NOFOLLOW))
SG_WRAP(fchmod, (int file, mode_t mode), (file, mode), DESCRIPTOR(file))
SG_WRAP(fchmodat, (int directory, const char *path, mode_t mode, int flags), (directory, path, mode, flags),
        PATH_AT(directory, path, BY_FLAGS(flags)))

SG_WRAP(chown, (const char *path, uid_t user, gid_t group), (path, user, group), PATH(path, FOLLOW))
SG_WRAP(lchown, (const char *path, uid_t user, gid_t group), (path, user, group), PATH(path, NOFOLLOW))
SG_WRAP(fchown, (int file, uid_t user, gid_t group), (file, user, group), DESCRIPTOR(file))

/* An empty path, where AT_EMPTY_PATH allows it, or none at all means the descriptor itself. */
static void note_at(struct sg_note *note, int directory, const char *path, unsigned how)
{
    if (directory != AT_FDCWD && (!path || !*path))
        sg_note_descriptor(note, directory);
    else
        sg_note_content(note, directory, path, how);
}

SG_WRAP(fchownat, (int directory, const char *path, uid_t user, gid_t group, int flags),
        (directory, path, user, group, flags), note_at(&note, directory, flags & AT_EMPTY_PATH ? "" : path, BY_FLAGS(flags)))

SG_WRAP(utime, (const char *path, const struct utimbuf *times), (path, times), PATH(path, FOLLOW))
SG_WRAP(utimes, (const char *path, const struct timeval times[2]), (path, times), PATH(path, FOLLOW))
SG_WRAP(lutimes, (const char *path, const struct timeval times[2]), (path, times), PATH(path, NOFOLLOW))
SG_WRAP(futimes, (int file, const struct timeval times[2]), (file, times), DESCRIPTOR(file))
SG_WRAP(futimens, (int file, const struct timespec times[2]), (file, times), DESCRIPTOR(file))
SG_WRAP(futimesat, (int directory, const char *path, const struct timeval times[2]), (directory, path, times),
        note_at(&note, directory, path, FOLLOW))
SG_WRAP(utimensat, (int directory, const char *path, const struct timespec times[2], int flags),
        (directory, path, times, flags), note_at(&note, directory, path, BY_FLAGS(flags)))

SG_WRAP(setxattr, (const char *path, const char *name, const void *value, size_t bytes, int flags),
        (path, name, value, bytes, flags), PATH(path, FOLLOW))
SG_WRAP(lsetxattr, (const char *path, const char *name, const void *value, size_t bytes, int flags),
        (path, name, value, bytes, flags), PATH(path, NOFOLLOW))
SG_WRAP(fsetxattr, (int file, const char *name, const void *value, size_t bytes, int flags),
        (file, name, value, bytes, flags), DESCRIPTOR(file))
SG_WRAP(removexattr, (const char *path, const char *name), (path, name), PATH(path, FOLLOW))
SG_WRAP(lremovexattr, (const char *path, const char *name), (path, name), PATH(path, NOFOLLOW))
SG_WRAP(fremovexattr, (int file, const char *name), (file, name), DESCRIPTOR(file))
