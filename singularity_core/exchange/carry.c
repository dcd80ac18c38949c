/* Communicators change proxies.  At rest nothing of them is in any proxy that their rosters do not say: each operation that was
 * issued is complete, so one number per channel is all.  What a proxy had offered to its peers is done with, and starts anew. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "board.h"

void sg_roster_each_pair(const struct sg_roster_map *map, sg_pair_visitor each, void *argument) {
    uint32_t ranks = map->roster->ranks;
    uint64_t size = sizeof(struct sg_roster_pair), start = (uint64_t)((uint8_t *)map->pairs - (uint8_t *)map->roster);
    for (off_t at = (off_t)start; (at = lseek(map->file, at, SEEK_DATA)) >= 0;) {
        off_t hole = lseek(map->file, at, SEEK_HOLE);
        uint64_t first = ((uint64_t)at - start + size - 1) / size, end = ((uint64_t)hole - start) / size;
        for (uint64_t i = first; i < end && i < (uint64_t)ranks * ranks; i++) each(argument, map, (uint32_t)(i / ranks), (uint32_t)(i % ranks));
        at = hole;
    }
}

struct carry { struct sg_roster_map map; int error; };

static void carry_pair(void *argument, const struct sg_roster_map *old, uint32_t from, uint32_t to) {
    struct carry *new = argument;
    uint64_t at = (uint64_t)from * old->roster->ranks + to;
    if (new->error == 0) new->error = sg_roster_back_pair(&new->map, from, to);
    if (new->error != 0) return;
    new->map.pairs[at] = old->pairs[at];
    new->map.pairs[at].send_wants = new->map.pairs[at].receive_wants = 0;
    new->map.pairs[at].target = SG_NO_TARGET;
}

static int carry_members(const struct sg_roster_map *old, const struct sg_roster_map *new, const uint32_t *proxy_of_rank) {
    for (uint32_t i = 0; i < old->roster->ranks; i++) {
        struct sg_roster_member *member = &new->members[i];
        *member = old->members[i];
        if (member->state == SG_MEMBER_ABSENT) continue;
        if (member->global_rank >= SG_BOARD_RANKS) return -EPROTO;
        if (member->state == SG_MEMBER_JOINING) return -EAGAIN;
        member->proxy = proxy_of_rank[member->global_rank];
        member->wants = 0;
    }
    return 0;
}

static int carry_one(const char *from, const char *name, const char *to, const uint32_t *proxy_of_rank) {
    struct sg_roster_map old;
    struct carry new = {0};
    int error = sg_roster_look(from, name, &old);
    if (error != 0) return error == -ENOENT ? 0 : error; /* the last member has left it */
    error = sg_roster_open(to, old.roster->key, old.roster->ranks, &new.map);
    if (error == 0) {
        *new.map.roster = *old.roster;
        new.map.roster->target = SG_NO_TARGET;
        error = carry_members(&old, &new.map, proxy_of_rank);
        if (error == 0) sg_roster_each_pair(&old, carry_pair, &new);
        if (error == 0) error = new.error;
        sg_roster_close(&new.map);
    }
    sg_roster_close(&old);
    return error;
}

int sg_rosters_carry(const char *from, const char *to, const uint32_t *proxy_of_rank, char why[256]) {
    DIR *folder = opendir(from);
    int error = folder == NULL ? -errno : 0;
    for (struct dirent *entry; error == 0 && (entry = readdir(folder)) != NULL;)
        if (strncmp(entry->d_name, "c-", 2) == 0) error = carry_one(from, entry->d_name, to, proxy_of_rank);
    if (folder != NULL) closedir(folder);
    if (error == -EAGAIN) snprintf(why, 256, "a rank is just joining a communicator");
    else if (error != 0) snprintf(why, 256, "the communicators in %.100s cannot be taken to %.80s: %s", from, to, strerror(-error));
    return error;
}
