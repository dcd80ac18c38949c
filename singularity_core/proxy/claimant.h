/* Who claims a session: the process behind the number that a rank wrote into the door.
 *
 * A rank in a job box knows itself by another number, and (once it was restored) counts its start on another clock, than its
 * proxy, which stays outside.  Only the kernel is asked to translate: the claim itself is untrusted, and what it can name is a
 * process of this job's box, and no other. */
#ifndef SG_CLAIMANT_H
#define SG_CLAIMANT_H

#include <stdint.h>
#include <sys/types.h>

struct sg_claimants { /* where a job's ranks are */
    int boxed;
    dev_t device; /* with inode: their pid namespace */
    ino_t inode;
};

struct sg_claimant { /* as this process sees it */
    uint32_t pid;
    uint64_t start; /* process_start.h */
    int pidfd;
};

/* `pid_namespace`: a descriptor of theirs, to be kept open so that the inode means nothing else; <= 0: they are not boxed.
 * 0, or -errno. */
int sg_claimants_open(struct sg_claimants *where, int pid_namespace);

/* 0, and a pidfd that the caller closes; -1: there is no such process, or not any more.  With `start` 0 a process of the box has
 * its number alone: for one that was restored, which has started anew. */
int sg_claimant_find(const struct sg_claimants *where, uint32_t pid, uint64_t start, struct sg_claimant *found);

/* What a process that we see as `pid` is called in there. */
uint32_t sg_claimant_number(const struct sg_claimants *where, uint32_t pid);

int sg_claimant_lives(const struct sg_claimants *where, uint32_t pid, uint64_t start);

#endif
