/* Does what its standard input says, a line each, in the current directory; what fails is passed over. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void write_to(const char *path, int flags, const char *text)
{
    int file = open(path, O_WRONLY | flags, 0640);
    if (file >= 0 && write(file, text, strlen(text)) < 0)
        exit(1);
    if (file >= 0)
        close(file);
}

static int twice(const char *what, const char *one, const char *two)
{
    if (strcmp(what, "rename") == 0)
        return rename(one, two);
    if (strcmp(what, "exchange") == 0)
        return renameat2(AT_FDCWD, one, AT_FDCWD, two, RENAME_EXCHANGE);
    if (strcmp(what, "link") == 0)
        return link(one, two);
    if (strcmp(what, "symlink") == 0)
        return symlink(one, two);
    exit(1);
}

static int once(const char *what, const char *path)
{
    if (strcmp(what, "create") == 0)
        write_to(path, O_CREAT | O_TRUNC, "created");
    else if (strcmp(what, "append") == 0)
        write_to(path, O_APPEND, "appended");
    else if (strcmp(what, "truncate") == 0)
        return truncate(path, 3);
    else if (strcmp(what, "mode") == 0)
        return chmod(path, 0751);
    else if (strcmp(what, "remove") == 0)
        return remove(path);
    else if (strcmp(what, "mkdir") == 0)
        return mkdir(path, 0750);
    else
        exit(1);
    return 0;
}

int main(void)
{
    char what[20], one[200], two[200], line[500];
    while (fgets(line, sizeof line, stdin)) {
        int words = sscanf(line, "%19s %199s %199s", what, one, two), result = 0;
        result = words == 3 ? twice(what, one, two) : once(what, one);
        (void)result; /* refused as often as not */
    }
    return 0;
}
