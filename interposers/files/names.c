/* Names that come, go, or lead elsewhere. */
#include "interposers/files/wrap.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

SG_EXPORT int __xmknod(int version, const char *path, mode_t mode, dev_t *device);
SG_EXPORT int __xmknodat(int version, int directory, const char *path, mode_t mode, dev_t *device);

#define COMES (SG_CREATES | SG_EXCLUSIVE)
#define NAME(path, how) sg_note_name(&note, AT_FDCWD, path, how)
#define NAME_AT(directory, path, how) sg_note_name(&note, directory, path, how)

SG_WRAP(unlink, (const char *path), (path), NAME(path, 0))
SG_WRAP(unlinkat, (int directory, const char *path, int flags), (directory, path, flags), NAME_AT(directory, path, 0))
SG_WRAP(remove, (const char *path), (path), NAME(path, 0))
SG_WRAP(rmdir, (const char *path), (path), NAME(path, 0))
SG_WRAP(symlink, (const char *target, const char *path), (target, path), NAME(path, COMES))
SG_WRAP(symlinkat, (const char *target, int directory, const char *path), (target, directory, path),
        NAME_AT(directory, path, COMES))
SG_WRAP(mkdir, (const char *path, mode_t mode), (path, mode), NAME(path, COMES))
SG_WRAP(mkdirat, (int directory, const char *path, mode_t mode), (directory, path, mode), NAME_AT(directory, path, COMES))
SG_WRAP(mknod, (const char *path, mode_t mode, dev_t device), (path, mode, device), NAME(path, COMES))
SG_WRAP(mknodat, (int directory, const char *path, mode_t mode, dev_t device), (directory, path, mode, device),
        NAME_AT(directory, path, COMES))
SG_WRAP(__xmknod, (int version, const char *path, mode_t mode, dev_t *device), (version, path, mode, device),
        NAME(path, COMES))
SG_WRAP(__xmknodat, (int version, int directory, const char *path, mode_t mode, dev_t *device),
        (version, directory, path, mode, device), NAME_AT(directory, path, COMES))
SG_WRAP(mkfifo, (const char *path, mode_t mode), (path, mode), NAME(path, COMES))
SG_WRAP(mkfifoat, (int directory, const char *path, mode_t mode), (directory, path, mode), NAME_AT(directory, path, COMES))

/* ---- two names ---- */

struct two_notes {
    struct sg_note from, to;
};

static int is_directory(int directory, const char *path)
{
    struct stat found;
    return fstatat(directory, path, &found, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(found.st_mode);
}

static void begin_rename(struct two_notes *notes, int from_directory, const char *from, int to_directory, const char *to,
                         unsigned flags)
{
    int saved = errno;
    unsigned how = is_directory(from_directory, from) ? SG_TREE : 0;
    if (flags & RENAME_EXCHANGE && is_directory(to_directory, to))
        how |= SG_TREE;
    errno = saved;
    sg_note_name(&notes->from, from_directory, from, how);
    sg_note_name(&notes->to, to_directory, to, how | SG_CREATES | (flags & RENAME_NOREPLACE ? SG_EXCLUSIVE : 0));
}

/* The file gets a second name, by which it may be written: from now on both are one file, also after a restore. */
static void begin_link(struct two_notes *notes, int from_directory, const char *from, int to_directory, const char *to,
                       int flags)
{
    if (flags & AT_EMPTY_PATH && from && !*from && from_directory != AT_FDCWD)
        sg_note_descriptor(&notes->from, from_directory);
    else if (flags & AT_SYMLINK_FOLLOW)
        sg_note_content(&notes->from, from_directory, from, SG_ATTRIBUTES);
    else
        sg_note_name(&notes->from, from_directory, from, 0);
    sg_note_name(&notes->to, to_directory, to, COMES);
}

#define WRAP_TWO(name, parameters, arguments, begin) \
    SG_EXPORT int name parameters \
    { \
        struct two_notes notes; \
        begin; \
        int result = SG_NEXT(name) arguments; \
        sg_settle(&notes.from, result == 0); \
        sg_settle(&notes.to, result == 0); \
        return result; \
    }

WRAP_TWO(rename, (const char *from, const char *to), (from, to), begin_rename(&notes, AT_FDCWD, from, AT_FDCWD, to, 0))
WRAP_TWO(renameat, (int from_directory, const char *from, int to_directory, const char *to),
         (from_directory, from, to_directory, to), begin_rename(&notes, from_directory, from, to_directory, to, 0))
WRAP_TWO(renameat2, (int from_directory, const char *from, int to_directory, const char *to, unsigned flags),
         (from_directory, from, to_directory, to, flags),
         begin_rename(&notes, from_directory, from, to_directory, to, flags))

WRAP_TWO(link, (const char *from, const char *to), (from, to), begin_link(&notes, AT_FDCWD, from, AT_FDCWD, to, 0))
WRAP_TWO(linkat, (int from_directory, const char *from, int to_directory, const char *to, int flags),
         (from_directory, from, to_directory, to, flags), begin_link(&notes, from_directory, from, to_directory, to, flags))

/* ---- sockets, and other roots ---- */

static void note_socket(struct sg_note *note, const struct sockaddr *address, socklen_t bytes)
{
    char path[sizeof(struct sockaddr_un) + 1] = "";
    size_t head = offsetof(struct sockaddr_un, sun_path);
    sg_note_none(note);
    if (!address || bytes <= head || bytes > sizeof(struct sockaddr_un) || address->sa_family != AF_UNIX)
        return;
    memcpy(path, (const char *)address + head, bytes - head);
    if (*path) /* else it has an abstract name, or none */
        sg_note_name(note, AT_FDCWD, path, COMES);
}

SG_WRAP(bind, (int socket, const struct sockaddr *address, socklen_t bytes), (socket, address, bytes),
        note_socket(&note, address, bytes))

/* Behind another root paths mean something else, and the log is out of reach. */
SG_EXPORT int chroot(const char *path)
{
    int saved = errno;
    sg_log_gap(SG_GAP_OTHER);
    errno = saved;
    return SG_NEXT(chroot)(path);
}
