/* Who a process id means: with the time at which it started, for ids are used again. */
#ifndef SG_PROCESS_START_H
#define SG_PROCESS_START_H

#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Field 22 of /proc/<pid>/stat, counted after the last ')': the name may hold anything.
 * 0: no such process, or only its remains, which wait for their parent. */
static inline uint64_t sg_process_start(uint32_t pid) {
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%u/stat", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    ssize_t got = read(fd, text, sizeof text - 1);
    close(fd);
    if (got <= 0) return 0;
    text[got] = 0;
    char *at = strrchr(text, ')');
    if (at == NULL || at[1] == 0 || at[2] == 'Z' || at[2] == 'X') return 0;
    for (int field = 2; at != NULL && field < 22; field++) at = strchr(at + 1, ' ');
    return at == NULL ? 0 : strtoull(at + 1, NULL, 10);
}

#endif
