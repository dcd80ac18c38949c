/* One door of the proxy, and who has come through it.
 *
 * A door belongs to an ordinal that ranks see, not to a device: ranks that share a device come through doors of their own to
 * the same proxy, so that the sessions of one of them can be handed to another proxy (decision 0012).  What belongs to the
 * device is the server's: the residency, the exchange, and that a window has one session, whatever door it came through.
 * The server's loop alone changes doorways; workers and undertakers only raise flags and poke it. */
#ifndef SG_DOORWAY_H
#define SG_DOORWAY_H

#include "session.h"

struct sg_slot {
    sg_session *session; /* read by sg_server_hold from any thread, under the server's slots_lock */
    int pidfd;
    uint32_t pid;
    uint64_t start;
    uint64_t claiming_since; /* when a half-made claim was first seen */
    int burying, died;
    int restored; /* it was being claimed at the checkpoint: when its process began is not known any more */
};

struct sg_doorway {
    sg_server *server;
    uint32_t first; /* the number of its first slot, counted over all doors of the server */
    char directory[3840];
    struct sg_door *door;
    pthread_t watcher; /* turns the bell, a futex, into a poke */
    int watched;
    struct sg_slot slots[SG_DOOR_SLOTS];
};

/* Makes the door in `directory`, or opens the one of the proxy whose sessions the server takes over; nobody is served yet.  0, or -1
 * with `why`; to be removed all the same. */
int sg_doorway_make(struct sg_doorway *doorway, sg_server *server, uint32_t index, const char *directory, char why[256]);
int sg_doorway_open(struct sg_doorway *doorway); /* ranks may come: 0, or -errno */
void sg_doorway_look(struct sg_doorway *doorway); /* at all slots: claims, good-byes, what has been buried */
void sg_doorway_claimant_died(struct sg_doorway *doorway, uint32_t slot);
uint32_t sg_doorway_sessions(const struct sg_doorway *doorway);
/* The server stops.  shut: who waits at the door is told, and all sessions begin to end; join: the watcher is gone. */
void sg_doorway_shut(struct sg_doorway *doorway);
void sg_doorway_join(struct sg_doorway *doorway);
/* The door's file, and those of sessions that did not end, are gone; the mappings stay for the latter's threads. */
void sg_doorway_remove(struct sg_doorway *doorway);
void sg_doorway_unmap(struct sg_doorway *doorway);

/* handover.c.  changes: some session of it is not just there; is_taken: by the door's own words, before this proxy has sessions. */
int sg_doorway_changes(const struct sg_doorway *doorway);
int sg_doorway_is_taken(const struct sg_doorway *doorway, uint32_t slot);
/* Takes the claimant's pidfd.  0, or -1 with errno: it is not watched. */
int sg_doorway_seat(struct sg_doorway *doorway, uint32_t slot, sg_session *session, const struct sg_claimant *claimant);
void sg_doorway_take_over(struct sg_doorway *doorway); /* it is this proxy's: says so, and to its sessions */

#endif
