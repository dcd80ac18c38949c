/* When does a mini-batch end?  Pure logic, no clock of its own.
 *
 * A training job repeats itself: each mini-batch issues the same collectives on a communicator, with the same number of
 * launches before each.  From what one rank issues on one communicator this finds the *period* (operations per mini-batch)
 * and its *end*: the longest stretch of launches lies before the first data-parallel synchronisation of a mini-batch
 * (forward pass and the first part of the backward pass), so the operation before that stretch is the last one.
 * The paper leaves open how it finds that point (section 4.3).  A wrong guess costs a larger image, never a wrong cut. */
#ifndef SG_TEMPO_H
#define SG_TEMPO_H

#include <stdint.h>

#define SG_TEMPO_LONGEST 512u /* operations per mini-batch */

struct sg_tempo {
    uint64_t count;                    /* operations noted */
    uint32_t marks[SG_TEMPO_LONGEST];  /* what operation n was, at n % LONGEST, */
    uint32_t works[SG_TEMPO_LONGEST];  /* launches before it, */
    uint64_t times[SG_TEMPO_LONGEST];  /* and when it was issued */
    uint32_t covers[SG_TEMPO_LONGEST]; /* at p - 1: for how many operations now each was as the one p before it */
};
struct sg_tempo_beat {
    uint32_t period; /* 0: it does not repeat itself */
    uint32_t end;    /* mini-batches end at clocks n with n % period == end */
    uint32_t work;   /* launches in the longest stretch */
    uint64_t ns;     /* how long the last period took */
};
/* The next operation: `mark` stands for its kind and size, `work` launches were made since the one before. */
void sg_tempo_note(struct sg_tempo *tempo, uint32_t mark, uint32_t work, uint64_t now);
struct sg_tempo_beat sg_tempo_beat(const struct sg_tempo *tempo);
/* The first clock at or after `clock` at which a mini-batch ends; `clock` when that is not known. */
uint64_t sg_tempo_next(uint64_t clock, uint32_t period, uint32_t end);

#endif
