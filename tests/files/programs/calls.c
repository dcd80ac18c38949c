/* Each case changes files by one function of libc, in the current directory, which holds:
 *   old         a file          d/x         a file in a directory         empty/     an empty directory
 *   to-old -> old               to-d -> d               dangling -> made-behind-link
 * A case that goes wrong exits with its line; errno, where a call succeeds, must stay as it was. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>
#include <utime.h>

#define CHECK(condition) do { if (!(condition)) { fprintf(stderr, "line %d: %s\n", __LINE__, strerror(errno)); _exit(99); } } while (0)
#define QUIET(call) do { errno = 4242; CHECK((call) >= 0); CHECK(errno == 4242); } while (0)
#define FAILS(call, why) do { errno = 0; CHECK((call) < 0 && errno == (why)); } while (0)

extern int __open_2(const char *, int), __open64_2(const char *, int), __openat_2(int, const char *, int), __openat64_2(int, const char *, int);
extern int __open(const char *, int, ...), __open64(const char *, int, ...);
extern char **environ;

static void put(int file) { CHECK(file >= 0 && write(file, "data", 4) == 4 && close(file) == 0); }
static void put_stream(FILE *stream) { CHECK(stream && fputs("data", stream) >= 0 && fclose(stream) == 0); }
static int directory(const char *path) { int d = open(path, O_RDONLY | O_DIRECTORY); CHECK(d >= 0); return d; }

static void c_open(void) { int f; QUIET(f = open("new", O_CREAT | O_WRONLY, 0640)); put(f); }
static void c_open64(void) { put(open64("old", O_RDWR)); }
static void c_open_alias(void) { put(__open("new", O_CREAT | O_WRONLY, 0600)); put(__open64("old", O_WRONLY)); }
static void c_openat(void) { int d = directory("d"); put(openat(d, "new", O_CREAT | O_WRONLY, 0600)); put(openat64(d, "x", O_WRONLY)); }
static void c_openat_up(void) { int d = directory("empty"); put(openat(d, "../d/./new", O_CREAT | O_WRONLY, 0600)); }
static void c_fortified(void)
{
    put(__open_2("old", O_WRONLY));
    put(__open64_2("d/x", O_WRONLY));
    put(__openat_2(AT_FDCWD, "old", O_WRONLY));
    put(__openat64_2(AT_FDCWD, "to-old", O_WRONLY));
}
static void c_open_for_reading(void) { CHECK(open("old", O_RDONLY) >= 0 && fopen("d/x", "r") && open("d", O_PATH) >= 0); }
static void c_open_refused(void)
{
    FAILS(open("old", O_CREAT | O_EXCL | O_WRONLY, 0600), EEXIST);
    FAILS(open("d", O_WRONLY), EISDIR);
    FAILS(open("none", O_WRONLY), ENOENT);
    FAILS(open("none/new", O_CREAT | O_WRONLY, 0600), ENOENT);
    FAILS(open("old/new", O_CREAT | O_WRONLY, 0600), ENOTDIR);
    FAILS(open((const char *)8, O_WRONLY), EFAULT);
    FAILS(mkdir("d", 0700), EEXIST);
    FAILS(rename("none", "new"), ENOENT);
    FAILS(rename("old", "d"), EISDIR);
    FAILS(unlink("d"), EISDIR);
    FAILS(rmdir("d"), ENOTEMPTY);
    FAILS(symlink("x", "old"), EEXIST);
    FAILS(open("to-old", O_WRONLY | O_NOFOLLOW), ELOOP);
}
static void c_memory(void)
{
    int file = open("/dev/shm", O_TMPFILE | O_RDWR, 0600);
    CHECK(file >= 0 && close(file) == 0);
    char name[] = "/dev/shm/singularity-test-XXXXXX";
    CHECK((file = mkstemp(name)) >= 0 && ftruncate(file, 9) == 0 && unlink(name) == 0);
}
static void c_devices(void) { put(open("/dev/null", O_WRONLY)); put_stream(fopen("/dev/null", "w")); }
static void c_through_link(void) { put(open("to-old", O_WRONLY | O_TRUNC)); put(open("to-d/new", O_CREAT | O_WRONLY, 0600)); }
static void c_dangling(void) { put(open("dangling", O_CREAT | O_WRONLY, 0600)); }
static void c_link_turned(void)
{
    put(open("to-d/same", O_CREAT | O_WRONLY, 0600));
    CHECK(unlink("to-d") == 0 && symlink("empty", "to-d") == 0);
    put(open("to-d/same", O_CREAT | O_WRONLY, 0600));
}
static void c_creat(void) { put(creat("new", 0600)); put(creat64("old", 0600)); }
static void c_fopen(void) { put_stream(fopen("new", "w")); put_stream(fopen64("old", "r+")); put_stream(fopen("d/x", "a")); }
static void c_freopen(void)
{
    FILE *stream = fopen("old", "r");
    CHECK(stream);
    stream = freopen("new", "w", stream);
    put_stream(freopen64("d/x", "a", stream));
}
static void c_freopen_same(void) { FILE *stream = fopen("old", "r"); CHECK(stream); put_stream(freopen(NULL, "r+", stream)); }
static void c_unnamed(void)
{
    char link[40];
    int file = open(".", O_TMPFILE | O_RDWR, 0600);
    CHECK(file >= 0 && write(file, "data", 4) == 4);
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    QUIET(linkat(AT_FDCWD, link, AT_FDCWD, "new", AT_SYMLINK_FOLLOW));
}
static void c_temporary(void)
{
    char names[][12] = {"aXXXXXX", "bXXXXXX", "cXXXXXX.s", "dXXXXXX.s", "eXXXXXX", "fXXXXXX", "gXXXXXX.s", "hXXXXXX.s", "iXXXXXX"};
    QUIET(mkstemp(names[0])); QUIET(mkstemp64(names[1])); QUIET(mkstemps(names[2], 2)); QUIET(mkstemps64(names[3], 2));
    int file; QUIET(file = mkostemp(names[4], O_CLOEXEC | O_APPEND));
    CHECK(fcntl(file, F_GETFD) == FD_CLOEXEC && fcntl(file, F_GETFL) & O_APPEND);
    QUIET(mkostemp64(names[5], 0)); QUIET(mkostemps(names[6], 2, 0)); QUIET(mkostemps64(names[7], 2, 0));
    CHECK(mkdtemp(names[8]) == names[8]);
    for (int each = 0; each < 9; each++) { struct stat s; CHECK(stat(names[each], &s) == 0 && (s.st_mode & 077) == 0); }
    char wrong[] = "aXXXXX", nowhere[] = "none/XXXXXX";
    FAILS(mkstemp(wrong), EINVAL); FAILS(mkstemp(nowhere), ENOENT);
    CHECK(tmpfile());
}
static void c_rename(void) { QUIET(rename("old", "new")); QUIET(rename("d/x", "to-old")); }
static void c_rename_directory(void) { QUIET(renameat(AT_FDCWD, "d", directory("empty"), "moved")); put(open("empty/moved/x", O_WRONLY)); }
static void c_rename_over(void) { CHECK(rename("d", "empty") == 0 && mkdir("d", 0700) == 0); }
static void c_exchange(void) { CHECK(renameat2(AT_FDCWD, "old", AT_FDCWD, "d", RENAME_EXCHANGE) == 0); }
static void c_noreplace(void) { FAILS(renameat2(AT_FDCWD, "old", AT_FDCWD, "to-old", RENAME_NOREPLACE), EEXIST); CHECK(renameat2(AT_FDCWD, "old", AT_FDCWD, "new", RENAME_NOREPLACE) == 0); }
static void c_remove(void)
{
    QUIET(unlink("to-old")); QUIET(unlinkat(directory("d"), "x", 0)); QUIET(unlinkat(AT_FDCWD, "d", AT_REMOVEDIR));
    CHECK(remove("old") == 0 && remove("empty") == 0);
}
static void c_rmdir(void) { QUIET(rmdir("empty/")); }
static void c_come_and_go(void) { put(open("new", O_CREAT | O_WRONLY, 0600)); CHECK(mkdir("e", 0700) == 0 && rename("new", "e/new") == 0 && unlink("e/new") == 0 && rmdir("e") == 0); }
static void c_links(void)
{
    QUIET(link("old", "hard")); QUIET(linkat(directory("d"), "x", AT_FDCWD, "hard2", 0));
    QUIET(symlink("nowhere", "soft")); QUIET(symlinkat("old", directory("d"), "soft"));
    put(open("hard", O_WRONLY));
}
static void c_directories(void) { QUIET(mkdir("new/", 0750)); QUIET(mkdirat(directory("new"), "deep", 0700)); put(open("new/deep/f", O_CREAT | O_WRONLY, 0600)); }
static void c_pipes(void) { QUIET(mkfifo("p", 0600)); QUIET(mkfifoat(directory("d"), "p", 0640)); QUIET(mknod("q", S_IFIFO | 0600, 0)); QUIET(mknodat(AT_FDCWD, "r", S_IFREG | 0600, 0)); }
static void c_socket(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = "s"};
    struct sockaddr_un hidden = {.sun_family = AF_UNIX, .sun_path = "\0hidden"};
    QUIET(bind(socket(AF_UNIX, SOCK_STREAM, 0), (void *)&address, sizeof address));
    bind(socket(AF_UNIX, SOCK_STREAM, 0), (void *)&hidden, sizeof hidden);
}
static void c_sizes(void) { QUIET(truncate("old", 2)); QUIET(truncate64("to-old", 1)); int f = open("d/x", O_RDWR); QUIET(ftruncate(f, 3)); QUIET(ftruncate64(f, 2)); }
static void c_modes(void) { QUIET(chmod("to-old", 0600)); QUIET(fchmod(open("d/x", O_RDONLY), 0640)); QUIET(fchmodat(AT_FDCWD, "empty", 0711, 0)); }
static void c_fchmod_alone(void) { QUIET(fchmod(open("old", O_RDONLY), 0611)); QUIET(fchmod(directory("d"), 0711)); }
static void c_owners(void)
{
    uid_t me = getuid(); gid_t we = getgid();
    QUIET(chown("to-old", me, we)); QUIET(lchown("to-d", me, we)); QUIET(fchown(open("d/x", O_RDONLY), me, we)); QUIET(fchownat(AT_FDCWD, "empty", me, we, 0));
    QUIET(fchownat(directory("d"), "", me, we, AT_EMPTY_PATH));
}
static void c_times(void)
{
    struct utimbuf seconds = {1, 1};
    struct timeval micro[2] = {{2, 0}, {2, 0}};
    struct timespec nano[2] = {{3, 0}, {3, 0}};
    QUIET(utime("old", &seconds)); QUIET(utimes("d/x", micro)); QUIET(lutimes("to-old", micro)); QUIET(utimensat(AT_FDCWD, "to-d", nano, AT_SYMLINK_NOFOLLOW));
}
static void c_times_of_open(void)
{
    struct timeval micro[2] = {{2, 0}, {2, 0}};
    struct timespec nano[2] = {{3, 0}, {3, 0}};
    QUIET(futimes(open("old", O_RDONLY), micro)); QUIET(futimens(open("d/x", O_RDONLY), nano));
    QUIET(futimesat(directory("empty"), NULL, micro)); QUIET(futimesat(directory("d"), "../to-old", micro));
}
static void c_xattrs(void)
{
    QUIET(setxattr("old", "user.a", "1", 1, 0)); QUIET(fsetxattr(open("d/x", O_RDONLY), "user.b", "2", 1, 0)); QUIET(lsetxattr("empty", "user.c", "3", 1, 0));
}
static void c_no_xattrs(void)
{
    CHECK(setxattr("old", "user.a", "1", 1, 0) == 0);
    QUIET(removexattr("old", "user.a")); FAILS(lremovexattr("d/x", "user.a"), ENODATA); FAILS(fremovexattr(open("empty", O_RDONLY), "user.a"), ENODATA);
}
static void c_mapped(void)
{
    int file = open("old", O_RDWR);
    char *at = mmap(NULL, 3, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    CHECK(at != MAP_FAILED && close(file) == 0);
    *at = 'M';
}
static void c_copied(void) { int from = open("old", O_RDONLY), to = open("d/x", O_WRONLY); CHECK(copy_file_range(from, NULL, to, NULL, 3, 0) == 3); }
static void c_elsewhere(void) { CHECK(chdir("d") == 0); put(open("new", O_CREAT | O_WRONLY, 0600)); put(open("../old", O_WRONLY)); }
static void c_gone_directory(void)
{
    CHECK(mkdir("e", 0700) == 0 && chdir("e") == 0 && rmdir("../e") == 0);
    FAILS(open("new", O_CREAT | O_WRONLY, 0600), ENOENT);
    put(open("/proc/self/cwd/../old", O_WRONLY)); /* kernel: from the removed one's parent */
}
static void c_busy(void) { for (int turn = 0; turn < 1000; turn++) put(open("old", O_WRONLY | O_APPEND)); }

static void in_child(pid_t child) { int status; CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0); }
static void c_fork(void) { pid_t child = fork(); if (child == 0) { put(open("new", O_CREAT | O_WRONLY, 0600)); _exit(0); } in_child(child); put(open("old", O_WRONLY)); }
static void c_vfork(void) { pid_t child = vfork(); if (child == 0) { int f = open("new", O_CREAT | O_WRONLY, 0600); _exit(f < 0); } in_child(child); put(open("new", O_WRONLY)); }
static void c_closed(void)
{
    int place = fcntl(directory("."), F_DUPFD, 700);
    CHECK(place >= 700 && fchdir(place) == 0);
    closefrom(0);
    CHECK(open("new", O_CREAT | O_WRONLY, 0600) == 0); /* the lowest, as without us */
    CHECK(unlink("old") == 0);
}
static void *writer(void *name) { for (int turn = 0; turn < 200; turn++) put(open(turn & 1 ? name : "shared", O_CREAT | O_WRONLY, 0600)); return NULL; }
static void c_threads(void)
{
    static char names[4][3] = {"t0", "t1", "t2", "t3"};
    pthread_t threads[4];
    for (int each = 0; each < 4; each++) CHECK(pthread_create(&threads[each], NULL, writer, names[each]) == 0);
    for (int each = 0; each < 4; each++) CHECK(pthread_join(threads[each], NULL) == 0);
}
static void on_signal(int number) { (void)number; put(open("new", O_CREAT | O_WRONLY, 0600)); }
static void c_signal(void) { signal(SIGUSR1, on_signal); raise(SIGUSR1); }
static void on_small_stack(int number)
{
    char name[] = "aXXXXXX";
    (void)number;
    put(open("to-d/made", O_CREAT | O_WRONLY, 0600)); put(open("dangling", O_CREAT | O_WRONLY, 0600)); put(open("old", O_WRONLY));
    QUIET(rename("old", "new")); QUIET(mkstemp(name)); FAILS(mkdir("d", 0700), EEXIST); FAILS(rename("new", "empty"), EISDIR);
}
static void c_small_stack(void)
{
    size_t page = 4096, size = (getauxval(AT_MINSIGSTKSZ) + 2 * page - 1) / page * page; /* a page more than the kernel takes */
    char *at = mmap(NULL, size + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    stack_t stack = {.ss_sp = at + page, .ss_size = size};
    struct sigaction action = {.sa_handler = on_small_stack, .sa_flags = SA_ONSTACK};
    CHECK(at != MAP_FAILED && mprotect(at, page, PROT_NONE) == 0 && sigaltstack(&stack, NULL) == 0);
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0 && raise(SIGUSR1) == 0);
}
static void c_spawn(void)
{
    posix_spawn_file_actions_t actions;
    char *arguments[] = {"true", NULL};
    pid_t child;
    for (int turn = 0; turn < 3; turn++) {
        CHECK(posix_spawn_file_actions_init(&actions) == 0);
        if (turn == 1) CHECK(posix_spawn_file_actions_addchdir_np(&actions, "d") == 0);
        if (turn == 2) CHECK(posix_spawn_file_actions_addfchdir_np(&actions, directory("empty")) == 0);
        CHECK(posix_spawn_file_actions_addopen(&actions, 1, "spawned", O_CREAT | O_WRONLY, 0600) == 0);
        CHECK(posix_spawnp(&child, "true", &actions, NULL, arguments, environ) == 0);
        in_child(child);
        posix_spawn_file_actions_destroy(&actions);
    }
}
static void c_environment_lost(void) { for (char **each = environ; *each; each++) memset(*each, 'x', strlen(*each)); clearenv(); put(open("new", O_CREAT | O_WRONLY, 0600)); }
static void c_missed(void) { put((int)syscall(SYS_openat, AT_FDCWD, "new", O_CREAT | O_WRONLY, 0600)); } /* not by libc's functions */

/* ---- what the log cannot say ---- */
static void g_descriptors(void) { while (open("/dev/null", O_RDONLY) >= 0) {} CHECK(errno == EMFILE && rename("old", "new") == 0); }
static void g_file_size(void) { struct rlimit none = {1, 1}; CHECK(setrlimit(RLIMIT_FSIZE, &none) == 0 && rename("old", "new") == 0); }
static void g_chroot(void) { FAILS(chroot("none"), ENOENT); }

#define CASE(name) {#name, name}
static const struct { const char *name; void (*run)(void); } cases[] = {
    CASE(c_open), CASE(c_open64), CASE(c_open_alias), CASE(c_openat), CASE(c_openat_up), CASE(c_fortified), CASE(c_open_for_reading),
    CASE(c_open_refused), CASE(c_devices), CASE(c_memory), CASE(c_through_link), CASE(c_dangling), CASE(c_link_turned), CASE(c_creat), CASE(c_fopen),
    CASE(c_freopen), CASE(c_freopen_same), CASE(c_unnamed), CASE(c_temporary), CASE(c_rename), CASE(c_rename_directory),
    CASE(c_rename_over), CASE(c_exchange), CASE(c_noreplace), CASE(c_remove), CASE(c_rmdir), CASE(c_come_and_go), CASE(c_links),
    CASE(c_directories), CASE(c_pipes), CASE(c_socket), CASE(c_sizes), CASE(c_modes), CASE(c_fchmod_alone), CASE(c_owners), CASE(c_times),
    CASE(c_times_of_open), CASE(c_xattrs), CASE(c_no_xattrs), CASE(c_mapped), CASE(c_copied), CASE(c_elsewhere), CASE(c_gone_directory), CASE(c_busy),
    CASE(c_fork), CASE(c_vfork), CASE(c_closed), CASE(c_threads), CASE(c_signal), CASE(c_small_stack), CASE(c_spawn), CASE(c_environment_lost), CASE(c_missed),
    CASE(g_descriptors), CASE(g_file_size), CASE(g_chroot),
};

int main(int count, char **arguments)
{
    for (size_t each = 0; each < sizeof cases / sizeof *cases; each++) {
        if (count < 2)
            puts(cases[each].name);
        else if (strcmp(cases[each].name, arguments[1]) == 0)
            return cases[each].run(), fflush(stderr), _exit(0), 0;
    }
    return count < 2 ? 0 : 98;
}
