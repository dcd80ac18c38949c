/* The consistent cut: where may every rank stop, so that no collective is half done?  Pure logic, no I/O, no clock of
 * its own.  Design: design.md, "Barrier"; the method is that of Xu and Cooperman, "A Topological Sort Approach"
 * (Cluster'24), for MPI.
 *
 * A *channel* is what orders operations among ranks: a communicator (all its ranks), or an ordered pair of ranks of one
 * (sender and receiver).  A member's *clock* on a channel counts the operations that it has issued there.  The
 * cut lies where all members of each channel have the same clock; then all that was issued completes by itself.
 *
 * At the request each channel gets a *target*: the largest clock of its members.  A rank that is behind some target
 * goes on, whatever it issues; one that has reached all of its targets is held before it would pass one.  Who goes on and
 * passes a target raises it for the channel's other members.  Clocks and targets only grow, and every raise is
 * caused by a rank that is behind, so this ends when all ranks have caught up.
 *
 * A rank may be behind and yet unable to go on, because it waits, outside of our sight (TCP, a file, a slow host),
 * for one that is held.  So when nothing has moved for a while, the targets at which ranks are held are raised by what
 * they want, and they go on. */
#ifndef SG_CUT_H
#define SG_CUT_H

#include <stdint.h>

#define SG_CUT_NO_TARGET UINT64_MAX

/* How a rank stands on one of its channels.  `wants`: by how much the operation that it is about to issue (a
 * group may hold several) would advance the clock; 0 when that has nothing to do with the channel. */
struct sg_cut_standing { uint64_t clock, target; uint32_t wants, reserved; };
/* 1: it may issue now; 0: it is to be held until a target of its channels changes.  `count` standings: all of the rank. */
int sg_cut_may_issue(const struct sg_cut_standing *standings, uint32_t count);

/* ---- the coordinator's view ---------------------------------------------------------------------------------- */
struct sg_cut_member { uint32_t channel, rank; uint64_t clock; uint32_t wants, reserved; /* of a rank that is held */ };
/* `aligned`: where the mini-batch of the first target ends, as far as is known (tempo.h; 0: unknown). */
struct sg_cut_channel { uint64_t target, aligned; };
enum { SG_CUT_HELD = 1,      /* stands before an operation that it may not issue */
       SG_CUT_JOINING = 2 }; /* waits for other ranks to join a communicator: not at a cut, and cannot go on alone */
struct sg_cut_rank { uint32_t flags, behind; }; /* behind: set by `update`: 1 while some target is not reached */
struct sg_cut {
    struct sg_cut_member *members;
    struct sg_cut_channel *channels;
    struct sg_cut_rank *ranks;
    uint32_t member_count, channel_count, rank_count;
    uint32_t raises;          /* how often held ranks were let go on */
    uint64_t align_until;     /* 0: targets are not aligned (any more) */
    uint64_t patience_ns;     /* without any movement for so long, they are; doubles with each raise */
    uint64_t moved_at, sum;   /* when something last moved; of what was seen then */
};
enum { SG_CUT_GOING = 0, SG_CUT_REACHED = 1 };
/* Sets the first targets from the members' clocks. */
void sg_cut_begin(struct sg_cut *cut, uint64_t patience_ns, uint64_t now);
/* Once after the first targets are known to all ranks: raises them to where mini-batches end, because activations are
 * dead there, so that an image is small.  A job may leave its rhythm (an evaluation, the end of training), so after
 * `align_ns` targets go back to what was issued by then.  That is as good a beginning as the first one. */
void sg_cut_align(struct sg_cut *cut, uint64_t align_ns, uint64_t now);
/* After `clock`, `wants` and `flags` were brought up to date from one consistent look at all ranks: raises targets, and
 * says whether the cut is reached.  Once reached it stays so. */
int sg_cut_update(struct sg_cut *cut, uint64_t now);

#endif
