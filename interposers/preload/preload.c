/* libsingularity_preload.so: programs that open NCCL or the driver by a path of their own get ours.
 *
 * LD_LIBRARY_PATH decides what `libnccl.so.2` means, but not what `/some/wheel/nvidia/nccl/lib/libnccl.so.2` means, and
 * NVIDIA's own path finder opens by such paths.  The library beside this one is opened instead.
 *
 * glibc looks at the return address of dlopen to know whose RUNPATH and namespace count.  So the last thing that these
 * wrappers do is a jump (a sibling call: this file is always compiled with optimisation), and glibc sees the caller. */
#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

typedef void *(*open_function)(const char *, int);
typedef void *(*open_in_function)(Lmid_t, const char *, int);

EXPORT void *dlopen(const char *file, int mode);
EXPORT void *dlmopen(Lmid_t space, const char *file, int mode);

/* Looked up when first used: another library's constructor may come before ours. */
static void *_Atomic real_open, *_Atomic real_open_in;

static __attribute__((noinline)) void *next(void *_Atomic *known, const char *name)
{
    void *found = atomic_load_explicit(known, memory_order_relaxed);
    if (!found) {
        found = dlsym(RTLD_NEXT, name);
        atomic_store_explicit(known, found, memory_order_relaxed);
    }
    return found;
}

/* `library` alone, with its major `version`, or with minor numbers behind that: libnccl.so.2.27.5. */
static int is_named(const char *name, const char *library, const char *version)
{
    size_t length = strlen(library), more = strlen(version);
    if (strncmp(name, library, length) != 0)
        return 0;
    const char *rest = name + length, *minor = rest + more;
    if (*rest == 0)
        return 1;
    return strncmp(rest, version, more) == 0 && (*minor == 0 || (*minor == '.' && minor[strspn(minor, ".0123456789")] == 0));
}

static char nccl[PATH_MAX], driver[PATH_MAX]; /* ours; empty: not there */
static pthread_once_t finding = PTHREAD_ONCE_INIT;

static void find(char path[PATH_MAX], const char *directory, int length, const char *name)
{
    if (snprintf(path, PATH_MAX, "%.*s/%s", length, directory, name) >= PATH_MAX || access(path, R_OK))
        path[0] = 0;
}

static void find_ours(void)
{
    Dl_info self;
    if (!dladdr(nccl, &self) || !self.dli_fname)
        return;
    const char *end = strrchr(self.dli_fname, '/');
    find(nccl, end ? self.dli_fname : ".", end ? (int)(end - self.dli_fname) : 1, "libnccl.so.2");
    find(driver, end ? self.dli_fname : ".", end ? (int)(end - self.dli_fname) : 1, "libcuda.so.1");
}

static __attribute__((noinline)) const char *redirected(const char *file)
{
    const char *slash = file ? strrchr(file, '/') : NULL;
    if (!slash)
        return file;
    const char *ours = is_named(slash + 1, "libnccl.so", ".2") ? nccl : is_named(slash + 1, "libcuda.so", ".1") ? driver : NULL;
    if (!ours)
        return file;
    pthread_once(&finding, find_ours);
    return *ours ? ours : file;
}

void *dlopen(const char *file, int mode)
{
    open_function real = (open_function)next(&real_open, "dlopen");
    return real(redirected(file), mode);
}

/* Other namespaces are the program's own affair. */
void *dlmopen(Lmid_t space, const char *file, int mode)
{
    open_in_function real = (open_in_function)next(&real_open_in, "dlmopen");
    return real(space, space == LM_ID_BASE ? redirected(file) : file, mode);
}
