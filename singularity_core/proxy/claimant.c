#include "claimant.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "../transport/process_start.h"

int sg_claimants_open(struct sg_claimants *where, int pid_namespace) {
    struct stat status;
    memset(where, 0, sizeof *where);
    if (pid_namespace <= 0) return 0;
    if (fstat(pid_namespace, &status) != 0) return -errno;
    where->boxed = 1;
    where->device = status.st_dev;
    where->inode = status.st_ino;
    return 0;
}

static int is_in_box(const struct sg_claimants *where, uint32_t pid) {
    char path[64];
    struct stat status;
    snprintf(path, sizeof path, "/proc/%u/ns/pid", pid);
    return stat(path, &status) == 0 && status.st_dev == where->device && status.st_ino == where->inode;
}

/* What a process is called in the innermost of its pid namespaces: the last number of NSpid.  0: it is gone. */
static uint32_t number_inside(uint32_t pid) {
    char path[64], *line = NULL;
    size_t room = 0;
    uint32_t number = 0;
    snprintf(path, sizeof path, "/proc/%u/status", pid);
    FILE *status = fopen(path, "re");
    if (status == NULL) return 0;
    while (number == 0 && getline(&line, &room, status) > 0)
        if (strncmp(line, "NSpid:", 6) == 0) {
            char *last = strrchr(line, '\t');
            number = last == NULL ? 0 : (uint32_t)strtoul(last + 1, NULL, 10);
        }
    free(line);
    fclose(status);
    return number;
}

/* How far a process's CLOCK_BOOTTIME is ahead of the machine's, in ticks, rounded down: CRIU restores into time namespaces where
 * clocks go on from where they were.  `timens_offsets` is about its children, which are in the same one unless it makes another:
 * who does that gets no session. */
static uint64_t ticks_ahead(uint32_t pid) {
    char path[64];
    long long seconds = 0, nanoseconds = 0;
    snprintf(path, sizeof path, "/proc/%u/timens_offsets", pid);
    FILE *offsets = fopen(path, "re");
    if (offsets == NULL) return 0; /* a kernel without such namespaces */
    if (fscanf(offsets, "monotonic %*d %*d boottime %lld %lld", &seconds, &nanoseconds) != 2) seconds = nanoseconds = 0;
    fclose(offsets);
    long long ticks = sysconf(_SC_CLK_TCK);
    return (uint64_t)(seconds * ticks + nanoseconds / (1000000000 / ticks)); /* the kernel keeps nanoseconds from 0 to 10^9 */
}

static int is_the_one(const struct sg_claimants *where, uint32_t outside, uint32_t pid, uint64_t start) {
    if (!is_in_box(where, outside) || number_inside(outside) != pid) return 0;
    uint64_t ours = sg_process_start(outside);
    if (ours == 0 || start == 0) return ours != 0;
    uint64_t rest = start - ours - (ticks_ahead(outside) - ticks_ahead((uint32_t)getpid()));
    return rest + 1 <= 2; /* up to one tick is lost by rounding, here or there */
}

/* The number out here; 0: none. */
static uint32_t translate(const struct sg_claimants *where, uint32_t pid, uint64_t start) {
    uint32_t found = 0;
    DIR *all = opendir("/proc");
    if (all == NULL) return 0;
    for (struct dirent *entry = readdir(all); found == 0 && entry != NULL; entry = readdir(all)) {
        uint32_t outside = (uint32_t)strtoul(entry->d_name, NULL, 10); /* 0 for what is no number */
        if (outside != 0 && is_the_one(where, outside, pid, start)) found = outside;
    }
    closedir(all);
    return found;
}

int sg_claimant_find(const struct sg_claimants *where, uint32_t pid, uint64_t start, struct sg_claimant *found) {
    uint32_t outside = where->boxed ? translate(where, pid, start) : pid;
    if (outside == 0) return -1;
    found->pid = outside;
    found->pidfd = (int)syscall(SYS_pidfd_open, outside, 0);
    if (found->pidfd < 0) return -1;
    /* the number may have become another's before the pidfd was there; now it cannot */
    found->start = sg_process_start(outside);
    int same = where->boxed ? is_the_one(where, outside, pid, start) : found->start == start;
    if (same && found->start != 0) return 0;
    close(found->pidfd);
    found->pidfd = -1;
    return -1;
}

uint32_t sg_claimant_number(const struct sg_claimants *where, uint32_t pid) { return where->boxed ? number_inside(pid) : pid; }

int sg_claimant_lives(const struct sg_claimants *where, uint32_t pid, uint64_t start) {
    return where->boxed ? translate(where, pid, start) != 0 : sg_process_start(pid) == start;
}
