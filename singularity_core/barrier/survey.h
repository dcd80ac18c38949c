/* The coordinator's end of the cut: looks at what the proxies of a job publish on the board (exchange/board.h), and
 * writes targets there.  Used by the node's agent, through cffi; it holds no lock that a proxy could wait for, so it may
 * die at any moment: who takes over clears what it left. */
#ifndef SG_SURVEY_H
#define SG_SURVEY_H

#include "../exchange/board.h"
#include "cut.h"

struct sg_survey;
struct sg_survey *sg_survey_open(const char *directory, uint32_t proxy_count, char why[256]); /* NULL: why */
void sg_survey_close(struct sg_survey *survey);
/* Looks at all ranks and communicators at once: 0; -EAGAIN: something moved at every try (look again later); -errno. */
int sg_survey_look(struct sg_survey *survey);
/* Finds where the mini-batches of the targets end on the communicators that were seen, and sets `aligned` of the cut.
 * Returns how long (ns) that is worth waiting for; 0: nothing was found. */
uint64_t sg_survey_align(struct sg_survey *survey);
/* What the last look saw, as cut.h wants it.  Ranks are global ranks; valid until the next look. */
struct sg_cut *sg_survey_cut(struct sg_survey *survey);
/* Writes the cut's targets to the board, and wakes who is held. */
void sg_survey_publish(struct sg_survey *survey);
/* Numbers the cut that begins, or 0: takes all targets back.  Wakes everybody. */
void sg_survey_number(struct sg_survey *survey, uint32_t number);
/* Tells the proxies to stop all sessions and let the devices come to rest (on), or to go on. */
void sg_survey_freeze(struct sg_survey *survey, int on);
/* A living proxy that cannot tell when its device has come to rest, so that a cut would never be complete; -1: there is none. */
int sg_survey_restless(const struct sg_survey *survey);
/* 1: each living proxy has done so. */
int sg_survey_frozen(const struct sg_survey *survey);
/* All are frozen: tells the proxies to write down their sessions.  handed: 1: each living one has; 0: not yet; -1: one cannot: `why`. */
void sg_survey_hand_over(struct sg_survey *survey);
int sg_survey_handed(const struct sg_survey *survey, char why[SG_SAID]);
/* For people: what a rank was last seen at.  0: the job has no such rank now. */
struct sg_survey_rank {
    uint32_t state;          /* SG_RANK_* */
    uint32_t behind;         /* 1: it has not reached the cut */
    uint32_t proxy, pid, operation; /* SG_RANK_BLOCKED: enum sg_operation_kind */
    uint32_t missing_count, missing[8]; /* global ranks that have not come; all are counted, the first ones named */
    uint64_t since_ns, number; /* CLOCK_MONOTONIC; of its operation on that communicator */
    uint64_t communicator;     /* the first bytes of the key */
    const char *call;          /* its last call */
};
int sg_survey_rank(const struct sg_survey *survey, uint32_t rank, struct sg_survey_rank *out);

#endif
