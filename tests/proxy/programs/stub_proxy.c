/* stub_proxy DIRECTORY DRIVER [DIRECTORY...]: a proxy without Python, with a door in each directory, over the driver library
 * and HAL that it is linked for (proxy_hal).  Ends with SIGTERM, or when its stdin is closed.
 * Lines on stdin: "export RANK FILE" and "import RANK FILE", for the replay log; each answers one line.
 * STUB_EXCHANGE: the directory of a job whose only proxy it is.  STUB_RESUMES: it takes over, once "resume" comes on stdin; 2: from
 * a checkpoint.  STUB_BOXED: ranks are looked for in this pid namespace as if it were another. */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "singularity_core/proxy/session.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/lsan_interface.h>
#endif

const struct sg_hal_table *proxy_hal(const char *driver); /* NULL: it has none */
static sg_server *server;
static uint32_t doors;
static int stop_pipe[2]; /* its end ends the server, as a parent's does */

static void on_term(int number) {
    (void)number;
    sg_server_stop(server);
}

static uint8_t buffer[1 << 20];

static void command(const char *what, unsigned rank, const char *path) {
    char why[256] = "no such session";
    sg_session *session = NULL;
    for (uint32_t slot = 0; slot < doors * SG_DOOR_SLOTS && session == NULL; slot++) {
        session = sg_server_hold(server, slot);
        if (session == NULL || session->rank == rank) continue;
        sg_server_let_go(session);
        session = NULL;
    }
    int exporting = strcmp(what, "export") == 0, error = -1;
    FILE *file = fopen(path, exporting ? "wb" : "rb");
    if (session != NULL && file != NULL && exporting) {
        uint64_t bytes = sg_session_log_export(session, buffer, sizeof buffer);
        error = bytes <= sizeof buffer && fwrite(buffer, 1, bytes, file) == bytes ? 0 : -1;
    } else if (session != NULL && file != NULL) {
        error = sg_session_log_import(session, buffer, fread(buffer, 1, sizeof buffer, file), why);
    }
    if (file != NULL) fclose(file);
    if (session != NULL) sg_server_let_go(session);
    printf(error == 0 ? "done\n" : "failed: %s\n", why);
    fflush(stdout);
}

static void *commands(void *argument) {
    char line[4400], what[16], path[4096];
    unsigned rank;
    (void)argument;
    while (fgets(line, sizeof line, stdin) != NULL)
        if (sscanf(line, "%15s %u %4095s", what, &rank, path) == 3) command(what, rank, path);
    close(stop_pipe[1]);
    return NULL;
}

/* As the real one does (process.py). */
static int resume(void) {
    char line[16], why[256];
    puts("prepared");
    fflush(stdout);
    if (fgets(line, sizeof line, stdin) == NULL) return 0;
    if (sg_server_resume(server, why) == 0) return 1;
    fprintf(stderr, "stub_proxy: %s\n", why);
    return 0;
}

int main(int argc, char **argv) {
    char why[256];
    pthread_t thread;
    sigset_t term;
    if (argc < 3 || pipe2(stop_pipe, O_CLOEXEC) != 0) return 2; /* else a driver's children would keep it open */
    const char *driver = argv[2];
    argv[2] = argv[1];
    doors = (uint32_t)argc - 2;
    struct sg_server_options options = {.struct_size = sizeof options, .directory_count = doors,
                                        .directories = (const char *const *)argv + 2, .driver_library = driver,
                                        .hal = proxy_hal(driver), .stop_fds = {stop_pipe[0]}, .exchange = getenv("STUB_EXCHANGE"),
                                        .proxy_count = 1};
    options.resumes = getenv("STUB_RESUMES") == NULL ? 0 : (uint32_t)atoi(getenv("STUB_RESUMES"));
    options.pid_namespace = getenv("STUB_BOXED") == NULL ? 0 : open("/proc/self/ns/pid", O_RDONLY | O_CLOEXEC);
    server = sg_server_create(&options, why);
    if (server == NULL) {
        fprintf(stderr, "stub_proxy: %s\n", why);
        return 69;
    }
    if (options.resumes && !resume()) {
        sg_server_destroy(server);
        _exit(69);
    }
    sigemptyset(&term);
    sigaddset(&term, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &term, NULL);
    if (pthread_create(&thread, NULL, commands, NULL) != 0 || pthread_detach(thread) != 0) return 1;
    signal(SIGTERM, on_term);
    pthread_sigmask(SIG_UNBLOCK, &term, NULL);
    puts("ready");
    fflush(stdout);
    int error = sg_server_run(server);
    sg_server_destroy(server);
    fflush(stdout);
#if defined(__SANITIZE_ADDRESS__)
    __lsan_do_leak_check(); /* _exit does not */
#endif
    _exit(error == 0 ? 0 : 1); /* the command thread may still wait for a line */
}
