/* The common parent of a job's ranks in their box.
 *
 * CRIU dumps a tree of processes, so the ranks need a common root that is dumped with them.  The process that started them
 * (starter.py) becomes this program by exec: its children stay, and what is left of it in each checkpoint is a few pages.
 * It knows nobody outside: how its children end it writes into a named pipe, which a restore opens again.  It never ends by
 * itself, not even alone: then the box would be taken for broken.
 *
 * usage: keeper FD */
#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

struct ending { int32_t pid, status; };

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    int pipe = atoi(argv[1]);
    int ignored[] = {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGPIPE};
    for (unsigned i = 0; i < sizeof ignored / sizeof *ignored; i++) signal(ignored[i], SIG_IGN);
    for (;;) {
        struct ending ending;
        int status;
        ending.pid = waitpid(-1, &status, 0);
        ending.status = status;
        if (ending.pid < 0 && errno == EINTR) continue;
        if (ending.pid < 0 && errno != ECHILD) return 1;
        if (ending.pid < 0) { /* without children there will never be one */
            pause();
            continue;
        }
        while (write(pipe, &ending, sizeof ending) < 0) /* below PIPE_BUF: whole or not at all */
            if (errno != EINTR) return 1;
    }
}
