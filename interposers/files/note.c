/* Which file a call means, and whether it has been noted already.
 *
 * Two questions are asked before a call that changes a file.  Is it a file that this process has noted?  That costs one
 * statx: device, inode and time of birth say which file it is, whatever its name, here and
 * after a restore.  (Paths would not do: a symbolic link may point elsewhere the next time.)  If not, what is its name without symbolic links?  The kernel says, by way of an
 * O_PATH descriptor, which changes nothing and waits for nobody.
 *
 * A path is touched only after the kernel has read it without a fault. */
#include "interposers/files/note.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { LINKS = 40 }; /* as many as the kernel follows */

static int look(int directory, const char *path, int flags, struct statx *found)
{
    return (int)syscall(SYS_statx, directory, path, flags, STATX_BASIC_STATS | STATX_BTIME, found);
}

/* None where a file system does not keep the time of birth: a number alone is given to another file, in the end. */
static uint64_t inode_key(const struct statx *found)
{
    uint64_t who[5] = {found->stx_dev_major, found->stx_dev_minor, found->stx_ino,
                       (uint64_t)found->stx_btime.tv_sec, found->stx_btime.tv_nsec};
    return found->stx_mask & STATX_BTIME ? sg_hash(1, who, sizeof who) : 0;
}

/* ---- room ---- */

/* Paths are too long for the stack of a signal handler, and malloc is not for one.  A few rooms are there from the
 * beginning; who finds them all taken, by other threads or by one that was killed or forked in the middle, gets one from
 * the kernel, which takes longer. */
struct sg_room {
    char piece[SG_PIECE_ROOM];
    char target[PATH_MAX];
};

enum { ROOMS = 8 };
static struct sg_room rooms[ROOMS];
static _Atomic unsigned taken[ROOMS];

static int make_room(struct sg_note *note)
{
    for (int each = 0; each < ROOMS && !note->room; each++)
        if (!atomic_exchange_explicit(&taken[each], 1, memory_order_acquire))
            note->room = &rooms[each];
    if (note->room)
        return 1;
    long made = syscall(SYS_mmap, 0, sizeof *note->room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (made == -1)
        sg_log_gap(SG_GAP_DESCRIPTORS);
    else
        note->room = (struct sg_room *)made;
    return made != -1;
}

static void give_room_back(struct sg_note *note)
{
    if (note->room >= rooms && note->room < rooms + ROOMS)
        atomic_store_explicit(&taken[note->room - rooms], 0, memory_order_release);
    else if (note->room)
        syscall(SYS_munmap, note->room, sizeof *note->room);
    note->room = NULL;
}

static char *path_of(struct sg_note *note)
{
    return note->room->piece + SG_PIECE_HEAD;
}

/* ---- names ---- */

static size_t write_number(char *out, unsigned number)
{
    char digits[10];
    size_t count = 0, at = 0;
    do
        digits[count++] = (char)('0' + number % 10);
    while (number /= 10);
    while (count)
        out[at++] = digits[--count];
    return at;
}

/* The name of an open file; 0 if there is no absolute one. */
static size_t name_of_descriptor(int descriptor, char path[PATH_MAX])
{
    char link[48] = "/proc/thread-self/fd/";
    if (descriptor < 0)
        return 0;
    size_t head = strlen(link);
    link[head + write_number(link + head, (unsigned)descriptor)] = 0;
    long bytes = syscall(SYS_readlinkat, AT_FDCWD, link, path, PATH_MAX);
    return bytes > 0 && bytes < PATH_MAX && *path == '/' ? (size_t)bytes : 0;
}

static size_t join(char path[PATH_MAX], size_t bytes, const char *name, size_t more)
{
    if (bytes == 1) /* the root */
        bytes = 0;
    if (bytes + 1 + more >= PATH_MAX)
        return 0;
    path[bytes] = '/';
    memcpy(path + bytes + 1, name, more);
    path[bytes + 1 + more] = 0;
    return bytes + 1 + more;
}

/* Without a descriptor: an absolute name whose symbolic links are left to the reader. */
static size_t name_as_written(int directory, const char *path, char out[PATH_MAX])
{
    size_t more = strlen(path), bytes = 0;
    if (*path == '/') {
        if (more < PATH_MAX)
            memcpy(out, path, more);
        return more < PATH_MAX ? more : 0;
    }
    if (directory == AT_FDCWD) {
        long count = syscall(SYS_getcwd, out, PATH_MAX);
        bytes = count > 1 && *out == '/' ? (size_t)count - 1 : 0;
    } else {
        bytes = name_of_descriptor(directory, out);
    }
    return bytes ? join(out, bytes, path, more) : 0;
}

/* ---- pieces ---- */

/* What no checkpoint carries need not be noted (Excludes.ALWAYS in checkpoint/file_log.py). */
static int is_no_file_of_a_disk(const char *path)
{
    return strncmp(path, "/dev/", 5) == 0 || strncmp(path, "/proc/", 6) == 0 || strncmp(path, "/sys/", 5) == 0;
}

static void append(struct sg_note *note, size_t path_bytes, unsigned how, int existed, char form)
{
    if (!path_bytes) {
        sg_log_gap(SG_GAP_OTHER);
        return;
    }
    if (form == 'c' && is_no_file_of_a_disk(path_of(note)))
        return;
    char kind = how & SG_TREE ? 'T' : 'E';
    note->path_key = sg_hash(how & SG_TREE ? 3 : 2, path_of(note), path_bytes);
    if (sg_known(note->path_key))
        return;
    sg_piece_seal(note->room->piece, path_bytes, kind, existed ? '1' : '0', form);
    note->bytes = (uint32_t)(SG_PIECE_HEAD + path_bytes + 1);
    sg_log_append(note->room->piece, note->bytes);
}

static void append_as_written(struct sg_note *note, int directory, const char *path, unsigned how, int existed)
{
    append(note, name_as_written(directory, path, path_of(note)), how, existed, 'w');
}

static int out_of_descriptors(int error)
{
    return error == EMFILE || error == ENFILE || error == ENOMEM;
}

static void note_present(struct sg_note *note, int directory, const char *path, unsigned how)
{
    int flags = O_PATH | O_CLOEXEC | (how & SG_NOFOLLOW ? O_NOFOLLOW : 0);
    if (!make_room(note))
        return;
    int descriptor = (int)syscall(SYS_openat, directory, path, flags);
    if (descriptor < 0) {
        if (out_of_descriptors(errno))
            append_as_written(note, directory, path, how, 1);
        return; /* else it has just gone */
    }
    size_t bytes = name_of_descriptor(descriptor, path_of(note));
    syscall(SYS_close, descriptor);
    if (bytes)
        append(note, bytes, how, 1, 'c');
    else
        append_as_written(note, directory, path, how, 1);
}

/* Opens the directory that `path` ends in; `name` gets what comes after it. */
static int open_parent(int directory, const char *path, char *room, const char **name, size_t *name_bytes)
{
    size_t end = strlen(path);
    while (end > 1 && path[end - 1] == '/')
        end--;
    size_t start = end;
    while (start > 0 && path[start - 1] != '/')
        start--;
    *name = path + start;
    *name_bytes = end - start;
    if (start >= PATH_MAX || *name_bytes == 0 || *name_bytes > NAME_MAX) {
        errno = ENAMETOOLONG;
        return -1;
    }
    memcpy(room, path, start);
    memcpy(room + start, start ? "" : ".", start ? 1 : 2);
    return (int)syscall(SYS_openat, directory, room, O_PATH | O_DIRECTORY | O_CLOEXEC);
}

/* What is not there gets its name from the directory that it would be in, or, behind a link that leads nowhere,
 * from there. */
static void note_absent(struct sg_note *note, int directory, const char *path, unsigned how)
{
    const char *name;
    size_t name_bytes;
    int at = directory;
    if (!make_room(note))
        return;
    char *target = note->room->target;
    for (int links = 0; links <= LINKS; links++) {
        int parent = open_parent(at, path, path_of(note), &name, &name_bytes);
        int error = errno;
        if (parent < 0 && out_of_descriptors(error))
            append_as_written(note, at, path, how, 0);
        if (at != directory)
            syscall(SYS_close, at);
        if (parent < 0)
            return; /* no such directory: the call fails */
        size_t bytes = name_of_descriptor(parent, path_of(note));
        bytes = bytes ? join(path_of(note), bytes, name, name_bytes) : 0;
        long count = -1;
        if (bytes && !(how & SG_NOFOLLOW))
            count = syscall(SYS_readlinkat, parent, path_of(note) + bytes - name_bytes, target, PATH_MAX - 1);
        if (count <= 0) {
            if (bytes)
                append(note, bytes, how, 0, 'c');
            else
                append_as_written(note, parent, name, how, 0);
            syscall(SYS_close, parent);
            return;
        }
        target[count] = 0;
        path = target;
        at = parent;
    }
    syscall(SYS_close, at);
}

/* ---- what calls do ---- */

void sg_note_none(struct sg_note *note)
{
    *note = (struct sg_note){0};
}

static void content(struct sg_note *note, int directory, const char *path, unsigned how)
{
    struct statx found;
    if (look(directory, path, how & SG_NOFOLLOW ? AT_SYMLINK_NOFOLLOW : 0, &found)) {
        if (errno == ENOENT && how & SG_CREATES)
            note_absent(note, directory, path, how);
        else if (errno == ENOSYS || errno == EPERM) /* forbidden to ask */
            sg_log_gap(SG_GAP_OTHER);
        return;
    }
    if (how & SG_EXCLUSIVE || !found.stx_nlink || (!(how & SG_ATTRIBUTES) && !S_ISREG(found.stx_mode)))
        return; /* the call fails; it has no name; what devices and pipes hold is no file's contents */
    note->inode_key = inode_key(&found);
    if (!sg_known(note->inode_key))
        note_present(note, directory, path, how);
}

void sg_note_content(struct sg_note *note, int directory, const char *path, unsigned how)
{
    int saved = errno;
    sg_note_none(note);
    if (sg_log_wanted())
        content(note, directory, path, how);
    errno = saved;
}

void sg_note_descriptor(struct sg_note *note, int descriptor)
{
    int saved = errno;
    struct statx found;
    sg_note_none(note);
    if (sg_log_wanted() && !look(descriptor, "", AT_EMPTY_PATH, &found) && found.stx_nlink &&
        (S_ISREG(found.stx_mode) || S_ISDIR(found.stx_mode))) {
        note->inode_key = inode_key(&found);
        if (!sg_known(note->inode_key) && make_room(note))
            append(note, name_of_descriptor(descriptor, path_of(note)), 0, 1, 'c');
    }
    errno = saved;
}

void sg_note_name(struct sg_note *note, int directory, const char *path, unsigned how)
{
    int saved = errno;
    struct statx found;
    sg_note_none(note);
    if (sg_log_wanted()) {
        how |= SG_NOFOLLOW;
        if (!look(directory, path, AT_SYMLINK_NOFOLLOW, &found)) {
            if (!(how & SG_EXCLUSIVE))
                note_present(note, directory, path, how);
        } else if (errno == ENOENT && how & SG_CREATES) {
            note_absent(note, directory, path, how);
        }
    }
    errno = saved;
}

int sg_opens_for_change(int flags)
{
    return !(flags & O_PATH) && (flags & O_TMPFILE) != O_TMPFILE && /* which has no name */
           ((flags & O_ACCMODE) != O_RDONLY || flags & (O_CREAT | O_TRUNC));
}

void sg_note_open(struct sg_note *note, int directory, const char *path, int flags)
{
    unsigned how = flags & O_CREAT ? SG_CREATES : 0;
    if (how && flags & O_EXCL)
        how |= SG_EXCLUSIVE | SG_NOFOLLOW;
    if (flags & O_NOFOLLOW)
        how |= SG_NOFOLLOW;
    if (sg_opens_for_change(flags))
        sg_note_content(note, directory, path, how);
    else
        sg_note_none(note);
}

void sg_settle(struct sg_note *note, int succeeded)
{
    int saved = errno;
    if (succeeded) {
        sg_remember(note->inode_key);
        sg_remember(note->path_key);
    } else if (note->bytes) {
        char *piece = note->room->piece;
        sg_piece_seal(piece, note->bytes - SG_PIECE_HEAD - 1, piece[10], '-', piece[12]);
        sg_log_append(piece, note->bytes);
    }
    give_room_back(note);
    errno = saved;
}
