/* Appending to the job's log of files.
 *
 * A program may do anything to its descriptors, memory and environment, and any of its processes may be killed or
 * frozen anywhere.  So nothing is kept open (a descriptor would be closed by closefrom, or be in the way), nothing is
 * locked (a child of fork would inherit the lock), and each append is one write with O_APPEND.  A write that SIGKILL
 * interrupts leaves the beginning of a piece; as NUL begins and ends every piece and occurs in none, and each has a
 * checksum, readers go on with the next.
 *
 * Own system calls go through syscall(2): libc's open and close are cancellation points, and what we wrap mostly is
 * not. */
#include "interposers/files/log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define VARIABLE "SINGULARITY_FILE_LOG="

/* ---- where it is ---- */

static char kept[PATH_MAX]; /* a copy: programs overwrite their environment (setproctitle) */
static _Atomic int settled; /* whether `kept` is final */

static const char *in_environment(void)
{
    for (char **each = environ; each && *each; each++)
        if (strncmp(*each, VARIABLE, sizeof VARIABLE - 1) == 0)
            return *each + sizeof VARIABLE - 1;
    return NULL;
}

static __attribute__((constructor)) void keep_path(void)
{
    const char *path = in_environment();
    if (path && *path == '/' && strlen(path) < sizeof kept)
        memcpy(kept, path, strlen(path) + 1);
    atomic_store_explicit(&settled, 1, memory_order_release);
}

/* What a program runs before libc's constructors (.preinit_array) has no environ yet; it has no threads either. */
static const char *in_proc(void)
{
    static char variable[PATH_MAX + sizeof VARIABLE];
    char part[512];
    size_t filled = 0;
    long count, file = syscall(SYS_openat, AT_FDCWD, "/proc/self/environ", O_RDONLY | O_CLOEXEC);
    const char *found = NULL;
    while (file >= 0 && !found && (count = syscall(SYS_read, file, part, sizeof part)) > 0)
        for (long at = 0; at < count && !found; at++) {
            if (filled < sizeof variable)
                variable[filled++] = part[at];
            if (part[at])
                continue;
            if (!variable[filled - 1] && strncmp(variable, VARIABLE, sizeof VARIABLE - 1) == 0)
                found = variable + sizeof VARIABLE - 1;
            filled = 0;
        }
    if (file >= 0)
        syscall(SYS_close, file);
    return found;
}

/* Constructors of other libraries come before ours. */
static const char *log_path(void)
{
    if (atomic_load_explicit(&settled, memory_order_acquire))
        return *kept ? kept : NULL;
    const char *path = environ ? in_environment() : in_proc();
    return path && *path == '/' ? path : NULL;
}

int sg_log_wanted(void)
{
    return log_path() != NULL;
}

/* ---- pieces ---- */

static uint32_t crc32(const char *bytes, size_t count)
{
    static const uint32_t nibbles[16] = {
        0x00000000, 0x1db71064, 0x3b6e20c8, 0x26d930ac, 0x76dc4190, 0x6b6b51f4, 0x4db26158, 0x5005713c,
        0xedb88320, 0xf00f9344, 0xd6d6a3e8, 0xcb61b38c, 0x9b64c2b0, 0x86d3d2d4, 0xa00ae278, 0xbdbdf21c};
    uint32_t crc = ~0u;
    for (size_t at = 0; at < count; at++) {
        crc ^= (unsigned char)bytes[at];
        crc = nibbles[crc & 15] ^ crc >> 4;
        crc = nibbles[crc & 15] ^ crc >> 4;
    }
    return ~crc;
}

void sg_piece_seal(char *piece, size_t path_bytes, char kind, char state, char form)
{
    const char tail[] = {' ', kind, state, form, ' '};
    piece[0] = 0;
    memcpy(piece + SG_PIECE_HEAD - sizeof tail, tail, sizeof tail);
    piece[SG_PIECE_HEAD + path_bytes] = 0;
    uint32_t crc = crc32(piece + 10, SG_PIECE_HEAD - 10 + path_bytes);
    for (int digit = 0; digit < 8; digit++)
        piece[1 + digit] = "0123456789abcdef"[crc >> (28 - 4 * digit) & 15];
}

/* Beyond the limit on file sizes a write would not fail but end the process (SIGXFSZ). */
static int may_grow(int log, size_t bytes)
{
    struct rlimit limit;
    struct stat now;
    if (getrlimit(RLIMIT_FSIZE, &limit) || limit.rlim_cur == RLIM_INFINITY)
        return 1;
    return fstat(log, &now) == 0 && (rlim_t)now.st_size + bytes <= limit.rlim_cur;
}

void sg_log_append(const char *pieces, size_t bytes)
{
    const char *path = log_path();
    long log;
    do
        log = path ? syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_APPEND | O_CLOEXEC | O_NOFOLLOW) : -1;
    while (log < 0 && errno == EINTR && path);
    if (log < 0) {
        if (path && errno != ENOENT) /* the job is over, and what is left of it dies soon */
            sg_log_gap(errno == EMFILE || errno == ENFILE ? SG_GAP_DESCRIPTORS : SG_GAP_OTHER);
        return;
    }
    long written = -1;
    if (may_grow((int)log, bytes))
        do
            written = syscall(SYS_write, log, pieces, bytes);
        while (written < 0 && errno == EINTR);
    if (written != (long)bytes)
        sg_log_gap(SG_GAP_FULL);
    syscall(SYS_close, log);
}

void sg_log_gap(enum sg_gap why)
{
    struct stat now;
    const char *path = log_path();
    if (path && fstatat(AT_FDCWD, path, &now, AT_SYMLINK_NOFOLLOW) == 0 && (now.st_mode & why) == 0)
        syscall(SYS_fchmodat, AT_FDCWD, path, (now.st_mode & 0777) | why);
}

/* ---- what is known ---- */

/* One word per key, so that threads, signal handlers and children of vfork may use it at any moment.  A child of
 * fork has a copy: what its parent appended need not be appended again. */
enum { KNOWN = 4096, PROBES = 8 };
static _Atomic uint64_t known[KNOWN];

uint64_t sg_hash(uint64_t seed, const void *bytes, size_t count)
{
    uint64_t hash = seed ^ 0xcbf29ce484222325u;
    for (size_t at = 0; at < count; at++)
        hash = (hash ^ ((const unsigned char *)bytes)[at]) * 0x100000001b3u;
    hash = (hash ^ hash >> 30) * 0xbf58476d1ce4e5b9u;
    hash = (hash ^ hash >> 27) * 0x94d049bb133111ebu;
    hash ^= hash >> 31;
    return hash ? hash : 1;
}

int sg_known(uint64_t key)
{
    if (!key)
        return 0;
    for (int probe = 0; probe < PROBES; probe++)
        if (atomic_load_explicit(&known[(key + (unsigned)probe) % KNOWN], memory_order_relaxed) == key)
            return 1;
    return 0;
}

void sg_remember(uint64_t key)
{
    if (!key || sg_known(key))
        return;
    for (int probe = 0; probe < PROBES; probe++) {
        uint64_t none = 0;
        if (atomic_compare_exchange_strong(&known[(key + (unsigned)probe) % KNOWN], &none, key))
            return;
    }
    atomic_store_explicit(&known[key % KNOWN], key, memory_order_relaxed); /* who was there is appended once more */
}
