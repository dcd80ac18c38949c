/* A few changes, each of which may be the last. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

int main(void)
{
    char name[] = "tmpXXXXXX";
    int file = open("new", O_CREAT | O_WRONLY, 0600);
    int ok = file >= 0 && write(file, "1", 1) == 1 && mkdir("e", 0700) == 0 && rename("new", "e/new") == 0;
    ok = ok && mkstemp(name) >= 0 && unlink("old") == 0 && rename("d", "moved") == 0 && symlink("x", "soft") == 0;
    return !ok;
}
