/* Files that posix_spawn opens for the child.  libc does it in the child, without its own public functions; so they are
 * noted when they are announced.  Relative paths then may count from a directory that was announced before. */
#include "interposers/files/wrap.h"

#include <errno.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Of the last list in which this thread announced a change of directory. */
static __thread const void *moved __attribute__((tls_model("initial-exec")));
static __thread char *moved_to __attribute__((tls_model("initial-exec")));

static const char *base_of(const posix_spawn_file_actions_t *actions)
{
    return moved == actions ? moved_to : NULL;
}

static void move_to(const posix_spawn_file_actions_t *actions, const char *path)
{
    const char *base = *path == '/' ? NULL : base_of(actions);
    char *joined = NULL;
    if (asprintf(&joined, "%s%s%s", base ? base : "", base ? "/" : "", path) < 0) {
        sg_log_gap(SG_GAP_OTHER);
        joined = NULL;
    }
    free(moved_to);
    moved_to = joined;
    moved = actions;
}

static void note_announced(struct sg_note *note, const posix_spawn_file_actions_t *actions, const char *path, int flags)
{
    const char *base = path && *path != '/' ? base_of(actions) : NULL;
    char joined[PATH_MAX];
    if (base && snprintf(joined, sizeof joined, "%s/%s", base, path) < (int)sizeof joined)
        path = joined;
    sg_note_open(note, AT_FDCWD, path, flags);
}

/* Another list may have been at the same address. */
SG_EXPORT int posix_spawn_file_actions_init(posix_spawn_file_actions_t *actions)
{
    if (moved == actions)
        moved = NULL;
    return SG_NEXT(posix_spawn_file_actions_init)(actions);
}

SG_EXPORT int posix_spawn_file_actions_addopen(posix_spawn_file_actions_t *actions, int file, const char *path, int flags,
                                               mode_t mode)
{
    struct sg_note note;
    int saved = errno;
    note_announced(&note, actions, path, flags);
    errno = saved;
    int result = SG_NEXT(posix_spawn_file_actions_addopen)(actions, file, path, flags, mode);
    sg_settle(&note, result == 0);
    return result;
}

SG_EXPORT int posix_spawn_file_actions_addchdir_np(posix_spawn_file_actions_t *actions, const char *path)
{
    int result = SG_NEXT(posix_spawn_file_actions_addchdir_np)(actions, path);
    if (result == 0 && sg_log_wanted())
        move_to(actions, path);
    return result;
}

SG_EXPORT int posix_spawn_file_actions_addfchdir_np(posix_spawn_file_actions_t *actions, int directory)
{
    char link[48];
    int result = SG_NEXT(posix_spawn_file_actions_addfchdir_np)(actions, directory);
    snprintf(link, sizeof link, "/proc/self/fd/%d", directory); /* a descriptor that the child will have, too */
    if (result == 0 && sg_log_wanted())
        move_to(actions, link);
    return result;
}
