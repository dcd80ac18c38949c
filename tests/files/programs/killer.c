/* A library that kills its process at the KILL_AT-th system call of the log's library or call of libc behind it: before
 * it if KILL_AT is even, after it if odd.  To be loaded behind the log's library. */
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
static int step;

static void maybe(void)
{
    const char *at = getenv("KILL_AT");
    if (at && atoi(at) == step++)
        kill(getpid(), SIGKILL);
}

#define FORWARD(type, name, parameters, arguments) \
    EXPORT type name parameters \
    { \
        maybe(); \
        type result = ((type(*) parameters)dlsym(RTLD_NEXT, #name)) arguments; \
        maybe(); \
        return result; \
    }

FORWARD(int, rename, (const char *from, const char *to), (from, to))
FORWARD(int, unlink, (const char *path), (path))
FORWARD(int, mkdir, (const char *path, mode_t mode), (path, mode))
FORWARD(int, symlink, (const char *to, const char *path), (to, path))

EXPORT int open(const char *path, int flags, ...)
{
    va_list rest;
    va_start(rest, flags);
    mode_t mode = va_arg(rest, mode_t);
    va_end(rest);
    maybe();
    int result = ((int (*)(const char *, int, ...))dlsym(RTLD_NEXT, "open"))(path, flags, mode);
    maybe();
    return result;
}

EXPORT long syscall(long number, ...)
{
    va_list rest;
    long a[6];
    va_start(rest, number);
    for (int each = 0; each < 6; each++)
        a[each] = va_arg(rest, long);
    va_end(rest);
    maybe();
    long result = ((long (*)(long, ...))dlsym(RTLD_NEXT, "syscall"))(number, a[0], a[1], a[2], a[3], a[4], a[5]);
    maybe();
    return result;
}
