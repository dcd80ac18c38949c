/* Times calls that open and make files:  file_calls DIRECTORY CALLS  prints nanoseconds per call, a line each. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

static void open_close(const char *path, int flags)
{
    int file = open(path, flags, 0600);
    if (file < 0)
        exit(1);
    close(file);
}

int main(int count, char **arguments)
{
    if (count != 3 || chdir(arguments[1]))
        return 2;
    int calls = atoi(arguments[2]);
    char name[32];
    open_close("file", O_CREAT | O_WRONLY);
    double begin = now();
    for (int each = 0; each < calls; each++)
        open_close("file", O_RDONLY);
    printf("read %f\n", (now() - begin) / calls);
    begin = now();
    for (int each = 0; each < calls; each++)
        open_close("file", O_WRONLY);
    printf("write %f\n", (now() - begin) / calls);
    begin = now();
    for (int each = 0; each < calls; each++) {
        snprintf(name, sizeof name, "new-%d", each);
        open_close(name, O_CREAT | O_WRONLY);
    }
    printf("create %f\n", (now() - begin) / calls);
    begin = now();
    for (int each = 0; each < calls; each++)
        if (rename(each & 1 ? "two" : "file", each & 1 ? "file" : "two"))
            exit(1);
    printf("rename %f\n", (now() - begin) / calls);
    begin = now();
    for (int each = 0; each < calls; each++) {
        snprintf(name, sizeof name, "new-%d", each);
        if (unlink(name))
            exit(1);
    }
    printf("unlink %f\n", (now() - begin) / calls);
    return 0;
}
