/* The client of ptx-compile: one child process, started at the first module, spoken to over its standard streams.
 *
 * It dies with us (its input ends).  When it dies first, the request is repeated once on a new one; a request that
 * kills two of them is the request's fault, and its error says so. */
#include "device.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define MAX_WORDS 32
#define MAX_REPLY (256u << 20)

extern char **environ;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pid_t child = -1;
static int channel = -1;
static _Atomic uint32_t generation;

uint32_t sgf_service_generation(void)
{
    return atomic_load(&generation);
}

static void stop(void)
{
    if (channel >= 0)
        close(channel);
    channel = -1;
    if (child > 0 && waitpid(child, NULL, WNOHANG) == 0) {
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
    }
    child = -1;
}

static void split(char *command, char *serve, char *words[MAX_WORDS + 2])
{
    int count = 0;
    char *rest = NULL;
    for (char *word = strtok_r(command, " ", &rest); word != NULL && count < MAX_WORDS; word = strtok_r(NULL, " ", &rest))
        words[count++] = word;
    words[count++] = serve;
    words[count] = NULL;
}

/* A socket pair instead of pipes: a write to a dead child gives EPIPE without SIGPIPE (MSG_NOSIGNAL). */
static bool begin(void)
{
    const char *setting = getenv("SINGULARITY_FAKE_PTX_COMPILE");
    char *command = strdup(setting != NULL && *setting != 0 ? setting : "python3 -P -m singularity_backend_fake.ptx");
    char *words[MAX_WORDS + 2], serve[] = "--serve";
    int ends[2];
    if (command == NULL)
        return false;
    split(command, serve, words);
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
        free(command);
        return false;
    }
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    sigset_t none, defaults;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    posix_spawnattr_init(&attributes);
    sigemptyset(&none);
    sigfillset(&defaults);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setsigdefault(&attributes, &defaults);
    posix_spawnattr_setpgroup(&attributes, 0); /* a terminal's Ctrl-C is for the job, which ends us in its own order */
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
    int failed = posix_spawnp(&child, words[0], &actions, &attributes, words, environ);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    if (failed != 0) {
        sgf_say("cannot start the PTX compiler `%s` (%s); set SINGULARITY_FAKE_PTX_COMPILE", words[0], strerror(failed));
        close(ends[0]);
        child = -1;
    } else {
        channel = ends[0];
        atomic_fetch_add(&generation, 1);
    }
    free(command);
    return failed == 0;
}

static bool send_all(const void *data, size_t bytes)
{
    const char *at = data;
    while (bytes > 0) {
        ssize_t n = send(channel, at, bytes, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        at += n;
        bytes -= (size_t)n;
    }
    return true;
}

static bool receive_all(void *data, size_t bytes)
{
    char *at = data;
    while (bytes > 0) {
        ssize_t n = recv(channel, at, bytes, 0);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        at += n;
        bytes -= (size_t)n;
    }
    return true;
}

static bool exchange(uint32_t verb, const void *payload, size_t bytes, uint32_t *status, char **answer)
{
    uint32_t head[2] = { (uint32_t)bytes + 4, verb };
    if (!send_all(head, sizeof head) || !send_all(payload, bytes) || !receive_all(head, sizeof head))
        return false;
    if (head[0] < 4 || head[0] > MAX_REPLY)
        return false;
    *status = head[1];
    *answer = malloc(head[0] - 4 + 1);
    if (*answer == NULL)
        return false;
    if (!receive_all(*answer, head[0] - 4)) {
        free(*answer);
        return false;
    }
    (*answer)[head[0] - 4] = 0;
    return true;
}

CUresult sgf_service_ask(uint32_t verb, const void *payload, size_t bytes, char **answer, uint32_t *answered_by)
{
    uint32_t status = 0;
    bool answered = false;
    if (bytes > UINT32_MAX - 16)
        return CUDA_ERROR_INVALID_IMAGE;
    pthread_mutex_lock(&lock);
    for (int attempt = 0; attempt < 2 && !answered; attempt++) {
        if (channel < 0 && !begin())
            break;
        answered = exchange(verb, payload, bytes, &status, answer);
        if (!answered)
            stop();
    }
    *answered_by = atomic_load(&generation);
    pthread_mutex_unlock(&lock);
    if (answered)
        return (CUresult)status;
    sgf_say("the PTX compiler ended without an answer; run it by hand to see why: ${SINGULARITY_FAKE_PTX_COMPILE:-python3 -m "
            "singularity_backend_fake.ptx} --serve");
    return CUDA_ERROR_JIT_COMPILER_NOT_FOUND;
}
